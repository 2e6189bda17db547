"""A simulated process: lives, may be held up, dies once."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

from .events import Events


class Process:
    """Something that lives, may be held up, and dies once.

    It runs what is posted to it, unless it is dead or held (stopped, or its loop
    blocked): then that waits, and nothing of it moves.

    Each draws from a source of its own, so that a schedule with less in it leaves
    the others' luck as it was: failures shrink better.
    """

    def __init__(self, events: Events[Any], name: str, rng: Random) -> None:
        self.events = events
        self.name = name
        self.rng = rng
        self.died_s: float | None = None
        self.held_s = 0.0
        """For how long it has been held up, in all."""
        self.held_times = 0
        self._holds: dict[str, float] = {}
        self._continued_s = -math.inf
        """When it was last continued, stopped before."""
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def alive(self) -> bool:
        """Whether it has not died."""
        return self.died_s is None

    @property
    def held(self) -> bool:
        """Whether it is stopped, or its loop is blocked."""
        return bool(self._holds)

    def moved_s(self, now_s: float) -> float:
        """For how long it has not been stopped; a blocked loop is no stop."""
        return 0.0 if "stopped" in self._holds else now_s - self._continued_s

    def stopped_for_s(self, now_s: float) -> float:
        """For how long it is stopped; 0 if it is not."""
        return now_s - self._holds.get("stopped", now_s)

    def post(self, act: Callable[..., None], *args: Any) -> None:
        """Do this in the process: now, or when it moves again, or never."""
        if self.died_s is not None:
            return
        if self._holds:
            self._backlog.append((act, args))
        else:
            act(*args)

    def hold(self, why: str) -> None:
        """It does not move until this is released."""
        self._holds.setdefault(why, self.events.now_s)

    def release(self, why: str) -> None:
        """It moves again, unless something else holds it; first it works off
        what has come in, then :meth:`woke` says what its clock missed."""
        since_s = self._holds.pop(why, None)
        if why == "stopped":
            self._continued_s = self.events.now_s
        if since_s is None or self._holds or self.died_s is not None:
            return
        late_s = self.events.now_s - since_s
        self.held_s += late_s
        self.held_times += 1
        backlog, self._backlog = self._backlog, []
        for act, args in backlog:
            self.post(act, *args)
        self.post(self.woke, late_s)

    def woke(self, late_s: float) -> None:
        """It runs again after ``late_s``: do what the clock would have asked for."""

    def die(self, how: str) -> None:
        """The process is dead.  Only the first death counts."""
        if self.died_s is None:
            self.died_s = self.events.now_s
            self.events.note(self.name, f"dies: {how}")
