"""The queue of works: which one is dispatched next, and to which worker.

Theory of operation
-------------------
Each session has a first-in-first-out line of waiting works.  Lines take turns
(round robin), so a client with 10,000 requests does not hold up one with ten.  A dispatch goes to
the machine with the fewest executions for each of its workers, and there to the open worker with
the fewest executions.

*Suspects* are works whose worker died while it ran them.  They run again in
groups, each group alone on a worker.  A suspect of a death with ``s`` executions
that has ``r`` executions left goes into a group of at most ``s^((r-1)/r)``
(:func:`group_most`).  So a suspect with one execution left is alone, and if its
worker dies again, this suspect is why.  A group consists of suspects of one death
that have equally many executions left, and none joins it later.

A worker is reserved for each waiting group, as long as at most half of the workers
(but at least one) are reserved: an idle worker, or else the least loaded one drains.
Those that have left their places to others do not count.
Reservations are decided anew with each pick.  So a worker is given back as soon
as another one is idle, or its suspects are cancelled.

Works whose session has used up its share of the bounds on kept outcomes are skipped, and no worker
is reserved for them, until outcomes of that session have been received.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

from .executions import Duty, Job, Worker
from .requests import Suspicion
from .terms import SessionId

_Job = TypeVar("_Job", bound=Job)
_Mark: TypeAlias = "tuple[Suspicion, int]"
"""Common mark of a group's members: a death, and the number of executions left."""


class Scheduler(Generic[_Job]):
    """The queue; :meth:`pick` decides one dispatch at a time."""

    def __init__(self) -> None:
        self._lines: OrderedDict[SessionId, OrderedDict[_Job, None]] = OrderedDict()
        self._paused: dict[SessionId, OrderedDict[_Job, None]] = {}
        self._suspects: OrderedDict[_Mark, OrderedDict[_Job, None]] = OrderedDict()
        self._group: tuple[Worker, _Mark, int] | None = None
        """The group that is being dispatched: its worker, its mark, and the most members that are
        still to come."""
        self.reserving = False
        """Whether a worker may be draining for suspects."""

    def __len__(self) -> int:
        lines = (*self._lines.values(), *self._paused.values(), *self._suspects.values())
        return sum(map(len, lines))

    def add(self, work: _Job) -> None:
        """Append a work to its session's line, or to the suspects."""
        if work.suspicion is not None:
            self._suspects.setdefault(_mark_of(work), OrderedDict())[work] = None
            return
        session = work.account.id
        line = self._paused.get(session)
        if line is None:
            line = self._lines.setdefault(session, OrderedDict())
        line[work] = None

    def remove(self, work: _Job) -> None:
        """Take a work out, wherever it waits."""
        if work.suspicion is not None:
            _remove(self._suspects, _mark_of(work), work)
        else:
            _remove(self._lines, work.account.id, work)
            _remove(self._paused, work.account.id, work)

    @property
    def may_pick(self) -> bool:
        """Whether a work may be picked, or a worker given back."""
        return bool(self._lines or self._suspects or self.reserving)

    @property
    def is_paused(self) -> bool:
        """Whether some lines are skipped because their sessions have used up their shares."""
        return bool(self._paused)

    def resume(self, share_left: Callable[[SessionId], bool]) -> None:
        """Prepare a series of picks: lines whose sessions are below their shares again take turns
        again.  A group whose dispatch was cut short is not continued: its worker may serve others
        by now, or be dead."""
        self._group = None
        if self._paused:
            for session in [s for s in self._paused if share_left(s)]:
                self._lines[session] = self._paused.pop(session)

    def pick(
        self, workers: Collection[Worker], share_left: Callable[[SessionId], bool],
        most: float = math.inf,
    ) -> tuple[_Job, Worker] | None:  # fmt: skip
        """Take the next dispatch out of the queue; None if nothing can be dispatched.  To be called
        until it returns None, so that a group of suspects is dispatched at once.  ``most``: number
        of executions from which on a worker gets suspects only."""
        if self._suspects or self.reserving:
            chosen = self._pick_suspect(workers, share_left)
            if chosen is not None:
                return chosen
        if not self._lines:
            return None
        worker: Worker | None = None
        for each in workers:
            if each.running >= most:
                continue
            if (worker is None or each.is_lighter(worker)) and each.open():
                worker = each
        if worker is None:
            return None
        work = self._next_work(share_left)
        return None if work is None else (work, worker)

    def oldest_s(self, share_left: Callable[[SessionId], bool]) -> float | None:
        """Moment since which the oldest of the works that a worker could take waits; None if there
        is none."""
        firsts = [
            next(iter(line)).queued_s
            for session, line in self._lines.items() if share_left(session)
        ]  # fmt: skip
        for line in self._suspects.values():
            able = (each.queued_s for each in line if share_left(each.account.id))
            firsts += islice(able, 1)
        return min(firsts, default=None)

    def _pick_suspect(
        self, workers: Collection[Worker], share_left: Callable[[SessionId], bool]
    ) -> tuple[_Job, Worker] | None:
        if self._group is None:
            self._group = self._next_group(workers, share_left)
        if self._group is None:
            return None
        worker, mark, more = self._group
        work = None
        has_capacity = more and worker.running < worker.capacity and worker.has_numbers()
        if has_capacity and mark in self._suspects:
            line = self._suspects[mark]
            work = next((each for each in line if share_left(each.account.id)), None)
        if work is None:
            self._group = None
            return self._pick_suspect(workers, share_left)
        self._group = worker, mark, more - 1
        self.remove(work)
        work.suspicion = None
        return work, worker

    def _next_group(
        self, workers: Collection[Worker], share_left: Callable[[SessionId], bool]
    ) -> tuple[Worker, _Mark, int] | None:
        """The next group, its worker and its size; None if no group waits or no worker is idle."""
        others = [worker for worker in workers if worker.duty is not Duty.SUSPECTS]
        serving = len(workers) - len(others)
        count = sum(not worker.is_beside for worker in workers)
        free = max(0, max(1, count // 2) - serving)
        first, wanted = self._waiting(free, share_left)
        able = [worker for worker in others if worker.accepting and worker.has_numbers()]
        able.sort(key=lambda w: (bool(w.running), w.duty is not Duty.DRAINING, w.running))
        for worker in others:
            worker.duty = Duty.ANY
        for worker in able[:wanted]:
            worker.duty = Duty.DRAINING
        self.reserving = first is not None
        if first is None or not able or able[0].running:
            return None
        able[0].duty = Duty.SUSPECTS
        return able[0], first, group_most(*first)

    def _waiting(
        self, most: int, share_left: Callable[[SessionId], bool]
    ) -> tuple[_Mark | None, int]:
        """The mark of the next group, and the number of groups that wait, up to ``most``."""
        first, groups = None, 0
        for mark, line in self._suspects.items():
            if groups >= most:
                break
            size = group_most(*mark)
            able = filter(share_left, (each.account.id for each in line))
            count = sum(1 for _ in islice(able, size * most))
            groups += -(-count // size)
            first = first or (mark if count else None)
        return first, min(groups, most)

    def _next_work(self, share_left: Callable[[SessionId], bool]) -> _Job | None:
        while self._lines:
            session, line = next(iter(self._lines.items()))
            if not share_left(session):
                self._paused[session] = self._lines.pop(session)
                continue
            work, _ = line.popitem(last=False)
            if line:
                self._lines.move_to_end(session)
            else:
                del self._lines[session]
            return work
        return None


def group_most(suspicion: Suspicion, left: int) -> int:
    """Most suspects of a death of ``s`` executions that may run together if each has ``left``
    executions left: the least ``g`` with ``g^left >= s^(left-1)``."""
    _, size = suspicion
    if left <= 1:
        return 1
    if left > size * size.bit_length():  # the next root would be less than 1 away
        return size
    most = int(size ** ((left - 1) / left))
    while most**left < size ** (left - 1):
        most += 1
    return most


def _mark_of(work: Job) -> _Mark:
    assert work.suspicion is not None
    return work.suspicion, work.allowance - work.executions


def _remove(lines: dict[Any, OrderedDict[_Job, None]], key: Any, work: _Job) -> None:
    line = lines.get(key)
    if line is not None:
        line.pop(work, None)
        if not line:
            del lines[key]
