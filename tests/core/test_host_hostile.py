"""What a router, or a worker, sends wrong to a host."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.host_link import Item, What, to_frames
from trio_envserve.core.host_messages import (
    KINDS,
    LONGEST_S,
    HostAnswer,
    HostRefused,
    HostWelcome,
    Items,
    encode,
)
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.router_inputs import Exited, WorkerMessage

from .host_rig import BEAT, EPOCH, SERVES, Link, about, joined
from .test_host_pool_hostile import JUNK


def broken_ones(tenure: bytes) -> list[Any]:
    messages = [
        HostWelcome(1, tenure, 2, EPOCH, 20.0, SERVES),
        HostRefused(tenure, 2, EPOCH, "unfit", "no"),
        HostAnswer(tenure, 1, 0, 0),
        Items(tenure, 0, [17], [b"w0-1"], [0]),
    ]
    made: list[Any] = []
    for message in messages:
        array = [KINDS[type(message)], *message]
        for at in range(len(array)):
            made += [[*array[:at], junk, *array[at + 1 :]] for junk in JUNK]
    return made


def test_whatever_a_router_sends_the_host_goes_on_or_begins_anew():
    refused = 0
    for array in broken_ones(b"t" * 16):
        link = joined()
        tenure = link.host.lease.tenure
        array = [tenure if each == b"t" * 16 else each for each in array]
        try:
            link.host.message((cbor2.dumps(array),), link.now_s)
        except ProtocolError:
            refused += 1
        link.settle()
        link.second(4)
        assert len(link.alive) == 1
    assert refused > 500


@pytest.mark.parametrize(
    "item",
    [
        Item(What.KILL, b"w0-1", ()),
        Item(What.KILL, b"w0-1", (b"why", b"why")),
        Item(What.TELL, b"w0-1", ()),
        Item(What.SPAWN, b"x", (b"short", b"0")),
        Item(What.SPAWN, b"x", (b"i" * 16, b"-1")),
        Item(What.SAID, b"w0-1", (b"i" * 16, b"")),
    ],
)
def test_items_that_are_none_end_all_workers_since_what_was_wanted_is_lost(item):
    """A kill without a reason ended the host's process."""
    link = joined()
    tenure, first = link.host.lease.tenure, link.host._inbox.have + 1
    items = [Item(What.KILL, b"w0-1", (b"why",)), item]
    with pytest.raises(ProtocolError):
        link.host.message(to_frames(tenure, first, items), link.now_s)
    link.carry()
    assert not link.alive
    assert link.host.lease.tenure != tenure
    link.settle()
    link.second(4)
    assert len(link.alive) == 1
    assert b"w0-1" in [about(each) for each in link.inputs]


def test_a_worker_that_is_there_is_not_started_again():
    link = joined()
    tenure, first = link.host.lease.tenure, link.host._inbox.have + 1
    again = [Item(What.SPAWN, b"w0-1", (b"i" * 16, b"0"))]
    before = dict(link.alive)
    link.host.message(to_frames(tenure, first, again), link.now_s)
    link.settle()
    assert link.alive == before
    assert any("starts a worker that is there" in text for text in link.logged)


def test_a_lease_is_no_longer_than_a_timer_of_the_kernel_holds():
    """The guard was to be told a number that its message does not hold."""
    link = Link()
    link.host.connect()
    welcome = HostWelcome(1, link.host.lease.tenure, 1, EPOCH, LONGEST_S, SERVES)
    with pytest.raises(ProtocolError, match="fence_s"):
        link.host.message((encode(welcome),), link.now_s)


@pytest.mark.parametrize(
    "frames",
    [(), (b"i" * 16,), (b"x",) * 3, (b"x",) * 64, (b"i" * 16, bytes(WireLimits().header_bytes))],
    ids=["none", "one", "three", "many", "long"],
)
def test_what_a_worker_sends_wrong_holds_up_nobody(frames):
    """One message of many frames, which no connection carries, kept back all that came
    later, from all workers of the host."""
    link = joined()
    link.host.said(b"w0-1", frames)
    link.host.said(b"w0-1", (link.alive[b"w0-1"], BEAT))
    said = (link.alive[b"w0-1"], b"client", b"header", b"payload")
    link.host.said(b"w0-1", said)
    link.settle()
    came = [tuple(each.frames[1:]) for each in link.inputs if isinstance(each, WorkerMessage)]
    assert came[-1] == said
    assert any("worker w0-1 sent a malformed message" in text for text in link.logged)
    # It stayed, and its calls waited for ever: the router never heard of the message.
    [ended] = [each for each in link.inputs if isinstance(each, Exited)]
    assert (ended.worker, ended.how) == (b"w0-1", "it sent a malformed message")
