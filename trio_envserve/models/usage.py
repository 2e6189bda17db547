"""The sum of a rollout's model calls."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, final

from ..core.durations import Durations
from .interface import Completion, ModelError
from .waits import EndpointWaits


@final
class ModelUsage:
    """Counts model calls that have ended, other than by cancellation, and the time in which all
    calls waited for their endpoint.

    ``total`` counts them, too; ``took`` counts how long they took.  May be used in any thread.
    """

    def __init__(
        self, total: ModelUsage | None = None, took: Durations | None = None,
        waits: EndpointWaits | None = None,
    ) -> None:  # fmt: skip
        self.waits = EndpointWaits() if waits is None else waits
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
        self._roles: dict[str, ModelUsage] = {}

    def of_role(self, role: str) -> ModelUsage:
        """The counts of the model in a role, which are not among these; the total has both.

        Args:
            role: What the model is for, such as ``judge``.
        """
        with self._lock:
            return self._roles.setdefault(role, ModelUsage(self._total))

    @property
    def is_used(self) -> bool:
        """Whether a call has ended, in whatever role."""
        return bool(self.calls or self.failed or self._roles_used())

    def _roles_used(self) -> dict[str, ModelUsage]:
        with self._lock:
            roles = dict(self._roles)
        return {role: usage for role, usage in roles.items() if usage.is_used}

    def answered(self, completion: Completion, took_s: float = 0.0) -> Completion:
        """Count an answer, and return it."""
        self._add(
            took_s, calls=1, retries=completion.requests - 1,
            prompt_tokens=completion.prompt_tokens or 0,
            completion_tokens=completion.completion_tokens or 0,
        )  # fmt: skip
        return completion

    def refused(self, error: ModelError, took_s: float = 0.0) -> None:
        """Count a call that was not answered."""
        self._add(took_s, failed=1, retries=max(error.requests - 1, 0))

    def _add(self, took_s: float, **counts: int) -> None:
        if self._total is not None:
            self._total._add(took_s, **counts)
        with self._lock:
            if self._took is not None:
                self._took.add(took_s)
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def _resume(self, record: Mapping[str, Any]) -> None:
        """Go on from the counts of an earlier execution, which has counted them in its total."""
        counts = dict(record)
        roles, self.waits.over_s = counts.pop("roles", {}), counts.pop("waited_s", 0.0)
        for role, of_role in roles.items():
            self.of_role(role)._resume(of_role)
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, count)

    @property
    def waited_s(self) -> float:
        """Time in which calls waited for a permit of the endpoint, or for their next try, failed
        tries included, in seconds.  Waits at the same time count once."""
        return self.waits.over_s

    def to_record(self) -> dict[str, Any]:
        """The counts by name, for a result's field ``usage``; ``roles`` has those of further
        models, by role.  The waits are those for all of them."""
        roles = {role: usage.to_record() for role, usage in self._roles_used().items()}
        for record in roles.values():
            del record["waited_s"]
        with self._lock:
            return {
                "calls": self.calls,
                "failed": self.failed,
                "retries": self.retries,
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "waited_s": round(self.waited_s, 3),
                **({"roles": roles} if roles else {}),
            }
