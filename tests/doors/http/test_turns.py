"""What requests take of one turn of the loop, together."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import Any

import pytest
import trio

from tests.doors.http.door import HANG_S, open_door
from trio_envserve.doors.http import bodies
from trio_envserve.doors.http.turns import Turns, open_turns


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


async def test_a_turn_is_not_overfull_whoever_comes(counting):
    async def work(turns: Turns, cost_us: float) -> None:
        await turns.take(cost_us)
        counting.count()

    with trio.fail_after(HANG_S):
        async with open_turns() as turns, trio.open_nursery() as nursery:
            for _ in range(3000):
                nursery.start_soon(work, turns, 1000.0)
    assert counting.all == 3000
    assert counting.most <= 2 * 20  # of those that waited, and of those that did not


async def test_what_is_more_than_a_turn_has_one_alone(counting):
    async def work(turns: Turns) -> None:
        await turns.take(1e9)
        counting.count()

    with trio.fail_after(HANG_S):
        async with open_turns() as turns, trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(work, turns)
    assert counting.all == 50
    assert counting.most == 1


async def test_who_was_admitted_does_not_take_the_next_turn_in_the_same_one(counting):
    """A body was parsed and encoded in one turn, which took 0.13 s of processor time."""

    async def work(turns: Turns) -> None:
        for _ in range(20):
            await turns.take(1e9)
            counting.count()

    with trio.fail_after(HANG_S):
        async with open_turns() as turns, trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(work, turns)
    assert counting.all == 40
    assert counting.most == 1


async def test_who_waits_is_served_in_order_and_who_leaves_is_not_waited_for():
    turns, served = Turns(1.0), []

    async def work(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await turns.take(1.0)
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
    assert served == [1, 2, 4, 5]


async def test_bodies_that_end_in_one_moment_are_not_read_in_one_turn(monkeypatch, counting):
    """800 bodies of 4 kB held the loop for more than a second."""
    read = bodies._json_value

    def counted(body: bytes, pause: Any) -> Any:
        counting.count()
        return read(body, pause)

    monkeypatch.setattr(bodies, "_json_value", counted)

    async def reward(rollout: Any) -> dict[str, float]:
        return {"reward": 1.0}

    body = json.dumps({"input": [{"a": 0}] * 5000}).encode()  # some 20 ms to read and encode
    async with open_door(reward) as door:
        host, _, port = door.url.removeprefix("http://").rpartition(":")
        head = "POST /v1/rollouts HTTP/1.1", f"Host: {host}:{port}", f"Content-Length: {len(body)}"
        said = "\r\n".join((*head, "Content-Type: application/json", "", "")).encode() + body
        with ExitStack() as stack:
            peers = []
            for _ in range(40):
                peers.append(stack.enter_context(socket.create_connection((host, int(port)))))
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(peers[-1].dup()))
                async with stream:
                    await stream.send_all(said[:-1])
            await trio.testing.wait_all_tasks_blocked(0.05)
            for peer in peers:
                peer.send(said[-1:])
            while counting.all < len(peers):
                await trio.sleep(0.005)
    assert counting.most == 1
