"""What is sent to which peer, and when, with a router of its own for the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from trio_envserve.doors.verifiers import sending, wire
from trio_envserve.doors.verifiers.runs import Deliver, Origin, VerifiersRun
from trio_envserve.doors.verifiers.sending import SHARE_MESSAGES, WAITING_MOST, Sending
from trio_envserve.doors.verifiers.wire import Message

A, B = b"peer a", b"peer b"


class Router:
    """Takes as many messages for a peer as it is told to."""

    def __init__(self) -> None:
        self.room: dict[bytes, int] = {}
        self.sent: list[tuple[bytes, Message]] = []

    def send_nowait(self, route: bytes, frames: Message) -> bool:
        if not self.room.get(route, 10**6):
            return False
        self.room[route] = self.room.get(route, 10**6) - 1
        self.sent.append((route, frames))
        return True

    def of(self, route: bytes) -> list[Message]:
        return [message for to, message in self.sent if to == route]


class Bench:
    """A sender, the outcomes that it finds, and whose delivery it has told."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.router = Router()
        self.runs: dict[bytes, VerifiersRun] = {}
        self.delivered: list[tuple[bytes, bytes]] = []
        tell: Any = lambda *told: self.delivered.append(told)  # noqa: E731  # shorter
        router: Any = self.router
        self.sending = Sending(nursery, router, self.runs.get, tell)
        self.sending.opened(A)
        self.sending.opened(B)

    def keep(self, name: bytes, messages: Sequence[Message]) -> Sequence[Message]:
        run = VerifiersRun(name, b"", Origin("here"), 0, None, 0)
        run.messages, run.afresh = messages, [wire.discard(name, "t")]
        self.runs[name] = run
        return messages


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        yield Bench(nursery)
        nursery.cancel_scope.cancel()


def some(name: bytes, count: int) -> list[Message]:
    return [wire.delta(name, b"%d" % i) for i in range(count)]


settled = trio.testing.wait_all_tasks_blocked


@pytest.mark.parametrize(("afresh", "start"), [(False, 0), (True, 0), (False, 2)])
async def test_outcomes_are_sent_in_order_and_told_and_what_is_said_goes_past_them(
    afresh: bool, start: int
):
    async with running() as bench:
        first, second = bench.keep(b"1", some(b"1", 3)), bench.keep(b"2", some(b"2", 200))
        bench.sending.deliver(Deliver(A, (b"1", b"over by then", b"2"), afresh, start))
        bench.sending.say(A, wire.healthy(b"h"))
        await settled()
        taken_back = [[wire.discard(name, "t")] * afresh for name in (b"1", b"2")]
        assert bench.router.of(A) == [
            wire.healthy(b"h"), *taken_back[0], *first[start:], *taken_back[1], *second[start:],
        ]  # fmt: skip
        assert bench.delivered == [(A, b"1"), (A, b"2")]


@pytest.mark.usefixtures("autojump_clock")
async def test_a_delta_is_sent_at_once_or_not_at_all():
    async with running() as bench:
        delta = wire.delta(b"2", b"delta")
        assert bench.sending.stream(A, delta)
        bench.router.room[A] = 1
        waiting = bench.keep(b"1", some(b"1", 3))
        bench.sending.deliver(Deliver(A, (b"1",), False))
        await trio.sleep(10 * sending.RETRY_S)
        assert not bench.sending.stream(A, delta)
        bench.router.room[A] = 1  # there is room again, and others have waited for it
        assert not bench.sending.stream(A, delta)
        bench.router.room[A] = 100
        await trio.sleep(10 * sending.RETRY_S)
        assert bench.sending.stream(A, delta)
        assert bench.router.of(A) == [delta, *waiting, delta]
        bench.sending.lost(A)
        assert not bench.sending.stream(A, delta)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_peer_that_does_not_read_delays_nobody():
    async with running() as bench:
        bench.router.room[A] = 2
        first, second = bench.keep(b"1", some(b"1", 5)), bench.keep(b"2", some(b"2", 5))
        bench.sending.deliver(Deliver(A, (b"1",), False))
        bench.sending.deliver(Deliver(B, (b"2",), False))
        await trio.sleep(10 * sending.RETRY_S)
        assert bench.router.of(A) == first[:2]
        assert bench.router.of(B) == second
        bench.router.room[A] = 100
        await trio.sleep(10 * sending.RETRY_S)
        assert bench.router.of(A) == first
        assert bench.delivered == [(B, b"2"), (A, b"1")]


async def test_peers_take_turns():
    async with running() as bench:
        bench.keep(b"1", some(b"1", 10 * SHARE_MESSAGES))
        bench.keep(b"2", some(b"2", 1))
        bench.sending.deliver(Deliver(A, (b"1",), False))
        bench.sending.deliver(Deliver(B, (b"2",), False))
        await settled()
        assert [route for route, _ in bench.router.sent].index(B) <= SHARE_MESSAGES


@pytest.mark.usefixtures("autojump_clock")
async def test_what_is_said_to_one_that_does_not_read_is_bounded_and_stays_in_order():
    async with running() as bench:
        bench.router.room[A] = 0
        for i in range(WAITING_MOST + 7):
            bench.sending.say(A, wire.healthy(b"%d" % i))
        assert bench.sending.dropped == 7
        bench.router.room[A] = 10**6
        bench.sending.say(A, wire.healthy(b"last"))  # not before the others
        assert not bench.router.sent
        await trio.sleep(10 * sending.RETRY_S)
        assert bench.router.of(A) == [wire.healthy(b"%d" % i) for i in range(WAITING_MOST)]


async def test_nothing_is_sent_to_who_is_gone():
    async with running() as bench:
        bench.keep(b"1", some(b"1", 1))
        bench.sending.lost(A)
        bench.sending.deliver(Deliver(A, (b"1",), False))
        bench.sending.say(A, wire.healthy(b"h"))
        await settled()
        assert not bench.router.sent
        assert not bench.delivered
