"""The first dispatches, while some workers still start.

Of 20 rollouts on two workers, each with room for 256, the one that was ready first took all,
for the other one was ready a moment later; nothing is moved, so all took twice the time.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.router_inputs import PoolOpened
from trio_envserve.core.terms import Status
from trio_envserve.core.worker_inputs import EnvironmentReady

from .helpers import Pair


def starting(workers: int, **server: float) -> Pair:
    pair = Pair(ready=False, workers=workers, server=server)
    pair.give(PoolOpened((), pair.now_s))
    pair.settle()
    return pair


def get_ready(pair: Pair, slot: int) -> None:
    worker = b"w%d-1" % slot
    pair.work(worker, pair.workers[worker].take(EnvironmentReady(1, "env", False)))
    pair.settle()


def runs(pair: Pair) -> Counter[bytes]:
    return Counter(worker for worker, _ in pair.runs)


def test_the_first_ready_worker_took_what_the_others_had_a_share_in():
    pair = starting(2)
    for _ in range(20):
        pair.submit()
    get_ready(pair, 0)
    assert runs(pair) == {b"w0-1": 10}
    pair.advance(1.0)
    get_ready(pair, 1)
    assert runs(pair) == {b"w0-1": 10, b"w1-1": 10}


def test_a_worker_that_starts_for_long_is_not_waited_for():
    pair = starting(2, spread_s=3.0)
    for _ in range(20):
        pair.submit()
    get_ready(pair, 0)
    pair.advance(2.5)
    assert runs(pair) == {b"w0-1": 10}
    pair.advance(1.0)
    assert runs(pair) == {b"w0-1": 20}


@pytest.mark.parametrize("spread_s", [0.001, 5.0])
@given(workers=st.integers(1, 4), calls=st.integers(1, 40), data=st.data())
def test_no_worker_has_more_than_its_share_and_all_is_run(
    spread_s: float, workers: int, calls: int, data: st.DataObject
):
    pair = starting(workers, spread_s=spread_s)
    for _ in range(calls):
        pair.submit()
    for slot in data.draw(st.permutations(range(workers))):
        get_ready(pair, slot)
        assert max(runs(pair).values()) <= -(-calls // workers)
    assert sum(runs(pair).values()) == calls
    for run in list(pair.runs):
        pair.end(run, status=Status.RESULT)
    assert len(pair.answers) == calls
