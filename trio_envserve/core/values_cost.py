"""The cost of a body: what its value may take in memory, and a look that refuses what takes more.

Theory of operation
-------------------
One byte of a body can become an empty list of 73 bytes.  So a body has a cost, by one rule
that a writer in any language can follow:

    8 bytes for each byte of the encoding, and 128 for each object in it.

Objects are all items but numbers and constants: strings, arrays, maps and their keys, tags but
those of large integers, whose byte strings count.  Integers from -256 to -6 and unassigned simple
values count, too, since they take much more memory than their byte or two, and so does each item
of a set, or of a map in pairs, once more, for its place in the table.  A value takes at most twice
its cost, and as a rule less than it.

The cost stands in a *header* of the body (:func:`~.terms.weight`), which the writer puts in
front where the cost is more than any body may have: 8 bytes for each byte, and ``FREE_BYTES``.
All bounds of the protocol count an eighth of it, if that is more than the body's length: so a
peer that wants its readers to hold much has to say so.

The reader looks at the heads before it decodes, and refuses a body that costs more than its
header says (:class:`TooCostly`).  CBOR can be read head by head without regard to nesting, and
compiled code does it: one regular expression passes a run of numbers in a step, another finds the
first bytes of short items, by which they are counted.  A body too short to cost more is not looked
at.

The look answers two more questions:

- *Does it take long?*  The look counts its work, and that of the decoding after it
  (:class:`TooMuchWork`).
- *Where are the large strings?*  The decoder copies strings several times.  The look cuts the
  large ones out, and leaves placeholders, tags with their numbers, in the rest that is
  decoded.  The elements of an array are not copied at all, other bytes and text once.  A body
  that brings such a tag itself is not cut, and so its tag is refused.

At the first oddity the look stops and leaves the error to the decoder, which stops there, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from .arrays import ELEMENT_TYPES
from .limits import KIB, MIB
from .objects import TAG_DECIMAL
from .strict_cbor import head
from .terms import BYTE_COST

OBJECT_COST: Final = 128
"""Cost of an object, in bytes; see above for what it is of a byte."""

FREE_BYTES: Final = 1 * MIB
"""Cost that any body may have besides that of its length, so that few bodies need a header."""

UNSEEN_BYTES: Final = FREE_BYTES // (2 * OBJECT_COST)
"""Longest body that is not looked at: each byte is at most one object, and an item of a set."""

_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _BREAK = 2, 3, 4, 5, 6, 7
TAG_SET: Final = 258
TAG_PAIRS: Final = 1701737993
TAG_CUT: Final = 1701737991
"""The placeholder's tag.  It never leaves this process."""

LEAST_CUT_BYTES: Final = 64 * KIB
"""Least bytes of a string that is cut out: for smaller ones the decoder is cheap, and an array does
not keep the whole message alive."""

WORK_AT_ONCE: Final = 256 * KIB
"""The work that may be done at once, about 30 ms: a byte is one of it, and an object 16."""
_OBJECT_WORK: Final = 16
_STRING_BYTES_PER_WORK: Final = 32
_DECIMAL_WORK: Final = 1_000
"""A Decimal of 4,300 digits takes 0.2 ms."""
_DECIMAL: Final = bytes((_TAG << 5 | TAG_DECIMAL,))

_INDEFINITE: Final = 31

_NUMBER: Final = (
    rb"\x19..|\x1a....|[\x00-\x17\x20-\x24\xf4-\xf7\xff]|\x18.|\xfb........"
    rb"|\x39..|\x3a....|\xfa....|\xf9..|[\x1b\x3b]........"
)
"""A number or constant that takes at most 14 bytes of memory for each of its bytes, or the end of
an array or map.  Spelled out, and in this order: so it takes 10 ns."""
_NUMBERS: Final = re.compile(b"(?:%b){8}(?:%b)*+" % (_NUMBER, _NUMBER), re.DOTALL)
"""A run of numbers; possessive, so that it needs no memory."""


def _lengths() -> bytes:
    """The length of an item by its first byte; 0 if that does not tell it, or if it needs a look.
    Of an array or map it is the head's."""
    lengths = bytearray(256)
    for first in range(256):
        major, information = first >> 5, first & 31
        if information < 24:
            lengths[first] = 1 + (information if major in (_BYTES, _TEXT) else 0)
        elif information < 28 and major not in (_BYTES, _TEXT, _TAG):
            lengths[first] = 1 + (1 << information - 24)
        elif information == _INDEFINITE and major in (_ARRAY, _MAP, _BREAK):
            lengths[first] = 1
    return bytes(lengths)


_LENGTHS: Final = _lengths()
_KNOWN: Final = b"|".join(
    b"[" + b"".join(b"\\x%02x" % first for first in range(256) if _LENGTHS[first] == length) + b"]"
    + b"." * (length - 1)
    for length in sorted({*_LENGTHS} - {0})
)  # fmt: skip
_HEADS: Final = re.compile(b"(?=(.))(?:%b)|.+" % _KNOWN, re.DOTALL)
"""The first byte of each item of known length, one after the other; then nothing, for all the
rest."""
_PLAIN: Final = b"\xc2\xc3" + bytes(
    first
    for first in range(256)
    if re.match(b"(?:%b)" % _NUMBER, bytes((first, *bytes(8))), re.DOTALL)
)
"""The first bytes of all that is no object, the tags of large integers among them."""
_WINDOW_BYTES: Final = 8 * KIB
"""Most of a body that is looked at in one step."""
_LEAST_WINDOW_BYTES: Final = 256
"""What is looked at head by head at first, since a run of numbers may come, which is quicker."""

Part: TypeAlias = bytes | str | memoryview
"""A string, or a view of the body for the elements of an array."""


class Look(NamedTuple):
    """The findings of a look at a body."""

    objects: int
    rest: bytes | memoryview
    """The body, with placeholders for what was cut out."""
    parts: list[Part]
    """The parts that were cut out, by number."""


class TooCostly(ValueError):
    """The value costs more than is allowed."""


class TooMuchWork(Exception):
    """The look and the decoding after it would take longer than allowed."""


def look(
    data: memoryview, most_bytes: int | None = None, *, work: int | None = None, cut: bool = True,
    pause: Callable[[], None],
) -> Look:  # fmt: skip
    """Look at the encoding of a value, contiguous bytes that may cost ``most_bytes`` and take this
    much ``work``.  ``cut``: large strings are cut out.  ``pause`` is called now and then."""
    end, at, objects, done, array_at = len(data), 0, 0, 0, -1
    window = _LEAST_WINDOW_BYTES
    most = None if most_bytes is None else (most_bytes - BYTE_COST * end) // OBJECT_COST
    least_cut = LEAST_CUT_BYTES if cut else end
    cuts: list[tuple[int, int, int, bool]] = []
    while True:
        if most is not None and objects > most:
            raise TooCostly(
                f"a value that costs more than the {most_bytes} bytes of memory that its header "
                f"says (without one, {BYTE_COST} for each byte of the body and {FREE_BYTES})"
            )
        if work is not None and done + _OBJECT_WORK * objects > work:
            raise TooMuchWork
        if at >= end:
            break
        pause()
        numbers = _NUMBERS.match(data, at, at + _WINDOW_BYTES)
        if numbers is not None:
            done += numbers.end() - at
            at, window = numbers.end(), _LEAST_WINDOW_BYTES
            continue
        heads = b"".join(_HEADS.findall(data, at, at + window))
        if heads:
            objects += len(heads.translate(None, _PLAIN))
            length = sum(heads.translate(_LENGTHS))
            done += length + _DECIMAL_WORK * heads.count(_DECIMAL)
            at, window = at + length, min(2 * window, _WINDOW_BYTES)
            if at >= end or data[at] >> 5 not in (_BYTES, _TEXT):
                continue
        window = _LEAST_WINDOW_BYTES
        major, argument, after = head(data, at)
        if argument < 0 or (major == _TAG and argument == TAG_CUT):
            break
        objects += 1
        if major == _TAG:
            if argument in ELEMENT_TYPES:
                array_at = after
            elif argument in (TAG_SET, TAG_PAIRS):
                objects += _members(data, after)
            elif argument == TAG_DECIMAL:
                done += _DECIMAL_WORK
        elif data[at] & 31 == _INDEFINITE:
            least_cut = end  # no tag can take the place of a chunk
        else:
            done += argument // _STRING_BYTES_PER_WORK
            if least_cut <= argument <= end - after:
                cuts.append((at, after, after + argument, at == array_at))
            after += argument
        at = after
    rest, parts = _cut(data, cuts) if at == end else (data, [])
    return Look(objects, rest, parts)


def _cut(
    data: memoryview, cuts: list[tuple[int, int, int, bool]]
) -> tuple[bytes | memoryview, list[Part]]:
    """The body with placeholders, and the strings that stood there: each has a head, a begin and
    an end, and some are the elements of an array."""
    rest: list[bytes | memoryview] = []
    parts: list[Part] = []
    last = 0
    for at, begin, end, in_array in cuts:
        rest += (data[last:at], placeholder(len(parts)))
        part, last = data[begin:end], end
        if data[at] >> 5 == _TEXT:
            try:
                parts.append(str(part, "utf-8"))
            except UnicodeDecodeError:
                return data, []
        else:
            parts.append(part if in_array else bytes(part))
    return (b"".join((*rest, data[last:])), parts) if parts else (data, parts)


def _members(data: memoryview, at: int) -> int:
    """The number of items of the array there: of one of indefinite length, more than it has."""
    major, count, _ = head(data, at) if at < len(data) else (0, 0, 0)
    if major != _ARRAY:
        return 0  # the decoder refuses it
    return len(data) if data[at] & 31 == _INDEFINITE else max(count, 0)


def placeholder(number: int) -> bytes:
    """The encoded placeholder of the part with that number."""
    return b"\xda" + TAG_CUT.to_bytes(4, "big") + b"\x1a" + number.to_bytes(4, "big")
