"""The messages of a worker that are handled before other tasks have a turn.

A rollout flooded the server with the longest beats that a worker may send, of 20,000 numbers: 64 of
them held its loop for 0.2 s, and each call of everybody took a second.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.host.workers import HEADER_BYTES_AT_ONCE, MESSAGES_AT_ONCE, _portion
from trio_envserve.net import Frame

NAME, LIFE = b"w0-1", b"i" * 16


@pytest.mark.parametrize(
    ("frames", "heard"),
    [
        ([NAME, LIFE, bytes(60_000)], 3),
        ([NAME, LIFE, bytes(HEADER_BYTES_AT_ONCE * 9)], 1),
        ([NAME, LIFE, bytes(50)], MESSAGES_AT_ONCE),
        (
            [NAME, LIFE, b"client", bytes(50), bytes(1 << 20)],
            MESSAGES_AT_ONCE,
        ),  # the body is opaque
    ],
    ids=["long headers", "one that is too long", "short headers", "large bodies"],
)
def test_long_headers_of_a_worker_held_the_loop_of_the_server(frames: list[bytes], heard: int):
    messages = deque[list[Frame]]([[*frames]] * 100)
    assert len(_portion(messages)) == heard
    assert len(messages) == 100 - heard


@given(st.lists(st.lists(st.integers(0, 1 << 17).map(bytes), min_size=1, max_size=5)))
def test_all_messages_are_heard_in_their_order(messages: list[list[bytes]]):
    heard: list[list[Frame]] = []
    waiting = deque[list[Frame]](list(each) for each in messages)
    while waiting:
        portion = _portion(waiting)
        assert portion
        heard += portion
    assert heard == messages
