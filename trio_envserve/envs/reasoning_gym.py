"""Environments of the reasoning-gym library: ``reasoning-gym:NAME``.

Theory of operation
-------------------
The library makes tasks procedurally and scores answers itself; it downloads
nothing.  An input is an index and a seed.  The worker makes the entry from them,
so only two numbers travel.  (For a few data sets the entry also depends on
``size``, which is an argument of the environment.)

The library is large and slow to import, so it is imported only when such an
environment is loaded.  Its code computes without awaiting and does not claim to be
thread-safe, so it runs in a thread, one call at a time.

``rerun`` is True by default: a rollout changes nothing but itself, so a second run
after the worker's proven death costs inference and harms nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, final

import trio

from ..core.errors import ConfigError
from ..models.tokens import segments
from ..near import did_you_mean
from .conversation import tagged
from .interface import Rollout
from .specs import library, made

_T = TypeVar("_T")

_SYSTEM = (
    "Think about the question as long as you need. "
    "Then give the final answer, and nothing else, between <answer> and </answer>."
)

KEPT_DATASETS = 16
"""Data sets in the cache, by seed; bounded because requests choose the seed."""


@final
class ReasoningGym:
    """One data set of reasoning-gym.

    ``config`` goes to the data set's own configuration.  An input is ``{"index":
    i}`` with 0 <= i < size, and ``"seed"`` for another seed.  A result
    has ``reward`` (the library's score), ``completion``, ``answer`` (the
    library's own, or None), ``usage``, ``segments`` if the endpoint gives token ids, and
    ``state`` with ``question``, ``answer``, ``given`` (the scored answer) and ``metadata``.
    The metadata of some data sets cannot be encoded; it is sent only if it is asked for.

    Raises :class:`ConfigError` for an unknown name, wrong configuration, or if
    the library is not installed.
    """

    def __init__(
        self, dataset: str, seed: int = 0, size: int = 500, rerun: bool = True, **config: Any
    ) -> None:
        self.name = f"reasoning-gym:{dataset}"
        self.rerun = rerun
        self.seed = seed
        self.size = size
        self._dataset = dataset
        self._config = config
        self._library = library("reasoning_gym", "reasoning_gym.factory")
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._check_config()
        self._kept[seed] = made(self.name, self._create, seed)

    def inputs(self, n: int, seed: int) -> list[dict[str, int]]:
        """The first ``n`` inputs of ``seed``; past ``size`` they repeat."""
        return [{"index": i % self.size, "seed": seed} for i in range(n)]

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """Make the entry, ask the model once, and let the library score the answer."""
        dataset, entry = await self._off_loop(lambda: self._entry(rollout.input))
        reference = entry["answer"] if isinstance(entry["answer"], str) else None
        messages = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": str(entry["question"])},
        ]
        answer = await rollout.ask(messages, reference=reference)
        text = answer.text
        given = _final_answer(text)
        score = await self._off_loop(lambda: float(dataset.score_answer(given, entry)))
        return {
            "reward": score,
            "completion": [messages[1], {"role": "assistant", "content": text}],
            "answer": reference,
            "usage": rollout.usage.to_record(),
            **segments([answer], score),
            "state": {
                "question": entry["question"],
                "answer": reference,
                "given": given,
                "metadata": entry.get("metadata"),
            },
        }

    async def _off_loop(self, work: Callable[[], _T]) -> _T:
        # Not abandoned on cancel: these calls are short, and an execution has
        # ended only when its code has.
        return await trio.to_thread.run_sync(work, limiter=self._one_at_a_time)

    def _entry(self, asked: Any) -> tuple[Any, dict[str, Any]]:
        index = asked.get("index") if isinstance(asked, Mapping) else None
        seed = asked.get("seed", self.seed) if isinstance(asked, Mapping) else None
        if not isinstance(index, int) or not isinstance(seed, int):
            raise ValueError('an input of reasoning-gym is {"index": int, "seed": int}')
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is not within 0..{self.size - 1}")
        dataset = self._kept.pop(seed, None) or self._create(seed)
        self._kept[seed] = dataset
        while len(self._kept) > KEPT_DATASETS:
            self._kept.popitem(last=False)
        return dataset, dataset[index]

    def _create(self, seed: int) -> Any:
        return self._library.create_dataset(
            self._dataset, seed=seed, size=self.size, **self._config
        )

    def _check_config(self) -> None:
        datasets: Mapping[str, tuple[type, type]] = self._library.factory.DATASETS
        if self._dataset not in datasets:
            hint = did_you_mean(self._dataset, datasets)
            raise ConfigError(f"reasoning-gym has no data set {self._dataset!r}{hint}")
        fields = getattr(datasets[self._dataset][1], "__dataclass_fields__", {})
        for key in self._config:
            if key not in fields:
                hint = did_you_mean(key, fields, 1)
                raise ConfigError(
                    f"{self.name} has no argument {key!r}{hint} (it takes: {', '.join(fields)})"
                )


def _final_answer(text: str) -> str:
    """The last tagged answer, or all that was said if there is none."""
    given = tagged(text, "answer")
    return given[-1].strip() if given else text
