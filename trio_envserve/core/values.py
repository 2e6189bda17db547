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
believed only as far as there are bytes.  One thing is not bounded: keys and
members of sets that are neither text nor bytes can be chosen so that their
hashes collide, which makes one map quadratic in its number of keys (8,000
bignums, 100 kB: half a second).

Values and normal forms
-----------------------
None, bool, int of any size, float, str, bytes, list and dict come back as they
are.  Insertion order of dicts is kept.  Further:

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
- arrays and tensors: see :mod:`~trio_envserve.core.arrays`;
- dates, UUIDs, Decimals, enums, paths, dataclasses, attrs and pydantic models:
  see :mod:`~trio_envserve.core.objects`.

Keys of dicts and members of sets are None, bool, numbers, text, bytes, the
tagged scalars, and tuples and frozensets of these.

Tags read: 0, 1, 2, 3, 4, 37, 40, 64 to 82 and 84 to 86 (not 76), 100, 258,
1002, 1004, 1040, 43000, 55799 (around any item, without meaning) and the six
that ``arrays`` and ``objects`` define.  CBOR's ``undefined`` and unassigned
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
from .errors import ConfigError, EnvServeError
from .limits import WireLimits
from .values_lower import PLAIN, TAG_SET, Lowering, Pieces, Refusal
from .values_scan import LEAST_CUT_BYTES, TAG_CUT, TooManyItems, scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from .arrays import Reader

_LEAF_DEPTH: Final = 4
"""More levels than the encoding of any tagged scalar or array has.  Readers
allow them on top of the limit, so that what was encoded can be decoded."""

_BUILT_IN: Final = frozenset({0, 1, 2, 3, 37, 100, TAG_SET, 1004})
"""Tags whose decoding is left to cbor2: cheap, and without side effects."""

_TAG_SELF_DESCRIBED: Final = 55799

_DEFAULT_LIMITS: Final = WireLimits()


class EncodingError(EnvServeError, ValueError):
    """A value, or something inside it, has no encoding."""

    def __init__(self, message: str, path: str, type_name: str) -> None:
        super().__init__(message)
        self.path = path
        """Where it is, such as ``input.messages[3].image``."""
        self.type_name = type_name
        """What it is, such as ``PIL.Image.Image``."""


class DecodingError(EnvServeError, ValueError):
    """Bytes that are no body, or one beyond the limits."""


# --- encoding --------------------------------------------------------------


def encode(value: object, *, root: str = "value", limits: WireLimits = _DEFAULT_LIMITS) -> bytes:
    """The body for ``value``.  The same value gives the same bytes.

    ``root`` is what error messages call the value itself.  Raises
    :class:`EncodingError` if there is something without an encoding in it, if
    it contains itself, or if it exceeds ``limits.depth`` or ``limits.items``.
    What can be encoded can be decoded under the same limits.
    """
    try:
        lowered = Lowering(limits).value(value, 0)
        if isinstance(lowered, Pieces):
            return b"".join(lowered.parts)
        return cbor2.dumps(lowered)
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


# --- decoding --------------------------------------------------------------


def decode(
    data: bytes | memoryview,
    *,
    arrays: Reader = "auto",
    limits: WireLimits = _DEFAULT_LIMITS,
) -> object:
    """The value of a body.

    ``arrays`` says what arrays become: ``"numpy"``, ``"torch"``, or ``"auto"``,
    which is numpy if it can be imported, else
    :class:`~trio_envserve.core.arrays.RawArray`.  Large arrays share memory
    with ``data`` and keep it alive, so it must not be written to afterwards.

    Raises :class:`DecodingError`, and nothing else, for any bytes that are not
    one whole body within ``limits``.
    """
    if arrays not in ("numpy", "torch", "auto"):
        raise ConfigError(f'arrays must be "numpy", "torch" or "auto", not {arrays!r}')
    accepted: dict[int, Any] = _accepted_tags(arrays)
    body: bytes | memoryview = data
    if not isinstance(data, bytes):
        body = data.cast("B") if data.c_contiguous else memoryview(data.tobytes())
    if len(body) >= LEAST_CUT_BYTES or len(body) > limits.items:
        try:
            cut = scan(memoryview(body).toreadonly(), items=limits.items)
        except TooManyItems as error:
            raise DecodingError(f"the body has {error}") from None
        if cut is not None:
            body = cut.rest
            accepted = _Accepted(accepted)
            accepted[TAG_CUT] = lambda number, _immutable: cut.parts[number]
    stream = io.BytesIO(body)
    try:
        value: object = cbor2.load(
            stream,
            semantic_decoders=accepted,
            read_size=max(len(body), 1),
            max_depth=limits.depth + _LEAF_DEPTH,
            allow_duplicate_keys=False,
        )
    except cbor2.CBORDecodeError as error:
        _reraise(error)
    if stream.tell() != len(body):
        raise DecodingError("the body goes on after its end")
    return value


def _reraise(error: cbor2.CBORDecodeError) -> NoReturn:
    cause = error.__cause__
    if cause is not None and not isinstance(cause, Exception):
        # cbor2 wraps even a KeyboardInterrupt that arrives while a tag is
        # handled; it is nobody's decoding error.
        raise cause
    message = f"{error}: {cause}" if cause is not None else f"{error}"
    raise DecodingError(message[:400]) from error


class _Accepted(dict[int, Any]):
    """The decoders of tags.  What is missing is cbor2's, or refused."""

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
