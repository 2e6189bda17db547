"""The order in which executions run, and their workers.

Theory of operation
-------------------
Each session has a first-in-first-out line of waiting entries.  Lines take
turns, so a client with 10,000 requests does not hold up one with ten.  A
dispatch goes to the machine that has the least to do for each of its workers, and there
to the open worker with the least pending executions.

*Suspects* are requests whose worker died while it ran them.  They run again in
groups, each group alone on a worker.  A suspect of a death with ``s`` executions
that has ``r`` executions left goes in a group of at most ``s^((r-1)/r)``
(:func:`group_most`).  So a suspect with one execution left is alone, and if the
worker dies again, this suspect is why.  A group is made of suspects of one death
that have equally many executions left, and none joins it later.

A worker is reserved for each group that waits, as far as half of the workers
(but at least one) allow: an idle one, or else the least loaded one drains.
Reservations are decided anew with each pick.  So a worker is given back as soon
as another one is idle, or its suspects are cancelled.

Lines and suspects whose session has used up its share of kept outcomes are
skipped until it has room again; no worker is reserved for them meanwhile.
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
_Likes: TypeAlias = "tuple[Suspicion, int]"
"""The common mark of a group's members: a death, and how many executions are left."""


class Scheduler(Generic[_Job]):
    """The queue.  ``pick`` decides one dispatch at a time, synchronously."""

    def __init__(self) -> None:
        self._lines: OrderedDict[SessionId, OrderedDict[_Job, None]] = OrderedDict()
        self._paused: dict[SessionId, OrderedDict[_Job, None]] = {}
        self._suspects: OrderedDict[_Likes, OrderedDict[_Job, None]] = OrderedDict()
        self._group: tuple[Worker, _Likes, int] | None = None
        """The group that is being dispatched: where, of whom, and how many more."""
        self.reserving = False
        """Whether a worker may be draining for suspects."""

    def __len__(self) -> int:
        lines = (*self._lines.values(), *self._paused.values(), *self._suspects.values())
        return sum(map(len, lines))

    def add(self, entry: _Job) -> None:
        """Append to its session's line, or to the suspects'."""
        if entry.suspicion is not None:
            self._suspects.setdefault(_likes(entry), OrderedDict())[entry] = None
            return
        session = entry.account.id
        line = self._paused.get(session)
        if line is None:
            line = self._lines.setdefault(session, OrderedDict())
        line[entry] = None

    def remove(self, entry: _Job) -> None:
        """Take an entry out, wherever it waits."""
        if entry.suspicion is not None:
            _take(self._suspects, _likes(entry), entry)
        else:
            _take(self._lines, entry.account.id, entry)
            _take(self._paused, entry.account.id, entry)

    @property
    def may_pick(self) -> bool:
        """Whether there is anybody to pick, or a worker to be given back."""
        return bool(self._lines or self._suspects or self.reserving)

    @property
    def is_paused(self) -> bool:
        """Whether lines are skipped whose sessions have used up their share."""
        return bool(self._paused)

    def resume(self, share_left: Callable[[SessionId], bool]) -> None:
        """Before picks: lines whose session has room in its share again take turns again.  A
        group whose dispatch was cut short is done with: by now its worker may serve others, or
        be dead."""
        self._group = None
        if self._paused:
            for session in [s for s in self._paused if share_left(s)]:
                self._lines[session] = self._paused.pop(session)

    def pick(
        self, workers: Collection[Worker], share_left: Callable[[SessionId], bool],
        most: float = math.inf,
    ) -> tuple[_Job, Worker] | None:  # fmt: skip
        """The next dispatch, taken out of the queue, or None if nothing can go.
        Call it until then: so a group of suspects is dispatched at once.  ``most``: a worker
        with as many executions gets none but suspects."""
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
        entry = self._next_entry(share_left)
        return None if entry is None else (entry, worker)

    def oldest_s(self, share_left: Callable[[SessionId], bool]) -> float | None:
        """Since when that one waits which waits longest of those that a worker could take;
        None if there is none."""
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
        worker, likes, more = self._group
        entry = None
        room = more and worker.running < worker.capacity and worker.has_numbers()
        if room and likes in self._suspects:
            line = self._suspects[likes]
            entry = next((each for each in line if share_left(each.account.id)), None)
        if entry is None:
            self._group = None
            return self._pick_suspect(workers, share_left)
        self._group = worker, likes, more - 1
        self.remove(entry)
        entry.suspicion = None
        return entry, worker

    def _next_group(
        self, workers: Collection[Worker], share_left: Callable[[SessionId], bool]
    ) -> tuple[Worker, _Likes, int] | None:
        """The next group and its worker; None if there is none of them yet."""
        others = [worker for worker in workers if worker.duty is not Duty.SUSPECTS]
        serving = len(workers) - len(others)
        places = max(0, max(1, len(workers) // 2) - serving)
        first, wanted = self._waiting(places, share_left)
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
    ) -> tuple[_Likes | None, int]:
        """The next group, and how many groups wait, up to ``most``."""
        first, groups = None, 0
        for likes, line in self._suspects.items():
            if groups >= most:
                break
            size = group_most(*likes)
            room = filter(share_left, (each.account.id for each in line))
            count = sum(1 for _ in islice(room, size * most))
            groups += -(-count // size)
            first = first or (likes if count else None)
        return first, min(groups, most)

    def _next_entry(self, share_left: Callable[[SessionId], bool]) -> _Job | None:
        while self._lines:
            session, line = next(iter(self._lines.items()))
            if not share_left(session):
                self._paused[session] = self._lines.pop(session)
                continue
            entry, _ = line.popitem(last=False)
            if line:
                self._lines.move_to_end(session)
            else:
                del self._lines[session]
            return entry
        return None


def group_most(suspicion: Suspicion, left: int) -> int:
    """How many suspects of a death may run together, with so many executions left for
    each: the least ``g`` with ``g^left >= s^(left-1)``."""
    _, size = suspicion
    if left <= 1:
        return 1
    if left > size * size.bit_length():  # the next root would be less than 1 away
        return size
    most = int(size ** ((left - 1) / left))
    while most**left < size ** (left - 1):
        most += 1
    return most


def _likes(entry: Job) -> _Likes:
    assert entry.suspicion is not None
    return entry.suspicion, entry.allowance - entry.executions


def _take(lines: dict[Any, OrderedDict[_Job, None]], key: Any, entry: _Job) -> None:
    line = lines.get(key)
    if line is not None:
        line.pop(entry, None)
        if not line:
            del lines[key]
