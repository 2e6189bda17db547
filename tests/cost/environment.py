"""The environment of the benchmark: no work, and a log in memory.

Each worker counts the starts of each numbered request in a file that is mapped
into its memory, so that counting costs nothing and survives the worker.  After
each load :mod:`.judge` adds up the files of all workers: nothing may have run
twice, nothing may be missing.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from pathlib import Path
from typing import Any, final

import trio

from trio_envserve.envs.interface import Rollout

CALLS_MOST = 1 << 26
"""Requests that one log can tell apart; the files have holes where nothing ran."""


@final
class BenchEnvironment:
    """Answers at once with what the request asks for.

    The input has ``call`` (its number), ``payload`` (which is ignored),
    ``response`` (see :data:`.cases.Response`), or instead of that ``sleep_s`` or
    ``pid`` for the special cases.
    """

    def __init__(self, log: str, profile: str = "") -> None:
        """``profile``: a file for the profile of its worker."""
        self._log = Path(log)
        self._profile = Path(profile) if profile else None
        self._profiler: Any = None
        self._starts: mmap.mmap | None = None
        self._answers: dict[Any, dict[str, Any]] = {}

    async def setup(self) -> None:
        """From here on the worker's loop is profiled, if that is wanted."""
        if self._profile is not None:
            import cProfile  # here: workers are to start quickly

            self._profiler = cProfile.Profile(time.thread_time, builtins=False)
            self._profiler.enable()

    async def teardown(self) -> None:
        """Write the profile down."""
        if self._profiler is not None:
            self._profiler.disable()
            self._profiler.dump_stats(self._profile)

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
    return realistic(arrays=wanted == "arrays")


def realistic(*, arrays: bool) -> dict[str, Any]:
    """A rollout as they are: 20 messages, 4,000 token ids, 4,000 logprobs."""
    dice = random.Random(0)
    words = ["so", "the", "answer", "is", "reasoning", "because", "42", "then"]
    rollout: dict[str, Any] = {
        "completion": [
            {
                "role": ("assistant", "user")[turn % 2],
                "content": " ".join(dice.choice(words) for _ in range(40)),
            }
            for turn in range(20)
        ],
        "token_ids": [dice.randrange(150_000) for _ in range(4000)],
        "logprobs": [-dice.expovariate(2.0) for _ in range(4000)],
    }
    if arrays:
        import numpy  # here: the benchmark without this case needs it not

        rollout["token_ids"] = numpy.array(rollout["token_ids"], dtype="int32")
        rollout["logprobs"] = numpy.array(rollout["logprobs"], dtype="float32")
    return rollout
