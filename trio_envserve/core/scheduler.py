"""Who runs next, and where.

Theory of operation
-------------------
Each session has a first-in-first-out line of waiting entries.  Lines take
turns, so a client with 10,000 requests does not hold up one with ten.  A
dispatch goes to the open worker with the least pending executions.

Suspects (requests whose worker died with several executions on it) have one
line of their own and go one at a time, alone on a worker: the least loaded
worker is reserved, drains, runs the suspect, and is given back.  If another one
is idle before it has drained, that one is taken.  If the worker dies then, it is
beyond doubt whose fault it was.

Lines and suspects whose session has used up its share of kept outcomes are
skipped until it has room again; no worker is reserved for them meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

from .executions import Worker
from .requests import Entry
from .terms import RequestId, SessionId


class Scheduler:
    """The queue.  ``pick`` decides one dispatch at a time, synchronously."""

    def __init__(self) -> None:
        self._lines: OrderedDict[SessionId, OrderedDict[RequestId, Entry]] = OrderedDict()
        self._paused: dict[SessionId, OrderedDict[RequestId, Entry]] = {}
        self._suspects: OrderedDict[RequestId, Entry] = OrderedDict()
        self._reserving = False
        """Whether a worker may be reserved for a suspect that has not begun."""

    def __len__(self) -> int:
        lines = (*self._lines.values(), *self._paused.values())
        return sum(map(len, lines)) + len(self._suspects)

    def add(self, entry: Entry) -> None:
        """Append to its session's line, or to the suspects'."""
        if entry.suspect:
            self._suspects[entry.id] = entry
            return
        session = entry.id.session
        line = self._paused.get(session)
        if line is None:
            line = self._lines.setdefault(session, OrderedDict())
        line[entry.id] = entry

    def remove(self, entry: Entry) -> None:
        """Take an entry out, wherever it waits."""
        if self._suspects.pop(entry.id, None) is not None:
            return
        session = entry.id.session
        for lines in (self._lines, self._paused):
            line = lines.get(session)
            if line is not None:
                line.pop(entry.id, None)
                if not line:
                    del lines[session]

    def resume(self, share_left: Callable[[SessionId], bool]) -> None:
        """Lines whose session has room in its share again take turns again."""
        if self._paused:
            for session in [s for s in self._paused if share_left(s)]:
                self._lines[session] = self._paused.pop(session)

    def pick(
        self, workers: Collection[Worker], share_left: Callable[[SessionId], bool]
    ) -> tuple[Entry, Worker] | None:
        """The next dispatch, taken out of the queue, or None if nothing can go."""
        if self._suspects or self._reserving:
            chosen = self._pick_suspect(workers, share_left)
            if chosen is not None:
                return chosen
        if not self._lines:
            return None
        worker: Worker | None = None
        for each in workers:
            if (worker is None or len(each.live) < len(worker.live)) and each.open():
                worker = each
        if worker is None:
            return None
        entry = self._next_entry(share_left)
        return None if entry is None else (entry, worker)

    def _pick_suspect(
        self, workers: Collection[Worker], share_left: Callable[[SessionId], bool]
    ) -> tuple[Entry, Worker] | None:
        suspect = next((e for e in self._suspects.values() if share_left(e.id.session)), None)
        if suspect is None:
            self._give_back(workers)
            return None
        worker = self._worker_for_suspect(workers)
        if worker is None:
            return None
        del self._suspects[suspect.id]
        return suspect, worker

    def _worker_for_suspect(self, workers: Collection[Worker]) -> Worker | None:
        candidates = [w for w in workers if w.accepting and w.has_numbers()]
        if not candidates:
            return None
        least = min(candidates, key=lambda w: len(w.live))
        reserved = next((w for w in candidates if w.reserved), None)
        if reserved is None:
            reserved = least
        elif any(execution.solo for execution in reserved.live.values()):
            return None
        elif not least.live:  # why wait for the other to drain?
            reserved.reserved = False
            reserved = least
        reserved.reserved = self._reserving = True
        return None if reserved.live else reserved

    def release_reserved(self, workers: Collection[Worker]) -> None:
        """Give back a worker reserved for suspects that are gone by now."""
        if self._reserving and not self._suspects:
            self._give_back(workers)

    def _give_back(self, workers: Collection[Worker]) -> None:
        """End reservations for what has not begun."""
        self._reserving = False
        for worker in workers:
            if worker.reserved and not any(e.solo for e in worker.live.values()):
                worker.reserved = False

    def _next_entry(self, share_left: Callable[[SessionId], bool]) -> Entry | None:
        while self._lines:
            session, line = next(iter(self._lines.items()))
            if not share_left(session):
                self._paused[session] = self._lines.pop(session)
                continue
            _, entry = line.popitem(last=False)
            if line:
                self._lines.move_to_end(session)
            else:
                del self._lines[session]
            return entry
        return None
