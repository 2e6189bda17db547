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
