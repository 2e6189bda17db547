"""The calls of a batch, for somebody who may hang up in its middle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, final

import trio

from ...client import Client, Outcome

Found: TypeAlias = tuple[int, Outcome]
"""An outcome of a batch, with the index of its input."""


@final
class Feed:
    """Makes the calls of a batch, and hands the outcomes on."""

    def __init__(
        self, client: Client, inputs: list[Any], in_flight: int, options: dict[str, Any],
        to: trio.MemorySendChannel[Found],
    ) -> None:  # fmt: skip
        self._client, self._inputs, self._in_flight = client, inputs, in_flight
        self._options, self._to = options, to
        self._left = False
        """The client has hung up."""

    async def run(self) -> None:
        """Run the batch.  When nobody takes outcomes any more, nothing further is begun,
        and what is under way goes on."""
        many = self._client.run_many(self._asked(), in_flight=self._in_flight, **self._options)
        async with self._to, many as outcomes:
            async for found in outcomes:
                if self._left:
                    continue
                try:
                    await self._to.send(found)
                except trio.BrokenResourceError:
                    self._left = True

    def _asked(self) -> Iterator[Any]:
        for input in self._inputs:
            if self._left:
                return
            yield input
