"""Which workers are spoilt: what runs there fails, and what runs on others does not.

Theory of operation
-------------------
One rollout can use up all descriptors of its worker, or break its CUDA context.  From then on
everything there fails at once, so that the worker is always the one with the least to do, and
takes nearly all requests that come.

A worker is *suspect* if its last ``spoilt_after`` executions failed, while a row half as long is
more than some other worker has.  It gets one execution at a time then, only what no other can
take, and the next one once others have ended as many since its row began, or after
:data:`RETRY_S`: else it would take all that waits while others are full.  That costs a healthy
worker little, and ends with its next result.

A suspect is *spoilt* if chance does not explain its row beside what the others report meanwhile.
Then it is drained and replaced.  Let ``k`` executions of a row have failed, and ``m`` of the
``n`` that others have ended since the row began.  If all workers fail alike, with whatever
probability, each choice of ``m + k`` out of ``n + k`` is as likely as any other, so that the
``k`` are among them with the probability (Fisher's exact test)

    P(k, n, m) = (m + 1) / (n + 1) * (m + 2) / (n + 2) * ... * (m + k) / (n + k)

The worker is spoilt once ``P(k, n, m) <= A / (k * (k + 1) * (n + 1) * (n + 2))`` for the present
``n`` and ``m`` and some ``k`` up to the length of its row, with ``A = 1 / ROLLOUTS``.  Over all
``k`` and ``n`` these bounds add up to ``A``: so however often it is asked, and to whomever the
router gives work in between, a row that chance began leads to an alarm with a probability of at
most ``A``.  (Outcomes may be thought of as drawn before, one pile for the worker and one for the
others; the order in which they are turned over does not change them.)  A row begins with each
failure after a result, and is taken for a new one after :data:`ROW` failures.  So of ``N`` rollouts
on workers that fail alike, on average at most

    N * A * (1 + 1 / ROW)

lead to a false alarm: one of a million.  A worker that always fails is found after 8 failures
beside 114 results, 12 beside 42 or 32 beside 15; beside others of which every second execution
fails, after 77 beside 64 or 55 beside 256.

The test takes failures for independent.  Requests that fail together, and that one worker alone
had room for, may cost that worker its process, once they are done.

Where all workers fail alike the environment is broken, or the model is: none is suspect.  A
failure counts if the environment, the engine or the infrastructure is at fault, not if the policy
or the caller is (:mod:`.endings`).  A result ends the row.

Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final, Protocol

from . import error_records
from .endings import Fault, ending_of
from .terms import Body, Status

ROW: Final = 256
"""Number of failures after which a row is taken for a new one: others may fail less than when
it began."""
RETRY_S: Final = 10.0
"""A suspect gets an execution so long after its last failure, whatever others end."""
ROLLOUTS: Final = 1_000_000
"""Number of rollouts in which one false alarm is accepted."""

_COUNTS: Final = frozenset({Fault.ENVIRONMENT, Fault.ENGINE, Fault.INFRASTRUCTURE})


@dataclasses.dataclass(slots=True, eq=False)
class Tally:
    """How many executions have ended on all workers, and how many of them failed."""

    ended: int = 0
    failed: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class Results:
    """The row of failures of a worker, and what there was when it began."""

    failures: int = 0
    """Number of executions that failed since the last result."""
    before: int = 0
    """Number of these in rows that were taken for over."""
    ended: int = 0
    """Number of executions of all workers that had ended when the row began."""
    failed: int = 0
    """Number of those that had failed."""
    last_s: float = 0.0
    """Moment at which the last of the row failed."""

    def add(self, failed: bool, everyone: Tally, now_s: float) -> None:
        """Another execution has ended."""
        if not failed:
            self.failures = 0
        else:
            if not self.failures or self.failures - self.before == ROW:
                self.before = self.failures
                self.ended, self.failed = everyone.ended, everyone.failed
            self.failures += 1
            self.last_s = now_s
            everyone.failed += 1
        everyone.ended += 1

    def may_be_chance(self, everyone: Tally) -> bool:
        """Whether chance explains the row beside what others have reported meanwhile."""
        row, peers = self._since(everyone)
        return may_be_chance(row, peers, everyone.failed - self.failed - row)

    def may_try(self, everyone: Tally, most: int, now_s: float) -> bool:
        """Whether a suspect may get another execution."""
        row, peers = self._since(everyone)
        return row < most + peers or now_s - self.last_s >= RETRY_S

    def _since(self, everyone: Tally) -> tuple[int, int]:
        """How many executions have ended since the row began: its own, and those of others."""
        row = self.failures - self.before
        return row, everyone.ended - self.ended - row


def may_be_chance(row: int, peers: int, failed: int) -> bool:
    """Whether chance explains ``row`` failures of one worker without a result, beside ``peers``
    executions of others of which ``failed`` failed."""
    odds = float(ROLLOUTS * (peers + 1) * (peers + 2))
    for k in range(1, row + 1):
        odds *= (failed + k) / (peers + k)
        if odds * k * (k + 1) <= 1.0:
            return False
    return True


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
