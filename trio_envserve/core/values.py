"""Bodies: values to bytes and back.

Theory of operation
-------------------
A body is one CBOR data item (RFC 8949).  Only the client and the worker decode
bodies; the router passes them on as they are.

*Encoding* first *lowers* the value: a walk that visits containers, looks at the
types of their members in one sweep, and replaces only what CBOR does not have.
A container of plain members is passed on itself, so a tree of dicts, lists,
text and numbers reaches cbor2's compiled encoder untouched.  The walk is also
what makes that safe: the compiled encoder recurses on the native stack without
a bound (a list nested some thousands deep ends the process), writes a
memoryview as a list, and knows types that no reader here accepts.  A refusal
collects its path while it unwinds, so a path costs nothing unless it is needed.
Large byte strings and arrays are not run through the encoder, which would copy
them several times; they are joined in at the end.

*Decoding* runs no code that the body names, and accepts a closed list of tags.
It is bounded in depth, in items, and by the body's own size: a length is
believed only as far as there are bytes, and the value takes at most
``value_times`` the memory of its body, and ``value_bytes``.  A look at the body
(:mod:`values_scan`) tells before anything is decoded; a body too small to break
the bound is not looked at.  Keys whose hashes can be chosen are bounded in number
(:mod:`values_keys`).

Values of many small things take more: a list of ``{"x": 1, "y": 2}`` 30 times its
encoding.  Their bodies are *padded* by the writer, so that they weigh what the bound
asks for: all other bounds, of queues, of kept outcomes, of messages, count bytes
of bodies, and a peer that wants its readers to hold much has to send much.

*Time.*  Whoever must not be held up asks to do it ``at_once``, which ends in
:class:`TooMuchWork` after some 30 ms, and then does it in a thread, with a ``pause``
that lets others run: then it is decoded, and encoded, in pieces of a few
milliseconds.

Values and normal forms
-----------------------
None, bool, int of any size, float, str, bytes, list and dict come back as they
are.  Insertion order of dicts is kept, unless it is asked to sort them
(:mod:`values_order`).  Further:

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

Tags read: 0, 1, 2, 3, 4, 37, 40, 64 to 82 and 84 to 86 (not 76), 100, 258,
1002, 1004, 1040, 43000, 55799 (around any item, without meaning) and the six
that ``arrays`` and ``objects`` define; and around the whole, 1701737992 (padded:
``[byte string, value]``).  CBOR's ``undefined`` and unassigned
simple values come back as cbor2's objects for them.  Any other tag is refused,
as are doubled keys, invalid text and bytes after the end.
"""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any, Final, NoReturn

import cbor2

from . import arrays as _arrays
from . import objects as _objects
from . import values_prices as _prices
from . import values_scan as _scan
from .cbor_heads import head
from .errors import ConfigError, EnvServeError
from .limits import KIB, WireLimits
from .terms import Joined
from .values_lower import (
    Lowering,
    is_small,
    takes_small,
)
from .values_lower import NotHere as NotHere
from .values_order import small_in_order
from .values_parts import JOINED_BYTES, PLAIN, Pieces, unchanging, written_head
from .values_paths import Refusal
from .values_pieces import WINDOW_BYTES, PieceDecoder, PieceProblem, problem_of
from .values_prices import TAG_SET
from .values_scan import TAG_CUT, TooCostly
from .values_scan import TooMuchWork as TooMuchWork

if TYPE_CHECKING:
    from collections.abc import Callable

    from .arrays import Reader

_LEAF_DEPTH: Final = 4
"""More levels than the encoding of any tagged scalar or array has.  Readers
allow them on top of the limit, so that what was encoded can be decoded."""

_BUILT_IN: Final = frozenset({0, 1, 2, 3, 37, 100, TAG_SET, 1004})
"""Tags whose decoding is left to cbor2: cheap, and without side effects."""

_TAG_SELF_DESCRIBED: Final = 55799

TAG_PADDED: Final = 1701737992
_PADDED: Final = written_head(6, TAG_PADDED) + written_head(4, 2)
"""Beginning of a padded body; a byte string and the value follow."""

_DEAREST: Final = 160
"""Bytes of memory that one byte of a body takes at most: an empty array of three.  A
body that cannot cost too much is not looked at; nor are its keys counted then, which
take 15 ms at worst."""

_WORK_AT_ONCE: Final = 64 * KIB
"""The work that may be done at once, in bytes of a body at worst; see :mod:`values_scan`."""

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
        parts = lowered.parts if isinstance(lowered, Pieces) else [cbor2.dumps(lowered)]
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
    is_large = size >= JOINED_BYTES
    body = Joined(unchanging(parts)) if is_large else b"".join(parts)
    if lowering.cost_bytes(size) <= _prices.most_bytes(size, limits):
        return body
    return _padded(bytes(body), limits, pause or _no_pause)


def _padded(body: bytes, limits: WireLimits, pause: Callable[[], None]) -> bytes:
    """The body, made as long as its value asks for."""
    most_bytes = _prices.most_bytes(len(body), limits)
    cost_bytes = _scan.cost_bytes(memoryview(body), limits, enough=most_bytes, pause=pause)
    missing = _prices.missing_bytes(cost_bytes, len(body), limits)
    if not missing:
        return body
    return b"".join((_PADDED, written_head(2, missing), bytes(missing), body))


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
    instead of taking long.  With ``pause`` it is decoded in pieces, and ``pause``
    called between them; it may raise.
    """
    if arrays not in ("numpy", "torch", "auto"):
        raise ConfigError(f'arrays must be "numpy", "torch" or "auto", not {arrays!r}')
    accepted: dict[int, Any] = _accepted_tags(arrays)
    most_unseen = min(limits.value_bytes // _DEAREST, limits.items)
    if type(data) is bytes and len(data) <= most_unseen and data[:1] != _PADDED[:1]:
        try:
            return _whole(data, None, accepted, limits)
        except PieceProblem:
            pass  # below it fails again, and says where
    view = data if isinstance(data, memoryview) else memoryview(data)
    view = (view.cast("B") if view.c_contiguous else memoryview(view.tobytes())).toreadonly()
    body = _without_padding(view)
    cut: _scan.Cut | None = None
    large_keys = False
    if len(body) > most_unseen:
        try:
            cut, _, large_keys = _scan.survey(
                body, limits, most_bytes=_prices.most_bytes(len(view), limits),
                work=_WORK_AT_ONCE if at_once else len(view) << 16, pause=pause or _no_pause,
            )  # fmt: skip
        except TooCostly as error:
            raise DecodingError(f"{root}: it has {error}") from None
    if at_once and large_keys and len(body) > WINDOW_BYTES:
        raise TooMuchWork
    try:
        if pause is None and not large_keys:
            try:
                return _whole(body, cut, accepted, limits)
            except PieceProblem:
                pass  # in pieces it fails again, and says where
        return _in_pieces(body, accepted, limits, pause or _no_pause)
    except PieceProblem as problem:
        where = root + "".join(reversed(problem.way))
        raise DecodingError(f"{where}: {problem.reason}"[:400]) from problem.__cause__


def _without_padding(view: memoryview) -> memoryview:
    """The encoding of the value itself."""
    if view[: len(_PADDED)] != _PADDED or len(view) == len(_PADDED):
        return view
    major, length, after = head(view, len(_PADDED))
    if major != 2 or length < 0 or view[len(_PADDED)] & 31 == 31:
        return view  # whose tag is then refused
    return view[after + length :]


def _whole(
    body: bytes | memoryview, cut: _scan.Cut | None, accepted: dict[int, Any], limits: WireLimits
) -> object:
    """The value, decoded in one call."""
    data = body
    if cut is not None:
        data, accepted = cut.rest, _Accepted(accepted)
        accepted[TAG_CUT] = lambda number, _immutable: cut.parts[number]
    stream = io.BytesIO(data)
    try:
        value: object = cbor2.load(
            stream, semantic_decoders=accepted, read_size=max(len(data), 1),
            max_depth=limits.depth + _LEAF_DEPTH, allow_duplicate_keys=False,
        )  # fmt: skip
    except cbor2.CBORDecodeError as error:
        raise problem_of(error) from error
    if stream.tell() != len(data):
        raise PieceProblem("the body goes on after its end")
    return value


def _in_pieces(
    body: memoryview, accepted: dict[int, Any], limits: WireLimits, pause: Callable[[], None]
) -> object:
    decoder = PieceDecoder(
        body, accepted=_Accepted(accepted), built_in=_BUILT_IN, keys=limits.keys, pause=pause
    )
    return decoder.whole(limits.depth + _LEAF_DEPTH)


class _Accepted(dict[int, Any]):
    """The decoders of tags.  A tag without an entry is decoded by cbor2, or refused."""

    def __missing__(self, tag: int) -> NoReturn:
        if tag in _BUILT_IN:
            raise KeyError(tag)  # says: use your own
        raise ValueError(f"tag {tag} is not accepted")


@functools.cache
def _accepted_tags(reader: Reader) -> _Accepted:
    """The decoders for one kind of reader.  Never changed after it is made."""
    make = _arrays.maker(reader)

    def typed(tag: int) -> Callable[[object, bool], object]:
        def read(content: object, immutable: bool) -> object:
            if immutable:
                # Said here, because some readers' arrays could be hashed.
                raise _arrays.ArrayProblem("an array cannot be a key or a member of a set")
            return _arrays.typed_array(tag, content, make)

        return read

    def shaped(*, column_major: bool) -> Callable[[object, bool], object]:
        return lambda content, _immutable: _arrays.shaped_array(content, column_major=column_major)

    def scalar(read: Callable[[Any], object]) -> Callable[[Any, bool], object]:
        return lambda content, _immutable: read(content)

    accepted = _Accepted({tag: typed(tag) for tag in _arrays.ELEMENT_TYPES})
    accepted[_arrays.TAG_ROW_MAJOR] = shaped(column_major=False)
    accepted[_arrays.TAG_COLUMN_MAJOR] = shaped(column_major=True)
    accepted[_objects.TAG_DECIMAL] = scalar(_objects.decimal_fraction)
    accepted[_objects.TAG_TIMEDELTA] = scalar(_objects.duration)
    accepted[_objects.TAG_COMPLEX] = scalar(_objects.complex_number)
    accepted[_objects.TAG_NAIVE_DATETIME] = scalar(_objects.naive_datetime)
    # Without meaning; but cbor2's own decoder would make what is inside immutable.
    accepted[_TAG_SELF_DESCRIBED] = scalar(lambda content: content)
    accepted[_objects.TAG_TIME] = scalar(_objects.time_of_day)
    return accepted
