"""Whole systems of the shipped pure machines, on a virtual network and clock.

Theory of operation
-------------------
``run(seed)`` builds a world of clients, a server with its workers, and links
between them, all around the very classes that ship (``Router``,
``ClientCore``, ``WorkerCore``); lets callers ask and faults strike for some
virtual seconds; then calms down and waits until everything has come to rest.
A judge (:mod:`.judge`) compares what happened with the guarantees.

One integer decides everything: the same seed gives the same trace, whose hash
is part of the result.  It decides twice: first the *plan* (:mod:`.plan`), which
may also be given, and then the *luck*: which message is how late, whom a fault
strikes.  ``trio-envserve fuzz`` runs many seeds, or shows one.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from ...core.limits import WireLimits
from ...core.terms import Epoch, Incarnation
from ...retrylab.judges import Event, Violation
from ...retrylab.world import BaseWorld, Events, Process, Rates, Record
from .actors import Disk, HostileClient, SimClient, SimServer, SimWorker
from .bounds import unanswered, unfinished
from .coverage import IMPOSSIBLE, IMPOSSIBLE_OF_KEYS, KeyPair, Pair, name_of
from .judges import Guarantees
from .network import Frames, Network, describe
from .plan import Ask, Fault, Plan, plan_of

CALM_S = 45.0
"""Virtual time after the last fault in which everything must come to rest, the
work itself not counted: longer than a lease and than a client waits for a server."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The result of a seed."""

    seed: int
    harsh: bool
    plan: Plan
    events: int
    virtual_s: float
    faults: dict[str, int]
    pairs: dict[str, int]
    """How often each (state, input) of the dedup cache occurred."""
    key_pairs: dict[str, int]
    """The same of the generations of keys."""
    writes: int
    """How many groups were written to the journal."""
    asked: int
    told: dict[str, int]
    executions: int
    violations: tuple[Violation, ...]
    digest: str
    """The hash of the trace, recorded or not."""
    trace: tuple[Record[Frames], ...] = ()

    def breaks(self, guarantee: str) -> bool:
        """Whether this guarantee was broken."""
        return any(violation.guarantee == guarantee for violation in self.violations)

    @property
    def log(self) -> tuple[str, ...]:
        """The trace as lines for people."""
        return tuple(record.text(describe) for record in self.trace)


class World(BaseWorld[Fault]):
    """Everything that there is in a run; its plan is the seed's, or the one given."""

    network: Network

    def __init__(
        self, seed: int, *, harsh: bool = False, trace: bool = False, plan: Plan | None = None
    ) -> None:
        super().__init__(Events(b"".join, trace=trace))
        self.seed = seed * 2 + harsh
        self.plan = plan or plan_of(seed, harsh=harsh)
        self.rng = self.luck_of("world")
        self.wire = WireLimits(message_bytes=self.plan.message_bytes)
        self.faults: Counter[Fault] = Counter()
        self.pairs: Counter[Pair] = Counter()
        self.key_pairs: Counter[KeyPair] = Counter()
        self.judge = Guarantees(self.plan)
        self.violations: list[Violation] = []
        rates = Rates(self.plan.delay_s, self.plan.loss, self.plan.mangle)
        self.network = Network(self.events, rates)
        self.grouped = self.luck_of("grouped").random() < 0.5
        """Whether what is ready in one turn for one peer travels together."""
        self.worker_by_incarnation: dict[Incarnation, SimWorker] = {}
        self.servers: list[SimServer] = []
        self.disk = Disk(self.luck_of("disk")) if self.plan.has(Fault.JOURNAL) else None
        self.start_server()
        self.clients = [SimClient(self, index, asks) for index, asks in enumerate(self.plan.asks)]
        if self.plan.has(Fault.HOSTILE):
            HostileClient(self)
        self.schedule(self.plan.moments, self.plan.busy_s)

    def luck_of(self, name: str) -> Random:
        """A source of its own for each who draws: see :class:`~..kit.process.Process`."""
        return Random(f"{self.seed}/{name}")

    def new_id(self) -> bytes:
        """128 bits that are random in the world."""
        return self.rng.randbytes(16)

    # -- what is judged -------------------------------------------------------

    def happened(self, kind: str, who: str, key: str = "", *what: Any) -> None:
        """Give an event to the judge."""
        for violation in self.judge.see(Event(self.events.now_s, kind, who, key, what)):
            self._broke(violation)

    def breaks(self, guarantee: str, text: str) -> None:
        """A bound does not hold, or a core does what it cannot."""
        self._broke(Violation(guarantee, self.events.now_s, text))

    def _broke(self, violation: Violation) -> None:
        self.violations.append(violation)
        self.events.note("VIOLATION", violation)

    # -- the environment ------------------------------------------------------

    def declares_rerun(self, rng: Random) -> bool:
        """The environment's word on reruns in a worker that starts now."""
        return self.plan.declares_rerun != self.strikes(Fault.FLIP_RERUN, 0.5, rng)

    def may_declare_rerun(self) -> bool:
        """Whether a call that leaves it to the environment may run again."""
        return self.plan.declares_rerun or self.plan.has(Fault.FLIP_RERUN)

    # -- servers --------------------------------------------------------------

    @property
    def server(self) -> SimServer:
        """The newest server, dead or alive."""
        return self.servers[-1]

    def start_server(self) -> None:
        """A new life at the same address; it listens at once."""
        server = SimServer(self, len(self.servers))
        self.servers.append(server)
        self.network.server = server

    def end_server(self, server: SimServer, how: str, pause_s: float) -> None:
        """The server's process is dead: so are its links, soon its workers, and
        after a pause there is a new one."""
        if not server.alive:
            return
        server.die(how)
        if self.disk is not None:
            self.disk.crash()
            self.happened("fell", server.name, "", self.disk.records)
        links = [*server.client_links.values(), *server.worker_links.values()]
        for link in links:
            self.network.cut(link)
        for worker in server.workers.values():
            if worker.alive:
                linger_s = self.rng.uniform(0.0, self.plan.linger_s)
                self.events.after(linger_s, worker.die, "its server is dead")
        self.events.after(pause_s, self.start_server)

    def all_dead_but(self, server: SimServer) -> bool:
        """Whether this server gets the lock: every earlier process is dead."""
        return not any(
            earlier.alive or any(worker.alive for worker in earlier.workers.values())
            for earlier in self.servers
            if earlier is not server
        )

    def dead_epochs(self, server: SimServer) -> frozenset[Epoch]:
        """The epochs before this server's."""
        return frozenset(s.epoch for s in self.servers if s is not server)

    # -- clients --------------------------------------------------------------

    def come_back(self, client: SimClient, asks: tuple[Ask, ...]) -> None:
        """A client's process has ended, and another one asks for the rest."""
        index = self.clients.index(client)
        again = SimClient(self, index, asks, life=client.life + 1)
        self.clients[index] = again

    # -- faults ---------------------------------------------------------------

    def strikes(self, fault: Fault, chance: float, rng: Random) -> bool:
        """Whether a fault of this kind happens here and now to who asks, by its luck."""
        if not self.plan.has(fault) or self.network.calm or rng.random() >= chance:
            return False
        self.faults[fault] += 1
        return True

    def struck(self, fault: Fault) -> bool:
        """A fault that happens at a moment, to whoever is there."""
        rng = self.rng
        client = rng.choice(self.clients)
        whom = self._whom(fault, client)
        if whom is None:
            return False
        self.faults[fault] += 1
        self.events.note("fault", f"{fault.value}: {whom.name}")
        match fault:
            case Fault.CUT_CLIENT:
                self.network.cut(client.link)
            case Fault.CUT_LONG:
                client.away_s = rng.uniform(1.0, 8.0)
                self.network.cut(client.link)
            case Fault.HALF_OPEN:
                assert client.link is not None
                client.link.half_open = True
                self.events.after(rng.uniform(1.0, 4.0), self.network.cut, client.link)
            case Fault.CUT_WORKER if isinstance(whom, SimWorker):
                self.network.cut(whom.link)
            case Fault.KILL_WORKER:
                whom.die("killed")
            case Fault.STOP_WORKER:
                self._stop(whom, rng.uniform(0.5, 4.0))
            case Fault.KILL_SERVER:
                self.end_server(self.server, "killed", rng.uniform(0.3, 3.0))
            case Fault.RESTART_FAST:
                self.end_server(self.server, "killed", rng.uniform(0.001, 0.05))
            case Fault.STOP_SERVER:
                self._stop(whom, rng.uniform(0.5, 9.0))
            case Fault.DRAIN_SERVER:
                self.server.post(self.server.stop)
            case Fault.KILL_CLIENT:
                client.die("killed")
            case Fault.CLOSE_CLIENT:
                client.post(client.close)
            case Fault.STOP_CLIENT:
                self._stop(whom, rng.uniform(0.5, 8.0))
            case Fault.SUSPEND:
                for_s = rng.uniform(1.0, 9.0)
                for process in (*self.clients, *self.servers, *workers_of(self.servers)):
                    self._stop(process, for_s + rng.uniform(0.0, 0.05))
            case Fault.CANCEL_STORM:
                client.post(client.cancel_all)
            case _:
                pass
        return True

    def _whom(self, fault: Fault, client: SimClient) -> Process | None:
        """Whom it can strike now: somebody alive, and connected where that is cut."""
        whom: Process = client
        cuts = fault in (Fault.CUT_CLIENT, Fault.CUT_LONG, Fault.HALF_OPEN)
        if fault in _OF_WORKERS:
            cuts = fault is Fault.CUT_WORKER
            workers = [w for w in self.server.workers.values() if w.alive and (w.link or not cuts)]
            if not workers:
                return None
            whom = self.rng.choice(workers)
        elif fault in _OF_SERVERS:
            whom = self.server
        elif cuts and client.link is None:
            return None
        return whom if whom.alive else None

    def _stop(self, whom: Process, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        whom.hold("stopped")
        self.events.after(for_s, whom.release, "stopped")

    def release(self) -> None:
        """No more faults: what is stopped continues, what is half open is cut."""
        for process in (*self.clients, *self.servers, *workers_of(self.servers)):
            process.release("stopped")
        for client in self.clients:
            if client.link is not None and client.link.half_open:
                self.network.cut(client.link)

    # -- the run --------------------------------------------------------------

    def left(self) -> list[str]:
        """The parts that have not come to rest."""
        if not self.network.calm:
            return ["faults go on"]
        if not self.server.alive or not self.server.locked:
            return ["no server runs"]
        left = unfinished(self.server.router)
        for client in self.clients:
            if client.alive:
                left += unanswered(client.name, client.core)
            if client.has_more():
                left.append(f"client {client.name} has more to ask")
        if any(self.judge.live()):
            left.append("environment code still runs")
        return left

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Until everything is at rest, or should be; or until this says so."""
        work_s = sum(ask.duration_s for asks in self.plan.asks for ask in asks)
        if not self.to_rest(CALM_S + work_s, until):
            return
        left = self.left()
        for violation in self.judge.rest(self.events.now_s):
            self._broke(violation)
        for holdup in left:
            self.breaks("G8", holdup)
        for pair in IMPOSSIBLE.keys() & self.pairs.keys():
            self.breaks("CRASH", f"{name_of(pair)}: {IMPOSSIBLE[pair]}, and it was")
        for key_pair in IMPOSSIBLE_OF_KEYS.keys() & self.key_pairs.keys():
            why = IMPOSSIBLE_OF_KEYS[key_pair]
            self.breaks("CRASH", f"of a key, {name_of(key_pair)}: {why}, and it was")

    def times(self) -> dict[str, int]:
        """How often each kind of fault struck, by what people call it."""
        times = self.faults + Counter(
            {Fault.LOSE: self.network.lost, Fault.MANGLE: self.network.mangled}
        )
        return {fault.value: times[fault] for fault in Fault if times[fault]}


_OF_WORKERS = frozenset({Fault.CUT_WORKER, Fault.KILL_WORKER, Fault.STOP_WORKER})
_OF_SERVERS = frozenset(
    {Fault.KILL_SERVER, Fault.RESTART_FAST, Fault.STOP_SERVER, Fault.DRAIN_SERVER}
)


def workers_of(servers: list[SimServer]) -> list[SimWorker]:
    """Every worker that these have ever started."""
    return [worker for server in servers for worker in server.workers.values()]


def run(
    seed: int, *, harsh: bool = False, trace: bool = False, plan: Plan | None = None,
    until: str = "",
) -> Run:  # fmt: skip
    """Simulate one seed, or another plan with a seed's luck.

    An exception of a core is a violation of its own.  ``until``: stop at the first
    violation of this guarantee.
    """
    world = World(seed, harsh=harsh, trace=trace, plan=plan)
    judge = world.judge

    def broken() -> bool:
        return bool(world.violations) and world.violations[-1].guarantee == until

    try:
        world.run(broken if until else None)
    except Exception as error:  # whatever a core raises is what is looked for
        text = "".join(traceback.format_exception(error, limit=-4))
        world.breaks("CRASH", text.rstrip())
    calls = [call for call in judge.calls.values() if call.honest]
    return Run(
        seed=seed,
        harsh=harsh,
        plan=world.plan,
        events=world.events.count,
        virtual_s=world.events.now_s,
        faults=world.times(),
        pairs={name_of(pair): n for pair, n in world.pairs.items()},
        key_pairs={name_of(pair): n for pair, n in world.key_pairs.items()},
        writes=0 if world.disk is None else world.disk.writes,
        asked=len(calls),
        told=dict(Counter(c.told or ("cancelled" if c.cancelled_s else "-") for c in calls)),
        executions=sum(len(call.executions) for call in judge.calls.values()),
        violations=tuple(world.violations),
        digest=world.events.digest(),
        trace=tuple(world.events.trace or ()),
    )
