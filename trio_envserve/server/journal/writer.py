"""The thread of a journal, and the journal of a server.

Theory of operation
-------------------
The shell appends records and never waits; the thread takes what there is, as a group.  What
comes during a commit is the next group.  After a commit of more than :data:`FEW_RECORDS` the next
begins :data:`GROUP_S` after it began, or once :data:`GROUP_RECORDS` wait: so what comes alone, or
one after the other, is safe at once, and where much comes it shares the disk's time.

If a commit fails, the server is told, and the same group is tried again every
:data:`RETRY_S`.  After an error of a sync it is not: nobody knows then what is on the disk,
and only a new process reads it anew.

Outcomes that are asked for are read by a thread of their own, over a connection of its own:
a reader of SQLite does not wait for the writer.

While nothing comes, the thread notes now and then how long the server has been up.  A process
that was stopped for a day was not up: what commands are kept for does not pass meanwhile.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, final

import trio

from ...core.clock import AwakeClock
from ...core.journal import Record
from ...host.locks import ServerLocks
from .opening import OpenFolder, open_folder, unlock
from .reading import LoadedOutcome, read_outcomes
from .store import Store, is_final

_log = logging.getLogger("trio_envserve.server")

GROUP_S = 0.005
GROUP_RECORDS = 256
FEW_RECORDS = 16
RETRY_S = 1.0
UPTIME_S = 30.0
CLOSE_S = 10.0
"""At the end the last records may take so long; a disk that is stuck holds up nobody."""


class CommitFailure(NamedTuple):
    """A commit has failed."""

    why: str
    final: bool
    """Whether it is not tried again."""


class News(NamedTuple):
    """A report of the thread."""

    upto: int
    """Number of records that are safe."""
    failure: CommitFailure | None


@final
class OpenJournal:
    """A journal that is open.  Made by :func:`open_journal`."""

    def __init__(self, opened: OpenFolder) -> None:
        self._store: Store = opened.store
        self._found = opened.found
        self.locks: tuple[ServerLocks, ...] = opened.locks
        self.folder = opened.store.folder
        self._earlier_s = opened.store.state.uptime_s
        self._clock = AwakeClock(2 * UPTIME_S, time.monotonic())
        self._condition = threading.Condition()
        """Guards the five below."""
        self._waiting: list[Record] = []
        self._upto = 0
        self._saved = 0
        self._failure: CommitFailure | None = None
        self._closing = False
        self._told = News(0, None)
        self._trio = trio.lowlevel.current_trio_token()
        self._changed = trio.lowlevel.ParkingLot()
        self._ended = trio.Event()
        self._to_load: list[int] = []
        self._asked = trio.lowlevel.ParkingLot()
        self._readers = trio.CapacityLimiter(1)

    def records(self) -> Iterator[Record]:
        """The records of an earlier server; once."""
        found, self._found = self._found, type(self._found)(self._found.state)
        return found.records()

    def at_rest(self) -> list[bytes]:
        """Finished keys of the journal, packed, if it was opened so; they come before records."""
        return self._found.at_rest

    def load(self, number: int) -> None:
        """Read the outcome of this generation."""
        self._to_load.append(number)
        self._asked.unpark_all()

    async def loaded(self) -> list[LoadedOutcome]:
        """Wait until some of these are read, or cannot be.  Who gives up leaves a disk that
        is stuck to its thread."""
        while not self._to_load:
            await self._asked.park()
        numbers, self._to_load = self._to_load, []
        return await trio.to_thread.run_sync(
            read_outcomes, self.folder, numbers, abandon_on_cancel=True, limiter=self._readers
        )

    def save(self, records: Sequence[Record], upto: int) -> None:
        """Make these safe after all earlier ones; ``upto``: how many there are then.  The
        thread is woken for the first of a group, and once that is full: each time it wakes
        it takes Python's lock from who calls this."""
        with self._condition:
            before = len(self._waiting)
            if self._failure is None or not self._failure.final:
                self._waiting += records
            self._upto = upto
            if not before or before < GROUP_RECORDS <= len(self._waiting):
                self._condition.notify()

    async def news(self) -> News:
        """Wait until more is safe, or something has failed, or goes on after that."""
        while True:
            with self._condition:
                now = News(self._saved, self._failure)
            if now != self._told:
                if now.upto > self._told.upto:
                    now = now._replace(failure=None)  # what has failed since is told next
                self._told = now
                return now
            await self._changed.park()

    async def settled(self) -> None:
        """Wait until all that was given is safe, or that has failed."""
        while True:
            with self._condition:
                if self._saved == self._upto or self._failure is not None:
                    return
            await self._changed.park()

    # -- the thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            from_s = 0.0
            while (group := self._next_group(from_s)) is not None:
                pause_s = GROUP_S if len(group[0]) > FEW_RECORDS else 0.0
                from_s = time.monotonic() + pause_s
                if not self._commit_or_retry(*group):
                    break
        finally:
            with suppress(sqlite3.Error):
                self._store.close()
            with suppress(trio.RunFinishedError):  # it was given up
                self._trio.run_sync_soon(self._ended.set)

    def _next_group(self, from_s: float) -> tuple[list[Record], int] | None:
        """The next records to commit, from this moment on; None at the end."""
        with self._condition:
            if not self._waiting and not self._closing:
                self._condition.wait_for(lambda: self._waiting or self._closing, UPTIME_S)
            left_s = from_s - time.monotonic()
            if left_s > 0:
                self._condition.wait_for(
                    lambda: self._closing or len(self._waiting) >= GROUP_RECORDS, left_s
                )
            if self._closing and not self._waiting:
                return None
            group, self._waiting = self._waiting, []
            return group, self._upto

    def _commit_or_retry(self, group: list[Record], upto: int) -> bool:
        """Whether it is safe, in the end; False if it never will be."""
        while True:
            try:
                uptime_s = self._earlier_s + self._clock.read(time.monotonic())
                self._store.commit(group, uptime_s)
            except Exception as error:  # the disk's, SQLite's, or a bug: all are told
                failure = CommitFailure(_why(error), is_final(error))
                _log.debug("a commit of the journal has failed", exc_info=True)
                self._tell(None, failure)
                if failure.final or not self._wait_to_retry():
                    return False
            else:
                self._tell(upto, None)
                return True

    def _wait_to_retry(self) -> bool:
        with self._condition:
            return not self._condition.wait_for(lambda: self._closing, RETRY_S)

    def _tell(self, upto: int | None, failure: CommitFailure | None) -> None:
        with self._condition:
            if upto is not None:
                self._saved = upto
            self._failure = failure
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(self._changed.unpark_all, idempotent=True)

    async def _close(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify()
        with trio.move_on_after(CLOSE_S, shield=True) as scope:
            await self._ended.wait()
        if scope.cancelled_caught:
            _log.error("the last records of the journal were not saved within %g s", CLOSE_S)
        unlock(self.locks)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__


@asynccontextmanager
async def open_journal(
    folder: str | os.PathLike[str], *, command_s: float = 600.0
) -> AsyncIterator[OpenJournal]:
    """Have the journal in a folder until the block ends, which is made if there is none.

    Commands by key are kept for ``command_s``.  Raises ServerStartError, which says why the
    folder cannot be used and what to do.  The locks are given up with the block, but for
    what workers hold.
    """
    opened = await trio.to_thread.run_sync(
        partial(open_folder, Path(folder), command_s, at_rest=True)
    )
    journal = OpenJournal(opened)
    thread = threading.Thread(target=journal._run, name="trio_envserve journal", daemon=True)
    thread.start()
    try:
        yield journal
    finally:
        await journal._close()  # noqa: ASYNC102  # shields itself, and has a limit
