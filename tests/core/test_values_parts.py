"""Bodies that are sent in pieces."""

from __future__ import annotations

import array
import tracemalloc
from itertools import pairwise

import pytest

from trio_envserve.core.key_records import input_digest
from trio_envserve.core.terms import BYTE_COST, BodyParts, stated_cost, whole
from trio_envserve.core.values import (
    JOINED_BYTES,
    LEAST_PIECE_BYTES,
    OBJECT_COST,
    decode,
    encode,
    encode_to_send,
)

LARGE = bytes(range(256)) * 1024


def test_a_large_body_is_what_it_would_be_in_one_piece():
    value = {"a": LARGE, "b": [LARGE, {"c": "x" * 100_000}, bytearray(LARGE)], "d": 1}
    made = encode_to_send(value)
    assert isinstance(made, BodyParts)
    assert bytes(made) == whole(made) == encode(value)
    assert len(made) == len(bytes(made))
    assert decode(bytes(made)) == {**value, "b": [LARGE, {"c": "x" * 100_000}, LARGE]}


def test_what_nobody_can_change_is_not_copied():
    made = encode_to_send([1, LARGE, 2])
    assert isinstance(made, BodyParts)
    assert [memoryview(piece).obj is LARGE for piece in made.pieces] == [False, True, False]


@pytest.mark.parametrize("paused", [False, True])
def test_what_is_large_was_copied_to_count_what_is_beside_it(paused):
    """200 MB beside some thousand lists took the loop 0.2 s, and twice their memory."""
    large = bytes(8 << 20)
    value = [[[] for _ in range(4500)], large, [[] for _ in range(4500)], large]
    tracemalloc.start()
    try:
        made = encode_to_send(value, pause=(lambda: None) if paused else None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(large) / 2
    assert isinstance(made, BodyParts)
    cost, at = stated_cost(made)
    assert cost == BYTE_COST * (len(made) - at) + OBJECT_COST * (2 + 9000 + 3)
    assert decode(bytes(made)) == value


@pytest.mark.parametrize(
    "make",
    [bytearray, lambda data: array.array("B", data), lambda data: memoryview(bytearray(data))],
)
def test_what_was_sent_is_not_changed_by_whoever_has_the_input(make):
    """B14: a retransmission is the same, whatever the caller does with its buffers."""
    buffer = make(LARGE)
    made = encode_to_send({"buffer": buffer})
    before = bytes(made)
    buffer[:3] = make(b"xyz")
    assert isinstance(made, BodyParts)
    assert bytes(made) == before


def test_small_pieces_between_large_ones_are_joined():
    value = [bytes(LEAST_PIECE_BYTES), *range(1000), [LARGE], *["x" * 1000] * 10_000]
    for made in (encode_to_send(value), encode_to_send(value, pause=lambda: None)):
        assert isinstance(made, BodyParts)
        assert bytes(made) == encode(value)
        is_large = [len(piece) >= LEAST_PIECE_BYTES for piece in made.pieces]
        assert any(is_large)
        assert all(one or other for one, other in pairwise(is_large))


def test_a_body_that_is_not_large_is_in_one_piece():
    body = encode_to_send(bytes(JOINED_BYTES - 100))
    assert type(body) is bytes
    assert whole(body) is body


def test_the_digest_of_a_key_is_that_of_the_bytes():
    made = encode_to_send([LARGE, LARGE])
    assert isinstance(made, BodyParts)
    assert input_digest(made, True) == input_digest(bytes(made), True)
