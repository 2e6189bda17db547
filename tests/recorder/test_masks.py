"""No recording holds an id that opens anything, and the router cannot tell."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorder.taped import KEY
from trio_envserve.core import messages
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.terms import short
from trio_envserve.server.recording.masks import MOST_IDS, Masks

SESSION, NONCE = (blake2b(name, digest_size=16).digest() for name in (b"session", b"nonce"))
EPOCH, DIGEST = b"e" * 16, b"d" * 16
WITH_IDS = [
    messages.Hello(1, NONCE, 1, "me", 1 << 28),
    messages.Request(SESSION, 3, DIGEST, None, 1, 2.5),
    messages.Finish(SESSION, [0, 3]),
    messages.Sync(SESSION, EPOCH, 1, 2, 3, []),
    messages.Cancel(SESSION, 3),
    messages.Goodbye(SESSION),
    messages.Welcome(1, NONCE, SESSION, EPOCH, 8, 9, {}),
    messages.Outcome(SESSION, 3, 0, "w0-1", 1.5, 1),
    messages.Synced(SESSION, 1, [], {}),
    messages.Refused(SESSION, 3, "code", "text", None),
    messages.Unknown(SESSION, True, EPOCH, False),
    messages.Cancelled(SESSION, 3, False),
    messages.WorkerOutcome(SESSION, 3, 4, 0, 1.5),
    messages.Announced(SESSION, 3, 4, 5),
    messages.Dispatch(SESSION, 3, 4, "me"),
]


@pytest.mark.parametrize("message", WITH_IDS, ids=lambda message: type(message).__name__)
def test_every_secret_id_of_every_message_is_masked(message: Any):
    masks = Masks(KEY)
    header = messages.encode(message)
    masked = masks.header(header)
    changed: dict[str, Any] = {
        name: masks[getattr(message, name)]
        for name in ("session", "nonce")
        if hasattr(message, name)
    }
    expected = message._replace(**changed)
    assert messages.decode(masked, most_bytes=999) == expected
    assert len(masked) == len(header)
    assert Masks().header(header) == header


def test_all_messages_with_a_session_or_a_nonce_are_above():
    secret = {
        cls
        for cls in messages.MESSAGES
        if {name for name, _ in messages.FIELDS[cls]} & {"session", "nonce"}
    }
    assert secret == {type(message) for message in WITH_IDS}


def test_a_mask_begins_as_logs_show_the_id_and_is_another_under_another_key():
    masks = Masks(KEY)
    assert short(masks[SESSION]) == short(SESSION)
    assert masks[SESSION] != SESSION
    assert masks[SESSION] == masks[SESSION]
    assert Masks(b"other")[SESSION] != masks[SESSION]


def test_masks_are_forgotten_and_stay_the_same():
    masks = Masks(KEY)
    before = masks[SESSION]
    for number in range(MOST_IDS + 1):
        masks[number.to_bytes(16, "big")]
    assert len(masks) <= MOST_IDS
    assert SESSION not in masks
    assert masks[SESSION] == before


def other_encoding(message: messages.Message) -> bytes:
    """The same message with longer heads than need be: allowed, and nobody's here."""
    parts = []
    for value in (messages.KINDS[type(message)], *message):
        data = cbor2.dumps(value)
        if isinstance(value, bytes):
            data = b"\x59" + len(value).to_bytes(2, "big") + value
        parts.append(data)
    return b"\x98" + bytes((len(parts),)) + b"".join(parts)


@pytest.mark.parametrize("message", WITH_IDS[:6], ids=lambda message: type(message).__name__)
def test_another_encoding_of_the_same_message_is_masked_too(message: messages.Message):
    masks = Masks(KEY)
    header = other_encoding(message)
    assert messages.decode(header, most_bytes=999) == message
    masked = masks.header(header)
    assert SESSION not in masked
    assert NONCE not in masked
    plain = messages.decode(masks.header(messages.encode(message)), most_bytes=999)
    assert messages.decode(masked, most_bytes=999) == plain


def wrong(header: bytes) -> str:
    try:
        messages.decode(header, most_bytes=len(header))
    except ProtocolError as error:
        return str(error)
    return ""


@given(
    message=st.sampled_from(WITH_IDS), at=st.integers(0, 60), byte=st.integers(0, 255),
    cut=st.integers(0, 60), other=st.booleans(),
)  # fmt: skip
def test_what_is_wrong_with_a_message_is_the_same_when_it_is_masked(
    message: messages.Message, at: int, byte: int, cut: int, other: bool
):
    masks = Masks(KEY)
    masks[SESSION], masks[NONCE]
    header = other_encoding(message) if other else messages.encode(message)
    if at < len(header):
        header = header[:at] + bytes((byte,)) + header[at + 1 :]
    header = header[: len(header) - cut] if cut < len(header) else header
    masked = masks.header(header)
    assert wrong(masked) == wrong(header)
    assert SESSION not in masked
    assert NONCE not in masked
    assert len(masked) == len(header)
