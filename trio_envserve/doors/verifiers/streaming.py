"""The deltas of a run that go on as they come, to those that wait for it.  Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import final

from ...net import Frame
from .limits import VerifiersLimits


@final
class Streaming:
    """The deltas streamed of one run, and their receivers.  Only a hash of them is kept."""

    def __init__(self) -> None:
        self.followers: set[bytes] = set()
        """The routes of those that were sent every delta that was streamed."""
        self.count = 0
        """How many that is."""
        self._hash = _Hash()
        """The hash of these."""
        self._goes_on = True
        """Whether there is room for further ones."""

    def add(self, number: int, delta: Frame, limits: VerifiersLimits) -> bool:
        """Whether this delta goes on to the followers; it has this number of its execution."""
        if not (self.followers and self._goes_on):
            return False
        if number != self.count or len(delta) > limits.frame_bytes:
            self.followers.clear()  # one is missing, or the run has begun anew
            return False
        self._goes_on = self._hash.size_bytes + len(delta) <= limits.streamed_bytes
        if not self._goes_on:
            return False
        self.count += 1
        self._hash.add(delta)
        return True

    def has_begun(self, deltas: Sequence[bytes]) -> bool:
        """Whether something was streamed, and the deltas of the outcome begin so."""
        begins = _Hash()
        for delta in deltas[: self.count]:
            begins.add(delta)
        return self.count > 0 and begins.digest() == self._hash.digest()


@final
class _Hash:
    """A hash of deltas, in their order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.digest = self._hash.digest
        self.size_bytes = 0

    def add(self, delta: Frame) -> None:
        """One more."""
        self._hash.update(len(delta).to_bytes(8))
        self._hash.update(delta)
        self.size_bytes += len(delta)
