"""Outcomes of rollouts as a trainer's adapter may meet them."""

from __future__ import annotations

import array
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from trio_envserve import Outcome, Rollout, RolloutFailed, WorkerLost
from trio_envserve.core.errors import CallError


def segment(first: int = 1, *, tokens: int = 3, **fields: Any) -> dict[str, Any]:
    """A segment as a client gets it: one tool token, all others sampled."""
    between = 1 if tokens > 1 else 0
    record = {
        "prompt_ids": array.array("i", [first, first + 1]),
        "response_ids": array.array("i", range(first + 2, first + 2 + tokens)),
        "response_mask": array.array("B", [1] * (tokens - between) + [0] * between),
        "logprobs": array.array("f", [-0.5] * (tokens - between) + [0.0] * between),
        "weight_versions": ["4"],
        "turns": [0, 1],
        "begins": "",
    }
    return record | fields


def answered(reward: Any = 1.0, *segments: dict[str, Any], **fields: Any) -> Outcome:
    return Outcome(
        value={"reward": reward, "segments": list(segments or [segment()]), "stop": "answer"}
        | fields,
        duration_s=0.5,
        executions=1,
    )


def forked(reward: float = 1.0) -> Outcome:
    """Three segments."""
    return answered(reward, segment(1), segment(10, tokens=2), segment(20, tokens=1))


def failed(error: CallError | None = None) -> Outcome:
    return Outcome(error=error or RolloutFailed("the tool broke"), duration_s=0.5, executions=1)


def lost() -> Outcome:
    return failed(WorkerLost("killed"))


def without_reward() -> Outcome:
    outcome = answered()
    del outcome.value["reward"]
    outcome.value["no_reward"] = "the game was not finished"
    return outcome


def without_segments(reward: float = 1.0) -> Outcome:
    return Outcome(value={"reward": reward, "stop": "answer"}, executions=1)


def without_logprobs(reward: float = 1.0) -> Outcome:
    return answered(reward, segment(logprobs=None))


def without_answer(reward: float = 0.0) -> Outcome:
    """The model ended at once, with no token."""
    return answered(reward, segment(tokens=0))


def with_nan(reward: float = 1.0) -> Outcome:
    return answered(reward, segment(logprobs=array.array("f", [math.nan, -0.5, 0.0])))


def without_prompt(reward: float = 1.0) -> Outcome:
    """Of an endpoint that says what it sampled, and not what it read."""
    return answered(reward, segment(prompt_ids=array.array("i")))


CASES: dict[str, Callable[[], Outcome]] = {
    "good": answered,
    "bad": lambda: answered(0.0),
    "forked": forked,
    "forked-bad": lambda: forked(0.0),
    "failed": failed,
    "lost": lost,
    "no-reward": without_reward,
    "no-segments": without_segments,
    "no-logprobs": without_logprobs,
    "no-answer": without_answer,
    "no-prompt": without_prompt,
    "nan": with_nan,
    "half": lambda: answered(1.0, segment(logprobs=None), segment(9)),
    "cut": lambda: answered(0.0, stop="length"),
    "cut-good": lambda: answered(1.0, stop="length"),
}

BATCH: dict[str, list[str]] = {
    "mixed": ["good", "forked-bad", "failed", "bad"],
    "forked": ["forked", "bad", "bad", "bad"],
    "flawed": ["no-logprobs", "no-answer", "nan", "good"],
    "unfinished": ["no-reward", "good", "cut", "no-segments"],
    "lost": ["failed", "lost", "failed", "lost"],
}
"""Groups, by their ids, of cases."""

MEANS = {"mixed": 1 / 3, "forked": 0.25, "flawed": 0.75, "unfinished": 2 / 3, "lost": 0.0}
"""The mean reward of each over the rollouts that count."""


class Client:
    """A client whose rollouts have these outcomes, in this order."""

    def __init__(self, outcomes: Iterable[Outcome], *, ends: bool = True) -> None:
        self._outcomes = outcomes
        self._ends = ends
        self.inputs: list[Any] = []
        self.options: dict[str, Any] = {}
        self.closed = threading.Event()

    @contextmanager
    def run_many(self, inputs: Any, **options: Any) -> Iterator[Iterator[tuple[int, Outcome]]]:
        self.options = options
        yield self._each(iter(inputs))

    def _each(self, inputs: Iterator[Any]) -> Iterator[tuple[int, Outcome]]:
        for index, outcome in enumerate(self._outcomes):
            try:
                self.inputs.append(next(inputs))
            except StopIteration:
                return
            yield index, outcome
        if not self._ends:
            self.closed.wait()

    def wait_ready(self, timeout_s: float) -> None:
        assert timeout_s > 0

    def close(self) -> None:
        self.closed.set()


class Cases:
    """An environment that returns what the case in its input says."""

    async def run_rollout(self, rollout: Rollout) -> Any:
        outcome = CASES[rollout.input["case"]]()
        if outcome.error is not None:
            raise RuntimeError("the tool broke")
        return {**outcome.value, "asked": [dict(rollout.input), dict(rollout.sampling_args)]}
