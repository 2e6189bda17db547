"""The pump: how every socket of this package receives.

Theory of operation
-------------------
The task that calls :meth:`Pump.receive` *is* the pump of its socket.  The transport
has no task between the wire and the consumer, and so no second queue.  A turn of the
pump first does everything that needs no waiting (it reads up to the budget and moves
the outboxes on), and sleeps only if it has read nothing.

A cancel loses nothing because of the order of three steps: a checkpoint that only
notices a pending cancel, then the non-blocking work, then a checkpoint that lets other
tasks run but cannot be cancelled.  No cancel can come between taking messages and
returning them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import trio

from .interface import Frame


class Pump(ABC):
    """Base of the sockets: one consumer, cancel-safe batches."""

    def __init__(self) -> None:
        self._receiving = False
        self._closed = False

    async def receive(self) -> list[list[Frame]]:
        """See the interface: sleep until there is a message, return a batch."""
        self._check_usable()
        self._receiving = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._check_open()
            slept = False
            while not (batch := self._turn()):
                await self._sleep()
                self._check_open()
                slept = True
            if not slept:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return batch
        finally:
            self._receiving = False

    def receive_nowait(self) -> list[list[Frame]]:
        """See the interface: return what is readable right now."""
        self._check_usable()
        return self._turn()

    def _check_usable(self) -> None:
        self._check_open()
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving from this socket")

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this socket is closed")

    @abstractmethod
    def _turn(self) -> list[list[Frame]]:
        """Read up to the budget and move the outboxes on, without waiting.

        If it returns nothing, :meth:`_sleep` notices whatever arrives later.
        """

    @abstractmethod
    async def _sleep(self) -> None:
        """Sleep until another turn may be worth it (it need not be).

        Always a checkpoint.  Raises ClosedResourceError when closed.
        """
