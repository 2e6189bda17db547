"""Every bound and every timer, in one place, with its default and its reason.

A limit is a field of one of the frozen classes below, made by :func:`limit`, which demands a
reason, and names other processes that must know it (:class:`ToldTo`).  The tables of limits in the
documentation are drawn from these fields.  A name ends with its unit.

Each limit is checked alone where it is made.  Limits that pass can still contradict each other: a
lease that one late tick ends, a kill before the report that announces it.  :func:`check_together`
refuses those that break one of the :data:`RULES` before anything is opened.  Limits of a server
and of its clients on other machines cannot be compared here: the protocol document says how often
a client must ping for the server's lease.

All durations are on the monotonic clock of the side that holds the limit.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Mapping
from typing import Any, Self

from ..near import check_names
from .errors import ConfigError

KIB = 1024
MIB = 1024 * KIB

BATCH_BYTES = 32 * KIB
"""Most bytes of a header, and of the bodies, of a batch of more than one
(:mod:`.messages`).  Every socket takes a frame of this size, however small the limits are."""

CAPACITY = 256
"""Executions that a worker is assumed to take at once, until a worker has said its capacity."""

PERMIT_NAME_BYTES = 128
"""Most bytes of a permit's name, as an environment gives it."""

MOST_PERMITS = 2**31
"""Most permits that a limit may have."""

LEAST_PER_S, MOST_PER_S = 1 / 3600, 1e6
"""Bounds of a rate, in grants a second.  The name of a slow rate is remembered for long."""

RESOURCE_KIND_BYTES = 64
"""Most bytes of the kind of a resource, as an environment gives it."""

RESOURCE_REFERENCE_BYTES = 1024
"""Most bytes of the reference to a function that destroys a resource."""

PROTOCOL_VERSION = 2
"""Major version of the wire.  A peer with another one is refused."""


@enum.unique
class ToldTo(enum.Enum):
    """Process that a server tells some of its limits.  A host is told those of its workers, too."""

    WORKER = "worker"
    HOST = "host"


def limit(default: Any, why: str, *, told: ToldTo | None = None) -> Any:
    """A dataclass field that is a bound or a timer, with the reason for it, and the process that
    must know it beside the one that it is given to."""
    return dataclasses.field(default=default, metadata={"why": why, "told": told})


def told_limits(peer: ToldTo) -> tuple[str, ...]:
    """Names of the limits of a server that such a process is told."""
    told = {ToldTo.WORKER, peer}
    fields = dataclasses.fields(ServerLimits)
    return tuple(field.name for field in fields if field.metadata["told"] in told)


def limits_to_tell(limits: ServerLimits, peer: ToldTo) -> dict[str, Any]:
    """Record of the limits that such a process is told."""
    return {name: getattr(limits, name) for name in told_limits(peer)}


def limits_of_peer(record: Mapping[str, Any], peer: ToldTo) -> ServerLimits:
    """Limits that a server has told; a later version may tell more.  Raises ConfigError for
    values that are none."""
    return ServerLimits(**{name: record[name] for name in told_limits(peer) if name in record})


class _Checked:
    """Base of the limits' classes: refuses names that there are not, and values that are no
    positive, finite numbers."""

    __slots__ = ()

    def __new__(cls, *args: Any, **given: Any) -> Self:
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        check_names(f"{cls.__name__}()", given, known)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # mixin of dataclasses only
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            whole = isinstance(field.default, int) or field.default is None
            number = isinstance(value, int if whole else (int, float))
            most = 1.0 if field.name.endswith("_share") else sys.float_info.max
            if not number or isinstance(value, bool) or not 0 < value <= most:
                raise ConfigError(
                    f"{type(self).__name__}.{field.name} must be a positive "
                    f"{'whole ' if whole else ''}number{' up to 1' if most == 1 else ''}, "
                    f"not {value!r}"
                )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits(_Checked):
    """Bounds on what is read from a peer, before anything is believed."""

    message_bytes: int = limit(
        256 * MIB, "largest frame; a peer that sends more loses its connection"
    )
    header_bytes: int = limit(
        384 * KIB, "headers are small; a sync of a full window is the largest honest one"
    )
    depth: int = limit(64, "deepest nesting of a value; the decoder recurses")
    items: int = limit(
        20_000_000, "items of one value; one that has parts of it in several places may have no end"
    )
    keys: int = limit(
        1_000,
        "keys of a map, members of a set, whose hashes can be chosen: it takes quadratic time",
    )
    name_bytes: int = limit(64, "client names and worker ids appear in logs and titles")
    peer_queue_messages: int = limit(
        10_000, "messages waiting for one slow peer; past it a send fails and sync repairs"
    )
    peer_queue_bytes: int = limit(
        64 * MIB, "bytes waiting for one slow peer (one message may exceed it alone)"
    )
    connections: int = limit(
        10_000,
        "connections of one socket, or three quarters of the process's descriptors; past it "
        "the oldest that has sent nothing is closed, else the one that was silent for longest",
    )
    handshakes: int = limit(
        256, "connections that have not ended their handshake; past it the oldest makes room"
    )
    handshake_s: float = limit(
        10.0, "a handshake takes two round trips; a stranger may take forever"
    )
    progress_s: float = limit(
        30.0, "a message that has begun and does not go on for so long ends its connection"
    )
    arriving_bytes: int = limit(
        1024 * MIB,
        "bytes of unfinished messages in one socket; past it the connection that holds most "
        "is closed",
    )
    waiting_bytes: int = limit(
        1024 * MIB,
        "bytes waiting for all slow peers of one socket; past it the connection that has most "
        "waiting is closed",
    )
    flush_s: float = limit(
        1.0, "closing a server, worker or client waits so long for its last words to leave"
    )
    reconnect_min_s: float = limit(0.05, "first pause before reconnecting")
    reconnect_max_s: float = limit(1.0, "a restarted server is found within about a second")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits(_Checked):
    """Bounds and timers of the router, the cache and the worker pool."""

    lease_s: float = limit(
        600.0, "how long a client may be silent before its work is cancelled and forgotten"
    )
    kept_outcomes: int = limit(
        65_536, "outcomes kept for clients, those under way counted; past it dispatching pauses"
    )
    kept_bytes: int = limit(256 * MIB, "bytes of kept outcomes; past it dispatching pauses")
    announce_bytes: int = limit(
        64 * KIB,
        "a larger outcome stays with its worker until there is room for it in kept_bytes",
        told=ToldTo.WORKER,
    )
    announced_bytes: int = limit(
        16 * 1024 * MIB,
        "bytes of outcomes that wait at their workers for that room, most of them in temporary "
        "files (worker_held_bytes); past it dispatching pauses",
    )
    save_bytes: int = limit(
        16 * MIB,
        "largest state that a rollout saves; each is in memory for as long as its rollout may run "
        "again, and counts in queue_bytes",
        told=ToldTo.WORKER,
    )
    resources: int = limit(
        65_536,
        "resources that are not gone, stuck ones included; past it none is created: each costs "
        "memory, and what it stands for costs money",
    )
    account_resources: int = limit(
        16_384, "the same for one session or namespace, so that the others can create some"
    )
    execution_resources: int = limit(
        64, "the same for one execution; a rollout that leaks in a loop is told soon"
    )
    destroy_s: float = limit(
        30.0, "a try to destroy a resource takes so long at most", told=ToldTo.WORKER
    )
    destroy_tries: int = limit(
        3, "cleanings of a resource that may fail before it is stuck, and waits for a person"
    )
    worker_held_bytes: int = limit(
        64 * MIB,
        "bytes of them that one worker holds in memory; what comes then waits in a temporary file",
        told=ToldTo.WORKER,
    )
    session_share: float = limit(
        0.5, "what one session may take of what the others leave of the kept and queue bounds"
    )
    sessions: int = limit(
        10_000,
        "sessions in all; past it the one that was idle for longest makes room, and if none "
        "is idle, a hello is refused for now",
    )
    connection_sessions: int = limit(
        16, "sessions opened on one connection, so that a flood of hellos takes them from nobody"
    )
    window: int = limit(
        16_384, "unfinished requests of one session; calls past it wait at the client"
    )
    queue: int = limit(
        65_536, "requests waiting for a worker; past it new ones are refused for now"
    )
    queue_bytes: int = limit(
        1024 * MIB, "bytes of waiting requests; past it new ones are refused for now"
    )
    worker_capacity: int | None = limit(
        None,
        "executions at once on one worker; None: as its environment says, or by the kind of "
        "its code",
        told=ToldTo.WORKER,
    )
    max_executions: int = limit(
        100, "largest allowance a request may ask for; keeps a worker killer from the pool"
    )
    client_gone_s: float = limit(
        5.0, "a client silent for so long is not waited for when the server drains"
    )
    retry_delay_s: float = limit(0.5, "the delay named in a refusal for now")
    tick_s: float = limit(0.1, "granularity of deadlines, leases and suspicion")
    awake_step_s: float = limit(
        1.0, "most that one tick may add to a lease: a stopped process ages nobody"
    )
    start_s: float = limit(
        600.0, "from spawning a worker to its hello; loading an environment may be slow"
    )
    heartbeat_s: float = limit(
        0.25, "between signs of life from a worker's heartbeat thread", told=ToldTo.WORKER
    )
    beat_s: float = limit(
        1.0,
        "between a worker's beats, by which its router sees whether both know the same",
        told=ToldTo.WORKER,
    )
    silence_report_s: float = limit(5.0, "a worker without heartbeat for so long is reported")
    silence_kill_s: float = limit(
        60.0,
        "a worker without heartbeat for so long is killed: stopped, or its interpreter is held; "
        "so is one that says nothing for so long, with a loop that is on time",
    )
    blocked_report_s: float = limit(
        2.0,
        "an event loop late by so much is reported as blocked, with where; never killed",
        told=ToldTo.WORKER,
    )
    cancel_grace_s: float = limit(
        10.0, "a cancelled execution that still runs then stops new work on its worker"
    )
    cancel_kill_s: float = limit(
        60.0, "a worker with an execution that ignores its cancel so long is killed"
    )
    reap_settle_s: float = limit(
        0.1,
        "from a worker's death until its work is lost; by then others that died with it are known",
    )
    restart_pause_s: float = limit(0.2, "first pause before a replacement after a quick death")
    restart_pause_max_s: float = limit(
        30.0, "longest pause between restarts; it doubles up to here"
    )
    restart_healthy_s: float = limit(10.0, "a worker ready for so long resets the pause")
    broken_after: int = limit(
        3, "starts that fail in a row before the environment is reported as broken"
    )
    grow_after_s: float = limit(
        5.0,
        "where the number of workers may change: a request that has waited for so long asks for "
        "more of them",
    )
    shrink_after_s: float = limit(
        60.0, "and if fewer would have been enough for so long, the others are drained"
    )
    drain_s: float = limit(30.0, "a graceful stop waits so long for running work")
    stop_s: float = limit(
        5.0, "after the drain, cancelled work has so long to end before the kill", told=ToldTo.HOST
    )
    reap_s: float = limit(
        10.0, "closing waits so long for killed workers; it leaves what is left then, and says so"
    )
    teardown_s: float = limit(
        5.0,
        "an environment's teardown is cancelled then; the worker exits all the same",
        told=ToldTo.WORKER,
    )
    spread_s: float = limit(
        5.0,
        "once the first worker is ready, those that still start are left their share of the "
        "work for so long: else it would take everything",
    )
    spoilt_after: int = limit(
        8,
        "a worker with so many more failures than results gets one execution at a time if others "
        "do not fail; it is drained and replaced once that cannot be chance",
    )
    recycle_executions: int | None = limit(
        None, "a worker is replaced after so many executions (drained first); None: never"
    )
    execution_s: int | None = limit(
        None,
        "an execution that has run for so long is stopped, and its request answered with "
        "an error that says so; calls may set less for theirs; None: never",
    )
    pause_after_errors: int | None = limit(
        None,
        "after so many failures in a row that are the engine's or the infrastructure's (a model "
        "or a service that is down, workers that died at work) nothing is dispatched until a "
        "rollout has a result; None: never",
    )
    pause_s: float = limit(60.0, "meanwhile one request is dispatched so often, to try")
    worker_memory_bytes: int | None = limit(
        None, "a worker above so much resident memory is drained and replaced; None: no limit"
    )
    stats_line_s: float = limit(10.0, "between the lines of statistics in the log")
    lock_s: float = limit(
        600.0, "how long a new server waits for the workers of an earlier one to end"
    )
    log_rate: int = limit(
        10, "log lines about malformed messages in one second; the rest is counted"
    )
    record_bytes: int = limit(
        1024 * MIB, "a recording stops then; some millions of requests, and the disk is finite"
    )
    record_buffer_bytes: int = limit(
        16 * MIB, "records waiting for a slow disk; past it a recording stops"
    )
    record_flush_s: float = limit(1.0, "what a recording can miss of a server that was killed")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits(_Checked):
    """Bounds and timers of the keys of a server."""

    namespace_bytes: int = limit(64, "namespaces are names of teams and jobs")
    key_bytes: int = limit(256, "longest key; each stays in memory for as long as its outcome")
    generations: int = limit(
        65_536,
        "generations whose outcomes are to come or retained; past it new keys wait, and "
        "so they do where the disk of a journal owes four records for each",
    )
    retained_bytes: int = limit(
        256 * MIB,
        "bytes of retained outcomes, names, and inputs that wait for an earlier generation; past "
        "it new keys wait, and keyed dispatching pauses",
    )
    journal_keys: int = limit(
        2_097_152,
        "keys whose outcomes are in the journal only: each takes some 180 bytes of memory; past "
        "it new keys wait",
    )
    journal_bytes: int = limit(
        16 * 1024 * MIB,
        "bytes of their inputs and outcomes on the disk; past it new keys wait",
    )
    namespace_share: float = limit(
        0.5,
        "what one namespace may take of what the others leave of these bounds, and of commands; "
        "of the first two each has a part of its own, about a bound / namespaces",
    )
    namespaces: int = limit(
        256,
        "namespaces whose work waits or runs: each takes turns with the sessions of clients, and "
        "the place of one; past it keys of others wait",
    )
    waiters: int = limit(
        1_024, "requests that wait for one generation; its end answers all of them in one turn"
    )
    commands: int = limit(
        65_536, "cancels and forgets that are remembered by their ids, for command_s; past it "
        "those with new ids are refused for now"
    )  # fmt: skip
    command_s: float = limit(600.0, "how late a second copy of a command may come")
    orphan_s: float = limit(
        600.0, "how long work goes on for waiters that were lost, while nobody waits"
    )
    retention_s: float = limit(
        3600.0, "how long an outcome is replayed after its last waiter has left; time awake"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits(_Checked):
    """Timers of the client.  Limits of single calls are arguments of the calls."""

    start_s: float = limit(600.0, "how long calls wait for a server that is not there yet")
    recovery_s: float = limit(
        600.0, "how long calls wait for a lost server before they may have run"
    )
    unreachable_report_s: float = limit(3.0, "a missing server is reported after so long")
    ping_s: float = limit(1.0, "between syncs; the longest a lost message goes unnoticed")
    idle_ping_s: float = limit(
        5.0,
        "the longest between syncs of a client that has nothing pending and nothing to "
        "acknowledge, with a server that is ready; never less than ping_s",
    )
    hello_retry_s: float = limit(0.5, "between hellos while no welcome has come")
    probe_s: float = limit(5.0, "an unanswered sync older than this makes the server unhealthy")
    reconnect_s: float = limit(
        15.0,
        "a connection on which nothing is answered for so long is made anew; twice as long "
        "each time that this did not help",
    )
    late_s: float = limit(1.0, "a probe is not counted if this side's own loop was later than this")
    finish_flush_s: float = limit(
        0.02, "acknowledgements wait so long for company, half of it for that of a request"
    )
    cancel_answer_s: float = limit(
        5.0, "after a call's limit, how long to wait for the server's word on whether it ran"
    )
    limit_word_s: float = limit(
        2.0,
        "of that, how long the server is not asked, since it stops the execution itself and says "
        "so; at most half of it",
    )
    max_executions: int = limit(
        4, "executions of a call that consents to a rerun: three, and one after a server's loss"
    )


# -- rules between limits -------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class LimitRule:
    """The rule that ``large`` must be at least ``times`` times ``small``; each is
    ``Class.field``."""

    large: str
    times: int
    small: str
    why: str


RULES: tuple[LimitRule, ...] = (
    # leases and ticks
    LimitRule("ServerLimits.lease_s", 2, "ServerLimits.awake_step_s",
         "one late tick may add that much to a silence, and would end the work of all clients"),
    LimitRule("ServerLimits.awake_step_s", 1, "ServerLimits.tick_s",
         "no tick could add the time that has passed, and leases would never end in time"),
    # workers that are silent, blocked, or ignore a cancel
    LimitRule("ServerLimits.silence_report_s", 2, "ServerLimits.heartbeat_s",
         "a worker is silent between two heartbeats, and each would be reported"),
    LimitRule("ServerLimits.silence_report_s", 2, "ServerLimits.tick_s",
         "silence is looked at with each tick, and a heartbeat just before one would be missed"),
    LimitRule("ServerLimits.silence_kill_s", 1, "ServerLimits.silence_report_s",
         "a worker would be killed before it is reported"),
    LimitRule("ServerLimits.blocked_report_s", 1, "ServerLimits.heartbeat_s",
         "how late a loop is comes with the heartbeats"),
    LimitRule("ServerLimits.cancel_kill_s", 1, "ServerLimits.cancel_grace_s",
         "a worker would be killed before it was left without new work"),
    LimitRule("ServerLimits.restart_pause_max_s", 1, "ServerLimits.restart_pause_s",
         "the first pause would be longer than the longest"),
    LimitRule("ServerLimits.reap_s", 1, "ServerLimits.reap_settle_s",
         "closing would not wait until a dead worker's work is lost"),
    # a pool that grows and shrinks
    LimitRule("ServerLimits.grow_after_s", 1, "ServerLimits.tick_s",
         "how long requests wait is looked at with each tick, and each would ask for more workers"),
    LimitRule("ServerLimits.shrink_after_s", 1, "ServerLimits.grow_after_s",
         "workers would leave before those that wait could ask for them"),
    # the wire
    LimitRule("WireLimits.message_bytes", 1, "WireLimits.header_bytes",
         "a header is one frame, and a larger one ends the connection"),
    LimitRule("WireLimits.header_bytes", 20, "ServerLimits.window",
         "a client states its whole window in one header, two edges of nine bytes for each"),
    LimitRule("WireLimits.header_bytes", 2, "KeyLimits.key_bytes",
         "a key stands in the header of its request"),
    LimitRule("WireLimits.header_bytes", 2, "KeyLimits.namespace_bytes",
         "a namespace stands in the header of its request"),
    LimitRule("WireLimits.arriving_bytes", 1, "WireLimits.message_bytes",
         "the largest message could never arrive"),
    LimitRule("WireLimits.waiting_bytes", 1, "WireLimits.message_bytes",
         "the largest message could never be sent to a slow peer"),
    LimitRule("WireLimits.waiting_bytes", 1, "WireLimits.peer_queue_bytes",
         "what one slow peer may have waiting would be closed for what all may have"),
    LimitRule("WireLimits.connections", 1, "WireLimits.handshakes",
         "strangers that say nothing could be all that is connected"),
    LimitRule("WireLimits.reconnect_max_s", 1, "WireLimits.reconnect_min_s",
         "the first pause would be longer than the longest"),
    # clients
    LimitRule("ClientLimits.probe_s", 2, "ClientLimits.ping_s",
         "a ping whose answer is under way would count as lost"),
    LimitRule("ClientLimits.probe_s", 1, "ClientLimits.late_s",
         "a loop that was a little late would make its server unhealthy"),
    LimitRule("ClientLimits.reconnect_s", 2, "ClientLimits.ping_s",
         "a connection would be left while the answer to a ping is under way"),
    LimitRule("ClientLimits.cancel_answer_s", 1, "ClientLimits.ping_s",
         "whether a call ran is asked again with each ping, and would be given up before"),
    LimitRule("ClientLimits.ping_s", 1, "ClientLimits.finish_flush_s",
         "a ping tells what is finished, so nothing would ever be flushed before it"),
)  # fmt: skip


def check_together(*limits: Any) -> None:
    """ConfigError for the first rule that some of these limits break, with the values to write
    instead.  Rules about a class that is not given are ignored."""
    given = {type(each).__name__: each for each in limits}
    for rule in RULES:
        (owner, name), (other, least) = rule.large.split("."), rule.small.split(".")
        if owner not in given or other not in given:
            continue
        large, small = getattr(given[owner], name), getattr(given[other], least)
        if large < rule.times * small:
            times = f"{rule.times} times " if rule.times > 1 else ""
            raise ConfigError(
                f"{rule.large} ({large}) must be at least {times}{rule.small} ({small}): "
                f"{rule.why}; write {name}={rule.times * small} or more, "
                f"or {least}={_part(large, rule.times)} or less"
            )


def _part(value: float, times: int) -> float:
    """The largest allowed value of the smaller limit."""
    if isinstance(value, int):
        return value // times
    return value / times
