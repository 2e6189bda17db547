"""Keeps as many hosts as there is work for, whoever starts them.

Theory of operation
-------------------
A launcher starts one host at a time and says whether it has ended.  :func:`keep_hosts`
looks at the server every second: it asks for a host where one has ended, for more or fewer
as :class:`~trio_envserve.core.pool.Sizing` decides, and gives a host back by letting it
leave, so that what runs there ends first.  A host that ends too soon is not replaced at
once.  Nothing is decided here about what ran on a host that is gone: its lease does that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, final

import trio

from ..core.limits import CAPACITY, ServerLimits
from ..core.pool import Need, Sizing
from ..core.status import ServerStats
from ..core.worker_range import WorkerRange
from ..server import Server

_log = logging.getLogger("trio_envserve.launchers")

LOOK_S = 1.0
PAUSE_MAX_S = 60.0
"""The longest pause before another host takes the place of one that has ended."""
HEALTHY_S = 60.0
"""Life in seconds after which a host that ends is replaced at once."""


class LaunchedHost(Protocol):
    """A host that was asked for."""

    async def ended(self) -> str:
        """Words about its end; empty if it has not ended."""
        ...

    async def leave(self) -> None:
        """Let it take no more work, and end when it has none."""
        ...

    async def kill(self) -> None:
        """End it now, and give back what it took."""
        ...


Start: TypeAlias = Callable[[str], Awaitable[LaunchedHost]]
"""Asks for a host with this name."""


async def keep_hosts(
    server: Server, start: Start, hosts: WorkerRange, *, workers: int, limits: ServerLimits,
    name: str,
) -> None:  # fmt: skip
    """Keep the wanted number of hosts until cancelled; then end all of them.  ``workers``: number
    of workers of each host."""
    kept = _Kept(server, start, hosts, workers, limits, name)
    try:
        while True:
            await kept.look()
            await trio.sleep(LOOK_S)
    finally:
        with trio.CancelScope(shield=True):
            await kept.end()


@final
class _Kept:
    """The hosts of one server."""

    def __init__(
        self, server: Server, start: Start, hosts: WorkerRange, workers: int,
        limits: ServerLimits, name: str,
    ) -> None:  # fmt: skip
        self._server = server
        self._start = start
        self._bounds = hosts
        self._workers = workers
        self._sizing = Sizing(limits)
        self._name = name
        self._number = 0
        self._wanted = hosts.least
        self._here: dict[str, tuple[LaunchedHost, float]] = {}
        """Hosts that are to stay, in the order of their start, each with the moment of its
        start."""
        self._leaving: dict[str, LaunchedHost] = {}
        self._failures = 0
        self._again_s = 0.0

    async def look(self) -> None:
        """Look at what has ended and how many there should be, and start or end some."""
        now_s = trio.current_time()
        await self._forget_ended(now_s)
        stats = self._server.stats()
        if stats.closing is not None:
            return  # nobody begins anything; who is here ends with the server
        if self._bounds.least < self._bounds.most:
            self._decide(now_s, stats)
        while len(self._here) > self._wanted:
            name, (host, _) = self._here.popitem()
            self._leaving[name] = host
            _log.info("host %s is given back", name)
            await host.leave()
        while len(self._here) < self._wanted and now_s >= self._again_s:
            self._number += 1
            name = f"{self._name}-{self._number}"
            _log.info("host %s is asked for", name)
            self._here[name] = await self._start(name), now_s

    def _decide(self, now_s: float, stats: ServerStats) -> None:
        oldest_s = 0.0 if stats.paused else stats.oldest_wait_s
        need = Need(stats.running, stats.waiting, oldest_s)
        capacity = self._workers * int(stats.bounds.get("pending", CAPACITY))
        change, why = self._sizing.decide(now_s, self._wanted, need, capacity)
        if change > 0 and stats.ready < self._wanted * self._workers:
            return  # those that were asked for last are not ready yet
        wanted = min(max(self._wanted + change, self._bounds.least), self._bounds.most)
        if wanted != self._wanted:
            _log.info("%s -> %s hosts: %s", self._wanted, wanted, why)
            self._wanted = wanted
            self._sizing.changed()

    async def _forget_ended(self, now_s: float) -> None:
        for name, (host, began_s) in list(self._here.items()):
            if how := await host.ended():
                del self._here[name]
                await _kill(name, host)
                self._failures = self._failures + 1 if now_s - began_s < HEALTHY_S else 0
                pause_s = min(2.0 ** min(self._failures, 10) - 1.0, PAUSE_MAX_S)
                self._again_s = now_s + pause_s
                _log.warning("host %s has ended: %s", name, how)
        for name, host in list(self._leaving.items()):
            if how := await host.ended():
                del self._leaving[name]
                await _kill(name, host)
                _log.info("host %s has left: %s", name, how)

    async def end(self) -> None:
        """End all hosts now."""
        hosts = {name: host for name, (host, _) in self._here.items()} | self._leaving
        async with trio.open_nursery() as nursery:
            for name, host in hosts.items():
                nursery.start_soon(_kill, name, host)


async def _kill(name: str, host: LaunchedHost) -> None:
    try:
        await host.kill()
    except Exception as error:  # of any launcher: the other hosts are ended all the same
        _log.warning("host %s could not be ended: %s: %s", name, type(error).__name__, error)
