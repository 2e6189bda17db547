"""The statistics of a server: those of its router, and those that only its shell knows."""

from __future__ import annotations

import logging
from typing import Any

import trio

from ..core.clock import LagMeter
from ..core.messages import MessageRow, encode_record
from ..core.router import Router
from ..core.router_effects import TellStats
from ..net import RouterSocket

_log = logging.getLogger("trio_envserve.server")


class Statistics:
    """The statistics of one server."""

    def __init__(self, router: Router, front: RouterSocket, tick_s: float) -> None:
        self._router = router
        self._front = front
        self.lag = LagMeter(tick_s)
        """Lag of the ticks."""
        self._told: tuple[Any, bytes] = None, b""
        """The router's statistics for the last question of a client, and the encoded answer."""

    def record(self) -> dict[str, Any]:
        """All statistics now."""
        return {**self._router.stats(), **self._own()}

    def told(self, effect: TellStats) -> MessageRow:
        """The answer to a client's question.  All questions of one turn get one record, since
        making it costs far more than asking."""
        stats, record = self._told
        if stats is not effect.stats:
            record = encode_record({**effect.stats, **self._own()})
            self._told = effect.stats, record
        return effect.told(record)[1:]

    async def keep_logging(self, every_s: float) -> None:
        """Log a line of statistics every ``every_s`` seconds."""
        while True:
            await trio.sleep(every_s)
            _log.info("%s", line(self.record()))

    def _own(self) -> dict[str, Any]:
        front = self._front.statistics()
        return {
            **self.lag.summary("router"),
            "address": self._front.address,
            "undelivered": front.undelivered,
            "backlog_bytes": front.backlog_bytes,
        }


def line(stats: dict[str, Any]) -> str:
    """The statistics as one line for a log."""
    cache = stats["cache"]
    workers = " ".join(
        f"{w['worker']}:{w['pending']}/{w['done']}/{w['failed']}"
        f"({w.get('loop_lag_p99_s', 0.0) * 1e3:.0f}ms,{w['memory_bytes'] >> 20}MiB)"
        for w in stats["per_worker"]
    )
    return (
        f"{stats['status']} sessions={stats['sessions']} waiting={stats['waiting']} "
        f"running={stats['running']} kept={stats['kept']} ({stats['kept_bytes'] >> 10} KiB) "
        f"coalesced={cache['coalesced']} replayed={cache['replayed']} "
        f"refused={cache['refused_for_now'] + cache['conflicts'] + cache['spent']} "
        f"finished={cache['finished']} restarts={stats['worker_restarts']} "
        f"router_lag={stats.get('router_lag_p99_s', 0.0) * 1e3:.0f}ms "
        f"workers[pending/done/failed]: {workers or 'none'}"
    )
