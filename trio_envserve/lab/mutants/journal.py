"""Mutants of the journal: what is done before it is safe, and what a crash forgets."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...core import keys as keys_module
from ...core import messages, restored
from ...core.dispatches import Dispatches
from ...core.key_answers import KeyAnswers
from ...core.key_records import Answer
from ...core.keyed_at_rest import RestingRequests
from ...core.terms import ID_BYTES, Status
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY)


@FAMILY.mutant("G11", "G2", needs=(Fault.JOURNAL,))
def dispatch_before_safe(patch: Patches) -> None:
    """An execution is sent to its worker before the record of its start is safe."""

    @patch.around(Dispatches, "dispatch")
    def dispatch(
        original: Any,
        self: Any,
        session: Any,
        entry: Any,
        worker: Any,
        now_s: float,
        after: int = 0,
    ) -> Any:
        return original(self, session, entry, worker, now_s)


_give = KeyAnswers.give


@FAMILY.mutant("G11", "G3", needs=(Fault.JOURNAL,))
def tell_before_safe(patch: Patches) -> None:
    """The outcome of a key is told before its record is safe."""

    @patch.replacing(KeyAnswers, "give")
    def give(self: Any, answer: Any) -> None:
        if isinstance(answer, Answer):
            self._tell(answer)
        else:
            _give(self, answer)


@FAMILY.mutant("G11", "G7", needs=(Fault.JOURNAL,))
def drop_before_safe(patch: Patches) -> None:
    """A key that is cancelled or forgotten is said to be gone before that is safe."""

    @patch.replacing(KeyAnswers, "give")
    def give(self: Any, answer: Any) -> None:
        if isinstance(answer, Answer):
            _give(self, answer)
        else:
            self._tell(answer)

    patch.attribute(KeyAnswers, "tell", lambda self, given: self._tell(given))


@FAMILY.mutant("G2", "G11", needs=(Fault.JOURNAL,))
def allowance_forgotten(patch: Patches) -> None:
    """A key may be run after a crash as often as was allowed at first."""

    @patch.replacing(keys_module, "generation_of")
    def generation_of(left: Any, now_s: float) -> Any:
        generation, ask = restored.generation_of(left, now_s)
        more = left.opened.allowance + left.executions
        generation.ask = dataclasses.replace(ask, allowance=more)
        return generation, generation.ask


@FAMILY.mutant("G11", needs=(Fault.JOURNAL,))
def executions_forgotten(patch: Patches) -> None:
    """Executions of before a crash are taken off the allowance, and not counted."""

    @patch.replacing(keys_module, "generation_of")
    def generation_of(left: Any, now_s: float) -> Any:
        generation, ask = restored.generation_of(left, now_s)
        generation.ask = dataclasses.replace(ask, allowance=ask.allowance - left.executions)
        generation.earlier, generation.executions = left.executions, 0
        return generation, generation.ask


@FAMILY.mutant("G11", "G3", needs=(Fault.JOURNAL,))
def answer_before_read(patch: Patches) -> None:
    """A caller is answered before the outcome is read from the disk."""

    @patch.around(RestingRequests, "_read")
    def read(original: Any, self: Any, generation: Any) -> None:
        original(self, generation)
        header = messages.Outcome(bytes(ID_BYTES), 0, Status.RESULT, "", None, 1)
        self.loaded(generation.number, (messages.encode(header), b""), "")


@FAMILY.mutant("G11", needs=(Fault.JOURNAL,))
def rest_before_safe(patch: Patches) -> None:
    """An outcome leaves memory before it is safe on the disk."""

    @patch.replacing(RestingRequests, "_may_rest")
    def may_rest(self: Any, generation: Any) -> bool:
        busy = generation.number in self._reading or generation.number in self._wanted
        return not (generation.live or generation.watchers or busy)
