"""Mutants of the journal: what is done before it is safe, and what a crash forgets."""

from __future__ import annotations

from typing import Any

from ...core import messages
from ...core.dispatches import Dispatches
from ...core.terms import ID_BYTES, Status
from ...core.work import Told, Works
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY, needs=(Fault.JOURNAL,))


@FAMILY.mutant("G11", "G2")
def dispatch_before_safe(patch: Patches) -> None:
    """An execution is sent to its worker before the record of its start is safe."""

    @patch.around(Dispatches, "dispatch")
    def dispatch(
        original: Any, self: Any, account: Any, work: Any, worker: Any, now_s: float, after: int = 0
    ) -> Any:
        return original(self, account, work, worker, now_s)


@FAMILY.mutant("G11", "G3")
def tell_before_safe(patch: Patches) -> None:
    """The outcome of a key is told before its record is safe."""

    @patch.around(Works, "tell")
    def tell(original: Any, self: Any, answer: Any) -> None:
        if isinstance(answer, Told):
            self._give(answer, is_safe=True)
        else:
            original(self, answer)


@FAMILY.mutant("G11", "G7")
def drop_before_safe(patch: Patches) -> None:
    """A key that is cancelled or forgotten is said to be gone before that is safe."""

    @patch.around(Works, "tell")
    def tell(original: Any, self: Any, answer: Any) -> None:
        if isinstance(answer, Told):
            original(self, answer)
        else:
            self._give(answer, is_safe=True)

    @patch.replacing(Works, "confirm")
    def confirm(self: Any, confirm: Any, *, waits: bool) -> None:
        self._confirm(confirm, is_safe=True)


@FAMILY.mutant("G2", "G11")
def allowance_forgotten(patch: Patches) -> None:
    """A key may be run after a crash as often as was allowed at first."""

    @patch.around(Works, "_restore")
    def restore(original: Any, self: Any, left: Any, now_s: float) -> Any:
        work = original(self, left, now_s)
        work.allowance += left.executions
        return work


@FAMILY.mutant("G11")
def executions_forgotten(patch: Patches) -> None:
    """Executions of before a crash are taken off the allowance, and not counted."""

    @patch.around(Works, "_restore")
    def restore(original: Any, self: Any, left: Any, now_s: float) -> Any:
        work = original(self, left, now_s)
        work.allowance -= left.executions
        work.earlier, work.executions = left.executions, 0
        return work


@FAMILY.mutant("G11", "G3")
def answer_before_read(patch: Patches) -> None:
    """A caller is answered before the outcome is read from the disk."""

    @patch.around(Works, "_read")
    def read(original: Any, self: Any, work: Any) -> None:
        original(self, work)
        header = messages.Outcome(bytes(ID_BYTES), 0, Status.RESULT, "", None, 1)
        self.loaded(work.number, (messages.encode(header), b""), "")


@FAMILY.mutant("G11")
def rest_before_safe(patch: Patches) -> None:
    """An outcome leaves memory before it is safe on the disk."""

    @patch.replacing(Works, "_may_rest")
    def may_rest(self: Any, work: Any) -> bool:
        busy = work.number in self._reading or work.number in self._wanted
        return not (work.live or work.tickets or busy)
