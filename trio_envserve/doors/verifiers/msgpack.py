"""The little of msgpack that the door reads and writes itself.

Theory of operation
-------------------
What a run asks and what it answers pass through the door unread.  The door reads one
message, a cancel's, which is a map with one text; and it writes maps of texts and truth
values.  For that a codec for all of msgpack, with bounds on what strangers can make it
do, would be a dependency that costs more than these lines.

Whatever is read is at most :data:`MOST_BYTES` long, and nothing is reserved for a length
that is only claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MOST_BYTES: Final = 4096
"""Of what is read."""

_MOST_ITEMS: Final = 15
"""Of a map: as many as its first byte can say."""

Scalar = str | bool | None


class NotMsgpack(ValueError):
    """These bytes are not what the door reads."""


def write(record: Mapping[str, Scalar]) -> bytes:
    """A map of a few entries."""
    assert len(record) <= _MOST_ITEMS
    parts = [bytes((0x80 | len(record),))]
    for name, value in record.items():
        parts += _text(name), _scalar(value)
    return b"".join(parts)


def _scalar(value: Scalar) -> bytes:
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    return _text(value)


def _text(text: str) -> bytes:
    # Texts of errors come from anywhere; the reader wants UTF-8.
    data = text.encode("utf-8", "backslashreplace")
    if len(data) < 32:
        return bytes((0xA0 | len(data),)) + data
    return b"\xdb" + len(data).to_bytes(4, "big") + data


def read(data: bytes | memoryview) -> dict[str, Scalar]:
    """A map of texts to texts, truth values and nil.  Raises NotMsgpack for all else."""
    if len(data) > MOST_BYTES:
        raise NotMsgpack(f"{len(data)} bytes, {MOST_BYTES} allowed")
    reader = _Reader(bytes(data))
    record = reader.map()
    if reader.at != len(reader.data):
        raise NotMsgpack("something follows the map")
    return record


class _Reader:
    """Reads items one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def map(self) -> dict[str, Scalar]:
        """A map that is no value of another one."""
        head = self._take(1)[0]
        if head & 0xF0 == 0x80:
            count = head & 0x0F
        elif head == 0xDE:
            count = int.from_bytes(self._take(2), "big")
        elif head == 0xDF:
            count = int.from_bytes(self._take(4), "big")
        else:
            raise NotMsgpack(f"a map expected, not an item that begins with {head:#04x}")
        if count > _MOST_ITEMS:
            raise NotMsgpack(f"a map of {count} entries, {_MOST_ITEMS} allowed")
        record: dict[str, Scalar] = {}
        for _ in range(count):
            name = self._value()
            if not isinstance(name, str) or name in record:
                raise NotMsgpack("the names of a map are texts, each once")
            record[name] = self._value()
        return record

    def _value(self) -> Scalar:
        head = self._take(1)[0]
        if head == 0xC0:
            return None
        if head in (0xC2, 0xC3):
            return head == 0xC3
        if head & 0xE0 == 0xA0:
            size = head & 0x1F
        elif 0xD9 <= head <= 0xDB:
            size = int.from_bytes(self._take(1 << (head - 0xD9)), "big")
        else:
            raise NotMsgpack(f"a text, a truth value or nil expected, not {head:#04x}")
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise NotMsgpack("a text that is not UTF-8") from None

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise NotMsgpack("it ends too early")
        self.at += size
        return self.data[self.at - size : self.at]
