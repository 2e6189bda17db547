"""A policy without a network: what comes next depends on the two tokens before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from vocabulary import WORDS

SIZE = len(WORDS)


class TablePolicy:
    """The log-odds of each word after each pair of words."""

    def __init__(self, seed: int, rate: float = 80.0) -> None:
        self.version = 0
        self._rate = rate
        self._odds = np.random.default_rng(seed).normal(0.0, 0.01, (SIZE * SIZE, SIZE))

    def log_probabilities(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Of each word, that it comes next."""
        return _log_softmax(self._odds[[row[-2] * SIZE + row[-1] for row in rows]])

    def learn(self, segments: Sequence[dict], advantages: Sequence[float]) -> float:
        """One step up the gradient.  The greatest difference between the log-probabilities
        that came with the segments and those of the weights that they came from."""
        change = np.zeros_like(self._odds)
        difference = 0.0
        for segment, advantage in zip(segments, advantages, strict=True):
            ids = [*segment["prompt_ids"].tolist(), *segment["response_ids"].tolist()]
            begin = len(segment["prompt_ids"])
            for place in np.flatnonzero(segment["response_mask"]):
                at = begin + place
                state = ids[at - 2] * SIZE + ids[at - 1]
                log_probabilities = _log_softmax(self._odds[state])
                told = segment["logprobs"][place]
                difference = max(difference, abs(told - log_probabilities[ids[at]]))
                change[state] -= advantage * np.exp(log_probabilities)
                change[state, ids[at]] += advantage
        self._odds += self._rate * change / len(segments)
        self.version += 1
        return float(difference)


def _log_softmax(odds: np.ndarray) -> np.ndarray:
    odds = odds - odds.max(axis=-1, keepdims=True)
    return odds - np.log(np.exp(odds).sum(axis=-1, keepdims=True))
