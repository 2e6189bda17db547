"""Runs by the place of those that asked for them.  Pure."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import final

from .records import Run


@final
class Places:
    """The runs that are in one state, of each place the oldest first."""

    def __init__(self) -> None:
        self._at: dict[str, OrderedDict[bytes, Run]] = {}

    def __contains__(self, run: Run) -> bool:
        return run.name in self._at.get(run.place, ())

    def add(self, run: Run) -> None:
        """A run has come into this state."""
        self._at.setdefault(run.place, OrderedDict())[run.name] = run

    def drop(self, run: Run) -> None:
        """It has left it, if it was in it; a place without any takes no room."""
        runs = self._at.get(run.place)
        if runs is not None and runs.pop(run.name, None) is not None and not runs:
            del self._at[run.place]

    def at(self, place: str) -> Iterator[Run]:
        """Those of one place."""
        runs = self._at.get(place)
        return iter(()) if runs is None else iter(runs.values())

    def all(self) -> dict[str, OrderedDict[bytes, Run]]:
        """Those of each place."""
        return self._at

    def older(self, than_s: float) -> list[Run]:
        """Those that have been in it since then, or for longer."""
        return [run for runs in self._at.values() for run in runs.values() if run.since_s <= than_s]


@final
class Line:
    """The runs that wait to be started: those for which somebody waits, then the others."""

    def __init__(self) -> None:
        self._wanted = Places()
        self._others = Places()

    def add(self, run: Run) -> None:
        """A run waits."""
        (self._wanted if run.waiters else self._others).add(run)

    def drop(self, run: Run) -> None:
        """It does not, or not any more."""
        self._wanted.drop(run)
        self._others.drop(run)

    def move(self, run: Run) -> None:
        """Move a run, which may be in this line, after its waiters have changed."""
        if run in self._wanted or run in self._others:
            self.drop(run)
            self.add(run)

    def first(self, place: str) -> Run | None:
        """The next of a place, if there is one."""
        return next(itertools.chain(self._wanted.at(place), self._others.at(place)), None)

    def places(self) -> list[str]:
        """Where runs wait."""
        return list(self._wanted.all() | self._others.all())
