"""The sum of a rollout's model calls."""

from __future__ import annotations

import threading
from typing import final

from ..core.durations import Durations
from .interface import Completion, ModelError


@final
class ModelUsage:
    """Counts model calls that have ended, other than by cancellation.

    ``total`` counts them, too; ``took`` counts how long they took.  May be used in any thread.
    """

    def __init__(self, total: ModelUsage | None = None, took: Durations | None = None) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._took = took
        self.calls = 0
        """Calls that were answered."""
        self.failed = 0
        """Calls that ended with :class:`ModelError`."""
        self.retries = 0
        """Number of repeated sendings of calls to the endpoint.  This repeats no rollout, and is
        not among its executions and attempts."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        """Number of completion tokens, as far as the models report it."""

    def answered(self, completion: Completion, took_s: float = 0.0) -> Completion:
        """Count an answer, and return it."""
        if self._total is not None:
            self._total.answered(completion, took_s)
        with self._lock:
            if self._took is not None:
                self._took.add(took_s)
            self.calls += 1
            self.retries += completion.requests - 1
            self.prompt_tokens += completion.prompt_tokens or 0
            self.completion_tokens += completion.completion_tokens or 0
        return completion

    def refused(self, error: ModelError, took_s: float = 0.0) -> None:
        """Count a call that was not answered."""
        if self._total is not None:
            self._total.refused(error, took_s)
        with self._lock:
            if self._took is not None:
                self._took.add(took_s)
            self.failed += 1
            self.retries += max(error.requests - 1, 0)

    def to_record(self) -> dict[str, int]:
        """The counts by name, for a result's field ``usage``."""
        with self._lock:
            return {
                "calls": self.calls,
                "failed": self.failed,
                "retries": self.retries,
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
            }
