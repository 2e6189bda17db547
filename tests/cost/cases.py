"""The cases of the benchmark: loads, and the marks that are to be reached.

A *load* is what a client program does for a while: so many requests in flight,
so large.  A *case* is a load for several contenders, run in turn; a *special*
case is a procedure of its own (:mod:`.special`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

MB = 1_000_000

OURS, BARE, PLAIN, FRAMES = "ours", "bare", "plain", "frames"
PEER_04, PEER_03 = "peer-0.4", "peer-0.3"
BOTH_PEERS = (PEER_04, PEER_03)
ALL = (OURS, BARE, PLAIN, FRAMES, *BOTH_PEERS)
"""In the order of the report.  ``bare`` has the sockets and tasks of ours without the
protocol; ``frames`` is the plain loop with its router tuned: what there is to win
where a message is one message."""

Response: TypeAlias = int | Literal["lists", "arrays"]
"""Bytes, or a realistic rollout with its token ids and logprobs as lists or arrays."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """The work of a client program."""

    in_flight: int
    request_bytes: int = 200
    response: Response = 200
    clients: int = 1
    """Connections; the requests in flight are shared out among them."""
    together: bool = False
    """Ours asks by one ``run_many``, not by a task for each request in flight."""
    keyed: bool = False
    """Ours names each request by a key of its own."""

    def record(self, seconds: float, first: int) -> dict[str, Any]:
        """As the programs take it: new requests for so many seconds, each with a
        number of its own from ``first`` on, and then the rest of their answers."""
        return {**dataclasses.asdict(self), "seconds": seconds, "first": first}

    @property
    def carried_bytes(self) -> int:
        """Payload of one request and its response, where it is large; else 0."""
        response = self.response if isinstance(self.response, int) else 0
        size = max(self.request_bytes, response)
        return size if size >= MB else 0


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A line of the report."""

    name: str
    title: str
    load: Load | None = None
    """None: a special case."""
    workers: int = 1
    contenders: tuple[str, ...] = (OURS, PLAIN, *BOTH_PEERS)
    peer_load: Load | None = None
    """The load of the peers, where they cannot do the same."""

    def load_of(self, contender: str) -> Load:
        """The load of this contender."""
        assert self.load is not None
        return self.peer_load if contender in BOTH_PEERS and self.peer_load else self.load


_LISTS = Load(64, response="lists")

CASES = (
    Case("inflight-1", "1 in flight", Load(1), contenders=ALL),
    Case("inflight-64", "64 in flight", Load(64), contenders=ALL),
    Case("inflight-100", "100 in flight", Load(100), contenders=(OURS,)),
    Case("inflight-1000", "1,000 in flight", Load(1000), contenders=ALL),
    Case("run-many-1000", "run_many, 1,000 in flight", Load(1000, together=True)),
    Case("inflight-10000", "10,000 in flight", Load(10_000)),
    Case("request-1mb", "1 MB requests, 8 in flight", Load(8, request_bytes=MB)),
    Case("response-1mb", "1 MB responses, 8 in flight", Load(8, response=MB)),
    Case("request-16mb", "16 MB requests, 2 in flight", Load(2, request_bytes=16 * MB)),
    Case("response-16mb", "16 MB responses, 2 in flight", Load(2, response=16 * MB)),
    Case("rollout-lists", "realistic rollout, lists", _LISTS, contenders=(OURS, *BOTH_PEERS)),
    Case(
        "rollout-arrays", "realistic rollout, arrays (the peers: lists)",
        Load(64, response="arrays"), contenders=(OURS, *BOTH_PEERS), peer_load=_LISTS,
    ),
    Case("clients-16", "16 clients, 1,000 in flight", Load(1000, clients=16)),
    Case("workers-2", "2 workers, 1,000 in flight", Load(1000), 2, (OURS, PLAIN)),
    Case("workers-8", "8 workers, 1,000 in flight", Load(1000), 8, (OURS, PLAIN)),
    Case("session-done", "1,000 against 100,000 requests done in the session"),
    Case("keyed-calls", "calls with keys, and calls without"),
    Case("curve-64", "64 in flight to a server with keys, and to one without"),
    Case("journal-calls", "calls with keys and a journal, and calls without keys"),
    Case("journal-beside", "calls without keys, beside a journal and without one"),
    Case("journal-restart", "a start on a journal with 1,000,000 keys, after a kill"),
    Case("http-rollouts", "POST /v1/rollouts over 256 connections, and a bare handler"),
    Case("visible-calls", "calls of a server with metrics, page and viewer, and of one without"),
    Case("event-readers", "64 in flight while 200 read events, 50 of them stuck"),
    Case("memory-kept", "10,000 unacknowledged outcomes of 10 kB"),
    Case("idle-pending", "1,000 long rollouts pending"),
    Case("idle-clients", "1,000 clients that ask nothing"),
    Case("many-waiting", "100,000 requests waiting, and cancelled"),
    Case("many-running", "100,000 requests running, and cancelled"),
    Case("recovery-worker", "a worker is killed"),
    Case("recovery-cut", "a connection is cut"),
    Case("recovery-restart", "a server is killed and started again"),
    Case("start", "import, and a worker of the default environment"),
)  # fmt: skip


class Size(NamedTuple):
    """The size of the special cases."""

    outcomes: int = 10_000
    pending: int = 1000
    clients: int = 1000
    requests: int = 100_000
    """Requests that wait or run."""
    idle_s: float = 5.0
    done: int = 100_000
    journal_keys: int = 1_000_000
    readers: int = 200
    """Of events; a quarter of them is stuck."""
    readers_s: float = 3.0
    """A window beside them: events come once a second."""
    window_s: float = 1.0
    pairs: int = 5
    """Windows of each of two that are compared."""


Figures: TypeAlias = "dict[str, float]"
"""Of one round of a special case, by measure."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A figure that is to be reached: a ratio to a contender, or a plain figure."""

    case: str
    measure: str
    bound: float
    at_least: bool
    against: str = ""
    """Empty: the figure itself, of ours."""
    over: str = ""
    """If given, ours in the case ``case`` is divided by ours in this one."""

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"

    @property
    def compared(self) -> str:
        """The contender whose figure divides ours; empty for the figure itself."""
        return self.against or (f"{OURS}, {self.over}" if self.over else "")

    def reached(self, value: float) -> bool:
        """Whether this figure is good enough."""
        return value >= self.bound if self.at_least else value <= self.bound


def _ratios(
    case: str, measure: str, *, peers: float, plain: float | None, at_least: bool
) -> tuple[Mark, ...]:
    """One figure against each contender."""
    marks = [Mark(case, measure, peers, at_least, peer) for peer in BOTH_PEERS]
    if plain is not None:
        marks.append(Mark(case, measure, plain, at_least, PLAIN))
    return tuple(marks)


def _many(case: str) -> tuple[Mark, ...]:
    return (
        Mark(case, "bytes_each", 1000.0, False),
        Mark(case, "sync_ms", 20.0, False),
        Mark(case, "cancel_us", 50.0, False),
    )


MARKS = (
    *_ratios("inflight-64", "per_s", peers=6.0, plain=0.75, at_least=True),
    *_ratios("inflight-1000", "per_s", peers=6.0, plain=1.0, at_least=True),
    *_ratios("run-many-1000", "per_s", peers=8.0, plain=1.0, at_least=True),
    *_ratios("inflight-1", "p50_ms", peers=0.4, plain=3.5, at_least=False),
    *_ratios("request-1mb", "mb_per_s", peers=2.0, plain=0.75, at_least=True),
    *_ratios("response-1mb", "mb_per_s", peers=2.0, plain=0.75, at_least=True),
    *_ratios("request-16mb", "mb_per_s", peers=3.0, plain=0.9, at_least=True),
    *_ratios("response-16mb", "mb_per_s", peers=3.0, plain=0.9, at_least=True),
    *_ratios("inflight-1000", "router_us", peers=0.15, plain=0.8, at_least=False),
    *_ratios("rollout-arrays", "per_s", peers=10.0, plain=None, at_least=True),
    *_many("many-waiting"),
    *_many("many-running"),
    Mark("idle-clients", "core_percent", 5.0, False),
    Mark("inflight-10000", "router_us", 1.25, False, over="inflight-100"),
    Mark("session-done", "late_over_early", 1.25, False),
    Mark("keyed-calls", "keyed_over_plain", 1.25, False),
    Mark("curve-64", "curve_over_keyless", 1.5, False),
    Mark("journal-calls", "keyed_over_plain", 0.5, True),
    Mark("journal-beside", "with_over_without", 1.05, False),
    Mark("journal-restart", "ready_s", 10.0, False),
    Mark("journal-restart", "bytes_each", 200.0, False),
    Mark("http-rollouts", "rate_over_bare", 0.6, True),
    Mark("visible-calls", "visible_over_unseen", 1.05, False),
    Mark("event-readers", "read_over_unread", 1.25, False),
    Mark("memory-kept", "of_their_bytes", 1.15, False),
    Mark("idle-pending", "core_percent", 1.0, False),
    Mark("recovery-worker", "beyond_start_s", 0.3, False),
    Mark("recovery-cut", "seconds", 0.5, False),
    Mark("recovery-restart", "seconds", 1.0, False),
    Mark("start", "import_s", 0.25, False),
    Mark("start", "heavy_modules", 0.0, False),
    Mark("start", "worker_ready_s", 0.6, False),
)


def chosen(patterns: Sequence[str]) -> list[Case]:
    """The cases whose names match one of the patterns (all, if there are none)."""
    if not patterns:
        return list(CASES)
    return [case for case in CASES if any(fnmatch.fnmatch(case.name, p) for p in patterns)]
