"""A look at an encoded body before it is decoded: what it costs, and its large strings.

Theory of operation
-------------------
CBOR can be read item by item without regard to nesting: every head says how
many bytes belong to it.  One pass over the heads answers three questions that
the decoder cannot:

- *What does it cost?*  One byte can become an empty list of 56 bytes.  Each head
  has a price, the memory that CPython takes for it (:mod:`values_prices`), and
  the pass ends as soon as the sum is more than the body may cost.
- *How long does it take?*  The pass counts its own work.  If it may not take
  longer, it says so (:class:`TooMuchWork`) instead of going on.
- *Where are the large strings?*  The decoder copies strings several times.  The
  pass cuts the large ones out of the body and leaves placeholders, tags
  1701737991 with their numbers, in the small rest that is then decoded.  The
  elements of an array are not copied at all, other bytes and text once.  A body
  that brings such a tag itself is not cut, and so its tag is refused.  Where a
  string comes in chunks, a tag cannot take the place of one; from the first such
  string on nothing is cut.

The pass runs in compiled code wherever it can: a regular expression takes a run of heads
in one step.  For a run of numbers it knows the length only, and charges what the most
expensive one of that length would cost.  If that is too much, or the items have to be
counted, a second pass looks at every head.  The pass judges the cost and nothing else: at
the first oddity it stops and leaves the error to the decoder.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from . import values_prices as prices
from .arrays import ELEMENT_TYPES
from .cbor_heads import head
from .limits import KIB, WireLimits
from .values_prices import TAG_SET

TAG_CUT: Final = 1701737991
"""The placeholder's tag.  It never leaves this process."""

LEAST_CUT_BYTES: Final = 64 * KIB
"""Least bytes of a string that is cut out: for smaller ones the decoder is cheap, and an array does
not keep the whole message alive."""

FEW_KEYS: Final = 255
"""Most colliding keys that take no longer than other items of their length: 3 µs each."""

_NUMERIC: Final = frozenset({0, 1, 7})
_BYTES, _TEXT, _ARRAY, _MAP, _TAG = 2, 3, 4, 5, 6
_CHUNKED: Final = (_BYTES << 5 | 31, _TEXT << 5 | 31)
_OPEN_MAP: Final = _MAP << 5 | 31

_NO_END: Final = 1 << 100

_NUMBER_BYTES_PER_WORK: Final = 4
_STEP_WORK: Final = 32
"""Units of work of one step: it takes as long as so many bytes at worst."""
_DECIMAL_WORK: Final = 1_000
"""A Decimal of 4,300 digits takes 0.2 ms."""
_STRING_BYTES_PER_WORK: Final = 256
_TAG_DECIMAL: Final = 4

_NUMBER: Final = (
    rb"\x19..|\x1a....|[\x00-\x17\x20-\x24\xf4-\xf7]|\x18.|\xfb........"
    rb"|\x39..|\x3a....|\xfa....|\xf9..|[\x1b\x3b]........"
)
"""Any number but the small ones that are dear.  Spelled out, and in this order: so it
takes 20 ns."""
_NUMBERS: Final = re.compile(b"(?:%b){8}(?:%b)*+" % (_NUMBER, _NUMBER), re.DOTALL)
"""A run of numbers of any widths; possessive, so that it needs no memory."""
_FLOATS: Final = b"\xfb\xfb"
"""Heads of binary64, which is what a list of floats is written as: each 9 bytes."""


def _known_items() -> bytes:
    """An expression for one item whose first byte tells its length (of a container:
    the length of its head)."""
    heads: dict[int, bytes] = {}
    for first, length in prices.LENGTHS.items():
        heads[length] = heads.get(length, b"") + b"\\x%02x" % first
    return b"|".join(b"[%b]" % heads[length] + b"." * (length - 1) for length in sorted(heads))


_BEFORE_TEXT: Final = re.compile(
    b"((?:" + _known_items() + rb"){0,12}+)(?:\x78(.)|\x79(..))", re.DOTALL
)
"""A few of these before a text of up to 64 KiB, as in a message of a conversation."""
_HEADS: Final = re.compile(b"(?=(.))(?:" + _known_items() + b")|.+", re.DOTALL)
"""The first byte of each item of known length, one after the other; then nothing,
for all the rest."""

_STEPS_BETWEEN_PAUSES: Final = 64

_WINDOW_BYTES: Final = 8 * KIB
"""Most of a body that is looked at in one step."""
_RUN_BYTES: Final = 64 * KIB
"""Most bytes of numbers that are looked at in one step."""

Part: TypeAlias = bytes | str | memoryview
"""A string, or a view of the body for the elements of an array."""


class Cut(NamedTuple):
    """A body taken apart."""

    rest: bytes
    """The body with placeholders."""
    parts: list[Part]
    """The parts that were cut out, by number."""


class Survey(NamedTuple):
    """The findings of a look at a body."""

    cut: Cut | None
    """The body taken apart; None if there is nothing to cut."""
    cost_bytes: int
    """The cost of its value at most."""
    large_keys: bool
    """Whether a map or set may have more than FEW_KEYS members, or than ``keys``."""


class TooCostly(ValueError):
    """The body has more items, or its value costs more, than is allowed."""


class TooMuchWork(Exception):
    """The look and the decoding after it would take longer than allowed."""


@functools.lru_cache(maxsize=256)
def _summed(run: bytes) -> tuple[int, int]:
    """The number of items of a run, and their cost; cached, since the same few runs stand between
    the texts of a conversation."""
    heads = b"".join(_HEADS.findall(run))
    return len(heads), prices.run(heads)[1]


class _TooDear(Exception):
    """The sum is too high; it may be less if every head is looked at."""


def survey(
    data: memoryview, limits: WireLimits, *, most_bytes: int, work: int = _NO_END,
    pause: Callable[[], None] = lambda: None,
) -> Survey:  # fmt: skip
    """Look at a body: contiguous bytes.

    Raises :class:`TooCostly` if it has more than ``limits.items`` items or costs
    more than ``most_bytes``, :class:`TooMuchWork` if it takes more than ``work``
    (a unit is what one byte takes at worst, about 0.5 µs with the decoding).
    ``pause`` is called now and then.
    """
    if len(data) <= limits.items:
        try:
            return _Look(data, limits, most_bytes, work, pause, exact=False).over_all()
        except _TooDear:
            pass
    return _Look(data, limits, most_bytes, work, pause, exact=True).over_all()


def cost_bytes(
    data: memoryview, limits: WireLimits, *, enough: int = 0,
    pause: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """The cost of a body's value; or more than that, if it is no more than
    ``enough`` and quicker to find out."""
    try:
        return _Look(data, limits, enough, _NO_END, pause, exact=False).over_all().cost_bytes
    except _TooDear:
        return _Look(data, limits, _NO_END, _NO_END, pause, exact=True).over_all().cost_bytes


class _Look:
    """One pass over the heads."""

    def __init__(
        self, data: memoryview, limits: WireLimits, most_bytes: int, work: int,
        pause: Callable[[], None], *, exact: bool,
    ) -> None:  # fmt: skip
        self._data = data
        self._items = limits.items
        self._few = min(limits.keys, FEW_KEYS)
        self._most_bytes = most_bytes
        self._work_most = work
        self._pause = pause
        self._exact = exact
        """Whether to look at every head, also of numbers."""
        self._position = 0
        self._seen = 0
        self._cost_bytes = 0
        self._work = 0
        self._steps = 0
        self._extra_bytes = 0
        """The extra cost of each item, since it may be in a map or set of unknown size."""
        self._large_keys = False
        self._in_array = False
        self._least = LEAST_CUT_BYTES
        self._rest: list[bytes | memoryview] = []
        self._start = 0
        """Beginning of the part that is not cut out yet."""
        self._parts: list[Part] = []

    def over_all(self) -> Survey:
        data, end = self._data, len(self._data)
        cut: Cut | None = None
        while self._position < end:
            self._steps += 1
            if self._steps % _STEPS_BETWEEN_PAUSES == 0:
                self._pause()
            if not (self._numbers() or self._message() or self._known() or self._step()):
                break
            self._check()
        else:
            if self._parts and self._position == end:
                cut = Cut(b"".join((*self._rest, data[self._start :])), self._parts)
        return Survey(cut, self._cost_bytes, self._large_keys)

    def _check(self) -> None:
        if self._seen > self._items:
            raise TooCostly(f"more than {self._items} items")
        if self._cost_bytes > self._most_bytes:
            if not self._exact:
                raise _TooDear
            raise TooCostly(
                f"a value that takes more than {self._most_bytes} bytes of memory, too much for "
                "a body of its length (write numbers as typed arrays, use fewer and larger "
                "containers, or pad the body)"
            )
        if self._work > self._work_most:
            raise TooMuchWork

    def _numbers(self) -> bool:
        """Pass a run of numbers without a look at each."""
        if self._exact or self._data[self._position] >> 5 not in _NUMERIC:
            return False
        end = min(self._position + _RUN_BYTES, len(self._data))
        if bytes(self._data[self._position : self._position + 10 : 9]) == _FLOATS:
            heads = bytes(self._data[self._position : end - 8 : 9])
            floats = len(heads) - len(heads.lstrip(_FLOATS))
            length = 9 * floats
            cost_bytes = floats * (prices.NUMBER_BYTES + self._extra_bytes)
        else:
            run = _NUMBERS.match(self._data, self._position, end)
            if run is None:
                return False
            length = run.end() - run.start()
            most = prices.NUMBERS_BYTES_PER_BYTE + self._extra_bytes
            cost_bytes = int(length * most) + prices.NUMBER_BYTES
        work = length // _NUMBER_BYTES_PER_WORK
        self._passed(self._position + length, cost_bytes, work)
        return True

    def _message(self) -> bool:
        """Pass a few items of known length and the text after them."""
        found = _BEFORE_TEXT.match(self._data, self._position)
        if found is None:
            return False
        run, short, long = found.groups()
        length = int.from_bytes(short or long, "big")
        seen, cost_bytes = _summed(run)
        seen += 1
        self._seen += seen
        cost_bytes += prices.string(length) + seen * self._extra_bytes
        work = len(run) + _STEP_WORK + length // _STRING_BYTES_PER_WORK
        self._passed(found.end() + length, cost_bytes, work)
        return True

    def _known(self) -> bool:
        """Pass a run of items of known length, and look at each head."""
        start = self._position
        window = min(start + _WINDOW_BYTES, len(self._data))
        heads = b"".join(_HEADS.findall(self._data, start, window))
        if not heads:
            return False
        self._seen += len(heads)
        length, cost_bytes = prices.run(heads)
        self._passed(start + length, cost_bytes + len(heads) * self._extra_bytes, length)
        return True

    def _passed(self, position: int, cost_bytes: int, work: int) -> None:
        self._position = position
        self._cost_bytes += cost_bytes
        self._work += work
        self._in_array = False

    def _step(self) -> bool:
        """Pass one head, and its string if it has one.  False if there is none."""
        data, position = self._data, self._position
        major, argument, after = head(data, position)
        if argument < 0 or (major == _TAG and argument == TAG_CUT):
            return False
        self._work += _STEP_WORK
        self._seen += major != _TAG  # a tag and its content become one object
        in_array, self._in_array = self._in_array, False
        if major in (_BYTES, _TEXT):
            if not self._string(major, argument, after, in_array=in_array):
                return False
            after += argument
        elif major == _TAG:
            self._tag(argument, after)
        elif major == _MAP:
            self._map(argument, unknown=data[position] == _OPEN_MAP)
        else:
            self._cost_bytes += prices.LIST_BYTES + prices.SLOT_BYTES
        self._cost_bytes += self._extra_bytes
        self._position = after
        return True

    def _string(self, major: int, length: int, after: int, *, in_array: bool) -> bool:
        """False if it is no text, though large."""
        data, position = self._data, self._position
        self._work += length // _STRING_BYTES_PER_WORK
        price = prices.string if major == _TEXT else prices.byte_string
        self._cost_bytes += price(length)
        if data[position] in _CHUNKED:
            self._least = len(data)
        if self._least <= length <= len(data) - after:
            if self._work > self._work_most:
                raise TooMuchWork
            self._rest += (data[self._start : position], placeholder(len(self._parts)))
            self._start = after + length
            try:
                self._parts.append(_part(data[after : self._start], major, in_array=in_array))
            except UnicodeDecodeError:
                return False
        return True

    def _tag(self, number: int, after: int) -> None:
        self._in_array = number in ELEMENT_TYPES
        self._cost_bytes += prices.tag(number)
        if number == _TAG_DECIMAL:
            self._work += _DECIMAL_WORK
        if number == TAG_SET:
            self._cost_bytes += prices.SET_BYTES
            major, members, _ = head(self._data, after) if after < len(self._data) else (0, 0, 0)
            if major == _ARRAY and self._data[after] & 31 != 31 and members >= 0:
                self._cost_bytes += prices.SET_MEMBER_BYTES * members
                self._large_keys |= members > self._few
            else:
                self._unknown(prices.SET_MEMBER_BYTES)

    def _map(self, count: int, *, unknown: bool) -> None:
        self._cost_bytes += prices.pairs(count)
        self._large_keys |= count > self._few
        if unknown:
            self._unknown(prices.UNKNOWN_PAIRS_BYTES)

    def _unknown(self, extra_bytes: int) -> None:
        """Charge each further item as a member of a map or set of unknown size."""
        self._large_keys = True
        self._extra_bytes = max(self._extra_bytes, extra_bytes)


def placeholder(number: int) -> bytes:
    """The encoded placeholder of the part with that number."""
    return b"\xda" + TAG_CUT.to_bytes(4, "big") + b"\x1a" + number.to_bytes(4, "big")


def _part(view: memoryview, major: int, *, in_array: bool) -> Part:
    if major == _TEXT:
        return str(view, "utf-8")
    return view if in_array else bytes(view)
