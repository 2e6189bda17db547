"""The published strategies: what is right is taken, what is hostile is refused politely.

Their values, messages and hostile bodies go through all tests of the core's readers.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages as wire
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.limits import MIB
from trio_envserve.core.messages import FIELDS, KINDS, MESSAGES
from trio_envserve.core.router import Router
from trio_envserve.core.router_inputs import ClientMessage
from trio_envserve.core.values import decode
from trio_envserve.envs.request import RolloutRequest
from trio_envserve.testing import strategies


@given(strategies.keys())
def test_key_of_a_mapping_equals_its_copy(key: Any):
    # A dictionary of two NaN was drawn, and refused: "two of its keys have the same encoding".
    assert pickle.loads(pickle.dumps(key)) == key


@given(strategies.headers(wire.Sync, wire.Finish))
def test_headers_of_chosen_classes(header: bytes):
    assert type(wire.decode(header, most_bytes=MIB)) in (wire.Sync, wire.Finish)


def test_every_message_belongs_to_one_link_and_direction():
    directions = (
        strategies.TO_ROUTER, strategies.TO_CLIENT, strategies.FROM_WORKER, strategies.TO_WORKER,
    )  # fmt: skip
    assert sorted((cls for each in directions for cls in each), key=KINDS.__getitem__) == sorted(
        MESSAGES, key=KINDS.__getitem__
    )


@pytest.mark.parametrize("cddl", sorted({f.cddl for cls in MESSAGES for _, f in FIELDS[cls]}))
@given(data=st.data())
def test_every_kind_of_field_has_right_values(cddl: str, data: st.DataObject):
    (check, *_) = [f.check for cls in MESSAGES for _, f in FIELDS[cls] if f.cddl == cddl]
    assert check(data.draw(strategies.fields(cddl)))


@given(strategies.frames())
def test_frames_are_a_header_and_a_body_where_there_is_one(frames: list[bytes]):
    message = wire.decode(frames[0], most_bytes=MIB)
    assert type(message) in strategies.TO_ROUTER
    if isinstance(message, wire.Request) and message.act:
        assert frames[1:] == [b""]
    elif isinstance(message, wire.Request):
        assert isinstance(RolloutRequest.from_body(decode(frames[1])), RolloutRequest)
    else:
        assert len(frames) == 1


@given(strategies.frames())
def test_frames_are_as_many_as_a_router_takes(frames: list[bytes]):
    """Keyed requests had no body, and every one of them was refused as malformed."""
    router = Router(epoch=bytes(16), slots=1, now_s=0.0, new_id=lambda: bytes(16))
    router.take(ClientMessage(b"route", frames, 0.0))
    assert router.stats()["malformed"] == 0


@given(strategies.frames(wire.Outcome))
def test_frames_of_outcomes(frames: list[bytes]):
    header, body = frames
    outcome = wire.decode(header, most_bytes=MIB)
    assert isinstance(outcome, wire.Outcome)
    decode(body)


@given(strategies.request_bodies(st.integers()))
def test_request_bodies_of_own_inputs(body: bytes):
    request = RolloutRequest.from_body(decode(body))
    assert all(isinstance(each, int) for each in request.inputs)


@given(strategies.hostile_headers())
def test_hostile_headers_are_a_message_or_a_protocol_error(header: bytes):
    try:
        message = wire.decode(header, most_bytes=MIB)
    except ProtocolError:
        return
    assert type(message) in MESSAGES


@given(strategies.hostile_frames())
def test_hostile_frames_are_frames(frames: list[bytes]):
    assert frames
    assert all(isinstance(each, bytes) for each in frames)
