"""A look at an encoded body before it is decoded: its items and its large strings.

Theory of operation
-------------------
CBOR can be read item by item without regard to nesting: every head says how
many bytes belong to it.  One pass over the heads answers two questions that
the decoder cannot:

- *How many items?*  A byte can become an empty list of 56 bytes, so a body of
  megabytes can become gigabytes.  An item takes at least a byte; only a body
  of more bytes than items are allowed has to be counted.
- *Where are the large strings?*  The decoder copies strings several times.  The
  pass cuts the large ones out of the body and leaves placeholders, tags
  1701737991 with their numbers, in the small rest that is then decoded.  The
  elements of an array are not copied at all, other bytes and text once.  A body
  that brings such a tag itself is not cut, and so its tag is refused.  Where a
  string comes in chunks, a tag cannot take the place of one; from the first such
  string on nothing is cut.

The pass gives up the search (not the count) when there are so many items that
it would cost more than the copy that it saves.  It judges nothing: at the
first oddity it stops and leaves the error to the decoder.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

from .arrays import ELEMENT_TYPES

TAG_CUT: Final = 1701737991
"""The placeholder's tag.  It never leaves this process."""

LEAST_CUT_BYTES: Final = 64 * 1024
"""Smaller strings are left to the decoder: cheap, and an array does not keep the
whole message alive."""

_BYTES_PER_STEP: Final = 4096
"""The search may take one step for so many bytes: a step takes about as long as
copying them."""

_NUMBERS: Final = re.compile(
    rb"([\x00-\x17\x20-\x37\xe0-\xf7]++)"
    rb"|((?:[\x18\x38\xf8].)++)"
    rb"|((?:[\x19\x39\xf9].{2})++)"
    rb"|((?:[\x1a\x3a\xfa].{4})++)"
    rb"|((?:[\x1b\x3b\xfb].{8})++)",
    re.DOTALL,
)
"""A run of numbers (and simple values) of one width; possessive, so that a
long run needs no memory."""

_WIDTHS: Final = (0, 1, 2, 3, 5, 9)
"""Bytes of one item, for each group of :data:`_NUMBERS`."""

_BYTES, _TEXT, _TAG = 2, 3, 6
_CHUNKED: Final = (_BYTES << 5 | 31, _TEXT << 5 | 31)
"""How a string in chunks begins."""

_NUMERIC: Final = frozenset({0, 1, 7})


Part: TypeAlias = bytes | str | memoryview
"""A string, or a view of the body for the elements of an array."""


class Cut(NamedTuple):
    """A body taken apart."""

    rest: bytes
    """The body with placeholders."""
    parts: list[Part]
    """What was cut out, by number."""


class TooManyItems(ValueError):
    """The body has more items than are allowed."""


def scan(data: memoryview, *, items: int) -> Cut | None:
    """The body taken apart, or None if there is nothing to cut.

    ``data`` must be contiguous bytes.  Raises :class:`TooManyItems` if the body
    has more than ``items`` items.
    """
    end = len(data)
    counting = end > items
    steps = end // _BYTES_PER_STEP
    seen = position = start = 0
    in_array = False
    rest: list[bytes | memoryview] = []
    parts: list[Part] = []
    least = LEAST_CUT_BYTES
    while position < end and (counting or steps > 0):
        steps -= 1
        run = _NUMBERS.match(data, position) if data[position] >> 5 in _NUMERIC else None
        if run is not None:
            in_array = False
            seen += (run.end() - position) // _WIDTHS[run.lastindex or 0]
            position = run.end()
        else:
            major, argument, after = _head(data, position)
            if argument < 0 or (major == _TAG and argument == TAG_CUT):
                return None
            seen += major != _TAG  # a tag and its content become one object
            if major in (_BYTES, _TEXT):
                if data[position] in _CHUNKED:
                    least = end
                if least <= argument <= end - after:
                    rest += (data[start:position], placeholder(len(parts)))
                    start = after + argument
                    try:
                        parts.append(_part(data[after:start], major, in_array=in_array))
                    except UnicodeDecodeError:
                        return None
                after += argument
            in_array = major == _TAG and argument in ELEMENT_TYPES
            position = after
        if seen > items:
            raise TooManyItems(f"more than {items} items")
    if position != end or not parts:
        return None
    return Cut(b"".join((*rest, data[start:])), parts)


def placeholder(number: int) -> bytes:
    """The encoded placeholder of the part with that number."""
    return b"\xda" + TAG_CUT.to_bytes(4, "big") + b"\x1a" + number.to_bytes(4, "big")


def _part(view: memoryview, major: int, *, in_array: bool) -> Part:
    if major == _TEXT:
        return str(view, "utf-8")
    return view if in_array else bytes(view)


def _head(data: memoryview, position: int) -> tuple[int, int, int]:
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
