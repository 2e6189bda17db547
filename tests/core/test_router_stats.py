"""Statistics are aggregated in one place and fit the wire."""

from __future__ import annotations

import json
import math

import cbor2
import pytest

from trio_envserve.core import messages
from trio_envserve.core.client import CallKey
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.router_effects import TellStats
from trio_envserve.core.router_inputs import ClientMessage
from trio_envserve.core.worker import BeatDue
from trio_envserve.core.worker_history import STATISTICS_MOST

from .helpers import STRANGER, Pair


def counted(record: dict[str, float]) -> float:
    """How many durations a record has."""
    return sum(number for name, number in record.items() if name not in ("sum_s", "most_s"))


def test_what_is_counted_is_what_happened():
    """A worker could overrule what the server knows of it."""
    pair = Pair(workers=2)
    pair.submit_many(3)
    pair.end(pair.runs[0])
    beat = BeatDue({"loop_lag_p99_s": 0.25, "pid": "a lie", "memory_bytes": "lots"})
    pair.work(b"w0-1", pair.workers[b"w0-1"].take(beat))
    pair.settle()
    stats = pair.router.stats()
    assert (stats["running"], stats["kept"], stats["waiting"]) == (2, 1, 0)
    assert (stats["status"], stats["sessions"]) == ("ready", 1)
    first = stats["per_worker"][0]
    assert (first["worker"], first["pid"], first["done"]) == ("w0-1", 1001, 1)
    assert (first["loop_lag_p99_s"], first["memory_bytes"]) == (0.25, 0)
    assert stats["bounds"].keys() <= stats.keys() | first.keys(), "of something that is counted"
    assert stats["bounds"]["running"] == 2 * first["capacity"]


def test_a_worker_that_starts_has_nothing_to_do():
    pair = Pair(ready=False, welcomed=False)
    assert pair.router.stats()["per_worker"] == []
    pair.open_pool()
    assert pair.router.stats()["per_worker"][0]["pending"] == 0


def test_whoever_asks_gets_them_without_a_session():
    pair = Pair()
    (effect,) = pair.question(messages.Query(7, "statistics"))
    assert isinstance(effect, TellStats)
    assert effect == TellStats(STRANGER, 7, pair.router.stats())
    header, body = effect.told(messages.encode_record({"router_lag_p99_s": 0.5})).frames
    assert messages.decode(header, most_bytes=100) == messages.QueryAnswer(7)
    assert cbor2.loads(body) == {"router_lag_p99_s": 0.5}


@pytest.mark.parametrize(
    "said",
    [
        {"loop_lag_p99_s": "oops"}, {"loop_lag_p99_s": None}, {"loop_lag_p99_s": [1]},
        {"loop_lag_p99_s": math.nan}, {"loop_lag_p99_s": math.inf}, {"loop_lag_p99_s": 10**400},
        {"loop_lag_p99_s": True}, {"x": {"y": 1}}, {"x" * 65: 1}, {"a\nb": 1},
    ],
)  # fmt: skip
def test_a_workers_word_in_the_place_of_a_number_ended_the_line_of_statistics(said):
    pair = Pair()
    pair.work(b"w0-1", pair.workers[b"w0-1"].take(BeatDue({"running": 3, **said})))
    pair.settle()
    stats = pair.router.stats()
    assert said.keys() & stats["per_worker"][0].keys() == set()
    assert stats["per_worker"][0]["running"] == 3
    assert stats["bad_statistics"] == 1
    json.dumps(stats, allow_nan=False)


def test_a_worker_has_so_many_statistics_and_no_more():
    pair = Pair()
    pair.work(b"w0-1", pair.workers[b"w0-1"].take(BeatDue({f"n{n}": n for n in range(1000)})))
    stats = pair.router.stats()
    assert sum(name.startswith("n") for name in stats["per_worker"][0]) == STATISTICS_MOST
    assert stats["bad_statistics"] == 1000 - STATISTICS_MOST


def test_all_who_ask_in_one_turn_get_one_record():
    """A flood of questions took half of the server's time from those who work."""
    pair = Pair()
    for probe in range(100):
        ask = (messages.encode(messages.Query(probe, "statistics")),)
        pair.give(ClientMessage(STRANGER, ask, pair.now_s))
    told = [effect for effect in pair.said() if isinstance(effect, TellStats)]
    assert [each.probe for each in told] == list(range(100))
    assert all(each.stats is told[0].stats for each in told)
    pair.give(ClientMessage(STRANGER, ask, pair.now_s + 0.001))
    [later] = [effect for effect in pair.said() if isinstance(effect, TellStats)]
    assert later.stats is not told[0].stats


def test_waiting_and_running_are_counted_once_for_each_dispatch():
    pair = Pair.asked(workers=1, server={"worker_capacity": 1})
    pair.submit()
    pair.advance(2.0)
    pair.end(pair.runs[0])
    pair.now_s += 0.5  # and there was no tick since
    pair.end(pair.runs[1])
    stats = pair.router.stats()
    assert stats["waits"] == {"sum_s": 2.0, "most_s": 2.0, "0.001": 1, "2.5": 1}
    assert stats["runs"] == {"sum_s": 2.5, "most_s": 2.0, "0.5": 1, "2.5": 1}


def test_what_ran_again_has_waited_again_and_only_what_was_reported_is_among_the_runs():
    pair = Pair.asked(workers=1, rerun=True)
    pair.die()
    pair.advance(2.0)
    pair.end()
    stats = pair.router.stats()
    assert stats["cache"]["dispatched"] == 2
    assert counted(stats["waits"]) == 2
    assert counted(stats["runs"]) == 1


def test_an_outcome_that_is_announced_and_then_sent_was_one_run():
    pair = Pair(server={"kept_bytes": 2**20})
    pair.submit_many(3)
    for run in list(pair.runs):
        pair.end(run, bytes(400_000))  # room for one
    assert pair.router.stats()["runs"] == {"sum_s": 0.0, "most_s": 0.0, "0.001": 3}
    pair.advance(7.0)
    pair.receive(0)
    assert len(pair.answers) == 2
    assert pair.router.stats()["runs"] == {"sum_s": 0.0, "most_s": 0.0, "0.001": 3}


def test_the_model_calls_of_a_worker_are_counted_after_its_death():
    pair = Pair(workers=2)
    for worker, core in list(pair.workers.items()):
        beat = BeatDue({"model_calls": 2, "model_took_sum_s": 3.0, "model_took_2.5": 2})
        pair.work(worker, core.take(beat))
    stats = pair.router.stats()
    assert (stats["model_usage"]["calls"], stats["model_calls"]) == (
        4,
        {"sum_s": 6.0, "most_s": 2.5, "2.5": 4},
    )
    assert stats["per_worker"][0]["model_calls"] == 2
    assert not [name for name in stats["per_worker"][0] if name.startswith("model_took")]
    pair.die(b"w0-1")
    after = pair.router.stats()
    assert [after["model_usage"], after["model_calls"]] == [
        stats["model_usage"], stats["model_calls"],
    ]  # fmt: skip


def test_the_work_of_a_key_was_counted_with_each_request_that_waited_for_it():
    """406 rollouts were told as 811."""
    pair = Pair()
    name = KeyName(b"default", b"k")
    key = CallKey(KeyAct.ASK, name, input_digest(b"body", None))
    pair.submit_many(3, key=key)
    pair.submit()
    for run in list(pair.runs):
        pair.end(run)
    for call in range(4):
        pair.receive(call)
    pair.advance(2.0)
    counts = pair.router.works.counters
    assert (counts.entered, counts.finished) == (4, 4)
    assert (counts.dispatched, counts.completed) == (2, 2)
    other = CallKey(KeyAct.ASK, name._replace(key=b"other"), input_digest(b"body", None))
    calls = [pair.submit(key=other) for _ in range(2)]
    pair.cancel(*calls)
    pair.advance(2.0)
    assert (counts.entered, counts.finished, counts.cancelled) == (7, 7, 1)  # one leaves
