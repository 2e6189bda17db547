"""A set of non-negative integers, kept as disjoint spans.

The sets of finished sequences and of used dispatch numbers only grow, mostly in order; as spans
they take memory for their gaps, not for their members.

Theory of operation: ``_edges`` is a strictly increasing list ``[a0, b0, a1, b1, ...]`` of half-open
spans ``[a, b)``.  A number is a member exactly if an odd number of edges is at or below it, so a
membership test is one bisection and adding a span is one slice assignment.  The union and the
complement of large sets take one pass, mostly in compiled code: a client with 100,000 pending
requests, every second one finished, states 50,000 spans.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, compress, islice, starmap

FEW_EDGES = 32
"""Most edges of a set that is added to another set span by span."""


def is_flat(edges: list[int]) -> bool:
    """Whether these integers are the wire form of a set."""
    if len(edges) % 2 or (edges and edges[0] < 0):
        return False
    return all(map(operator.lt, edges, islice(edges, 1, None)))


class Ranges:
    """A growing set of non-negative integers, compared by content."""

    __slots__ = ("_edges",)

    def __init__(self, members: Iterable[int] = ()) -> None:
        self._edges: list[int] = []
        for member in members:
            self.add(member)

    @classmethod
    def from_flat(cls, flat: Iterable[int]) -> Ranges:
        """The set of a wire form ``[a0, b0, a1, b1, ...]`` for which :func:`is_flat` holds, as the
        decoder of messages has checked."""
        ranges = cls()
        ranges._edges = list(flat)
        return ranges

    def flat(self) -> list[int]:
        """The wire form, as a new list."""
        return self._edges.copy()

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._edges, number) % 2 == 1

    def __len__(self) -> int:
        return sum(self._edges[1::2]) - sum(self._edges[::2])

    def __bool__(self) -> bool:
        return bool(self._edges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._edges == other._edges

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __iter__(self) -> Iterator[int]:
        if len(self) == self.span_count():  # all spans have one member: no ranges are needed
            return iter(self._edges[::2])
        return chain.from_iterable(starmap(range, self.spans()))

    def __repr__(self) -> str:
        return "Ranges({})".format(", ".join(f"{a}..{b - 1}" for a, b in self.spans()))

    def spans(self) -> Iterator[tuple[int, int]]:
        """The half-open spans in increasing order."""
        return zip(self._edges[::2], self._edges[1::2], strict=True)

    def span_count(self) -> int:
        """Number of spans, to which the set's memory is proportional."""
        return len(self._edges) // 2

    def add(self, number: int) -> bool:
        """Add one number; False if it was a member already."""
        edges = self._edges
        if edges and edges[-1] == number:  # most come in order
            edges[-1] += 1
            return True
        if number in self:
            return False
        self.add_span(number, number + 1)
        return True

    def add_span(self, start: int, stop: int) -> None:
        """Add every number of ``[start, stop)``."""
        if start >= stop:
            return
        edges = self._edges
        low = bisect_left(edges, start)
        high = bisect_right(edges, stop)
        joined = ([] if low % 2 else [start]) + ([] if high % 2 else [stop])
        edges[low:high] = joined

    def update(self, other: Ranges) -> None:
        """Add every member of the other set."""
        if self._edges == other._edges:
            return
        if len(other._edges) <= FEW_EDGES:
            for start, stop in other.spans():
                self.add_span(start, stop)
            return
        starts = sorted(self._edges[::2] + other._edges[::2])  # two runs, merged in one pass
        stops = sorted(self._edges[1::2] + other._edges[1::2])
        # A joined span ends where as many spans have stopped as started, and the next starts later.
        ends = [*map(operator.gt, islice(starts, 1, None), stops), True]
        stops = [*compress(stops, ends)]
        starts = [*starts[:1], *compress(islice(starts, 1, None), ends)]
        self._edges = [0] * (2 * len(stops))
        self._edges[::2], self._edges[1::2] = starts, stops

    def copy(self) -> Ranges:
        """An independent set of the same members."""
        ranges = Ranges()
        ranges._edges = self._edges.copy()
        return ranges

    def gaps(self, stop: int) -> Ranges:
        """The set of the numbers of ``[0, stop)`` that are not members."""
        edges = self._edges[: bisect_left(self._edges, stop)]
        edges = edges[1:] if edges[:1] == [0] else [0, *edges]
        if len(edges) % 2:
            edges.append(stop)
        ranges = Ranges()
        ranges._edges = edges if stop > 0 else []
        return ranges
