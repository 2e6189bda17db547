"""The status record and the statistics of a server, typed.

On the wire both are maps of plain data (:meth:`.Router.status`, :meth:`.Router.stats`),
to which later versions may add keys.  Here they have names and types, for the programs
that ask a server; what has no name here is in ``more``, so nothing is lost on the way
back to plain data.

A number that is counted or measured is declared once, by :func:`gauge`, :func:`counter` or
:func:`histogram`: the record, the metrics of the HTTP door and the reference have it from here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from .closing import ClosingStage
from .errors import ProtocolError
from .health import ServerStatus
from .typed_records import checked, typed


class Stat(NamedTuple):
    """The words about a number of the statistics."""

    metric: str
    """Name in Prometheus, without the prefix, and without ``_total`` of a counter."""
    meaning: str
    kind: Literal["gauge", "counter", "histogram"]
    bounded: bool = False
    """Whether ``bounds`` of the statistics has its bound."""
    bound: str = ""
    """The metric that is its bound, if it is another field."""


def gauge(metric: str, meaning: str, default: float = 0, **bound: Any) -> Any:
    """A field that is measured: a dataclass field with these words, see :class:`Stat`."""
    return dataclasses.field(
        default=default, metadata={"stat": Stat(metric, meaning, "gauge", **bound)}
    )


def counter(metric: str, meaning: str) -> Any:
    """A field that counts from the server's start."""
    return dataclasses.field(default=0, metadata={"stat": Stat(metric, meaning, "counter")})


def histogram(metric: str, meaning: str) -> Any:
    """A field that is a record of :class:`~.durations.Durations`."""
    stat = Stat(metric, meaning, "histogram")
    return dataclasses.field(default_factory=dict, metadata={"stat": stat})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRecord:
    """The progress of a stopping server, and what it waits for."""

    stage: ClosingStage
    """Stage of closing."""
    running: int
    """Number of executions that have not ended."""
    outcomes: int
    """Number of outcomes that present clients have not fetched."""
    workers: int
    """Number of workers that are not proven dead."""
    left_s: float
    """Longest time until the next stage, in seconds."""
    resources: int = 0
    """Number of resources that are being destroyed, or wait for that."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """The status of a server; see :meth:`.Server.status`."""

    status: ServerStatus
    """Starting, ready, silent, broken or stopping."""
    reason: str = ""
    """Reason for which it is not ready, for people; empty if it is ready."""
    ready: int = gauge("workers_ready", "Workers that are ready.", bound="workers")
    workers: int = gauge("workers", "Workers that there should be.")
    environment: str = ""
    """Name of the environment; empty until a worker has reported it."""
    rerun: bool = False
    """Whether the environment consents to further executions."""
    durable: bool = False
    """Whether the state of keys outlives the server."""
    paused: str = ""
    """Reason of the pause in dispatching (limit ``pause_after_errors``); empty if there is none."""
    journal: str = ""
    """Reason for which the journal has failed; empty if it works, or there is none."""
    closing: ClosingRecord | None = None
    """Progress of closing; None until it begins."""

    @classmethod
    def of(cls, record: Any) -> StatusRecord:
        """Read a record of the wire.  ProtocolError if it is malformed."""
        return typed(cls, record, **_status(record))

    def to_record(self) -> dict[str, Any]:
        """Plain data, as on the wire."""
        record: dict[str, Any] = {
            "status": self.status.value, "reason": self.reason, "ready": self.ready,
            "workers": self.workers, "environment": self.environment, "rerun": self.rerun,
            "durable": self.durable, "paused": self.paused,
        }  # fmt: skip
        if self.journal:
            record["journal"] = self.journal
        if self.closing is not None:
            stage = self.closing.stage.value
            record["closing"] = {**dataclasses.asdict(self.closing), "stage": stage}
        return record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientCounters:
    """The counters of a client since it was opened."""

    sessions: int = 0
    """Sessions that a server has granted it."""
    connections: int = 0
    """Connections that were made."""
    retransmitted: int = 0
    """Requests that were sent again under their ids."""
    reissued: int = 0
    """Calls that got a new id, because they did not run under the one before, or by
    consent."""


@dataclasses.dataclass(slots=True, kw_only=True)
class CacheStats:
    """The counters of requests since the server's start: those that a router counts with, too."""

    requests: int = counter("requests_received", "Requests that arrived, repeated ones included.")
    entered: int = counter("requests_entered", "Requests that were new.")
    coalesced: int = counter(
        "requests_coalesced", "Repeated requests whose first one still waited or ran."
    )
    replayed: int = counter(
        "requests_replayed", "Repeated requests that were answered from a kept outcome."
    )
    conflicts: int = counter("requests_conflicting", "Requests whose id was used for another one.")
    spent: int = counter(
        "requests_spent", "Repeated requests that their client had finished before."
    )
    refused_for_now: int = counter(
        "requests_refused_for_now", "Requests that met a full bound, and are tried again by "
        "their clients.",
    )  # fmt: skip
    dispatched: int = counter("executions_dispatched", "Executions that were dispatched.")
    completed: int = counter(
        "requests_completed", "Executions that brought an outcome: that of a key once, whoever "
        "waits.",
    )  # fmt: skip
    finished: int = counter("requests_finished", "Requests whose outcomes their clients have.")
    cancelled: int = counter(
        "requests_cancelled", "Work that was cancelled before it had an outcome: that of a key "
        "once.",
    )  # fmt: skip
    stray_outcomes: int = counter(
        "outcomes_stray", "Outcomes that came for requests that wanted none."
    )
    reruns: int = counter(
        "executions_repeated", "Dispatched executions that were not the first of their request."
    )
    lost: int = counter("requests_lost", "Requests that ended as worker lost.")
    deadlines: int = counter("requests_late", "Requests that ended by their deadline.")
    sessions_opened: int = counter("sessions_opened", "Sessions that were granted.")
    sessions_refused: int = counter("sessions_refused", "Hellos that got no session.")
    sessions_ended: int = counter("sessions_ended", "Sessions that ended.")
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Counters of a later version."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """A server's record of one worker, with the worker's own statistics."""

    worker: str = ""
    """Name: slot and life."""
    slot: int = -1
    """Index of its slot in the pool, which its successor takes over; -1 from a server that does not
    report it."""
    host: str = ""
    """Name of its host; empty for the server's own machine."""
    pid: int | None = None
    """Process id; None until its process is started."""
    phase: str = ""
    """``starting``, ``ready``, ``retiring``, ``ending`` or ``reaped``."""
    pending: int = gauge(
        "worker_pending", "Executions dispatched to the worker that have not "
        "ended.", bound="worker_pending_limit",
    )  # fmt: skip
    capacity: int = gauge(
        "worker_pending_limit", "Most executions that it takes at once; 0 until it is ready."
    )
    done: int = counter("worker_executions_done", "Executions that have ended on the worker.")
    failed: int = counter(
        "worker_executions_failed", "Executions of these that ended without a result."
    )
    restarts: int = 0
    """Lives of its slot before this one."""
    memory_bytes: int = gauge(
        "worker_memory_bytes", "Resident memory of the worker's process, in bytes."
    )
    lag_s: float = gauge("worker_lag_seconds", "Lag of the worker's event loop, in seconds.", 0.0)
    silent: bool = gauge("worker_silent", "Whether the worker's heartbeats do not come.", False)
    blocked: bool = gauge("worker_blocked", "Whether the worker's event loop is blocked.", False)
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further statistics that the worker reports: finite numbers by short names."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeath:
    """The end of a worker."""

    worker: str = ""
    """Name of the worker: slot and life."""
    why: str = ""
    """The reason, for people."""
    age_s: float = 0.0
    """Seconds since then in which the server was awake."""
    lost: int = 0
    """Executions that were lost with it."""


HOST_STATES = ("joining", "ready", "quiet", "set aside", "leaving")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostStats:
    """One host of a server; see the page on hosts."""

    host: str = ""
    """Name of the host."""
    state: str = ""
    """``joining`` (no work yet), ``ready``, ``quiet`` (it is not known to hear the server, and
    gets no new work), ``set aside`` (its workers did not start), ``leaving``."""
    why: str = ""
    """Reason for which it is set aside."""
    slots: int = gauge("host_workers", "Workers that the host should have at most.")
    workers: int = 0
    """Number of its workers that were to be started and have not ended."""
    ready: int = gauge("host_workers_ready", "Workers of the host that are ready.")
    running: int = gauge("host_running", "Executions on the host that have not ended.")
    heard_s: float = gauge(
        "host_heard_seconds", "Age of the host's last answered beat, in seconds.", 0.0
    )
    lost_s: float = gauge(
        "host_lost_seconds",
        "Seconds until the host counts as lost, unless another beat comes.",
        0.0,
    )
    load: float = gauge(
        "host_load", "Load average of the host over a minute, for each processor.", 0.0
    )
    memory_bytes: int = gauge(
        "host_memory_bytes", "Available memory of the host's machine, in bytes."
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PastHost:
    """A past host: it was refused, has left, or was lost."""

    host: str = ""
    """Name of the host."""
    state: str = ""
    """``refused``, ``left`` or ``lost``."""
    why: str = ""
    """The reason, for people."""
    age_s: float = 0.0
    """Seconds since then."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PermitStats:
    """The permits of one name; see the page on concurrency."""

    name: str = ""
    """Name with its kind: ``limit:sandboxes``, ``rate:creates``, ``endpoint:policy``."""
    held: int = gauge(
        "permits_held", "Permits of the name that executions hold.", bound="permits_limit"
    )
    waiting: int = gauge("permits_waiting", "Claims of the name that wait.")
    limit: float = gauge(
        "permits_limit",
        "Most permits of the name that are held at once; of a rate, most in a second.",
        0.0,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStats:
    """A resource that is not gone; see the page on environments."""

    name: str = ""
    """Name that the server has given it."""
    kind: str = ""
    """Kind of the resource, as its rollout says it."""
    request: str = ""
    """Request whose rollout has made it."""
    worker: str = ""
    """Worker that holds it, or destroys it; empty if none does, or that is not known."""
    state: str = ""
    """``held``, ``waiting`` (to be destroyed), ``cleaning`` (a worker destroys it), ``stuck``, or
    ``unknown`` (a worker of an earlier server holds it)."""
    age_s: float = 0.0
    """Seconds since it was to be created, or the server started."""
    tries: int = 0
    """Number of failed tries to destroy it, but for that of its own rollout."""
    why: str = ""
    """Reason of the last failure."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats(StatusRecord):
    """The statistics of a server; see the page on operations.

    ``waits``, ``runs`` and ``model_calls`` are histograms: counts by upper bound in seconds (no
    zeros), and ``sum_s``.
    """

    epoch: str = ""
    """The epoch of the server, in hex."""
    sessions: int = gauge("sessions", "Sessions that the server holds.", bounded=True)
    waiting: int = gauge("requests_waiting", "Requests that wait for a worker.", bounded=True)
    running: int = gauge(
        "executions_running", "Executions, those being stopped included.", bounded=True
    )
    kept: int = gauge("outcomes_kept", "Outcomes that their clients do not have yet.", bounded=True)
    kept_bytes: int = gauge(
        "outcomes_kept_bytes", "Size of kept outcomes, those on their way from workers "
        "included.", bounded=True,
    )  # fmt: skip
    announced: int = gauge(
        "outcomes_announced", "Outcomes that wait at their workers until the server has memory "
        "for them.",
    )  # fmt: skip
    announced_bytes: int = gauge(
        "outcomes_announced_bytes", "Size of announced outcomes.", bounded=True
    )
    held_bytes: int = gauge(
        "requests_held_bytes", "Bodies of requests that may still have to be "
        "dispatched.", bounded=True,
    )  # fmt: skip
    keys: int = gauge(
        "keys", "Generations of keys whose outcomes are to come or retained.", bounded=True
    )
    keys_bytes: int = gauge(
        "keys_bytes", "Size of keys: names, retained outcomes, inputs that wait.", bounded=True
    )
    journal_keys: int = gauge(
        "journal_keys", "Keys besides, whose outcomes are in the journal only.", bounded=True
    )
    journal_bytes: int = gauge(
        "journal_bytes", "Size of those keys on the disk: names, inputs, outcomes.", bounded=True
    )
    oldest_wait_s: float = gauge(
        "oldest_wait_seconds",
        "Longest wait of a request that a worker could take, in seconds.",
        0.0,
    )
    workers_least: int = gauge(
        "workers_least", "Workers that there should be at least; their number is fixed where it "
        "equals the most.",
    )  # fmt: skip
    workers_most: int = gauge("workers_most", "Workers that there may be.")
    resized: str = ""
    """Last change of the number of workers, and its reason; empty before the first one."""
    worker_restarts: int = counter(
        "worker_restarts", "Worker processes beyond the first of each slot."
    )
    malformed: int = counter("messages_malformed", "Malformed messages.")
    fenced: int = counter(
        "messages_fenced",
        "Messages from processes that are not, or no longer, workers of this server.",
    )
    strays: int = counter("executions_stray", "Outcomes of executions that had already ended.")
    differences: int = counter(
        "worker_differences",
        "Workers that were killed since they had other dispatches than they were told.",
    )
    bad_statistics: int = counter("statistics_bad", "Entries in workers' statistics that are none.")
    resources: int = gauge("resources", "Resources of rollouts that are not gone.", bounded=True)
    resources_cleaning: int = gauge(
        "resources_cleaning", "Resources of these that no rollout holds, and that are to be "
        "destroyed.",
    )  # fmt: skip
    resources_stuck: int = gauge(
        "resources_stuck", "Resources of these that could not be destroyed: they wait for a person."
    )
    resources_destroyed: int = counter("resources_destroyed", "Resources that are gone.")
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Bounds of the fields here, by the field's name; ``pending`` is that of one worker."""
    waits: Mapping[str, float] = histogram(
        "request_wait_seconds", "From a request's entering the queue to its dispatch; again for "
        "each further execution.",
    )  # fmt: skip
    runs: Mapping[str, float] = histogram(
        "execution_run_seconds", "From a dispatch to the worker's report of its end."
    )
    model_calls: Mapping[str, float] = histogram(
        "model_call_seconds", "A model call of a rollout, answered or not; a beat old at most."
    )
    model_usage: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Totals of these calls: ``calls`` (answered), ``failed``, ``retries``, ``prompt_tokens``,
    ``completion_tokens``."""
    cache: CacheStats = dataclasses.field(default_factory=CacheStats)
    """The counters of requests."""
    failures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Number of requests that have ended without a result since the server's start, by the code of
    their ending (:data:`~.endings.ENDINGS`; ``other`` for codes that it does not have).  The work
    of a key counts once, however many wait for it."""
    per_worker: tuple[WorkerStats, ...] = ()
    """The workers, by slot."""
    deaths: tuple[WorkerDeath, ...] = ()
    """Ends of the last workers, the newest one last."""
    hosts: tuple[HostStats, ...] = ()
    """The hosts that have joined, by name."""
    past_hosts: tuple[PastHost, ...] = ()
    """The last past hosts, the newest one last."""
    permits: tuple[PermitStats, ...] = ()
    """The permits of the names that have most claims, at most 32."""
    resources_held: tuple[ResourceStats, ...] = ()
    """Resources that are not gone: stuck ones, then the oldest; at most 32."""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The entries of the server's shell: its address, the lag of its loop, its socket."""

    @classmethod
    def of(cls, record: Any) -> ServerStats:
        """Read the statistics of a record of the wire.  ProtocolError if it is malformed."""
        if not isinstance(record, dict):
            raise ProtocolError(f"statistics are of type {type(record).__name__}")
        workers = checked(record, "per_worker", list, [])
        deaths = checked(record, "deaths", list, [])
        hosts = checked(record, "hosts", list, [])
        past_hosts = checked(record, "past_hosts", list, [])
        permits = checked(record, "permits", list, [])
        held = checked(record, "resources_held", list, [])
        return typed(
            cls, record, **_status(record),
            cache=typed(CacheStats, checked(record, "cache", dict, {})),
            per_worker=tuple(typed(WorkerStats, worker) for worker in workers),
            deaths=tuple(typed(WorkerDeath, death) for death in deaths),
            hosts=tuple(typed(HostStats, host) for host in hosts),
            past_hosts=tuple(typed(PastHost, host) for host in past_hosts),
            permits=tuple(typed(PermitStats, permit) for permit in permits),
            resources_held=tuple(typed(ResourceStats, resource) for resource in held),
        )  # fmt: skip

    def to_record(self) -> dict[str, Any]:
        """Plain data, as on the wire: what ``status --json`` prints."""
        record = {"epoch": self.epoch, **StatusRecord.to_record(self)}
        for field in dataclasses.fields(self):
            if field.name not in _OF_STATUS and field.type in ("int", "float", "str"):
                record[field.name] = getattr(self, field.name)
            elif field.type == "Mapping[str, float]":
                record[field.name] = dict(getattr(self, field.name))
        record["cache"] = {**known(self.cache), **self.cache.more}
        record["per_worker"] = [{**each.more, **known(each)} for each in self.per_worker]
        for name in ("deaths", "hosts", "past_hosts", "permits", "resources_held"):
            record[name] = [dataclasses.asdict(each) for each in getattr(self, name)]
        return {**record, **self.more}


_OF_STATUS = frozenset(field.name for field in dataclasses.fields(StatusRecord))


def _status(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a status record that are no plain data."""
    closing = checked(record, "closing", (dict, type(None)), None)
    return {
        "status": _member(ServerStatus, record, "status"),
        "closing": None if closing is None else _closing(closing),
    }


def _closing(record: Mapping[str, Any]) -> ClosingRecord:
    return typed(ClosingRecord, record, stage=_member(ClosingStage, record, "stage"))


def _member(cls: Any, record: Mapping[str, Any], name: str) -> Any:
    try:
        return cls(record.get(name))
    except ValueError:
        raise ProtocolError(f"{name} is {record.get(name)!r:.80}: no {cls.__name__}") from None


def known(record: CacheStats | WorkerStats) -> dict[str, Any]:
    """Fields of a record that have names of their own, without ``more``."""
    names = [field.name for field in dataclasses.fields(record) if field.name != "more"]
    return {name: getattr(record, name) for name in names}
