"""What a server says of itself, typed: status, statistics, pages of its keys and of what runs.

On the wire these are maps of plain data (:meth:`.Router.status`, :meth:`.Router.stats`,
:mod:`.queries`), to which later versions may add keys.  Here they have names and types, for the
programs that ask a server.  The fields of a class are the schema by which :func:`typed` reads a
record; what has no name here is in ``more``, so nothing is lost on the way back to plain data.

A number that is counted or measured is declared once, by :func:`gauge`, :func:`counter` or
:func:`histogram`: the record, the metrics of the HTTP door and the reference have it from here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from . import notes
from .closing import ClosingStage
from .errors import ProtocolError
from .health import ServerStatus
from .notes import Note


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
    def of(cls, record: Any) -> Self:
        """Read a record of the wire.  ProtocolError if it is malformed."""
        return typed(cls, record)

    def to_record(self) -> dict[str, Any]:
        """Plain data, as on the wire: what ``status --json`` prints."""
        record = plain(self)
        for name in ("journal", "closing"):
            if not record[name]:
                del record[name]
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
    """``starting``, ``ready``, ``retiring``, ``emptying``, ``ending`` or ``reaped``."""
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
    beat_age_s: float = gauge(
        "host_beat_age_seconds", "Age of the host's last answered beat, in seconds.", 0.0
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


# -- pages of lists ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A server's record of one generation of a key."""

    namespace: str
    """Owner of the key."""
    key: str
    """Name of the key."""
    generation: int
    """Number of the generation; a later one has a greater number."""
    state: str
    """``held`` (an execution of an earlier generation still ends), ``waiting``, ``running``,
    ``completed`` (its outcome is retained), or ``closed`` (cancelled or forgotten, and its
    execution still ends)."""
    waiters: int = 0
    """Number of requests that wait, or have the outcome and have not acknowledged it."""
    watchers: int = 0
    """Number of requests that are attached, and do not count."""
    lost: int = 0
    """Number of callers that were lost with their lease, and go on counting."""
    executions: int = 0
    """Number of executions that were started for it."""
    age_s: float = 0.0
    """Seconds since it was first asked for, in which the server was awake."""
    left_s: float | None = None
    """Seconds until it is cancelled as an orphan or its retention ends; None while neither runs."""
    size_bytes: int = 0
    """Bytes of its name, its retained outcome, and its input while that is held."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """A page of the keys that a server knows, in the order in which they were asked for."""

    keys: tuple[KnownKey, ...]
    """The keys."""
    next: int | None = None
    """Generation with which the next page begins; None if this is the last page.  More keys may
    follow a page without any."""
    generations: int = 0
    """Number of generations in the namespace, or in all."""
    size_bytes: int = 0
    """Bytes of these generations."""

    @classmethod
    def of(cls, record: Any) -> KeyPage:
        """Read a record of the wire.  ProtocolError if it is malformed."""
        return typed(cls, record)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningRollout:
    """A server's record of one running execution: a rollout, or a group."""

    number: int
    """Number of the execution; a later one has a greater number."""
    request: str = ""
    """The request id, as logs have it."""
    client: str = ""
    """The name of the client that asks; empty for the work of a key."""
    namespace: str | None = None
    """The owner of its key; None if it has none."""
    key: str | None = None
    """None if it has no key."""
    environment: str = ""
    """The environment's own name."""
    state: str = "running"
    """``running``, or ``stopping`` if it was told to stop and has not ended."""
    executions: int | None = None
    """Which execution of its request it is; None while it is stopping.  Attempts within it
    are in the note."""
    worker: str = ""
    """The worker that runs it: slot and life."""
    age_s: float = 0.0
    """Seconds since its dispatch, in which the server was awake."""
    note: Note = dataclasses.field(default_factory=dict)
    """Last note of the rollout."""
    where: str = ""
    """If the loop of its worker is blocked, or its interpreter is held: the innermost lines of
    where that stands."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningPage:
    """A page of the running executions, the oldest first."""

    running: tuple[RunningRollout, ...]
    """The executions."""
    next: int | None = None
    """Execution with which the next page begins; None if this is the last page."""
    total: int = 0
    """Number of running executions in all."""
    typical_s: float | None = None
    """Median duration of the last executions, in seconds; None while none has ended."""

    @classmethod
    def of(cls, record: Any) -> RunningPage:
        """Read a record of the wire.  ProtocolError if it is malformed."""
        return typed(cls, record)


# -- records of plain data, checked: a peer may say anything -----------------------------------


class Dataclass(Protocol):
    """Any class made by ``dataclasses.dataclass``."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


_D = TypeVar("_D", bound=Dataclass)
_kinds = functools.cache(get_type_hints)


def typed(cls: type[_D], record: Any) -> _D:
    """A record of plain data as this dataclass.  ProtocolError if it is malformed."""
    if not isinstance(record, dict) or not all(isinstance(key, str) for key in record):
        raise ProtocolError(
            f"a record is of type {type(record).__name__}, or has keys that are no text"
        )
    kinds = dict(_kinds(cls))
    has_more = kinds.pop("more", None) is not None
    made = {name: _value(name, kinds[name], record[name]) for name in kinds.keys() & record.keys()}
    if has_more:
        made["more"] = {name: value for name, value in record.items() if name not in kinds}
    try:
        return cls(**made)
    except TypeError as missing:
        raise ProtocolError(f"a record is not whole: {missing}") from None


def _value(name: str, kind: Any, value: Any) -> Any:
    """The value of a field of this kind.  A name of a key is any bytes, and shown as text."""
    if type(None) in get_args(kind):
        return None if value is None else _value(name, get_args(kind)[0], value)
    if hasattr(kind, "__dataclass_fields__"):
        return typed(kind, value)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_value(name, get_args(kind)[0], each) for each in value)
    if get_origin(kind) is dict and isinstance(value, bytes):  # a note
        return notes.decode(value)
    if kind is str and isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(kind, enum.EnumType):
        with contextlib.suppress(ValueError):
            return kind(value)
    allowed = {float: (int, float), Mapping[str, float]: (dict,)}.get(kind, (kind,))
    if type(value) in allowed:
        return value
    # Python does not write every number.
    shown = repr(value[:80]) if isinstance(value, str) else f"of type {type(value).__name__}"
    raise ProtocolError(f"{name} is {shown}, and no {getattr(kind, '__name__', kind)}")


def plain(record: Dataclass) -> dict[str, Any]:
    """A record as plain data; what it has in ``more`` stands behind its fields."""
    made = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    more = made.pop("more", {})
    return {**{name: _plain(value) for name, value in made.items()}, **more}


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return plain(value)
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    return value.value if isinstance(value, enum.Enum) else value
