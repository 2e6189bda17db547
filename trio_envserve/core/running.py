"""The list of running executions, the oldest first, in pages.

Theory of operation
-------------------
Executions are numbered in the order of their dispatch over all workers, so the oldest have the
smallest numbers.  A question names the number from which its page begins; nothing is remembered
about those who ask.  The list is made once for all questions of one turn of the server, and these
get :data:`TURN_PAGES` pages in all (G10).  Every further question of the turn gets an empty page
whose ``next`` is where it asked, and is to be asked again.
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
"""Most executions on a page."""
PAGE_BYTES = 16 * 1024
"""Most bytes of names, notes and stacks on a page, which then fits into a frame of 32 KiB: any peer
takes that."""
TURN_PAGES = 16
"""Most pages for all questions of one turn."""
WHERE_CHARACTERS = 400
"""Most characters of a stack on a page: its innermost lines."""


@final
class RunningPages:
    """Answers the questions for running executions; changes nothing of the router."""

    def __init__(self, workforce: Workforce) -> None:
        self._workforce = workforce
        self._turn_s = -1.0
        self._left = 0
        """Number of pages that are left for this turn."""
        self._running: list[Execution] = []
        self._typical_s: float | None = None

    def page(self, first: int, now_s: float, turn_s: float) -> dict[str, Any]:
        """The page of running executions that begins with number ``first``, as plain data.
        ``now_s`` is on the awake clock; questions with equal ``turn_s`` belong to one turn."""
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
        """The execution with this number; None if its code does not run."""
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
        """All executions whose code may run, the oldest first."""
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
            "where": _innermost(life.where) if life is not None and life.is_stuck else "",
        }


def _innermost(where: str) -> str:
    """The end of a stack as valid UTF-8: a worker may send any text."""
    return where[-WHERE_CHARACTERS:].encode("utf-8", "replace").decode()


def _size_bytes(row: dict[str, Any]) -> int:
    """Size of a row's names, note and stack in bytes."""
    texts = sum(len(each.encode()) for each in row.values() if isinstance(each, str))
    return texts + sum(len(each) for each in row.values() if isinstance(each, bytes))


def _serial(execution: Execution) -> int:
    return execution.serial


def median(numbers: deque[float]) -> float | None:
    """The median; None if there are no numbers."""
    return sorted(numbers)[len(numbers) // 2] if numbers else None
