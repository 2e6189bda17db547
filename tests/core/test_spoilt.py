"""A worker that fails while others do not.

One rollout used up all descriptors of its worker.  All that came there failed at once, so that
it was always the one with the least to do: of 1,000 requests on four workers it took 976.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.pool import Phase
from trio_envserve.core.spoilt import (
    RETRY_S,
    ROLLOUTS,
    ROW,
    Results,
    Tally,
    has_failed,
    may_be_chance,
)
from trio_envserve.core.terms import Status

from .helpers import Pair, error_body

BROKEN = b"w0-1"


class Pool:
    """Workers that run calls; those on some of them fail at once."""

    def __init__(self, workers: int = 4, **limits: Any) -> None:
        self.pair = Pair(
            workers=workers,
            server={"restart_pause_s": 0.1, "worker_capacity": 16, **limits},
        )  # fmt: skip
        self.failed = self.ended = self.taken = 0
        self.kept: list[Any] = []

    def submit(self, calls: int) -> None:
        self.pair.submit_many(calls)

    def fail(self, *workers: bytes) -> None:
        """Whatever runs on these fails, and what is dispatched there then."""
        while self.taken < len(self.pair.runs):
            run = self.pair.runs[self.taken]
            self.taken += 1
            if run[0] in workers:
                self.failed += 1
                self.pair.end(run, error_body(), Status.ERROR)
            else:
                self.kept.append(run)

    def succeed(self) -> None:
        """What runs on the others has results."""
        kept, self.kept = self.kept, []
        for run in kept:
            self.ended += 1
            self.pair.end(run)

    @property
    def leaving(self) -> list[bytes]:
        lives = self.pair.router.pool.lives.values()
        return [life.id for life in lives if life.phase is not Phase.READY]


def test_it_is_suspect_before_others_have_ended_anything():
    """The others' rollouts last for minutes: only it has outcomes."""
    pool = Pool()
    for _ in range(40):
        pool.submit(1)
        pool.fail(BROKEN)
    assert pool.failed == 8
    worker = pool.pair.router.workforce.workers[BROKEN]
    assert (worker.suspect, pool.leaving) == (True, [])
    pool.succeed()
    pool.submit(60)  # more than the others have room for
    pool.fail(BROKEN)
    assert pool.failed == 14  # of 46
    assert pool.leaving == [BROKEN]
    [report] = [each.text for each in pool.pair.reports if "gets no more work" in each.text]
    assert "all of its last 14 executions failed, far more than on other workers" in report


@pytest.mark.parametrize("slow", [True, False])
def test_a_worker_that_fails_at_once_took_all_that_waited_while_others_were_full(slow: bool):
    """It got one at a time, and ended that at once: nobody but it had room for what waited."""
    pool = Pool(worker_capacity=4)
    pool.submit(1000)
    for _ in range(60):
        pool.fail(BROKEN)
        if slow:  # the others end nothing for a minute
            pool.pair.advance(1.0)
        else:
            pool.succeed()
    running = 3  # when the eighth failed
    assert pool.failed <= 8 + running + (6 if slow else 20)
    for _ in range(100):
        pool.fail(BROKEN)
        pool.succeed()
    assert BROKEN in pool.leaving
    assert pool.failed <= 8 + running + (6 + 20 if slow else 20)
    assert pool.failed + pool.ended == 1000


def test_a_suspect_is_tried_again_though_others_end_nothing():
    """Or it would idle beside others that hang."""
    pool = Pool(workers=2, worker_capacity=4)
    pool.submit(40)
    pool.fail(BROKEN)
    assert pool.failed == 8 + 3  # three ran when the eighth failed
    pool.pair.advance(RETRY_S + 1.0)
    [run] = [run for run in pool.pair.runs[pool.taken :] if run[0] == BROKEN]
    pool.pair.end(run)  # it was chance
    assert sum(run[0] == BROKEN for run in pool.pair.runs[pool.taken :]) >= 4


@pytest.mark.parametrize("workers", [1, 4])
def test_where_all_fail_alike_nothing_is_recycled(workers: int):
    pool = Pool(workers=workers)
    names = [b"w%d-1" % number for number in range(workers)]
    pool.submit(400)
    pool.fail(*names)
    assert (pool.failed, pool.leaving) == (400, [])
    assert not any(worker.suspect for worker in pool.pair.router.workforce.workers.values())


@pytest.mark.parametrize("results", [2, 8])
def test_a_worker_with_a_result_now_and_then_is_recycled(results: int):
    """One result of eight hid seven failures: each ended the row, and none was suspect."""
    pool, own = Pool(), 0
    for _ in range(20):
        pool.submit(40)
        runs = pool.pair.runs[pool.taken :]
        pool.taken += len(runs)
        for run in runs:
            own += run[0] == BROKEN
            fails = run[0] == BROKEN and own % results
            payload, status = (error_body(), Status.ERROR) if fails else (b"fine", Status.RESULT)
            pool.pair.end(run, payload, status)
    assert pool.leaving == ([BROKEN] if results == 8 else [])


@pytest.mark.parametrize(
    ("status", "payload", "counts"),
    [
        (Status.CANCELLED, b"x", None),
        (Status.ERROR, error_body(), True),
        (Status.ERROR, error_body("model-unavailable"), True),
        (Status.ERROR, error_body("environment-unavailable"), True),
        (Status.ERROR, error_body("context-full"), None),  # the policy's
        (Status.ERROR, error_body("deadline"), None),  # the caller's
        (Status.ERROR, b"junk", True),  # nobody can say whose
    ],
)
def test_failures_of_policy_and_caller_do_not_count(
    status: Status, payload: bytes, counts: bool | None
):
    assert has_failed(status, payload) is counts


# -- by chance ----------------------------------------------------------------
# Where half of all rollouts failed, a healthy worker was recycled every now and then: eight
# failures in a row are one of 256 there, and others had just had a good moment.


class Coins:
    """Workers whose executions end in any order, and fail by chance."""

    def __init__(self, rng: Random, workers: int) -> None:
        self.rng = rng
        self.everyone = Tally()
        self.workers = [Results() for _ in range(workers)]

    def end(self, chances: Sequence[float]) -> list[Results]:
        """Another execution ends; returns the workers of which that is an alarm."""
        which = self.rng.randrange(len(self.workers))
        self.workers[which].add(self.rng.random() < chances[which], self.everyone, 8, 0.0)
        rows = [each for each in self.workers if each.excess >= 8]
        return [each for each in rows if not each.may_be_chance(self.everyone)]


@pytest.mark.parametrize(
    ("rollouts", "most"), [(20_000, 0), pytest.param(ROLLOUTS, 1, marks=pytest.mark.slow)]
)
def test_a_healthy_worker_is_hardly_ever_recycled_where_rollouts_fail_by_chance(
    rollouts: int, most: int
):
    """One alarm in a million is accepted, on average."""
    rng, alarms = Random(1), 0
    for percent in range(0, 101, 5):
        coins = Coins(rng, rng.choice((2, 3, 4)))
        chances = [percent / 100] * len(coins.workers)
        for _ in range(rollouts // 21):
            for each in coins.end(chances):
                alarms += 1
                each.excess = 0
    assert alarms <= most


@given(st.floats(0.0, 1.0), st.integers(1, 60), st.integers(0, 90))
def test_the_chance_of_an_alarm_is_no_more_than_is_said(p: float, row: int, peers: int):
    """By all that can come of so many executions, if all fail with the same probability."""
    alarm = sum(
        comb(row, k) * comb(peers, m) * p ** (k + m) * (1 - p) ** (row + peers - k - m)
        for k in range(row + 1)
        for m in range(peers + 1)
        if not may_be_chance(row, k, peers, m)
    )
    most = 1 / (ROLLOUTS * row * (row + 1) * (peers + 1) * (peers + 2))
    assert alarm <= most * (1 + 1e-9)


@given(st.integers(), st.integers(2, 12), st.floats(0.0, 0.5))
def test_a_worker_that_always_fails_is_found_beside_others_that_fail_half_as_often(
    seed: int, workers: int, p: float
):
    coins = Coins(Random(seed), workers)
    chances = [1.0] + [p] * (workers - 1)
    alarms = (coins.end(chances) for _ in range(200 * (workers + 1)))
    assert next(filter(None, alarms), None) == [coins.workers[0]]


def test_what_failed_everywhere_long_ago_is_no_excuse():
    """A model was down for a while; one worker did not recover from that."""
    coins = Coins(Random(1), 4)
    for _ in range(5000):
        assert coins.end([1.0] * 4) == []
    alarms = (coins.end([1.0, 0.1, 0.1, 0.1]) for _ in range(ROW * 5))
    assert next(filter(None, alarms), None) == [coins.workers[0]]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=120),
    st.integers(2, 5),
)
def test_some_worker_that_others_do_not_outdo_goes_on(ends: list[tuple[int, bool]], most: int):
    """However they fail, never all of them are drained or suspect, and nobody waits."""
    pool = Pool(workers=3, spoilt_after=most)
    pair = pool.pair
    for which, fails in ends:
        pool.submit(1)
        runs = [run for run in pair.runs[pool.taken :] if run[0] == b"w%d-1" % which]
        for run in runs or pair.runs[pool.taken : pool.taken + 1]:
            pair.runs.remove(run)
            payload, status = (error_body(), Status.ERROR) if fails else (b"fine", Status.RESULT)
            pair.end(run, payload, status)
        workers = pair.router.workforce.workers.values()
        assert any(worker.accepting and not worker.suspect for worker in workers)
    assert len(pair.router.queue) == 0
