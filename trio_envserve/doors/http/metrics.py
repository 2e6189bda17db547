"""``GET /metrics``: every metric, its name, kind and meaning, and where its value is.

A gauge that has a bound names the metric of that.  Labels are of a few fixed values, of
statuses, or of the slots of the pool; never of a key, a session or a caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from ...core.endings import ENDINGS, OTHER_CODE
from ...core.health import ServerStatus
from ...core.status import HOST_STATES, HostStats, ServerStats, WorkerStats

PREFIX: Final = "trio_envserve_"
HOSTS_MOST: Final = 256
"""Of so many hosts the numbers are told."""
SLOTS_MOST: Final = 4096
"""A server's word for a slot is a label, so there is a bound."""


class DoorCounts(NamedTuple):
    """The door's own counters."""

    connections: int
    calls: int
    bodies_bytes: int
    answers_bytes: int
    bounds: Mapping[str, float]
    """Of these, by the name: the limits of the door."""
    answers: Mapping[int, int]
    """By status."""


class Seen(NamedTuple):
    """The values of one scrape."""

    door: DoorCounts
    stats: ServerStats | None
    """None if the server does not answer."""


Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Values by those of the labels."""

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One metric."""

    name: str
    """Without the prefix, and without ``_total`` of a counter."""
    kind: Kind
    meaning: str
    read: Callable[[Seen], Samples]
    labels: tuple[str, ...] = ()
    bound: str = ""
    """The metric that this one does not pass."""
    durations: str = ""
    """Of a histogram: the field of the statistics."""

    @property
    def full_name(self) -> str:
        """As a query has it."""
        return f"{PREFIX}{self.name}" + ("_total" if self.kind == "counter" else "")

    @property
    def unit(self) -> str:
        """Of its values; empty where things are counted."""
        return next((unit for unit in ("seconds", "bytes") if f"_{unit}" in self.name), "")


# -- what makes the rows --------------------------------------------------------


def _number(seen: object, path: str) -> Iterable[float]:
    """The number at a path of fields and entries; nothing where there is none."""
    found = seen
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return [float(found)] if isinstance(found, (int, float)) else []


def _one(kind: Kind, name: str, meaning: str, path: str, bound: str = "") -> Metric:
    """A number of the statistics, or at another path."""
    where = path if path.startswith("door.") else f"stats.{path}"
    return Metric(
        name, kind, meaning, lambda seen: [((), number) for number in _number(seen, where)],
        bound=bound,
    )  # fmt: skip


def _gauge(name: str, meaning: str, path: str, bound: str = "") -> Metric:
    return _one("gauge", name, meaning, path, bound)


def _counter(name: str, meaning: str, path: str) -> Metric:
    return _one("counter", name, meaning, path)


def _bounded(name: str, meaning: str, path: str) -> list[Metric]:
    """A number, and its bound, which stands beside it: the unit of both comes last."""
    limit = f"{name[:-6]}_limit_bytes" if name.endswith("_bytes") else f"{name}_limit"
    of, _, field = path.rpartition(".")
    return [
        _gauge(name, meaning, path, limit),
        _gauge(limit, f"The most that {PREFIX}{name} may be.", f"{of}.bounds.{field}".lstrip(".")),
    ]


def _durations(name: str, meaning: str, field: str) -> Metric:
    return Metric(name, "histogram", meaning, lambda seen: [], durations=field)


def _by_label(name: str, meaning: str, label: str, **paths: str) -> Metric:
    """Counts, by the label's value."""

    def read(seen: Seen) -> Samples:
        return [
            ((value,), number) for value, path in paths.items()
            for number in _number(seen.stats, path)
        ]  # fmt: skip

    return Metric(name, "counter", meaning, read, (label,))


def _worker(name: str, kind: Kind, meaning: str, field: str, bound: str = "") -> Metric:
    """A number of each worker: of the newest life in its slot."""

    def read(seen: Seen) -> Samples:
        newest = _newest(seen.stats).items()
        return [((str(slot),), float(getattr(worker, field))) for slot, worker in newest]

    return Metric(name, kind, meaning, read, ("slot",), bound)


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


def _host(name: str, meaning: str, field: str) -> Metric:
    """A number of each host."""

    def read(seen: Seen) -> Samples:
        return [((host.host,), float(getattr(host, field))) for host in _hosts(seen)]

    return Metric(name, "gauge", meaning, read, ("host",))


def _hosts(seen: Seen) -> Iterable[HostStats]:
    return () if seen.stats is None else seen.stats.hosts[:HOSTS_MOST]


def _host_states(seen: Seen) -> Samples:
    return [
        ((host.host, state), float(host.state == state))
        for host in _hosts(seen) for state in HOST_STATES
    ]  # fmt: skip


def _failures(seen: Seen) -> Samples:
    """Ends without a result by code: all codes of the table, so that a rate has a beginning."""
    found = None if seen.stats is None else seen.stats.failures
    codes = () if found is None else (*ENDINGS, OTHER_CODE)
    return [((code,), (found or {}).get(code, 0)) for code in codes]


def _up(seen: Seen) -> Samples:
    return [((), float(seen.stats is not None))]


def _status(seen: Seen) -> Samples:
    stats = seen.stats
    return [] if stats is None else [((s.value,), float(stats.status is s)) for s in ServerStatus]


def _info(seen: Seen) -> Samples:
    return [] if seen.stats is None else [((seen.stats.environment, seen.stats.epoch), 1.0)]


def _answers(seen: Seen) -> Samples:
    return [((str(status),), count) for status, count in sorted(seen.door.answers.items())]


# -- the rows -------------------------------------------------------------------

METRICS: Final[tuple[Metric, ...]] = (
    Metric("server_up", "gauge", "1 if the server answers its door, else 0; then only the metrics "
           "of the door are there.", _up),
    Metric("server_info", "gauge", "Always 1: the environment, and the server's start.", _info,
           ("environment", "epoch")),
    Metric("server_status", "gauge", "1 for the status that the server has, 0 for the others.",
           _status, ("status",)),
    _gauge("closing_left_seconds", "Until the next stage of closing at the latest; there only "
           "while the server is stopping.", "closing.left_s"),
    _gauge("workers_ready", "Workers that are ready.", "ready", "workers"),
    _gauge("workers", "Workers that there should be.", "workers"),
    _gauge("workers_least", "Workers that there should be at least.", "workers_least"),
    _gauge("workers_most", "Workers that there may be; the same where their number does not "
           "change.", "workers_most"),
    _gauge("oldest_wait_seconds", "Wait of the oldest request that a worker could take.",
           "oldest_wait_s"),
    _counter("worker_restarts", "Worker processes beyond the first of each slot.",
             "worker_restarts"),
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
    *_bounded("outcomes_kept_bytes", "Size of kept outcomes, those on their way from workers "
              "included.", "kept_bytes"),
    _gauge("outcomes_announced", "Outcomes that wait at their workers for room.", "announced"),
    *_bounded("outcomes_announced_bytes", "Size of announced outcomes.", "announced_bytes"),
    *_bounded("keys", "Generations of keys whose outcomes are to come or retained.", "keys"),
    *_bounded("keys_bytes", "Size of keys: names, retained outcomes, inputs that wait.",
              "keys_bytes"),
    *_bounded("journal_keys", "Keys besides, whose outcomes are in the journal only.",
              "journal_keys"),
    *_bounded("journal_bytes", "Size of those keys on the disk: names, inputs, outcomes.",
              "journal_bytes"),
    _durations("request_wait_seconds", "From a request's entering the queue to its dispatch; again "
               "for each further execution.", "waits"),
    _durations("execution_run_seconds", "From a dispatch to the worker's report of its end.",
               "runs"),
    _durations("model_call_seconds", "A model call of a rollout, answered or not.", "model_calls"),
    _by_label("model_calls", "Model calls that have ended.", "result", answered="model_usage.calls",
              failed="model_usage.failed"),
    _counter("model_retries", "How often a model call was sent to its endpoint again.",
             "model_usage.retries"),
    _by_label("model_tokens", "Tokens, as far as the models report them.", "kind",
              prompt="model_usage.prompt_tokens", completion="model_usage.completion_tokens"),
    _counter("requests_received", "Requests that have come, repeated transmissions included.",
             "cache.requests"),
    _counter("requests_entered", "Requests that were new and let in.", "cache.entered"),
    _counter("requests_coalesced", "Transmissions that joined a live execution.",
             "cache.coalesced"),
    _counter("requests_replayed", "Answers from a kept outcome.", "cache.replayed"),
    _counter("requests_conflicting", "Refused: the id names another payload.", "cache.conflicts"),
    _counter("requests_spent", "Refused: the id was finished before.", "cache.spent"),
    _counter("requests_refused_for_now", "Refused for now: a bound is reached.",
             "cache.refused_for_now"),
    _counter("requests_completed", "Executions that brought an outcome: that of a key once, "
             "whoever waits.", "cache.completed"),
    _counter("requests_finished", "Requests whose clients are done with them.", "cache.finished"),
    _counter("requests_cancelled", "Work that was cancelled before it had an outcome: that of a "
             "key once.", "cache.cancelled"),
    Metric("requests_failed", "counter", "Requests that ended without a result, by the code of "
           "their ending: the work of a key once.", _failures, ("code",)),
    _counter("requests_lost", "Requests that ended as worker lost.", "cache.lost"),
    _counter("requests_late", "Requests that ended by their deadline.", "cache.deadlines"),
    _counter("executions_dispatched", "Executions that were dispatched.", "cache.dispatched"),
    _counter("executions_repeated", "Dispatched executions that were not the first of their "
             "request.", "cache.reruns"),
    _counter("outcomes_stray", "Outcomes that came for requests that wanted none.",
             "cache.stray_outcomes"),
    _counter("sessions_opened", "Sessions that were opened.", "cache.sessions_opened"),
    _counter("sessions_refused", "Hellos that got no session.", "cache.sessions_refused"),
    _counter("sessions_ended", "Sessions that have ended.", "cache.sessions_ended"),
    _counter("executions_stray", "Outcomes of executions that had already ended.", "strays"),
    _counter("messages_malformed", "Messages that the protocol does not allow.", "malformed"),
    _counter("messages_fenced", "Messages of what is not, or no longer, a worker of the server.",
             "fenced"),
    _counter("messages_undelivered", "Messages that had no peer or no room; the loss is repaired.",
             "more.undelivered"),
    _counter("statistics_bad", "Entries of workers' statistics that were left out.",
             "bad_statistics"),
    _gauge("backlog_bytes", "Bytes that wait for slow clients.", "more.backlog_bytes"),
    _gauge("router_lag_p99_seconds", "How late the server's loop was in the last minute, but for a "
           "hundredth of the samples.", "more.router_lag_p99_s"),
    _gauge("router_lag_max_seconds", "How late it was at most.", "more.router_lag_max_s"),
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
    *_bounded("http_connections", "Connections of the door.", "door.connections"),
    *_bounded("http_calls", "Calls that the door has at once.", "door.calls"),
    *_bounded("http_bodies_bytes", "Bodies of requests that the door holds.", "door.bodies_bytes"),
    *_bounded("http_answers_bytes", "Answers that callers have not taken yet.",
              "door.answers_bytes"),
    Metric("http_answers", "counter", "Answers of the door by their status.", _answers,
           ("status",)),
)  # fmt: skip
"""All of them, in the order in which they are written."""
