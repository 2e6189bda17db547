"""What is measured: loads, cases, and the marks that are to be reached.

A *load* is what a client program does for a while: so many requests in flight,
so large.  A *case* is a load for several contenders, run in turn; a *special*
case is a procedure of its own (:mod:`.special`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

MB = 1_000_000

OURS, BARE, PLAIN, FRAMES, PEER = "ours", "bare", "plain", "frames", "peer"
ALL = (OURS, BARE, PLAIN, FRAMES, PEER)
"""In the order of the report.  ``bare`` has the sockets and tasks of ours without the
protocol; ``frames`` is the plain loop with its router tuned: what there is to win
where a message is one message."""

Response: TypeAlias = int | Literal["lists", "arrays"]
"""Bytes, or a realistic rollout with its token ids and logprobs as lists or arrays."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What a client program is asked to do."""

    in_flight: int
    request_bytes: int = 200
    response: Response = 200
    clients: int = 1
    """Connections; the requests in flight are shared out among them."""

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
    contenders: tuple[str, ...] = (OURS, PLAIN, PEER)
    peer_load: Load | None = None
    """What the peer does instead, where it cannot do the same."""

    def load_of(self, contender: str) -> Load:
        """What this contender is asked to do."""
        assert self.load is not None
        return self.peer_load if contender == PEER and self.peer_load else self.load


_LISTS = Load(64, response="lists")

CASES = (
    Case("inflight-1", "1 in flight", Load(1), contenders=ALL),
    Case("inflight-64", "64 in flight", Load(64), contenders=ALL),
    Case("inflight-100", "100 in flight", Load(100), contenders=(OURS,)),
    Case("inflight-1000", "1,000 in flight", Load(1000), contenders=ALL),
    Case("inflight-10000", "10,000 in flight", Load(10_000)),
    Case("request-1mb", "1 MB requests, 8 in flight", Load(8, request_bytes=MB)),
    Case("response-1mb", "1 MB responses, 8 in flight", Load(8, response=MB)),
    Case("request-16mb", "16 MB requests, 2 in flight", Load(2, request_bytes=16 * MB)),
    Case("response-16mb", "16 MB responses, 2 in flight", Load(2, response=16 * MB)),
    Case("rollout-lists", "realistic rollout, lists", _LISTS, contenders=(OURS, PEER)),
    Case(
        "rollout-arrays", "realistic rollout, arrays (the peer: lists)",
        Load(64, response="arrays"), contenders=(OURS, PEER), peer_load=_LISTS,
    ),
    Case("clients-16", "16 clients, 1,000 in flight", Load(1000, clients=16)),
    Case("workers-2", "2 workers, 1,000 in flight", Load(1000), 2, (OURS, PLAIN)),
    Case("workers-8", "8 workers, 1,000 in flight", Load(1000), 8, (OURS, PLAIN)),
    Case("session-done", "1,000 against 100,000 requests done in the session"),
    Case("memory-kept", "10,000 unacknowledged outcomes of 10 kB"),
    Case("idle-pending", "1,000 long rollouts pending"),
    Case("recovery-worker", "a worker is killed"),
    Case("recovery-cut", "a connection is cut"),
    Case("recovery-restart", "a server is killed and started again"),
    Case("start", "import, and a worker of the default environment"),
)  # fmt: skip


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

    def reached(self, value: float) -> bool:
        """Whether this figure is good enough."""
        return value >= self.bound if self.at_least else value <= self.bound


def _throughput(case: str) -> tuple[Mark, Mark]:
    return (
        Mark(case, "per_s", 5.0, True, PEER),
        Mark(case, "per_s", 0.6, True, PLAIN),
    )


def _large(case: str) -> tuple[Mark, Mark]:
    return (
        Mark(case, "mb_per_s", 2.0, True, PEER),
        Mark(case, "mb_per_s", 0.8, True, PLAIN),
    )


MARKS = (
    *_throughput("inflight-64"),
    *_throughput("inflight-1000"),
    Mark("inflight-1", "p50_ms", 0.5, False, PEER),
    Mark("inflight-1", "p50_ms", 1.8, False, PLAIN),
    *_large("request-1mb"),
    *_large("response-1mb"),
    *_large("request-16mb"),
    *_large("response-16mb"),
    Mark("inflight-1000", "router_us", 0.2, False, PEER),
    Mark("inflight-1000", "router_us", 1.2, False, PLAIN),
    Mark("rollout-arrays", "per_s", 4.0, True, PEER),
    Mark("inflight-10000", "router_us", 1.25, False, over="inflight-100"),
    Mark("session-done", "late_over_early", 1.25, False),
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
