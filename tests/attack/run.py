"""A siege: its plan, its stages one after the other, and the loops that are held.

Theory of operation
-------------------
The plan follows from the seed alone.  A *stage* is a victim under certain limits; a *round* is
some attacks on it at once, and then a quiet beside a process that takes the enemy's processor
time.  The attacks are dealt out like cards: none comes again before all have come, so that the
shortest siege has each of them.  A seed decides rounds, attacks and what they send, but not how
far they get in their time.

Servers, clients and the enemy are processes that work in the folder of the siege and write to its
one log.  In each round of an attack on a server the honest client asks as fast as it can, at the
front and at the doors, and another client comes new.  Then the process that has attacked takes
the processor time that it took, and does nothing: what the honest client reaches now is what its
rate is compared with.  A client is attacked by a hostile server, in the place of an honest one.
A victim that ends by itself, or does not answer any more, is written down with its last words, and
the siege goes on with a new one.  Nothing is decided here: :mod:`.judge` reads the log.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import random
import sys
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, final

import trio

from tests.rig.rig import EVENTS, Rig
from tests.rig.samples import sample
from trio_envserve.client import open_client
from trio_envserve.core.errors import ConfigError, EnvServeError, ServerStartError
from trio_envserve.core.limits import MIB, KeyLimits, ServerLimits, WireLimits
from trio_envserve.doors.verifiers import VerifiersLimits
from trio_envserve.lab.processes import ANY_PORT, Process, join_process, program
from trio_envserve.net import unwrap_single
from trio_envserve.testing.proxy import open_fault_proxy

from .attacks import ATTACKS, HELD
from .honest import HOSTILE

SECONDS_LEAST = 10.0
"""In less there is no room for a round of each stage."""

LONG_S = 600.0
"""From here on rounds are long, and loops are held for a minute."""

SMALL: Final[Mapping[str, Any]] = {
    "limits": {
        "kept_outcomes": 2000, "kept_bytes": 16 * MIB, "queue": 4000, "queue_bytes": 16 * MIB,
        "sessions": 500, "window": 4096, "lease_s": 60.0, "worker_held_bytes": 16 * MIB,
    },
    "wire": {
        "message_bytes": 8 * MIB, "peer_queue_bytes": 8 * MIB, "arriving_bytes": 24 * MIB,
        "waiting_bytes": 24 * MIB,
    },
    "keys": {
        "generations": 4000, "retained_bytes": 16 * MIB, "retention_s": 60.0, "orphan_s": 20.0,
    },
    "doors": {
        "http": {
            "connections": 256, "body_bytes": 4 * MIB, "bodies_bytes": 16 * MIB,
            "answers_bytes": 16 * MIB, "calls": 200, "wait_s": 10.0, "idle_s": 5.0, "body_s": 5.0,
            "write_s": 5.0, "delivered_s": 5.0,
        },
        "verifiers": {
            "connections": 256, "frame_bytes": 8 * MIB, "run_bytes": 2 * MIB, "runs": 1000,
            "runs_bytes": 16 * MIB, "kept_bytes": 16 * MIB, "early_cancels": 100,
            "lease_s": 20.0, "unsure_s": 2.0, "arriving_bytes": 24 * MIB,
            "waiting_bytes": 24 * MIB,
        },
    },
}  # fmt: skip
"""Limits of a server whose bounds are reached in seconds."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "doors": {"http": {"bodies_bytes": 256 * MIB, "answers_bytes": 256 * MIB}, "verifiers": {}}
}
"""Nothing but the defaults; those of HTTP cannot be read without its extra."""

BODY_TIMES = 4
"""A call that waits at the HTTP door was a body, is a value, is encoded, and is under way."""

VALUE_TIMES = 32
"""A call of the HTTP door that runs is a value at its worker, so many times as large as a body of
JSON at most (``{"a":0},``)."""

SLACK_BYTES = 96 * MIB
"""Growth of a process beside what its limits name: the allocator's own memory, tables of
connections, a pump's batch."""


class Stage(NamedTuple):
    """A victim, and how it is set up."""

    name: str
    share: float
    """Share of the time of the siege."""
    options: Mapping[str, Any]
    """Limits of the server: its own, of its wire, of keys, of each door."""
    workers: int = 1
    descriptors: int | None = None
    scheme: str = "tcp"

    @property
    def allowed(self) -> dict[str, int]:
        """Bytes that each kind of process may grow by."""
        limits = ServerLimits(**self.options.get("limits", {}))
        wire = WireLimits(**self.options.get("wire", {}))
        kept = SLACK_BYTES + limits.kept_bytes
        sockets = wire.arriving_bytes + wire.waiting_bytes
        # A value may take eight times its body, and one is decoded at a time.
        value = 8 * min(wire.message_bytes, 32 * MIB)
        server = kept + limits.queue_bytes + sockets
        server += KeyLimits(**self.options.get("keys", {})).retained_bytes
        worker = kept + value + limits.worker_held_bytes
        if doors := self.options.get("doors"):  # each has a client of its own
            runs, http = VerifiersLimits(**doors["verifiers"]), doors["http"]
            server += runs.runs_bytes + runs.kept_bytes + runs.arriving_bytes + runs.waiting_bytes
            server += BODY_TIMES * http["bodies_bytes"] + http["answers_bytes"]
            worker += VALUE_TIMES * http["bodies_bytes"]
        host = kept + limits.worker_held_bytes + sockets
        client = SLACK_BYTES + value + sockets
        return {"server": server, "worker": worker, "client": client, "host": host}


STAGES: Final = (
    Stage("small", 0.45, SMALL),
    Stage("descriptors", 0.15, SMALL, descriptors=256, scheme="ipc"),
    Stage("default", 0.15, DEFAULTS, workers=2),
    Stage("client", 0.25, {"wire": SMALL["wire"]}),
)
"""In the order in which they come."""


class Round(NamedTuple):
    number: int
    stage: str
    attacks: tuple[str, ...]
    siege_s: float
    quiet_s: float
    """Beside a busy process instead of the attacks; 0 for rounds on the client."""


class Plan(NamedTuple):
    rounds: tuple[Round, ...]
    held: tuple[str, ...]
    """Scenarios of a loop that stands still."""
    held_s: float

    @property
    def stages(self) -> list[Stage]:
        return [stage for stage in STAGES if self.of(stage)]

    def of(self, stage: Stage) -> list[Round]:
        return [each for each in self.rounds if each.stage == stage.name]


def make_plan(seed: int, seconds: float, only: Collection[str] = ()) -> Plan:
    """The plan of a siege of about so many seconds, held loops apart.

    ``only``: nothing but these attacks and scenarios.  ConfigError for names that there are not,
    and for too little time.
    """
    if not seconds >= SECONDS_LEAST:
        raise ConfigError(f"a siege takes at least {SECONDS_LEAST:g} seconds, not {seconds!r}")
    wanted = set(only) or {*ATTACKS, *HELD}
    if unknown := wanted - {*ATTACKS, *HELD}:
        raise ConfigError(f"no attack is called {', '.join(sorted(unknown))}")
    names = [name for name in ATTACKS if name in wanted]
    on_client = [name for name in names if ATTACKS[name].at == "client"]
    on_server = [name for name in names if name not in on_client]
    stages = [each for each in STAGES if (on_client if each.name == "client" else on_server)]
    return Plan(
        rounds=tuple(_rounds(seed, seconds, stages, on_server, on_client)),
        held=tuple(name for name in HELD if name in wanted),
        held_s=60.0 if seconds >= LONG_S else 6.0,
    )


def _rounds(
    seed: int, seconds: float, stages: Sequence[Stage], on_server: list[str], on_client: list[str]
) -> Iterator[Round]:
    siege_s, quiet_s = (20.0, 8.0) if seconds >= LONG_S else (3.0, 2.0)
    whole = sum(stage.share for stage in stages)
    rng = random.Random(f"siege/{seed}")
    each_s = (siege_s + quiet_s) * whole
    kinds = [
        stage.name for stage in stages
        for _ in range(max(1, round(seconds * stage.share / each_s)))
    ]  # fmt: skip
    served = sum(name != "client" for name in kinds)
    at_once = min(len(on_server), max(4, math.ceil(len(on_server) / max(1, served))))
    deck: list[str] = []
    for number, stage in enumerate(kinds):
        if stage == "client":
            # One after the other, each connection of the client another one.
            names = tuple(rng.sample(on_client, len(on_client)))
            yield Round(number, stage, names, siege_s + quiet_s, 0.0)
            continue
        hand: dict[str, None] = {}
        while len(hand) < at_once:
            deck = deck or rng.sample(on_server, len(on_server))
            hand[deck.pop()] = None
        yield Round(number, stage, tuple(hand), siege_s, quiet_s)


# -- a siege -------------------------------------------------------------------------


VICTIM: Final = tuple(program("tests.rig.server"))
"""Command that starts the server, with options as its last argument."""

AT_FRONT = "front"
IN_FLIGHT = 16
"""Calls at once of the honest client at the front."""
AT_DOOR = 3
"""The same at each door."""
CLIENTS = 7
"""Clients in the process that is attacked."""
WARM_UP = 200
"""Calls before the first round of a victim."""
CALLS = 1000
"""Calls whose outcomes wait for a loop that is held."""
FLUSH_S = 0.3
"""Time that they have to leave a client before it is held."""
NEWCOMER_S = 10.0
"""Longest wait of a client that comes during an attack."""
SAMPLE_S = 0.2
"""Time between two looks at the memory of the victims."""
END_S = 40.0
"""Time that a victim has to end: a server's own limits for its close add up to less."""
ANSWER_S = 60.0
"""From the end of an order's time to its answer; only a hang takes longer."""


class VictimLost(Exception):
    """A victim has ended, or does not answer; it is written down."""


@final
class Siege:
    """One siege; :meth:`run` it, once."""

    def __init__(self, rig: Rig, given: argparse.Namespace, plan: Plan) -> None:
        self.folder = rig.folder
        self.log = rig.log
        self.plan = plan
        self.victims: dict[str, Process] = {}
        """The victims that run now, by kind."""
        self._phase = "starting"
        self._callers: list[str] = []
        """Names of the clients of the victim, of all its rounds."""
        self._kinds: dict[int, str] = {}
        """Kinds of all processes that were started here, by id."""
        self._given = given
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """All of it.  ServerStartError if a program cannot be started."""
        watch = self._process("watch", program("tests.rig.meter", {"log": self._path}))
        async with self._started("watch", watch):
            for stage in self.plan.stages:
                rounds = self.plan.of(stage)
                while rounds:  # from the round behind the one in which a victim was lost
                    rounds = await self._stage(stage, rounds)
            for name in self.plan.held:
                await self._hold(name)
        self.log.write("phase", "end")

    def _say(self, phase: str) -> None:
        self._phase = phase
        print(phase, file=sys.stderr, flush=True)

    # -- processes -----------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return str(self.folder / EVENTS)

    def _process(self, what: str, command: Sequence[str], ready: str = "") -> Process:
        return Process(
            command, what, ready=ready, environ={"XDG_RUNTIME_DIR": str(self.folder)},
            cwd=self.folder, end_s=END_S,
        )  # fmt: skip

    def _server(self, bind: str = ANY_PORT, **options: Any) -> Process:
        meter = options["workers"] != 0 or "hosts_bind" in options
        asked = {
            "environment": "tests.attack.besieged:Besieged", "bind": bind, "log": self._path,
            "args": {"log": self._path, "meter": meter}, "transport": self._given.transport,
            **options,
        }  # fmt: skip
        command = [*(self._given.server_command or VICTIM), json.dumps(asked)]
        return self._process("server", command, "serving")

    def _client(self, name: str, address: str, opener: str = "open_front", **more: Any) -> Process:
        name = f"{name}-{next(self._numbers)}"  # a name, and what is asked under it, is new
        self._callers.append(name)
        asked = {
            "address": address, "name": name, "seed": self._given.seed, "log": self._path,
            "mix": "tests.attack.honest", "opener": f"tests.attack.honest:{opener}",
            "transport": self._given.transport, "count_s": math.inf, **more,
        }  # fmt: skip
        return self._process("client", program("tests.rig.client", asked), "ready")

    def _enemy(self, **more: Any) -> Process:
        asked = {"log": self._path, "seed": self._given.seed, **more}
        return self._process("enemy", program("tests.attack.enemy", asked), "ready")

    @asynccontextmanager
    async def _started(
        self, kind: str, process: Process, *, victim: bool = False
    ) -> AsyncGenerator[Process, None]:
        """A process, until the end of the block; how it has ended is written down."""
        async with process:
            self._kinds[process.pid] = kind
            if victim:
                self.victims[kind] = process
            try:
                yield process
            finally:
                if victim:
                    del self.victims[kind]
            if process.status is None:
                began_s = trio.current_time()
                await process.end()
                took_s = round(trio.current_time() - began_s, 2)
                about: Any = {"code": process.status, "took_s": took_s, "during": self._phase}
                self.log.write("phase", "stopped", who=kind, **about)

    async def _tell(self, process: Process, **order: Any) -> None:
        await process.tell({"number": next(self._numbers), **order})

    async def _order(self, process: Process, takes_s: float = 0.0, **order: Any) -> dict[str, Any]:
        """Give an order, and wait until it is done.  ServerStartError if that takes a minute more
        than it takes, or if a victim has ended by then."""
        await self._tell(process, **order)
        said: dict[str, Any] = {}
        with trio.move_on_after(takes_s + ANSWER_S):
            said = await process.event("done")
        for kind, each in self.victims.items():
            if each.status is not None:
                raise ServerStartError(f"the {kind} ended")
        if not said:
            raise ServerStartError(f"the {process.what} did not {order['do']} in time")
        return said

    async def _answered(self, client: Process, takes_s: float, **order: Any) -> int:
        """Number of right answers to that many calls; 0 if they were not all answered in time."""
        try:
            said = await self._order(client, takes_s, do="all", **order)
        except ServerStartError:
            if any(each.status is not None for each in self.victims.values()):
                raise
            return 0
        return int(said["right"])

    async def _blame(self, suspect: str, why: str) -> None:
        """Write down which of the victims has ended, or that the suspect does not answer any
        more; and kill it."""
        await trio.sleep(0.5)  # a process that has closed its output has a moment to end
        gone = [kind for kind, each in self.victims.items() if each.status is not None]
        for kind in gone or [suspect]:
            process, how = self.victims[kind], "ended" if gone else "hung"
            about: Any = {"code": process.status, "why": why[:300], "words": process.last_words()}
            self.log.write("harmed", kind, of=kind, how=how, **about)
            self._say(f"the {kind} {how} in {self._phase}")
            await process.kill()
        for name in self._callers:  # nobody answers them any more
            self.log.write("harmed", name, of="client", how="kill")

    # -- attacks ---------------------------------------------------------------------------

    async def _stage(self, stage: Stage, rounds: list[Round]) -> list[Round]:
        """Rounds in a row on one victim; those that are left if it was lost."""
        self._say(f"{stage.name}: starting")
        self._callers.clear()
        self.log.write("phase", "stage", stage=stage.name, allowed=stage.allowed)
        left = list(rounds)
        try:
            with unwrap_single():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._sample)
                    if stage.name == "client":
                        while left:
                            await self._attack_client(stage, left.pop(0))
                    else:
                        await self._attack_server(stage, left)
                    nursery.cancel_scope.cancel()
        except VictimLost:
            # What is left has another victim; a round that it was lost before is lost, too.
            return left if len(left) < len(rounds) else left[1:]
        return left

    @asynccontextmanager
    async def _blaming(self, suspect: str) -> AsyncGenerator[None, None]:
        """What is done with victims.  VictimLost, which is written down; ServerStartError if there
        was no victim yet, so that a program around it could not be started."""
        try:
            with unwrap_single():
                yield
        except ServerStartError as error:
            if not self.victims:
                raise
            lost = str(error)
        else:
            return
        await self._blame(suspect, lost)
        raise VictimLost

    @contextmanager
    def _round(self, each: Round) -> Iterator[None]:
        self._say(f"{each.stage}, round {each.number}: {', '.join(each.attacks)}")
        self.log.write("phase", "round", number=each.number, attacks=each.attacks)
        try:
            yield
        finally:
            self.log.write("phase", "round-end")

    async def _attack_server(self, stage: Stage, left: list[Round]) -> None:
        """A server with its doors, honest clients that use them all, and the enemy."""
        async with AsyncExitStack() as stack, self._blaming("server"):

            async def start(kind: str, process: Process, *, victim: bool = False) -> Process:
                return await stack.enter_async_context(self._started(kind, process, victim=victim))

            bind = ANY_PORT
            if stage.scheme == "ipc":
                # Not in the folder of the siege: its path may be too long for a unix socket's.
                short = stack.enter_context(TemporaryDirectory(prefix="attack-", dir="/tmp"))
                bind = f"ipc://{short}/front"
            options: dict[str, Any] = {**stage.options, "descriptors": stage.descriptors}
            options["workers"] = stage.workers
            if self._given.remote_host:
                options |= {"workers": 0, "hosts_bind": ANY_PORT}
            server = await start("server", self._server(bind, **options), victim=True)
            addresses = {**server.said, "front": server.address}
            if self._given.remote_host:
                host = join_process(addresses["hosts"], stage.workers, self.folder, cwd=self.folder)
                await start("host", host, victim=True)
            front = self._client("front", addresses["front"], wire=stage.options.get("wire", {}))
            clients = {AT_FRONT: await start("client", front, victim=True)}
            for door in ("http", "verifiers"):
                client = self._client(door, addresses[door], "open_door")
                clients[door] = await start("caller", client)
            enemy = await start("enemy", self._enemy())
            await self._order(clients[AT_FRONT], do="all", in_flight=IN_FLIGHT, count=WARM_UP)
            self._look(warm=True)
            for name, client in clients.items():
                in_flight = IN_FLIGHT if name == AT_FRONT else AT_DOOR
                await self._tell(client, do="load", in_flight=in_flight)
            while left:
                each = left.pop(0)
                about = {"attacks": each.attacks, "addresses": addresses, "round": each.number}
                attack = {"do": "attack", "seconds": each.siege_s, **about}
                with self._round(each):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._come, addresses["front"], each.siege_s / 2)
                        cpu_s = (await self._order(enemy, each.siege_s, **attack))["cpu_s"]
                    self.log.write("phase", "quiet", cpu_s=cpu_s)
                    burn = {"cpu_s": cpu_s * each.quiet_s / each.siege_s, "seconds": each.quiet_s}
                    await self._order(enemy, each.quiet_s, do="burn", **burn)
            for client in clients.values():
                await self._order(client, do="rest")

    async def _come(self, address: str, after_s: float) -> None:
        """Be a client that is new to the server."""
        await trio.sleep(after_s)
        began_s, took_s = trio.current_time(), None
        with trio.move_on_after(NEWCOMER_S), contextlib.suppress(EnvServeError):
            async with open_client(address, name="newcomer") as client:
                if (await client.outcome({"index": 0})).ok:
                    took_s = round(trio.current_time() - began_s, 3)
        self.log.write("phase", "newcomer", took_s=took_s)

    async def _attack_client(self, stage: Stage, each: Round) -> None:
        """A client, a hostile server in the place of the honest one, and then that again."""
        async with AsyncExitStack() as stack, self._blaming("client"):
            stack.enter_context(self._round(each))
            async with self._started("honest", self._server(workers=1)) as server:
                address = server.address
                wire, limits = stage.options["wire"], {"recovery_s": 3.0}
                attacked = self._client(
                    "attacked", address, wire=wire, limits=limits, clients=CLIENTS
                )
                client = await stack.enter_async_context(
                    self._started("client", attacked, victim=True)
                )
                await self._order(client, do="all", in_flight=IN_FLIGHT, count=WARM_UP)
                self._look(warm=True)
            async with self._started("enemy", self._enemy(listen=address)) as enemy:
                await self._tell(client, do="load", in_flight=2 * CLIENTS, reach=HOSTILE)
                about = {"attacks": each.attacks, "round": each.number}
                await self._order(enemy, each.siege_s, do="attack", seconds=each.siege_s, **about)
            async with self._started("honest", self._server(address, workers=1)):
                right, order = 0, {"count": IN_FLIGHT, "in_flight": IN_FLIGHT}
                with trio.move_on_after(ANSWER_S):
                    while not right:
                        right = await self._answered(client, 0.0, **order)
            self.log.write("phase", "recovered", right=right)

    # -- memory ----------------------------------------------------------------------------

    async def _sample(self) -> None:
        while True:
            self._look()
            await trio.sleep(SAMPLE_S)

    def _look(self, *, warm: bool = False) -> None:
        """Write down the resident memory of the victims and of their workers."""
        kinds = {*self.victims, *(["worker"] if "server" in self.victims else [])}
        found = sample(self.folder, self._kinds)["kinds"]
        kib = [(kind, each["rss_kib"]) for kind, each in found.items() if kind in kinds]
        self.log.write("sampled", "memory", warm=warm, kib=kib)

    # -- loops that are held ---------------------------------------------------------------

    async def _hold(self, name: str) -> None:
        """Hold a loop while the outcomes of a thousand calls are on their way, and count the
        connections that are made meanwhile."""
        self._say(name)
        scenario, seconds = HELD[name], self.plan.held_s
        victim = "client" if scenario.at == "client" else "server"
        beats: Any = {"transport": "libzmq", "beats": True} if scenario.libzmq else {}
        of_server, of_client = ({}, beats) if victim == "server" else (beats, {})
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                self._started(
                    "server", self._server(workers=int(victim == "client"), **of_server),
                    victim=True,
                )
            )  # fmt: skip
            proxy = await stack.enter_async_context(open_fault_proxy(server.address))
            client = await stack.enter_async_context(
                self._started(
                    "client", self._client("held", proxy.address, **of_client), victim=True
                )
            )
            right = before = 0
            with contextlib.suppress(VictimLost):
                async with self._blaming(victim), trio.open_nursery() as nursery:
                    await self._order(client, do="all", in_flight=8, count=8)
                    before = proxy.counters.connections
                    held = self.victims[victim]
                    nursery.start_soon(self._hold_after, held, FLUSH_S, seconds)
                    right = await self._answered(client, seconds, count=CALLS, in_flight=CALLS)
            connections = proxy.counters.connections - before
            about: Any = {"calls": CALLS, "right": right, "connections": connections}
            self.log.write("phase", "held", scenario=name, seconds=seconds, **about)

    async def _hold_after(self, process: Process, after_s: float, seconds: float) -> None:
        await trio.sleep(after_s)
        await self._tell(process, do="hold", seconds=seconds)
