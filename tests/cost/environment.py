"""The environment of the cases: it does no work, and counts its starts.

Each worker counts the starts of each numbered request in a file that is mapped into its memory,
so that counting costs nothing and survives the worker.  After each load
:class:`tests.cost.run.Judge` adds up the files of all workers.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, final

import trio

from tests.cost.load import realistic
from trio_envserve.envs.interface import Rollout

CALLS_MOST = 1 << 26
"""Requests that one log can tell apart; the files have holes where nothing ran."""


@final
class Echo:
    """Answers at once with what the request asks for.

    The input has ``call`` (its number), ``payload`` (which is ignored), ``response`` (as
    :class:`tests.cost.load.Load` has it, or ``"pid"``), and may have ``sleep_s``.
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
