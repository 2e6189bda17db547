"""A socket of libzmq under trio: it reads, sleeps, and tries its outboxes again.

Theory of operation
-------------------
libzmq's descriptor is edge triggered: it says "something happened" once, and *any*
call on the socket (even a send) may consume that signal.  So ``EVENTS`` decides after
the last call before sleeping.  Everything here follows three rules:

1. A turn of the pump reads until libzmq says EAGAIN (which proves that the
   signal is consumed *and* nothing was readable).  A later turn, after which the pump
   may sleep, asks ``EVENTS`` whether that still holds: a send meanwhile may have
   consumed a signal.
2. A send from another task while the pump sleeps asks ``EVENTS`` afterwards, and
   wakes the pump if there is something to read, as if the descriptor were closed.
   This costs nothing when it is not needed.
3. ``EVENTS`` never decides about *writing*: a ROUTER says "writable" while one
   peer is full, and a loop on that would spin.

And a fourth.  libzmq 4.3.5 ends the process if it learns between two frames of a
message that the connection is lost, and it checks this on every hundredth frame that
is read.  EAGAIN restarts that count.  If EAGAIN has not come for a while, ``EVENTS`` is
asked before each message, so that libzmq learns of the loss there.

A send is tried at once, and usually succeeds.  EAGAIN means that this one peer is full
(or, for a dealer, that there is no connection).  Then the message goes to the peer's
own :class:`Outbox`, and so does every further message for that peer until the outbox is
empty.  Outboxes are tried again when the descriptor fires with nothing to read (libzmq
reports room).  A task of the socket also tries them every few milliseconds, because
another call may have consumed that report, and because a socket should send even while
no task receives from it.

A message of several frames goes out whole: only its first frame can be refused
(:meth:`LibzmqSocket._send_rest` has the one apparent exception).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection

import trio
import zmq

from ..core.limits import WireLimits
from ..core.terms import whole
from .interface import (
    BATCH_MESSAGES,
    COPY_THRESHOLD_BYTES,
    FRAMES_MAX,
    Frame,
    Message,
)
from .monitor import ZmqSocket
from .outbox import Outbox
from .pump import SocketPump

RETRY_MIN_S = 0.005
RETRY_MAX_S = 0.04
"""Pause before full outboxes are tried again; it doubles while nothing can be sent."""

_FRAMES_UNASKED = 100 - FRAMES_MAX - 1
"""After so many frames, the next message may contain the hundredth."""

# Plain ints: pyzmq's enums cost as much as the call.
_NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""The flags of every frame of a message but its last."""
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


class LibzmqSocket(SocketPump):
    """The common part of router and dealer: they read, sleep and retry."""

    _routed: bool
    """Whether each message begins with a route."""

    def __init__(self, socket: ZmqSocket, address: str, limits: WireLimits) -> None:
        super().__init__(address, limits)
        self._socket = socket
        self._fd = int(socket.get(zmq.FD))
        self._drained = False
        """Whether nothing was readable when the pump last looked; only then may it
        sleep."""
        self._parked = False
        """Whether the pump sleeps, and nobody has woken it yet."""
        self._retry_at = math.inf
        """When to try the outboxes again; inf exactly if all are empty."""
        self._retry_pause_s = RETRY_MIN_S
        self._backlogged = trio.Event()
        """Set while ``_retry_at`` is not inf."""
        self._frames = 0
        """Frames that were read since the last EAGAIN."""

    async def flush(self) -> None:
        """See :meth:`RouterSocket.flush`."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        while self._retry_at != math.inf:
            self._flush_outboxes()
            if self._retry_at != math.inf:
                await trio.sleep_until(self._retry_at)
            self._check_open()

    async def run_retries(self) -> None:
        """Try the outboxes again, for ever: the task of a socket that does not
        need a pump for sending."""
        while True:
            await self._backlogged.wait()
            # It may have emptied before this task ran: never sleep until inf,
            # the next backlog would find nobody.
            if self._retry_at != math.inf:
                await trio.sleep_until(self._retry_at)
            if trio.current_time() >= self._retry_at:
                self._flush_outboxes()

    def close(self) -> None:
        """Stop receiving and sending; tasks that wait here get ClosedResourceError.
        The owner of the libzmq socket closes it."""
        self._closed = True
        self._undelivered += sum(outbox.clear() for outbox in self._outboxes())
        self._set_no_retry()
        trio.lowlevel.notify_closing(self._fd)

    # -- receiving

    def _turn(self) -> list[list[Frame]]:
        # EVENTS costs a third of a read that yields EAGAIN.
        batch = [] if self._drained and not self._is_readable() else self._read_batch()
        if self._retry_at != math.inf and (not batch or trio.current_time() >= self._retry_at):
            self._flush_outboxes()
            if not batch and self._is_readable():
                batch = self._read_batch()
        return batch

    def _is_readable(self) -> bool:
        return bool(int(self._socket.get(_EVENTS)) & _POLLIN)

    async def _sleep(self) -> None:
        if not self._drained:
            await trio.lowlevel.checkpoint()
            return
        self._parked = True
        try:
            await trio.lowlevel.wait_readable(self._fd)
        except trio.ClosedResourceError:
            pass  # closed, which the caller checks, or woken: see _wake_if_readable
        finally:
            self._parked = self._drained = False

    def _read_batch(self) -> list[list[Frame]]:
        # One loop, frame by frame: twice as quick as recv_multipart.
        recv = self._socket.recv
        routed = self._routed
        frames_max = FRAMES_MAX + routed
        batch: list[list[Frame]] = []
        self._drained = False
        try:
            for _ in range(BATCH_MESSAGES):
                if self._frames >= _FRAMES_UNASKED:
                    self._is_readable()
                message: list[Frame] = [recv(_NOBLOCK)] if routed else []
                while True:
                    frame = recv(_NOBLOCK, False)
                    message.append(
                        frame.bytes
                        if len(frame) < COPY_THRESHOLD_BYTES
                        else frame.buffer.toreadonly()
                    )
                    if not frame.more:
                        self._frames += len(message)
                        batch.append(message)
                        break
                    if len(message) == frames_max:
                        self._skip_message()
                        break
        except zmq.Again:
            self._drained = True
            self._frames = 0
        self._received += len(batch)
        return batch

    def _skip_message(self) -> None:
        """Read the rest of a message with too many frames, and drop it."""
        self._oversized += 1
        self._frames += FRAMES_MAX
        while self._socket.recv(_NOBLOCK, False).more:
            pass

    # -- sending

    def _send_rest(self, frames: Message, start: int = 0) -> bool:
        """Send the frames from ``start`` on, as the end of a message.

        False: the message was not sent, also not in part.  If the first frame
        was taken, that happens only to a dealer whose connection ends between
        two frames: libzmq then takes back what it has, and needs to see the
        remaining frames to know where the next message begins.
        """
        sent = True
        last = len(frames) - 1
        send = self._socket.send
        for index in range(start, last + 1):
            frame = whole(frames[index])
            flags = MORE if index < last else _NOBLOCK
            try:
                if len(frame) < COPY_THRESHOLD_BYTES:
                    send(frame, flags)
                else:
                    send(_uncopied(frame), flags, False)
            except zmq.Again:
                if index == 0:
                    return False
                sent = False
        return sent

    def _postpone(self, outbox: Outbox, frames: Message) -> bool:
        """Put a message into an outbox, and make sure that it is tried again."""
        if not outbox.append(frames):
            self._undelivered += 1
            return False
        if self._retry_at == math.inf:
            self._retry_pause_s = RETRY_MIN_S
            self._set_retry()
        return True

    def _flush_outboxes(self) -> None:
        """Send what can be sent now, and set the time of the next try."""
        before = self._sent
        self._send_waiting()
        if not self._outboxes():
            self._set_no_retry()
        else:
            moved = self._sent != before
            self._retry_pause_s = (
                RETRY_MIN_S if moved else min(2 * self._retry_pause_s, RETRY_MAX_S)
            )
            self._set_retry()
        self._wake_if_readable()

    def _set_retry(self) -> None:
        self._retry_at = trio.current_time() + self._retry_pause_s
        self._backlogged.set()

    def _set_no_retry(self) -> None:
        self._retry_at = math.inf
        if self._backlogged.is_set():
            self._backlogged = trio.Event()

    def _wake_if_readable(self) -> None:
        """Rule 2: after a call on the socket by another task than the pump's."""
        if self._parked and self._is_readable():
            self._parked = False
            trio.lowlevel.notify_closing(self._fd)

    @abstractmethod
    def _outboxes(self) -> Collection[Outbox]:
        """The outboxes that are not empty."""

    @abstractmethod
    def _send_waiting(self) -> None:
        """Send from the outboxes until each is empty or blocked."""


def _uncopied(frame: Frame) -> Frame | zmq.Frame:
    """The frame to pass to libzmq for a large frame.

    A received frame that is passed on is given back as what it was: libzmq
    then counts a reference, where for Python's memory its I/O thread has to
    report to a thread of pyzmq's when it is done.
    """
    if isinstance(frame, memoryview):
        owner = frame.obj
        if isinstance(owner, zmq.Frame) and len(owner) == frame.nbytes:
            return owner
    return frame
