"""The bound on answers that callers do not take."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.doors.http.door import open_door, raw
from trio_envserve.doors.http.unread import Unread

POST = ("POST /v1/rollouts HTTP/1.1", "Host: localhost", "Content-Type: application/json")


class Caller:
    def __init__(self, unread: Unread) -> None:
        self.unread = unread
        self.is_cut_off = False

    def cut_off(self) -> None:
        assert not self.is_cut_off
        self.is_cut_off = True


def callers(most_bytes: int, count: int) -> tuple[Unread, list[Caller]]:
    unread = Unread(most_bytes)
    return unread, [Caller(unread) for _ in range(count)]


def test_within_the_bound_nobody_is_cut_off():
    unread, peers = callers(30, 3)
    for peer in peers:
        unread.add(peer, 10)
    assert unread.bytes == 30
    assert not any(peer.is_cut_off for peer in peers)


def test_the_one_that_has_taken_nothing_for_longest_is_cut_off():
    unread, (first, second, third) = callers(30, 3)
    for peer in (first, second, third):
        unread.add(peer, 10)
    unread.took(first, 1)
    unread.add(third, 2)
    assert second.is_cut_off
    assert not first.is_cut_off
    assert not third.is_cut_off
    assert unread.bytes == 21


def test_a_new_answer_is_no_sign_that_an_old_one_is_read():
    unread, (first, second) = callers(30, 2)
    unread.add(first, 10)
    unread.add(second, 10)
    unread.add(first, 11)
    assert first.is_cut_off
    assert unread.bytes == 10


def test_one_answer_is_written_whatever_its_size():
    unread, (first, second) = callers(30, 2)
    unread.add(first, 10)
    unread.add(second, 100)
    assert first.is_cut_off
    assert not second.is_cut_off
    unread.took(second, 100)
    assert unread.bytes == 0


def test_who_was_cut_off_or_has_gone_takes_nothing_more():
    unread, (first, second) = callers(30, 2)
    unread.add(first, 20)
    unread.add(second, 20)
    unread.took(first, 20)
    assert unread.bytes == 20
    unread.gone(first)
    unread.gone(second)
    unread.gone(second)
    assert unread.bytes == 0


def test_a_flood_is_no_flood_of_lines(caplog: pytest.LogCaptureFixture):
    unread, peers = callers(10, 101)
    with caplog.at_level(logging.WARNING):
        for peer in peers:
            unread.add(peer, 10)
    assert sum(peer.is_cut_off for peer in peers) == 100
    assert len(caplog.records) == 7


async def test_answers_that_nobody_reads_do_not_take_more_than_their_bound():
    """40 answers of 3 MB that nobody read took 280 MB, and each further one as much."""
    size = 20_000_000  # far more than the kernel takes for a peer

    async def much(rollout: Any) -> Any:
        return "x" * rollout.input

    body = b'{"input": %d}' % size
    async with open_door(much, {"answers_bytes": 50_000_000}) as door, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw(door)) for _ in range(6)]
        taken = []
        for peer in peers:
            await peer.send(*POST, "Connection: close", f"Content-Length: {len(body)}", body=body)
            begun = b""
            while len(begun) < 1000:  # its body has begun, too
                begun += await peer.stream.receive_some()
            taken.append(len(begun))
        for number, peer in enumerate(peers):
            taken[number] += len(await peer.rest())
    assert taken[0] < size < taken[-1]
    assert sum(each > size for each in taken) <= 5
