"""Messages by number: each that was ever sent once, with what is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.terms import SentBody
from .wire import decoded, frames_form


class Mail:
    """All messages of an exploration.  A message is a number everywhere else."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, ...]] = []
        self.message: list[Any] = []
        """The header of each, decoded; None if it has none."""
        self.form: list[Any] = []
        self._numbers: dict[tuple[bytes, ...], int] = {}

    def number(self, frames: Sequence[SentBody]) -> int:
        """The number of a message."""
        key = tuple(map(bytes, frames))
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.frames)
            self.frames.append(key)
            self.message.append(next(filter(None, map(decoded, key)), None))
            self.form.append(frames_form(key))
        return known
