"""Encodings in pieces, to be joined in the end.

Large byte strings and arrays are not run through the encoder, which would copy them
several times: the containers around them come in pieces, and the large data itself is
one of these.  In the same way a large container is encoded bit by bit.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import cbor2

from . import arrays as _arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PLAIN: Final = frozenset({type(None), bool, int, float, str})
"""Types that go to the encoder as they are, without a look at the value."""

LEAST_PIECE_BYTES: Final = 32 * 1024
"""Byte strings from this size on are joined in instead of encoded."""

PIECE_ITEMS: Final = 4096
"""Items that are encoded in one call, if there is a pause: some 0.3 ms."""

JOINED_BYTES: Final = 64 * 1024
"""Bodies from this size on are not joined before they are sent."""

_CONTAINERS: Final = frozenset({list, tuple, dict, cbor2.CBORTag})


class Pieces:
    """An encoding in pieces, some of them views of large data."""

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes | memoryview) -> None:
        self.parts: list[bytes | memoryview] = list(parts)


def encoded_array(array: _arrays.Lowered) -> object:
    """An array for the encoder."""
    tag, shape, data = array
    large = len(data) >= LEAST_PIECE_BYTES
    if not large:
        inner = cbor2.CBORTag(tag, bytes(data))
        if len(shape) == 1:
            return inner
        return cbor2.CBORTag(_arrays.TAG_ROW_MAJOR, [list(shape), inner])
    pieces = bytes_pieces(data)
    pieces.parts.insert(0, written_head(6, tag))
    if len(shape) != 1:
        dimensions = cbor2.dumps(list(shape))
        pieces.parts.insert(
            0, written_head(6, _arrays.TAG_ROW_MAJOR) + written_head(4, 2) + dimensions
        )
    return pieces


def bytes_pieces(data: bytes | bytearray | memoryview) -> Pieces:
    """A byte string, not copied."""
    view = memoryview(data)
    return Pieces(written_head(2, view.nbytes), view)


def joined(
    head: bytes, items: Iterable[object], pause: Callable[[], None] | None
) -> Pieces:  # fmt: skip
    """``items`` in pieces behind ``head``.  Items between two that are in
    pieces are encoded together, as a list whose head is then dropped; if there is a
    ``pause``, containers one by one."""
    pieces = Pieces(head)
    run: list[object] = []

    def encode_run() -> None:
        pieces.parts.append(cbor2.dumps(run)[len(written_head(4, len(run))) :])
        run.clear()

    for item in items:
        if isinstance(item, Pieces):
            encode_run()
            pieces.parts += item.parts
        else:
            run.append(item)
            if pause is not None and (len(run) >= PIECE_ITEMS or type(item) in _CONTAINERS):
                encode_run()
                pause()
    encode_run()
    return pieces


def unchanging(parts: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """The parts as pieces that nobody can change: small neighbours are joined, and large ones
    copied unless they are of ``bytes``."""
    pieces: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for part in parts:
        if len(part) < LEAST_PIECE_BYTES:
            small.append(part)
            continue
        if small:
            pieces.append(b"".join(small))
            small.clear()
        owner = part.obj if isinstance(part, memoryview) else part
        pieces.append(part if type(owner) is bytes else bytes(part))
    if small:
        pieces.append(b"".join(small))
    return pieces


def map_joined(
    pairs: Iterable[tuple[object, object]], count: int, pause: Callable[[], None] | None
) -> Pieces:
    """A map of ``count`` pairs in pieces."""
    return joined(written_head(5, count), itertools.chain.from_iterable(pairs), pause)


def written_head(major: int, argument: int) -> bytes:
    """The head of a data item: its major type, and a number or a length."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    width = (argument.bit_length() + 7) // 8
    power = (width - 1).bit_length()  # 1, 2, 4 or 8 bytes
    return bytes((major << 5 | 24 + power,)) + argument.to_bytes(1 << power, "big")
