"""What a server is asked about itself: ``GET /metrics``, ``/v1/running`` and ``/v1/stack``.

Nothing is kept between two scrapes.  A server that does not answer in time is a metric, too
(``trio_envserve_server_up``), since the scrape that fails says less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, final

from ...client import Client
from ...core.errors import EnvServeError
from ...core.pages import RunningPage
from ...core.status import ServerStats
from ...extras import needs_extra
from ..limits import HttpLimits
from .bodies import JSON, to_json
from .connections import Exchange
from .metrics import DoorCounts, ScrapedValues
from .problems import LATER, Problem
from .turns import RUNNING_US, SCRAPE_US, SCRAPED_WORKER_US

T = TypeVar("T")


@final
class About:
    """Answers what is asked about the server."""

    def __init__(
        self, client: Client, limits: HttpLimits, counts: Callable[[], DoorCounts]
    ) -> None:
        self._client = client
        self._limits = limits
        self._counts = counts
        self._write = _writer()

    async def metrics(self, exchange: Exchange) -> None:
        """All metrics, in the form that is asked for."""
        if self._write is None:
            raise Problem("extra-missing", needs_extra("/metrics", "metrics"))
        stats = await exchange.unless_hung_up(self.stats)
        workers = 0 if stats is None else len(stats.per_worker)
        await exchange.take_turn(SCRAPE_US + workers * SCRAPED_WORKER_US)
        accept = b", ".join(exchange.headers.get(b"accept", ())).decode("latin-1")
        media, body = self._write(ScrapedValues(self._counts(), stats), accept)
        await exchange.answer(200, media, body)

    async def stats(self) -> ServerStats | None:
        """The server's statistics; None if it does not answer in time."""
        try:
            return await self._client.stats(self._limits.scrape_s)
        except EnvServeError:
            return None  # it is gone, or no server of this kind: the door's own are told

    async def running(self, exchange: Exchange) -> None:
        """A page of what runs, the oldest first, as :meth:`.Client.list_running` returns it."""
        ask = partial(self._client.list_running, first=exchange.parameters["first"])
        page: RunningPage = await self._asked(exchange, ask)
        await exchange.take_turn(len(page.running) * RUNNING_US)
        await exchange.answer(200, JSON, to_json(dataclasses.asdict(page)))

    async def stack(self, exchange: Exchange) -> None:
        """Where one of them stands, as :meth:`.Client.stack` returns it."""
        ask = partial(self._client.stack, exchange.parameters["number"])
        text: str | None = await self._asked(exchange, ask)
        await exchange.answer(200, JSON, to_json({"stack": text}))

    async def _asked(self, exchange: Exchange, ask: Callable[..., Awaitable[T]]) -> T:
        """The server's answer.  Problem if it does not come in time."""
        try:
            return await exchange.unless_hung_up(partial(ask, timeout_s=self._limits.scrape_s))
        except EnvServeError as error:
            raise Problem(
                "not-ready", f"the server or its worker does not say it ({error})", LATER
            ) from None


def _writer() -> Callable[[ScrapedValues, str], tuple[str, bytes]] | None:
    """None without the extra.  Loaded when a door opens: it takes longer than a turn may."""
    try:
        from .exposition import write
    except ImportError:
        return None
    return write
