"""The calls of a batch, for somebody who may hang up in its middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeAlias, final

import trio

from ...client import Client, Outcome

Found: TypeAlias = tuple[int, Outcome]
"""An outcome of a batch, with the index of its input."""


@final
class Feed:
    """Makes the calls of a batch, and hands the outcomes on as they are taken.

    The client decodes an outcome when it is taken, and only then has it been received.  So
    what nobody takes stays with the server, within its bounds.
    """

    def __init__(
        self, client: Client, inputs: list[Any], in_flight: int, options: dict[str, Any]
    ) -> None:
        self._client, self._inputs, self._in_flight = client, inputs, in_flight
        self._options = options
        self._to, self._from = trio.open_memory_channel[Found](0)
        self._wanted = trio.Semaphore(0)
        self._left = False
        """The client has hung up, or has all."""

    async def run(self) -> None:
        """Run the batch.  When nobody takes outcomes any more, nothing further is begun,
        and what is under way goes on."""
        many = self._client.run_many(self._asked(), in_flight=self._in_flight, **self._options)
        async with self._to, many as outcomes:
            await self._wanted.acquire()
            async for found in outcomes:
                if self._left:
                    continue
                with suppress(trio.BrokenResourceError):  # it has left meanwhile
                    await self._to.send(found)
                del found
                await self._wanted.acquire()

    async def take(self) -> Found | None:
        """The next outcome, once there is one; None after the last."""
        self._wanted.release()
        try:
            return await self._from.receive()
        except trio.EndOfChannel:
            return None

    def leave(self) -> None:
        """Nobody takes outcomes any more."""
        self._left = True
        self._from.close()
        self._wanted.release()

    def _asked(self) -> Iterator[Any]:
        for input in self._inputs:
            if self._left:
                return
            yield input
