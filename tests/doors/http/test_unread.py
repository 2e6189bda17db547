"""The bound on answers that callers do not take."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.doors.http.door import open_door, raw
from trio_envserve.doors.http.connections import Unread


class Caller:
    is_cut_off = False

    def cut_off(self) -> None:
        assert not self.is_cut_off
        self.is_cut_off = True


@pytest.mark.parametrize(
    ("steps", "cut_off", "left"),
    [
        ("add 0 10, add 1 10, add 2 10", "", 30),
        # Of those that have taken nothing the one that has for longest.
        ("add 0 10, add 1 10, add 2 10, took 0 1, add 2 2", "1", 21),
        # A new answer is no sign that an old one is read.
        ("add 0 15, add 1 10, add 0 11", "0", 10),
        # One answer is written whatever its size.
        ("add 0 10, add 1 100", "0", 100),
        ("add 0 10, add 1 100, took 1 100", "0", 0),
        # Who was cut off or has gone takes nothing more.
        ("add 0 20, add 1 20, took 0 20", "0", 20),
        ("add 0 20, add 1 20, gone 0, gone 1, gone 1", "0", 0),
    ],
)
def test_callers_past_the_bound_are_cut_off(steps: str, cut_off: str, left: int):
    unread, callers = Unread(30), [Caller(), Caller(), Caller()]
    for step in steps.split(", "):
        what, number, *size = step.split()
        getattr(unread, what)(callers[int(number)], *map(int, size))
    assert "".join(str(n) for n, each in enumerate(callers) if each.is_cut_off) == cut_off
    assert unread.bytes == left


def test_flood_is_no_flood_of_lines(caplog: pytest.LogCaptureFixture):
    unread, callers = Unread(10), [Caller() for _ in range(101)]
    with caplog.at_level(logging.WARNING):
        for caller in callers:
            unread.add(caller, 10)
    assert sum(caller.is_cut_off for caller in callers) == 100
    assert len(caplog.records) == 7


async def test_answers_that_nobody_reads_do_not_take_more_than_their_bound():
    """40 answers of 3 MB that nobody read took 280 MB, and each further one as much."""
    size = 20_000_000  # far more than the kernel takes for a peer

    async def much(rollout: Any) -> Any:
        return "x" * rollout.input

    async with open_door(much, {"answers_bytes": 50_000_000}) as door, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw(door)) for _ in range(6)]
        taken = []
        for peer in peers:
            await peer.post({"input": size}, "Connection: close")
            begun = b""
            while len(begun) < 1000:  # its body has begun, too
                begun += await peer.stream.receive_some()
            taken.append(len(begun))
        for number, peer in enumerate(peers):
            taken[number] += len(await peer.rest())
    assert taken[0] < size < taken[-1]
    assert sum(each > size for each in taken) <= 5
