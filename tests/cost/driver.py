"""Shared parts of the client programs: their conversation and their figures.

A client program reads one JSON object a line, a load (:class:`.cases.Load` with
``seconds`` and ``first``), carries it out, and answers with one line of figures.
It ends with its standard input.  Only the standard library is used.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final


def answer(record: dict[str, Any]) -> None:
    """One line of standard output, there at once."""
    print(json.dumps(record), flush=True)


def asked() -> Iterator[dict[str, Any]]:
    """The loads, until standard input ends."""
    for line in sys.stdin:
        yield json.loads(line)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` of an ordered, non-empty sequence lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@final
class Tally:
    """Numbers the requests of one load, and times them."""

    def __init__(self, load: dict[str, Any], clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._first = self._next = int(load["first"])
        self._began_s = clock()
        self._until_s = self._began_s + float(load["seconds"])
        self._took_s: list[float] = []
        self.wrong = 0
        """Answers that were not the answer to what was asked."""

    def more(self) -> bool:
        """Whether a further request is to be made."""
        return self._clock() < self._until_s

    def begin(self) -> tuple[int, float]:
        """A further request: its number, and when it was made."""
        call, self._next = self._next, self._next + 1
        return call, self._clock()

    def end(self, began_s: float) -> None:
        """It is answered."""
        self._took_s.append(self._clock() - began_s)

    def figures(self) -> dict[str, Any]:
        """All requests are answered."""
        seconds = self._clock() - self._began_s
        took_s = sorted(self._took_s)
        return {
            "asked": self._next - self._first,
            "answered": len(took_s),
            "wrong": self.wrong,
            "seconds": seconds,
            "p50_ms": percentile(took_s, 0.50) * 1000 if took_s else None,
            "p99_ms": percentile(took_s, 0.99) * 1000 if took_s else None,
        }
