"""The built-in environment: a sum in several turns.  Needs nothing.

Theory of operation
-------------------
A task is a number and a chain of steps ("add 7", "multiply by 3"); the model is
asked for the running total after each step, in one conversation.  Only the
last answer counts.  Tasks follow from (seed, index) alone, so that a worker
rebuilds a task from its index and nobody ships a data set.

``log_path`` and ``duration_s`` are for demonstrations and tests: each rollout writes to a
:class:`~trio_envserve.envs.recorder.RunLog` there, and lasts ``duration_s`` seconds.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, final

import trio

from ..core.errors import ConfigError
from .interface import Rollout
from .recorder import RunLog

_SYSTEM = "You are careful with numbers. Answer each question with the number only."
_INTEGER = re.compile(r"-?\d{1,100}")


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Questions and their right answers, one for each turn."""

    questions: tuple[str, ...]
    answers: tuple[int, ...]


@final
class Arithmetic:
    """Sums in several turns; reward 1.0 if the last answer is right, else 0.0.

    ``seed`` and ``size`` choose the tasks (indexes 0 to size - 1), ``steps`` how
    many turns each has.  ``rerun`` is the consent declared to the server.

    An input is ``{"index": i}``, with ``"seed"`` for another seed, or the caller's own
    question: ``{"question": str, "answer": int}``.  ``"duration_s"`` overrides the argument of
    that name.  A result has ``reward``, ``completion`` (the messages after the system message),
    ``answer`` (the right one), ``usage`` and ``state`` with ``answers`` (the model's, None
    where it gave no number), ``turns``, ``question`` (the first).

    Raises :class:`ConfigError` for arguments out of range.
    """

    name = "arithmetic"

    def __init__(
        self,
        seed: int = 0,
        size: int = 1000,
        steps: int = 2,
        log_path: str | os.PathLike[str] | None = None,
        duration_s: float = 0.0,
        rerun: bool = False,
    ) -> None:
        if size < 1 or steps < 1 or duration_s < 0:
            raise ConfigError("arithmetic: size and steps must be >= 1, duration_s >= 0")
        self.seed = seed
        self.size = size
        self.steps = steps
        self.duration_s = duration_s
        self.rerun = rerun
        self._log = RunLog(log_path) if log_path is not None else None

    def inputs(self, n: int, seed: int) -> list[dict[str, int]]:
        """The first ``n`` inputs of ``seed``; past ``size`` they repeat."""
        return [{"index": i % self.size, "seed": seed} for i in range(n)]

    def task(self, index: int, seed: int | None = None) -> Task:
        """The task at ``index``.  Raises ``IndexError`` outside of the size."""
        if not 0 <= index < self.size:
            raise IndexError(
                f"index {index} is not within 0..{self.size - 1} (the argument size is {self.size})"
            )
        rng = random.Random(f"{self.seed if seed is None else seed}/{index}")
        total = rng.randint(2, 20)
        questions, answers = [], []
        for step in range(self.steps):
            verb, operand = rng.choice(("add", "subtract", "multiply by")), rng.randint(2, 12)
            start = f"Start with {total} and " if step == 0 else "Now "
            questions.append(f"{start}{verb} {operand}. What is the result?")
            total = {"add": total + operand, "subtract": total - operand}.get(verb, total * operand)
            answers.append(total)
        return Task(tuple(questions), tuple(answers))

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """Ask the model, score the answer, and return the conversation."""
        with nullcontext() if self._log is None else self._log.record(rollout):
            await trio.sleep(self._duration_s_of(rollout.input))
            return await self._converse(rollout, self._task_of(rollout.input))

    def _duration_s_of(self, asked: Any) -> float:
        given = asked.get("duration_s") if isinstance(asked, Mapping) else None
        if given is None:
            return self.duration_s
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < 1e9:
            raise ValueError(f"duration_s of an input must be a number >= 0, not {given!r}")
        return float(given)

    def _task_of(self, asked: Any) -> Task:
        if isinstance(asked, Mapping) and isinstance(asked.get("index"), int):
            return self.task(asked["index"], asked.get("seed"))
        if isinstance(asked, Mapping) and isinstance(asked.get("question"), str):
            answer = asked.get("answer")
            if isinstance(answer, int):
                return Task((asked["question"],), (answer,))
        raise ValueError(
            'an input of arithmetic is {"index": int} or {"question": str, "answer": int}'
        )

    async def _converse(self, rollout: Rollout, task: Task) -> dict[str, Any]:
        messages = [{"role": "system", "content": _SYSTEM}]
        given: list[int | None] = []
        for question, answer in zip(task.questions, task.answers, strict=True):
            messages.append({"role": "user", "content": question})
            answer_text = (await rollout.ask(messages, reference=str(answer))).text
            messages.append({"role": "assistant", "content": answer_text})
            numbers = _INTEGER.findall(answer_text)
            given.append(int(numbers[-1]) if numbers else None)
        return {
            "reward": 1.0 if given[-1] == task.answers[-1] else 0.0,
            "completion": messages[1:],
            "answer": task.answers[-1],
            "state": {"answers": given, "turns": len(given), "question": task.questions[0]},
        }
