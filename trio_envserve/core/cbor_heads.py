"""The heads of CBOR's data items, read one by one."""

from __future__ import annotations


def head(data: memoryview, position: int) -> tuple[int, int, int]:
    """Major type, argument and end of the head at ``position``.

    The argument is 0 for a head of indefinite length and for a break, whose
    items follow as items of their own; it is -1 where there is no valid head.
    """
    initial = data[position]
    major, information = initial >> 5, initial & 31
    position += 1
    if information < 24:
        return major, information, position
    if information == 31:
        return major, 0, position
    width = 1 << (information - 24)
    if width > 8 or position + width > len(data):
        return major, -1, position
    return major, int.from_bytes(data[position : position + width], "big"), position + width
