"""What executions say of their results while they run, what waits of it for the trio loop, and
what that costs the others."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker.helpers import BACKENDS, Held
from tests.worker.test_shell import INCARNATION, Router, opened
from trio_envserve import Rollout
from trio_envserve.core import messages
from trio_envserve.core.limits import KIB, ServerLimits, WireLimits
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import DELTA_BYTES, DELTA_RECORD_BYTES, DELTAS_BYTES, DeltaMade
from trio_envserve.envs import load
from trio_envserve.net import open_memory_streams
from trio_envserve.worker.deltas import Deltas
from trio_envserve.worker.forks import FORKED_STATUS
from trio_envserve.worker.shell import run_worker


def numbers(taken: list[DeltaMade]) -> list[int]:
    """Their numbers, as the core counts them."""
    found: list[int] = []
    for made in taken:
        found.append((found[-1] + 1 if found else 0) + made.skipped)
    return found


EVEN_BYTES = DELTA_BYTES // 16 - DELTA_RECORD_BYTES
"""A whole number of these fills the room."""


@pytest.mark.parametrize("size_bytes", [2, EVEN_BYTES, 100_000])
async def test_g10_what_waits_for_a_loop_that_does_not_run_had_no_bound(size_bytes: int):
    taken: list[DeltaMade] = []
    say = Deltas(taken.extend).of(1)
    piece, often = bytes(size_bytes), 20_000
    before = sys.getrefcount(piece)
    for _ in range(often):
        say(piece)
    most = DELTAS_BYTES // (size_bytes + DELTA_RECORD_BYTES)
    assert sys.getrefcount(piece) - before == most
    await trio.testing.wait_all_tasks_blocked()
    say(b"later")
    await trio.testing.wait_all_tasks_blocked()
    assert numbers(taken) == [*range(most), often]
    assert taken[-1].payload == b"later"


async def test_the_bound_is_one_for_all_executions_and_each_counts_its_own():
    taken: list[DeltaMade] = []
    deltas = Deltas(taken.extend)
    loud, quiet = deltas.of(1), deltas.of(2)
    for _ in range(100):
        loud(bytes(DELTA_BYTES // 2))
    quiet(bytes(DELTA_BYTES))
    most = DELTAS_BYTES // (DELTA_BYTES // 2 + DELTA_RECORD_BYTES)
    assert len(deltas._waiting) == most
    deltas.drain()
    assert len(taken) == most
    taken.clear()
    quiet(b"q")
    loud(b"l")
    loud(b"l")
    deltas.drain()
    skipped = [(made.number, made.skipped) for made in taken]
    assert skipped == [(2, 1), (1, 100 - most), (1, 0)]
    await trio.testing.wait_all_tasks_blocked()
    assert len(taken) == 3


async def test_what_is_too_large_to_be_sent_does_not_wait_either():
    taken: list[DeltaMade] = []
    say = Deltas(taken.extend).of(1)
    for size_bytes in (DELTA_BYTES + 1, DELTA_BYTES):
        say(bytes(size_bytes))
    await trio.testing.wait_all_tasks_blocked()
    assert [(len(made.payload), made.skipped) for made in taken] == [(DELTA_BYTES, 1)]


async def test_what_many_threads_say_at_once_arrives_in_their_order_and_is_all_counted():
    taken: list[DeltaMade] = []
    deltas = Deltas(taken.extend)
    often = 5_000

    def flood(number: int) -> None:
        say = deltas.of(number)
        for i in range(often):
            say(b"%d" % i)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(trio.to_thread.run_sync, flood, number)
    deltas.drain()
    for number in range(4):
        mine = [made for made in taken if made.number == number]
        assert [int(made.payload) for made in mine] == numbers(mine)
    assert deltas._added_bytes == deltas._taken_bytes


async def test_two_threads_never_count_at_once():
    """Else one of them may count from what the other has changed meanwhile."""

    class Piece(bytes):
        def __len__(self) -> int:
            """Asked in the middle of the counting."""
            other = threading.Thread(
                target=lambda: entered.append(deltas._lock.acquire(blocking=False))
            )
            other.start()
            other.join()
            return super().__len__()

    entered: list[bool] = []
    deltas = Deltas(lambda taken: None)
    deltas.of(1)(Piece(b"piece"))
    assert entered
    assert not any(entered)
    await trio.testing.wait_all_tasks_blocked()


def test_what_is_said_when_the_loop_has_ended_goes_nowhere():
    async def main() -> Deltas:
        await trio.lowlevel.checkpoint()
        return Deltas(unwanted.extend)

    unwanted: list[DeltaMade] = []
    say = trio.run(main).of(1)
    thread = threading.Thread(target=say, args=(b"piece",))
    thread.start()
    thread.join()
    assert unwanted == []


async def test_a_forked_child_that_says_something_is_ended_there(capfd: pytest.CaptureFixture[str]):
    taken: list[DeltaMade] = []
    say = Deltas(taken.extend).of(1)
    child = os.fork()
    if child == 0:
        try:
            say(b"a second time")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222  # it ends at once
    assert os.waitstatus_to_exitcode(status) == FORKED_STATUS
    assert "forked by a rollout" in capfd.readouterr().err
    await trio.testing.wait_all_tasks_blocked()
    assert taken == []


# -- through a worker's shell ----------------------------------------------------------


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
        for header, body in await router.heard():
            if isinstance(header, messages.WorkerDelta):
                assert body is not None
                found.append((header.number, header.delta, bytes(body)))
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
        found = await heard(router, 1)
        router.dispatch([1, 2], kind="group")
        found += await heard(router, 1)
        last = router.dispatch(None)
        found += await heard(router, 1)
    assert found == [(first, 0, b"in time"), (last, 0, b"in time")]


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
    async with opened(environment, beat_s=0.05) as (router, _):
        number = router.dispatch(None)
        await trio.testing.wait_all_tasks_blocked()
        busy.set()
        assert flooded.wait(60)  # not awaited: the loop is busy
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.2)  # for another beat
        await trio.testing.wait_all_tasks_blocked()
        environment.over.set()
        found = await heard(router, 1)
    most = DELTAS_BYTES // (size_bytes + DELTA_RECORD_BYTES)
    # Each is held once where it waits, and once more where the core's effects are.
    assert 0 < held[0] <= most
    assert [delta for _, delta, _ in found] == [*range(most), often]
    assert found[-1] == (number, often, b"last")


async def test_g10_a_delta_above_the_largest_message_ended_its_worker(autojump_clock: object):
    """None of the other executions on it had an outcome."""
    wire = WireLimits(message_bytes=512 * KIB)
    ours, theirs = open_memory_streams(wire)

    async def environment(rollout: Rollout) -> str:
        rollout.delta(bytes(600_000))
        await trio.sleep(1)
        return "done"

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def work() -> None:
                await run_worker(
                    theirs, worker=b"w", incarnation=INCARNATION, load=lambda: load(environment),
                    limits=ServerLimits(), wire=wire,
                )  # fmt: skip
                theirs.close()

            nursery.start_soon(work)
            await ours.receive()
            router = Router(ours, theirs)
            number = router.dispatch("x")
            assert await router.outcomes(1) == {number: (Status.RESULT, "done")}
            router.send(messages.Retire())
