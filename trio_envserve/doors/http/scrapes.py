"""``GET /metrics``: asks the server for its statistics, and writes them beside the door's own.

Nothing is kept between two scrapes.  A server that does not answer in time is a metric, too
(``trio_envserve_server_up``), since the scrape that fails says less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from ...client import Client
from ...core.errors import EnvServeError
from ...core.status import ServerStats
from .exchange import Exchange
from .limits import HttpLimits
from .metric_table import DoorCounts, Seen
from .problems import Problem
from .turns import SCRAPE_US, SCRAPED_WORKER_US

if TYPE_CHECKING:
    from .exposition import Exposition


@final
class Scrapes:
    """Answers scrapes."""

    def __init__(
        self, client: Client, limits: HttpLimits, counts: Callable[[], DoorCounts]
    ) -> None:
        self._client = client
        self._limits = limits
        self._counts = counts
        self._exposition = _exposition()

    async def answer(self, exchange: Exchange) -> None:
        """All metrics, in the form that is asked for."""
        exposition = self._exposition
        if exposition is None:
            text = "the metrics need an extra: pip install 'trio-envserve[metrics]'"
            raise Problem("extra-missing", text)
        stats = await exchange.unless_hung_up(self.stats)
        workers = 0 if stats is None else len(stats.per_worker)
        await exchange.take_turn(SCRAPE_US + workers * SCRAPED_WORKER_US)
        accept = b", ".join(exchange.headers.get(b"accept", ())).decode("latin-1")
        media, body = exposition.write(Seen(self._counts(), stats), accept)
        await exchange.answer(200, media, body)

    async def stats(self) -> ServerStats | None:
        """The server's statistics; None if it does not answer in time."""
        try:
            return await self._client.stats(self._limits.scrape_s)
        except EnvServeError:
            return None  # it is gone, or no server of this kind: the door's own are told


def _exposition() -> Exposition | None:
    """None without the extra.  Loaded when a door opens: it takes longer than a turn may."""
    try:
        from .exposition import Exposition
    except ImportError:
        return None
    return Exposition()
