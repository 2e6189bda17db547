"""CBOR of strangers where only plain data is expected: headers, error records, bundles.

Nothing of it is believed: lengths are definite, nesting is shallow, there is no tag but
those of large integers, no key twice, no key whose hash can be chosen, and nothing
behind the item.  What is long is looked at before it is decoded, so that it takes no
longer than its bytes allow.
"""

from __future__ import annotations

import io
import re
from typing import Any, Final, NoReturn

import cbor2

_DEPTH: Final = 8
_BYTES, _TEXT, _ARRAY, _MAP = 2, 3, 4, 5  # major types

MOST_ITEMS: Final = 4096
"""Most items of one :func:`loads`, by default."""

_NUMBERS: Final = re.compile(rb"(?:[\x00-\x17]|\x18.|\x19..|\x1a....|\x1b........)++", re.DOTALL)
_LEAST_LOOKED_AT: Final = 64 * 1024
_MOST_OTHERS: Final = 4096
"""Most items in a long one that are no numbers.  A million arrays would take half a second
to decode, a million numbers a tenth, and the router has one loop."""


def head(data: memoryview, position: int) -> tuple[int, int, int]:
    """Major type, argument and end of the head at ``position``.

    The argument is 0 for a head of indefinite length and for a break, whose
    items follow as items of their own; it is -1 where there is no valid head.
    """
    initial = data[position]
    major, information = initial >> 5, initial & 31
    position += 1
    if information < 24:
        return major, information, position
    if information == 31:
        return major, 0, position
    width = 1 << (information - 24)
    if width > 8 or position + width > len(data):
        return major, -1, position
    return major, int.from_bytes(data[position : position + width], "big"), position + width


class Costly(ValueError):
    """It would take too long to decode."""


class _NoTags(dict[int, Any]):
    """No tag but those of large integers: others make cbor2 build what is no plain
    data, among it values that contain themselves and cannot be encoded again."""

    def __missing__(self, tag: int) -> NoReturn:
        if tag in (2, 3):
            raise KeyError(tag)  # says: use your own
        raise ValueError(f"tag {tag}")


NO_TAGS: Final = _NoTags()
"""Semantic decoders for cbor2 that refuse every tag but those of large integers."""


def loads(data: bytes | memoryview, *, most_items: int = MOST_ITEMS) -> Any:
    """The one item that these bytes are.  Raises :class:`Costly`, and whatever hostile
    bytes make cbor2 raise: it documents no complete list of that."""
    if len(data) > _LEAST_LOOKED_AT:
        _look(memoryview(data), most_items)
    stream = io.BytesIO(data)
    item = cbor2.load(
        stream, max_depth=_DEPTH, allow_indefinite=False, allow_duplicate_keys=False,
        # Other keys can be chosen so that their hashes collide.
        strict_hashable_types=True, semantic_decoders=NO_TAGS, read_size=len(data) or 1,
    )  # fmt: skip
    if stream.tell() != len(data):  # cbor2 itself does not mind what follows
        raise ValueError("bytes after the item")
    return item


def _look(data: memoryview, most_items: int) -> None:
    """Raise :class:`Costly` for many items that are not natural numbers, and for many
    items in all, of which most stand in some array."""
    position = claimed = 0
    for _ in range(_MOST_OTHERS + 1):
        run = _NUMBERS.match(data, position)
        if run is not None:
            position = run.end()
        if position >= len(data):
            return
        major, argument, position = head(data, position)
        if argument < 0:
            return  # it is malformed, and decoding it ends here
        if major in (_BYTES, _TEXT):
            position += argument
        elif major in (_ARRAY, _MAP):
            claimed += argument if major == _ARRAY else 2 * argument
            if claimed > most_items:
                raise Costly(f"more than {most_items} items")
    raise Costly(f"more than {_MOST_OTHERS} items that are not numbers")
