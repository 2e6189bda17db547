"""How many executions a worker has at once: as many as it says it takes, and no more than its
server's option."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.router_inputs import PoolOpened
from trio_envserve.core.worker_inputs import EnvironmentReady
from trio_envserve.core.worker_range import WorkerRange

from .helpers import Pair


def waiting(workers: int | WorkerRange, **server: float) -> Pair:
    """A server whose workers have not said hello."""
    pair = Pair(ready=False, workers=workers, server=server)
    pair.give(PoolOpened((), pair.now_s))
    pair.settle()
    return pair


def get_ready(pair: Pair, worker: bytes, capacity: int) -> None:
    ready = EnvironmentReady(1, "env", False, capacity)
    pair.work(worker, pair.workers[worker].take(ready))
    pair.settle()


def runs(pair: Pair) -> Counter[bytes]:
    return Counter(worker for worker, _ in pair.runs)


def test_what_a_worker_does_not_take_waits_at_the_server_and_goes_to_the_next_that_is_free():
    pair = waiting(2)
    get_ready(pair, b"w0-1", 1)
    for _ in range(3):
        pair.submit()
    assert runs(pair) == {b"w0-1": 1}
    assert pair.router.stats()["waiting"] == 2
    get_ready(pair, b"w1-1", 1)
    assert runs(pair) == {b"w0-1": 1, b"w1-1": 1}
    pair.end(pair.runs[1])
    assert runs(pair) == {b"w0-1": 1, b"w1-1": 2}


def test_the_first_dispatches_heed_it_since_it_comes_with_the_hello():
    pair = waiting(1)
    for _ in range(5):
        pair.submit()
    get_ready(pair, b"w0-1", 2)
    assert len(pair.runs) == 2


@pytest.mark.parametrize(("said", "option", "most"), [(8, 3, 3), (2, 3, 2), (8, None, 8)])
def test_a_worker_has_no_more_than_its_server_lets_any(said: int, option: int | None, most: int):
    pair = Pair(ready=False, workers=1, server={"worker_capacity": option})
    pair.give(PoolOpened((), pair.now_s))
    pair.settle()
    get_ready(pair, b"w0-1", said)
    for _ in range(10):
        pair.submit()
    assert len(pair.runs) == most
    stats = pair.router.stats()
    assert stats["per_worker"][0]["capacity"] == stats["bounds"]["pending"] == most


def test_as_many_workers_are_asked_for_as_their_capacity_needs():
    pair = waiting(WorkerRange(1, 8), grow_after_s=2.0, shrink_after_s=1000.0)
    get_ready(pair, b"w0-1", 1)
    for _ in range(3):
        pair.submit()
    pair.advance(3.0)
    assert len(pair.workers) == 2, "two wait, and there may be twice as many"
    get_ready(pair, b"w1-1", 4)
    assert len(pair.runs) == 3


def test_room_for_no_execution_is_no_room():
    hello = messages.WorkerHello(PROTOCOL_VERSION, 1, "env", False, 0)
    with pytest.raises(ProtocolError, match="capacity"):
        messages.decode(messages.encode(hello), most_bytes=1000)


@given(
    capacities=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    option=st.none() | st.integers(1, 4),
    steps=st.lists(st.integers(0, 9), max_size=40),
)
def test_no_worker_ever_has_more_and_none_has_room_while_something_waits(
    capacities: list[int], option: int | None, steps: list[int]
):
    pair = Pair(
        ready=False, workers=len(capacities), server={"worker_capacity": option, "spread_s": 0.001}
    )  # fmt: skip
    pair.give(PoolOpened((), pair.now_s))
    pair.settle()
    most = {}
    for slot, capacity in enumerate(capacities):
        worker = b"w%d-1" % slot
        most[worker] = capacity if option is None else min(capacity, option)
        get_ready(pair, worker, capacity)
    pair.advance(1.0)
    ended = 0
    for step in steps:
        if step < 6:
            pair.submit()
        elif ended < len(pair.runs):
            pair.end(pair.runs[ended])
            ended += 1
        now = Counter(worker for worker, _ in pair.runs[ended:])
        assert all(now[worker] <= most[worker] for worker in most)
        has_room = any(now[worker] < most[worker] for worker in most)
        assert not (has_room and pair.router.stats()["waiting"])
