"""Bodies: values to bytes and back.

Theory of operation
-------------------
A body is one CBOR data item (RFC 8949), with a header before it if its value takes much more
memory than its bytes.  Only the client and the worker decode bodies; the router passes them on as
they are.

*Encoding* first *lowers* the value: a walk that visits containers, looks
at the types of their members in one sweep, and replaces only what CBOR does not have.  A
container of plain members is passed on itself, so a tree of dicts, lists, text and numbers
reaches cbor2's compiled encoder untouched.  The walk is also what makes that safe: the compiled
encoder recurses on the native stack without a bound (a list nested some thousands deep ends the
process), writes a memoryview as a list, and knows types that no reader here accepts.  A refusal
collects its path while it unwinds, so a path costs nothing unless it is needed.  Large byte
strings and arrays are not run through the encoder, which would copy them several times; they are
joined in at the end.

*Decoding* runs no code that the body names, and accepts a closed list of tags.  The compiled
decoder does all of it, in one call.  It is bounded in depth and by the body's own size: a length
is believed only as far as there are bytes.

*Memory.*  A value takes at most what the header of its body says, and twice that at the very
most.  A look at the body before it is decoded refuses what costs more.

*Time.*  Keys whose hashes can be chosen are bounded in number.  Whoever
must not be held up asks to do it ``at_once``, which ends in :class:`TooMuchWork` after some 30 ms,
and then does it in a thread, with a ``pause`` that lets others run: decoder and encoder read and
write the body in pieces of 16 and 4 KiB, and call it between them, as the walk does for each
container.  No code of the value's classes is run then: the walk may be in another thread than
theirs.

Values and normal forms
-----------------------
None, bool, int of any size, float, str, bytes, list and dict come back as they
are.  Insertion order of dicts is kept, unless it is asked to sort them.  Further:

- tuples, named tuples, deques, ranges and other sequences come back as lists;
  as keys and in sets, where lists cannot be, as tuples;
- bytearray and memoryview come back as bytes (a memoryview row by row);
- sets come back as sets, in keys and in sets as frozensets.  Their members are
  written in the order of their encodings, so that equal sets give equal bytes
  in every process;
- other mappings come back as dicts; subclasses of str, int and the like as the
  plain type;
- numpy scalars come back as plain numbers;
- all NaNs are one NaN;
- arrays (of Python's module ``array``, too) and tensors: see :mod:`~trio_envserve.core.arrays`;
- dates, UUIDs, Decimals, enums, paths, dataclasses, attrs and pydantic models:
  see :mod:`~trio_envserve.core.objects`.

Keys of dicts and members of sets are None, bool, numbers, text, bytes, the
tagged scalars, and tuples and frozensets of these.

Tags read: 0, 1, 2, 3, 4, 37, 40, 64 to 82 and 84 to 86 (not 76), 100, 258, 1004, 1040, 43000, the
seven that ``arrays`` and ``objects`` define, and 1701737993, a map with other keys than text and
bytes: a list of keys and values in turn.  CBOR's ``undefined`` and unassigned simple values come
back as cbor2's objects for them.  Any other tag is refused, as are doubled keys, invalid text and
bytes after the end.

Cost of a body
--------------
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

Lowering
--------
What :class:`Lowering` makes of a value consists of exact dicts, lists, tuples, scalars, byte
strings and CBOR tags: nothing about which the encoder would decide by itself, and never deeper
than the limit.  Containers of large data come out as :class:`Pieces`, encoded parts that only have
to be joined.

*Keys.*  Hashes of text and bytes differ in every process; others can be chosen so that all
collide, and a table then takes quadratic time.  So maps have keys of text and bytes only, and the
compiled decoder takes no others.  Any other dict is written as a list of keys and values in turn,
under a tag; there, and in sets, keys whose hashes can be chosen are bounded (:func:`take_long`).
Integers of 17 bits are too few for that: of those chosen to do most harm, some 10,000, each takes
4 µs.  1,000 others, if all collide, take 4 ms.

*Order.*  A dict keeps the order in which it was filled, which is no part of what it says.  Where
equal values must have equal bytes (the input of a keyed call), the keys of each map are written
in the bytewise order of their encodings, as section 4.2.1 of RFC 8949 has it.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import heapq
import io
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import cbor2

from . import arrays as _arrays
from . import objects as _objects
from .arrays import ELEMENT_TYPES, Reader
from .errors import ConfigError, EnvServeError
from .limits import KIB, MIB, WireLimits
from .objects import TAG_DECIMAL
from .strict_cbor import head
from .terms import BYTE_COST, COST_HEADER, BodyParts, stated_cost

# -- the cost of a body ------------------------------------------------------------------

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


# -- lowering ----------------------------------------------------------------------------

PLAIN: Final = frozenset({type(None), bool, int, float, str})
"""Types that go to the encoder as they are, without a look at the value."""

_FLOATS: Final = frozenset({float})
_OF_KEYS: Final = frozenset({str, bytes})
"""Types of the keys of maps."""

LEAST_PIECE_BYTES: Final = 32 * KIB
"""Byte strings from this size on are joined in instead of encoded."""

_PIECE_ITEMS: Final = 4096
"""Items that are looked at, or sorted, in one call, if there is a pause."""

_SUPPORTED: Final = (
    "None, bool, numbers, text, bytes, lists, dicts, sets, numpy arrays, torch tensors, "
    "dates, UUIDs, Decimals, enums, paths, dataclasses, attrs classes, pydantic models"
)

_LEAF_ITEMS: Final = 8
"""More items than the encoding of any tagged scalar or array has (without dimensions)."""

_LEAF_CONTAINERS: Final = 5
"""Number of containers whose encoding takes as long as that of such a scalar or array."""

_CONTAINER_WORK: Final = 5
"""Number of items whose encoding takes as long as that of a container."""

_OF_NOBODY: Final = frozenset(
    {"builtins", "collections", "datetime", "decimal", "uuid", "pathlib", "numpy", "torch", "cbor2"}
)
"""Modules whose classes run no code but their own, in any thread."""


# -- refusals, and the way to what is refused -----------------------------------------


class ValueRefusal(Exception):
    """Something cannot be encoded.  Collects the way to it while it unwinds."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = _type_name(value)
        self.way: list[tuple[str, object]] = []
        """Steps from the innermost outwards, each with its container."""

    def located(self, root: str) -> tuple[str, str, str]:
        """The message, the path from ``root`` (which may be empty: then a path
        begins with the first step), and the name of the type."""
        path, type_name, reason = root, self.type_name, self.reason
        # The objects themselves are held in ``way``, so an id is not reused.
        paths: dict[int, str] = {}
        for step, container in reversed(self.way):
            if id(container) in paths:
                where = paths[id(container)]
                type_name, reason = _type_name(container), f"it contains itself (it is {where})"
                break
            paths[id(container)] = path
            path += step if path else step.removeprefix(".")
        message = f"{path}: cannot encode a value of type {type_name}: {reason}"
        return message, path, type_name


def step(name: object) -> str:
    """The step of a path to the member called ``name``."""
    if isinstance(name, str) and name.isidentifier():
        return f".{str.__str__(name)}"
    if type(name) in PLAIN or type(name) is bytes:
        text = ascii(name[:40]) if isinstance(name, str | bytes) else _short(name)
        return f"[{text}]"
    return f"[<{_type_name(name)}>]"


def _short(number: object) -> str:
    """A number as text; Python refuses to convert huge ones."""
    return "<huge int>" if type(number) is int and number.bit_length() > 200 else repr(number)


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


class NotHere(Exception):
    """Only the thread that the value comes from can encode it."""


# -- keys and order -------------------------------------------------------------------

_MOST_HARMLESS: Final = 1 << 16
_HARMLESS: Final = frozenset({str, bytes, bool, type(None)})
_KEY_BYTES: Final = 64
"""Size of a key that takes twice as long to compare as a short one."""


def take_long(keys: Collection[object], most: int) -> bool:
    """Whether these keys would take longer to put into a table than ``most`` short ones, if all
    collide whose hashes can be chosen: each is compared with each."""
    kinds = set(map(type, keys)) - _HARMLESS
    if not kinds:
        return False
    sizes = [
        1 + _size_bytes(key) // _KEY_BYTES
        for key in keys
        if type(key) in kinds
        and not (type(key) is int and -_MOST_HARMLESS <= key <= _MOST_HARMLESS)
    ]
    return len(sizes) * sum(sizes) > most * most


def _size_bytes(key: object) -> int:
    """The size of a key, about."""
    if isinstance(key, tuple | frozenset):
        return sum(8 + _size_bytes(part) for part in key)
    if isinstance(key, str | bytes):
        return len(key)
    return key.bit_length() // 8 if isinstance(key, int) else 0


def too_many(most: int) -> str:
    """The reason for which such a map or set is refused, and what to do."""
    return (
        f"it has more than {most} keys or members that are neither text, bytes nor integers "
        f"up to {_MOST_HARMLESS}, or fewer and longer ones (write them as text, or all of it as a "
        "list)"
    )


def _in_order(
    things: Iterable[Any], encoding: Callable[[Any], bytes], pause: Callable[[], None] | None
) -> Iterable[Any]:
    """Keys, members or pairs in the order of their encodings.  If there is a ``pause``, they are
    put there in pieces."""
    if pause is None:
        return sorted(things, key=encoding)
    pieces: list[list[Any]] = []
    rest = iter(things)
    while piece := list(itertools.islice(rest, _PIECE_ITEMS)):
        pieces.append(sorted(piece, key=encoding))
        pause()
    return heapq.merge(*pieces, key=encoding)


def _encoded_key(pair: tuple[object, object]) -> bytes:
    encoded: bytes = cbor2.dumps(pair[0])
    return encoded


# -- encodings in pieces ------------------------------------------------------------------


class Pieces:
    """An encoding in pieces, some of them views of large data."""

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes | memoryview) -> None:
        self.parts: list[bytes | memoryview] = list(parts)


class _Written:
    """A file for the encoder, which writes to it after each 4 KiB."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self.pieces: list[bytes] = []
        self._pause = pause

    def writable(self) -> bool:
        return True

    def write(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self._pause()


def encoded(lowered: object, pause: Callable[[], None] | None) -> bytes:
    """The encoding of what has been lowered, and has no pieces."""
    if pause is None:
        whole: bytes = cbor2.dumps(lowered)
        return whole
    written = _Written(pause)
    cbor2.dump(lowered, written)  # type: ignore[arg-type]  # all of IO[bytes] that it calls is there
    return b"".join(written.pieces)


def _encoded_array(array: _arrays.Lowered) -> object:
    """An array for the encoder."""
    tag, shape, data = array
    large = len(data) >= LEAST_PIECE_BYTES
    if not large:
        inner = cbor2.CBORTag(tag, bytes(data))
        if len(shape) == 1:
            return inner
        return cbor2.CBORTag(_arrays.TAG_ROW_MAJOR, [list(shape), inner])
    pieces = _bytes_pieces(data)
    pieces.parts.insert(0, written_head(6, tag))
    if len(shape) != 1:
        dimensions = cbor2.dumps(list(shape))
        pieces.parts.insert(
            0, written_head(6, _arrays.TAG_ROW_MAJOR) + written_head(4, 2) + dimensions
        )
    return pieces


def _bytes_pieces(data: bytes | bytearray | memoryview) -> Pieces:
    """A byte string, not copied."""
    view = memoryview(data)
    return Pieces(written_head(2, view.nbytes), view)


def _joined(head: bytes, items: Iterable[object], pause: Callable[[], None] | None) -> Pieces:
    """``items`` in pieces behind ``head``.  Items between two that are in pieces are encoded
    together, as a list whose head is then dropped."""
    pieces = Pieces(head)
    run: list[object] = []

    def encode_run() -> None:
        pieces.parts.append(encoded(run, pause)[len(written_head(4, len(run))) :])
        run.clear()

    for item in items:
        if isinstance(item, Pieces):
            encode_run()
            pieces.parts += item.parts
        else:
            run.append(item)
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


def written_head(major: int, argument: int) -> bytes:
    """The head of a data item: its major type, and a number or a length."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    width = (argument.bit_length() + 7) // 8
    power = (width - 1).bit_length()  # 1, 2, 4 or 8 bytes
    return bytes((major << 5 | 24 + power,)) + argument.to_bytes(1 << power, "big")


# -- the walk -----------------------------------------------------------------------------


class Lowering:
    """One walk over a value.  Methods take the depth in which the value stands
    and return what the encoder takes: the value itself wherever possible."""

    __slots__ = (
        "_code_ran", "_container_work", "_depth", "_floats", "_items", "_keys", "_least", "_most",
        "_of_keys", "_pause", "_plain", "_sort_keys",
    )  # fmt: skip

    def __init__(
        self, limits: WireLimits, *, plain: frozenset[type] = PLAIN,
        items_at_once: int | None = None, pause: Callable[[], None] | None = None,
        sort_keys: bool = False,
    ) -> None:  # fmt: skip
        self._items = self._most = limits.items - 1  # the value itself
        self._least = 0 if items_at_once is None else max(0, self._most - items_at_once)
        """How low ``_items`` may fall before somebody has to decide."""
        self._container_work = 0 if items_at_once is None else _CONTAINER_WORK
        self._floats = 0
        self._depth = limits.depth
        self._keys = limits.keys
        self._plain = plain
        self._of_keys = _OF_KEYS - PLAIN | plain & _OF_KEYS
        self._pause = pause
        self._sort_keys = sort_keys
        self._code_ran = False
        """Whether code of the value's classes may have run."""

    @property
    def items(self) -> int:
        """Number of items that the walk has met, but for lists of floats, at least: each place
        in a set or in a map that is written as a list counts once more."""
        return self._most - self._items + 1 - self._floats

    def value(self, value: object, depth: int, *, key: bool = False) -> object:
        """Any value.  ``key``: it is a key or a set's member, or part of one."""
        kind = type(value)
        if kind in self._plain:
            return value
        if kind is dict:
            return self._mapping(value, value, depth, key=key)  # type: ignore[arg-type]  # see kind
        if kind is list or kind is tuple:
            return self._sequence(value, value, depth, key=key)  # type: ignore[arg-type]  # see kind
        if kind is bytes and len(value) < LEAST_PIECE_BYTES:  # type: ignore[arg-type]  # see kind
            return value
        if kind.__module__ not in _OF_NOBODY:
            if self._pause is not None:
                raise NotHere
            self._code_ran = True
        if isinstance(value, enum.Enum):
            self._enter(value, depth)
            return self.value(value.value, depth + 1, key=key)
        try:
            if isinstance(value, str | bytes | bytearray | memoryview | int | float):
                return self._atom(value, key=key)
            self._count(value, _LEAF_ITEMS, _LEAF_CONTAINERS)
            return self._other(value, depth, key=key)
        except (ValueRefusal, TooMuchWork, NotHere):
            raise
        except (_arrays.ArrayProblem, _objects.ObjectProblem) as problem:
            raise ValueRefusal(value, str(problem)) from problem
        except Exception as error:
            # Code of the value's class ran (properties, serializers, time
            # zones, iterators) and may have raised anything.
            raise ValueRefusal(value, f"{type(error).__name__}: {error}") from error

    def _atom(
        self, value: str | bytes | bytearray | memoryview | int | float, *, key: bool
    ) -> object:
        """A byte string, or a plain scalar's subclass as the plain scalar."""
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise ValueRefusal(value, f"it is no valid Unicode ({error})") from error
            return str.__str__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, int):
            return int.__int__(value)
        data = bytes(value) if isinstance(value, memoryview) else value
        return data if key or len(data) < LEAST_PIECE_BYTES else _bytes_pieces(data)

    def _other(self, value: object, depth: int, *, key: bool) -> object:
        """Everything that is not a common type.  May raise anything."""
        number = _arrays.plain_number(value)
        if number is not value:
            return self.value(number, depth, key=key)
        array = _arrays.lower_array(value)
        if array is not None:
            if key:
                raise _no_key(value)
            return _encoded_array(array)
        if isinstance(value, collections.abc.Mapping):
            return self._mapping(value, value, depth, key=key)
        if isinstance(value, collections.abc.Set):
            return self._set(value, depth)
        if isinstance(value, collections.abc.Sequence):
            return self._sequence(value, value, depth, key=key)
        scalar = _objects.lower_scalar(value)
        if scalar is not None:
            return self.value(scalar, depth) if type(scalar) is str else scalar
        fields = _objects.fields_of(value)
        if fields is None:
            raise ValueRefusal(value, f"it has no encoding (supported: {_SUPPORTED})")
        if key:
            raise _no_key(value)
        if type(fields) is dict:
            return self._mapping(fields, value, depth, key=key)
        self._enter(value, depth)
        return self.value(fields, depth + 1)

    def _sequence(
        self, value: collections.abc.Sequence[object], owner: object, depth: int, *, key: bool
    ) -> object:
        depth = self._enter(owner, depth, len(value))
        plain = self._plain
        members = value if type(value) in (list, tuple) else list(value)
        if self._are(plain, members):
            if members and type(members[0]) is float and self._are(_FLOATS, members):
                self._floats += len(members)
            return members
        rebuilt: list[object] | None = None
        for index, member in enumerate(members):
            if type(member) not in plain:
                try:
                    lowered = self.value(member, depth, key=key)
                except ValueRefusal as refusal:
                    refusal.way.append((f"[{index}]", owner))
                    raise
                if lowered is not member:
                    rebuilt = list(members) if rebuilt is None else rebuilt
                    rebuilt[index] = lowered
        if rebuilt is None:
            return members
        if Pieces in map(type, rebuilt):
            return _joined(written_head(4, len(rebuilt)), rebuilt, self._pause)
        return rebuilt

    def _mapping(
        self, value: Mapping[object, object], owner: object, depth: int, *, key: bool
    ) -> object:
        if key:
            raise _no_key(owner)
        depth = self._enter(owner, depth, 2 * len(value))
        plain = self._plain
        if type(value) is not dict or not self._are(self._of_keys, value):
            return self._with_keys(value, owner, depth)
        if self._sort_keys:
            value = dict(_in_order(value.items(), _encoded_key, self._pause))
        if self._are(plain, value.values()):
            return value
        changed: dict[object, object] = {}
        for name, member in value.items():
            if type(member) not in plain:
                try:
                    lowered = self.value(member, depth)
                except ValueRefusal as refusal:
                    refusal.way.append((step(name), owner))
                    raise
                if lowered is not member:
                    changed[name] = lowered
        if not changed:
            return value
        rebuilt = {**value, **changed}
        if Pieces in map(type, changed.values()):
            return self._map_joined(rebuilt.items(), len(rebuilt))
        return rebuilt

    def _with_keys(self, value: Mapping[object, object], owner: object, depth: int) -> object:
        """A mapping of which not only the members may have to be lowered, ``depth``
        being that of its members."""
        items = [*value.items()]
        keys: list[object] = []
        members: list[object] = []
        for name, _ in items:
            try:
                keys.append(self.value(name, depth, key=True))
            except ValueRefusal as refusal:
                refusal.way.append((step(name), owner))
                raise
        is_map = _OF_KEYS.issuperset(map(type, keys))
        if not is_map:
            depth = self._enter(owner, depth, 2 * len(keys))  # a tag, and the list
            self._check_keys(keys, owner)
        if len({name if type(name) in PLAIN else cbor2.dumps(name) for name in keys}) < len(keys):
            raise ValueRefusal(owner, "two of its keys have the same encoding")
        for name, member in items:
            try:
                members.append(self.value(member, depth))
            except ValueRefusal as refusal:
                refusal.way.append((step(name), owner))
                raise
        pairs: Iterable[tuple[object, object]] = zip(keys, members, strict=True)
        if self._sort_keys:
            pairs = _in_order(pairs, _encoded_key, self._pause)
        has_pieces = Pieces in map(type, members)
        if is_map:
            return self._map_joined(pairs, len(keys)) if has_pieces else dict(pairs)
        in_turn = [*itertools.chain.from_iterable(pairs)]
        if not has_pieces:
            return cbor2.CBORTag(TAG_PAIRS, in_turn)
        head = written_head(6, TAG_PAIRS) + written_head(4, len(in_turn))
        return _joined(head, in_turn, self._pause)

    def _map_joined(self, pairs: Iterable[tuple[object, object]], count: int) -> Pieces:
        return _joined(written_head(5, count), itertools.chain.from_iterable(pairs), self._pause)

    def _set(self, value: collections.abc.Set[object], depth: int) -> object:
        depth = self._enter(value, depth)  # a tag ...
        depth = self._enter(value, depth, 2 * len(value))  # ... and an array
        members = []
        for member in value:
            try:
                members.append(self.value(member, depth, key=True))
            except ValueRefusal as refusal:
                refusal.way.append(("{}", value))
                raise
        self._check_keys(members, value)
        # A tuple: a tag has to be hashable in keys.
        return cbor2.CBORTag(TAG_SET, tuple(_in_order(members, cbor2.dumps, self._pause)))

    def _enter(self, value: object, depth: int, items: int = 0) -> int:
        """The depth inside ``value``, whose items count towards the limit."""
        if depth >= self._depth:
            raise ValueRefusal(value, f"it is nested deeper than {self._depth} levels")
        self._count(value, items, 1)
        return depth + 1

    def _count(self, value: object, items: int, containers: int) -> None:
        self._items -= items
        self._least += containers * self._container_work
        if self._items < self._least:
            if self._items < 0:
                raise ValueRefusal(value, "there are more items than the limit allows")
            if not self._code_ran:
                raise TooMuchWork
            self._least = 0  # what its code has begun is not done twice
        if self._pause is not None:
            self._pause()

    def _check_keys(self, keys: Collection[object], owner: object) -> None:
        if take_long(keys, self._keys):
            raise ValueRefusal(owner, too_many(self._keys))

    def _are(self, kinds: frozenset[type], members: Collection[object]) -> bool:
        """Whether all members are of these types."""
        if self._pause is None or len(members) <= _PIECE_ITEMS:
            return kinds.issuperset(map(type, members))
        rest = iter(members)
        while piece := list(itertools.islice(rest, _PIECE_ITEMS)):
            if not kinds.issuperset(map(type, piece)):
                return False
            self._pause()
        return True


def _no_key(value: object) -> ValueRefusal:
    return ValueRefusal(value, "it cannot be a key or a member of a set")


# -- bodies ------------------------------------------------------------------------------

_LEAF_DEPTH: Final = 4
"""More levels than the encoding of any tagged scalar or array has.  Readers
allow them on top of the limit, so that what was encoded can be decoded."""

_BUILT_IN: Final = frozenset({0, 1, 2, 3, 37, 100, 1004})
"""Tags whose decoding is left to cbor2: cheap, and without side effects."""

_READ_BYTES: Final = 16 * KIB
"""Bytes that are decoded between two pauses: 10 ms at worst, sets of colliding members."""

JOINED_BYTES: Final = 64 * KIB
"""Bodies from this size on are not joined before they are sent."""

_FEW_ITEMS: Final = FREE_BYTES // OBJECT_COST
"""An encoding of so many items needs no header: none is more than one object."""

_ITEMS_AT_ONCE: Final = 100_000
"""The items that may be encoded at once: some 20 ms.  A container takes as long as several."""

DEFAULT_LIMITS: Final = WireLimits()


class EncodingError(EnvServeError, ValueError):
    """A value, or something inside it, has no encoding."""

    def __init__(self, message: str, path: str, type_name: str) -> None:
        super().__init__(message)
        self.path = path
        """Path to the value, such as ``input.messages[3].image``."""
        self.type_name = type_name
        """The name of its type, such as ``PIL.Image.Image``."""


class DecodingError(EnvServeError, ValueError):
    """Bytes that are no body, or one beyond the limits."""


# --- encoding --------------------------------------------------------------


def encode(
    value: object, *, root: str = "value", limits: WireLimits = DEFAULT_LIMITS,
    at_once: bool = False, pause: Callable[[], None] | None = None, sort_keys: bool = False,
) -> bytes:  # fmt: skip
    """The body for ``value``.  Equal values give equal bytes if their dicts were filled in one
    order; with ``sort_keys`` in any.

    ``root`` is what error messages call the value itself.  Raises :class:`EncodingError` if there
    is something without an encoding in it, if it contains itself, or if it exceeds
    ``limits.depth``, ``limits.items`` or ``limits.keys``.  An encoded value can be decoded under
    equal limits.

    ``at_once`` raises :class:`TooMuchWork` instead of taking long, unless code of
    the value's classes has run.  With ``pause`` it is encoded in pieces, and
    ``pause`` called between them; it may raise.  Then no such code is run:
    :class:`NotHere` says that it would have to.
    """
    return bytes(
        encode_to_send(
            value, root=root, limits=limits, at_once=at_once, pause=pause, sort_keys=sort_keys
        )
    )


def encode_to_send(
    value: object, *, root: str = "value", limits: WireLimits = DEFAULT_LIMITS,
    at_once: bool = False, pause: Callable[[], None] | None = None, sort_keys: bool = False,
) -> bytes | BodyParts:  # fmt: skip
    """The body for ``value``, as of :func:`encode`.  Large parts of a large body are not copied, if
    nobody can change them."""
    at_most = _ITEMS_AT_ONCE if at_once else None
    lowering = Lowering(limits, pause=pause, items_at_once=at_most, sort_keys=sort_keys)
    try:
        lowered = lowering.value(value, 0)
        parts = lowered.parts if isinstance(lowered, Pieces) else [encoded(lowered, pause)]
    except ValueRefusal as refusal:
        raise EncodingError(*refusal.located(root)) from refusal.__cause__
    except UnicodeEncodeError as error:
        # The encoder does not say which text it was: walk again, now with a
        # look at every text.
        try:
            Lowering(limits, plain=PLAIN - {str}).value(value, 0)
        except ValueRefusal as refusal:
            raise EncodingError(*refusal.located(root)) from refusal.__cause__
        raise EncodingError(f"{root}: {error}", root, "str") from error
    size = sum(map(len, parts))
    if lowering.items > _FEW_ITEMS:
        parts.insert(0, _header_of(parts, pause or _no_pause))
    return BodyParts(unchanging(parts)) if size >= JOINED_BYTES else b"".join(parts)


def _header_of(parts: Iterable[bytes | memoryview], pause: Callable[[], None]) -> bytes:
    """The header of a body, with the cost of its value; empty where it need not say it."""
    cost = size = 0
    for is_content, group in itertools.groupby(parts, lambda part: isinstance(part, memoryview)):
        pieces = [*group]
        size += sum(map(len, pieces))
        if not is_content:  # else it is the large content of a string, whose head is before it
            encoding = memoryview(b"".join(pieces))
            cost += OBJECT_COST * look(encoding, cut=False, pause=pause).objects
    if cost <= FREE_BYTES:
        return b""
    return COST_HEADER + written_head(0, BYTE_COST * size + cost)


def _no_pause() -> None:
    """The pause for callers without one."""


# --- decoding --------------------------------------------------------------


def decode(
    data: bytes | memoryview, *, arrays: Reader = "auto", root: str = "value",
    limits: WireLimits = DEFAULT_LIMITS, at_once: bool = False,
    pause: Callable[[], None] | None = None,
) -> object:  # fmt: skip
    """The value of a body.

    ``arrays`` says what arrays become: ``"numpy"``, ``"torch"``, or ``"auto"``,
    which is numpy if it can be imported, else
    :class:`~trio_envserve.core.arrays.RawArray`.  Large arrays share memory
    with ``data`` and keep it alive, so it must not be written to afterwards.
    ``root`` is what error messages call the value itself.

    Raises :class:`DecodingError`, and nothing else, for any bytes that are not
    one whole body within ``limits``.  ``at_once`` raises :class:`TooMuchWork`
    instead of taking long.  ``pause`` is called between pieces of the body; it may raise.
    """
    if arrays not in ("numpy", "torch", "auto"):
        raise ConfigError(f'arrays must be "numpy", "torch" or "auto", not {arrays!r}')
    accepted: dict[int, Any] = _accepted_tags(arrays, limits.keys)
    try:
        if type(data) is bytes and len(data) <= UNSEEN_BYTES and not data.startswith(COST_HEADER):
            return _value(data, accepted, limits, pause)
        view = data if isinstance(data, memoryview) else memoryview(data)
        view = (view.cast("B") if view.c_contiguous else memoryview(view.tobytes())).toreadonly()
        stated, at = stated_cost(view)
        view = view[at:]
        # As bodies are weighed: one without a header by its length, whatever its objects cost.
        free_bytes = FREE_BYTES if stated is None else 0
        most_bytes = BYTE_COST * len(view) if stated is None else stated
        most_bytes = min(most_bytes, BYTE_COST * limits.message_bytes) + free_bytes
        seen = look(
            view, most_bytes, work=WORK_AT_ONCE if at_once else None, pause=pause or _no_pause
        )
        if seen.parts:
            accepted = _Accepted(accepted)
            accepted[TAG_CUT] = functools.partial(_part, seen.parts)
        return _value(seen.rest, accepted, limits, pause)
    except (TooCostly, cbor2.CBORDecodeError) as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, Exception):
            # cbor2 wraps even a KeyboardInterrupt that arrives while a tag is
            # handled; it is nobody's decoding error.
            raise cause from None
        reason = f"{error}" if cause is None else f"{error}: {cause}"
        raise DecodingError(f"{root}: {reason}"[:400]) from error


def _value(
    data: bytes | memoryview, accepted: dict[int, Any], limits: WireLimits,
    pause: Callable[[], None] | None,
) -> object:  # fmt: skip
    stream: Any = io.BytesIO(data) if pause is None else _Paused(data, pause)
    value: object = cbor2.load(
        stream, semantic_decoders=accepted, max_depth=limits.depth + _LEAF_DEPTH,
        read_size=max(len(data), 1) if pause is None else _READ_BYTES,
        # Keys of other kinds can be chosen so that their hashes collide.
        allow_duplicate_keys=False, strict_hashable_types=True,
    )  # fmt: skip
    if stream.tell() != len(data):
        raise cbor2.CBORDecodeError("the body goes on after its end")
    return value


class _Paused:
    """A file for the decoder, with a pause before each part of it."""

    def __init__(self, data: bytes | memoryview, pause: Callable[[], None]) -> None:
        self._data = memoryview(data)
        self._pause = pause
        self._at = 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def read(self, size: int) -> bytes:
        self._pause()
        part = bytes(self._data[self._at : self._at + size])
        self._at += len(part)
        return part

    def seek(self, offset: int, _from_here: int) -> None:
        """The decoder gives back what it has read beyond the end of the item."""
        self._at += offset

    def tell(self) -> int:
        return self._at


class _Accepted(dict[int, Any]):
    """The decoders of tags.  A tag without an entry is decoded by cbor2, or refused."""

    def __missing__(self, tag: int) -> NoReturn:
        if tag in _BUILT_IN:
            raise KeyError(tag)  # says: use your own
        raise ValueError(f"tag {tag} is not accepted")


@functools.cache
def _accepted_tags(reader: Reader, keys: int) -> _Accepted:
    """The decoders for one kind of reader.  Never changed after it is made."""
    make = _arrays.maker(reader)

    def tag(read: Callable[..., object], *first: Any, **how: Any) -> Callable[[Any, bool], object]:
        return lambda content, _immutable: read(*first, content, **how)

    return _Accepted({
        **{each: tag(_arrays.typed_array, each, make=make) for each in _arrays.ELEMENT_TYPES},
        _arrays.TAG_ROW_MAJOR: tag(_arrays.shaped_array, column_major=False),
        _arrays.TAG_COLUMN_MAJOR: tag(_arrays.shaped_array, column_major=True),
        _objects.TAG_DECIMAL: tag(_objects.decimal_fraction),
        _objects.TAG_DURATION: tag(_objects.duration),
        _objects.TAG_COMPLEX: tag(_objects.complex_number),
        _objects.TAG_NAIVE_DATETIME: tag(_objects.naive_datetime),
        _objects.TAG_TIME: tag(_objects.time_of_day),
        TAG_SET: tag(_set, keys),
        TAG_PAIRS: tag(_pairs, keys),
    })  # fmt: skip


def _part(parts: list[Part], number: int, _immutable: bool) -> Part:
    """The string in whose place the look has left a placeholder."""
    return parts[number]


def _set(most_keys: int, content: object) -> object:
    if not isinstance(content, list | tuple):
        raise ValueError("a set must be an array")
    return set(_hashable(content, most_keys))


def _pairs(most_keys: int, content: object) -> object:
    if not isinstance(content, list | tuple) or len(content) % 2:
        raise ValueError("a map in pairs must be an array of keys and values in turn")
    keys = _hashable(content[::2], most_keys)
    pairs = dict(zip(keys, content[1::2], strict=True))
    if len(pairs) < len(keys):
        raise ValueError("a map has a key twice")
    return pairs


def _hashable(members: Any, most_keys: int) -> list[object]:
    """Keys of a map or members of a set, with tuples for lists and frozensets for sets."""
    frozen = [_frozen(member) for member in members]
    if take_long(frozen, most_keys):
        raise ValueError(too_many(most_keys))
    return frozen


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, set):
        return frozenset(value)
    if hasattr(value, "dtype"):  # some libraries' arrays could be hashed
        raise _arrays.ArrayProblem("an array cannot be a key or a member of a set")
    return value
