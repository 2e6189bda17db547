"""Arrays in bodies: arrays of Python's own, numpy's and torch's as CBOR typed arrays.

Theory of operation
-------------------
An array travels as its elements, one after the other, in a byte string under a
tag that names the element type.  The reader chooses what it wants to have:
``"numpy"``, ``"torch"``, or ``"auto"``, which is numpy where numpy can be
imported and :class:`RawArray` where it cannot.  Neither library is imported
before the first array is read, and none at all for writing: a value can only
be an array of a library that its maker has imported already.

Format
------
A one-dimensional array is a typed array of RFC 8746::

    tag(T) bytes            T = 64..87 after the element type and byte order

Any other is a row-major multi-dimensional array of the same RFC::

    tag(40) [[d0, d1, ...], tag(T) bytes]

with two extensions: the list of dimensions may be empty (zero dimensions, one
element), and a dimension may be 0 (no elements), behind :data:`EMPTY_ROWS` rows
at most.  Column-major arrays (tag
1040) are read, never written.  Little-endian is written, both are read.

Element types that RFC 8746 has no tag for use these, in the place of T (from
the first-come range of the registry; not registered)::

    1701737985  bool        1 byte each: 0 or 1
    1701737986  complex64   8 bytes each: real, imaginary, as binary32, little-endian
    1701737987  complex128  16 bytes each: real, imaginary, as binary64, little-endian
    1701737988  bfloat16    2 bytes each: the upper half of a binary32, little-endian

Refused: binary128 (tags 83 and 87), which numpy has on no common machine;
arrays of objects, text, dates and records; masked, sparse and quantized ones.

Normal form
-----------
Element type, shape and elements are kept; strides are not.  numpy arrays come
back in native byte order, aligned and **read-only**, because they may share
memory with the message they came in (``array.copy()`` for a writable one).
numpy has no bfloat16: it is widened to float32, which is exact.  Tensors come
back on the CPU, in memory of their own, writable, without gradient.
"""

from __future__ import annotations

import array
import dataclasses
import math
import struct
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Reader: TypeAlias = Literal["numpy", "torch", "auto"]
"""The kind of arrays that a reader wants."""

TAG_ROW_MAJOR: Final = 40
TAG_COLUMN_MAJOR: Final = 1040
TAG_BOOL: Final = 1701737985
TAG_COMPLEX64: Final = 1701737986
TAG_COMPLEX128: Final = 1701737987
TAG_BFLOAT16: Final = 1701737988

MAX_DIMENSIONS: Final = 32
"""Most dimensions of an array: what every version of numpy can hold."""
EMPTY_ROWS: Final = 64
"""Most rows of an array without elements, in all dimensions before the first that is 0.  Whoever
makes lists of it makes one for each, and no byte stands for them (G10)."""


class ElementType(NamedTuple):
    """The type of the elements under a tag."""

    name: str
    """numpy's name of the type, which is torch's too."""
    item_bytes: int
    """Bytes of one element."""
    swap_bytes: int
    """Bytes of one number, if they are big-endian and must be swapped; else 0."""


_WRITTEN: Final[dict[str, int]] = {
    "uint8": 64,
    "uint16": 69,
    "uint32": 70,
    "uint64": 71,
    "int8": 72,
    "int16": 77,
    "int32": 78,
    "int64": 79,
    "float16": 84,
    "float32": 85,
    "float64": 86,
    "bool": TAG_BOOL,
    "complex64": TAG_COMPLEX64,
    "complex128": TAG_COMPLEX128,
    "bfloat16": TAG_BFLOAT16,
}
"""The tag that is written for a type: the little-endian one."""

_FORMATS: Final = {
    "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q",
    "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q",
    "float16": "<e", "float32": "<f", "float64": "<d", "bool": "<?",
    "complex64": "<f", "complex128": "<d", "bfloat16": "<H",
}  # fmt: skip
"""The format of a number of each type, as :mod:`struct` has them."""

ELEMENT_TYPES: Final[dict[int, ElementType]] = {
    64: ElementType("uint8", 1, 0),
    65: ElementType("uint16", 2, 2),
    66: ElementType("uint32", 4, 4),
    67: ElementType("uint64", 8, 8),
    68: ElementType("uint8", 1, 0),  # "clamped" is about arithmetic, not about the elements
    69: ElementType("uint16", 2, 0),
    70: ElementType("uint32", 4, 0),
    71: ElementType("uint64", 8, 0),
    72: ElementType("int8", 1, 0),
    73: ElementType("int16", 2, 2),
    74: ElementType("int32", 4, 4),
    75: ElementType("int64", 8, 8),
    77: ElementType("int16", 2, 0),
    78: ElementType("int32", 4, 0),
    79: ElementType("int64", 8, 0),
    80: ElementType("float16", 2, 2),
    81: ElementType("float32", 4, 4),
    82: ElementType("float64", 8, 8),
    84: ElementType("float16", 2, 0),
    85: ElementType("float32", 4, 0),
    86: ElementType("float64", 8, 0),
    TAG_BOOL: ElementType("bool", 1, 0),
    TAG_COMPLEX64: ElementType("complex64", 8, 0),
    TAG_COMPLEX128: ElementType("complex128", 16, 0),
    TAG_BFLOAT16: ElementType("bfloat16", 2, 0),
}
"""Every tag that is read, with its meaning."""


class ArrayProblem(ValueError):
    """An array that has no encoding, or bytes that are no array."""


@dataclasses.dataclass(frozen=True, slots=True)
class RawArray:
    """An array as it travels, for readers without numpy.

    ``data`` holds the elements row by row, little-endian, read-only; ``dtype``
    is a name such as ``"float32"``.  It can be encoded again.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    def __deepcopy__(self, memo: object) -> Self:
        return self  # nothing in it can change, and a memoryview has no copy

    def tolist(self) -> list[Any]:
        """The elements, in lists by the shape; one of no dimensions is its element.  As numpy's
        arrays have it."""
        lowered = _lower_raw(self)
        numbers = [number for (number,) in struct.iter_unpack(_FORMATS[self.dtype], lowered.data)]
        if self.dtype == "bfloat16":
            halves = struct.pack(f"<{len(numbers)}I", *(number << 16 for number in numbers))
            numbers = [number for (number,) in struct.iter_unpack("<f", halves)]
        elif self.dtype.startswith("complex"):
            numbers = [complex(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
        nested: list[Any] = _nested(numbers, self.shape)
        return nested


def _check_rows(shape: Sequence[int]) -> None:
    rows = math.prod(takewhile(bool, shape))
    if 0 in shape and rows > EMPTY_ROWS:
        raise ArrayProblem(f"it has no elements, and {rows} rows: at most {EMPTY_ROWS} are taken")


def _nested(flat: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return flat[0]
    size = math.prod(shape[1:])
    rows = (flat[row * size : (row + 1) * size] for row in range(shape[0]))
    return flat if len(shape) == 1 else [_nested(row, shape[1:]) for row in rows]


class Lowered(NamedTuple):
    """An array ready to be written: ``data`` under ``tag``, and its shape."""

    tag: int
    shape: tuple[int, ...]
    data: bytes | memoryview


# --- writing ---------------------------------------------------------------


def lower_array(value: object) -> Lowered | None:
    """The array ``value`` ready to be written, or None if it is not an array.

    Raises :class:`ArrayProblem` for an array that has no encoding.  ``data``
    shares memory with ``value`` where the layout allows it.
    """
    lowered = _lowered(value)
    if lowered is not None:
        _check_rows(lowered.shape)
    return lowered


def _lowered(value: object) -> Lowered | None:
    if isinstance(value, RawArray):
        return _lower_raw(value)
    if isinstance(value, array.array) and value.typecode not in "uw":
        return _lower_own(value)
    numpy = sys.modules.get("numpy")
    # Of a module that another thread is importing, the class is not there yet.
    if isinstance(value, getattr(numpy, "ndarray", ())):
        return _lower_numpy(value, numpy)
    torch = sys.modules.get("torch")
    if isinstance(value, getattr(torch, "Tensor", ())):  # needs torch
        return _lower_torch(value, torch)
    return None


def plain_number(value: object) -> object:
    """A numpy scalar as the plain Python value it stands for; anything else
    as it is.

    A date or a ``longdouble`` has no plain number and raises
    :class:`ArrayProblem`.
    """
    generic: Any = getattr(sys.modules.get("numpy"), "generic", ())
    if not isinstance(value, generic):
        return value
    if value.dtype.name == "bfloat16":
        return float(value)
    if value.dtype.name not in _WRITTEN:
        raise ArrayProblem(f"numpy scalars of type {value.dtype} have no encoding")
    plain: object = value.item()
    return plain


def _lower_raw(value: RawArray) -> Lowered:
    tag = _WRITTEN.get(value.dtype)
    if tag is None:
        raise ArrayProblem(f"RawArray of type {value.dtype!r} has no encoding")
    try:
        data = memoryview(value.data).cast("B")
    except TypeError as error:
        raise ArrayProblem("the data of a RawArray must be contiguous bytes") from error
    if math.prod(value.shape) * ELEMENT_TYPES[tag].item_bytes != data.nbytes:
        raise ArrayProblem("the shape of the RawArray does not fit its data")
    return Lowered(tag, value.shape, data)


def _lower_own(value: array.array[Any]) -> Lowered:
    # The letters are C's types, whose sizes differ from machine to machine.
    letter = value.typecode
    kind = "float" if letter in "fd" else "int" if letter.islower() else "uint"
    tag = _WRITTEN[f"{kind}{value.itemsize * 8}"]
    # A copy, since an array that is looked at cannot grow.
    data = value.tobytes()
    if sys.byteorder == "big" and value.itemsize > 1:
        data = _swapped(data, value.itemsize)
    return Lowered(tag, (len(value),), data)


def _lower_numpy(value: Any, numpy: Any) -> Lowered:
    dtype = value.dtype
    tag = _WRITTEN.get(dtype.name)
    if tag is None:
        raise ArrayProblem(f"arrays of type {dtype} have no encoding")
    if isinstance(value, numpy.ma.MaskedArray):
        raise ArrayProblem("masked arrays have no encoding (the mask would be lost)")
    if value.ndim > MAX_DIMENSIONS:
        raise ArrayProblem(f"an array of {value.ndim} dimensions has no encoding")
    plain = numpy.asarray(value, dtype=dtype.newbyteorder("<"), order="C")
    # A view as bytes, since a memoryview does not know bfloat16.
    flat = plain.reshape(-1).view(numpy.uint8)
    return Lowered(tag, plain.shape, memoryview(flat).toreadonly())


def _lower_torch(value: Any, torch: Any) -> Lowered:  # needs torch
    tag = _WRITTEN.get(str(value.dtype).removeprefix("torch."))
    if tag is None or value.layout is not torch.strided or value.is_quantized:
        raise ArrayProblem(f"tensors of type {value.dtype}, {value.layout} have no encoding")
    if value.device.type == "meta":
        raise ArrayProblem("a meta tensor has no elements")
    if value.ndim > MAX_DIMENSIONS:
        raise ArrayProblem(f"a tensor of {value.ndim} dimensions has no encoding")
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # A single element counts as contiguous whatever its stride, but cannot be viewed.
    flat = plain.reshape(-1).as_strided((plain.numel(),), (1,), plain.storage_offset())
    flat = flat.view(torch.uint8)
    if "numpy" not in sys.modules:
        # Slow, but a tensor's memory can be read through numpy only.
        return Lowered(tag, tuple(plain.shape), bytes(flat.tolist()))
    return Lowered(tag, tuple(plain.shape), memoryview(flat.numpy()).toreadonly())


# --- reading ---------------------------------------------------------------


def typed_array(tag: int, data: object, make: Callable[[RawArray], Any]) -> Any:
    """The one-dimensional array under ``tag``, whose content is ``data``.

    ``make`` is the reader's (:func:`maker`).  Raises :class:`ArrayProblem`.
    """
    name, item_bytes, swap_bytes = ELEMENT_TYPES[tag]
    if not isinstance(data, bytes | memoryview):
        raise ArrayProblem("a typed array must hold a byte string")
    count, rest = divmod(len(data), item_bytes)
    if rest:
        raise ArrayProblem(f"{len(data)} bytes are no whole number of {name} elements")
    if swap_bytes:
        data = _swapped(data, swap_bytes)
    if tag == TAG_BOOL and bytes(data).translate(None, b"\0\1"):
        raise ArrayProblem("a bool must be 0 or 1")
    return make(RawArray(name, (count,), data))


def shaped_array(content: object, *, column_major: bool) -> Any:
    """The array of ``content``, which is dimensions and a one-dimensional array
    as :func:`typed_array` made it.  Raises :class:`ArrayProblem`."""
    if not isinstance(content, list | tuple) or len(content) != 2:
        raise ArrayProblem("a multi-dimensional array must hold two items")
    dimensions, flat = content
    if not isinstance(dimensions, list | tuple) or len(dimensions) > MAX_DIMENSIONS:
        raise ArrayProblem("dimensions must be a list, and not too long")
    # The bound keeps the product below cheap and within the libraries' range.
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in dimensions):
        raise ArrayProblem("a dimension must be a natural number")
    shape = tuple(dimensions)
    old_shape = getattr(flat, "shape", None)
    if old_shape is None or len(old_shape) != 1:
        raise ArrayProblem("a multi-dimensional array must hold a typed array")
    # Without zeros too: libraries multiply the others before they meet the zero.
    if math.prod(shape) != old_shape[0] or math.prod(filter(None, shape)) >= 1 << 62:
        raise ArrayProblem(f"{old_shape[0]} elements do not fit the shape {shape}")
    _check_rows(shape)
    if isinstance(flat, RawArray):
        return _raw_shaped(flat, shape, column_major=column_major)
    if not column_major:
        return flat.reshape(shape)
    back = tuple(range(len(shape)))[::-1]
    turned = flat.reshape(shape[::-1])
    return turned.permute(back) if hasattr(turned, "permute") else turned.transpose(back)


def maker(reader: Reader) -> Callable[[RawArray], Any]:
    """The function that turns a :class:`RawArray` into the reader's array.

    It imports the library, and raises :class:`ArrayProblem` if that is not
    installed.
    """
    if reader == "torch":
        return _make_torch
    if reader == "numpy":
        return _make_numpy
    return _make_any


def _make_any(raw: RawArray) -> Any:
    try:
        import numpy  # noqa: F401  # only whether it is there
    except ImportError:
        return RawArray(raw.dtype, raw.shape, memoryview(raw.data).toreadonly())
    return _make_numpy(raw)


def _make_numpy(raw: RawArray) -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ArrayProblem('arrays="numpy" was asked for, but numpy is missing') from error
    if raw.dtype == "bfloat16":
        halves = numpy.frombuffer(raw.data, dtype="<u2").astype("<u4")
        result = (halves << 16).view("<f4")
    else:
        result = numpy.frombuffer(raw.data, dtype=numpy.dtype(raw.dtype).newbyteorder("<"))
        if not result.flags.aligned:
            result = result.copy()
    result = result.astype(result.dtype.newbyteorder("="), copy=False)
    result.flags.writeable = False
    return result


def _make_torch(raw: RawArray) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ArrayProblem('arrays="torch" was asked for, but torch is missing') from error
    return _tensor(raw, torch)  # needs torch


def _tensor(raw: RawArray, torch: Any) -> Any:  # needs torch
    dtype = getattr(torch, raw.dtype)
    if not len(raw.data):
        return torch.empty(raw.shape, dtype=dtype)
    # A copy, since a tensor cannot be read-only.
    return torch.frombuffer(bytearray(raw.data), dtype=dtype)


def _swapped(data: bytes | memoryview, size: int) -> bytes:
    """``data`` with the bytes of each number of ``size`` bytes reversed."""
    numbers = array.array({2: "H", 4: "I", 8: "Q"}[size])
    numbers.frombytes(data)
    numbers.byteswap()
    return numbers.tobytes()


def _raw_shaped(flat: RawArray, shape: Sequence[int], *, column_major: bool) -> RawArray:
    if column_major and sum(size > 1 for size in shape) > 1:
        raise ArrayProblem("column-major arrays need numpy or torch to be read")
    return dataclasses.replace(flat, shape=tuple(shape))
