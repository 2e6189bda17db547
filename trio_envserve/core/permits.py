"""Permits: limits on what executions do at once, or in a second, over all workers and hosts.

Theory of operation
-------------------
An execution claims a permit of a name, with the limit of that name: how many may be held at once,
or how many are granted in a second.  Its worker passes the claim on (:class:`~.messages.Claim`),
the router grants it (:class:`~.messages.Granted`), and it ends when the worker says so
(:class:`~.messages.ClaimsEnded`), when the execution has ended by its report, or with the proof of
its worker's death: never because somebody was told to stop (G1).

The claims of a name are granted in the order of their arrival.  Where they state different limits,
the smallest of those that wait or are held counts, so no holder ever finds more company than it has
stated.  A claim of a rate has ended once it is granted.  The router grants such claims a little
ahead, each with the time that the worker is to wait: so rates need no finer clock than its ticks.

A name that nobody claims is forgotten at once, and one with a rate as soon as another grant would
be due.

Claims are numbered per incarnation.  A router that takes workers over from an earlier one is told
their claims again, and which of them they hold.  It grants nothing before the first beat of each of
these workers, which comes behind its claims, and before nothing else of the earlier router can
live.
"""

from __future__ import annotations

import dataclasses
import heapq
from bisect import bisect_right, insort
from collections import OrderedDict
from itertools import islice
from typing import NamedTuple, Protocol, final

from .errors import ProtocolError
from .limits import LEAST_PER_S, MOST_PER_S, MOST_PERMITS, PERMIT_NAME_BYTES
from .messages import Claim
from .ranges import Ranges

WIRE_NAME_BYTES = 2 * PERMIT_NAME_BYTES
"""Most bytes of the name in a claim: it says what kind of name it is."""

CLAIMS_MOST = 4096
"""Most claims that a worker has at once; further ones wait inside it."""

EXECUTION_CLAIMS = 256
"""Most claims that the code of an execution may have at once."""

RATES_MOST = 4096
"""Most names of rates that are remembered; those of further ones wait."""

AHEAD_S = 0.2
"""Time by which claims of a rate are granted ahead, in seconds: more than a tick."""

SHOWN = 32
"""Number of names in the statistics, those with most claims."""

SCANNED = 4096
"""Number of names among which these are sought, the oldest ones: a look at all could take long."""


class PermitHolder(Protocol):
    """An execution as permits see it."""

    claims: dict[int, PermitClaim] | None
    """Its claims, by their numbers; None before the first one."""


class Claimant(Protocol):
    """A worker as permits see it."""

    claims: dict[int, PermitClaim]
    """Its claims, by their numbers."""


@dataclasses.dataclass(slots=True, eq=False)
class PermitClaim:
    """The router's record of a claim."""

    number: int
    worker: Claimant
    holder: PermitHolder
    line: PermitLine
    most: float
    """The limit that it states: permits at once, or grants a second."""
    is_held: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class PermitLine:
    """The claims of one name."""

    name: str
    is_rate: bool
    waiting: OrderedDict[PermitClaim, None] = dataclasses.field(default_factory=OrderedDict)
    """Claims that are not granted, in the order of their arrival."""
    held: int = 0
    """Number of granted claims."""
    limits: list[float] = dataclasses.field(default_factory=list)
    """The limits of all its claims, the smallest first."""
    next_s: float | None = None
    """Of a rate: moment from which the next claim may be granted; None before the first one."""
    look_s: float | None = None
    """Moment at which it is looked at again; None: with its next claim."""


class PermitGrant(NamedTuple):
    """A claim that was granted."""

    claim: PermitClaim
    after_s: float | None
    """Time that its worker is to wait before its code goes on, in seconds."""


@final
class Permits:
    """All claims at a router.  Times are of the awake clock.

    ``ahead_s``: time by which claims of a rate are granted ahead."""

    def __init__(self, ahead_s: float = AHEAD_S) -> None:
        self._ahead_s = ahead_s
        self.lines: dict[tuple[str, bool], PermitLine] = {}
        self.due: dict[PermitLine, None] = {}
        """Names whose next claim may perhaps be granted."""
        self._paused: dict[PermitLine, None] = {}
        """Names whose next claim may be granted once grants go on, which the next tick looks at."""
        self.unstated: set[Claimant] = set()
        """Workers of an earlier epoch that may hold permits that are not known here."""
        self._later: list[tuple[float, int, PermitLine]] = []
        """A heap: when each name with a rate is looked at."""
        self._looks = 0
        self._rates = 0
        """Number of names with a rate that had a grant."""

    # -- what workers say -------------------------------------------------------

    def claim(self, worker: Claimant, holder: PermitHolder | None, claim: Claim) -> None:
        """Take in a claim, if there is an execution that has it.  ProtocolError if no worker of
        this project would make it."""
        if holder is None or claim.claim in worker.claims:
            return
        is_rate = claim.per_s is not None
        most = claim.per_s if claim.per_s is not None else claim.most
        low, high = (LEAST_PER_S, MOST_PER_S) if is_rate else (1, MOST_PERMITS)
        if not low <= most <= high or (is_rate and claim.most):
            raise ProtocolError(f"a claim of {most:g} permits")
        if not claim.name.isprintable() or not 0 < len(claim.name.encode()) <= WIRE_NAME_BYTES:
            raise ProtocolError("a claim whose name is empty, too long or not printable")
        if len(worker.claims) >= CLAIMS_MOST:
            raise ProtocolError(f"more than {CLAIMS_MOST} claims of one worker")
        line = self.lines.setdefault((claim.name, is_rate), PermitLine(claim.name, is_rate))
        made = PermitClaim(claim.claim, worker, holder, line, most)
        worker.claims[made.number] = made
        if holder.claims is None:
            holder.claims = {}
        holder.claims[made.number] = made
        insort(line.limits, most)
        line.waiting[made] = None
        self.due[line] = None
        if claim.held and worker in self.unstated:  # an earlier epoch has granted it
            self._hold(made)

    def ended(self, worker: Claimant, numbers: Ranges) -> None:
        """End the claims of a worker with these numbers."""
        if len(numbers) < len(worker.claims):
            found = [number for number in numbers if number in worker.claims]
        else:
            found = [number for number in worker.claims if number in numbers]
        for number in found:
            self._drop(worker.claims[number])

    def end(self, holder: PermitHolder) -> None:
        """End all claims of an execution that was reported or whose worker is proven dead."""
        if holder.claims:
            for claim in list(holder.claims.values()):
                self._drop(claim)

    def _drop(self, claim: PermitClaim) -> None:
        line = claim.line
        del claim.worker.claims[claim.number]
        assert claim.holder.claims is not None
        del claim.holder.claims[claim.number]
        del line.limits[bisect_right(line.limits, claim.most) - 1]
        if claim.is_held:
            line.held -= 1
        else:
            del line.waiting[claim]
        self.due[line] = None

    # -- grants -------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Find the names whose next claim may perhaps be granted by now."""
        while self._later and self._later[0][0] <= now_s:
            at_s, _, line = heapq.heappop(self._later)
            if line.look_s == at_s:
                line.look_s = None
                self.due[line] = None
        self.due |= self._paused
        self._paused.clear()

    def grant(self, now_s: float, *, paused: bool = False) -> list[PermitGrant]:
        """Grant the due claims that may be granted now, the oldest one of each name first.

        ``paused``: an earlier epoch may have granted permits of which nobody has told."""
        granted: list[PermitGrant] = []
        lines, self.due = self.due, {}
        for line in lines:
            if paused or self.unstated:
                self._paused[line] = None
            elif line.is_rate:
                granted += self._of_rate(line, now_s)
            else:
                granted += self._of_limit(line)
            self._forget(line, now_s)
        return granted

    def _of_limit(self, line: PermitLine) -> list[PermitGrant]:
        granted: list[PermitGrant] = []
        while line.waiting and line.held < line.limits[0]:
            claim = next(iter(line.waiting))
            self._hold(claim)
            granted.append(PermitGrant(claim, None))
        return granted

    def _hold(self, claim: PermitClaim) -> None:
        line = claim.line
        del line.waiting[claim]
        claim.is_held = True
        line.held += 1

    def _of_rate(self, line: PermitLine, now_s: float) -> list[PermitGrant]:
        granted: list[PermitGrant] = []
        while line.waiting:
            if line.next_s is None and self._rates >= RATES_MOST:
                self._look(line, now_s + 1.0)
                break
            at_s = now_s if line.next_s is None else max(line.next_s, now_s)
            if at_s > now_s + self._ahead_s:
                self._look(line, at_s - self._ahead_s)
                break
            self._rates += line.next_s is None
            line.next_s = at_s + 1 / line.limits[0]
            claim = next(iter(line.waiting))
            self._drop(claim)
            granted.append(PermitGrant(claim, at_s - now_s))
        return granted

    def _look(self, line: PermitLine, at_s: float) -> None:
        """Look at a name at this moment, if not before."""
        if line.look_s is None or at_s < line.look_s:
            line.look_s = at_s
            self._looks += 1
            heapq.heappush(self._later, (at_s, self._looks, line))

    def _forget(self, line: PermitLine, now_s: float) -> None:
        """Forget a name that has no claims, and of which a new claim would be granted at once."""
        if line.limits:
            return
        if line.next_s is not None and line.next_s > now_s:
            self._look(line, line.next_s)
            return
        self._rates -= line.next_s is not None
        line.look_s = None
        self._paused.pop(line, None)
        del self.lines[line.name, line.is_rate]

    # -- what is said of them -------------------------------------------------------

    def records(self) -> list[dict[str, str | float]]:
        """The statistics of the names with most claims.  A limit comes before a rate whose name is
        the same, which no worker of this project gives it."""
        lines = [
            line for line in islice(self.lines.values(), SCANNED)
            if line.limits and not (line.is_rate and (line.name, False) in self.lines)
        ]  # fmt: skip
        lines.sort(key=lambda line: (-len(line.limits), line.name))
        return [
            {
                "name": line.name, "limit": line.limits[0], "held": line.held,
                "waiting": len(line.waiting),
            }
            for line in lines[:SHOWN]
        ]  # fmt: skip


# -- the worker's side ------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class _OpenClaim:
    """A claim that has not ended."""

    claim: Claim
    is_held: bool = False


@final
class OpenClaims:
    """The claims of a worker that have not ended."""

    def __init__(self) -> None:
        self._claims: dict[int, _OpenClaim] = {}

    def make(self, claim: Claim) -> None:
        """Enter a new claim, with a number greater than all before."""
        self._claims[claim.claim] = _OpenClaim(claim)

    def end(self, number: int) -> bool:
        """End a claim; returns False if it had ended."""
        return self._claims.pop(number, None) is not None

    def end_of(self, execution: int) -> None:
        """End the claims of an execution that has ended: its report says so, too."""
        over = [n for n, each in self._claims.items() if each.claim.number == execution]
        for number in over:
            del self._claims[number]

    def granted(self, numbers: Ranges) -> list[int]:
        """Enter that claims were granted; returns those of which that is news."""
        granted = [n for n, each in self._claims.items() if n in numbers and not each.is_held]
        for number in granted:
            each = self._claims[number]
            if each.claim.per_s is None:
                each.is_held = True
            else:
                del self._claims[number]
        return granted

    def again(self) -> list[Claim]:
        """The claims as another router is told of them."""
        return [
            each.claim._replace(held=1) if each.is_held else each.claim
            for each in self._claims.values()
        ]
