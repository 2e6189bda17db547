"""Whether what runs under keys may run, and whether what is told of it is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.key_records import KeyAct
from ...core.terms import Status, Verdict
from .judge_keys_work import label_of
from .judge_records import Call, Execution

if TYPE_CHECKING:
    from ...retrylab.world import Process
    from .judge_wires import Wires


class KeyRuns:
    """The part of the judge of keys that knows the executions."""

    def __init__(self, book: Wires) -> None:
        self._book = book
        self.of_key: dict[str, list[Execution]] = {}
        """All executions of a key."""
        self.of_generation: dict[tuple[Process, int], list[Execution]] = {}
        """All executions of a generation."""
        self.by_payload: dict[bytes, Execution] = {}

    def started(self, call: Call, execution: Execution) -> None:
        """Environment code begins under a key."""
        label, number = label_of(execution.key), execution.request.sequence
        book, key = self._book, execution.key
        runs = self.of_key.setdefault(label, [])
        for earlier in runs:
            if earlier.live():
                text = f"{key} starts, and {earlier.key} is live since {earlier.started_s:.3f}"
                book.violation("G1", text, key)
        runs.append(execution)
        home = book.journal.home(execution.server)
        mine = self.of_generation.setdefault((home, number), [])
        if mine and mine[-1].key != key:
            book.violation("G6", f"generation {number} is of {mine[-1].key} and {key}", key)
        if mine and mine[-1].worker.alive:
            book.violation("G2", f"{key} starts again, and its worker had not died", key)
        mine.append(execution)
        asked = [each for each in book.calls.values() if each.input == key]
        most = max((each.most for each in asked), default=0)
        if len(mine) > 1 and not any(each.consent for each in asked):
            book.violation("G2", f"{key} starts for the {len(mine)}. time without consent", key)
        elif len(mine) > most:
            text = f"{key} starts for the {len(mine)}. time, {most} allowed"
            book.violation("G2", text, key)
        call.executions.append(execution)

    def ended(self, execution: Execution) -> None:
        """Environment code has ended."""
        self.by_payload[execution.payload] = execution

    def answered(self, call: Call, status: Status, body: bytes) -> None:
        """A caller was given an outcome."""
        assert call.use is not None
        asks = call.use.act in (KeyAct.ASK, KeyAct.ATTACH)
        if status is Status.RESULT and asks and body not in self.by_payload:
            text = f"{call.key} was given a result that no execution gave"
            self._broken("G3", text, call)

    def true(self, call: Call) -> None:
        """The verdict must be true of the key's executions."""
        if call.verdict is Verdict.RAN_AND_FAILED:
            label = call.use.label if call.use else ""
            if not self.of_key.get(label):
                text = f"{call.key}: {call.told} says that it ran, and nothing of its key did"
                self._broken("G9", text, call)

    def _broken(self, guarantee: str, text: str, call: Call) -> None:
        self._book.violation(guarantee, text, call.key)
