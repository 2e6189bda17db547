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

A plan is plain data (:mod:`.plans` writes it down), so what a seed has drawn can
be made smaller while it still shows the same failure.
"""

from __future__ import annotations

import dataclasses
import enum
from random import Random

from ...core.key_records import KeyAct, KeyName, Tag
from ...core.limits import ANNOUNCE_BYTES, ClientLimits, KeyLimits, ServerLimits
from ...core.worker_range import WorkerRange


class Fault(enum.Enum):
    """The kinds of fault; the values are for people."""

    LOSE = "messages lost"
    CUT_CLIENT = "client connection cut"
    CUT_LONG = "client connection cut for long"
    HALF_OPEN = "client connection half open"
    CUT_WORKER = "worker link cut"
    NEW_ROUTE = "new routing identity after each reconnect"
    MANGLE = "messages duplicated, delayed, reordered"
    KILL_WORKER = "worker killed"
    KILL_AFTER_OUTCOME = "worker killed just after it sent an outcome"
    KILL_EARLY = "worker killed before its hello"
    SLOW_START = "worker never says hello"
    SET_UP_FAILS = "environment fails to set up"
    NO_SPAWN = "worker process cannot be started"
    SLOW_DEATH = "a dead worker is reaped late"
    STOP_WORKER = "worker stopped and continued"
    BLOCK_LOOP = "environment blocks the event loop"
    IGNORE_CANCEL = "environment ignores cancellation"
    HANG = "environment hangs until it is cancelled"
    POISON = "environment kills its worker"
    KILL_SERVER = "server killed"
    RESTART_FAST = "server killed and restarted at once"
    STOP_SERVER = "server stopped and continued"
    DRAIN_SERVER = "server stopped gracefully"
    KILL_CLIENT = "client killed"
    CLOSE_CLIENT = "client closed"
    STOP_CLIENT = "client stopped and continued"
    SUSPEND = "everything stopped and continued"
    CANCEL_STORM = "all calls of a client cancelled"
    HOSTILE = "a hostile client"
    CONFUSED_WORKER = "a worker reports what it never ran"
    HUGE = "huge payloads"
    TINY_BOUNDS = "tiny bounds"
    SHORT_LEASE = "short lease"
    FLIP_RERUN = "the environment's declaration changes between lives"
    KEYS = "keys that callers share"
    JOURNAL = "keys are kept in a journal"
    CRASH_AT_WRITE = "server killed as it writes its journal"
    SLOW_DISK = "a sync of the disk takes long"
    DAMAGED_READ = "an outcome on the disk cannot be read"
    ELASTIC = "a pool that grows and shrinks"
    PAUSES = "dispatching pauses after failures"
    JUNK = "a worker sends malformed messages"
    SPREAD = "workers that start are left their share"


HARSH_ONLY = frozenset({Fault.MANGLE})
"""Faults that ZMQ and TCP never cause, but the protocol should survive."""

OF_JOURNALS = frozenset({Fault.JOURNAL, Fault.CRASH_AT_WRITE, Fault.SLOW_DISK, Fault.DAMAGED_READ})
"""Those of servers with a journal."""

NOT_DRAWN = OF_JOURNALS | {
    Fault.KEYS, Fault.ELASTIC, Fault.PAUSES, Fault.JUNK, Fault.SPREAD,
}  # fmt: skip
"""The faults that a seed has or has not, whatever it draws (:mod:`.keyed_asks`, :mod:`.journals`,
:mod:`.elastic_pools`, :mod:`.pausing_servers`, :mod:`.junk`, :mod:`.spreading`)."""

TIMES: dict[Fault, tuple[int, int]] = {
    Fault.CUT_CLIENT: (1, 5),
    Fault.CUT_LONG: (1, 2),
    Fault.HALF_OPEN: (1, 3),
    Fault.CUT_WORKER: (1, 5),
    Fault.KILL_WORKER: (1, 4),
    Fault.STOP_WORKER: (1, 3),
    Fault.KILL_SERVER: (1, 2),
    Fault.RESTART_FAST: (1, 3),
    Fault.STOP_SERVER: (1, 2),
    Fault.DRAIN_SERVER: (1, 1),
    Fault.KILL_CLIENT: (1, 1),
    Fault.CLOSE_CLIENT: (1, 1),
    Fault.STOP_CLIENT: (1, 2),
    Fault.SUSPEND: (1, 2),
    Fault.CANCEL_STORM: (1, 2),
}
"""Faults that happen at moments: how often in a run, at least and at most."""

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
"""The bounds of a run without :attr:`Fault.TINY_BOUNDS`."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of a key by a call."""

    act: KeyAct
    namespace: str
    word: str
    """The key, in its namespace."""
    tag: Tag = b""
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
class Ask:
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


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run that is drawn before it starts."""

    harsh: bool
    faults: frozenset[Fault]
    moments: tuple[tuple[float, Fault], ...]
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
    asks: tuple[tuple[Ask, ...], ...]
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

    @property
    def slots(self) -> int | WorkerRange:
        """How many workers a server is to have."""
        return WorkerRange(self.workers, self.most_workers) if self.most_workers else self.workers

    def has(self, fault: Fault) -> bool:
        """Whether the run has this kind of fault."""
        return fault in self.faults

    def without(self, fault: Fault) -> Plan:
        """The same without this kind of fault, and without what it has brought along."""
        plan = dataclasses.replace(
            self,
            faults=self.faults - {fault},
            moments=tuple(moment for moment in self.moments if moment[1] is not fault),
        )
        match fault:
            case Fault.LOSE:
                return dataclasses.replace(plan, loss=0.0)
            case Fault.MANGLE:
                return dataclasses.replace(plan, mangle=0.0)
            case Fault.HUGE:
                return dataclasses.replace(plan, message_bytes=PLAIN_MESSAGE_BYTES)
            case Fault.TINY_BOUNDS:
                server = dataclasses.replace(plan.server, **PLAIN_BOUNDS)
                return dataclasses.replace(plan, server=server)
            case Fault.KEYS:
                asks = tuple(tuple(a for a in asks if a.use is None) for asks in plan.asks)
                plan = dataclasses.replace(plan, asks=asks)
                return plan.without(Fault.JOURNAL) if plan.has(Fault.JOURNAL) else plan
            case Fault.JOURNAL:
                return dataclasses.replace(
                    plan, faults=plan.faults - OF_JOURNALS, sync_s=PLAIN_SYNC_S,
                    crash_at_write=None,
                )  # fmt: skip
            case Fault.ELASTIC:
                return dataclasses.replace(plan, most_workers=0)
            case Fault.PAUSES:
                server = dataclasses.replace(plan.server, pause_after_errors=None)
                return dataclasses.replace(plan, server=server)
            case Fault.SPREAD:
                server = dataclasses.replace(plan.server, spread_s=PLAIN_SPREAD_S)
                return dataclasses.replace(plan, server=server)
            case Fault.SHORT_LEASE:
                server = dataclasses.replace(plan.server, lease_s=PLAIN_LEASE_S)
                return dataclasses.replace(plan, server=server)
        return plan


def draw(rng: Random, *, harsh: bool) -> Plan:
    """The plan of a seed; ``rng`` is read in a fixed order.

    The least has 2 clients, 2 workers, 50 requests and :data:`LEAST_MOMENTS` faults.
    """
    rate = rng.choice((0.15, 0.3, 0.5))
    drawn = frozenset(
        fault
        for fault in Fault
        if fault not in NOT_DRAWN
        if (fault is Fault.MANGLE and harsh) or (fault not in HARSH_ONLY and rng.random() < rate)
    )
    busy_s = rng.uniform(4.0, 9.0)
    moments = _moments(rng, drawn, busy_s)
    faults = drawn | {fault for _, fault in moments}
    clients, workers = rng.choice((2, 2, 3)), rng.choice((2, 2, 3))
    calls = rng.choice((50, 50, 60, 80))
    behaviours = _behaviours(rng, faults)
    huge = Fault.HUGE in faults
    asks = tuple(
        tuple(
            _ask(rng, f"c{client}:{n}", busy_s, behaviours, huge=huge)
            for n in range((calls + client) // clients)
        )
        for client in range(clients)
    )
    fast = rng.random() < 0.7
    plan = Plan(
        harsh=harsh,
        faults=faults,
        moments=tuple(sorted(moments, key=lambda moment: moment[0])),
        busy_s=busy_s,
        clients=clients,
        workers=workers,
        declares_rerun=rng.random() < 0.5,
        loss=rng.choice((0.01, 0.05, 0.2)) if Fault.LOSE in faults else 0.0,
        mangle=rng.choice((0.02, 0.1, 0.3)) if Fault.MANGLE in faults else 0.0,
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
    announce_bytes = rng.choice((ANNOUNCE_BYTES, ANNOUNCE_BYTES, 40, 10, 10))
    server = dataclasses.replace(plan.server, announce_bytes=announce_bytes)
    if Fault.TINY_BOUNDS in faults and announce_bytes < 40:
        server = dataclasses.replace(server, kept_bytes=100)
    return dataclasses.replace(plan, server=server)


def _moments(rng: Random, faults: frozenset[Fault], busy_s: float) -> list[tuple[float, Fault]]:
    """When which fault strikes: as often as its kind does, and more if that is too little."""
    kinds = [fault for fault in Fault if fault in faults and fault in TIMES]  # in a fixed order
    struck = [fault for fault in kinds for _ in range(rng.randint(*TIMES[fault]))]
    often = [fault for fault in kinds if TIMES[fault][1] > 1]
    often = often or [rng.choice([fault for fault in TIMES if TIMES[fault][1] > 1])]
    while len(struck) < LEAST_MOMENTS:
        struck.append(rng.choice(often))
    return [(rng.uniform(0.3, busy_s), fault) for fault in struck]


def _server_limits(rng: Random, faults: frozenset[Fault]) -> ServerLimits:
    bounds: dict[str, int] = dict(PLAIN_BOUNDS)
    if Fault.TINY_BOUNDS in faults:
        small = rng.randint(2, 4)
        tiny = {
            "kept_outcomes": small, "kept_bytes": rng.choice((60, 600)), "window": small,
            "queue": small + 1, "queue_bytes": 400,
        }  # fmt: skip
        # Not always all: behind the tightest bound the others never show.
        bounds |= {name: value for name, value in tiny.items() if rng.random() < 0.6} or tiny
    return ServerLimits(
        **bounds,
        lease_s=SHORT_LEASE_S if Fault.SHORT_LEASE in faults else PLAIN_LEASE_S,
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


def _behaviours(rng: Random, faults: frozenset[Fault]) -> list[str]:
    """The behaviours of environment code in this run, by weight."""
    chosen = ["return"] * 8 + ["raise", "slow"]
    odd = {
        Fault.BLOCK_LOOP: "block",
        Fault.IGNORE_CANCEL: "ignore",
        Fault.HANG: "hang",
        Fault.POISON: rng.choice(("kill", "kill-sometimes")),
        Fault.KILL_AFTER_OUTCOME: "last-words",
        Fault.HUGE: "huge",
    }
    for fault, name in odd.items():
        if fault in faults:
            chosen += [name] * rng.randint(1, 2)
    return chosen


_LONG_S = {"slow": 10.0, "ignore": 12.0, "block": 6.0}
"""How many times longer these take."""


def _ask(rng: Random, key: str, busy_s: float, behaviours: list[str], *, huge: bool) -> Ask:
    behaviour = rng.choice(behaviours)
    duration_s = rng.uniform(0.01, 0.4) * _LONG_S.get(behaviour, 1.0)
    sizes = (0, 0, 100, 300, 1500, SMALL_MESSAGE_BYTES) if huge else (0, 0, 100, 300)
    padding = b"." * rng.choice(sizes)
    body = body_of(key, behaviour, duration_s) + padding
    return Ask(
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
