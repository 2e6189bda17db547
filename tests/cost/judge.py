"""Judges the environment's own log: nothing twice, nothing lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import final


@dataclasses.dataclass(slots=True)
class Judged:
    """The findings over all loads so far."""

    asked: int = 0
    answered: int = 0
    started_twice: int = 0
    """Starts beyond the first of requests that had not consented to another."""
    never_started: int = 0
    """Requests that were answered although the environment never ran them."""
    wrong: int = 0
    """Answers that were not the answer to what was asked."""

    @property
    def lost(self) -> int:
        """Requests without an answer."""
        return self.asked - self.answered

    @property
    def ok(self) -> bool:
        """Whether there is nothing to complain of."""
        return not (self.lost or self.started_twice or self.never_started or self.wrong)

    def record(self) -> dict[str, int | bool]:
        """For the report."""
        return {**dataclasses.asdict(self), "lost": self.lost, "ok": self.ok}


@final
class Judge:
    """Numbers requests, and judges them by the log in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.judged = Judged()
        self.next_call = 0

    def load(self, figures: dict[str, float]) -> None:
        """A load that began at ``next_call`` has ended with these figures."""
        first, asked = self.next_call, int(figures["asked"])
        self.next_call += asked
        judged = self.judged
        judged.asked += asked
        judged.answered += int(figures["answered"])
        judged.wrong += int(figures["wrong"])
        for starts in self._starts(first, asked):
            judged.started_twice += max(0, starts - 1)
            judged.never_started += not starts

    def call(self, *, answered: bool, consent: bool = False) -> None:
        """One single call, which was given ``next_call``, has ended.  With consent
        a second start is none to complain of."""
        (starts,) = self._starts(self.next_call, 1)
        self.next_call += 1
        self.judged.asked += 1
        self.judged.answered += answered
        self.judged.never_started += answered and not starts
        if not consent:
            self.judged.started_twice += max(0, starts - 1)

    def cancelled(self, count: int) -> None:
        """``count`` requests from ``next_call`` on were cancelled before they ended: each
        was started once, or never."""
        for starts in self._starts(self.next_call, count):
            self.judged.started_twice += max(0, starts - 1)
        self.next_call += count

    def _starts(self, first: int, count: int) -> Collection[int]:
        """How often each of these was started, by all workers together."""
        logs: list[bytes] = []
        for path in self.folder.glob("starts-*"):
            with path.open("rb") as file:
                file.seek(first)
                logs.append(file.read(count))
        if len(logs) == 1:
            return logs[0]
        return [sum(column) for column in zip(*logs, strict=True)] if logs else bytes(count)
