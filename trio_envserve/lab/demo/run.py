"""The main job, shown in under a minute, with everything going wrong.

Theory of operation
-------------------
A server of its own (a process, with worker processes) runs an environment that logs.  Four
callers ask for rollouts through a fault proxy, each once, with consent to be run again after a
proven death.  One of the callers sits on a network that sends every request again while it runs
(:mod:`~trio_envserve.testing.retransmit`): this client does not do that by itself, others will,
and it is what the dedup cache is for.  The sockets of all callers are tapped
(:mod:`.wiretap`): what goes over them is in the log.  Meanwhile :mod:`.faults` cuts
connections, also between an outcome and its receipt, kills workers with many
executions, and kills the server.

Environment, callers and killer write to one log, and the judges (:mod:`.judge`) read that.  The
server is asked for nothing but rollouts, least of all for what it has counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from ...client import Client, open_client
from ...core.errors import ConfigError
from ...net import Network, open_zmq_network, unwrap_single
from ...testing.proxy import open_fault_proxy
from ...testing.retransmit import RetransmittingNetwork
from ..logs import EventLog, Lives, prepared, told_of
from ..processes import TRIO_ENVSERVE, Process, join_process, serve_process
from .faults import Faults, poll, schedule
from .judge import EVENTS, judge_demo, wants
from .wiretap import CallerTap, TappedNetwork

ROLLOUTS_LEAST = 500
"""With fewer there is not enough going on for all the faults."""

WORKERS_MOST = 4
"""With more of them too much is under way at once for all faults to fall into
the middle of it."""

_CALLERS = 4
_IN_FLIGHT_PER_WORKER = 28
"""Calls at once for each worker: enough executions for its death to count, few
enough for those that died with it to be run again one at a time, alone on a
worker, as suspects are."""
_DURATION_S = 0.15
"""How long each rollout lasts, unless the machine is too slow for that."""
_MAX_EXECUTIONS = 10
"""Allowance of each call: all but one for the first session."""
_RETRANSMIT_S = (0.06, 0.4)
"""When the impatient caller sends a request again: while it runs, and later."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of a demonstration."""

    directory: Path
    """Where the logs go; made if it is not there, must not have logs yet."""
    rollouts: int = 1000
    seed: int = 0
    workers: int = 2
    seconds_limit: float = 60.0
    """The demonstration ends after this time, and what has no answer is lost."""
    remote_host: bool = False
    """The workers are those of a host that has joined, and it is killed, too."""
    server_command: Sequence[str] = TRIO_ENVSERVE
    """The command that knows the verb ``serve``."""


@dataclasses.dataclass(slots=True, eq=False)
class Progress:
    """The progress of a demonstration; plain state, to be looked at any time."""

    rollouts: int
    asked: int = 0
    answered: int = 0
    said: list[str] = dataclasses.field(default_factory=list)
    """The faults so far, a line each."""


async def run_demo(options: DemoOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Run it, and return the judge's figures (see :mod:`.judge`).

    Raises ConfigError for options that cannot work, ServerStartError if the
    server cannot be started.
    """
    if options.rollouts < ROLLOUTS_LEAST:
        raise ConfigError(f"at least {ROLLOUTS_LEAST} rollouts, not {options.rollouts}")
    if not 2 <= options.workers <= WORKERS_MOST:
        raise ConfigError(
            f"2 to {WORKERS_MOST} workers, not {options.workers}: one is killed while others work"
        )
    directory = prepared(options.directory, (EVENTS,))
    log = EventLog(directory / EVENTS)
    try:
        shown = wants(options.rollouts, hosts=int(options.remote_host))
        log.write("phase", "begin", wants=shown, seed=options.seed)
        with unwrap_single():
            await _run(options, directory, progress or Progress(options.rollouts), log)
        log.write("phase", "end")
    finally:
        log.close()
    return judge_demo(directory)


async def _run(options: DemoOptions, directory: Path, progress: Progress, log: EventLog) -> None:
    lives = Lives(directory / EVENTS)
    # Everything is told to end in the order in which it depends on each other,
    # and deaths are watched to the very last.
    with trio.move_on_after(options.seconds_limit) as limit:
        async with serve_process(
            "trio_envserve.lab.environment:Logged", directory, workers=options.workers,
            args={"log": str(directory / EVENTS)}, hosted=options.remote_host,
            command=options.server_command,
        ) as server:  # fmt: skip
            joining = (
                join_process(server.said["hosts"], options.workers, directory)
                if options.remote_host else nullcontext()
            )  # fmt: skip
            proxying = open_fault_proxy(server.said["address"], seed=options.seed)
            async with joining as host, proxying as proxy:
                callers = _Callers(options, progress, log)
                faults = Faults(
                    server, host, proxy, lives, log, callers, rollouts=options.rollouts,
                    workers=options.workers, say=progress.said.append,
                )  # fmt: skip
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(faults.watch)
                    nursery.start_soon(_notice_end, server, progress, nursery.cancel_scope)
                    await callers.run(proxy.address, faults, options.seed)
                    nursery.cancel_scope.cancel()
                log.write("phase", "closing")
    if limit.cancelled_caught:
        progress.said.append(f"not done after {options.seconds_limit:g} s: ended")
    with trio.move_on_after(10.0):
        await poll(partial(_all_dead, lives, log))


def _all_dead(lives: Lives, log: EventLog) -> bool:
    lives.look(log)
    return not lives.living


async def _notice_end(server: Process, progress: Progress, scope: trio.CancelScope) -> None:
    await server.wait_unexpected_end()
    progress.said.append("the server ended by itself: see its logs")
    scope.cancel()


@final
class _Callers:
    """All callers."""

    def __init__(self, options: DemoOptions, progress: Progress, log: EventLog) -> None:
        self.durations_s: dict[str, float] = {}
        self.duration_s = _DURATION_S
        self.answered = 0
        self.received: set[str] = set()
        self._options = options
        self._progress = progress
        self._log = log
        self._clients: list[Client] = []
        self._all_answered = trio.Event()

    async def run(self, address: str, faults: Faults, seed: int) -> None:
        """Ask for everything; returns when everything is answered."""
        async with AsyncExitStack() as stack:
            network: Network = await stack.enter_async_context(open_zmq_network())
            for number in range(_CALLERS):
                tapped = TappedNetwork(
                    network, CallerTap(f"caller-{number}", self._log, self.received)
                )
                impatient = RetransmittingNetwork(tapped, pauses_s=_RETRANSMIT_S)
                opened = open_client(
                    address, name=f"caller-{number}", network=tapped if number else impatient
                )
                self._clients.append(await stack.enter_async_context(opened))
            async with trio.open_nursery() as making, trio.open_nursery() as asking:
                due = schedule(seed, self._options.rollouts, hosts=int(self._options.remote_host))
                making.start_soon(faults.run, due)
                for number, client in enumerate(self._clients):
                    asking.start_soon(self._ask_all, number, client, faults)
                asking.start_soon(self._cancel_when_done, making.cancel_scope)

    async def _cancel_when_done(self, scope: trio.CancelScope) -> None:
        await self._all_answered.wait()
        scope.cancel()

    def sessions(self) -> int:
        """The fewest sessions that one of the callers has had."""
        return min(client.counters().sessions for client in self._clients)

    async def _ask_all(self, number: int, client: Client, faults: Faults) -> None:
        limit = trio.Semaphore(_IN_FLIGHT_PER_WORKER * self._options.workers // _CALLERS)
        async with trio.open_nursery() as nursery:
            for index in range(number, self._options.rollouts, _CALLERS):
                await limit.acquire()
                nursery.start_soon(self._ask, client, index, faults.lasts_s(), limit)

    async def _ask(
        self, client: Client, index: int, duration_s: float, limit: trio.Semaphore
    ) -> None:
        request, who = f"rollout-{index}", f"caller-{index % _CALLERS}"
        about = {"call": request, "rerun": True, "max_executions": _MAX_EXECUTIONS}
        self._log.write("asked", who, request, **about)
        self._progress.asked += 1
        self.durations_s[request] = duration_s
        outcome = await client.outcome(
            {"request": request, "seconds": duration_s}, rerun=True, max_executions=_MAX_EXECUTIONS
        )
        right = outcome.ok and outcome.value["request"] == request
        self._log.write("told", who, request, call=request, right=right, **told_of(outcome))
        self.answered += 1
        self._progress.answered += 1
        if self.answered == self._options.rollouts:
            self._all_answered.set()
        limit.release()
