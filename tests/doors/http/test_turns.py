"""What requests take of one turn of the loop, together."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
import trio.testing

from tests.doors.http.door import HANG_S, Runs, open_door, raw
from trio_envserve.doors.http import bodies
from trio_envserve.doors.http.turns import Turns


class Counting(trio.abc.Instrument):
    """Counts what happens in each turn of the loop."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0

    def count(self) -> None:
        self.now += 1
        self.all += 1

    def before_io_wait(self, timeout: float) -> None:
        self.most, self.now = max(self.most, self.now), 0


@pytest.fixture
async def counting():
    found = Counting()
    trio.lowlevel.add_instrument(found)
    yield found
    trio.lowlevel.remove_instrument(found)


async def test_what_has_room_in_a_turn_does_not_wait():
    turns = Turns(100.0)
    with trio.CancelScope() as scope:
        scope.cancel()  # whoever waited would end here
        for _ in range(10):
            await turns.take(10.0)
    assert not scope.cancelled_caught


@pytest.mark.parametrize(
    ("tasks", "each", "cost_us", "most"),
    [
        (1000, 1, 1000.0, 2 * 20),  # of those that waited, and of those that did not
        (50, 1, 1e9, 1),  # what is more than a turn has one alone
        (2, 20, 1e9, 1),
    ],
    ids=["whoever-comes", "large", "again"],
)
async def test_a_body_was_parsed_and_encoded_in_one_turn(
    tasks: int, each: int, cost_us: float, most: int, counting: Counting
):
    """It took 0.13 s of processor time: who was admitted took the next turn in the same one."""

    async def work(turns: Turns) -> None:
        for _ in range(each):
            await turns.take(cost_us)
            counting.count()

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as behind:
            turns = Turns()
            behind.start_soon(turns.run)
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(work, turns)
            behind.cancel_scope.cancel()
    assert counting.all == tasks * each
    assert counting.most <= most


async def test_who_waits_is_served_in_order_and_who_leaves_is_not_waited_for():
    turns, served = Turns(1.0), []

    async def work(number: int, scope: trio.CancelScope) -> None:
        with scope:
            # The last one would have room at once, but does not go before the others.
            await turns.take(1.0 if number < 5 else 0.0)
            served.append(number)

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            await turns.take(1.0)
            scopes = [trio.CancelScope() for _ in range(6)]
            for number, scope in enumerate(scopes):
                nursery.start_soon(work, number, scope)
                await trio.testing.wait_all_tasks_blocked()
            scopes[0].cancel()
            scopes[3].cancel()
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(turns.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert served[:2] == [1, 2]
    assert sorted(served[2:]) == [4, 5]  # these two came in one turn


async def test_bodies_that_end_in_one_moment_are_not_read_in_one_turn(
    monkeypatch: pytest.MonkeyPatch, counting: Counting
):
    """800 bodies of 4 kB held the loop for more than a second."""
    read = bodies._json_value

    def counted(body: bytes, pause: Any) -> Any:
        counting.count()
        return read(body, pause)

    monkeypatch.setattr(bodies, "_json_value", counted)
    body = json.dumps({"input": [{"a": 0}] * 5000}).encode()  # some 20 ms to read and encode
    head = "POST /v1/rollouts HTTP/1.1", "Host: localhost", "Content-Type: application/json"
    async with open_door(Runs()) as door, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw(door)) for _ in range(6)]
        for peer in peers:
            await peer.send(*head, f"Content-Length: {len(body)}", body=body[:-1])
        await trio.testing.wait_all_tasks_blocked(0.05)
        for peer in peers:
            os.write(peer.stream.socket.fileno(), body[-1:])  # all in one turn
        while counting.all < len(peers):
            await trio.lowlevel.checkpoint()
    assert counting.most == 1
