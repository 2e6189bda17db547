"""Mutants of the journal: what is done before it is safe, and what a crash forgets."""

from __future__ import annotations

from typing import Any

from ...core import messages, restored
from ...core.dispatches import Dispatches
from ...core.key_answers import KeyAnswers
from ...core.keyed_at_rest import RestingRequests
from ...core.terms import ID_BYTES, Status
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY, needs=(Fault.JOURNAL,))


@FAMILY.mutant("G11", "G2")
def dispatch_before_safe(patch: Patches) -> None:
    """An execution is sent to its worker before the record of its start is safe."""
    patch.source(Dispatches.dispatch, "execution.after = after", "execution.after = after = 0")


@FAMILY.mutant("G11", "G3")
def tell_before_safe(patch: Patches) -> None:
    """The outcome of a key is told before its record is safe."""
    patch.source(KeyAnswers.give, "journal.on and", "not isinstance(answer, Answer) and")


@FAMILY.mutant("G11", "G7")
def drop_before_safe(patch: Patches) -> None:
    """A key that is cancelled or forgotten is said to be gone before that is safe."""
    patch.source(KeyAnswers.give, "journal.on and", "isinstance(answer, Answer) and")
    patch.source(KeyAnswers.tell, "journal.is_safe(journal.appended)", "True")


@FAMILY.mutant("G2", "G11")
def allowance_forgotten(patch: Patches) -> None:
    """A key may be run after a crash as often as was allowed at first."""
    patch.source(restored.generation_of, "allowance, exec", "allowance + left.executions, exec")


@FAMILY.mutant("G11")
def executions_forgotten(patch: Patches) -> None:
    """Executions of before a crash are taken off the allowance, and not counted."""
    patch.source(restored.generation_of, "allowance, exec", "allowance - left.executions, exec")
    patch.source(restored.generation_of, "rerun, earlier,\n", "rerun, left.executions,\n")
    patch.source(restored.generation_of, "executions=left.executions", "executions=0")


@FAMILY.mutant("G11", "G3")
def answer_before_read(patch: Patches) -> None:
    """A caller is answered before the outcome is read from the disk."""

    @patch.around(RestingRequests, "_read")
    def read(original: Any, self: Any, generation: Any) -> None:
        original(self, generation)
        header = messages.Outcome(bytes(ID_BYTES), 0, Status.RESULT, "", None, 1)
        self.loaded(generation.number, (messages.encode(header), b""), "")


@FAMILY.mutant("G11")
def rest_before_safe(patch: Patches) -> None:
    """An outcome leaves memory before it is safe on the disk."""
    patch.source(
        RestingRequests._may_rest, "and self._journal.is_safe(generation.outcome.shared.after)", ""
    )
