"""Carries out the stages of closing, which :mod:`.closing` decides."""

from __future__ import annotations

from typing import Any

from . import outcomes
from .closing import Closing, ClosingStage, Held
from .dispatcher import Dispatcher
from .router_effects import Closed, Flush


class Stages:
    """The stages of a router, and the things that each waits for."""

    def __init__(self, closing: Closing, dispatcher: Dispatcher, client_gone_s: float) -> None:
        self._closing = closing
        self._dispatcher = dispatcher
        self._client_gone_s = client_gone_s

    def go_on(self, now_s: float) -> None:
        """Enter the stages that are due, once nobody waits for an answer of the last."""
        while self._closing.begun and not self._dispatcher.answers_due:
            stage = self._closing.following(now_s, self.held())
            if stage is None:
                return
            self.enter(stage, now_s)

    def enter(self, stage: ClosingStage, now_s: float) -> None:
        """Do what a stage of closing begins with."""
        self._closing.enter(stage, now_s)
        dispatcher, awake_s = self._dispatcher, self._dispatcher.clock.awake_s
        deadlines = dispatcher.deadlines
        match stage:
            case ClosingStage.DRAINING:
                dispatcher.workforce.retire_all(awake_s)
                deadlines.answer_all(lambda entry: entry.execution is None, outcomes.stopping)
            case ClosingStage.CANCELLING:
                deadlines.answer_all(lambda entry: entry.execution is not None, outcomes.stopped)
            case ClosingStage.KILLING:
                dispatcher.workforce.kill_all(awake_s)
            case ClosingStage.FLUSHING:
                dispatcher.out.append(Flush())
            case ClosingStage.CLOSED:
                dispatcher.out.append(Closed(tuple(dispatcher.pool.lives)))
            case _:
                pass  # workers without work are told to exit by the tick
        dispatcher.take_from_workforce()

    def held(self) -> Held:
        """The things that closing waits for."""
        dispatcher, awake_s = self._dispatcher, self._dispatcher.clock.awake_s
        kept = (
            session.kept_count for session in dispatcher.cache.sessions.values()
            if awake_s - session.heard_s < self._client_gone_s
        )  # fmt: skip
        unsafe = dispatcher.keyed.answers.waiting
        return Held(
            dispatcher.workforce.live_count(), sum(kept) + unsafe, len(dispatcher.pool.lives),
            unsafe,
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """The stage of closing, what it waits for, and the seconds until the next."""
        left_s = self._closing.left_s(self._dispatcher.clock.last_s)
        running, kept, workers, _ = self.held()
        return {
            "stage": self._closing.stage.value, "running": running, "outcomes": kept,
            "workers": workers, "left_s": round(left_s, 1),
        }  # fmt: skip
