"""Detection of spoilt workers: their executions fail where those of other workers do not.

Theory of operation
-------------------
One rollout can use up all descriptors of its worker, or break its CUDA context.  From then on
every execution there fails at once.  So the worker is always the least loaded one, and gets nearly
all requests.

A *row* of a worker's executions begins with a failure, and is over once as many of them had results
as failed.  A worker is *suspect* if its failures exceed its results by ``spoilt_after``, while some
other worker's excess is less than half of that.  A suspect gets one execution at a time, and only
one that no other worker can take.  It gets the next one once other workers have ended as many
executions since its row began, or after :data:`RETRY_S`: else it would take all waiting requests
while the others are full.  That costs a healthy worker little, and ends with its next result.

A suspect is *spoilt* if chance does not explain its row beside what the others report meanwhile.
Then it is drained and replaced.  Let ``k`` of the ``r`` executions of a row have failed, and ``m``
of the ``n`` that others have ended since the row began.  If all workers fail alike, with whatever
probability, each choice of ``m + k`` out of ``n + r`` is as likely as any other.  So ``k`` or more
failures are among the ``r`` with the probability (Fisher's exact test)

    P(r, k, n, m) = sum of C(m + k, i) * C(n + r - m - k, r - i) / C(n + r, r) over i from k to r

The worker is spoilt once ``P(r, k, n, m) <= A / (r * (r + 1) * (n + 1) * (n + 2))``, with
``A = 1 / ROLLOUTS``.  Over all ``r`` and ``n`` these bounds add up to ``A``.  So a row that chance
began leads to an alarm with a probability of at most ``A``, however often the test is made and
whichever workers get work in between.  (All outcomes may be thought of as drawn beforehand, one
pile for the worker and one for the others; the order in which they are turned over does not change
them.)  Each row begins with another failure; a row of :data:`ROW` executions is taken for over at
the next failure.  So on workers that fail alike, ``N`` rollouts lead to ``N * A`` false alarms at
most, on average: one in a million.

A worker that always fails is found after 8 failures beside 114 results, 12 beside 42 or 32 beside
15; beside others of which every second execution fails, after 77 beside 64 or 55 beside 256. One
that fails seven times of eight is found after 24 executions beside 72 results, or after 48 beside
48 executions of which every tenth fails.

The test assumes that failures are independent.  Requests that fail together, and ran on one worker
only, may cost a healthy worker its process, once its executions have ended.

If all workers fail alike, the environment or the model is broken, and no worker is suspect.  A
failure counts if the environment, the engine or the infrastructure is at fault, not if the policy
or the caller is (:mod:`.endings`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from math import exp, lgamma
from typing import Final, Protocol

from . import error_records
from .endings import Fault, ending_of
from .terms import Body, Status

ROW: Final = 256
"""Number of executions after which a row ends at the next failure: by then other workers may fail
more rarely than when it began."""
RETRY_S: Final = 10.0
"""Pause after the last failure of a suspect, in seconds, after which it gets another execution even
if other workers have ended none."""
ROLLOUTS: Final = 1_000_000
"""Number of rollouts in which one false alarm is accepted."""

_COUNTS: Final = frozenset({Fault.ENVIRONMENT, Fault.ENGINE, Fault.INFRASTRUCTURE})


@dataclasses.dataclass(slots=True, eq=False)
class Tally:
    """Counts of executions: those that have ended, and those of them that failed."""

    ended: int = 0
    failed: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class Results:
    """The current row of a worker, and the counts of all workers at its beginning."""

    excess: int = 0
    """Failures minus results of the row: 0 if no row is open, at most ``spoilt_after``."""
    row: Tally = dataclasses.field(default_factory=Tally)
    """Executions of the row."""
    before: Tally = dataclasses.field(default_factory=Tally)
    """Executions of all workers when the row began."""
    last_s: float = 0.0
    """Moment of the last failure of the row."""

    def add(self, failed: bool, everyone: Tally, most: int, now_s: float) -> None:
        """Count an execution that has ended; ``most`` is the limit ``spoilt_after``."""
        if failed:
            if not self.excess or self.row.ended >= ROW:
                self.row, self.before = Tally(), dataclasses.replace(everyone)
            self.excess = min(self.excess + 1, most)
            self.last_s = now_s
        elif self.excess:
            self.excess -= 1
        for tally in (self.row, everyone):
            tally.ended += 1
            tally.failed += failed

    def may_be_chance(self, everyone: Tally) -> bool:
        """Whether chance explains the row, compared with what other workers reported meanwhile."""
        row = self.row
        failed = everyone.failed - self.before.failed - row.failed
        return may_be_chance(row.ended, row.failed, self._peers(everyone), failed)

    def may_try(self, everyone: Tally, most: int, now_s: float) -> bool:
        """Whether a suspect may get another execution."""
        return self.row.ended < most + self._peers(everyone) or now_s - self.last_s >= RETRY_S

    def _peers(self, everyone: Tally) -> int:
        """Number of executions of other workers that have ended since the row began."""
        return everyone.ended - self.before.ended - self.row.ended


def may_be_chance(row: int, failures: int, peers: int, failed: int) -> bool:
    """Whether chance explains ``failures`` in a ``row`` of executions of one worker, beside
    ``peers`` executions of other workers of which ``failed`` failed."""
    every, bad = row + peers, failures + failed
    if failures * every <= row * bad:
        return True  # it fails no more often than the others
    term = exp(
        _log_choices(bad, failures)
        + _log_choices(every - bad, row - failures)
        - _log_choices(every, row)
    )
    tail = 0.0
    for i in range(failures, min(row, bad) + 1):
        tail += term
        term *= (bad - i) * (row - i) / ((i + 1) * (every - bad - row + i + 1))
    return tail * ROLLOUTS * row * (row + 1) * (peers + 1) * (peers + 2) > 1.0


def _log_choices(n: int, k: int) -> float:
    """The logarithm of the number of ways to choose ``k`` of ``n``."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


class Judged(Protocol):
    """The part of a worker by which suspicion is decided."""

    results: Results

    @property
    def accepting(self) -> bool:
        """Whether it may get new work."""


def has_failed(status: int, payload: Body) -> bool | None:
    """Whether an outcome without a result counts as a failure of its worker; None if it is no
    evidence for or against the worker."""
    if status == Status.ERROR:
        info = error_records.decode(payload)
        if ending_of(info.code, info.verdict).fault in _COUNTS:
            return True
    return None


def is_suspect(worker: Judged, workers: Collection[Judged], most: int) -> bool:
    """Whether a worker mostly fails, and some other worker that may get work does not."""
    return worker.results.excess >= most and any(
        peer.accepting and 2 * peer.results.excess < most for peer in workers if peer is not worker
    )
