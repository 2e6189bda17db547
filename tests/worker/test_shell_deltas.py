"""What executions say of their results while they run, and what that costs the others."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker.helpers import BACKENDS, Held
from tests.worker.test_shell import WIRE, Router, opened
from trio_envserve import Rollout
from trio_envserve.core import messages
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import DELTA_RECORD_BYTES, DELTAS_BYTES


def saying(backend: str) -> Held:
    """Rollouts that say what they are given, piece by piece."""

    def say(rollout: Rollout) -> None:
        for piece in rollout.input:
            rollout.delta(piece)

    held = Held(backend, say)
    held.over.set()
    return held


async def heard(router: Router, count: int) -> list[tuple[int, int, bytes]]:
    """The deltas before so many outcomes, each with its number."""
    found, ends = [], 0
    while ends < count:
        for frames in await router.stream.receive():
            header = messages.decode(bytes(frames[-2]), most_bytes=WIRE.header_bytes)
            if isinstance(header, messages.WorkerDelta):
                found.append((header.number, header.delta, bytes(frames[-1])))
            ends += isinstance(header, messages.WorkerOutcome)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
async def test_deltas_leave_in_their_order_and_before_the_outcome(backend: str):
    pieces = [b"%d" % number for number in range(50)]
    async with opened(saying(backend)) as (router, _):
        number = router.dispatch(pieces)
        assert await heard(router, 1) == [(number, i, piece) for i, piece in enumerate(pieces)]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_delta_that_is_not_bytes_fails_its_rollout(backend: str):
    async with opened(saying(backend)) as (router, _):
        number = router.dispatch(["text"])
        status, error = (await router.outcomes(1))[number]
    assert (status, error.type) == (Status.ERROR, "TypeError")
    assert error.message == "a delta is bytes, not str"


async def test_deltas_after_the_end_of_a_rollout_and_those_of_a_group_go_nowhere():
    kept: list[Any] = []

    async def environment(rollout: Any) -> str:
        rollout.delta(b"in time")
        for late in kept:
            late(b"late")
        kept.append(rollout.delta)
        return "said"

    async with opened(environment) as (router, _):
        first = router.dispatch(None)
        router.dispatch([1, 2], kind="group")
        last = router.dispatch(None)
        found = await heard(router, 3)
    assert sorted(found) == [(first, 0, b"in time"), (last, 0, b"in time")]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_g10_what_was_said_while_the_loop_was_busy_took_gigabytes(backend: str):
    """In a thread or on asyncio: 3,000 deltas of a mebibyte took a worker to 1.4 GB."""
    size_bytes, often, held = 100_000, 1_000, []
    busy, flooded = threading.Event(), threading.Event()

    def flood(rollout: Rollout) -> None:
        piece = bytes(size_bytes)
        if backend != "trio":  # there it holds up the loop itself
            busy.wait()
        before = sys.getrefcount(piece)
        for _ in range(often):
            rollout.delta(piece)
        held.append(sys.getrefcount(piece) - before)
        flooded.set()

    environment = Held(backend, flood, lambda rollout: rollout.delta(b"last"))
    async with opened(environment) as (router, _):
        number = router.dispatch(None)
        await trio.testing.wait_all_tasks_blocked()
        busy.set()
        assert flooded.wait(60)  # not awaited: the loop is busy
        await trio.testing.wait_all_tasks_blocked()
        router.send(messages.Statement(0, 0, [number, number + 1], []))
        await trio.testing.wait_all_tasks_blocked()
        environment.over.set()
        found = await heard(router, 1)
    most = DELTAS_BYTES // (size_bytes + DELTA_RECORD_BYTES)
    # Each is held once where it waits, and once more where the core's effects are.
    assert 0 < held[0] <= most
    assert [delta for _, delta, _ in found] == [*range(most), often]
    assert found[-1] == (number, often, b"last")
