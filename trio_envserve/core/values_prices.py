"""The cost of a body's items: the memory that CPython takes for their values.

Theory of operation
-------------------
A price is an upper bound, in bytes, of what ``sys.getsizeof`` says of the object,
rounded up as the allocator does it.  It is known from the item's head alone, so that
a body can be priced before anything of it is decoded.  Each item also costs the slot
in the list or map that it stands in, a ninth more than a pointer, since lists are
made with room to grow.

The prices are equal on every machine and version (they were measured on CPython 3.11 for 64 bits),
so that a body is taken everywhere or nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .arrays import ELEMENT_TYPES, TAG_COLUMN_MAJOR, TAG_ROW_MAJOR

if TYPE_CHECKING:
    from .limits import WireLimits

SLOT_BYTES: Final = 9
_UNIT_BYTES: Final = 16
"""The unit to which the allocator rounds up."""

NUMBER_BYTES: Final = 32 + SLOT_BYTES
"""A float, or an integer of 30 bits or less."""
NUMBERS_BYTES_PER_BYTE: Final = NUMBER_BYTES / 3
"""The most that numbers cost for each of their bytes, but for those of one or two."""

LIST_BYTES: Final = 112
_EMPTY_LIST_BYTES: Final = 64
_MAP_BYTES: Final = 64
_FIRST_PAIRS_BYTES: Final = 176
_PAIR_BYTES: Final = 72
SET_BYTES: Final = 224
SET_MEMBER_BYTES: Final = 144
_STRING_BYTES: Final = 80
_SCALAR_BYTES: Final = 144
_LARGE_INTEGER_BYTES: Final = 16
_LARGE_INTEGERS: Final = (2, 3)
_ARRAY_BYTES: Final = 448
_SHAPE_BYTES: Final = 512
TAG_SET: Final = 258


def most_bytes(length: int, limits: WireLimits) -> int:
    """The cost that the value of a body of so many bytes may have."""
    return limits.value_times * length + limits.value_bytes


def missing_bytes(cost_bytes: int, length: int, limits: WireLimits) -> int:
    """The number of bytes by which a body of ``length`` must grow for a value of that cost."""
    return max(0, -((limits.value_bytes - cost_bytes) // limits.value_times) - length)


def string(length: int) -> int:
    """A string of so many bytes: text with one character beyond the BMP takes
    four bytes for each of its characters."""
    return _STRING_BYTES + SLOT_BYTES + 4 * length


def byte_string(length: int) -> int:
    """Bytes, or the elements of an array, which may be widened to twice their size.
    A large integer takes 16/15 of its bytes."""
    return _STRING_BYTES + SLOT_BYTES + 2 * length


def pairs(count: int) -> int:
    """A map of so many pairs, without what they are."""
    return _MAP_BYTES + SLOT_BYTES + (max(_FIRST_PAIRS_BYTES, _PAIR_BYTES * count) if count else 0)


UNKNOWN_PAIRS_BYTES: Final = _PAIR_BYTES // 2
"""The extra cost of each item that may stand in a map whose pairs are not counted."""


def tag(number: int) -> int:
    """The cost of a tag beyond that of its content."""
    if number in ELEMENT_TYPES:
        return _ARRAY_BYTES
    if number in (TAG_ROW_MAJOR, TAG_COLUMN_MAJOR):
        return _SHAPE_BYTES
    if number in _LARGE_INTEGERS:
        return _LARGE_INTEGER_BYTES
    return _SCALAR_BYTES


def run(heads: bytes) -> tuple[int, int]:
    """The bytes that these items of known length take in the body, and what they cost,
    by their first bytes."""
    cost_bytes = SLOT_BYTES * len(heads) + _UNIT_BYTES * sum(heads.translate(_UNITS))
    return sum(heads.translate(_LENGTHS)), cost_bytes


def _lengths() -> dict[int, int]:
    """The length of each item whose first byte tells it: of a container, the head's."""
    lengths = {}
    for width, information in enumerate((24, 25, 26, 27)):
        for major in (0, 1, 7):
            lengths[major << 5 | information] = 1 + (1 << width)
    for small in range(24):
        for major in (0, 1, 4, 5, 7):
            lengths[major << 5 | small] = 1
        for major in (2, 3):
            lengths[major << 5 | small] = 1 + small
    lengths[4 << 5 | 31] = lengths[7 << 5 | 31] = 1  # a list without end, and an end
    return lengths


LENGTHS: Final = _lengths()
_LENGTHS: Final = bytes(LENGTHS.get(head, 0) for head in range(256))


def _units() -> bytes:
    """The price of each of these, less its slot."""
    price = dict.fromkeys(range(256), 0)
    for head in LENGTHS:
        major, information = head >> 5, head & 31
        if major in (0, 1):
            cached = information < (24 if major == 0 else 5) or head == 0x18
            price[head] = 48 if information == 27 else 0 if cached else 32
        elif major == 7:
            constant = 20 <= information < 24 or information == 31
            price[head] = 0 if constant else 32 if 25 <= information < 28 else 48
        elif major in (2, 3):
            texts = string if major == 3 else byte_string
            price[head] = 0 if information < 2 else texts(information) - SLOT_BYTES
        elif major == 4:
            price[head] = LIST_BYTES if information else _EMPTY_LIST_BYTES
        else:
            price[head] = pairs(information) - SLOT_BYTES
    return bytes(-(-price[head] // _UNIT_BYTES) for head in range(256))


_UNITS: Final = _units()
