"""One step where callers share a key, and the server has a journal.

Theory of operation
-------------------
All that a step has written is a group: groups become safe one by one, or all at once, at any
time.  The server may fall at any time: then any number of the groups that were not safe, from
the first on, are there nevertheless, and the next server is given what is.  Its sessions are
new, the worker is dead, and the callers come back.
"""

from __future__ import annotations

from .disk_judge import DiskJudge
from .keyed_judge import KeyJudge, KeyPast
from .keyed_state import INPUT, KeyState, Row
from .keyed_step import KeyStep


class DiskStep(KeyStep):
    """The step from a state to the next."""

    judge: DiskJudge

    def _judge(self, past: KeyPast, consent: bool, allowance: int) -> KeyJudge:
        return DiskJudge(past, consent, allowance, self._disk)

    def state(self) -> KeyState:
        """The state after it."""
        return super().state()._replace(disk=self.judge.disk())

    def _write(self, rows: tuple[Row, ...]) -> None:
        self.judge.recorded(rows)

    def _sync(self, groups: int) -> None:
        self._server("saved", self.judge.synced(groups))

    def _fall(self, kept: int) -> None:
        rows = self.judge.fell(kept)
        self._life += 1
        self._router = self._world.routers.restored(self._life, rows)
        self._worker = None
        for c, caller in enumerate(self._callers):
            waits = any(s.input == INPUT and s.told is None for s in caller.said)
            self._callers[c] = caller._replace(
                here=False, said=(), lost=caller.lost or waits, left=()
            )

    def _take(self, c: int, sequence: int) -> None:
        """Take the answer to a command later, if it waits for the journal."""
        if all(s.told is not None for s in self._callers[c].said if s.sequence == sequence):
            super()._take(c, sequence)

    def _start(self, slot: int) -> None:
        self.judge.went_on()
        super()._start(slot)

    def _lost(self) -> None:
        super()._lost()
        self.judge.never_sent()
