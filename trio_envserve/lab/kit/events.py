"""Virtual time: what is to happen, and a trace of what has.

Theory of operation
-------------------
:class:`Events` is a heap of things to come; time jumps from one to the next.  Whatever
is noted goes into a digest, so that two runs can be compared, and into a trace if one
is wanted.  It knows of a message only how its bytes are made.
"""

from __future__ import annotations

import heapq
import itertools
import math
import struct
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

M = TypeVar("M")

_pack = struct.Struct("<d").pack


class Record(NamedTuple, Generic[M]):
    """One line of a trace: something that happened, or a message."""

    at_s: float
    who: str
    """The actor that it happened to; for a message the name of its connection."""
    what: str
    """For a message its way, or how it was lost: see :mod:`.network`."""
    message: M | None = None

    def text(self, describe: Callable[[M], str]) -> str:
        """The line; ``describe`` says what a message is."""
        what = self.what if self.message is None else f"{self.what} {describe(self.message)}"
        return f"{self.at_s:10.4f}  {self.who:<12} {what}"


class Events(Generic[M]):
    """The virtual clock, everything that is to happen, and a digest of what has."""

    def __init__(self, to_bytes: Callable[[M], bytes], *, trace: bool) -> None:
        self.now_s = 0.0
        self.count = 0
        self.trace: list[Record[M]] | None = [] if trace else None
        self._to_bytes = to_bytes
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._hash = blake2b(digest_size=16)

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call ``act(*args)`` in ``delay_s`` of virtual time."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._order), act, args))

    def step(self) -> bool:
        """Do what comes next; False if nothing does."""
        if not self._heap:
            return False
        self.now_s, _, act, args = heapq.heappop(self._heap)
        self.count += 1
        act(*args)
        return True

    def note(self, who: str, what: str) -> None:
        """Something happened: into the digest, and into the trace if there is one."""
        self._hash.update(_pack(self.now_s) + who.encode() + what.encode())
        if self.trace is not None:
            self.trace.append(Record(self.now_s, who, what))

    def note_message(self, who: str, way: str, message: M) -> None:
        """A message has arrived, or was lost."""
        said = who.encode() + way.encode() + self._to_bytes(message)
        self._hash.update(_pack(self.now_s) + said)
        if self.trace is not None:
            self.trace.append(Record(self.now_s, who, way, message))

    def digest(self) -> str:
        """The hash of the whole trace."""
        return self._hash.hexdigest()


def long_tailed(rng: Random, mean_s: float) -> float:
    """A time that is mostly short and sometimes very long.

    Not the exponential distribution: its logarithm may differ in the last digit
    between systems, and a seed is to give the same run on all of them.
    """
    return mean_s * (1.0 / math.sqrt(1.0 - rng.random()) - 1.0)
