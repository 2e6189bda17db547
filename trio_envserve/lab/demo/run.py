"""The main job, shown in under a minute, with everything going wrong.

Theory of operation
-------------------
A server of its own (a process, with worker processes) runs an environment that logs.  Four
callers ask for rollouts through a fault proxy, each once, with consent to be run again after a
proven death.  One of the callers sits on a network that sends every request again while it runs
(:mod:`~trio_envserve.testing.retransmit`): this client does not do that by itself, others will,
and it is what the table of work is for.  The sockets of all callers are tapped
(:mod:`.wiretap`): what goes over them is in the log.

Meanwhile the killer (:mod:`~trio_envserve.lab.killer`) cuts connections, also between an outcome
and its receipt, kills workers with many executions, and kills the server.  A schedule of faults
follows from the seed: each is due when a certain part of all rollouts has been answered, so that
it falls into the middle of the work on any machine, and is made after the one before.  A worker
is killed when the *environment's* log says that enough executions live on it, and only then: as
long as there is none, and while a fault is late, the next rollouts last longer.  The log of a cut
between an outcome and its receipt names the request of the outcome: the proxy shows the bytes
that it withheld, and the head of an outcome names its request.  A call that was issued again
after the server's death has no execution to spare any more (the client held one back for just
that), so a worker that runs one of those is left alone.

Environment, callers and killer write to one log, and the judges (:mod:`.judge`) read that.  The
server is asked for nothing but rollouts, least of all for what it has counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, final

import cbor2
import trio

from ...client import Client, open_client
from ...core.errors import ConfigError
from ...core.messages import KINDS, Outcome
from ...core.terms import ID_BYTES
from ...net import open_zmq_network, unwrap_single
from ...testing.proxy import FaultProxy, open_fault_proxy
from ...testing.retransmit import RetransmittingNetwork
from ..killer import Act, Killer, Victim, kept
from ..logs import EventLog, Lives, prepared, told_of
from ..processes import (
    LOOK_S,
    TRIO_ENVSERVE,
    EndedByItself,
    Process,
    join_process,
    serve_process,
    until,
)
from .judge import CUT, CUT_BEFORE_RECEIPT, EVENTS, LEAST_FAULTS, LEAST_LIVING, judge_demo, wants
from .wiretap import CallLogNetwork, id_of

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
_USUAL_S, _LONGEST_S, _LATE_S = 0.15, 0.6, 1.2
"""Duration of a rollout, unless the machine is too slow for that; where a fault waits, so that the
work is not over first; and in the last part of the answers, if no busy worker was found yet."""
_LATE = 0.7
"""Where that last part begins."""
_FIRST, _LAST = 0.04, 0.60
"""The part of the answers at which the first and the last fault are due."""
_MAX_EXECUTIONS = 10
"""Allowance of each call: all but one for the first session."""
_RETRANSMIT_S = (0.06, 0.4)
"""When the impatient caller sends a request again: while it runs, and later."""
_MOST_KILLS = 8
"""Attempts at killing a busy worker, should some of them come too late."""
_HEAD = bytes((0x80 + len(Outcome._fields) + 2, KINDS[Outcome]))
"""How the head of an outcome begins: an array, its kind, and a session follows."""
_RESULT = b"execution"
"""A key of every result of the environment, as it stands in an encoded one."""


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
class DemoProgress:
    """The progress of a demonstration; plain state, to be looked at any time."""

    rollouts: int
    asked: int = 0
    answered: int = 0
    lines: list[str] = dataclasses.field(default_factory=list)
    """The faults so far, a line each."""


def schedule(seed: int, rollouts: int, hosts: int = 0) -> list[Act]:
    """The faults of a seed, in order; each is due at a number of answers."""
    rng = random.Random(seed)
    often = ("network", CUT), ("network", CUT_BEFORE_RECEIPT), ("worker", "kill")
    kinds = [*often * LEAST_FAULTS, ("server", "kill"), *[("host", "kill")] * hosts]
    rng.shuffle(kinds)
    step = (_LAST - _FIRST) / len(kinds)
    return [
        Act(int(rollouts * (_FIRST + step * (index + rng.random()))), of, how)
        for index, (of, how) in enumerate(kinds)
    ]


def outcomes_in(data: bytes) -> list[str]:
    """Ids of the requests whose results stand in bytes that a server has sent, in
    order; also of one that is not there to its end."""
    found: list[str] = []
    for message in data.split(_HEAD)[1:]:
        stream = io.BytesIO(message)
        with contextlib.suppress(cbor2.CBORError):  # it only looked like a header
            _, session, sequence = (cbor2.load(stream) for _ in range(3))
            sequences = sequence if isinstance(sequence, list) else [sequence]
            if _RESULT in message and type(session) is bytes and len(session) == ID_BYTES:
                found += [id_of(session, number) for number in sequences]
    return found


async def run_demo(options: DemoOptions, progress: DemoProgress | None = None) -> dict[str, Any]:
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
        demo = DemoRun(options, directory, progress or DemoProgress(options.rollouts), log)
        with trio.move_on_after(options.seconds_limit) as limit:
            try:
                await demo.run()
            except EndedByItself as error:
                demo.say(str(error))
        if limit.cancelled_caught:
            demo.say(f"not done after {options.seconds_limit:g} s: ended")
        with trio.move_on_after(10.0):
            await until(demo.all_dead)
        log.write("phase", "end")
    finally:
        log.close()
    return judge_demo(directory)


@final
class DemoRun:
    """One demonstration: its callers, and a field for the killer."""

    def __init__(
        self, options: DemoOptions, directory: Path, progress: DemoProgress, log: EventLog
    ) -> None:
        self.log = log
        self.proxy: FaultProxy | None = None
        self.say = progress.lines.append
        self._options = options
        self._directory = directory
        self._progress = progress
        self._lives = Lives(directory / EVENTS)
        self._processes: dict[str, Process] = {}
        """The server, and the host if there is one."""
        self._clients: list[Client] = []
        self._lasts_s: dict[str, float] = {}
        """By request, of all that were asked so far: how long each was to last."""
        self._received: set[str] = set()
        """Ids of the requests of which an outcome has come."""
        self._spent: set[str] = set()
        """Requests that a lost server may have had: no execution to spare."""
        self._wants_busy = False
        """Whether a busy worker is to be killed, and there is none."""
        self._struck = ""
        """Process of the busy worker that was found last."""
        self._sessions = 1
        """Number of sessions that each client must have had."""
        self._next_due = math.inf
        """Number of answers at which the fault after the one that is being made is due."""

    async def run(self) -> None:
        """Ask for everything, and make all faults meanwhile."""
        # Everything is told to end in the order in which it depends on each other,
        # and deaths are watched to the very last.
        options = self._options
        server = serve_process(
            "trio_envserve.lab.environment:LoggedEnvironment", self._directory,
            workers=options.workers, args={"log": str(self._directory / EVENTS)},
            hosted=options.remote_host, command=options.server_command,
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._kept("server", server))
            if options.remote_host:
                host = join_process(server.said["hosts"], options.workers, self._directory)
                await stack.enter_async_context(self._kept("host", host))
            opened = open_fault_proxy(server.said["address"], seed=options.seed)
            self.proxy = await stack.enter_async_context(opened)
            network = await stack.enter_async_context(open_zmq_network())
            for number in range(_CALLERS):
                name = f"caller-{number}"
                tapped = CallLogNetwork(network, name, self.log, self._received)
                impatient = RetransmittingNetwork(tapped, pauses_s=_RETRANSMIT_S)
                net = tapped if number else impatient
                opened_client = open_client(self.proxy.address, name=name, network=net)
                self._clients.append(await stack.enter_async_context(opened_client))
            stack.enter_context(unwrap_single())
            nursery = await stack.enter_async_context(trio.open_nursery())
            nursery.start_soon(self._watch)
            nursery.start_soon(self._make_faults)
            async with trio.open_nursery() as asking:
                for number, client in enumerate(self._clients):
                    asking.start_soon(self._ask_all, number, client)
            nursery.cancel_scope.cancel()
            self.log.write("phase", "closing")

    def _kept(self, of: str, process: Process) -> contextlib.AbstractAsyncContextManager[None]:
        self._processes[of] = process
        return kept(process, of, self.log)

    async def _watch(self) -> None:
        """Follow the environment's log and its processes until cancelled."""
        while True:
            self._lives.look(self.log)
            await trio.sleep(LOOK_S)

    def all_dead(self) -> bool:
        """Whether all processes of the environment have ended."""
        self._lives.look(self.log)
        return not self._lives.living

    # -- the callers ---------------------------------------------------------------

    async def _ask_all(self, number: int, client: Client) -> None:
        limit = trio.Semaphore(_IN_FLIGHT_PER_WORKER * self._options.workers // _CALLERS)
        async with trio.open_nursery() as nursery:
            for index in range(number, self._options.rollouts, _CALLERS):
                await limit.acquire()
                nursery.start_soon(self._ask, client, index, limit)

    async def _ask(self, client: Client, index: int, limit: trio.Semaphore) -> None:
        request, who = f"rollout-{index}", f"caller-{index % _CALLERS}"
        about = {"call": request, "rerun": True, "max_executions": _MAX_EXECUTIONS}
        self.log.write("asked", who, request, **about)
        self._progress.asked += 1
        self._lasts_s[request] = lasts_s = self._next_lasts_s()
        outcome = await client.outcome(
            {"request": request, "seconds": lasts_s}, rerun=True, max_executions=_MAX_EXECUTIONS
        )
        right = outcome.ok and outcome.value["request"] == request
        self.log.write("told", who, request, call=request, right=right, **told_of(outcome))
        self._progress.answered += 1
        limit.release()

    def _next_lasts_s(self) -> float:
        """Duration of the next rollout."""
        answered = self._progress.answered
        if self._wants_busy and answered > _LATE * self._options.rollouts:
            return _LATE_S
        return _LONGEST_S if self._wants_busy or answered >= self._next_due else _USUAL_S

    # -- the faults ----------------------------------------------------------------

    def victims(self, of: str, how: str) -> list[Victim]:
        """The server; the host, while all of its workers run something; a busy worker."""
        self._lives.look(self.log)
        if of == "worker":
            busy = self._busy_worker()
            self._wants_busy = busy is None
            if busy is None:
                return []
            self._struck = busy.name
            return [busy]
        process = self._processes[of]
        ready = of == "server" or self._all_at_work()
        return [Victim(of, process.pid, process)] if process.living and ready else []

    def _busy_worker(self) -> Victim | None:
        """One with enough executions that will not end in this very moment."""
        if len(self._lives.living) < self._options.workers:
            return None  # else nobody could tell a replacement from a late beginner
        now_s = time.monotonic()
        for life in self._lives.living:
            young = sum(
                began_s + 0.7 * self._lasts_s.get(request, 0.0) > now_s
                for request, began_s in life.running.values()
            )
            if young >= LEAST_LIVING and self._spent.isdisjoint(life.requests):
                return Victim(life.process, life.pid, None)
        return None

    def _all_at_work(self) -> bool:
        """Whether all workers are there, run something, and none is left alone for it."""
        living = self._lives.living
        return len(living) == self._options.workers and all(
            life.running and self._spent.isdisjoint(life.requests) for life in living
        )

    async def _make_faults(self) -> None:
        """The schedule, each fault after the one before and its repair."""
        options, killer = self._options, Killer(self, patience_s=math.inf)
        acts = schedule(options.seed, options.rollouts, hosts=int(options.remote_host))
        for act, following in zip(acts, [*acts[1:], None], strict=True):
            await until(lambda: self._progress.answered >= act.at)  # noqa: B023  # awaited here
            self._next_due = options.rollouts if following is None else following.at
            for _ in range(_MOST_KILLS):
                since_s = time.monotonic()
                if act.how == CUT_BEFORE_RECEIPT:
                    await self._cut_before_receipt(killer, act)
                else:
                    await killer.carry_out(act)
                if await self._counts(act, since_s):
                    break
            self._next_due = math.inf

    async def _counts(self, act: Act, since_s: float) -> bool:
        """Whether a fault is what was wanted; waits until what was killed is replaced."""
        self.say(f"{act.of} {act.how}")
        busy = True
        if act.of == "server":
            self._sessions += 1
            await until(lambda: all(x.counters().sessions >= self._sessions for x in self._clients))
            self._spent.update(self._lasts_s)
            self.say("the server is back at its address")
        elif act.of == "worker":
            life = self._lives.all[self._struck]
            await until(lambda: life.dead)
            busy = len(life.running) >= LEAST_LIVING
            self.say(f"it had {len(life.running)} executions")
        if act.of in ("worker", "host"):
            # All slots have had a rollout before, so a process that begins its first one is a
            # replacement.
            await until(lambda: any(x.began_s > since_s for x in self._lives.all.values()))
        return busy

    async def _cut_before_receipt(self, killer: Killer, act: Act) -> None:
        """Cut all connections between an outcome and its receipt.

        The cut falls on the first bytes with an outcome that has not come, so none of them was
        forwarded whole.
        """
        assert self.proxy is not None
        before = self.proxy.counters.cut
        data = await self.proxy.cut_before_receipt(lambda data: bool(self._not_received(data)))
        connections, withheld = self.proxy.counters.cut - before, self._not_received(data)
        killer.write(act, "network", connections=connections, withheld=withheld)

    def _not_received(self, data: bytes) -> list[str]:
        """Requests whose outcomes are in these bytes and have not come yet."""
        return [each for each in outcomes_in(data) if each not in self._received]
