"""Which executions run, the oldest first, a page at a time.

Theory of operation
-------------------
Executions are numbered in the order of their dispatch, over all workers, so the oldest have
the smallest numbers.  The next question goes on from a number, and nothing is remembered
about who asks.  The list is made once for all questions of a turn, and these get so many
pages in all (G10): who gets an empty one, with a ``next`` that is no further, asks again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any, final

from .executions import Execution
from .terms import RequestId
from .work import Work
from .workforce import Workforce

PAGE_ROWS = 100
PAGE_BYTES = 16 * 1024
"""Of names, notes and stacks: so a page fits into a frame of 32 KiB, which any peer takes."""
TURN_PAGES = 16
"""Pages for all questions of one turn."""
WHERE_CHARACTERS = 400
"""Of a stack the innermost lines are shown."""


@final
class RunningPages:
    """Answers what runs.  It changes nothing."""

    def __init__(self, workforce: Workforce) -> None:
        self._workforce = workforce
        self._turn_s = -1.0
        self._left = 0
        """How many pages there may still be in this turn."""
        self._running: list[Execution] = []
        self._typical_s: float | None = None

    def page(self, first: int, now_s: float, turn_s: float) -> dict[str, Any]:
        """The running executions, from this number on, as plain data.  ``now_s`` is the
        time awake; all questions with one ``turn_s`` are of one turn."""
        self._begin_turn(turn_s)
        begin = bisect_left(self._running, first, key=_serial)
        end = len(self._running)
        if self._left:
            self._left -= 1
            end = min(end, begin + PAGE_ROWS)
        else:
            end = begin
        rows: list[dict[str, Any]] = []
        size_bytes = 0
        for execution in self._running[begin:end]:
            row = self._describe(execution, now_s)
            size_bytes += _size_bytes(row)
            if rows and size_bytes > PAGE_BYTES:
                break
            rows.append(row)
        after = self._running[begin + len(rows) :]
        return {
            "running": rows,
            "next": after[0].serial if after else None,
            "total": len(self._running),
            "typical_s": self._typical_s,
        }

    def find(self, number: int, turn_s: float) -> Execution | None:
        """The execution with this number, if its code may run."""
        self._begin_turn(turn_s)
        at = bisect_left(self._running, number, key=_serial)
        found = self._running[at : at + 1]
        return found[0] if found and found[0].serial == number else None

    def _begin_turn(self, turn_s: float) -> None:
        if turn_s != self._turn_s:
            self._turn_s, self._left = turn_s, TURN_PAGES
            self._running = self._list()
            self._typical_s = median(self._workforce.durations)

    def _list(self) -> list[Execution]:
        """All whose code may run, the oldest first."""
        workers = self._workforce.workers.values()
        found = [e for worker in workers for e in worker.live.values() if e.size_bytes is None]
        return sorted(found, key=_serial)

    def _describe(self, execution: Execution, now_s: float) -> dict[str, Any]:
        worker, session = execution.worker, execution.session
        life = self._workforce.pool.lives.get(worker.id)
        work: Work | None = execution.work
        name = None if work is None else work.name
        return {
            "number": execution.serial,
            "request": str(RequestId(session.id, execution.sequence)),
            "client": session.name if name is None else "",
            "namespace": None if name is None else name.namespace,
            "key": None if name is None else name.key,
            "environment": self._workforce.environment,
            "state": "stopping" if execution.stop_s is not None else "running",
            "executions": work.executions if work is not None and execution.is_wanted else None,
            "worker": worker.name,
            "age_s": round(now_s - execution.dispatched_s, 3),
            "note": execution.note,
            "where": "" if life is None or not life.blocked else _innermost(life.where),
        }


def _innermost(where: str) -> str:
    """The end of a stack.  A worker says it, so it may be any text."""
    return where[-WHERE_CHARACTERS:].encode("utf-8", "replace").decode()


def _size_bytes(row: dict[str, Any]) -> int:
    """Of its names, its note and its stack."""
    texts = sum(len(each.encode()) for each in row.values() if isinstance(each, str))
    return texts + sum(len(each) for each in row.values() if isinstance(each, bytes))


def _serial(execution: Execution) -> int:
    return execution.serial


def median(numbers: deque[float]) -> float | None:
    """The one in the middle; None of none."""
    return sorted(numbers)[len(numbers) // 2] if numbers else None
