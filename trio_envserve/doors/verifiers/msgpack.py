"""The little of msgpack that the door reads and writes itself: a map of texts and truth values.

What a run asks and what it answers pass through the door unread; it reads one message, a
cancel's.  For that a codec for all of msgpack, with bounds on what strangers can make it do, would
be a dependency that costs more than these lines.  Whatever is read is at most :data:`MOST_BYTES`
long, and nothing is reserved for a length that is only claimed.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Final

MOST_BYTES: Final = 4096
"""Of what is read."""

_MOST_ITEMS: Final = 15
"""Of a map: as many as its first byte can say."""

Scalar = str | bool | None

_PLAIN: Final[Mapping[int, Scalar]] = {0xC0: None, 0xC2: False, 0xC3: True}
_LENGTHS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDE: 2, 0xDF: 4}
"""Bytes of the length behind the first byte: of texts, and of maps."""


class NotMsgpack(ValueError):
    """These bytes are not what the door reads."""


def write(record: Mapping[str, Scalar]) -> bytes:
    """A map of a few entries."""
    assert len(record) <= _MOST_ITEMS
    parts = [bytes((0x80 | len(record),))]
    for item in (item for entry in record.items() for item in entry):
        if isinstance(item, str):
            # Texts of errors come from anywhere; the reader wants UTF-8.
            data = item.encode("utf-8", "backslashreplace")
            short = len(data) < 32
            head = bytes((0xA0 | len(data),)) if short else b"\xdb" + len(data).to_bytes(4, "big")
            parts += head, data
        else:
            parts.append({None: b"\xc0", False: b"\xc2", True: b"\xc3"}[item])
    return b"".join(parts)


def read(data: bytes | memoryview) -> dict[str, Scalar]:
    """A map of texts to texts, truth values and nil.  Raises NotMsgpack for all else."""
    if len(data) > MOST_BYTES:
        raise NotMsgpack(f"{len(data)} bytes, {MOST_BYTES} allowed")
    rest = io.BytesIO(data)
    head, count = _head(rest)
    if head not in (0xDE, 0xDF) and head & 0xF0 != 0x80:
        raise NotMsgpack(f"a map expected, not an item that begins with {head:#04x}")
    if count > _MOST_ITEMS:
        raise NotMsgpack(f"a map of {count} entries, {_MOST_ITEMS} allowed")
    record: dict[str, Scalar] = {}
    for _ in range(count):
        name = _scalar(rest)
        if not isinstance(name, str) or name in record:
            raise NotMsgpack("the names of a map are texts, each once")
        record[name] = _scalar(rest)
    if rest.read(1):
        raise NotMsgpack("something follows the map")
    return record


def _head(rest: io.BytesIO) -> tuple[int, int]:
    """The first byte of an item, and the length that it says."""
    head = _take(rest, 1)[0]
    if head in _LENGTHS:
        return head, int.from_bytes(_take(rest, _LENGTHS[head]), "big")
    return head, head & (0x0F if head < 0xA0 else 0x1F)


def _scalar(rest: io.BytesIO) -> Scalar:
    head, length = _head(rest)
    if head in _PLAIN:
        return _PLAIN[head]
    if head not in (0xD9, 0xDA, 0xDB) and head & 0xE0 != 0xA0:
        raise NotMsgpack(f"a text, a truth value or nil expected, not {head:#04x}")
    try:
        return _take(rest, length).decode()
    except UnicodeDecodeError:
        raise NotMsgpack("a text that is not UTF-8") from None


def _take(rest: io.BytesIO, size: int) -> bytes:
    found = rest.read(size)
    if len(found) < size:
        raise NotMsgpack("it ends too early")
    return found
