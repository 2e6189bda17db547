"""The cases: what each measures, who takes part, and the figures that are to be reached."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from functools import partial

from tests.cost import special
from tests.cost.load import MB, Load
from tests.cost.run import ALONE, HTTP, OURS, PEER, PLAIN, Case, Mark, Setup, Side

ASKED_S = 1.0
"""Retention of keyed calls and the tick that ends it: a part of what they cost."""
CALLS = Load(256)
KEYED = Load(256, keyed=True)
WEB = ("--http", "127.0.0.1:0")
JOURNAL = ("--journal", "NEW")


def beside(
    load: Load, *others: str, workers: int = 1, theirs: Load | None = None
) -> tuple[Side, ...]:
    """Ours beside others."""
    return tuple(
        Side(name, theirs if theirs and name == PEER else load, Setup(name, workers))
        for name in (OURS, *others)
    )


def times(measure: str, sense: str, *, peer: float, plain: float) -> tuple[Mark, ...]:
    """One figure against each of the others."""
    return Mark(measure, sense, peer, PEER), Mark(measure, sense, plain, PLAIN)


MANY = (
    Mark("bytes_each", "<=", 1000), Mark("sync_ms", "<=", 20), Mark("cancel_us", "<=", 50),
)  # fmt: skip

CASES = (
    Case("inflight-1", "1 in flight", beside(Load(1), PLAIN, PEER),
         times("p50_ms", "<=", peer=0.4, plain=3.5)),
    Case("inflight-64", "64 in flight", beside(Load(64), PLAIN, PEER),
         times("per_s", ">=", peer=6, plain=0.75)),
    Case("inflight-1000", "1,000 in flight", beside(Load(1000), PLAIN, PEER),
         (*times("per_s", ">=", peer=6, plain=1),
          *times("router_us", "<=", peer=0.15, plain=0.8))),
    Case("run-many-1000", "run_many, 1,000 in flight",
         beside(Load(1000, together=True), PLAIN, PEER), times("per_s", ">=", peer=8, plain=1)),
    Case("inflight-10000", "10,000 in flight",
         (*beside(Load(10_000), PLAIN, PEER), Side("ours, 100 in flight", Load(100))),
         (Mark("router_us", "<=", 1.25, "ours, 100 in flight"),)),
    Case("request-1mb", "1 MB requests, 8 in flight",
         beside(Load(8, request_bytes=MB), PLAIN, PEER),
         times("mb_per_s", ">=", peer=2, plain=0.75)),
    Case("response-1mb", "1 MB responses, 8 in flight",
         beside(Load(8, response=MB), PLAIN, PEER), times("mb_per_s", ">=", peer=2, plain=0.75)),
    Case("request-16mb", "16 MB requests, 2 in flight",
         beside(Load(2, request_bytes=16 * MB), PLAIN, PEER),
         times("mb_per_s", ">=", peer=3, plain=0.9)),
    Case("response-16mb", "16 MB responses, 2 in flight",
         beside(Load(2, response=16 * MB), PLAIN, PEER),
         times("mb_per_s", ">=", peer=3, plain=0.9)),
    Case("clients-16", "16 clients, 1,000 in flight",
         beside(Load(1000, clients=16), PLAIN, PEER)),
    Case("rollout-lists", "realistic rollout, lists", beside(Load(64, response="lists"), PEER)),
    Case("rollout-arrays", "realistic rollout, arrays (the peer: lists)",
         beside(Load(64, response="arrays"), PEER, theirs=Load(64, response="lists")),
         (Mark("per_s", ">=", 10, PEER),)),
    Case("workers-2", "2 workers, 1,000 in flight", beside(Load(1000), PLAIN, workers=2)),
    Case("workers-8", "8 workers, 1,000 in flight", beside(Load(1000), PLAIN, workers=8)),
    Case("keyed-calls", "256 in flight with keys, and without",
         tuple(Side(name, Load(256, keyed=name == "with keys", tail_s=ASKED_S),
                    Setup(options=("--limit", f"retention_s={ASKED_S / 2}")))
               for name in ("with keys", "without")),
         (Mark("all_us", "<=", 1.25, "without"),)),
    Case("curve-64", "64 in flight to a server with keys of CURVE, and to one without",
         (Side("with CURVE", Load(64), Setup(curve=True)),
          Side("without", Load(64))),
         (Mark("ends_us", "<=", 1.5, "without"),)),
    Case("journal-calls", "256 in flight with keys and a journal, and without keys",
         (Side("with keys", KEYED, Setup(options=JOURNAL)),
          Side("without", CALLS, Setup(options=JOURNAL))),
         (Mark("per_s", ">=", 0.5, "without"),)),
    Case("journal-beside", "256 in flight without keys, beside a journal and without one",
         (Side("beside one", CALLS, Setup(options=JOURNAL)), Side("without", CALLS)),
         (Mark("all_us", "<=", 1.05, "without"),)),
    Case("http-rollouts", "POST /v1/rollouts over 256 connections, and the client",
         (Side("by HTTP", Load(256, clients=256), Setup(HTTP, options=WEB)),
          Side("by the client", CALLS))),
    Case("visible-calls", "256 in flight with metrics, page and a viewer, and without these",
         (Side("watched", Load(256, watchers=(1, 0, 1.0)),
               Setup(options=WEB)),
          Side("without", CALLS)),
         (Mark("all_us", "<=", 1.05, "without"),)),
    Case("event-readers", "64 in flight while 200 read events, 50 of them stuck",
         tuple(Side(name, Load(64, watchers=watchers, least_s=3.0),
                    Setup(options=WEB))
               for name, watchers in (("read", (150, 50, 0.0)), ("unread", None))),
         (Mark("p99_ms", "<=", 1.25, "unread"),)),
    Case("session-done", "1,000 against 100,000 requests done in the session",
         marks=(Mark("late_over_early", "<=", 1.25),), special=special.session_done),
    Case("journal-restart", "a start on a journal with 1,000,000 keys, after a kill",
         marks=(Mark("ready_s", "<=", 10), Mark("bytes_each", "<=", 200)),
         special=special.journal_restart),
    Case("memory-kept", "10,000 unacknowledged outcomes of 10 kB",
         marks=(Mark("of_their_bytes", "<=", 1.15),), special=special.memory_kept),
    Case("idle-pending", "1,000 long rollouts pending",
         marks=(Mark("core_percent", "<=", 1),), special=special.idle_pending),
    Case("idle-clients", "1,000 clients that ask nothing",
         marks=(Mark("core_percent", "<=", 5),), special=special.idle_clients),
    Case("many-waiting", "100,000 requests waiting, and cancelled", marks=MANY,
         special=special.many_waiting),
    Case("many-running", "100,000 requests running, and cancelled", marks=MANY,
         special=special.many_running),
    Case("recovery-worker", "a worker is killed",
         marks=(Mark("beyond_start_s", "<=", 0.3),), special=special.recovery_worker),
    Case("recovery-cut", "a connection is cut", marks=(Mark("seconds", "<=", 0.5),),
         special=special.recovery_cut),
    Case("recovery-restart", "a server is killed and started again",
         marks=(Mark("seconds", "<=", 1),), special=special.recovery_restart),
    Case("start", "import, and a worker of the default environment",
         marks=(Mark("import_s", "<=", 0.25), Mark("heavy_modules", "<=", 0),
                Mark("worker_ready_s", "<=", 0.6)),
         special=special.start),
    Case("idle-clients-5000", "5,000 clients that ask nothing", asked=True,
         special=partial(special.idle_clients, times=5)),
    Case("many-hosts", "100,000 requests running on 200 hosts, and cancelled", asked=True,
         special=special.many_hosts),
    *(Case(f"model-calls-{count}", f"{count} rollouts at once of four model calls of 50 ms",
           (Side(OURS, Load(count, turns=4)),
            Side(ALONE, Load(count, response="any", turns=4), Setup(ALONE))), asked=True)
      for count in (256, 16)),
    *(Case(f"capacity-{kind.lower()}", f"one worker by its capacity: {kind}",
           tuple(Side(f"capacity {count}", Load(count, response="any"),
                      Setup(environment=kind, options=("--capacity", str(count))))
                 for count in (1, 8, 32, 64, 256)), asked=True)
      for kind in ("Coroutine", "Blocking", "Tools", "Mixed", "Computing")),
)  # fmt: skip


def chosen(patterns: Sequence[str]) -> list[Case]:
    """The cases whose names match one of the patterns; without any, all that need not be asked
    for by name."""
    if not patterns:
        return [case for case in CASES if not case.asked]
    return [case for case in CASES if any(fnmatch.fnmatch(case.name, p) for p in patterns)]
