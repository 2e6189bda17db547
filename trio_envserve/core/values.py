"""Bodies: values to bytes and back.

Theory of operation
-------------------
A body is one CBOR data item (RFC 8949), with a header before it if its value takes much more
memory than its bytes.  Only the client and the worker decode bodies; the router passes them on as
they are.

*Encoding* first *lowers* the value (:mod:`.values_lower`): a walk that visits containers, looks
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
most.  A look at the body before it is decoded refuses what costs more (:mod:`.values_cost`).

*Time.*  Keys whose hashes can be chosen are bounded in number (:mod:`.values_lower`).  Whoever
must not be held up asks to do it ``at_once``, which ends in :class:`TooMuchWork` after some 30 ms,
and then does it in a thread, with a ``pause`` that lets others run: decoder and encoder read and
write the body in pieces of 16 and 4 KiB, and call it between them.

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
"""

from __future__ import annotations

import functools
import io
import itertools
from typing import TYPE_CHECKING, Any, Final, NoReturn

import cbor2

from . import arrays as _arrays
from . import objects as _objects
from .errors import ConfigError, EnvServeError
from .limits import KIB, WireLimits
from .terms import BYTE_COST, COST_HEADER, Joined, cost_said
from .values_cost import FREE_BYTES as FREE_BYTES
from .values_cost import (
    OBJECT_COST,
    TAG_CUT,
    TAG_PAIRS,
    TAG_SET,
    UNSEEN_BYTES,
    WORK_AT_ONCE,
    Part,
    look,
)
from .values_cost import TooCostly as TooCostly
from .values_cost import TooMuchWork as TooMuchWork
from .values_lower import (
    PLAIN,
    Lowering,
    Pieces,
    Refusal,
    encoded,
    is_small,
    small_in_order,
    take_long,
    takes_small,
    too_many,
    unchanging,
    written_head,
)
from .values_lower import NotHere as NotHere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .arrays import Reader

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
) -> bytes | Joined:  # fmt: skip
    """The body for ``value``, as of :func:`encode`.  Large parts of a large body are not copied, if
    nobody can change them."""
    if pause is None and takes_small(limits) and is_small(value):
        try:
            return cbor2.dumps(small_in_order(value) if sort_keys else value)
        except UnicodeEncodeError:
            pass  # below it is said which text it was
    at_most = _ITEMS_AT_ONCE if at_once else None
    lowering = Lowering(limits, pause=pause, items_at_once=at_most, sort_keys=sort_keys)
    try:
        lowered = lowering.value(value, 0)
        parts = lowered.parts if isinstance(lowered, Pieces) else [encoded(lowered, pause)]
    except Refusal as refusal:
        raise EncodingError(*refusal.located(root)) from refusal.__cause__
    except UnicodeEncodeError as error:
        # The encoder does not say which text it was: walk again, now with a
        # look at every text.
        try:
            Lowering(limits, plain=PLAIN - {str}).value(value, 0)
        except Refusal as refusal:
            raise EncodingError(*refusal.located(root)) from refusal.__cause__
        raise EncodingError(f"{root}: {error}", root, "str") from error
    size = sum(map(len, parts))
    if lowering.items > _FEW_ITEMS:
        parts.insert(0, _header_of(parts, pause or _no_pause))
    return Joined(unchanging(parts)) if size >= JOINED_BYTES else b"".join(parts)


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
        said, at = cost_said(view)
        view = view[at:]
        most_bytes = BYTE_COST * len(view) + FREE_BYTES if said is None else said
        most_bytes = min(most_bytes, BYTE_COST * limits.message_bytes)
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
