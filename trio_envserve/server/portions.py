"""What was read at once, in portions: other tasks have a turn after each."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.limits import KIB
from ..net import BUNDLE_MESSAGES, Frame

PORTION_HEADER_BYTES = 16 * KIB
"""Most bytes of headers in a portion.  The router takes 2 ms for a statement with gaps of
this size."""


def portions(batch: list[list[Frame]], peers: int) -> Iterator[list[list[Frame]]]:
    """A batch in portions.  Each of the ``peers`` to which a portion is passed on gets a
    bundle of it, and works on that while the router takes the next portion.  The headers,
    which stand behind the routes, are few bytes in a portion, unless it is one message."""
    size = BUNDLE_MESSAGES * max(peers, 1)
    start = header_bytes = 0
    for end, message in enumerate(batch, 1):
        header_bytes += len(message[1]) if len(message) > 1 else 0
        if end - start == size or end == len(batch) or header_bytes > PORTION_HEADER_BYTES:
            yield batch[start:end]
            start, header_bytes = end, 0
