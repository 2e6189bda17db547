"""The monitor of a ZMQ socket, which reports libzmq's events of its connections.

Theory of operation
-------------------
libzmq's I/O thread writes events to an inproc PAIR socket; a task of the
socket's own nursery reads them and calls back.  The translation into
:class:`ConnectionEvent` is the pure class :class:`EventTranslator`: libzmq
reports a failed handshake as *failed* and *disconnected*, a refused connection
as *closed* and *retried*, a lost one as *disconnected* and *retried*; callers
want one event for each.  It relies on one I/O thread per context, which makes
such pairs adjacent.

Order matters when closing: the I/O thread writes with a *blocking* send, so
monitoring ends before its reader is closed, never the other way round.
"""

from __future__ import annotations

import struct
from typing import TypeAlias, final

import trio
import zmq

from .interface import ConnectionEvent, OnEvent

ZmqSocket: TypeAlias = "zmq.Socket[bytes]"
ZmqContext: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"

_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | _HANDSHAKE_FAILED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
)
_EVENTS_QUEUED_MAX = 100_000
"""A full queue would block libzmq's I/O thread, and with it every socket; this queue
holds hours of reconnecting while the loop is blocked."""
_EVENTS_AT_ONCE = 256
_EVENT = struct.Struct("=HI")


@final
class EventTranslator:
    """Translates libzmq's event numbers to connection events.  Pure.

    ``listening`` distinguishes a bound socket (*closed* is about its own listener)
    from a connecting one (*closed* is a failed attempt).
    """

    def __init__(self, listening: bool) -> None:
        self._listening = listening
        self._previous = 0

    def translate(self, event: int) -> ConnectionEvent | None:
        """The connection event to report, if any."""
        previous, self._previous = self._previous, event
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return ConnectionEvent.CONNECTED
        if event & _HANDSHAKE_FAILED:
            return None if previous & _HANDSHAKE_FAILED else ConnectionEvent.HANDSHAKE_FAILED
        if event == zmq.EVENT_DISCONNECTED:
            return None if previous & _HANDSHAKE_FAILED else ConnectionEvent.DISCONNECTED
        if self._listening:
            return None
        if event == zmq.EVENT_CLOSED:
            return ConnectionEvent.REFUSED
        if event == zmq.EVENT_CONNECT_RETRIED:
            # Alone (a name that cannot be resolved) it is a failed attempt; after
            # the end of a connection it only announces the next attempt.
            alone = previous in (0, zmq.EVENT_CONNECT_RETRIED)
            return ConnectionEvent.REFUSED if alone else None
        return None


@final
class Monitor:
    """The reader of one socket's events.  Opened before the socket is bound or
    connected, run by a task, closed before the socket."""

    def __init__(
        self, context: ZmqContext, watched: ZmqSocket, name: str, *, listening: bool
    ) -> None:
        self._watched = watched
        self._translator = EventTranslator(listening)
        self._ended = trio.Event()
        endpoint = f"inproc://{name}"
        watched.monitor(endpoint, _WATCHED)
        self._pair: ZmqSocket = context.socket(zmq.PAIR)
        self._pair.set(zmq.RCVHWM, _EVENTS_QUEUED_MAX)
        self._pair.connect(endpoint)
        self._fd = int(self._pair.get(zmq.FD))
        self._listening = listening

    async def run(self, on_event: OnEvent) -> None:
        """Report events until cancelled, or until the listener of a bound
        socket is closed (see :meth:`wait_ended`)."""
        try:
            while True:
                for event in self._read():
                    if event == zmq.EVENT_CLOSED and self._listening:
                        return
                    report = self._translator.translate(event)
                    if report is not None:
                        on_event(report)
                if int(self._pair.get(zmq.EVENTS)) & zmq.POLLIN:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._fd)
        finally:
            self._ended.set()

    async def wait_ended(self) -> None:
        """Sleep until :meth:`run` has returned: after an unbind, the address is free
        again then."""
        await self._ended.wait()

    def close(self) -> None:
        """Stop monitoring.  :meth:`run` must not be running."""
        self._watched.disable_monitor()
        self._pair.close()

    def _read(self) -> list[int]:
        """The numbers of the waiting events, up to a budget."""
        events: list[int] = []
        try:
            while len(events) < _EVENTS_AT_ONCE:
                head, *_ = self._pair.recv_multipart(zmq.NOBLOCK)
                number, _value = _EVENT.unpack(head)
                events.append(number)
        except zmq.Again:
            pass  # that was all
        return events
