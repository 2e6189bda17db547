"""The model of a router as the judge of explored systems without hosts, turn by turn."""

from __future__ import annotations

from typing import Any

from ...core.messages import encode
from ...retrylab import Bag, Event, Rule, Violation
from ...retrylab.system import SETTLED
from ...retrylab.values import Forms
from ..model import Boundary, Limits, ModelSession, ModelTicket, ModelWork
from .wire import decoded, frames_form

_LONG_S = 1e9
"""No clock passes: what time ends is chosen."""
LIMITS = Limits(0.0, _LONG_S, _LONG_S, _LONG_S, _LONG_S, 1 << 30, 1 << 30, 1 << 30)


class TurnModel(Boundary):
    """The model, fed by actors with events without a request: ``("turn", *parts)`` for each input
    of the router with its effects, ``("synced", records)`` and ``("fell", records)``."""

    def __init__(self, capacity: int, *, journaled: bool, prompt: bool) -> None:
        self._capacity = capacity
        self.serving: set[str] = set()
        """Workers that may be given something."""
        super().__init__(LIMITS, journaled=journaled, prompt=prompt)

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        if event.kind == "died":
            self._falls(event.at_s)
        if event.kind != "did" or event.what == SETTLED:
            return []
        match event.what:
            case ("turn", *parts):
                for kind, actor, *what in parts:
                    made = _MADE.get(kind, tuple)(what)
                    super().see(Event(event.at_s, kind, actor, "", made))
                return super().see(Event(event.at_s, "turned", "", "", ()))
            case ("synced", records):
                self.synced(records)
            case ("fell", *rows):
                self._left = tuple(rows)
                self._falls(event.at_s)
        return []

    def _falls(self, at_s: float) -> None:
        """The server has ended, and the next one has what is left of its journal."""
        self.serving = set()
        self._begins(at_s)

    def _stated(self, worker: str, incarnation: bytes) -> None:
        super()._stated(worker, incarnation)
        if worker not in self.leaving:
            self.serving.add(worker)

    def settle(self) -> None:
        """And nothing waits while a worker is free, nor is stopped while lost callers count: no
        limit of an execution passes here."""
        for run in self._stopped:
            work = run.work
            if work.lost and work.open and work.outcome is None and not self.closing:
                self.broken("G7", f"{work.label} is stopped, and lost callers count", work.label)
        super().settle()
        self.serving -= self.leaving
        running = [worker for worker, _ in self.runs]
        free = any(running.count(worker) < self._capacity for worker in self.serving)
        for work in self.open.values() if free and not self.closing else ():
            if not (work.live or work.outcome or work.name in self.ending):
                text = f"generation {work.number} waits, and a worker is free"
                self.broken("G9", text, work.label)

    def worker_lost(self, worker: str) -> None:
        """Its executions are over, and it serves no more."""
        super().worker_lost(worker)
        self.serving.discard(worker)


def _heard(what: list[Any]) -> tuple[Any, ...]:
    header, *body = what
    return "", decoded(header), body[0] if body else None


def _reported(what: list[Any]) -> tuple[Any, ...]:
    *before, last = what
    header, body = (before[-1], last) if len(what) > 1 else (last, None)
    return decoded(header), body


_MADE: dict[str, Any] = {
    "heard": _heard, "said": _heard, "reported": _reported,
    "commanded": lambda what: (what[0], decoded(what[1]), None),
    "wrote": lambda rows: (rows,),
}  # fmt: skip
"""What the model is given of each part."""


def _bags(*names: str) -> dict[str, Rule]:
    why = "in no order"
    return {name: Rule(why, lambda judge, each: Bag(tuple(each.items()))) for name in names}


_CONSTANT = Rule("the same in every state")
OF_MODEL: Forms = {
    TurnModel: {
        **dict.fromkeys(
            ("limits", "window", "journaled", "prompt", "_resting", "_capacity"), _CONSTANT
        ),
        **_bags("sessions", "open", "numbers", "ending", "runs", "confirms", "pending"),
    },
    ModelSession: {"message_bytes": _CONSTANT, "nonce": _CONSTANT, **_bags("tickets")},
    ModelWork: _bags("waiters", "watchers"),
    ModelTicket: {
        "told": Rule(
            "texts are for people",
            lambda ticket, told: told and frames_form((encode(told[0]), told[1])),
        ),
    },
}
