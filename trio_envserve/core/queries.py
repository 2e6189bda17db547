"""Answers to what clients ask of a server: pages of its keys and of what runs, and stacks.

Theory of operation
-------------------
A list has numbers: generations of keys in the order in which they were opened, executions in that
of their dispatch over all workers.  A question names the number from which its page begins.  So
nothing is remembered about those who ask, and what is added or dropped in between moves nothing
else.

A list may be very long, and the keys of one namespace lie anywhere in theirs.  So a page ends after
so many rows, after so many bytes, and after so many things that were looked at: it may be empty,
with more behind it.  The numbers are sorted once for all questions of one turn of the server, and
these get :data:`TURN_PAGES` pages in all (G10).  Every further question of the turn gets an empty
page whose ``next`` is where it asked, and is to be asked again.

For a stack a worker's process is asked beside its event loop, which may be blocked, and may never
answer.  So the router does not wait: it remembers a question for :data:`ANSWER_S`, and a client
without an answer by then asks again.  The number of remembered questions is bounded, and a worker
is asked for one execution at most once in :data:`AGAIN_S`, however many clients ask (G10).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar, final

from .archive import Archived
from .executions import Execution
from .router_effects import AskWorker, RouterEffect, ToClient, answer_to
from .terms import RequestId, Route
from .work import Work, Works, WorkState
from .workforce import Workforce

PAGE_ROWS = 100
"""Most rows of a page."""
PAGE_BYTES = 16 * 1024
"""Most bytes of names, notes and stacks on a page, which then fits into a frame of 32 KiB: any peer
takes that."""
LOOKED_AT = 1024
"""Most things of a list that are looked at for one page."""
TURN_PAGES = 16
"""Most pages of a list for all questions of one turn."""
WHERE_CHARACTERS = 400
"""Most characters of a stack on a page: its innermost lines."""

EXECUTIONS_MOST = 16
"""Most executions whose stacks are asked for at one time."""
ROUTES_MOST = 16
"""Most clients that wait for the stack of one execution."""
STACK_BYTES = 24 * 1024
"""Most bytes of a stack, so that the answer fits into a frame of 32 KiB: any peer takes that."""
ANSWER_S = 5.0
"""Time for which a question is remembered, in seconds."""
AGAIN_S = 1.0
"""Least time between two questions to a worker for one execution, in seconds."""

_T = TypeVar("_T")


# -- lists in pages ----------------------------------------------------------------------


class _Pages(Generic[_T]):
    """A list of the router; changes nothing of it."""

    def __init__(self, listed: Callable[[], Mapping[int, _T]]) -> None:
        """``listed``: all that is in the list, by number."""
        self._list = listed
        self._turn_s = -1.0
        self._left = 0
        """Number of pages that are left for this turn."""
        self._listed: Mapping[int, _T] = {}
        self._numbers: list[int] = []
        """The numbers of all that is listed in this turn, in order."""

    def _begin_turn(self, turn_s: float) -> None:
        if turn_s != self._turn_s:
            self._turn_s, self._left = turn_s, TURN_PAGES
            self._listed = self._list()
            self._numbers = sorted(self._listed)

    def _from(self, first: int, most: int) -> dict[int, _T]:
        """At most so many things with numbers from this one on, in order; some may be gone since
        the turn began."""
        indexes = range(bisect_left(self._numbers, first), len(self._numbers))
        there = (n for n in map(self._numbers.__getitem__, indexes) if n in self._listed)
        return {each: self._listed[each] for each in islice(there, most)}

    def _page(
        self, first: int, turn_s: float, describe: Callable[[_T], dict[str, Any] | None]
    ) -> tuple[list[dict[str, Any]], int | None]:
        """The rows of the page that begins with a number, and the number with which the next one
        begins, None if this is the last one.  ``describe``: makes a row, or None for what has no
        place on the page.  Questions with equal ``turn_s`` belong to one turn."""
        self._begin_turn(turn_s)
        looks = LOOKED_AT if self._left else 0
        self._left -= bool(self._left)
        rows: list[dict[str, Any]] = []
        size_bytes = 0
        for at, (number, listed) in enumerate(self._from(first, looks + 1).items()):
            if at == looks or len(rows) == PAGE_ROWS:
                return rows, number
            row = describe(listed)
            if row is None:
                continue
            size_bytes += _size_bytes(row)
            if rows and size_bytes > PAGE_BYTES:
                return rows, number
            rows.append(row)
        return rows, None


def _size_bytes(row: dict[str, Any]) -> int:
    """Size of a row's names, note and stack in bytes."""
    texts = sum(len(each.encode()) for each in row.values() if isinstance(each, str))
    return texts + sum(len(each) for each in row.values() if isinstance(each, bytes))


# -- keys --------------------------------------------------------------------------------


@final
class KeyPages(_Pages[Work | Archived]):
    """The generations of keys."""

    def __init__(self, works: Works) -> None:
        super().__init__(lambda: works.generations)
        self._works = works
        self._archive = works.archive

    def page(self, namespace: bytes, first: int, now_s: float, turn_s: float) -> dict[str, Any]:
        """The page of keys of a namespace (empty: of all) that begins with a generation's number,
        as plain data.  ``now_s`` is on the awake clock."""

        def describe(generation: Work | Archived) -> dict[str, Any] | None:
            assert generation.name is not None
            if namespace not in (b"", generation.name.namespace):
                return None
            return self._describe(generation, now_s)

        rows, following = self._page(first, turn_s, describe)
        usage = self._works.accounts.usage(namespace)
        keys, size_bytes = usage.works, usage.size_bytes
        if self._archive is not None:
            resting = self._archive.usage(namespace)
            keys, size_bytes = keys + resting.keys, size_bytes + resting.disk_bytes
        return {"keys": rows, "next": following, "generations": keys, "size_bytes": size_bytes}

    def _from(self, first: int, most: int) -> dict[int, Work | Archived]:
        found = super()._from(first, most)
        if self._archive is None:
            return found
        for each in self._archive.following(first, most):
            found.setdefault(each.number, each)
        return dict(sorted(found.items())[:most])

    def _describe(self, generation: Work | Archived, now_s: float) -> dict[str, Any]:
        name, until_s = generation.name, self._until_s(generation)
        assert name is not None
        if isinstance(generation, Archived):
            state, waiters, watchers, lost = WorkState.COMPLETED, 0, 0, 0
            size_bytes = generation.size_bytes + name.size_bytes
        else:
            state, lost, size_bytes = generation.state, len(generation.lost), generation.size_bytes
            waiters = sum(ticket.counts for ticket in generation.tickets)
            watchers = len(generation.tickets) - waiters
        return {
            "namespace": name.namespace,
            "key": name.key,
            "generation": generation.number,
            "state": state.value,
            "waiters": waiters,
            "watchers": watchers,
            "lost": lost,
            "executions": generation.executions,
            "age_s": round(now_s - generation.opened_s, 3),
            "left_s": None if until_s is None else max(0.0, round(until_s - now_s, 3)),
            "size_bytes": size_bytes,
        }

    def _until_s(self, generation: Work | Archived) -> float | None:
        """Moment of its orphan deadline or of the end of its retention; None if neither runs."""
        works, keys = self._works, self._works.keys
        if isinstance(generation, Archived) or generation.timed is works.retained:
            return generation.since_s + keys.retention_s
        return generation.since_s + keys.orphan_s if generation.timed is works.orphans else None


# -- what runs ---------------------------------------------------------------------------


@final
class RunningPages(_Pages[Execution]):
    """The executions whose code may run."""

    def __init__(self, workforce: Workforce) -> None:
        super().__init__(self._run)
        self._workforce = workforce

    def page(self, first: int, now_s: float, turn_s: float) -> dict[str, Any]:
        """The page of running executions that begins with a number, as plain data.  ``now_s`` is
        on the awake clock."""
        rows, following = self._page(first, turn_s, lambda each: self._describe(each, now_s))
        return {
            "running": rows, "next": following, "total": len(self._listed),
            "typical_s": median(self._workforce.durations),
        }  # fmt: skip

    def find(self, number: int, turn_s: float) -> Execution | None:
        """The execution with this number; None if its code does not run."""
        self._begin_turn(turn_s)
        return self._listed.get(number)

    def _run(self) -> Mapping[int, Execution]:
        workers = self._workforce.workers.values()
        found = (each for worker in workers for each in worker.live.values())
        return {each.serial: each for each in found if each.size_bytes is None}

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
            "environment": self._workforce.dispatches.environment.name,
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


def median(numbers: deque[float]) -> float | None:
    """The median; None if there are no numbers."""
    return sorted(numbers)[len(numbers) // 2] if numbers else None


# -- stacks ------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class _Asked:
    """The questions for one execution."""

    asked_s: float
    """Moment of the first question, on the awake clock."""
    sent_s: float
    """Moment at which the worker was last asked."""
    routes: dict[Route, int]
    """Routes of the clients that wait, with the probes of their questions."""


@final
class Stacks:
    """Passes questions on to workers, and their answers back."""

    def __init__(self) -> None:
        self._asked: dict[tuple[bytes, int], _Asked] = {}
        """Open questions, by worker and dispatch."""

    def ask(
        self, execution: Execution | None, route: Route, probe: int, now_s: float
    ) -> list[RouterEffect]:
        """Take in a client's question for the stack of an execution; None if that does not run."""
        if execution is None:
            return [_answer(route, probe, "over")]
        dispatch = execution.worker.id, execution.number
        asked = self._asked.get(dispatch)
        if asked is None:
            self._drop_old(now_s)
            if len(self._asked) >= EXECUTIONS_MOST:
                return [_answer(route, probe, "busy")]
            asked = self._asked[dispatch] = _Asked(now_s, now_s - AGAIN_S, {})
        if route not in asked.routes and len(asked.routes) >= ROUTES_MOST:
            return [_answer(route, probe, "busy")]
        asked.routes[route] = probe
        if now_s - asked.sent_s < AGAIN_S:
            return []
        asked.sent_s = now_s
        request = RequestId(execution.session.id, execution.sequence)
        return [AskWorker(*dispatch, str(request))]

    def taken(self, worker: bytes, number: int, text: str) -> list[RouterEffect]:
        """Pass on a worker's answer.  A worker may send any text, and unasked."""
        asked = self._asked.pop((worker, number), None)
        if asked is None:
            return []
        text = text.encode("utf-8", "replace")[:STACK_BYTES].decode(errors="ignore")
        return [
            _answer(route, probe, "told", worker=worker.decode("ascii", "replace"), text=text)
            for route, probe in asked.routes.items()
        ]

    def _drop_old(self, now_s: float) -> None:
        old = [key for key, each in self._asked.items() if now_s - each.asked_s >= ANSWER_S]
        for key in old:
            del self._asked[key]


def _answer(route: Route, probe: int, state: str, **more: Any) -> ToClient:
    return answer_to(route, probe, {"state": state, **more})
