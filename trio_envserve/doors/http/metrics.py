"""``GET /metrics``: every metric, its name, kind and meaning, and where its value is.

A gauge that has a bound names the metric of that.  Labels are of a few fixed values, of
statuses, or of the slots of the pool; never of a key, a session or a caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from ...core.endings import ENDINGS, OTHER_CODE
from ...core.health import ServerStatus
from ...core.status import HOST_STATES, ServerStats, WorkerStats

PREFIX: Final = "trio_envserve_"
HOSTS_MOST: Final = 256
"""Of so many hosts the numbers are told."""
SLOTS_MOST: Final = 4096
"""A server's word for a slot is a label, so there is a bound."""


class DoorCounts(NamedTuple):
    """The door's own counters."""

    connections: int
    connections_limit: int
    calls: int
    calls_limit: int
    bodies_bytes: int
    bodies_bytes_limit: int
    answers_bytes: int
    answers_bytes_limit: int
    answers: Mapping[int, int]
    """By status."""


class Seen(NamedTuple):
    """The values of one scrape."""

    door: DoorCounts
    stats: ServerStats | None
    """None if the server does not answer."""


Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values by those of the labels."""


class Metric(NamedTuple):
    """One metric."""

    name: str
    """Without the prefix, and without ``_total`` of a counter."""
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    read: Callable[[Seen], Samples]
    labels: tuple[str, ...] = ()
    bound: str = ""
    """The metric that this one does not pass."""
    durations: Callable[[ServerStats], Mapping[str, float]] | None = None
    """Of a histogram: the record of its durations."""

    @property
    def full_name(self) -> str:
        """As a query has it."""
        return f"{PREFIX}{self.name}" + ("_total" if self.kind == "counter" else "")

    @property
    def unit(self) -> str:
        """Of its values; empty where things are counted."""
        return next((unit for unit in ("seconds", "bytes") if f"_{unit}" in self.name), "")


# -- what makes the rows --------------------------------------------------------


def _number(field: str) -> Callable[[Seen], Samples]:
    """A number of the statistics."""

    def read(seen: Seen) -> Samples:
        return [] if seen.stats is None else [((), getattr(seen.stats, field))]

    return read


def _more(field: str) -> Callable[[Seen], Samples]:
    """A number that the server's shell adds to them."""

    def read(seen: Seen) -> Samples:
        found = None if seen.stats is None else seen.stats.more.get(field)
        return [((), found)] if isinstance(found, (int, float)) else []

    return read


def _bound(field: str) -> Callable[[Seen], Samples]:
    def read(seen: Seen) -> Samples:
        found = None if seen.stats is None else seen.stats.bounds.get(field)
        return [((), found)] if isinstance(found, (int, float)) else []

    return read


def _limit_of(name: str) -> str:
    """``kept_limit_bytes`` for ``kept_bytes``: the unit comes last."""
    return f"{name[:-6]}_limit_bytes" if name.endswith("_bytes") else f"{name}_limit"


def _bounded(name: str, meaning: str, field: str) -> list[Metric]:
    """A number of the statistics, and its bound."""
    limit = _limit_of(name)
    return [
        Metric(name, "gauge", meaning, _number(field), bound=limit),
        Metric(limit, "gauge", f"The most that {PREFIX}{name} may be.", _bound(field)),
    ]


def _of_door(name: str, meaning: str, field: str) -> list[Metric]:
    """A number of the door, and its bound."""
    limit = _limit_of(name)

    def read(seen: Seen) -> Samples:
        return [((), getattr(seen.door, field))]

    def read_limit(seen: Seen) -> Samples:
        return [((), getattr(seen.door, f"{field}_limit"))]

    return [
        Metric(name, "gauge", meaning, read, bound=limit),
        Metric(limit, "gauge", f"The most that {PREFIX}{name} may be.", read_limit),
    ]


def _cache(name: str, meaning: str, field: str) -> Metric:
    def read(seen: Seen) -> Samples:
        return [] if seen.stats is None else [((), getattr(seen.stats.cache, field))]

    return Metric(name, "counter", meaning, read)


def _models(name: str, meaning: str, label: str = "", **fields: str) -> Metric:
    """A count of model calls: the fields of the statistics, by the label's value."""

    def read(seen: Seen) -> Samples:
        usage = {} if seen.stats is None else seen.stats.model_usage
        for value, field in fields.items():
            found = usage.get(field)
            if isinstance(found, (int, float)):
                yield (value,) if label else (), found

    return Metric(name, "counter", meaning, read, (label,) if label else ())


def _failures(seen: Seen) -> Samples:
    """Ends without a result by code: all codes of the table, so that a rate has a beginning."""
    if seen.stats is not None:
        found = seen.stats.failures
        for code in (*ENDINGS, OTHER_CODE):
            yield (code,), found.get(code, 0)


def _worker(
    name: str, kind: Literal["gauge", "counter"], meaning: str, field: str, bound: str = ""
) -> Metric:
    """A number of each worker: of the newest life in its slot."""

    def read(seen: Seen) -> Samples:
        for slot, worker in _newest(seen.stats).items():
            yield (str(slot),), float(getattr(worker, field))

    return Metric(name, kind, meaning, read, ("slot",), bound)


def _host(name: str, meaning: str, field: str) -> Metric:
    """A number of each host."""

    def read(seen: Seen) -> Samples:
        for host in () if seen.stats is None else seen.stats.hosts[:HOSTS_MOST]:
            yield (host.host,), float(getattr(host, field))

    return Metric(name, "gauge", meaning, read, ("host",))


def _host_states(seen: Seen) -> Samples:
    for host in () if seen.stats is None else seen.stats.hosts[:HOSTS_MOST]:
        for state in HOST_STATES:
            yield (host.host, state), float(host.state == state)


def _newest(stats: ServerStats | None) -> dict[int, WorkerStats]:
    """The newest life in each slot of the pool."""
    found: dict[int, WorkerStats] = {}
    for worker in () if stats is None else stats.per_worker:
        known = found.get(worker.slot)
        older = known is not None and known.restarts > worker.restarts
        # Slots of hosts that are gone are not among the workers that there should be.
        most = SLOTS_MOST if stats is None or worker.host else stats.workers
        if 0 <= worker.slot < most and not older:
            found[worker.slot] = worker
    return found


def _up(seen: Seen) -> Samples:
    return [((), float(seen.stats is not None))]


def _status(seen: Seen) -> Samples:
    if seen.stats is not None:
        for status in ServerStatus:
            yield (status.value,), float(seen.stats.status is status)


def _info(seen: Seen) -> Samples:
    return [] if seen.stats is None else [((seen.stats.environment, seen.stats.epoch), 1.0)]


def _closing(seen: Seen) -> Samples:
    closing = None if seen.stats is None else seen.stats.closing
    return [] if closing is None else [((), closing.left_s)]


def _answers(seen: Seen) -> Samples:
    return [((str(status),), count) for status, count in sorted(seen.door.answers.items())]


def _durations(
    name: str, meaning: str, record: Callable[[ServerStats], Mapping[str, float]]
) -> Metric:
    return Metric(name, "histogram", meaning, lambda seen: [], durations=record)


# -- the rows -------------------------------------------------------------------

METRICS: Final[tuple[Metric, ...]] = (
    Metric("server_up", "gauge", "1 if the server answers its door, else 0; then only the "
           "metrics of the door are there.", _up),
    Metric("server_info", "gauge", "Always 1: the environment, and the server's start.", _info,
           ("environment", "epoch")),
    Metric("server_status", "gauge", "1 for the status that the server has, 0 for the others.",
           _status, ("status",)),
    Metric("closing_left_seconds", "gauge", "Until the next stage of closing at the latest; "
           "there only while the server is stopping.", _closing),
    Metric("workers_ready", "gauge", "Workers that are ready.", _number("ready"), bound="workers"),
    Metric("workers", "gauge", "Workers that there should be.", _number("workers")),
    Metric("workers_least", "gauge", "Workers that there should be at least.",
           _number("workers_least")),
    Metric("workers_most", "gauge", "Workers that there may be; the same where their number does "
           "not change.", _number("workers_most")),
    Metric("oldest_wait_seconds", "gauge", "Wait of the oldest request that a worker could "
           "take.", _number("oldest_wait_s")),
    Metric("worker_restarts", "counter", "Worker processes beyond the first of each slot.",
           _number("worker_restarts")),
    Metric("host_state", "gauge", "1 for the state that the host has, 0 for the others.",
           _host_states, ("host", "state")),
    _host("host_workers_ready", "Workers of the host that are ready.", "ready"),
    _host("host_workers", "Workers that the host should have.", "slots"),
    _host("host_running", "Executions on the host that have not ended.", "running"),
    _host("host_heard_seconds", "Since the host's last beat that was answered.", "heard_s"),
    _host("host_lost_seconds", "Until the host is taken for lost, if no other beat comes.",
          "lost_s"),
    _host("host_load", "Load average of the host over a minute, for each processor.", "load"),
    _host("host_memory_bytes", "Memory of the host that can still be had.", "memory_bytes"),
    *_bounded("sessions", "Sessions that the server holds.", "sessions"),
    *_bounded("requests_waiting", "Requests that wait for a worker.", "waiting"),
    *_bounded("executions_running", "Executions, those being stopped included.", "running"),
    *_bounded("requests_held_bytes", "Bodies of requests that may still have to be dispatched.",
              "held_bytes"),
    *_bounded("outcomes_kept", "Outcomes that their clients do not have yet.", "kept"),
    *_bounded("outcomes_kept_bytes",
              "Size of kept outcomes, those on their way from workers included.", "kept_bytes"),
    Metric("outcomes_announced", "gauge", "Outcomes that wait at their workers for room.",
           _number("announced")),
    *_bounded("outcomes_announced_bytes", "Size of announced outcomes.", "announced_bytes"),
    *_bounded("keys", "Generations of keys whose outcomes are to come or retained.", "keys"),
    *_bounded("keys_bytes", "Size of keys: names, retained outcomes, inputs that wait.",
              "keys_bytes"),
    *_bounded("journal_keys", "Keys besides, whose outcomes are in the journal only.",
              "journal_keys"),
    *_bounded("journal_bytes", "Size of those keys on the disk: names, inputs, outcomes.",
              "journal_bytes"),
    _durations("request_wait_seconds", "From a request's entering the queue to its dispatch; "
               "again for each further execution.", lambda stats: stats.waits),
    _durations("execution_run_seconds", "From a dispatch to the worker's report of its end.",
               lambda stats: stats.runs),
    _durations("model_call_seconds", "A model call of a rollout, answered or not.",
               lambda stats: stats.model_calls),
    _models("model_calls", "Model calls that have ended.", "result",
            answered="calls", failed="failed"),
    _models("model_retries", "How often a model call was sent to its endpoint again.",
            number="retries"),
    _models("model_tokens", "Tokens, as far as the models report them.", "kind",
            prompt="prompt_tokens", completion="completion_tokens"),
    _cache("requests_received", "Requests that have come, repeated transmissions included.",
           "requests"),
    _cache("requests_entered", "Requests that were new and let in.", "entered"),
    _cache("requests_coalesced", "Transmissions that joined a live execution.", "coalesced"),
    _cache("requests_replayed", "Answers from a kept outcome.", "replayed"),
    _cache("requests_conflicting", "Refused: the id names another payload.", "conflicts"),
    _cache("requests_spent", "Refused: the id was finished before.", "spent"),
    _cache("requests_refused_for_now", "Refused for now: a bound is reached.", "refused_for_now"),
    _cache("requests_completed",
           "Executions that brought an outcome: that of a key once, whoever waits.", "completed"),
    _cache("requests_finished", "Requests whose clients are done with them.", "finished"),
    _cache("requests_cancelled",
           "Work that was cancelled before it had an outcome: that of a key once.", "cancelled"),
    Metric("requests_failed", "counter", "Requests that ended without a result, by the code of "
           "their ending: the work of a key once.", _failures, ("code",)),
    _cache("requests_lost", "Requests that ended as worker lost.", "lost"),
    _cache("requests_late", "Requests that ended by their deadline.", "deadlines"),
    _cache("executions_dispatched", "Executions that were dispatched.", "dispatched"),
    _cache("executions_repeated", "Dispatched executions that were not the first of their request.",
           "reruns"),
    _cache("outcomes_stray", "Outcomes that came for requests that wanted none.",
           "stray_outcomes"),
    _cache("sessions_opened", "Sessions that were opened.", "sessions_opened"),
    _cache("sessions_refused", "Hellos that got no session.", "sessions_refused"),
    _cache("sessions_ended", "Sessions that have ended.", "sessions_ended"),
    Metric("executions_stray", "counter", "Outcomes of executions that had already ended.",
           _number("strays")),
    Metric("messages_malformed", "counter", "Messages that the protocol does not allow.",
           _number("malformed")),
    Metric("messages_fenced", "counter", "Messages of what is not, or no longer, a worker of the "
           "server.", _number("fenced")),
    Metric("messages_undelivered", "counter", "Messages that had no peer or no room; the loss is "
           "repaired.", _more("undelivered")),
    Metric("statistics_bad", "counter", "Entries of workers' statistics that were left out.",
           _number("bad_statistics")),
    Metric("backlog_bytes", "gauge", "Bytes that wait for slow clients.", _more("backlog_bytes")),
    Metric("router_lag_p99_seconds", "gauge", "How late the server's loop was in the last minute, "
           "but for a hundredth of the samples.", _more("router_lag_p99_s")),
    Metric("router_lag_max_seconds", "gauge", "How late it was at most.",
           _more("router_lag_max_s")),
    _worker("worker_pending", "gauge", "Executions dispatched to the worker that have not ended.",
            "pending", "worker_pending_limit"),
    _worker("worker_pending_limit", "gauge", "The most that may run on the worker at once.",
            "capacity"),
    _worker("worker_executions_done", "counter", "Executions that have ended on the worker.",
            "done"),
    _worker("worker_executions_failed", "counter", "Executions that ended without a result.",
            "failed"),
    _worker("worker_memory_bytes", "gauge", "Memory of the worker's process.", "memory_bytes"),
    _worker("worker_lag_seconds", "gauge", "How late the worker's loop is.", "lag_s"),
    _worker("worker_blocked", "gauge", "1 if the worker's loop is blocked.", "blocked"),
    _worker("worker_silent", "gauge", "1 if the worker gives no sign of life.", "silent"),
    *_of_door("http_connections", "Connections of the door.", "connections"),
    *_of_door("http_calls", "Calls that the door has at once.", "calls"),
    *_of_door("http_bodies_bytes", "Bodies of requests that the door holds.", "bodies_bytes"),
    *_of_door("http_answers_bytes", "Answers that callers have not taken yet.", "answers_bytes"),
    Metric("http_answers", "counter", "Answers of the door by their status.", _answers,
           ("status",)),
)  # fmt: skip
"""All of them, in the order in which they are written."""
