"""The plan of a simulated run, and its faults.

Theory of operation
-------------------
Each seed draws its own plan: how many clients and workers, how tight the
bounds, what the environment does, and which *kinds* of fault occur, how often
("swarm testing": a run with three kinds of fault reaches states that a run
with all of them never does).  Faults are injected during the first
``busy_s`` of virtual time; then the world is calm, and everything must end.

Timers are those of the real thing, scaled down so that a lease or a kill fits
into a run of some seconds.

A plan is plain data, so what a seed has drawn can be made smaller while it still shows the
same failure, and be kept in a file.  Everything is written there, the limits that are as shipped
too: a file shows the same schedule when defaults have changed.

*Hosts* of other machines are a configuration: the plan of a seed with them (:class:`HostPlan`) is
another one than without them.  So are *permits* that executions claim (:class:`PermitPlan`), calls
with a grace (:attr:`FaultKind.GRACE`), and *saves*: with these environment code saves states all
the time, most calls consent to go on from them, and workers are killed more often.

Some things a seed has or has not by its number (:data:`DRAWN_APART`), and what they bring is
drawn from sources of their own: all other seeds are what they were before there was such a thing.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, NamedTuple, Self, TypeAlias

from ...core.key_records import KeyAct, KeyName, Tag
from ...core.lease import DRIFT, FIRST_BEAT_S, NO_LEASE_S, LeaseTerms
from ...core.limits import KIB, ClientLimits, KeyLimits, ServerLimits
from ...core.worker_range import WorkerRange
from ...retrylab.draw import listed, timetable
from ...retrylab.values import as_data

GUARANTEES = {
    "G1": "one at a time: no request has two live executions",
    "G2": "at most once: a further execution needs consent, proof of death and allowance",
    "G3": "one outcome: all that are sent for one request are the same bytes",
    "G4": "kept until received: what has ended is neither forgotten nor replaced",
    "G5": "fenced: who is not the current incarnation changes nothing",
    "G6": "same id, same request: another payload is refused",
    "G7": "cancel is final and complete",
    "G8": "bounded: nothing grows past its bound, nothing is left at the end",
    "G9": "no silent wait, no false alarm: each call is told what is true",
    "G11": "durable: nothing is told before it is safe, and what was told is told again",
    "G12": "limited: no more permits of a name are held at once, or granted in a second",
    "G13": "cleared: what rollouts make is destroyed, once, by who alone may",
    "CRASH": "a core raised, or did what it cannot do",
}
"""The guarantees in a line each; `docs/guarantees.md` has them whole."""

ANY = ("CRASH", *(name for name in GUARANTEES if name != "CRASH"))
"""For a mutant that breaks so much that any guarantee may be the first to show it."""


class FaultKind(enum.Enum):
    """The kinds of fault, each with words for people."""

    of: str
    """Part of the world that it is of: a ``client``, its ``connection``, a ``worker``, the ``link``
    of one, a ``server``, a ``journal``, a ``host``.  ``harsh``: ZMQ and TCP never cause it, but the
    protocol should survive it; ``apart``: a seed has it or not, whatever it draws
    (:data:`DRAWN_APART`), or a configuration; empty: none of these."""
    times: tuple[int, int]
    """How often it strikes in a run that has it, at least and at most; 0 of what does not strike at
    moments."""

    def __new__(cls, words: str, of: str = "", times: tuple[int, int] = (0, 0)) -> Self:
        """Its value is the words."""
        kind = object.__new__(cls)
        kind._value_, kind.of, kind.times = words, of, times
        return kind

    LOSE = "messages lost"
    CUT_CLIENT = "client connection cut", "connection", (1, 5)
    CUT_LONG = "client connection cut for long", "connection", (1, 2)
    HALF_OPEN = "client connection half open", "connection", (1, 3)
    CUT_WORKER = "worker link broken, for which its worker is killed", "link", (1, 5)
    NEW_ROUTE = "new routing identity after each reconnect"
    MANGLE = "messages duplicated, delayed, reordered", "harsh"
    KILL_WORKER = "worker killed", "worker", (1, 4)
    KILL_AFTER_OUTCOME = "worker killed just after it sent an outcome"
    KILL_EARLY = "worker killed before its hello"
    SLOW_START = "worker never says hello"
    SET_UP_FAILS = "environment fails to set up"
    NO_SPAWN = "worker process cannot be started"
    SLOW_DEATH = "a dead worker is reaped late"
    STOP_WORKER = "worker stopped and continued", "worker", (1, 3)
    BLOCK_LOOP = "environment blocks the event loop"
    IGNORE_CANCEL = "environment ignores cancellation"
    HANG = "environment hangs until it is cancelled"
    POISON = "environment kills its worker"
    KILL_SERVER = "server killed", "server", (1, 2)
    RESTART_FAST = "server killed and restarted at once", "server", (1, 3)
    STOP_SERVER = "server stopped and continued", "server", (1, 2)
    DRAIN_SERVER = "server stopped gracefully", "server", (1, 1)
    KILL_CLIENT = "client killed", "client", (1, 1)
    CLOSE_CLIENT = "client closed", "client", (1, 1)
    STOP_CLIENT = "client stopped and continued", "client", (1, 2)
    SUSPEND = "everything stopped and continued", "client", (1, 2)
    CANCEL_STORM = "all calls of a client cancelled", "client", (1, 2)
    HOSTILE = "a hostile client"
    CONFUSED_WORKER = "a worker reports what it never ran"
    HUGE = "huge payloads"
    TINY_BOUNDS = "tiny bounds"
    SHORT_LEASE = "short lease"
    FLIP_RERUN = "the environment's declaration changes between lives"
    KEYS = "keys that callers share", "apart"
    JOURNAL = "keys are kept in a journal", "journal"
    CRASH_AT_WRITE = "server killed as it writes its journal", "journal"
    SLOW_DISK = "a sync of the disk takes long", "journal"
    DAMAGED_READ = "an outcome on the disk cannot be read", "journal"
    ELASTIC = "a pool that grows and shrinks", "apart"
    PAUSES = "dispatching pauses after failures", "apart"
    JUNK = "a worker sends malformed messages", "apart"
    SPREAD = "workers that start are left their share", "apart"
    GRACE = "calls with a grace", "apart"
    HOSTS = "workers on hosts of other machines", "host"
    NO_LEASE = "hosts hold no lease", "host"
    CUT_HOST = "host cut off from its router", "host", (1, 3)
    CUT_HOST_UP = "host not heard by its router", "host", (1, 3)
    CUT_HOST_DOWN = "host that does not hear its router", "host", (1, 3)
    RECONNECT_HOST = "host connection cut", "host", (1, 3)
    SLEEP_HOST = "machine of a host sleeps", "host", (1, 2)
    STOP_HOST = "host stopped and continued", "host", (1, 2)
    STOP_GUARD = "guard of a host stopped and continued", "host", (1, 2)
    STOP_MACHINE = "all processes of a host stopped and continued", "host", (1, 2)
    KILL_HOST = "host killed and started again", "host", (1, 2)
    COPY_HOST = "host started on another machine, too", "host", (1, 1)
    PERMITS = "executions that claim permits", "apart"
    SAVES = "rollouts save states, and go on from them", "apart"
    RESOURCES = "rollouts hold resources", "apart"


def kinds_of(of: str) -> frozenset[FaultKind]:
    """The kinds of fault of this part of the world."""
    return frozenset(fault for fault in FaultKind if fault.of == of)


AT_MOMENTS = [fault for fault in FaultKind if fault.times[1] and fault.of != "host"]
"""Those that strike at moments in plans of all configurations."""

LEAST_MOMENTS = 5
"""The fewest faults of a run that happen at moments; the other kinds come on top."""

PLAIN_LEASE_S, SHORT_LEASE_S = 6.0, 3.0
PLAIN_SYNC_S = (0.0005, 0.005)
PLAIN_MESSAGE_BYTES, SMALL_MESSAGE_BYTES = 1 << 20, 2048

PLAIN_SPREAD_S = 1e-300
"""Nothing: whichever worker is ready first may take everything."""

PLAIN_BOUNDS = {
    "kept_outcomes": 1000, "kept_bytes": 1 << 20, "window": 64, "queue": 1000,
    "queue_bytes": 1 << 20,
}  # fmt: skip
"""The bounds of a run without :attr:`FaultKind.TINY_BOUNDS`."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of a key by a call."""

    act: KeyAct
    namespace: str
    word: str
    """The key, in its namespace."""
    tag: Tag = None
    """Of a cancel or a forget."""

    @property
    def name(self) -> KeyName:
        """As the core has it."""
        return KeyName(self.namespace.encode(), self.word.encode())

    @property
    def label(self) -> str:
        """How the environment's log names the key."""
        return f"{self.namespace}.{self.word}"


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedAsk:
    """One call that a simulated caller will make."""

    key: str
    at_s: float
    behaviour: str
    duration_s: float
    rerun: bool | None
    max_executions: int
    limit_s: float | None
    cancel_after_s: float | None
    body: bytes
    use: KeyUse | None = None
    """The use of a key, if it names one.  Then its body names key and input."""
    execution_s: float | None = None
    grace_s: float | None = None
    """How much of its limits, the end of them, is a grace."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostPlan:
    """The hosts of a plan, their leases and their clocks."""

    workers: tuple[int, ...]
    """Most workers of each host."""
    varies: bool
    """Whether a host may have fewer, one at least."""
    fences_s: tuple[float, ...]
    """The lease of each server in turn, in seconds."""
    guard_s: float
    """Most time from the deadline of a guard to the death of its workers that leases allow for,
    in seconds."""
    late_s: float
    """Most time that it takes, in seconds."""
    rates: tuple[float, ...]
    """How fast each clock is: of each host, of the second machine of each, of servers."""

    def terms(self, server: int) -> LeaseTerms:
        """The terms of the leases of this server."""
        fence_s = self.fences_s[server % len(self.fences_s)]
        return LeaseTerms(fence_s, guard_s=self.guard_s)

    @property
    def proves(self) -> bool:
        """Whether there is a lease."""
        return self.terms(0).proves

    @property
    def longest_s(self) -> float:
        """Longest time after which a server takes a host for dead, in seconds; without a lease
        that of a host that never sent a beat."""
        waits_s = (self.terms(n).wait_s for n in range(len(self.fences_s)))
        return max(waits_s) if self.proves else FIRST_BEAT_S


class PlannedClaim(NamedTuple):
    """A permit that environment code claims before it does anything else."""

    name: str
    most: int
    """Most permits that it states; 0 of a rate."""
    per_s: float | None
    part: float
    """Part of its duration after which the code gives the permit back; 1: as it ends."""
    leaks: bool
    """Whether it never gives it back."""


@dataclasses.dataclass(frozen=True, slots=True)
class PermitPlan:
    """The permits that executions claim, drawn for each from a source of its own."""

    limits: tuple[tuple[str, int], ...]
    """Names, and how many permits each has."""
    rates: tuple[tuple[str, float], ...]
    """Names, and how many are granted of each in a second."""
    share: float
    """Part of the executions that claim any."""
    source: str
    """Name of the source of luck."""

    def claims_of(self, key: str) -> list[PlannedClaim]:
        """The claims of an execution of this key.  All executions claim names in one order, so none
        waits for another one that waits for it."""
        rng = Random(f"{self.source}/{key}")
        if rng.random() >= self.share:
            return []
        made = []
        for name, most in self.limits:
            if rng.random() < 0.7:
                stated = most + rng.choice((0, 0, 0, 1))
                part = rng.choice((0.0, 0.5, 1.0, 1.0))
                made.append(PlannedClaim(name, stated, None, part, rng.random() < 0.2))
        for name, per_s in self.rates:
            if rng.random() < 0.4:
                made.append(PlannedClaim(name, 0, per_s, 1.0, False))
        return made


@dataclasses.dataclass(frozen=True, slots=True)
class SimulationPlan:
    """Everything about a run that is drawn before it starts."""

    harsh: bool
    faults: frozenset[FaultKind]
    moments: tuple[tuple[float, FaultKind], ...]
    busy_s: float
    clients: int
    workers: int
    declares_rerun: bool
    loss: float
    mangle: float
    delay_s: tuple[float, float]
    linger_s: float
    """How long worker processes may outlive their server."""
    server: ServerLimits
    client: ClientLimits
    asks: tuple[tuple[PlannedAsk, ...], ...]
    """The asks of each client."""
    message_bytes: int = PLAIN_MESSAGE_BYTES
    """The largest frame that servers and clients take."""
    keys: KeyLimits = dataclasses.field(default_factory=KeyLimits)
    sync_s: tuple[float, float] = PLAIN_SYNC_S
    """How long a sync of the disk takes, if there is a journal."""
    crash_at_write: int | None = None
    """The server is killed as it writes this group of its journal, counted from 1."""
    most_workers: int = 0
    """How many workers there may be, if their number changes: then ``workers`` is the least."""
    hosts: HostPlan | None = None
    """The hosts of other machines; None: all workers are on the server's own."""
    permits: PermitPlan | None = None
    """The permits that executions claim; None: none claims any."""

    @property
    def slots(self) -> int | WorkerRange:
        """How many workers a server is to have."""
        return WorkerRange(self.workers, self.most_workers) if self.most_workers else self.workers

    def has(self, fault: FaultKind) -> bool:
        """Whether the run has this kind of fault."""
        return fault in self.faults

    def kinds(self) -> list[FaultKind]:
        """Kinds of fault in the plan, in their order."""
        return [fault for fault in FaultKind if fault in self.faults]

    def to_data(self) -> dict[str, Any]:
        """Plan as plain data, for a file."""
        return {"plan": as_data(self)}

    def schedule(self) -> list[str]:
        """The events of the plan, in order; the usual ones are left out."""
        workers = f"{self.slots} worker" + "s" * (self.slots != 1)
        if self.hosts is not None:
            workers += f" and those of {len(self.hosts.workers)} hosts"
        clients = f"{self.clients} client" + "s" * (self.clients > 1)
        lines = [f"{clients}, {workers}" + "; the environment declares rerun" * self.declares_rerun]
        lines += _all_along(self)
        timed: list[tuple[float, str]] = [(at_s, fault.value) for at_s, fault in self.moments]
        timed += [
            (ask.at_s, _in_words(f"c{client}", ask))
            for client, asks in enumerate(self.asks)
            for ask in asks
        ]
        return lines + timetable(timed)

    def change(
        self, *more: FaultKind, less: Collection[FaultKind] = (),
        server: Mapping[str, Any] | None = None, **fields: Any,
    ) -> SimulationPlan:  # fmt: skip
        """Copy of the plan with more kinds of fault or less, other limits of the server, and other
        values of fields."""
        faults = self.faults.difference(less).union(more)
        limits = dataclasses.replace(self.server, **(server or {}))
        return dataclasses.replace(self, faults=faults, server=limits, **fields)

    def without(self, fault: FaultKind) -> SimulationPlan:
        """The same without this kind of fault, and without what it has brought along."""
        moments = tuple(moment for moment in self.moments if moment[1] is not fault)
        fields, limits = FIELDS_WITHOUT.get(fault, {}), LIMITS_WITHOUT.get(fault)
        plan = self.change(less=[fault], moments=moments, server=limits, **fields)
        match fault:
            case FaultKind.KEYS:
                plan = plan.change(asks=_asks(plan, lambda ask: ask if ask.use is None else None))
                return plan.without(FaultKind.JOURNAL) if plan.has(FaultKind.JOURNAL) else plan
            case FaultKind.JOURNAL:
                return plan.change(less=kinds_of("journal"))
            case FaultKind.GRACE:
                return plan.change(asks=_asks(plan, _without_grace))
            case FaultKind.HOSTS:
                moments = tuple(each for each in plan.moments if each[1].of != "host")
                workers, less = max(1, plan.workers), kinds_of("host")
                return plan.change(less=less, workers=workers, moments=moments)
            case FaultKind.NO_LEASE if plan.hosts is not None:
                rates = (1.0,) * len(plan.hosts.rates)
                hosts = dataclasses.replace(plan.hosts, fences_s=FENCES_S[-1:], rates=rates)
                return plan.change(hosts=hosts)
        return plan


FIELDS_WITHOUT: dict[FaultKind, dict[str, Any]] = {
    FaultKind.LOSE: {"loss": 0.0},
    FaultKind.MANGLE: {"mangle": 0.0},
    FaultKind.HUGE: {"message_bytes": PLAIN_MESSAGE_BYTES},
    FaultKind.JOURNAL: {"sync_s": PLAIN_SYNC_S, "crash_at_write": None},
    FaultKind.ELASTIC: {"most_workers": 0},
    FaultKind.PERMITS: {"permits": None},
    FaultKind.HOSTS: {"hosts": None},
}
"""Fields of a plan without a kind of fault."""

LIMITS_WITHOUT: dict[FaultKind, dict[str, Any]] = {
    FaultKind.TINY_BOUNDS: PLAIN_BOUNDS,
    FaultKind.SHORT_LEASE: {"lease_s": PLAIN_LEASE_S},
    FaultKind.PAUSES: {"pause_after_errors": None},
    FaultKind.SPREAD: {"spread_s": PLAIN_SPREAD_S},
}
"""Limits of the server of such a plan."""


def _asks(
    plan: SimulationPlan, change: Callable[[PlannedAsk], PlannedAsk | None]
) -> tuple[tuple[PlannedAsk, ...], ...]:
    """The asks of each client, changed; those that become None are left out."""
    changed = ([*map(change, asks)] for asks in plan.asks)
    return tuple(tuple(ask for ask in asks if ask is not None) for asks in changed)


def _without_grace(ask: PlannedAsk) -> PlannedAsk:
    return dataclasses.replace(ask, execution_s=None, grace_s=None)


def draw(rng: Random, *, harsh: bool) -> SimulationPlan:
    """The plan of a seed; ``rng`` is read in a fixed order.

    The least has 2 clients, 2 workers, 50 requests and :data:`LEAST_MOMENTS` faults.
    """
    rate = rng.choice((0.15, 0.3, 0.5))
    drawn = frozenset(
        fault
        for fault in FaultKind
        if fault.of not in ("journal", "host", "apart")
        if (harsh if fault.of == "harsh" else rng.random() < rate)
    )
    busy_s = rng.uniform(4.0, 9.0)
    moments = _moments(rng, drawn, busy_s)
    faults = drawn | {fault for _, fault in moments}
    clients, workers = rng.choice((2, 2, 3)), rng.choice((2, 2, 3))
    calls = rng.choice((50, 50, 60, 80))
    behaviours = _behaviours(rng, faults)
    huge = FaultKind.HUGE in faults
    asks = tuple(
        tuple(
            _ask(rng, f"c{client}:{n}", busy_s, behaviours, huge=huge)
            for n in range((calls + client) // clients)
        )
        for client in range(clients)
    )
    fast = rng.random() < 0.7
    plan = SimulationPlan(
        harsh=harsh,
        faults=faults,
        moments=tuple(sorted(moments, key=lambda moment: moment[0])),
        busy_s=busy_s,
        clients=clients,
        workers=workers,
        declares_rerun=rng.random() < 0.5,
        loss=rng.choice((0.01, 0.05, 0.2)) if FaultKind.LOSE in faults else 0.0,
        mangle=rng.choice((0.02, 0.1, 0.3)) if FaultKind.MANGLE in faults else 0.0,
        delay_s=(0.0005, 0.004) if fast else (0.001, 0.06),
        linger_s=rng.choice((0.05, 0.5, 3.0)),
        server=_server_limits(rng, faults),
        client=ClientLimits(
            start_s=20.0,
            recovery_s=20.0,
            probe_s=3.0,
            cancel_answer_s=2.0,
            finish_flush_s=rng.choice((0.005, 0.05)),
        ),
        asks=asks,
        message_bytes=SMALL_MESSAGE_BYTES if huge else PLAIN_MESSAGE_BYTES,
    )
    # Results have some 30 bytes: none is announced, or only errors and huge ones, or all.
    announce_bytes = rng.choice((64 * KIB, 64 * KIB, 40, 10, 10))
    more = {"kept_bytes": 100} if FaultKind.TINY_BOUNDS in faults and announce_bytes < 40 else {}
    return plan.change(server={"announce_bytes": announce_bytes, **more})


def _moments(
    rng: Random, faults: frozenset[FaultKind], busy_s: float
) -> list[tuple[float, FaultKind]]:
    """When which fault strikes: as often as its kind does, and more if that is too little."""
    kinds = [fault for fault in AT_MOMENTS if fault in faults]  # in a fixed order
    struck = [fault for fault in kinds for _ in range(rng.randint(*fault.times))]
    often = [fault for fault in kinds if fault.times[1] > 1]
    often = often or [rng.choice([fault for fault in AT_MOMENTS if fault.times[1] > 1])]
    while len(struck) < LEAST_MOMENTS:
        struck.append(rng.choice(often))
    return [(rng.uniform(0.3, busy_s), fault) for fault in struck]


def _server_limits(rng: Random, faults: frozenset[FaultKind]) -> ServerLimits:
    bounds: dict[str, int] = dict(PLAIN_BOUNDS)
    if FaultKind.TINY_BOUNDS in faults:
        small = rng.randint(2, 4)
        tiny = {
            "kept_outcomes": small, "kept_bytes": rng.choice((60, 600)), "window": small,
            "queue": small + 1, "queue_bytes": 400,
        }  # fmt: skip
        # Not always all: behind the tightest bound the others never show.
        bounds |= {name: value for name, value in tiny.items() if rng.random() < 0.6} or tiny
    return ServerLimits(
        **bounds,
        lease_s=SHORT_LEASE_S if FaultKind.SHORT_LEASE in faults else PLAIN_LEASE_S,
        sessions=rng.choice((8, 10_000)),
        connection_sessions=4,
        worker_held_bytes=rng.choice((1, 60, 1 << 30)),
        worker_capacity=rng.choice((1, 3, 8)),
        retry_delay_s=0.2,
        tick_s=0.2,
        start_s=2.0,
        heartbeat_s=0.5,
        silence_report_s=1.0,
        silence_kill_s=2.0,
        blocked_report_s=0.5,
        cancel_grace_s=0.8,
        cancel_kill_s=2.5,
        spread_s=PLAIN_SPREAD_S,
        restart_pause_s=0.1,
        restart_pause_max_s=0.5,
        drain_s=1.0,
        stop_s=0.7,
        reap_s=2.0,
        recycle_executions=rng.choice((None, None, 7)),
    )


def _behaviours(rng: Random, faults: frozenset[FaultKind]) -> list[str]:
    """The behaviours of environment code in this run, by weight."""
    chosen = ["return"] * 8 + ["raise", "slow"]
    odd = {
        FaultKind.BLOCK_LOOP: "block",
        FaultKind.IGNORE_CANCEL: "ignore",
        FaultKind.HANG: "hang",
        FaultKind.POISON: rng.choice(("kill", "kill-sometimes")),
        FaultKind.KILL_AFTER_OUTCOME: "last-words",
        FaultKind.HUGE: "huge",
    }
    for fault, name in odd.items():
        if fault in faults:
            chosen += [name] * rng.randint(1, 2)
    return chosen


_LONG_S = {"slow": 10.0, "ignore": 12.0, "block": 6.0}
"""How many times longer these take."""


def _ask(rng: Random, key: str, busy_s: float, behaviours: list[str], *, huge: bool) -> PlannedAsk:
    behaviour = rng.choice(behaviours)
    duration_s = rng.uniform(0.01, 0.4) * _LONG_S.get(behaviour, 1.0)
    sizes = (0, 0, 100, 300, 1500, SMALL_MESSAGE_BYTES) if huge else (0, 0, 100, 300)
    padding = b"." * rng.choice(sizes)
    body = body_of(key, behaviour, duration_s) + padding
    return PlannedAsk(
        key=key,
        at_s=rng.uniform(0.0, busy_s),
        behaviour=behaviour,
        duration_s=duration_s,
        rerun=rng.choice((None, None, True, False)),
        max_executions=rng.randint(1, 4),
        limit_s=rng.uniform(0.1, 6.0) if rng.random() < (0.2, 1.0)[behaviour == "hang"] else None,
        cancel_after_s=rng.uniform(0.0, 1.5) if rng.random() < 0.2 else None,
        body=body,
    )


def body_of(key: str, behaviour: str, duration_s: float) -> bytes:
    """The least body of a call: what its environment code reads."""
    return f"{key}|{behaviour}|{duration_s:.4f}|".encode()


# -- calls that name keys ---------------------------------------------------------------
#
# Keys are few and near in time, so that callers meet: some ask the same, some another thing
# under the same key, some only attach, and some cancel or forget what others wait for.  Where
# clients are stopped, half of the runs have work, too, that goes on for seconds after it was
# cancelled by key, and a client that is away for longer than its lease while it waits for that.

ACTS = (
    *[KeyAct.ASK] * 12, *[KeyAct.ATTACH] * 2, KeyAct.CANCEL, KeyAct.FORGET,
)  # fmt: skip

LONG = 0.3
"""How much of the work lasts for so long that callers come and go meanwhile."""

STAYS_S = 9.0
"""How long at most what was cancelled goes on where somebody is away meanwhile."""

SPANS = 4
"""The time of a run has so many spans, with keys of their own."""


def _with_keys(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """The same with further calls, which name keys; ``rng`` is read in a fixed order."""
    plain = [ask for asks in plan.asks for ask in asks]
    words = rng.choice((1, 2, 4))
    inputs = {
        (namespace, f"k{span}{word}", variant): _input(
            rng, rng.choice(plain), f"{namespace}.k{span}{word}/{variant}"
        )
        for namespace in ("a", "b")
        for span in range(SPANS)
        for word in range(words)
        for variant in ("x", "y")
    }
    asks = tuple(
        asks
        + tuple(
            _keyed_ask(rng, f"c{client}:key{n}", plan.busy_s, words, inputs)
            for n in range(rng.choice((10, 20)))
        )
        for client, asks in enumerate(plan.asks)
    )
    commands = [ask for mine in asks for ask in mine if ask.use is not None and ask.use.tag]
    asks = tuple(
        mine + _copies(rng, f"c{client}:copy", plan.busy_s, commands)
        for client, mine in enumerate(asks)
    )
    keyed = plan.change(
        FaultKind.KEYS,
        asks=asks,
        keys=_limits(rng, tiny=plan.has(FaultKind.TINY_BOUNDS)),
        server={"lease_s": min(plan.server.lease_s, rng.choice((2.5, PLAIN_LEASE_S)))},
    )
    if plan.has(FaultKind.STOP_CLIENT) and rng.random() < 0.5:
        return _with_work_that_stays(keyed, rng)
    return keyed


def _with_work_that_stays(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """Every worker is given work that ignores its cancel.  One of these is cancelled by key and
    asked for again, so that the next generation is held; another key waits for a worker.
    Then clients are stopped, with luck the one that waits, beyond lease and orphan deadline;
    faults that would end all this sooner strike later.
    """
    cancel_s = rng.uniform(1.3, 2.0)
    like = rng.choice([ask for asks in plan.asks for ask in asks if ask.use is None])

    def ask(at_s: float, name: str, word: str, act: KeyAct = KeyAct.ASK) -> PlannedAsk:
        body = body_of(f"a.{word}/x", "ignore", STAYS_S - 2.0) if act is KeyAct.ASK else b""
        return dataclasses.replace(
            like, key=name, at_s=at_s, behaviour="ignore", duration_s=STAYS_S - 2.0,
            limit_s=None, cancel_after_s=None, body=body,
            use=KeyUse(act, "a", word, None if act is KeyAct.ASK else name.encode()),
        )  # fmt: skip

    first = tuple(ask(0.01, f"c0:stays{n}", f"stays{n}") for n in range(plan.workers))
    other = (
        ask(cancel_s, "c1:stays-cancel", "stays0", KeyAct.CANCEL),
        ask(cancel_s + 0.1, "c1:stays0", "stays0"),
        ask(cancel_s + 0.1, "c1:waits", "waits"),
    )
    stops = sorted(cancel_s + rng.uniform(0.2, 0.5) for _ in range(2))
    return plan.change(
        asks=(plan.asks[0] + first, plan.asks[1] + other, *plan.asks[2:]),
        moments=(
            *((at_s, FaultKind.STOP_CLIENT) for at_s in stops),
            *((at_s + STAYS_S, fault) for at_s, fault in plan.moments),
        ),
        busy_s=plan.busy_s + STAYS_S,
        server={
            "lease_s": 2.5, "worker_capacity": 1,
            "cancel_grace_s": STAYS_S, "cancel_kill_s": STAYS_S,
        },
        keys=dataclasses.replace(plan.keys, orphan_s=0.5),
    )  # fmt: skip


def _input(rng: Random, like: PlannedAsk, label: str) -> PlannedAsk:
    """One input under a key.  Its consent is part of it."""
    behaviour, duration_s = like.behaviour, like.duration_s
    if behaviour == "return" and rng.random() < LONG:
        duration_s = rng.uniform(1.0, 7.0)
    padding = like.body[len(like.body.rstrip(b".")) :]
    body = body_of(label, behaviour, duration_s) + padding
    return dataclasses.replace(like, duration_s=duration_s, body=body)


def _keyed_ask(
    rng: Random, name: str, busy_s: float, words: int,
    inputs: dict[tuple[str, str, str], PlannedAsk],
) -> PlannedAsk:  # fmt: skip
    at_s = rng.uniform(0.0, busy_s)
    span = min(int(at_s / busy_s * SPANS), SPANS - 1)
    span = max(0, span - (rng.random() < 0.2))  # some come back to what is over
    namespace, word = rng.choice("aaab"), f"k{span}{rng.randrange(words)}"
    act = rng.choice(ACTS)
    tag: Tag = rng.randrange(8) if rng.random() < 0.3 else name.encode()
    like = inputs[namespace, word, rng.choice("xxxxxxxy")]
    hangs = like.behaviour == "hang"
    return dataclasses.replace(
        like,
        key=name,
        at_s=at_s,
        max_executions=rng.randint(1, 4),
        limit_s=rng.uniform(0.1, 6.0) if hangs or rng.random() < 0.2 else None,
        cancel_after_s=rng.uniform(0.0, 1.5) if rng.random() < 0.25 else None,
        body=like.body if act is KeyAct.ASK else b"",
        use=KeyUse(act, namespace, word, tag if act in (KeyAct.CANCEL, KeyAct.FORGET) else None),
    )


def _copies(
    rng: Random, name: str, busy_s: float, commands: list[PlannedAsk]
) -> tuple[PlannedAsk, ...]:
    """Commands that come again, from whomever, when others may have asked since."""
    firsts = [rng.choice(commands) for _ in range(3)] if commands else []
    return tuple(
        dataclasses.replace(first, key=f"{name}{n}", at_s=rng.uniform(first.at_s, busy_s))
        for n, first in enumerate(firsts)
    )


def _limits(rng: Random, *, tiny: bool) -> KeyLimits:
    retention_s, orphan_s = rng.choice((0.5, 2.0, 3600.0)), rng.choice((0.5, 2.0, 8.0))
    limits = KeyLimits(
        command_s=rng.choice((1.0, 600.0)), orphan_s=orphan_s, retention_s=retention_s
    )
    if not tiny:
        return limits
    # At a bound new keys wait for others to be forgotten: that must come within the run.
    return KeyLimits(
        command_s=1.0,
        orphan_s=orphan_s,
        retention_s=min(retention_s, 2.0),
        generations=rng.choice((3, 65_536)),
        retained_bytes=rng.choice((100, 600, 1 << 20)),
        waiters=rng.choice((2, 1024)),
        commands=rng.choice((1, 16_384)),
    )


# -- what is drawn apart ---------------------------------------------------------------

LATE_SYNC_S = (0.01, 0.15)


def _with_journal(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """Plan with a journal, and perhaps a bad disk; ``rng`` is read in a fixed order."""
    drawn = [
        fault for fault in (FaultKind.CRASH_AT_WRITE, FaultKind.SLOW_DISK) if rng.random() < 0.7
    ]
    sync_s = rng.choice((PLAIN_SYNC_S, LATE_SYNC_S))
    if plan.harsh and rng.random() < 0.7:
        drawn.append(FaultKind.DAMAGED_READ)
    return plan.change(FaultKind.JOURNAL, *drawn, sync_s=sync_s)


def _with_range(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """Plan with a range of workers; ``rng`` is read in a fixed order."""
    least = rng.choice((1, 1, 2))
    most = least + rng.choice((1, 2, 4))
    server = {
        "worker_capacity": rng.choice((1, 1, 3)), "grow_after_s": rng.choice((0.2, 0.6)),
        "shrink_after_s": rng.choice((0.6, 1.5)),
    }  # fmt: skip
    return plan.change(FaultKind.ELASTIC, workers=least, most_workers=most, server=server)


def _with_pauses(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """Plan with pauses, and with room for several on a worker that dies; ``rng`` is read in a
    fixed order.  No simulated rollout asks a model: workers that die at work make it pause."""
    server = {
        "worker_capacity": rng.choice((3, 8)), "pause_after_errors": rng.choice((1, 1, 2)),
        "pause_s": rng.choice((0.3, 0.8)),
    }  # fmt: skip
    return plan.change(FaultKind.PAUSES, server=server)


def _with_spread(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """Plan in which first dispatches are spread for a drawn time, over workers with room for
    several; ``rng`` is read in a fixed order."""
    server = {"worker_capacity": rng.choice((3, 8)), "spread_s": rng.choice((0.3, 1.0, 5.0))}
    return plan.change(FaultKind.SPREAD, server=server)


def _with_junk(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """Plan in which some workers send malformed messages."""
    return plan.change(FaultKind.JUNK)


# -- hosts --------------------------------------------------------------------------------

FENCES_S = (1.0, 2.0, 4.0)
GUARD_S = 0.5

HOST_SILENCE_S = 18.0
"""A worker that says nothing for so long while its host is heard is killed.  None is silent for
long; but what repairs a loss between a host and its router takes some beats."""

HOST_WAIT_S = 300.0
"""How long a client waits for a server: longer than for leases to end, one after the other."""


def _with_hosts(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """The same with hosts, and none or few workers of the server's own; ``rng`` is read in a
    fixed order.  One in eight has no lease: then nothing may rest on a clock, and no host is
    started on two machines, of which one would be kept out for good."""
    plan = plan.without(FaultKind.ELASTIC) if plan.has(FaultKind.ELASTIC) else plan
    count = rng.choice((2, 2, 3))
    proves = rng.random() >= 0.125
    fences_s = tuple(rng.choice(FENCES_S) for _ in range(6)) if proves else (NO_LEASE_S,)
    slow, right, fast = (1 - DRIFT, 1.0, 1 + DRIFT) if proves else (0.5, 1.0, 2.0)
    rates = [rng.choice((slow, right, fast)) for _ in range(2 * count + 1)]
    if rng.random() < 0.4:  # the worst: leases last longest there, and are shortest here
        rates = [slow] * (2 * count) + [fast]
    if not proves:  # the silence of a worker, and of its host, are told by one clock of a server
        rates[-1] = right
    hosts = HostPlan(
        tuple(rng.choice((1, 1, 2, 3)) for _ in range(count)),
        rng.random() < 0.25, fences_s, GUARD_S, GUARD_S,
        tuple(rates),
    )  # fmt: skip
    fence_s = max(fences_s) if proves else max(FENCES_S)
    busy_s = plan.busy_s + rng.uniform(1.0, 3.0) * fence_s
    rate = rng.choice((0.2, 0.4, 0.6))
    struck = [
        fault
        for fault in FaultKind
        if fault.of == "host" and fault.times[1]
        if rng.random() < rate and (proves or fault is not FaultKind.COPY_HOST)
        for _ in range(rng.randint(*fault.times))
    ]
    if rng.random() < 0.4:
        struck += [FaultKind.KILL_SERVER] * rng.randint(1, 2)
    moments = [(rng.uniform(1.0, busy_s), fault) for fault in struck]
    for at_s, _ in list(moments):  # harm on top of harm: there the rules meet
        if rng.random() < 0.4:
            next_s = min(at_s + rng.random() * 2 * fence_s, busy_s)
            moments.append((next_s, rng.choice(ON_TOP)))
    stretched = busy_s / plan.busy_s
    asks = tuple(
        tuple(
            _longer(ask, rng, fence_s, ask.at_s * stretched)
            for number, ask in enumerate(asks)
            if number % 2 == 0 or ask.use is not None  # half of them: beats cost time, too
        )
        for asks in plan.asks
    )
    moments += [(at_s * stretched, fault) for at_s, fault in plan.moments]
    mangle = rng.choice((0.02, 0.1, 0.3)) if plan.harsh and rng.random() < 0.6 else plan.mangle
    faults = [FaultKind.HOSTS, *(fault for _, fault in moments)]
    faults += [] if proves else [FaultKind.NO_LEASE]
    return plan.change(
        *faults,
        *([FaultKind.MANGLE] if mangle else []),
        moments=tuple(sorted(moments, key=lambda moment: moment[0])),
        busy_s=busy_s,
        workers=rng.choice((0, 0, 1)),
        mangle=mangle,
        asks=asks,
        server={"silence_kill_s": HOST_SILENCE_S},
        client=dataclasses.replace(plan.client, start_s=HOST_WAIT_S, recovery_s=HOST_WAIT_S),
        hosts=hosts,
    )


def _with_permits(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """Plan with permits that executions claim; ``rng`` is read in a fixed order.  Where routers
    take over what runs on hosts, most plans have few permits, which nearly all want, and a router
    that is killed while they are held."""
    names = ("limit:a", "limit:b")[: rng.choice((1, 2))]
    limits = tuple((name, rng.choice((1, 1, 2, 3))) for name in names)
    rates = (("rate:c", rng.choice((2.0, 5.0, 20.0))),) * rng.choice((0, 1))
    source = f"permits {rng.getrandbits(32)}"
    permits = PermitPlan(limits, rates, rng.choice((0.3, 0.6, 1.0)), source)
    plan = plan.change(FaultKind.PERMITS, permits=permits)
    if plan.hosts is None or not plan.has(FaultKind.JOURNAL) or rng.random() < 0.3:
        return plan
    kill_s = rng.uniform(3.0, 5.0)
    later = ((at_s, fault) for at_s, fault in plan.moments if at_s > kill_s + 1.0)
    return plan.change(
        FaultKind.KILL_SERVER,
        permits=PermitPlan((("limit:a", rng.choice((1, 2))),), (), 0.9, source),
        asks=tuple(
            asks + tuple(_lasting(rng, f"c{client}:lasts{n}", plan, kill_s) for n in range(8))
            for client, asks in enumerate(plan.asks)
        ),
        moments=((kill_s, FaultKind.KILL_SERVER), *later),
        server={"worker_capacity": 3},
        hosts=dataclasses.replace(plan.hosts, fences_s=plan.hosts.fences_s[-1:])
        if not plan.hosts.proves else dataclasses.replace(plan.hosts, fences_s=FENCES_S[-1:]),
    )  # fmt: skip


def _lasting(rng: Random, key: str, plan: SimulationPlan, kill_s: float) -> PlannedAsk:
    """A call whose work begins before a router is killed, and outlives it."""
    word = key.replace(":", "-")
    like = next(ask for asks in plan.asks for ask in asks if ask.use is not None)
    duration_s = rng.uniform(2.0, 6.0)
    return dataclasses.replace(
        like, key=key, at_s=kill_s - rng.uniform(0.1, 2.0),
        behaviour="return", duration_s=duration_s, limit_s=None, cancel_after_s=None,
        body=body_of(f"a.{word}/x", "return", duration_s), use=KeyUse(KeyAct.ASK, "a", word),
    )  # fmt: skip


ON_TOP = (
    FaultKind.CUT_HOST, FaultKind.CUT_HOST_UP, FaultKind.RECONNECT_HOST, FaultKind.KILL_SERVER,
)  # fmt: skip


def _longer(ask: PlannedAsk, rng: Random, fence_s: float, at_s: float) -> PlannedAsk:
    """A call at another time, one in four of work that lives through a lease."""
    longer = rng.random() < 0.25 and ask.use is None and ask.behaviour == "return"
    if not longer:
        return dataclasses.replace(ask, at_s=at_s)
    duration_s = rng.uniform(0.3, 2.5) * fence_s
    padding = ask.body[len(ask.body.rstrip(b".")) :]
    body = body_of(ask.key, ask.behaviour, duration_s) + padding
    return dataclasses.replace(ask, at_s=at_s, duration_s=duration_s, body=body)


# -- graces -------------------------------------------------------------------------------

PART_WITH_GRACE = 0.6
"""How many of the calls have one."""

SOFT_S = (0.05, 0.2, 1.0)
"""Limits without their grace.  Most rollouts take less than the half of a second."""


def _with_graces(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """The same with calls that have a grace, at a deadline, at the limit of an execution, or at
    both; ``rng`` is read in a fixed order.  All that ask for the same input under a key say the
    same."""
    of_input: dict[bytes, PlannedAsk] = {}

    def with_grace(ask: PlannedAsk) -> PlannedAsk:
        if ask.use is not None and ask.use.act is not KeyAct.ASK:
            return ask
        named = ask.body.partition(b"|")[0]
        if named not in of_input:
            of_input[named] = drawn(ask)
        like = of_input[named]
        if ask.use is None:
            return like
        return dataclasses.replace(ask, execution_s=like.execution_s, grace_s=like.grace_s)

    def drawn(ask: PlannedAsk) -> PlannedAsk:
        if rng.random() >= PART_WITH_GRACE:
            return ask
        grace_s, soft_s = rng.uniform(0.1, 1.5), rng.choice(SOFT_S) * rng.uniform(0.5, 1.0)
        at_execution, at_deadline = rng.choice(((True, False), (False, True), (True, True)))
        limit_s = ask.limit_s
        if at_deadline and ask.use is None:
            limit_s = (rng.uniform(0.1, 3.0) if limit_s is None else limit_s) + grace_s
        at_execution = at_execution or ask.use is not None
        return dataclasses.replace(
            ask, limit_s=limit_s, grace_s=grace_s,
            execution_s=soft_s + grace_s if at_execution else None,
        )  # fmt: skip

    asks = _asks(plan, with_grace)
    return plan.change(FaultKind.GRACE, asks=asks)


# -- saves --------------------------------------------------------------------------------

SAVE_BYTES = 60
"""The largest state where that is a tight bound: a few of the simulated ones are larger."""


def _with_saves(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """The same with saves; ``rng`` is read in a fixed order.  Half of those with keys have a
    journal."""
    if rng.random() < 0.6 and not plan.has(FaultKind.KEYS):
        plan = _with_keys(plan, rng)
    if rng.random() < 0.5 and plan.has(FaultKind.KEYS) and not plan.has(FaultKind.JOURNAL):
        plan = _with_journal(plan, rng)
    kills = [(rng.uniform(0.5, plan.busy_s), FaultKind.KILL_WORKER) for _ in range(4)]
    if rng.random() < 0.5:
        kills.append((rng.uniform(0.5, plan.busy_s), FaultKind.KILL_SERVER))
    most_bytes = rng.choice((SAVE_BYTES, plan.server.save_bytes))
    asks = _asks(plan, lambda ask: _saving(ask, rng))
    return plan.change(
        FaultKind.SAVES, *(fault for _, fault in kills), server={"save_bytes": most_bytes},
        asks=asks, moments=tuple(sorted((*plan.moments, *kills), key=lambda each: each[0])),
    )  # fmt: skip


def _saving(ask: PlannedAsk, rng: Random) -> PlannedAsk:
    """A call that mostly consents, and whose work lasts for some saves."""
    if ask.use is not None:  # others ask the same, byte for byte
        return dataclasses.replace(ask, max_executions=4)
    duration_s = max(ask.duration_s, rng.uniform(0.2, 2.0))
    padding = ask.body[len(ask.body.rstrip(b".")) :]
    return dataclasses.replace(
        ask, duration_s=duration_s, rerun=rng.choice((True, True, True, ask.rerun)),
        max_executions=rng.randint(2, 4),
        body=body_of(ask.key, ask.behaviour, duration_s) + padding,
    )  # fmt: skip


def _with_resources(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """The same with resources, some at tiny bounds; ``rng`` is read in a fixed order.  Most get a
    journal, and most lose a server, with their workers or without."""
    if rng.random() < 0.6:
        plan = plan if plan.has(FaultKind.KEYS) else _with_keys(plan, rng)
        plan = plan if plan.has(FaultKind.JOURNAL) else _with_journal(plan, rng)
    kills = [(rng.uniform(0.5, plan.busy_s), FaultKind.KILL_WORKER) for _ in range(3)]
    if rng.random() < 0.6:
        kills.append((rng.uniform(0.5, plan.busy_s), FaultKind.KILL_SERVER))
    bounds = {}
    if rng.random() < 0.3:
        bounds = {"resources": 6, "account_resources": 4, "execution_resources": 1}
    return plan.change(
        FaultKind.RESOURCES, *(fault for _, fault in kills), server={"destroy_s": 1.0, **bounds},
        moments=tuple(sorted((*plan.moments, *kills), key=lambda each: each[0])),
    )  # fmt: skip


def have_keys(seed: int) -> bool:
    """Whether calls of this seed name keys."""
    return seed % 7 in (2, 5)


Change: TypeAlias = Callable[[SimulationPlan, Random], SimulationPlan]
"""Function that changes a plan by a source of luck, which it reads in a fixed order."""

DRAWN_APART: dict[str, tuple[Callable[[int], bool], Change]] = {
    "keys": (have_keys, _with_keys),
    "journal": (lambda seed: have_keys(seed) and seed // 7 % 4 == 3, _with_journal),
    "range": (lambda seed: seed % 22 in (13, 16, 20), _with_range),
    "pauses": (lambda seed: seed % 29 in (16, 18, 26), _with_pauses),
    "spread": (lambda seed: seed % 19 in (3, 4, 9, 14, 17), _with_spread),
    "junk": (lambda seed: seed % 23 in (5, 11, 16, 21), _with_junk),
}
"""Which seeds have it, and how it changes a plan, by the name of its source of luck."""


def brings(what: str, seed: int) -> bool:
    """Whether a seed has what is drawn apart under this name."""
    return DRAWN_APART[what][0](seed)


CONFIGURATIONS: dict[str, tuple[FaultKind, Change]] = {
    "graces": (FaultKind.GRACE, _with_graces),
    "hosts": (FaultKind.HOSTS, _with_hosts),
    "saves": (FaultKind.SAVES, _with_saves),
    "resources": (FaultKind.RESOURCES, _with_resources),
    "permits": (FaultKind.PERMITS, _with_permits),
}
"""What plans have where it is asked for: the kind that says so, and how it changes a plan, by the
name of its source of luck; in the order in which they change one."""


def plan_of(seed: int, *, harsh: bool = False, **with_: bool) -> SimulationPlan:
    """The plan of a run of this seed, without running it; ``with_`` says by name which of the
    :data:`CONFIGURATIONS` it has."""
    assert with_.keys() <= CONFIGURATIONS.keys(), with_
    number = seed * 2 + harsh
    plan = draw(Random(number), harsh=harsh)
    changes = {name: change for name, (have, change) in DRAWN_APART.items() if have(seed)}
    changes |= {name: change for name, (_, change) in CONFIGURATIONS.items() if with_.get(name)}
    for name, change in changes.items():
        plan = change(plan, Random(f"{number}/{name}"))
    return plan


def is_harsh(seed: int, *, always: bool = False) -> bool:
    """Whether a seed is run harsh: even ones are run on links as they are."""
    return always or seed % 2 == 1


def of_keys_only(plan: SimulationPlan) -> SimulationPlan:
    """The same with a journal and without the calls that name no key, which do not touch
    it; nor is its server killed by luck, so that who runs this says when."""
    asks = _asks(plan, lambda ask: ask if ask.use is not None else None)
    return plan.change(FaultKind.JOURNAL, less=[FaultKind.CRASH_AT_WRITE], asks=asks)


# -- a plan in words and as data ------------------------------------------------------


def _all_along(plan: SimulationPlan) -> list[str]:
    """Faults without a moment, and bounds that matter."""
    moments = {fault for _, fault in plan.moments}
    rates = {FaultKind.LOSE: plan.loss, FaultKind.MANGLE: plan.mangle}
    faults = [
        fault.value + (f" ({rates[fault]:.0%})" if fault in rates else "")
        for fault in FaultKind
        if fault in plan.faults - moments
        and fault not in (FaultKind.TINY_BOUNDS, FaultKind.SHORT_LEASE)
    ]
    plain = {**PLAIN_BOUNDS, "lease_s": PLAIN_LEASE_S, "recycle_executions": None}
    limits = [
        f"{field.name}={getattr(plan.server, field.name)}"
        for field in dataclasses.fields(ServerLimits)
        if field.name in plain and getattr(plan.server, field.name) != plain[field.name]
    ]
    return listed("all along", faults) + listed("limits", limits) + _leases(plan.hosts)


def _leases(hosts: HostPlan | None) -> list[str]:
    if hosts is None:
        return []
    fences = [f"{each:g} s" for each in hosts.fences_s] if hosts.proves else ["none"]
    rates = [f"{rate:g}" for rate in hosts.rates]
    return [
        *listed("leases of each server in turn", fences),
        *listed("rates of clocks, the servers' last", rates),
    ]


def _in_words(client: str, ask: PlannedAsk) -> str:
    consent = {None: "rerun as declared", True: f"rerun, {ask.max_executions} at most"}
    if ask.use is not None and ask.use.act is not KeyAct.ASK:
        tag = f" (generation {ask.use.tag})" if isinstance(ask.use.tag, int) else ""
        words = [f"{client} asks {ask.key}: {ask.use.act.name.lower()} of {ask.use.label}{tag}"]
        return ", ".join(words + _ends(ask))
    named = "" if ask.use is None else f" ({ask.body.partition(b'|')[0].decode()})"
    does = f"{_BEHAVIOURS[ask.behaviour]} after {ask.duration_s:.1f} s"
    words = [
        f"{client} asks {ask.key}{named}: {does}",
        consent.get(ask.rerun, "no rerun"),
    ]
    return ", ".join(words + _ends(ask))


def _ends(ask: PlannedAsk) -> list[str]:
    """How its caller ends it."""
    words = []
    if ask.limit_s is not None:
        words.append(f"waits {ask.limit_s:.1f} s")
    if ask.execution_s is not None:
        words.append(f"runs {ask.execution_s:.1f} s at most")
    if ask.grace_s is not None:
        words.append(f"with {ask.grace_s:.1f} s of grace")
    if ask.cancel_after_s is not None:
        words.append(f"cancelled after {ask.cancel_after_s:.1f} s")
    return words


_BEHAVIOURS = {
    "return": "returns", "raise": "raises", "slow": "returns", "block": "blocks the loop, returns",
    "ignore": "ignores its cancel, returns", "hang": "never returns, not even",
    "kill": "kills its worker", "kill-sometimes": "may kill its worker",
    "last-words": "returns and its worker is killed", "huge": "returns too much",
}  # fmt: skip
"""The behaviours of environment code, by the words for them in a body."""
