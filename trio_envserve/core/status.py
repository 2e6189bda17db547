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
    """How far a server is that is stopping, and what it waits for."""

    stage: ClosingStage
    """How far closing is."""
    running: int
    """Executions that have not ended."""
    outcomes: int
    """Outcomes that clients who are still there have not fetched."""
    workers: int
    """Workers that are not proven dead."""
    left_s: float
    """Seconds until the next stage at the latest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """The status of a server; see :meth:`.Server.status`."""

    status: ServerStatus
    """Starting, ready, silent, broken or stopping."""
    reason: str = ""
    """Why it is not ready, for people; empty if it is."""
    ready: int = 0
    """How many workers are ready."""
    workers: int = 0
    """How many workers there are to be."""
    environment: str = ""
    """The environment's own name; empty until a worker has said it."""
    rerun: bool = False
    """Whether the environment consents to further executions."""
    durable: bool = False
    """Whether what is known of keys outlives the server."""
    paused: str = ""
    """Why nothing is dispatched for now (the limit ``pause_after_errors``); empty if it is."""
    journal: str = ""
    """Why the server's journal cannot save what is new; empty if it can, or there is none."""
    closing: ClosingRecord | None = None
    """How far closing is; None until it begins."""

    @classmethod
    def of(cls, record: Any) -> StatusRecord:
        """The record for the one on the wire.  ProtocolError if it is none."""
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
    """Requests that found no room, and are tried again."""
    dispatched: int = 0
    """Executions that were sent to workers."""
    completed: int = 0
    """Requests with an outcome."""
    finished: int = 0
    """Requests whose outcome its client has."""
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
    """Its name: slot and life."""
    slot: int = -1
    """Its place in the pool, which the next life takes over; -1 where an earlier server does
    not say it."""
    host: str = ""
    """The host that has it; empty for the server's own machine."""
    pid: int | None = None
    """None until its process is started."""
    phase: str = ""
    """``starting``, ``ready``, ``retiring``, ``ending`` or ``reaped``."""
    pending: int = 0
    """Executions dispatched to it that have not ended."""
    capacity: int = 0
    """Executions that it takes at once; 0 until it is ready."""
    done: int = 0
    """Executions that have ended."""
    failed: int = 0
    """Those of them without a result."""
    restarts: int = 0
    """Lives of its slot before this one."""
    memory_bytes: int = 0
    """Memory of its process."""
    lag_s: float = 0.0
    """How late its loop is."""
    silent: bool = False
    """Whether it gives no sign of life."""
    blocked: bool = False
    """Whether its loop is blocked."""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Finite numbers by short names, as the worker says them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeath:
    """How a worker has ended, whatever the reason."""

    worker: str = ""
    """Its name: slot and life."""
    why: str = ""
    """The reason, for people."""
    age_s: float = 0.0
    """Since then; time in which the server was awake."""
    lost: int = 0
    """Executions that were lost with it."""


HOST_STATES = ("joining", "ready", "quiet", "set aside", "leaving")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostStats:
    """One host of a server; see the page on hosts."""

    host: str = ""
    """Its name."""
    state: str = ""
    """``joining`` (no work yet), ``ready``, ``quiet`` (it is not known to hear the server, and
    gets no new work), ``set aside`` (its workers did not start), ``leaving``."""
    why: str = ""
    """Why it is set aside."""
    slots: int = 0
    """How many workers it may have at most."""
    workers: int = 0
    """How many of them were to be started and have not ended."""
    ready: int = 0
    """How many of these have said hello."""
    running: int = 0
    """The number of executions on them."""
    heard_s: float = 0.0
    """Age of its last beat that was answered."""
    lost_s: float = 0.0
    """Seconds until it is taken for lost, if no other beat comes."""
    load: float = 0.0
    """Its load average over a minute, for each processor."""
    memory_bytes: int = 0
    """Memory of the machine that can still be had."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PastHost:
    """A host that was refused, has left, or was lost: the last ones."""

    host: str = ""
    """Its id."""
    state: str = ""
    """``refused``, ``left`` or ``lost``."""
    why: str = ""
    """The reason, for people."""
    age_s: float = 0.0
    """Since then."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats(StatusRecord):
    """Everything countable of a server; see the page on operations."""

    epoch: str = ""
    """The epoch of the server, in hex."""
    sessions: int = 0
    """Clients that it remembers."""
    waiting: int = 0
    """Requests that wait for a worker."""
    running: int = 0
    """Executions, those being stopped included."""
    kept: int = 0
    """Outcomes that their clients do not have yet."""
    kept_bytes: int = 0
    """Their size."""
    announced: int = 0
    """Outcomes that wait at their workers for room."""
    announced_bytes: int = 0
    """Their size."""
    held_bytes: int = 0
    """Bodies of requests that may still have to be dispatched."""
    keys: int = 0
    """Generations of keys whose outcomes are to come or retained."""
    keys_bytes: int = 0
    """Their size: names, retained outcomes, and inputs that wait."""
    journal_keys: int = 0
    """Keys besides, whose outcomes are in the journal only."""
    journal_bytes: int = 0
    """Their size there: names, inputs and outcomes."""
    oldest_wait_s: float = 0.0
    """Wait of the oldest request that a worker could take."""
    workers_least: int = 0
    """Fewest workers that there are to be; their number is fixed where it equals
    ``workers_most``."""
    workers_most: int = 0
    """Most workers that there are to be."""
    resized: str = ""
    """The last change of their number, and the reason; empty until then."""
    worker_restarts: int = 0
    """Lives of workers after the first of each slot."""
    malformed: int = 0
    """Messages that the protocol does not allow."""
    fenced: int = 0
    """Messages from what is not, or no longer, a worker of this server."""
    strays: int = 0
    """Outcomes of executions that had already ended."""
    bad_statistics: int = 0
    """Entries in workers' statements about themselves that are no statistics."""
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The limits of what is counted here, by the name of that field; ``pending`` is of one
    worker."""
    waits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How long requests waited until they were dispatched: counts by their upper bound in
    seconds (zero counts are omitted), and ``sum_s``."""
    runs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How long executions took from their dispatch until their workers reported them."""
    model_calls: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How long the model calls of rollouts took, answered or not; a beat old at most."""
    model_usage: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Their totals: ``calls`` (answered), ``failed``, ``retries``, ``prompt_tokens``,
    ``completion_tokens``."""
    cache: CacheStats = dataclasses.field(default_factory=CacheStats)
    """The counters of requests."""
    failures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Requests that have ended without a result since the server's start, by the code of their
    ending (:data:`~.endings.ENDINGS`; ``other`` for codes that it does not have).  The work of a
    key is one, whoever waits."""
    per_worker: tuple[WorkerStats, ...] = ()
    """The workers, by slot."""
    deaths: tuple[WorkerDeath, ...] = ()
    """The last workers that have ended, the newest one last."""
    hosts: tuple[HostStats, ...] = ()
    """The hosts that have joined, by name."""
    past_hosts: tuple[PastHost, ...] = ()
    """Others, the newest one last."""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The entries of the server's shell: its address, the lag of its loop, its socket."""

    @classmethod
    def of(cls, record: Any) -> ServerStats:
        """The statistics for the record on the wire.  ProtocolError if it is none."""
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
