"""Notes of a rollout, written by its code and by what its code calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import final

from ..core import notes
from ..core.notes import Note
from ..redaction import redacted


@final
class RolloutNotes:
    """Takes the notes of one attempt of a rollout: call it with the fields of a note::

        rollout.note(turn=3, text="reads the tests")

    May be called in any thread, and never waits.  It tells people how far the rollout is:
    the last note counts, is seen within a beat (a second), and may be lost.  Fields are
    text, numbers, booleans and None; long texts are cut, so that all of it fits into
    1 KiB.  Raises TypeError or ValueError for what cannot be written.

    What the code has not said itself, what it calls adds: ``turn`` and ``tokens`` (model
    calls, and what they took so far), ``tool`` (while one is called), ``waits`` (for what,
    after a second: ``for the model, 3.2 s, second try``), ``attempt`` (from the second on),
    ``member`` (of a group, which has one note in all).
    """

    def __init__(
        self,
        keep: Callable[[bytes], object] | None = None,
        **always: str | int | float | bool | None,
    ) -> None:
        """``keep`` is called with each note, in the thread that writes it."""
        self._keep = keep
        self._own: Note = {}
        self._added: Note = always
        if always:
            self.add()

    def __call__(self, **fields: str | int | float | bool | None) -> None:
        """Write a note, in place of the one before.

        Args:
            **fields: Its fields.
        """
        encoded = _encoded({**self._added, **fields})
        self._own = fields
        if self._keep is not None:
            self._keep(encoded)

    def add(self, **fields: str | int | float | bool | None) -> None:
        """Set these fields, or remove those that are None, for code that the rollout calls.  Fields
        that cannot be written are left out, since the rollout did not ask for them."""
        added = {**self._added, **fields}
        self._added = {name: value for name, value in added.items() if value is not None}
        if self._keep is not None:
            with suppress(TypeError, ValueError):
                self._keep(_encoded({**self._added, **self._own}))


def _encoded(note: Note) -> bytes:
    return notes.encode(
        {
            name: redacted(str.__str__(value)) if isinstance(value, str) else value
            for name, value in note.items()
        }
    )
