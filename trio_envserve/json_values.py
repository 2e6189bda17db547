r"""Values as JSON, with arrays by their bytes, and back.

Theory of operation
-------------------
What JSON lacks is an object with one key that begins with ``$``, so that a reader can
tell it from other values:

==========================  ==========================================================
bytes                       ``{"$bytes": base64}``
arrays (numpy, raw)         ``{"$array": {"dtype", "shape", "data"}}``: the elements
                            row by row, little-endian, in base64
nan, inf, -inf              ``{"$float": "nan"}``
complex                     ``{"$complex": [real, imaginary]}``
sets                        ``{"$set": [...]}``
mappings with other keys    ``{"$map": [[key, value], ...]}``
dates and times             ``{"$time": ISO 8601}``
anything else               ``{"$text": str(value)}`` (UUID, Decimal, ...)
==========================  ==========================================================

Tuples become lists, numpy scalars and arrays without dimensions numbers.  A mapping of
one key that looks like one of these is written as ``$map``, so nothing is ambiguous.

A value may be as large as a message.  :func:`pieces` makes the JSON of a record in pieces of at
most a MiB, :func:`dumped` that of any value: a thread that writes them can be stopped in between,
and other threads run.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from . import foreign
from .core.arrays import RawArray, lower_array

PIECE_BYTES = 768 * 1024
"""Bytes of an array in one piece: a multiple of 3, so that base64 may be joined."""

_SMALL = 64 * 1024
_INT_BITS = 4096
"""Bits of the largest integer that is written as a number: readers of JSON take no larger ones."""

_WEIGHT = 1_000
"""The cost of JSON that is written in one piece, as :func:`weight` has it: some 1 ms."""

_ITEMS = 100
"""Number of items that are weighed together."""

_CHARACTERS = 1 << 18
"""Most characters of a text in one piece."""

Bytes: TypeAlias = bytes | memoryview
Pause: TypeAlias = Callable[[], None]


class WrittenJson(NamedTuple):
    """A value that is in JSON already, and is written as it stands."""

    json: Any


def jsonable(value: Any, large: Callable[[Bytes], Any] | None = None) -> Any:
    """``value`` in JSON, as the module says.  ``large`` makes what stands for bytes;
    by default they are text at once.  Raises whatever a value's own code does."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _INT_BITS else {"$text": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": (large or base64_text)(memoryview(value).cast("B"))}
    if isinstance(value, Mapping):
        return _mapping(value, large)
    if isinstance(value, WrittenJson):
        return value.json
    if isinstance(value, (list, tuple)):
        return [jsonable(item, large) for item in value]
    return _rare(value, large)


def _mapping(value: Mapping[Any, Any], large: Callable[[Bytes], Any] | None) -> Any:
    marked = len(value) == 1 and str(next(iter(value))).startswith("$")
    if not marked and all(isinstance(key, str) for key in value):
        return {str(key): jsonable(item, large) for key, item in value.items()}
    return {"$map": [[jsonable(key, large), jsonable(item, large)] for key, item in value.items()]}


def _rare(value: Any, large: Callable[[Bytes], Any] | None) -> Any:
    if isinstance(value, complex):
        return {"$complex": [jsonable(value.real), jsonable(value.imag)]}
    if isinstance(value, Set):
        return {"$set": [jsonable(item, large) for item in value]}
    if isinstance(value, (datetime.date, datetime.time)):
        return {"$time": value.isoformat()}
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple):
        return _array(value, str(dtype), shape, large)
    text = foreign.text(value)
    return {"$text": "(it has no text)" if text is None else text}


def _array(
    value: Any, dtype: str, shape: tuple[int, ...], large: Callable[[Bytes], Any] | None
) -> Any:
    if not shape and hasattr(value, "item"):
        return jsonable(value.item(), large)
    if not hasattr(value, "tobytes"):  # a RawArray has them as they are written
        data = memoryview(value.data).cast("B")
    elif getattr(value.dtype, "hasobject", False) or getattr(value.dtype, "kind", "V") in "OMmV":
        return {"$text": str(value)[:_SMALL]}
    else:
        little = value.astype(value.dtype.newbyteorder("<"), order="C", copy=False)
        data = memoryview(little.reshape(-1).view("uint8")) if little.size else memoryview(b"")
        dtype = little.dtype.name
    return {"$array": {"dtype": dtype, "shape": list(shape), "data": (large or base64_text)(data)}}


def base64_text(data: Bytes) -> str:
    """Bytes as they stand in JSON."""
    return base64.b64encode(data).decode("ascii")


def weight(value: Any, most: int, of_array: int = 128) -> int:
    """The cost of writing a value: that of so many items; more than ``most`` if it is more.
    As much as one are 64 characters, 128 bytes, and so many of an array, ``of_array``."""
    found, stack = 0, [value]
    while stack and found <= most:
        each = stack.pop()
        found += 1
        if isinstance(each, str):
            found += len(each) // 64
        elif isinstance(each, bytes):
            found += len(each) // 128
        elif isinstance(each, dict):
            found += len(each)
            stack += each.values() if found <= most else ()
        elif isinstance(each, (list, tuple, set, frozenset)):
            stack += each if len(each) <= most else ()
            found += len(each)
        else:
            found += int(getattr(each, "nbytes", 0)) // of_array
    return found


def as_it_is(data: Bytes) -> memoryview:
    """Bytes that :func:`dumped` and :func:`pieces` write as base64: what ``large`` makes."""
    return memoryview(data).cast("B")


def dumped(value: Any, pause: Pause) -> bytes:
    """The JSON text of a value that :func:`jsonable` has made, with :func:`as_it_is`.  That keeps
    Python's lock until all is written; here ``pause`` is called in between."""
    return b"".join(_dumped(value, pause))


def _dumped(value: Any, pause: Pause) -> Iterator[bytes]:
    pause()
    if weight(value, _WEIGHT) <= _WEIGHT:
        yield _text(value)
    elif isinstance(value, memoryview):
        yield b'"'
        for start in range(0, len(value), PIECE_BYTES):
            pause()
            yield base64.b64encode(value[start : start + PIECE_BYTES])
        yield b'"'
    elif isinstance(value, str):
        yield b'"'
        for start in range(0, len(value), _CHARACTERS):
            pause()
            yield json.dumps(value[start : start + _CHARACTERS])[1:-1].encode()
        yield b'"'
    elif isinstance(value, dict):
        yield b"{"
        items = iter(value.items())
        for number in range(0, len(value), _ITEMS):
            yield from _some(dict(islice(items, _ITEMS)), number, pause)
        yield b"}"
    else:
        yield b"["
        for start in range(0, len(value), _ITEMS):
            yield from _some(value[start : start + _ITEMS], start, pause)
        yield b"]"


def _some(part: Any, before: int, pause: Pause) -> Iterator[bytes]:
    """Items of a dict or list without its brackets, after ``before`` others."""
    if before:
        yield b", "
    pause()
    if weight(part, _WEIGHT) <= _WEIGHT:
        yield _text(part)[1:-1]
        return
    for number, each in enumerate(part):
        if number:
            yield b", "
        yield from _dumped(each, pause)
        if isinstance(part, dict):
            yield b": "
            yield from _dumped(part[each], pause)


def _text(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, default=base64_text).encode()


def pieces(record: Mapping[str, Any]) -> Iterator[bytes]:
    """The line of a record of any values, with its line end, piece by piece."""
    fields = {name: _field(value) for name, value in record.items()}
    yield from _dumped(fields, lambda: None)
    yield b"\n"


def _field(value: Any) -> Any:
    ended = foreign.call(jsonable, value, as_it_is)
    if ended.error is None:
        return ended.value
    return {"$text": f"(it cannot be written: {type(ended.error).__name__})"}


class Malformed(ValueError):
    """A marked object, such as ``{"$bytes": ...}``, does not hold what it has to."""


def restored(value: Any, *, strict: bool = False, pause: Pause | None = None) -> Any:
    """The value of parsed JSON: bytes are bytes again, arrays numpy's, or raw without it.  Text
    whose type cannot be known (dates, ``$text``) stays text.

    Malformed text stays as it is.  With ``strict`` it raises :class:`Malformed`, and so does an
    array where numpy is missing.  ``pause`` is called now and then.
    """
    if not isinstance(value, (list, dict)):
        return value
    if pause is not None:
        pause()
    if isinstance(value, list):
        return [restored(item, strict=strict, pause=pause) for item in value]
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key in _READERS:
            ended = foreign.call(_READERS[key], inner, strict)
            if ended.error is None:
                return ended.value
            if strict:
                raise Malformed(f"{key}: {ended.error}") from None
            return value
    return {key: restored(item, strict=strict, pause=pause) for key, item in value.items()}


def _read_bytes(inner: Any, strict: bool) -> bytes:
    return base64.b64decode(inner, validate=strict)


def _read_array(inner: Any, strict: bool) -> Any:
    data = inner["data"] if isinstance(inner["data"], bytes) else _read_bytes(inner["data"], strict)
    try:
        import numpy
    except ImportError:
        if strict:
            raise Malformed("numpy is not installed here, and reads arrays in JSON") from None
        raw = RawArray(inner["dtype"], tuple(inner["shape"]), data)
        lower_array(raw)  # raises if its bytes are no such array
        return raw
    kind = numpy.dtype(inner["dtype"])
    return numpy.frombuffer(data, kind.newbyteorder("<")).reshape(inner["shape"])


def _read_float(inner: Any, strict: bool) -> float:
    if strict and inner not in ("nan", "inf", "-inf"):
        raise Malformed("it is nan, inf or -inf")
    return float(inner)


def _read_complex(inner: Any, strict: bool) -> complex:
    return complex(*(restored(each, strict=strict) for each in inner))


def _read_set(inner: Any, strict: bool) -> list[Any]:
    return [restored(each, strict=strict) for each in inner]


def _read_map(inner: Any, strict: bool) -> dict[Any, Any]:
    pairs = [(_key(key, strict), restored(item, strict=strict)) for key, item in inner]
    found = dict(pairs)
    if strict and len(found) < len(pairs):
        raise Malformed("a key is there twice")
    return found


def _read_text(inner: Any, strict: bool) -> str:
    if strict and not isinstance(inner, str):
        raise Malformed("it is text")
    return str(inner)


_READERS: Mapping[str, Callable[[Any, bool], Any]] = {
    "$bytes": _read_bytes, "$float": _read_float, "$complex": _read_complex, "$set": _read_set,
    "$map": _read_map, "$time": _read_text, "$text": _read_text, "$array": _read_array,
}  # fmt: skip


def _key(key: Any, strict: bool) -> Any:
    found = restored(key, strict=strict)
    return tuple(found) if isinstance(found, list) else found
