"""What executions say of their results while they run, and what that costs the others."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker.test_shell import BACKENDS, WIRE, Router, opened
from trio_envserve.core import messages
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import DELTA_RECORD_BYTES, DELTAS_BYTES


class Saying:
    """Rollouts that say what they are given, piece by piece."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.run_rollout = self.plain if backend == "thread" else self.coroutine

    async def coroutine(self, rollout: Any) -> str:
        return self.plain(rollout)

    def plain(self, rollout: Any) -> str:
        for piece in rollout.input:
            rollout.delta(piece)
        return "said"


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
    async with opened(Saying(backend)) as (router, _):
        number = router.dispatch(pieces)
        assert await heard(router, 1) == [(number, i, piece) for i, piece in enumerate(pieces)]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_delta_that_is_not_bytes_fails_its_rollout(backend: str):
    async with opened(Saying(backend)) as (router, _):
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


class Flooding:
    """Rollouts that say one piece very often while the loop of the worker does not run, and
    another one when it has run again."""

    OFTEN = 1_000

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.run_rollout = self.plain if backend == "thread" else self.coroutine
        self.held_up = threading.Event()
        """Whether the loop does not run."""
        self.flooded = threading.Event()
        self.held = 0
        """How many of them the worker held then."""
        self.runs = threading.Event()
        """Whether the loop has run again."""

    async def coroutine(self, rollout: Any) -> str:
        self.flood(rollout)
        while not self.runs.is_set():
            await (trio if self.backend == "trio" else asyncio).sleep(0.01)
        rollout.delta(b"last")
        return "said"

    def plain(self, rollout: Any) -> str:
        self.flood(rollout)
        self.runs.wait()
        rollout.delta(b"last")
        return "said"

    def flood(self, rollout: Any) -> None:
        piece = bytes(rollout.input)
        if self.backend != "trio":  # there it holds up the loop itself
            self.held_up.wait()
        before = sys.getrefcount(piece)
        for _ in range(self.OFTEN):
            rollout.delta(piece)
        self.held = sys.getrefcount(piece) - before
        self.flooded.set()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_g10_what_was_said_while_the_loop_was_busy_took_gigabytes(backend: str):
    """In a thread or on asyncio: 3,000 deltas of a mebibyte took a worker to 1.4 GB."""
    size_bytes = 100_000
    environment = Flooding(backend)
    async with opened(environment) as (router, _):
        number = router.dispatch(size_bytes)
        await trio.testing.wait_all_tasks_blocked()
        environment.held_up.set()
        assert environment.flooded.wait(60)  # not awaited: the loop is busy
        await trio.testing.wait_all_tasks_blocked()
        router.send(messages.Statement(0, 0, [number, number + 1], []))
        await trio.testing.wait_all_tasks_blocked()
        environment.runs.set()
        found = await heard(router, 1)
    most = DELTAS_BYTES // (size_bytes + DELTA_RECORD_BYTES)
    # Each is held once where it waits, and once more where the core's effects are.
    assert 0 < environment.held <= most
    assert [delta for _, delta, _ in found] == [*range(most), environment.OFTEN]
    assert found[-1] == (number, environment.OFTEN, b"last")
