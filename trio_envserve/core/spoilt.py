"""Which workers are spoilt: what runs there fails, and what runs on others does not.

Theory of operation
-------------------
One rollout can use up all descriptors of its worker, or break its CUDA context.  From then on
everything there fails at once, so that the worker is always the one with the least to do, and
takes nearly all requests that come.

A worker is *suspect* if its last ``spoilt_after`` executions failed, each of another request,
while a row half as long is more than some other worker has.  It gets one execution at
a time then, and only what no other can take.  It is *spoilt* if others have had results, and of
what they reported last at most one in :data:`PEERS_FAIL_ONE_IN` failed.  Then it is drained and
replaced.

Where all workers fail alike the environment is broken, or the model is: none is suspect.  A
failure counts if the environment, the engine or the infrastructure is at fault, not if the policy
or the caller is (:mod:`.endings`).  A result ends the row.

Pure.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

from . import error_records
from .endings import Fault, ending_of
from .terms import Body, Status

RECENT: Final = 16
"""Number of last outcomes by which a worker is compared with others."""

PEERS_FAIL_ONE_IN: Final = 4

_COUNTS: Final = frozenset({Fault.ENVIRONMENT, Fault.ENGINE, Fault.INFRASTRUCTURE})


@dataclasses.dataclass(slots=True, eq=False)
class Results:
    """What the last executions of a worker came to."""

    failures: int = 0
    """Number of those that failed since the last result."""
    recent: deque[bool] = dataclasses.field(default_factory=lambda: deque(maxlen=RECENT))
    """Whether each of the last ones failed."""

    def add(self, failed: bool) -> None:
        """Another execution has ended."""
        self.recent.append(failed)
        self.failures = self.failures + 1 if failed else 0


class Judged(Protocol):
    """The part of a worker by which it is judged."""

    results: Results

    @property
    def accepting(self) -> bool:
        """Whether it may get new work."""


def has_failed(status: int, payload: Body) -> bool | None:
    """Whether an outcome without a result speaks against its worker; None if it says nothing
    of it."""
    if status == Status.ERROR:
        info = error_records.decode(payload)
        if ending_of(info.code, info.verdict).fault in _COUNTS:
            return True
    return None


def is_suspect(worker: Judged, workers: Collection[Judged], most: int) -> bool:
    """Whether it fails, and some other worker that may get work does not."""
    return worker.results.failures >= most and any(
        peer.accepting and 2 * peer.results.failures < most
        for peer in workers
        if peer is not worker
    )


def is_spoilt(worker: Judged, workers: Collection[Judged], most: int) -> bool:
    """Whether it is suspect, and what others reported last is good."""
    if not is_suspect(worker, workers, most):
        return False
    others = [failed for peer in workers if peer is not worker for failed in peer.results.recent]
    return bool(others) and sum(others) * PEERS_FAIL_ONE_IN <= len(others)
