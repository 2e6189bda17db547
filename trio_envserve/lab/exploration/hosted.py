"""The judge of one request on hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from ...retrylab import Event, Judge, Violation

Started: TypeAlias = tuple[str, int]
"""An execution: name of its worker's incarnation, number of its dispatch."""


class LeaseJudge(Judge):
    """What must hold of one request on machines whose workers nobody can reap from here.

    A worker of a machine that sleeps runs no code: what counts is whether it would run again,
    once the machine has woken and its timers have fired."""

    def __init__(self) -> None:
        self.waits = False
        """Whether the caller waits."""
        self.homes: dict[str, str] = {}
        """Machine of each worker that lives."""
        self.asleep: set[str] = set()
        self.live: dict[Started, int] = {}
        """Life of the router that each execution that lives is of."""
        self.started: set[Started] = set()
        self.lost: set[str] = set()
        """Workers that were declared lost."""
        self.dead: set[int] = set()
        """Lives of routers of which nothing lives, as was said."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violations that an event shows."""
        suspects: Collection[Started] = ()
        match event.what:
            case ("asked",):
                self.waits = True
            case ("answered",):
                self.waits = False
            case ("spawned", incarnation):
                self.homes[incarnation] = event.actor
            case ("died", incarnation):
                del self.homes[incarnation]
                self.live = {run: of for run, of in self.live.items() if run[0] != incarnation}
            case ("started", run, life):
                if run in self.started:
                    yield event.breaks("G2", f"{_said(run)} begins a second time")
                self.started.add(run)
                self.live[run] = life
                suspects = [run]
            case ("over", run):
                del self.live[run]
            case ("slept",):
                self.asleep.add(event.actor)
            case ("woke",):
                self.asleep.discard(event.actor)
                suspects = [run for run in self.live if self.homes[run[0]] == event.actor]
            case ("lost", incarnation):
                self.lost.add(incarnation)
                suspects = [run for run in self.live if run[0] == incarnation]
            case ("dead", *lives):
                self.dead.update(lives)
                suspects = [run for run, life in self.live.items() if life in lives]
            case ("taken", run, life) if run in self.live:
                self.live[run] = life
        awake = [run for run in self.live if self.homes[run[0]] not in self.asleep]
        for run in suspects:
            if run not in awake:
                continue
            if run[0] in self.lost or self.live[run] in self.dead:
                yield event.breaks("G1", f"{_said(run)} is declared lost, and lives")
            if len(awake) > 1:
                yield event.breaks("G1", f"{' and '.join(map(_said, awake))} run one request")

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by what has not come to its end."""
        if self.waits:
            yield Violation("G9", at_s, "the request is never answered")


def _said(run: Started) -> str:
    return f"execution {run[1]} of {run[0]}"
