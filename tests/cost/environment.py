"""Environments of the cases: one that does no work and counts its starts, and kinds of code.

Each worker counts the starts of each numbered request in a file that is mapped into its memory,
so that counting costs nothing and survives the worker.  After each load
:class:`tests.cost.run.Judge` adds up the files of all workers.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any, final

import trio

from tests.cost.load import realistic
from tests.cost.over_http import PROMPT, REPLY
from trio_envserve.envs.interface import Rollout

CALLS_MOST = 1 << 26
"""Requests that one log can tell apart; the files have holes where nothing ran."""
WAIT_S, COMPUTE_S = 0.05, 0.02


@final
class Echo:
    """Answers at once with what the request asks for.

    The input has ``call`` (its number), ``payload`` (which is ignored), ``response`` (as
    :class:`tests.cost.load.Load` has it, or ``"pid"``), and may have ``sleep_s``, or ``turns``,
    the number of model calls.
    """

    def __init__(self, log: str) -> None:
        self._log = Path(log)
        self._starts: mmap.mmap | None = None
        self._answers: dict[Any, dict[str, Any]] = {}

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """No work at all."""
        asked = rollout.input
        starts = self._starts or self._open()
        starts[asked["call"]] += 1
        if "sleep_s" in asked:
            await trio.sleep(asked["sleep_s"])
        elif "turns" in asked:
            await _converse(rollout, asked["turns"])
        wanted = asked["response"]
        answer = self._answers.get(wanted)
        if answer is None:
            answer = self._answers[wanted] = _answer(wanted)
        return {"reward": 1.0, "call": asked["call"], **answer}

    def _open(self) -> mmap.mmap:
        path = self._log / f"starts-{os.getpid()}"
        with path.open("w+b") as file:
            file.truncate(CALLS_MOST)
            self._starts = mmap.mmap(file.fileno(), CALLS_MOST)
        return self._starts


async def _converse(rollout: Rollout, turns: int) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
    for _ in range(turns):
        answer = await rollout.ask(messages)
        assert "5" in answer.text
        messages += [answer.message, {"role": "user", "content": REPLY}]


def _answer(wanted: Any) -> dict[str, Any]:
    if wanted == "pid":
        return {"pid": os.getpid()}
    if isinstance(wanted, int):
        return {"payload": bytes(wanted)}
    completion, token_ids, logprobs = realistic()
    if wanted == "lists":
        return {"completion": completion, "token_ids": token_ids, "logprobs": logprobs}
    import numpy  # here: only this case needs it

    return {
        "completion": completion, "token_ids": numpy.array(token_ids, dtype="int32"),
        "logprobs": numpy.array(logprobs, dtype="float32"),
    }  # fmt: skip


# -- kinds of code --------------------------------------------------------------------


class Coroutine:
    """Waits in a coroutine, as for a model."""

    async def run_rollout(self, rollout: Any) -> dict[str, float]:
        await trio.sleep(WAIT_S)
        return {"reward": 1.0}


class Blocking:
    """Waits in a thread."""

    def run_rollout(self, rollout: Any) -> dict[str, float]:
        time.sleep(WAIT_S)
        return {"reward": 1.0}


class Tools:
    """An object with plain methods, which has a thread; one of them waits."""

    def reset(self, **fields: Any) -> str:
        return "?"

    def oracle(self) -> list[str]:
        return ["done"]

    def get_reward(self) -> float:
        time.sleep(WAIT_S)
        return 1.0


class Mixed:
    """Waits in a thread, and computes for a tenth of its time."""

    def run_rollout(self, rollout: Any) -> dict[str, float]:
        time.sleep(0.9 * WAIT_S)
        _compute(0.1 * WAIT_S)
        return {"reward": 1.0}


class Computing:
    """Computes in a thread."""

    def run_rollout(self, rollout: Any) -> dict[str, float]:
        _compute(COMPUTE_S)
        return {"reward": 1.0}


def _compute(seconds: float) -> None:
    """Use so much of the processor."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass
