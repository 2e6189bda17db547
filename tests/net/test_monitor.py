"""libzmq's events in, connection events out."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
import zmq

from trio_envserve.net import libzmq as monitor_module
from trio_envserve.net.interface import ConnectionEvent
from trio_envserve.net.libzmq import EventTranslator, Monitor

UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
DOWN = zmq.EVENT_DISCONNECTED
BAD = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
WRONG = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
CLOSED = zmq.EVENT_CLOSED
RETRIED = zmq.EVENT_CONNECT_RETRIED


def translated(listening: bool, events: list[zmq.Event]) -> list[str]:
    translator = EventTranslator(listening)
    reports = [translator.translate(int(event)) for event in events]
    return [report.name for report in reports if report is not None]


@pytest.mark.parametrize(
    ("events", "reports"),
    [
        ([UP, DOWN, RETRIED, UP], ["CONNECTED", "DISCONNECTED", "CONNECTED"]),
        ([CLOSED, RETRIED, CLOSED, RETRIED, UP], ["REFUSED", "REFUSED", "CONNECTED"]),
        ([RETRIED, RETRIED], ["REFUSED", "REFUSED"]),  # a name that is not found
        ([UP, DOWN, RETRIED, RETRIED], ["CONNECTED", "DISCONNECTED", "REFUSED"]),
        ([BAD, DOWN, RETRIED, UP], ["HANDSHAKE_FAILED", "CONNECTED"]),
        ([WRONG, BAD, DOWN], ["HANDSHAKE_FAILED"]),
        ([zmq.EVENT_MONITOR_STOPPED], []),
    ],
)
def test_a_dealer(events: list[zmq.Event], reports: list[str]):
    assert translated(False, events) == reports


@pytest.mark.parametrize(
    ("events", "reports"),
    [
        ([UP, UP, DOWN], ["CONNECTED", "CONNECTED", "DISCONNECTED"]),
        ([BAD, DOWN, UP, DOWN], ["HANDSHAKE_FAILED", "CONNECTED", "DISCONNECTED"]),
        ([UP, CLOSED, RETRIED], ["CONNECTED"]),
    ],
)
def test_a_router(events: list[zmq.Event], reports: list[str]):
    assert translated(True, events) == reports


# -- the reader -----------------------------------------------------------------------


class Watched:
    """A socket whose events are those that a test tells.  libzmq's reach the reader by the
    same pair, which needs neither a connection nor a thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._pair = context.socket(zmq.PAIR)
        self.watched: int | None = None

    def monitor(self, endpoint: str, events: int) -> None:
        """As that of a socket."""
        self._pair.bind(endpoint)
        self.watched = events

    def disable_monitor(self) -> None:
        """As that of a socket."""
        self._pair.close(linger=0)
        self.watched = None

    def tell(self, *events: int) -> None:
        """As libzmq does, in two frames: the number with a value, and the address."""
        for event in events:
            self._pair.send_multipart([struct.pack("=HI", event, 7), b"tcp://x:1"], zmq.NOBLOCK)


class Heard:
    """A reader, with what it watches and what it has reported."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], *, listening: bool) -> None:
        self.watched = Watched(context)
        self.monitor = Monitor(context, self.watched, "m", listening=listening)  # type: ignore[arg-type]  # a stand-in
        self.reports: list[str] = []

    def on_event(self, event: ConnectionEvent) -> None:
        """What the reader calls back."""
        self.reports.append(event.name)


@asynccontextmanager
async def heard(*, listening: bool = False) -> AsyncIterator[Heard]:
    """A reader that runs; at the end nothing of it is left."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = Heard(context, listening=listening)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.monitor.run, made.on_event)
            yield made
            nursery.cancel_scope.cancel()
    made.monitor.close()
    assert made.watched.watched is None
    assert made.monitor._pair.closed
    context.term()  # waits for sockets that are open


async def reported(reader: Heard) -> list[str]:
    """The reports of all events that were told."""
    await trio.testing.wait_all_tasks_blocked()
    return reader.reports


async def test_events_are_reported_as_they_come():
    async with heard() as reader:
        assert reader.watched.watched == monitor_module._WATCHED
        reader.watched.tell(UP)
        assert await reported(reader) == ["CONNECTED"]
        reader.watched.tell(zmq.EVENT_MONITOR_STOPPED, DOWN, CLOSED)
        assert await reported(reader) == ["CONNECTED", "DISCONNECTED", "REFUSED"]


async def test_others_have_their_turns_between_very_many_events():
    many = monitor_module._EVENTS_AT_ONCE
    async with heard() as reader:
        reader.watched.tell(*[UP] * (3 * many))
        seen: set[int] = set()
        while len(reader.reports) < 3 * many:
            seen.add(len(reader.reports))
            await trio.lowlevel.checkpoint()
        assert seen & {many, 2 * many}  # of two turns of the reader at least one is seen


async def test_events_that_nobody_has_read_are_kept():
    """More than libzmq keeps unless it is told: its thread would stand still."""
    async with heard() as reader:
        reader.watched.tell(*[UP] * 3000)
        assert len(await reported(reader)) == 3000


async def test_a_reader_ends_with_its_listener_and_no_sooner():
    """What waits for an address to be free reads on until then."""
    async with heard(listening=True) as reader:
        reader.watched.tell(UP, DOWN)
        assert await reported(reader) == ["CONNECTED", "DISCONNECTED"]
        reader.watched.tell(UP, CLOSED, UP)
        assert await reported(reader) == ["CONNECTED", "DISCONNECTED", "CONNECTED"]
