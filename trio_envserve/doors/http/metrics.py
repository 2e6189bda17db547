"""``GET /metrics``: every metric, its name, kind and meaning, and where its value is.

Most are declared with the fields of the statistics (:mod:`~trio_envserve.core.status`).

A gauge that has a bound names the metric of that.  Labels are of a few fixed values, of
statuses, of the slots of the pool, or the names that environments give to permits; never of a key,
a session or a caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias

from ...core.endings import ENDINGS, OTHER_CODE
from ...core.health import ServerStatus
from ...core.status import (
    HOST_STATES,
    CacheStats,
    HostStats,
    PermitStats,
    ServerStats,
    Stat,
    WorkerStats,
    gauge,
)

PREFIX: Final = "trio_envserve_"
HOSTS_MOST: Final = 256
"""Number of hosts whose numbers are told."""
PERMITS_MOST: Final = 32
"""Number of names of permits of which the numbers are told."""
SLOTS_MOST: Final = 4096
"""A server's word for a slot is a label, so there is a bound."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DoorCounts:
    """The door's own counters."""

    connections: int = gauge("http_connections", "Connections of the door.", bounded=True)
    calls: int = gauge("http_calls", "Calls that the door has at once.", bounded=True)
    bodies_bytes: int = gauge(
        "http_bodies_bytes", "Bodies of requests that the door holds.", bounded=True
    )
    answers_bytes: int = gauge(
        "http_answers_bytes", "Answers that callers have not taken yet.", bounded=True
    )
    bounds: Mapping[str, float]
    """The limits of the door, by name."""
    answers: Mapping[int, int]
    """Number of answers, by status."""


class ScrapedValues(NamedTuple):
    """The values of one scrape."""

    door: DoorCounts
    stats: ServerStats | None
    """None if the server does not answer."""


Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Values by those of the labels."""


class Metric(NamedTuple):
    """One metric."""

    name: str
    """Name without the prefix, and without ``_total`` of a counter."""
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    read: Callable[[ScrapedValues], Samples]
    labels: tuple[str, ...] = ()
    bound: str = ""
    """The metric that this one does not pass."""
    durations: str = ""
    """The field of the statistics that a histogram shows."""

    @property
    def full_name(self) -> str:
        """Name as a query has it."""
        return f"{PREFIX}{self.name}" + ("_total" if self.kind == "counter" else "")

    @property
    def unit(self) -> str:
        """Unit of its values; empty where things are counted."""
        return next((unit for unit in ("seconds", "bytes") if f"_{unit}" in self.name), "")


# -- what makes the rows --------------------------------------------------------


def _number(seen: object, path: str) -> Iterable[float]:
    """The number at a path of fields and entries; nothing where there is none."""
    found = seen
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return [float(found)] if isinstance(found, (int, float)) else []


def _rows(record: type, make: Callable[[str, Stat], Iterable[Metric]]) -> Iterable[Metric]:
    """The metrics that a record of the statistics declares."""
    for field in dataclasses.fields(record):
        if "stat" in field.metadata:
            yield from make(field.name, field.metadata["stat"])


def _at(path: str) -> Callable[[str, Stat], Iterable[Metric]]:
    """Makes the metrics of the record at a path: each number, and behind it its bound."""

    def make(field: str, stat: Stat) -> Iterable[Metric]:
        name, bound = stat.metric, _limit_of(stat.metric) if stat.bounded else stat.bound
        if stat.kind == "histogram":
            yield Metric(name, stat.kind, stat.meaning, lambda seen: [], durations=field)
            return
        yield _one(stat.kind, name, stat.meaning, f"{path}.{field}", bound)
        if stat.bounded:
            most = f"The most that {PREFIX}{name} may be."
            yield _one("gauge", bound, most, f"{path}.bounds.{field}")

    return make


def _limit_of(name: str) -> str:
    """``kept_limit_bytes`` for ``kept_bytes``: the unit comes last."""
    return f"{name[:-6]}_limit_bytes" if name.endswith("_bytes") else f"{name}_limit"


def _one(
    kind: Literal["gauge", "counter"], name: str, meaning: str, path: str, bound: str = ""
) -> Metric:
    """A number at a path."""
    read = partial(_number, path=path)
    return Metric(name, kind, meaning, lambda seen: [((), n) for n in read(seen)], bound=bound)


def _by_label(name: str, meaning: str, label: str, **fields: str) -> Metric:
    """Counts of model calls: the fields of the statistics, by the label's value."""

    def read(seen: ScrapedValues) -> Samples:
        return [
            ((value,), number) for value, field in fields.items()
            for number in _number(seen, f"stats.model_usage.{field}")
        ]  # fmt: skip

    return Metric(name, "counter", meaning, read, (label,))


def _of_each(
    label: str, records: Callable[[ServerStats], Mapping[str, object]]
) -> Callable[[str, Stat], Iterable[Metric]]:
    """Makes the metrics of several records of one kind, which a label tells apart."""

    def make(field: str, stat: Stat) -> Iterable[Metric]:
        def read(seen: ScrapedValues) -> Samples:
            found = {} if seen.stats is None else records(seen.stats)
            return [((name,), float(getattr(each, field))) for name, each in found.items()]

        yield Metric(stat.metric, stat.kind, stat.meaning, read, (label,), stat.bound)

    return make


def _workers(stats: ServerStats) -> dict[str, WorkerStats]:
    """The newest life in each slot of the pool."""
    found: dict[str, WorkerStats] = {}
    for worker in stats.per_worker:
        known = found.get(str(worker.slot))
        older = known is not None and known.restarts > worker.restarts
        # Slots of hosts that are gone are not among the workers that there should be.
        most = SLOTS_MOST if worker.host else stats.workers
        if 0 <= worker.slot < most and not older:
            found[str(worker.slot)] = worker
    return found


def _hosts(stats: ServerStats) -> dict[str, HostStats]:
    return {host.host: host for host in stats.hosts[:HOSTS_MOST]}


def _permits(stats: ServerStats) -> dict[str, PermitStats]:
    return {permit.name: permit for permit in stats.permits[:PERMITS_MOST]}


def _host_states(seen: ScrapedValues) -> Samples:
    return [
        ((name, state), float(host.state == state))
        for name, host in ({} if seen.stats is None else _hosts(seen.stats)).items()
        for state in HOST_STATES
    ]  # fmt: skip


def _failures(seen: ScrapedValues) -> Samples:
    """Ends without a result by code: all codes of the table, so that a rate has a beginning."""
    found = None if seen.stats is None else seen.stats.failures
    codes = () if found is None else (*ENDINGS, OTHER_CODE)
    return [((code,), (found or {}).get(code, 0)) for code in codes]


def _up(seen: ScrapedValues) -> Samples:
    return [((), float(seen.stats is not None))]


def _status(seen: ScrapedValues) -> Samples:
    stats = seen.stats
    return [] if stats is None else [((s.value,), float(stats.status is s)) for s in ServerStatus]


def _info(seen: ScrapedValues) -> Samples:
    return [] if seen.stats is None else [((seen.stats.environment, seen.stats.epoch), 1.0)]


def _journal_failed(seen: ScrapedValues) -> Samples:
    return [] if seen.stats is None else [((), float(bool(seen.stats.journal)))]


def _answers(seen: ScrapedValues) -> Samples:
    return [((str(status),), count) for status, count in sorted(seen.door.answers.items())]


# -- the rows -------------------------------------------------------------------

METRICS: Final[tuple[Metric, ...]] = (
    Metric("server_up", "gauge", "1 if the server answers its door, else 0; then only the metrics "
           "of the door are there.", _up),
    Metric("server_info", "gauge", "Always 1: the environment, and the server's start.", _info,
           ("environment", "epoch")),
    Metric("server_status", "gauge", "1 for the status that the server has, 0 for the others.",
           _status, ("status",)),
    Metric("journal_failed", "gauge", "1 while the journal cannot save, else 0. Then nothing new "
           "begins under a key, and no new outcome of one is told.", _journal_failed),
    _one("gauge", "closing_left_seconds", "Until the next stage of closing at the latest; there "
         "only while the server is stopping.", "stats.closing.left_s"),
    *_rows(ServerStats, _at("stats")),
    _by_label("model_calls", "Model calls that have ended.", "result", answered="calls",
              failed="failed"),
    _one("counter", "model_retries", "How often a model call was sent to its endpoint again.",
         "stats.model_usage.retries"),
    _by_label("model_tokens", "Tokens, as far as the models report them.", "kind",
              prompt="prompt_tokens", completion="completion_tokens"),
    *_rows(CacheStats, _at("stats.cache")),
    Metric("requests_failed", "counter", "Requests that ended without a result, by the code of "
           "their ending: the work of a key once.", _failures, ("code",)),
    _one("counter", "messages_undelivered", "Messages that had no peer or no room; the loss is "
         "repaired.", "stats.more.undelivered"),
    _one("gauge", "backlog_bytes", "Bytes that wait for slow clients.",
         "stats.more.backlog_bytes"),
    _one("gauge", "router_lag_p99_seconds", "How late the server's loop was in the last minute, "
         "but for a hundredth of the samples.", "stats.more.router_lag_p99_s"),
    _one("gauge", "router_lag_max_seconds", "How late it was at most.",
         "stats.more.router_lag_max_s"),
    *_rows(WorkerStats, _of_each("slot", _workers)),
    Metric("host_state", "gauge", "1 for the state that the host has, 0 for the others.",
           _host_states, ("host", "state")),
    *_rows(HostStats, _of_each("host", _hosts)),
    *_rows(PermitStats, _of_each("permit", _permits)),
    *_rows(DoorCounts, _at("door")),
    Metric("http_answers", "counter", "Answers of the door by their status.", _answers,
           ("status",)),
)  # fmt: skip
"""All of them, in the order in which they are written."""
