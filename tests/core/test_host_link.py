"""Items between a host and its router: once, in order, whatever is lost."""

from __future__ import annotations

from collections import deque
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.host_link import (
    ARRIVED_BYTES,
    BATCH_BYTES,
    FRAMES_MOST,
    Inbox,
    Item,
    ItemKind,
    Outbox,
)
from trio_envserve.core.host_messages import (
    FIELDS,
    KINDS,
    HostAnswer,
    HostBeat,
    HostHello,
    HostLeaves,
    HostRefused,
    HostWelcome,
    Items,
    decode,
    encode,
)

MEMBERSHIP = b"t" * 16
MOST = 100_000
ONE_EACH: list[Any] = [
    HostHello(2, "a", MEMBERSHIP, 1, [b"p" * 16], b"", 16, 2, {"gpu": 2}, [], b"", []),
    HostHello(
        2, "a", MEMBERSHIP, 1, [], b"e" * 16, 2, 2, {}, [b"c" * 16], b"o" * 16,
        [
            [b"w0-1", b"i" * 16, 7, b"hello", [0, 3, 4, 5], [1, 2, 4, 5], 0],
            [b"w1-1", b"j" * 16, 0, b"", [], [], 1],
        ],
    ),
    HostBeat(MEMBERSHIP, 3, 2, b"e" * 16, 7, 5, False, {"load": 0.5}),
    HostLeaves(MEMBERSHIP, 9),
    HostWelcome(2, MEMBERSHIP, 1, b"e" * 16, 20.0, {"environment": "arithmetic"}),
    HostRefused(MEMBERSHIP, 1, b"e" * 16, "over", "its membership is over"),
    HostAnswer(MEMBERSHIP, 3, 5, 7, 6),
]  # fmt: skip


@pytest.mark.parametrize("message", ONE_EACH, ids=lambda each: type(each).__name__)
def test_each_message_travels(message):
    assert decode([encode(message)], most_bytes=MOST) == (message, [])
    with pytest.raises(ProtocolError, match="frames"):
        decode([encode(message), b""], most_bytes=MOST)


def test_every_message_is_tried():
    assert {type(each) for each in ONE_EACH} | {Items} == {*KINDS} == {*FIELDS}
    assert len({*KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff",
        b"\x9f\xff",
        cbor2.dumps([0] * 10_000),
        cbor2.dumps({}),
        cbor2.dumps([]),
        cbor2.dumps(["a"]),
        cbor2.dumps([5]),
        cbor2.dumps([129, 1]),
        cbor2.dumps([130, b"short"]),
        cbor2.dumps([136, MEMBERSHIP, 1, [0], [b"w"], []]),
        cbor2.dumps([136, MEMBERSHIP, 1, [0], [b"w"], [1]]),
        cbor2.dumps([136, MEMBERSHIP, 1, [0], ["w"], [0]]),
        cbor2.dumps([136, MEMBERSHIP, 1, 0, [b"w"], [0]]),
        cbor2.dumps([128, 1, "a", MEMBERSHIP, 1, [b"x"], b"", 1, 1, {}]),
        cbor2.dumps([128, 1, "a", MEMBERSHIP, 1, 7, b"", 1, 1, {}]),
        cbor2.dumps([128, 1, "a", MEMBERSHIP, 1, [], b"x", 1, 1, {}]),
        cbor2.dumps([144, 1, MEMBERSHIP, 1, b"e" * 16, 0]),
    ],
)
def test_what_is_no_message_is_refused(header):
    with pytest.raises(ProtocolError):
        decode([header], most_bytes=5_000)


@pytest.mark.parametrize(
    ("frames", "most_bytes"),
    [([], MOST), ([encode(ONE_EACH[0])], 10), ([cbor2.dumps([0] * 70_000)], MOST)],
    ids=["no frames", "too long", "costs too much"],
)
def test_frames_that_are_no_message_are_refused(frames, most_bytes):
    with pytest.raises(ProtocolError):
        decode(frames, most_bytes=most_bytes)


# -- items ----------------------------------------------------------------------------


def item(number: int, frames: int = 1) -> Item:
    return Item(ItemKind.MESSAGE, b"w", (b"%d" % number,) * frames)


def taken(inbox: Inbox, frames: tuple[Any, ...]) -> list[Item]:
    message, rest = decode(frames, most_bytes=MOST)
    assert isinstance(message, Items)
    return inbox.take(message, rest)


def test_items_go_together_and_not_too_many():
    outbox, inbox = Outbox(MEMBERSHIP), Inbox()
    items = [item(number, frames=7) for number in range(20)]
    for each in items:
        outbox.put(each)
    messages = list(outbox.messages())
    assert len(messages) == 3
    assert max(map(len, messages)) <= FRAMES_MOST + 1
    assert [each for frames in messages for each in taken(inbox, frames)] == items
    assert list(outbox.messages()) == []
    outbox.put(item(0, frames=FRAMES_MOST + 1))  # one alone may be larger
    assert len(list(outbox.messages())) == 1


def test_what_was_under_way_is_not_sent_again():
    outbox = Outbox(MEMBERSHIP)
    outbox.put(item(1))
    list(outbox.messages())
    outbox.stated(1)
    outbox.put(item(2))
    list(outbox.messages())
    outbox.received(1, 1)  # said before the second one came
    assert list(outbox.messages()) == []
    outbox.stated(2)
    outbox.received(1, 2)
    assert len(list(outbox.messages())) == 1


def test_what_had_arrived_before_a_reconnect_is_no_claim_too_much():
    """What is to be sent again may be there already."""
    outbox = Outbox(MEMBERSHIP)
    outbox.put(item(1))
    list(outbox.messages())
    outbox.again()
    outbox.stated(1)
    outbox.received(1, 1)
    assert list(outbox.messages()) == []
    outbox.put(item(2))
    assert len(list(outbox.messages())) == 1


def test_an_item_that_nobody_knows_is_refused():
    header = encode(Items(MEMBERSHIP, 1, [99], [b"w"], [0]))
    message, rest = decode([header], most_bytes=MOST)
    assert isinstance(message, Items)
    with pytest.raises(ProtocolError):
        Inbox().take(message, rest)


@given(
    steps=st.lists(
        st.sampled_from(["put", "send", "lose", "deliver", "double", "beat", "reconnect"]),
        max_size=80,
    )
)
def test_g5_each_item_arrives_once_and_in_order(steps):
    """One direction of a link, whose beats and answers may be lost like all else."""
    outbox, inbox = Outbox(MEMBERSHIP), Inbox()
    put: list[Item] = []
    got: list[Item] = []
    way: deque[Any] = deque()
    beat = 0

    def deliver() -> None:
        frames = way.popleft()
        if isinstance(frames[0], int):  # a beat, answered at once
            outbox.received(inbox.have, frames[0])
        else:
            got.extend(taken(inbox, frames))

    for step in [*steps, "reconnect", "send"]:
        if step == "put":
            put.append(item(len(put)))
            outbox.put(put[-1])
        elif step == "send":
            way.extend(outbox.messages())
        elif step == "beat":
            beat += 1
            outbox.stated(beat)
            way.append((beat,))
        elif step == "reconnect":
            way.clear()
            outbox.again()
        elif way and step == "lose":
            way.popleft()
        elif way and step == "double":
            way.appendleft(way[0])
        elif way:
            deliver()
        assert got == put[: len(got)]
    while way:
        deliver()
    assert got == put


def test_items_of_many_bytes_go_alone():
    """Two outcomes of 200 MB at once were one message, which no router takes: it was sent
    again and again."""
    outbox = Outbox(MEMBERSHIP)
    sizes = [BATCH_BYTES, BATCH_BYTES // 2, BATCH_BYTES // 4, 1, BATCH_BYTES * 2, 1]
    for size in sizes:
        outbox.put(Item(ItemKind.MESSAGE, b"w0-1", (bytes(size),)))
    messages = list(outbox.messages())
    assert [[len(frame) for frame in message[1:]] for message in messages] == [
        sizes[:1], sizes[1:4], sizes[4:5], sizes[5:]
    ]  # fmt: skip
    assert (len(outbox), outbox.put_in_all) == (6, 6)


def moved(outbox: Outbox) -> list[Item]:
    """The items that another router gets."""
    inbox = Inbox()
    other = outbox.move(b"o" * 16)
    return [each for frames in other.messages() for each in taken(inbox, frames)]


def test_g4_what_has_arrived_goes_to_another_router_too_until_it_is_safe():
    outbox = Outbox(MEMBERSHIP)
    items = [item(number) for number in range(4)]
    for each in items:
        outbox.put(each)
    list(outbox.messages())
    outbox.received(3, 0, 0)
    assert moved(outbox) == items
    outbox.received(3, 0, 2)
    assert moved(outbox) == items[2:]
    outbox.received(4, 0, 4)
    assert (moved(outbox), outbox.arrived_bytes) == ([], 0)


def test_g8_what_has_arrived_and_is_not_safe_is_bounded():
    """A router whose journal does not get on says for ever that nothing is safe."""
    outbox = Outbox(MEMBERSHIP)
    piece = ARRIVED_BYTES // 4
    for number in range(10):
        outbox.put(Item(ItemKind.MESSAGE, b"w%d" % number, (bytes(piece),)))
    list(outbox.messages())
    outbox.received(10, 0, 0)
    assert outbox.arrived_bytes == ARRIVED_BYTES
    assert [each.worker for each in moved(outbox)] == [b"w6", b"w7", b"w8", b"w9"]
