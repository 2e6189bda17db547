"""A run: faults strike for some time, then the world is calm and comes to rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from .events import Events
from .network import BaseNetwork

F = TypeVar("F")

MOST_EVENTS = 200_000
"""A run of more events is taken for one that never ends."""

NOBODY_S = 0.1
"""A fault that finds nobody to strike tries again after this."""

LATEST_S = 10.0
"""How long after its time the last fault may still strike."""

LOOK_S = 0.5
"""Between looks at whether everything is at rest."""


class BaseWorld(ABC, Generic[F]):
    """Everything that there is in a run.  Its faults are any values.

    A world of somebody's own makes :attr:`network` and its processes, then calls
    :meth:`schedule`, then :meth:`to_rest`.
    """

    network: BaseNetwork[Any, Any]

    def __init__(self, events: Events[Any]) -> None:
        self.events = events
        self.busy_s = 0.0
        self._to_strike = 0

    @abstractmethod
    def struck(self, fault: F) -> bool:
        """Let a fault strike now; False if nobody is there to be struck."""

    @abstractmethod
    def release(self) -> None:
        """Nothing strikes any more: what is stopped continues, what is half open ends."""

    @abstractmethod
    def left(self) -> list[str]:
        """The parts that have not come to rest."""

    def schedule(self, moments: Iterable[tuple[float, F]], busy_s: float) -> None:
        """When faults strike, and when it is calm: ``busy_s`` at the earliest."""
        self.busy_s = busy_s
        for at_s, fault in moments:
            self._to_strike += 1
            self.events.after(at_s, self._strike, fault)
        self.events.after(busy_s, self._calm_down)

    def _strike(self, fault: F) -> None:
        if self.network.calm:
            return
        if self.struck(fault):
            self._to_strike -= 1
        else:
            self.events.after(NOBODY_S, self._strike, fault)

    def _calm_down(self) -> None:
        if self._to_strike and self.events.now_s < self.busy_s + LATEST_S:
            self.events.after(NOBODY_S, self._calm_down)
            return
        self.events.note("world", "calm")
        self.network.calm = True
        self.release()

    def to_rest(self, calm_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Run until nothing is left to do; or for ``calm_s`` after the last fault; or
        until ``until`` says so, which is False."""
        until_s = self.busy_s + LATEST_S + calm_s
        look_at_s = self.busy_s + 1.0
        while self.events.count < MOST_EVENTS and self.events.now_s < until_s:
            if not self.events.step():
                break
            if until is not None and until():
                return False
            if self.events.now_s >= look_at_s:
                look_at_s += LOOK_S
                if not self.left():
                    break
        return True
