"""Results that are larger than a message may be: which parts are cut, and what stays.

Theory of operation
-------------------
A result is worth more than its screenshots.  :func:`smaller` gives ever smaller copies of one
that does not fit, and its caller takes the first that does:

1. the largest binary parts (bytes, arrays, base64, ``data:`` URLs) outside of ``segments`` are
   replaced by a text that says what stood there and its size, as few as seem to be enough;
2. all binary parts are;
3. whole fields are, the largest first, but for ``segments`` and those of :data:`KEPT`, as many as
   seem to be enough, then ever more;
4. ``segments`` is, too.

Each copy has the field ``cut``, which says what was cut, how much, and the limit.  The value of a
group is a list of records, ``{"ok": True, "value": result}`` or an error; each result that lost
something has that field.

Pure: no trio, no clock, no random source.  Only containers and leaves of Python's own types, and
arrays, are looked into: no code of a value's class runs, but ``nbytes`` of arrays.
"""

from __future__ import annotations

import array
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

KEPT: Final = frozenset(
    (
        "reward", "metrics", "usage", "stop", "no_reward", "error", "is_truncated", "cut",
        "answered_by",
    )
)  # fmt: skip
"""Fields of a result that are never cut."""

_SEGMENTS: Final = "segments"
_LEAST_BYTES: Final = 1024
"""Size of the smallest part that is worth a marker."""

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_=\r\n-]{1024}")
_DATA_URL: Final = re.compile(r"data:[^,]{0,100},")
_ARRAYS: Final = frozenset(("numpy", "torch"))

_Path: TypeAlias = tuple[int | str, ...]


class _Part(NamedTuple):
    """A part that may be cut."""

    size_bytes: int
    path: _Path
    marker: str


def smaller(value: Any, size_bytes: int, most_bytes: int, limit: str) -> Iterator[Any]:
    """Ever smaller copies of a result whose encoding has ``size_bytes``, more than
    ``most_bytes``.  ``limit`` says where that bound comes from.  None of a value that is
    neither a result (a dict) nor the records of a group."""
    of_group = _is_group(value)
    members = [each.get("value") for each in value] if of_group else [value]
    results = {number: each for number, each in enumerate(members) if type(each) is dict}

    def copy(parts: list[_Part]) -> Any:
        what = "the group's results" if of_group else "the result"
        text = f"{what} had {size_bytes} bytes, and {limit}"
        copies = {number: _copy_of(each, number, parts, text) for number, each in results.items()}
        if not of_group:
            return copies[0]
        return [
            {**each, "value": copies[number]} if number in copies else each
            for number, each in enumerate(value)
        ]

    binary = [
        part
        for number, each in results.items()
        for name, inner in each.items()
        if name not in KEPT and name != _SEGMENTS
        for part in _binary(inner, (number, name))
    ]
    binary.sort(key=lambda part: -part.size_bytes)
    freed, enough = 0, 0
    while enough < len(binary) and freed < size_bytes - most_bytes:
        freed += binary[enough].size_bytes - _LEAST_BYTES // 2
        enough += 1
    if 0 < enough < len(binary):
        yield copy(binary[:enough])
    if binary:
        yield copy(binary)
    for fields in _whole_fields(results, binary, size_bytes - most_bytes):
        cut = [part for part in binary if part.path[:2] not in {each.path for each in fields}]
        yield copy([*cut, *fields])


def _is_group(value: Any) -> bool:
    """Whether a value is the records of a group's members."""
    return type(value) is list and all(
        type(each) is dict and each.keys() in ({"ok", "value"}, {"ok", "error"}) for each in value
    )


def _whole_fields(
    results: dict[int, dict[Any, Any]], binary: list[_Part], excess_bytes: int
) -> Iterator[list[_Part]]:
    """The fields that are cut as a whole where the ``binary`` parts are not enough: as many as
    seem to be, then more and more of them."""
    parts = [
        _Part(size, (number, name), f"(cut: {size} bytes or so)")
        for number, each in results.items()
        for name, inner in each.items()
        if name not in KEPT and (size := _weight(inner)) >= _LEAST_BYTES
    ]
    parts.sort(key=lambda part: (part.path[1] == _SEGMENTS, -part.size_bytes))
    freed: dict[_Path, int] = {}
    for part in binary:
        freed[part.path[:2]] = freed.get(part.path[:2], 0) + part.size_bytes
    left, count, step = excess_bytes - sum(freed.values()), 0, 1
    while count < len(parts) and (left > 0 or count == 0):
        left -= parts[count].size_bytes - freed.get(parts[count].path, 0)
        count += 1
    while count < len(parts):
        yield parts[:count]
        count, step = count + step, 2 * step  # each is encoded, and a group may have thousands
    if parts:
        yield parts


def _copy_of(result: dict[Any, Any], number: int, parts: list[_Part], text: str) -> Any:
    own = {part.path[1:]: part for part in parts if part.path[0] == number}
    if not own:
        return result
    copied = _replaced(result, {path: part.marker for path, part in own.items()})
    sizes: dict[str, int] = {}
    for path, part in own.items():
        sizes[str(path[0])] = sizes.get(str(path[0]), 0) + part.size_bytes
    what = ", ".join(f"{size} of {name}" for name, size in sizes.items())
    copied["cut"] = {
        "parts": len(own), "bytes": sum(sizes.values()), "of": sizes,
        "why": f"{text}: {what} were cut",
    }  # fmt: skip
    return copied


def _replaced(value: Any, markers: dict[_Path, str]) -> Any:
    """A copy with markers in the place of parts; what holds none is not copied."""
    if () in markers:
        return markers[()]
    inner: dict[int | str, dict[_Path, str]] = {}
    for path, marker in markers.items():
        inner.setdefault(path[0], {})[path[1:]] = marker
    if type(value) is dict:
        return {
            key: _replaced(item, inner[key]) if key in inner else item
            for key, item in value.items()
        }
    return [
        _replaced(item, inner[number]) if number in inner else item
        for number, item in enumerate(value)
    ]


def _binary(value: Any, path: _Path) -> Iterator[_Part]:
    """The binary parts in a value."""
    if type(value) is dict:
        for key, item in value.items():
            if isinstance(key, (str, int)):
                yield from _binary(item, (*path, key))
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            if not isinstance(item, (int, float)):
                yield from _binary(item, (*path, number))
    else:
        what, size = _binary_leaf(value)
        if size >= _LEAST_BYTES:
            yield _Part(size, path, f"(cut: {what} of {size} bytes)")


def _binary_leaf(value: Any) -> tuple[str, int]:
    """A name and the size of what a leaf holds; 0 if it is not binary."""
    if type(value) is str:
        head = _DATA_URL.match(value)
        if head is not None:
            return head[0].rstrip(","), len(value)
        return "base64", len(value) if _BASE64.match(value) else 0
    if type(value) in (bytes, bytearray):
        return "bytes", len(value)
    if type(value) is memoryview:
        return "bytes", value.nbytes
    if type(value) is array.array:
        return f"array of {value.typecode!r}", len(value) * value.itemsize
    if type(value).__module__.partition(".")[0] in _ARRAYS:
        size = getattr(value, "nbytes", 0)
        shape = tuple(getattr(value, "shape", ()))
        return f"array {getattr(value, 'dtype', '')} {shape}", size if isinstance(size, int) else 0
    return "", 0


def _weight(value: Any) -> int:
    """About the size of a value's encoding, in bytes."""
    if type(value) is str:
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if type(value) is dict:
        return sum(_weight(key) + _weight(item) for key, item in value.items()) + 1
    if type(value) in (list, tuple):
        return sum(map(_weight, value)) + 1
    return max(_binary_leaf(value)[1], 9)
