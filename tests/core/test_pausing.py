"""Dispatching pauses after failures of what is around the environment, and goes on by itself."""

from __future__ import annotations

import pytest

from trio_envserve.core.endings import ENDINGS, RAISED, Fault
from trio_envserve.core.status import ServerStats, StatusRecord
from trio_envserve.core.terms import Status

from .helpers import Pair, error_body

LIMITS = {"pause_after_errors": 3, "pause_s": 60.0, "worker_capacity": 2}


def failure(code: str = "model-unavailable") -> bytes:
    return error_body(code, "the endpoint is\n gone")


def fail(pair: Pair, times: int, payload: bytes | None = None) -> None:
    """So many rollouts begin, and end in such an error."""
    for _ in range(times):
        pair.submit()
        pair.end(payload=payload or failure(), status=Status.ERROR)


def runs(pair: Pair) -> int:
    return len(pair.runs)


def why(pair: Pair) -> str:
    return StatusRecord.of(pair.router.status()).paused


def test_after_so_many_failures_in_a_row_nothing_is_dispatched_and_it_says_why():
    pair = Pair(server=LIMITS)
    fail(pair, 2)
    assert why(pair) == ""
    fail(pair, 1)
    assert why(pair) == "failures in a row: 3; the last one: the endpoint is? gone"
    assert ServerStats.of(pair.router.stats()).paused == why(pair)
    before = runs(pair)
    pair.submit()
    pair.submit()
    pair.advance(59.0)
    assert runs(pair) == before


def test_one_is_tried_now_and_then_and_a_result_lets_all_go_on():
    pair = Pair(server=LIMITS)
    fail(pair, 3)
    before = runs(pair)
    pair.submit_many(4)
    pair.advance(61.0)
    assert runs(pair) == before + 1
    pair.end(payload=failure(), status=Status.ERROR)
    assert why(pair).startswith("failures in a row: 4;")
    assert runs(pair) == before + 1
    pair.advance(61.0)
    assert runs(pair) == before + 2
    pair.end()
    assert why(pair) == ""
    assert runs(pair) == before + 4


@pytest.mark.parametrize("code", sorted(RAISED))
def test_failures_count_by_their_fault(code: str):
    pair = Pair(server=LIMITS)
    fail(pair, 2)
    fail(pair, 1, failure(code))
    counts = ENDINGS[code].fault in (Fault.ENGINE, Fault.INFRASTRUCTURE)
    assert bool(why(pair)) == counts
    if not counts:
        fail(pair, 9, failure(code))
        assert why(pair) == ""
        fail(pair, 1)
        assert why(pair)


def test_what_is_cancelled_counts_neither_way():
    pair = Pair(server=LIMITS)
    fail(pair, 2)
    pair.submit()
    pair.end(payload=failure(), status=Status.CANCELLED)
    assert why(pair) == ""
    fail(pair, 1)
    assert why(pair)
