"""Bundles: small messages to one peer, sent as one.

Theory of operation
-------------------
A small message costs the sockets, libzmq's threads and the kernel about the same
whatever its size, so messages that are there at the same moment share one.  No
message waits for others.

A bundle is a message of one frame, the CBOR array ``[32, [message, ...]]``, each
message an array of its frames as byte strings.  Nothing else begins with its first
three bytes: every header is an array that begins with its kind, and 32 is no kind.
A bundle is bounded in bytes and in messages, on sending and on receiving, and holds no
bundles.  A frame that begins like a bundle and is not one is passed on unchanged; its
receiver refuses it, because its header is of an unknown kind.

Pure: no trio, no zmq, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import cbor2

from ..core import strict_cbor
from ..core.limits import KIB
from .interface import BUNDLE_BYTES, BUNDLE_MESSAGES, FRAMES_MAX, Frame, Message

MARK = b"\x82\x18\x20"
"""How a bundle begins: an array of two items, the first of them 32."""

MEMBER_BYTES = 4 * KIB
"""Most bytes of a message in a bundle: to copy a larger one would cost more."""

_HEAD_BYTES = 3
"""Most bytes of the head of a frame or a message inside a bundle."""

_FREE_BYTES = BUNDLE_BYTES - len(MARK) - _HEAD_BYTES


def pack(messages: Sequence[Message]) -> Iterator[Message]:
    """The same messages in the same order, with as many as possible in bundles."""
    members: list[Message] = []
    free_bytes = _FREE_BYTES
    for message in messages:
        size = _HEAD_BYTES
        for frame in message:
            size += _HEAD_BYTES + len(frame) if type(frame) is bytes else BUNDLE_BYTES
        if size > free_bytes or size > MEMBER_BYTES or len(members) == BUNDLE_MESSAGES:
            yield from _packed(members)
            members, free_bytes = [], _FREE_BYTES
        if size > MEMBER_BYTES:
            yield message
        else:
            members.append(message)
            free_bytes -= size
    yield from _packed(members)


def _packed(members: list[Message]) -> list[Message]:
    if len(members) < 2:
        return members
    return [(cbor2.dumps((32, members)),)]


def is_bundle(frame: Frame) -> bool:
    """Whether the only frame of a message should be unpacked: by its first bytes and by
    how many messages it claims, before anything is decoded."""
    if frame[:3] != MARK or not 4 < len(frame) <= BUNDLE_BYTES:
        return False
    head = frame[3] - 0x80  # of an array: its length below 24, or 24 and then its length
    return 0 < head < 24 or head == 24 <= frame[4] <= BUNDLE_MESSAGES


def unpack(frame: Frame) -> list[list[Frame]]:
    """The messages of a bundle; ``[[frame]]`` if it is not one."""
    if not is_bundle(frame):
        return [[frame]]
    try:
        _, messages = strict_cbor.loads(frame)
    except Exception:  # cbor2 does not document everything that hostile bytes may raise
        return [[frame]]
    whole = (
        type(messages) is list
        and {list}.issuperset(map(type, messages))
        and {bytes}.issuperset(map(type, chain.from_iterable(messages)))
        and min(map(len, messages)) > 0
        and max(map(len, messages)) <= FRAMES_MAX
    )
    return messages if whole else [[frame]]
