"""What a server says of itself, typed: its status record and its statistics.

On the wire both are maps of plain data (:meth:`.Router.status`, :meth:`.Router.stats`),
to which later versions may add keys.  Here they have names and types, for the programs
that ask a server; what has no name here is in ``more``, so nothing is lost on the way
back to plain data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from . import notes
from .closing import ClosingStage
from .errors import ProtocolError
from .health import ServerStatus
from .notes import Note

T = TypeVar(
    "T",
    bound="ClosingRecord | StatusRecord | CacheStats | WorkerStats | WorkerDeath | KnownKey | "
    "KeyPage | RunningRollout | RunningPage",
)

_PLAIN: Mapping[str, tuple[type, ...]] = {
    "str | None": (str, type(None)),
    "int": (int,), "float": (int, float), "str": (str,), "bool": (bool,),
    "Mapping[str, float]": (dict,),
    "int | None": (int, type(None)), "float | None": (int, float, type(None)),
}  # fmt: skip
"""The types of plain data, by the annotation of the field that takes it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRecord:
    """How far a server is that is stopping, and what it waits for."""

    stage: ClosingStage
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
    """What a server says of itself; see :meth:`.Server.status`."""

    status: ServerStatus
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
        return _typed(cls, record, **_status(record))

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
    """What a client has done since it was opened."""

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
    """What became of requests since the server's start; see the page on operations."""

    requests: int = 0
    entered: int = 0
    coalesced: int = 0
    replayed: int = 0
    conflicts: int = 0
    spent: int = 0
    refused_for_now: int = 0
    dispatched: int = 0
    completed: int = 0
    finished: int = 0
    cancelled: int = 0
    stray_outcomes: int = 0
    reruns: int = 0
    lost: int = 0
    deadlines: int = 0
    sessions_opened: int = 0
    sessions_refused: int = 0
    sessions_ended: int = 0
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Counters of a later version."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """What a server knows of one worker, and what the worker says of itself."""

    worker: str = ""
    """Its name: slot and life."""
    slot: int = -1
    """Its place in the pool, which the next life takes over; -1 where an earlier server does
    not say it."""
    pid: int | None = None
    """None until its process is started."""
    phase: str = ""
    """``starting``, ``ready``, ``retiring``, ``ending`` or ``reaped``."""
    pending: int = 0
    """Executions dispatched to it that have not ended."""
    done: int = 0
    """Executions that have ended."""
    failed: int = 0
    """Those of them without a result."""
    restarts: int = 0
    """Lives of its slot before this one."""
    memory_bytes: int = 0
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
    age_s: float = 0.0
    """Since then; time in which the server was awake."""
    lost: int = 0
    """Executions that were lost with it."""


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
    announced: int = 0
    """Outcomes that wait at their workers for room."""
    announced_bytes: int = 0
    held_bytes: int = 0
    """Bodies of requests that may still have to be dispatched."""
    keys: int = 0
    """Generations of keys whose outcomes are to come or retained."""
    keys_bytes: int = 0
    """What they take: names, retained outcomes, and inputs that wait."""
    worker_restarts: int = 0
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
    """How long requests waited until they were dispatched: how many took at most so many
    seconds, and more than the bound before, by that bound; and ``sum_s``.  Without those
    that are nought."""
    runs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How long executions took from their dispatch until their workers reported them."""
    model_calls: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How long the model calls of rollouts took, answered or not; a beat old at most."""
    model_usage: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What they came to: ``calls`` (answered), ``failed``, ``retries``, ``prompt_tokens``,
    ``completion_tokens``."""
    cache: CacheStats = dataclasses.field(default_factory=CacheStats)
    failures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What ended without a result since the server's start: ``raised`` (outcomes of workers that
    are errors), ``lost`` (with their workers), ``deadline``."""
    per_worker: tuple[WorkerStats, ...] = ()
    deaths: tuple[WorkerDeath, ...] = ()
    """The last workers that have ended, the newest one last."""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the server's shell adds: its address, the lag of its loop, its socket."""

    @classmethod
    def of(cls, record: Any) -> ServerStats:
        """The statistics for the record on the wire.  ProtocolError if it is none."""
        if not isinstance(record, dict):
            raise ProtocolError(f"statistics are of type {type(record).__name__}")
        workers = _checked(record, "per_worker", list, [])
        deaths = _checked(record, "deaths", list, [])
        return _typed(
            cls, record, **_status(record),
            cache=_typed(CacheStats, _checked(record, "cache", dict, {})),
            per_worker=tuple(_typed(WorkerStats, worker) for worker in workers),
            deaths=tuple(_typed(WorkerDeath, death) for death in deaths),
        )  # fmt: skip

    def to_record(self) -> dict[str, Any]:
        """Plain data, as on the wire: what ``status --json`` prints."""
        record = {"epoch": self.epoch, **StatusRecord.to_record(self)}
        for field in dataclasses.fields(self):
            if field.name not in _OF_STATUS and field.type == "int":
                record[field.name] = getattr(self, field.name)
            elif field.type == "Mapping[str, float]":
                record[field.name] = dict(getattr(self, field.name))
        record["cache"] = {**_known(self.cache), **self.cache.more}
        record["per_worker"] = [{**each.more, **_known(each)} for each in self.per_worker]
        record["deaths"] = [dataclasses.asdict(each) for each in self.deaths]
        return {**record, **self.more}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """What a server knows of one generation of a key."""

    namespace: str
    key: str
    generation: int
    """Which one of the server's; a later one has a greater number."""
    state: str
    """``held`` (an execution of an earlier generation still ends), ``waiting``, ``running``,
    ``completed`` (its outcome is retained), or ``closed`` (cancelled or forgotten, and its
    execution still ends)."""
    waiters: int = 0
    """Who asked and waits, or has the outcome and has not said so."""
    watchers: int = 0
    """Who is attached, and does not count."""
    lost: int = 0
    """Callers that were lost with their lease, and go on counting."""
    executions: int = 0
    age_s: float = 0.0
    """Since it was first asked for; time in which the server was awake."""
    left_s: float | None = None
    """Until it is cancelled as an orphan or its retention ends; None while neither runs."""
    size_bytes: int = 0
    """Of its name, its retained outcome, and its input while that is held."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """Some of the keys that a server knows, in the order in which they were asked for."""

    keys: tuple[KnownKey, ...]
    next: int | None = None
    """Where the next page begins; None if this is the last one.  There may be more even
    behind a page without keys."""
    generations: int = 0
    """How many there are in the namespace, or in all."""
    size_bytes: int = 0
    """What these take."""

    @classmethod
    def of(cls, record: Any) -> KeyPage:
        """The page for the record on the wire.  ProtocolError if it is none."""
        if not isinstance(record, dict):
            raise ProtocolError(f"a page of keys is of type {type(record).__name__}")
        return _typed(cls, record, keys=tuple(map(_known_key, _checked(record, "keys", list, []))))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningRollout:
    """What a server knows of one execution that runs: a rollout, or a group."""

    number: int
    """Which one of the server's; a later one has a greater number."""
    request: str = ""
    """The request id, as logs have it."""
    client: str = ""
    """The name of the client that asks; empty for the work of a key."""
    namespace: str | None = None
    key: str | None = None
    """None if it has no key."""
    environment: str = ""
    state: str = "running"
    """``running``, or ``stopping`` if it was told to stop and has not ended."""
    executions: int | None = None
    """Which execution of its request it is; None while it is stopping.  Attempts within it
    are in the note."""
    worker: str = ""
    age_s: float = 0.0
    """Since it was dispatched; time in which the server was awake."""
    note: Note = dataclasses.field(default_factory=dict)
    """What it last noted of how far it is."""
    where: str = ""
    """If the loop of its worker is blocked: the innermost lines of where that stands."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningPage:
    """Some of the executions that run, the oldest first."""

    running: tuple[RunningRollout, ...]
    next: int | None = None
    """Where the next page begins; None if this is the last one."""
    total: int = 0
    """How many run in all."""
    typical_s: float | None = None
    """The p50 of how long the last ones took; None while none has ended."""

    @classmethod
    def of(cls, record: Any) -> RunningPage:
        """The page for the record on the wire.  ProtocolError if it is none."""
        if not isinstance(record, dict):
            raise ProtocolError(f"a page of what runs is of type {type(record).__name__}")
        rows = _checked(record, "running", list, [])
        return _typed(cls, record, running=tuple(map(_running, rows)))


def _running(record: Any) -> RunningRollout:
    if not isinstance(record, dict):
        raise ProtocolError(f"a running rollout is of type {type(record).__name__}")
    names: dict[str, str | None] = {}
    for part in ("namespace", "key"):
        name = _checked(record, part, (bytes, type(None)), None)
        names[part] = None if name is None else name.decode("utf-8", "backslashreplace")
    note = notes.decode(_checked(record, "note", bytes, b""))
    return _typed(RunningRollout, record, note=note, **names)


def _known_key(record: Any) -> KnownKey:
    if not isinstance(record, dict):
        raise ProtocolError(f"a key is of type {type(record).__name__}")
    names = {
        name: _checked(record, name, bytes, b"").decode("utf-8", "backslashreplace")
        for name in ("namespace", "key")
    }
    return _typed(KnownKey, record, **names)


_OF_STATUS = frozenset(field.name for field in dataclasses.fields(StatusRecord))


def _status(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a status record that are no plain data."""
    closing = _checked(record, "closing", (dict, type(None)), None)
    return {
        "status": _member(ServerStatus, record, "status"),
        "closing": None if closing is None else _closing(closing),
    }


def _closing(record: Mapping[str, Any]) -> ClosingRecord:
    return _typed(ClosingRecord, record, stage=_member(ClosingStage, record, "stage"))


def _member(cls: Any, record: Mapping[str, Any], name: str) -> Any:
    try:
        return cls(record.get(name))
    except ValueError:
        raise ProtocolError(f"{name} is {record.get(name)!r:.80}: no {cls.__name__}") from None


def _checked(record: Mapping[str, Any], name: str, types: Any, default: Any) -> Any:
    found = record.get(name, default)
    if not isinstance(found, types):
        raise ProtocolError(f"{name} is of type {type(found).__name__}")
    return found


def _typed(cls: type[T], record: Mapping[str, Any], **made: Any) -> T:
    """A record of plain data as a dataclass.  ``made``: the fields that are made already."""
    if not isinstance(record, dict) or not all(isinstance(key, str) for key in record):
        raise ProtocolError(
            f"a record is of type {type(record).__name__}, or has keys that are no text"
        )
    fields = {field.name: field for field in dataclasses.fields(cls)}
    more = {key: value for key, value in record.items() if key not in fields or key == "more"}
    if "more" in fields:
        made["more"] = more
    for name in fields.keys() & (record.keys() - made.keys()):
        if type(record[name]) not in _PLAIN[str(fields[name].type)]:
            raise ProtocolError(
                f"{name} is of type {type(record[name]).__name__}, and no {fields[name].type}"
            )
        made[name] = record[name]
    try:
        return cls(**made)
    except TypeError as missing:
        raise ProtocolError(f"a record is not whole: {missing}") from None


def _known(record: CacheStats | WorkerStats) -> dict[str, Any]:
    """The fields of a record that have names of their own."""
    names = [field.name for field in dataclasses.fields(record) if field.name != "more"]
    return {name: getattr(record, name) for name in names}
