"""Statistics are aggregated in one place and fit the wire."""

from __future__ import annotations

import cbor2

from trio_envserve.core import messages
from trio_envserve.core.stats import line

from .helpers import STRANGER, Pair


def test_what_is_counted_is_what_happened():
    pair = Pair(workers=2)
    for _ in range(3):
        pair.submit()
    pair.end(pair.runs[0])
    pair.work(b"w0-1", [pair.workers[b"w0-1"].beat({"loop_lag_p99_s": 0.25, "pid": "a lie"})])
    pair.settle()
    stats = pair.router.stats()
    assert (stats["running"], stats["kept"], stats["waiting"]) == (2, 1, 0)
    assert (stats["status"], stats["sessions"]) == ("ready", 1)
    first = stats["per_worker"][0]
    assert (first["worker"], first["pid"], first["done"]) == ("w0-1", 1001, 1)
    assert first["loop_lag_p99_s"] == 0.25
    text = line(stats)
    assert "ready sessions=1 waiting=0 running=2 kept=1" in text
    assert "w0-1:1/1/0(250ms,0MiB)" in text


def test_a_pool_without_workers_has_a_line_too():
    pair = Pair(ready=False, welcomed=False)
    assert line(pair.router.stats()).endswith("workers[pending/done/failed]: none")
    pair.router.open_pool((), pair.now_s)
    pair.settle()
    assert pair.router.stats()["per_worker"][0]["pending"] == 0


def test_whoever_asks_gets_them_without_a_session():
    pair = Pair()
    pair.router.shell_stats = lambda: {"router_lag_p99_s": 0.5}
    pair.router.client_message(STRANGER, (messages.encode(messages.AskStats(7)),), pair.now_s)
    (effect,) = pair.router.take()
    header, body = effect.frames
    assert messages.decode(header, most_bytes=100) == messages.Stats(7)
    assert cbor2.loads(body) == pair.router.stats()
    assert "router_lag=500ms" in line(cbor2.loads(body))
