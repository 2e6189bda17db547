"""The status record and the statistics of a server, typed.

On the wire both are maps of plain data (:meth:`.Router.status`, :meth:`.Router.stats`),
to which later versions may add keys.  Here they have names and types, for the programs
that ask a server; what has no name here is in ``more``, so nothing is lost on the way
back to plain data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .closing import ClosingStage
from .errors import ProtocolError
from .health import ServerStatus
from .typed_records import checked, typed


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """The status of a server; see :meth:`.Server.status`."""

    status: ServerStatus
    """Starting, ready, silent, broken or stopping."""
    reason: str = ""
    """Reason for which it is not ready, for people; empty if it is ready."""
    ready: int = 0
    """Number of ready workers."""
    workers: int = 0
    """Number of workers that there are to be."""
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """The counters of requests since the server's start; see the page on operations."""

    requests: int = 0
    """Requests that arrived, repeated ones included."""
    entered: int = 0
    """Requests that were new."""
    coalesced: int = 0
    """Repeated requests whose first one still waited or ran."""
    replayed: int = 0
    """Repeated requests that were answered from a kept outcome."""
    conflicts: int = 0
    """Requests whose id was used for another one."""
    spent: int = 0
    """Repeated requests that their client had finished before."""
    refused_for_now: int = 0
    """Requests that met a full bound, and are tried again by their clients."""
    dispatched: int = 0
    """Executions that were sent to workers."""
    completed: int = 0
    """Requests with an outcome."""
    finished: int = 0
    """Requests whose outcomes their clients have."""
    cancelled: int = 0
    """Requests that their clients cancelled."""
    stray_outcomes: int = 0
    """Outcomes of executions that had already ended."""
    reruns: int = 0
    """Further executions after the death of a worker, by consent."""
    lost: int = 0
    """Executions that were lost with their workers."""
    deadlines: int = 0
    """Executions that were stopped at their caller's limit."""
    sessions_opened: int = 0
    """Sessions that were granted."""
    sessions_refused: int = 0
    """Hellos that got no session."""
    sessions_ended: int = 0
    """Sessions that ended."""
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
    pending: int = 0
    """Executions on it that have not ended."""
    capacity: int = 0
    """Executions that it takes at once; 0 until it is ready."""
    done: int = 0
    """Executions that have ended."""
    failed: int = 0
    """Number of these without a result."""
    restarts: int = 0
    """Lives of its slot before this one."""
    memory_bytes: int = 0
    """Resident memory of its process, in bytes."""
    lag_s: float = 0.0
    """Lag of its event loop, in seconds."""
    silent: bool = False
    """Whether its heartbeats do not come."""
    blocked: bool = False
    """Whether its event loop is blocked."""
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
    slots: int = 0
    """Most workers that it may have."""
    workers: int = 0
    """Number of its workers that were to be started and have not ended."""
    ready: int = 0
    """Number of these that have said hello."""
    running: int = 0
    """Number of executions on them."""
    heard_s: float = 0.0
    """Age of its last answered beat, in seconds."""
    lost_s: float = 0.0
    """Seconds until it counts as lost, unless another beat comes."""
    load: float = 0.0
    """Load average of its machine over a minute, divided by the number of processors."""
    memory_bytes: int = 0
    """Available memory of its machine, in bytes."""


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
class ServerStats(StatusRecord):
    """The statistics of a server; see the page on operations."""

    epoch: str = ""
    """The epoch of the server, in hex."""
    sessions: int = 0
    """Number of sessions that it remembers."""
    waiting: int = 0
    """Number of requests that wait for a worker."""
    running: int = 0
    """Number of executions, with those being stopped."""
    kept: int = 0
    """Number of outcomes that their clients do not have yet."""
    kept_bytes: int = 0
    """Their size in bytes."""
    announced: int = 0
    """Number of outcomes that wait at their workers until the server has memory for them."""
    announced_bytes: int = 0
    """Their size in bytes."""
    held_bytes: int = 0
    """Bytes of the bodies of requests that may still have to be dispatched."""
    keys: int = 0
    """Generations of keys whose outcomes are to come or retained."""
    keys_bytes: int = 0
    """Their size: names, retained outcomes, and inputs that wait."""
    journal_keys: int = 0
    """Keys besides, whose outcomes are in the journal only."""
    journal_bytes: int = 0
    """Their size there: names, inputs and outcomes."""
    oldest_wait_s: float = 0.0
    """Longest wait of a request that a worker could take, in seconds."""
    workers_least: int = 0
    """Fewest workers that there are to be; their number is fixed where it equals
    ``workers_most``."""
    workers_most: int = 0
    """Most workers that there are to be."""
    resized: str = ""
    """Last change of the number of workers, and its reason; empty before the first one."""
    worker_restarts: int = 0
    """Number of worker processes after the first one of each slot."""
    malformed: int = 0
    """Number of malformed messages."""
    fenced: int = 0
    """Number of messages from processes that are not, or no longer, workers of this server."""
    strays: int = 0
    """Number of outcomes of executions that had already ended."""
    bad_statistics: int = 0
    """Number of entries in workers' statistics that are none."""
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Bounds of the fields here, by the field's name; ``pending`` is that of one worker."""
    waits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Histogram of the waits of requests until their dispatch: counts by upper bound in seconds (no
    zeros), and ``sum_s``."""
    runs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Histogram of the durations of executions, from the dispatch to the worker's report."""
    model_calls: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Histogram of the durations of rollouts' model calls, answered or not; a beat old at most."""
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
        return typed(
            cls, record, **_status(record),
            cache=typed(CacheStats, checked(record, "cache", dict, {})),
            per_worker=tuple(typed(WorkerStats, worker) for worker in workers),
            deaths=tuple(typed(WorkerDeath, death) for death in deaths),
            hosts=tuple(typed(HostStats, host) for host in hosts),
            past_hosts=tuple(typed(PastHost, host) for host in past_hosts),
        )  # fmt: skip

    def to_record(self) -> dict[str, Any]:
        """Plain data, as on the wire: what ``status --json`` prints."""
        record = {"epoch": self.epoch, **StatusRecord.to_record(self)}
        for field in dataclasses.fields(self):
            if field.name not in _OF_STATUS and field.type in ("int", "float", "str"):
                record[field.name] = getattr(self, field.name)
            elif field.type == "Mapping[str, float]":
                record[field.name] = dict(getattr(self, field.name))
        record["cache"] = {**_known(self.cache), **self.cache.more}
        record["per_worker"] = [{**each.more, **_known(each)} for each in self.per_worker]
        for name in ("deaths", "hosts", "past_hosts"):
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


def _known(record: CacheStats | WorkerStats) -> dict[str, Any]:
    """The fields of a record that have names of their own."""
    names = [field.name for field in dataclasses.fields(record) if field.name != "more"]
    return {name: getattr(record, name) for name in names}
