"""Which workers are spoilt: what runs there fails, and what runs on others does not.

Theory of operation
-------------------
One rollout can use up all descriptors of its worker, or break its CUDA context.  From then on
everything there fails at once, so that the worker is always the one with the least to do, and
takes nearly all requests that come.

A *row* of executions begins with a failure, and is over once as many of them had results as
failed.  A worker is *suspect* if ``spoilt_after`` more failed than had results, while some other
worker has less than half of that.  It gets one execution at a time then, only what no other can
take, and the next one once others have ended as many since its row began, or after
:data:`RETRY_S`: else it would take all that waits while others are full.  That costs a healthy
worker little, and ends with its next result.

A suspect is *spoilt* if chance does not explain its row beside what the others report meanwhile.
Then it is drained and replaced.  Let ``k`` of the ``r`` executions of a row have failed, and ``m``
of the ``n`` that others have ended since the row began.  If all workers fail alike, with whatever
probability, each choice of ``m + k`` out of ``n + r`` is as likely as any other, so that ``k`` or
more are among the ``r`` with the probability (Fisher's exact test)

    P(r, k, n, m) = sum of C(m + k, i) * C(n + r - m - k, r - i) / C(n + r, r) over i from k to r

The worker is spoilt once ``P(r, k, n, m) <= A / (r * (r + 1) * (n + 1) * (n + 2))``, with
``A = 1 / ROLLOUTS``.  Over all ``r`` and ``n`` these bounds add up to ``A``: so however often it is
asked, and to whomever the router gives work in between, a row that chance began leads to an alarm
with a probability of at most ``A``.  (Outcomes may be thought of as drawn before, one pile for the
worker and one for the others; the order in which they are turned over does not change them.)  Each
row begins with another failure; one of :data:`ROW` executions is taken for over at the next.
So of ``N`` rollouts on workers that fail alike at most ``N * A`` lead to a false alarm, on average:
one of a million.

A worker that always fails is found after 8 failures beside 114 results, 12 beside 42 or 32 beside
15; beside others of which every second execution fails, after 77 beside 64 or 55 beside 256. One
that fails seven times of eight is found after 24 executions beside 72 results, or after 48 beside
48 executions of which every tenth fails.

The test takes failures for independent.  Requests that fail together, and that one worker alone
had room for, may cost that worker its process, once they are done.

Where all workers fail alike the environment is broken, or the model is: none is suspect.  A
failure counts if the environment, the engine or the infrastructure is at fault, not if the policy
or the caller is (:mod:`.endings`).

Pure.
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
"""Number of executions after which a row is taken for over: others may fail less than when it
began."""
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
    """The row of a worker's executions that mostly fail, and what there was when it began."""

    excess: int = 0
    """Number of failures less that of results: 0 if no row is open, at most ``spoilt_after``."""
    row: Tally = dataclasses.field(default_factory=Tally)
    """The executions of the row."""
    before: Tally = dataclasses.field(default_factory=Tally)
    """Those of all workers when it began."""
    last_s: float = 0.0
    """Moment at which the last of the row failed."""

    def add(self, failed: bool, everyone: Tally, most: int, now_s: float) -> None:
        """Another execution has ended; ``most`` is the limit ``spoilt_after``."""
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
        """Whether chance explains the row beside what others have reported meanwhile."""
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
    """Whether chance explains so many ``failures`` in a ``row`` of executions of one worker,
    beside ``peers`` executions of others of which ``failed`` failed."""
    every, bad = row + peers, failures + failed
    if failures * every <= row * bad:
        return True  # no more than the others
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
    """Whether it mostly fails, and some other worker that may get work does not."""
    return worker.results.excess >= most and any(
        peer.accepting and 2 * peer.results.excess < most for peer in workers if peer is not worker
    )
