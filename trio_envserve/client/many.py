"""Many calls at once, by one task for all of them.

Theory of operation
-------------------
A task of its own would cost a call more than all the rest of it.  So one task, the
*feeder*, submits the calls of :meth:`.Client.run_many`, while fewer than ``in_flight``
are under way or have ended and were not taken.  Who iterates decodes an outcome as it
takes it; only then is it received.  An input or an outcome that takes long to encode or
decode gets a task after all, so that it holds up nobody; but only a few outcomes are decoded
before they are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Unpack, final

import trio

from ..core import values
from ..core.errors import NotEncodable
from ..core.notes import Note
from ..net import unwrap_single
from .options import Asked, CallOptions, checked, natural
from .outcome import Outcome

if TYPE_CHECKING:
    from .driver import Ended
    from .shell import Client

AT_ONCE = 64
"""So many calls are submitted, or outcomes taken, before other tasks have a turn."""

DECODED_AHEAD = 2
"""So many large outcomes are decoded before somebody takes them: no limit counts their values."""


def check_in_flight(in_flight: object) -> None:
    """ConfigError unless it is a number of calls."""
    natural("in_flight", in_flight, least=1)


@asynccontextmanager
async def run_parts(
    client: Client, parts: Iterable[tuple[str, Any]], in_flight: int,
    **options: Unpack[CallOptions],
) -> AsyncIterator[AsyncIterator[tuple[int, Outcome]]]:  # fmt: skip
    """Like :meth:`.Client.run_many`, for evaluations: each input comes with what names its
    part of the key."""
    calls = starmap(checked(None, **options).member, parts)
    async with open_many(client, calls, in_flight) as outcomes:
        yield outcomes


@asynccontextmanager
async def open_many(
    client: Client, calls: Iterable[Asked], in_flight: int,
    on_note: Callable[[int, Note], object] | None = None,
) -> AsyncIterator[Outcomes]:  # fmt: skip
    """Make calls, at most so many at a time, and cancel at the end of the block what is left."""
    check_in_flight(in_flight)
    with unwrap_single():
        async with trio.open_nursery() as nursery:
            outcomes = Outcomes(client, in_flight, nursery, on_note)
            nursery.start_soon(outcomes.feed, calls)
            try:
                yield outcomes
            finally:
                outcomes.close()
                nursery.cancel_scope.cancel()


@final
class Outcomes(AsyncIterator[tuple[int, Outcome]]):
    """The outcomes of many calls as they come, each with the index of its input.

    Several tasks may iterate; each outcome goes to one of them.
    """

    def __init__(
        self, client: Client, in_flight: int, nursery: trio.Nursery,
        on_note: Callable[[int, Note], object] | None,
    ) -> None:  # fmt: skip
        self._client = client
        self._driver = client._driver
        self._nursery = nursery
        self._on_note = on_note
        self._room = in_flight
        self._fed = self._closed = False
        self._under_way: dict[int, tuple[int, float]] = {}
        """Of each call without a task, by number: the index of its input, and when it was asked."""
        self._tasks = 0
        """Calls that have a task of their own."""
        self._ended: deque[Ended] = deque()
        self._ready: deque[tuple[int, Outcome]] = deque()
        self._ahead: set[int] = set()
        """The indices of large outcomes that are being decoded, or ready."""
        self._feeder = trio.lowlevel.ParkingLot()
        self._takers = trio.lowlevel.ParkingLot()
        self._taken = 0

    # -- the feeder -----------------------------------------------------------

    async def feed(self, calls: Iterable[Asked]) -> None:
        """Submit each call, as room allows."""
        for index, asked in enumerate(calls):
            while not self._room:
                await self._feeder.park()
            self._room -= 1
            self._submit(index, asked)
            if not (index + 1) % AT_ONCE:
                await trio.lowlevel.checkpoint()
        self._fed = True
        self._takers.unpark_all()

    def _submit(self, index: int, asked: Asked) -> None:
        on_note = None if self._on_note is None else partial(self._on_note, index)
        try:
            encoded = self._client._at_once(asked)
        except values.EncodingError as error:
            self._put(index, Outcome.failed(NotEncodable(str(error), path=error.path)))
            return
        if encoded is None:
            self._start(index, partial(self._client._run_large, on_note=on_note), asked)
            return
        now_s = trio.current_time()
        number = self._driver.submit(
            encoded.body, now_s, encoded.terms, self._has_ended, on_note=on_note
        )
        self._under_way[number] = index, now_s

    def _has_ended(self, ended: Ended) -> None:
        self._ended.append(ended)
        if self._takers:
            self._takers.unpark()

    def _put(self, index: int, outcome: Outcome) -> None:
        if self._closed:
            return  # its task had ended, and was not run again before the block ended
        self._ready.append((index, outcome))
        if self._takers:
            self._takers.unpark()

    def _start(self, index: int, act: Callable[..., Awaitable[Outcome]], *args: Any) -> None:
        """Give a call a task of its own."""

        async def run() -> None:
            outcome = await act(*args)
            self._tasks -= 1
            self._put(index, outcome)

        self._tasks += 1
        self._nursery.start_soon(run)

    # -- who takes ------------------------------------------------------------

    def __aiter__(self) -> Outcomes:
        return self

    async def __anext__(self) -> tuple[int, Outcome]:
        """The next outcome, once there is one.  After the block there is none."""
        self._taken += 1
        if self._taken % AT_ONCE:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
        while (taken := self._take()) is None:
            if self._is_over():
                raise StopAsyncIteration
            await self._takers.park()
        self._room += 1
        if self._feeder:
            self._feeder.unpark()
        if self._takers:
            if self._is_over():
                self._takers.unpark_all()
            elif self._ended:  # there may be room to decode the next
                self._takers.unpark()
        return taken

    def _is_over(self) -> bool:
        """Whether no more outcomes come than are ready."""
        return self._closed or (self._fed and not (self._under_way or self._tasks))

    def _take(self) -> tuple[int, Outcome] | None:
        if self._ready:
            taken = self._ready.popleft()
            self._ahead.discard(taken[0])
            return taken
        while self._ended and len(self._ahead) < DECODED_AHEAD:
            ended = self._ended.popleft()
            index, began_s = self._under_way.pop(ended.call)
            now_s = trio.current_time()
            try:
                return index, self._client._outcome_at_once(ended, began_s, now_s)
            except values.TooMuchWork:
                self._ahead.add(index)
                self._start(index, self._client._outcome_large, ended, began_s, now_s)
        return None

    def close(self) -> None:
        """Nobody takes what is left: cancel it."""
        self._closed = True
        self._driver.cancel(self._under_way)
        self._ended.clear()
        self._ready.clear()
        self._takers.unpark_all()
