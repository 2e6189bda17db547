"""A soak: real processes, real faults for minutes, and then: is everything back?

Theory of operation
-------------------
A server with worker processes runs the built-in environment; clients, each a
process, ask it for a mix of calls through a fault proxy that is in this
process.  The workers may be those of a remote host (:mod:`~trio_envserve.lab.remote_host`).
The phases:

1. *warm-up*: load without faults, then rest; the sample ``begin``.
2. *faults*: load, and the killer's schedule.
3. *calm*: the schedule is over, so everything that was stopped goes on and the
   network is whole.  The clients ask nothing new; what is pending must come to
   its end, what belonged to killed clients must be ended with their leases, and
   then processes, descriptors and threads must be back: the sample ``end``.
4. *measurement*: the client that has lived throughout asks for block after block
   of short rollouts, and after each the resident memory is looked at.
5. *closed*: everything is told to end; the sample ``closed`` finds what has not.

Where something does not come back the wait for it ends at a limit, and the
samples say what was there.  Nothing is decided here: everything is written to
four logs, and :mod:`.judge` reads those.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, final

import trio

from ...core.errors import ConfigError
from ...net import unwrap_single
from ...testing.proxy import open_fault_proxy
from ..demo.process import DemoServer
from ..history import CALLERS, ENVIRONMENT, KILLER
from ..logs import EnvironmentLog, JsonLog, prepared
from ..programs import EndedByItself, program
from ..remote_host import RemoteHost, with_host
from ..standing import Standing, open_standing
from .callers import Callers
from .judge import judge
from .judge_samples import SAMPLES, not_given_back
from .killer import Killer
from .sampler import MISSING, OfHost, Sampler, has_proc, resident
from .schedule import schedule

SERVER_PROGRAM = program("trio_envserve.lab.demo.server")

MINUTES_LEAST = 0.1
"""In less there is no room for the faults of one round."""

WORKERS = 2
CLIENTS = 4
IN_FLIGHT = 12
"""Calls at once for each client."""

BLOCK_REQUESTS = 10_000
BLOCKS = 4
"""Blocks of the measurement; the first one warms up."""
STEADY_IN_FLIGHT = 64

LIMITS: dict[str, Any] = {
    "lease_s": 20.0, "silence_report_s": 2.0, "silence_kill_s": 6.0, "restart_pause_max_s": 2.0,
    "restart_healthy_s": 3.0,
}  # fmt: skip
"""Limits of the server, with seconds for what takes minutes by default."""

_SIZE = 1000
"""Tasks of the environment."""
_WARM_UP_CALLS = 60
"""Ended calls of each client before the faults begin."""
_SAMPLE_S = 1.0
_LOOK_S = 0.05
_SETTLED = 3
"""Samples in a row with the same counts: it has settled."""
_SETTLE_S = 20.0
_WARM_UP_S = 180.0
_MEASURE_S = 600.0
_CALM_S = 90.0
"""How long what is pending may take to end, and what is held to come back: more
than the lease, the longest call, and the end of a half-open connection together."""
_AFTER_BLOCK_S = 2.0
"""How long the last acknowledgements take after each block."""
_GONE_S = 15.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """Options of a soak."""

    directory: Path
    """Where the logs go; made if it is not there, must not have logs yet."""
    minutes: float = 1.0
    """How long there are faults; warm-up and measurement come on top."""
    seed: int = 0
    server_command: Sequence[str] = SERVER_PROGRAM
    """The command that starts the server, with options as its last argument."""
    remote_host: bool = False
    """The workers are those of a host that has joined, and it is killed and stopped, too."""


@dataclasses.dataclass(slots=True, eq=False)
class Progress:
    """The progress of a soak; plain state, to be looked at any time."""

    phase: str = "starting"
    asked: int = 0
    ended: int = 0
    faults: int = 0
    faults_due: int = 0
    seconds: float = 0.0
    """How long there have been faults."""
    held: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The last sample's kinds."""
    said: list[str] = dataclasses.field(default_factory=list)
    """The events so far, a line each."""


@final
class Soak:
    """One soak.  :meth:`run` it, once; :meth:`figures` are there at any time."""

    def __init__(self, options: SoakOptions) -> None:
        """ConfigError for options that cannot work."""
        if not options.minutes >= MINUTES_LEAST:
            raise ConfigError(f"at least {MINUTES_LEAST:g} minutes, not {options.minutes!r}")
        self.progress = Progress()
        self.directory = prepared(options.directory, (ENVIRONMENT, CALLERS, KILLER, SAMPLES))
        self._options = options
        self._environment = EnvironmentLog(self.directory / ENVIRONMENT)
        self._sampler = Sampler(self.directory)
        self._server: DemoServer | None = None
        self._host: RemoteHost | None = None
        self._callers: Callers | None = None

    def figures(self) -> dict[str, Any]:
        """The judge's (see :mod:`.judge`), from what is in the folder now."""
        head = {"seed": self._options.seed, "minutes": self._options.minutes}
        return {**head, **judge(self.directory)}

    async def run(self) -> None:
        """All phases.  ServerStartError if the server cannot be started."""
        killer = JsonLog(self.directory / KILLER)
        samples = JsonLog(self.directory / SAMPLES)
        try:
            killer.write(
                "begin", seed=self._options.seed, minutes=self._options.minutes,
                hosts=int(self._options.remote_host),
            )  # fmt: skip
            if not has_proc():
                samples.write("missing", text=MISSING)
            with unwrap_single():
                try:
                    await self._run(killer, samples)
                except* EndedByItself as errors:
                    self.progress.said += map(str, errors.exceptions)
            await self._look_for_leftovers(killer, samples)
        finally:
            killer.close()
            samples.close()

    async def _run(self, killer: JsonLog, samples: JsonLog) -> None:
        serving = {
            "environment": "arithmetic",
            "args": {"log_path": str(self.directory / ENVIRONMENT), "size": _SIZE},
            "workers": WORKERS, "limits": LIMITS, "log_directory": str(self.directory),
        }  # fmt: skip
        if self._options.remote_host:
            serving = with_host(serving)
        async with AsyncExitStack() as stack:
            # Everything is told to end in the order in which it depends on each other.
            server = self._server = DemoServer(
                serving, self.directory, self._options.server_command, cwd=self.directory
            )
            await stack.enter_async_context(open_standing(server))
            server.note(killer)
            if self._options.remote_host:
                self._host = RemoteHost(
                    server.hosts_address, WORKERS, self.directory, cwd=self.directory
                )
                await stack.enter_async_context(open_standing(self._host))
            proxy = await stack.enter_async_context(
                open_fault_proxy(server.address, seed=self._options.seed)
            )
            asking = {
                "address": proxy.address, "log": str(self.directory / CALLERS),
                "seed": self._options.seed, "size": _SIZE,
            }  # fmt: skip
            callers = self._callers = Callers(
                self.directory, asking, CLIENTS,
                lambda name: killer.write("ended-by-itself", who=f"client {name}"),
            )  # fmt: skip
            nursery = await stack.enter_async_context(trio.open_nursery())
            stack.callback(self._say_closing, killer)
            nursery.start_soon(self._watch, killer)
            ending = {"server": server, "remote host": self._host}
            for who, started in ending.items():
                if started is not None:
                    nursery.start_soon(
                        self._notice_end, who, started, killer, nursery.cancel_scope
                    )  # fmt: skip
            for slot in range(CLIENTS):
                nursery.start_soon(callers.live, slot)
            faults = Killer(
                self.directory, server, self._host, proxy, callers, self._environment, killer
            )
            await self._phases(callers, faults, killer, samples)
            killer.write("end")
            nursery.cancel_scope.cancel()

    async def _phases(
        self, callers: Callers, faults: Killer, killer: JsonLog, samples: JsonLog
    ) -> None:
        begin = await self._warm_up(callers, killer, samples)
        await self._make_faults(callers, faults, samples)
        await self._calm_down(callers, killer, samples, begin)
        await self._measure(callers, killer, samples)

    # -- phases ---------------------------------------------------------------

    async def _warm_up(self, callers: Callers, killer: JsonLog, samples: JsonLog) -> dict[str, Any]:
        with self._phase("warm-up", killer, _WARM_UP_S):
            await callers.wait_all(lambda caller: caller.ready)
            await callers.load(IN_FLIGHT)
            await callers.wait_all(lambda caller: caller.ended >= _WARM_UP_CALLS)
            await callers.rest()
            await callers.wait_all(lambda caller: caller.idle)
        return await self._settled(samples, "begin", lambda _: True, _SETTLE_S)

    async def _make_faults(self, callers: Callers, faults: Killer, samples: JsonLog) -> None:
        self.progress.phase = "faults"
        seconds = self._options.minutes * 60
        acts = schedule(self._options.seed, seconds, hosted=self._options.remote_host)
        self.progress.faults_due = len(acts)
        await callers.load(IN_FLIGHT)
        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sample_always, samples, faults, begun_s)
            async with trio.open_nursery() as making:
                making.start_soon(faults.run, acts)
                making.start_soon(trio.sleep, seconds)
            nursery.cancel_scope.cancel()

    async def _sample_always(self, samples: JsonLog, faults: Killer, begun_s: float) -> None:
        while True:
            self.progress.faults = faults.done
            self.progress.seconds = trio.current_time() - begun_s
            self._sample(samples, "faults")
            await trio.sleep(_SAMPLE_S)

    async def _calm_down(
        self, callers: Callers, killer: JsonLog, samples: JsonLog, begin: dict[str, Any]
    ) -> None:
        with self._phase("calm", killer, _CALM_S):
            await callers.rest()
            await callers.wait_all(lambda caller: caller.ready and caller.idle)
        with trio.move_on_after(_CALM_S):  # what still runs then is told by the judge
            while self._environment.living():  # noqa: ASYNC110  # other processes
                await trio.sleep(_LOOK_S)
        killer.write("rest")
        await self._settled(samples, "end", lambda now: not not_given_back(begin, now), _CALM_S)

    async def _measure(self, callers: Callers, killer: JsonLog, samples: JsonLog) -> None:
        client, server = callers.lives[0], self._server
        assert client is not None
        assert server is not None
        with self._phase("measurement", killer, _MEASURE_S):
            for _ in range(BLOCKS):
                done = await callers.steady(client, BLOCK_REQUESTS, STEADY_IN_FLIGHT)
                await trio.sleep(_AFTER_BLOCK_S)
                samples.write(
                    "steady", requests=done["requests"], right=done["right"],
                    rss_kib=resident(server.pid, client.program.pid),
                )  # fmt: skip
                self._sample(samples, "measurement")

    @contextmanager
    def _phase(self, name: str, killer: JsonLog, limit_s: float) -> Iterator[None]:
        """A phase that must come to its end in time; if it does not, the next one begins."""
        self.progress.phase = name
        with trio.move_on_after(limit_s) as limit:
            yield
        if limit.cancelled_caught:
            killer.write("hung", phase=name)
            self.progress.said.append(f"the {name} does not come to its end")

    def _say_closing(self, killer: JsonLog) -> None:
        killer.write("closing")
        self.progress.phase = "closing"

    async def _look_for_leftovers(self, killer: JsonLog, samples: JsonLog) -> None:
        """Processes have a moment to end."""
        with trio.move_on_after(_GONE_S):
            while set(self._sampler.sample({})["kinds"]) - {"soak"}:  # noqa: ASYNC110  # as above
                await trio.sleep(_LOOK_S)
        self._sample(samples, "closed")
        self._environment.look(killer)
        self.progress.phase = "closed"

    # -- watching -------------------------------------------------------------

    async def _watch(self, killer: JsonLog) -> None:
        """Follow the environment's log and its processes until cancelled."""
        assert self._callers is not None
        while True:
            self._environment.look(killer)
            self.progress.asked, self.progress.ended = self._callers.asked, self._callers.ended
            await trio.sleep(_LOOK_S)

    async def _notice_end(
        self, who: str, started: Standing, killer: JsonLog, scope: trio.CancelScope
    ) -> None:
        await started.wait_unexpected_end()
        killer.write("ended-by-itself", who=who)
        self.progress.said.append(f"the {who} ended by itself: see its log")
        scope.cancel()

    def _known(self) -> dict[int, str]:
        """The kinds of the processes that are known by their ids."""
        known: dict[int, str] = {}
        if self._server is not None and self._server.there:
            known[self._server.pid] = "server"
        if self._host is not None and self._host.there:
            of_host = OfHost.at(self.directory, self._host.pid)
            known |= dict.fromkeys(of_host.keepers, "keeper of host")
            known |= dict.fromkeys(of_host.guards, "guard of host")
            known[self._host.pid] = "host"
        for caller in self._callers.lives if self._callers else ():
            if caller is not None and caller.program.living:
                known[caller.program.pid] = "client"
        return known

    def _sample(self, samples: JsonLog, phase: str) -> dict[str, Any]:
        found = self._sampler.sample(self._known())
        samples.write("sample", phase=phase, **found)
        self.progress.held = found["kinds"]
        return found

    async def _settled(
        self, samples: JsonLog, phase: str, is_there: Callable[[dict[str, Any]], bool],
        limit_s: float,
    ) -> dict[str, Any]:  # fmt: skip
        """Sample until it is there, and some samples in a row have the same counts,
        or the limit has passed: the last one is that of the phase."""
        counts: list[Any] = []
        found: dict[str, Any] = {}
        with trio.move_on_after(limit_s):
            while not (
                len(counts) >= _SETTLED
                and is_there(found)
                and all(a == b for a, b in itertools.pairwise(counts[-_SETTLED:]))
            ):
                await trio.sleep(_SAMPLE_S / 2)
                found = self._sample(samples, "settling")
                counts.append(counted(found))
        return self._sample(samples, phase)


def counted(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample without its memory, which never stands still."""
    kinds = {
        kind: {name: value for name, value in record.items() if name != "rss_kib"}
        for kind, record in sample["kinds"].items()
    }
    return {"kinds": kinds, "sockets": sample["sockets"], "locks": sample["locks"]}
