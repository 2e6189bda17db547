"""Portions of a batch that was read at once: other tasks have a turn after each portion."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core.limits import KIB
from ..core.messages import BATCH_ROWS, rows_claimed
from ..net import Frame

PORTION_HEADER_BYTES = 16 * KIB
"""Most bytes of headers in a portion.  The router takes 2 ms for a statement of this size."""


def of_client(message: list[Frame]) -> Frame:
    """The header of a client's message, after the route."""
    return message[1] if len(message) > 1 else b""


def of_worker(message: list[Frame]) -> Frame:
    """The header of a worker's message; the last frame, or the last but one of five."""
    return message[-2 if len(message) == 5 else -1]


def portions(
    batch: list[list[Frame]], peers: int, header_of: Callable[[list[Frame]], Frame] = of_client
) -> Iterator[list[list[Frame]]]:
    """Split a batch into portions.  Each portion has a batch's rows for each of the ``peers`` to
    which it is passed on, so that they work while the router takes the next portion.  Its headers
    have at most :data:`PORTION_HEADER_BYTES`, unless it is one message."""
    most = BATCH_ROWS * max(peers, 1)
    start = rows = header_bytes = 0
    for end, message in enumerate(batch):
        header = header_of(message)
        claimed = rows_claimed(header)
        header_bytes += len(header)
        rows += claimed
        if end > start and (rows > most or header_bytes > PORTION_HEADER_BYTES):
            yield batch[start:end]
            start, rows, header_bytes = end, claimed, len(header)
    if batch:
        yield batch[start:]
