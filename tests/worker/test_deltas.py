"""What waits for the trio loop of what executions say, and what does not."""

from __future__ import annotations

import sys
import threading

import pytest
import trio.testing

from trio_envserve.core.worker import DELTA_BYTES, DELTA_RECORD_BYTES, DELTAS_BYTES
from trio_envserve.core.worker_inputs import DeltaMade
from trio_envserve.worker.deltas import Deltas


def numbers(taken: list[DeltaMade]) -> list[int]:
    """Their numbers, as the core counts them."""
    found: list[int] = []
    for made in taken:
        found.append((found[-1] + 1 if found else 0) + made.skipped)
    return found


@pytest.mark.parametrize("size_bytes", [2, 100_000])
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
