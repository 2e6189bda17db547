"""Which notes leave a worker with a beat.

Theory of operation
-------------------
The last note (:mod:`.notes`) of an execution wins, so a worker keeps one for each, and with
its beats it sends those that have changed.  A note may be lost, and nobody asks for it
again: the next one says more, and the outcome says all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, takewhile
from typing import final

from .ranges import Ranges
from .worker_messages import WorkerNotes

MESSAGE_BYTES = 16 * 1024
"""Of notes in one message: so it fits into a frame of 32 KiB, which any peer takes."""

BEAT_MESSAGES = 4
"""Messages of notes that leave with one beat; the others leave with later ones."""

_RECORD_BYTES = 32
"""Each note counts so much besides its bytes: for its number, and its part of the work."""


@final
class UnsentNotes:
    """The last note of each execution of a worker, until it is sent."""

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}
        self._unanswered = False
        """Whether the router has not said anything since notes were sent to it."""

    def keep(self, number: int, note: bytes) -> None:
        """This dispatch has a new note.  One that waits keeps its place."""
        self._last[number] = note

    def drop(self, number: int) -> None:
        """This dispatch has ended."""
        self._last.pop(number, None)

    def answered(self) -> None:
        """The router has answered a beat, so it takes what comes."""
        self._unanswered = False

    def take(self) -> Iterator[WorkerNotes]:
        """The notes that leave with this beat: none, while the router does not answer (G8)."""
        if self._unanswered:
            return
        for _ in range(BEAT_MESSAGES):
            if not self._last:
                return
            self._unanswered = True
            sizes = accumulate(_RECORD_BYTES + len(note) for note in self._last.values())
            fitting = takewhile(
                lambda each: each[1] <= MESSAGE_BYTES, zip(self._last, sizes, strict=True)
            )
            numbers = sorted(number for number, _ in fitting)
            notes = [self._last.pop(number) for number in numbers]
            yield WorkerNotes(Ranges(numbers).flat(), notes)
