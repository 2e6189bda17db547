"""Workers by number: what can happen to one, and what it then does."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...core.terms import Status
from ...core.worker import WorkerCore
from ...core.worker_effects import CancelRun, Exit, Run, ToRouter, WorkerEffect
from ...core.worker_inputs import BeatDue, EnvironmentReady, OutcomeMade, RouterMessage
from .machines import Catalogue
from .mail import Mail


class WorkerInfo(NamedTuple):
    """The facts about a worker's core that the explorer needs."""

    beat: int
    acknowledged: bool
    begun: tuple[int, ...]
    """The numbers of the dispatches that it has seen."""


class Workers(Catalogue):
    """Worker processes."""

    def __init__(
        self, mail: Mail, limits: tuple[Any, ...], rerun: bool, announce_bytes: int
    ) -> None:
        super().__init__(mail, limits)
        self._ready = EnvironmentReady(1, "explored", rerun)
        self._announce_bytes = announce_bytes

    def new(self, incarnation: bytes) -> int:
        """The first local state of a worker."""
        if incarnation not in self._fresh:
            core = WorkerCore(
                incarnation, header_bytes=1 << 20, announce_bytes=self._announce_bytes
            )
            self._fresh[incarnation] = self.add(core)
        return self._fresh[incarnation]

    def look(self, machine: WorkerCore) -> WorkerInfo:
        """See :class:`WorkerInfo`."""
        return WorkerInfo(machine._beat, machine.acknowledged, tuple(machine.seen))

    def run(self, machine: WorkerCore, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Take an input of the router, the environment's code or the heartbeat."""
        effects: list[WorkerEffect] = []
        match given:
            case ("message", message):
                effects = machine.take(RouterMessage(self.mail.frames[message]))
            case ("ended", number, status, payload):
                effects = machine.take(OutcomeMade(number, Status(status), payload, None))
            case ("hello",):
                effects = machine.take(self._ready)
            case ("beat",):
                if not machine.acknowledged:
                    effects = machine.take(self._ready)
                effects += machine.take(BeatDue({}))
        return tuple(map(self._effect, effects))

    def _effect(self, effect: Any) -> Any:
        match effect:
            case ToRouter():
                return ("router", self.mail.number(effect.frames))
            case Run():
                return ("run", effect.number, tuple(effect.request), bytes(effect.body))
            case CancelRun():
                return ("cancel", effect.number)
            case Exit():
                return ("exit",)
        raise TypeError(effect)
