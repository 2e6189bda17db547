"""The permits of a worker's executions, from the claims of their code to the core.

Theory of operation
-------------------
A claim waits in a task of its execution, on the trio loop, until the core says that it was granted
(:class:`~trio_envserve.core.worker.GoOn`).  It ends when its block does, when its task is
cancelled, and at the latest with the code of its execution: whatever that has left is given back
then.

A worker has at most :data:`~trio_envserve.core.permits.CLAIMS_MOST` claims; further ones wait
here, in order.  But an execution whose code holds permits waits for none of these places: others
that wait for its permits may have them all.  Permits of requests to endpoints come back by
themselves.

The router grants the claims of a rate apart, but a loop that was held up hears of many at once.  So
the blocks of a name begin apart here, too: each waits until the code of the one before has begun.

Without a router (where an environment is only validated) the router's own machine decides in this
process: then limits hold over its rollouts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import final

import trio

from ..core.messages import Claim
from ..core.permits import CLAIMS_MOST, EXECUTION_CLAIMS, PermitClaim, Permits
from ..core.ranges import Ranges
from ..core.worker import ClaimMade, ClaimOver
from ..envs.permits import Claimed, GiveBack, claimed_endpoint
from ..models.waits import WaitNote, Waits

LATE_S = 0.01
"""Time by which a block of a rate may begin late without putting off the next one, in seconds: a
turn of the loop takes some of it, and a high rate is to be reached all the same."""


@final
class _Waiter(WaitNote):
    """A claim of which the code waits."""

    def __init__(self, about: str, waits: Waits | None) -> None:
        super().__init__(waits, trio.current_time())
        self.what = f"a permit of {about}"
        self.granted = trio.Event()
        self.after_s = 0.0


@dataclasses.dataclass(slots=True, eq=False)
class _Pace:
    """The blocks of one name of a rate."""

    turn: trio.Semaphore = dataclasses.field(default_factory=lambda: trio.Semaphore(1))
    """Held by the claim whose block begins next, until its code has begun."""
    begin_s: float = -math.inf
    """Moment at which that was to begin, or from which the next one may."""


@final
class WorkerPermits:
    """All permits of one worker.  ``take`` gives the core a claim, or its end."""

    def __init__(self, take: Callable[[ClaimMade | ClaimOver], object]) -> None:
        self.take = take
        self._waiting: dict[_Waiter, None] = {}
        self._claimed: dict[int, _Waiter] = {}
        """Those that have a place, by the numbers of their claims."""
        self._paces: dict[str, _Pace] = {}
        """By the name of the rate."""
        self._begins: dict[int, tuple[_Pace, float]] = {}
        """By the claims whose blocks begin: the pace, and the time to the next one, in seconds."""
        self._numbers = itertools.count()
        self._free = trio.Semaphore(CLAIMS_MOST)

    def of(self, number: int) -> ExecutionPermits:
        """The permits of the execution with this number."""
        return ExecutionPermits(self, number)

    def go_on(self, claim: int, after_s: float | None) -> None:
        """Let the code of a granted claim go on."""
        waiter = self._claimed.get(claim)
        if waiter is not None:
            waiter.after_s = after_s or 0.0
            waiter.granted.set()

    def tell_waits(self) -> None:
        """Let the notes of rollouts say for which permits they wait; called with each beat."""
        now_s = trio.current_time()
        self._paces = {
            name: pace for name, pace in self._paces.items()
            if pace.begin_s > now_s or not pace.turn.value
        }  # fmt: skip
        for waiter in self._waiting:
            waiter.tell(now_s, waiter.what)

    async def claim(
        self, number: int, claimed: Claimed, waits: Waits | None, holds: int = 0
    ) -> int:
        """Claim a permit for an execution whose code ``holds`` so many, and wait for it; returns
        the number of the claim, which is to be ended; of a rate, whose block is to be begun.
        RuntimeError if the execution would wait for what waits for it."""
        about = claimed.name.partition(":")[2]
        waiter = _Waiter(about, waits)
        if holds and not self._free.value:
            raise RuntimeError(
                f"the rollouts of this worker have {CLAIMS_MOST} permits, those included for which "
                f"they wait, and this one holds {holds} of them: {about!r} is not claimed, since "
                "all might wait for each other. Hold fewer at once, or start more workers"
            )
        self._waiting[waiter] = None
        try:
            await self._free.acquire()
            return await self._granted(number, claimed, waiter)
        finally:
            del self._waiting[waiter]
            waiter.over()

    async def _granted(self, number: int, claimed: Claimed, waiter: _Waiter) -> int:
        claim = next(self._numbers)
        self._claimed[claim] = waiter
        is_granted = False
        try:
            self.take(ClaimMade(number, claim, *claimed))
            await waiter.granted.wait()
            if claimed.per_s is not None:
                await self._begin(claim, claimed.name, claimed.per_s, waiter.after_s)
            is_granted = claimed.per_s is None
        finally:
            del self._claimed[claim]
            if not is_granted:
                self.end(claim)
        return claim

    async def _begin(self, claim: int, name: str, per_s: float, after_s: float) -> None:
        """Wait until a block of a rate may begin: after so long, and apart from the last one."""
        due_s = trio.current_time() + after_s
        await trio.sleep_until(due_s)
        pace = self._paces.setdefault(name, _Pace())
        await pace.turn.acquire()
        try:
            pace.begin_s = max(due_s, pace.begin_s)
            await trio.sleep_until(pace.begin_s)
        except trio.Cancelled:
            pace.turn.release()
            raise
        self._begins[claim] = pace, 1 / per_s

    def begun(self, claim: int) -> None:
        """The block of a claim of a rate has begun, or never will; only once."""
        pace, apart_s = self._begins.pop(claim)
        pace.begin_s = max(pace.begin_s, trio.current_time() - LATE_S) + apart_s
        pace.turn.release()

    def end(self, claim: int) -> None:
        """End a claim; only once."""
        self._free.release()
        self.take(ClaimOver(claim))


_OVER = "the rollout has ended, and gets no permit"


@final
class ExecutionPermits:
    """The permits of one execution."""

    def __init__(self, permits: WorkerPermits, number: int) -> None:
        self._permits = permits
        self.number = number
        """Number of its dispatch."""
        self._claims: set[int] = set()
        """Claims that are held."""
        self._begins: set[int] = set()
        """Claims of rates whose blocks begin."""
        self._requests = 0
        """Number of the held claims that are of requests to endpoints."""
        self._waiting = 0
        self._waits: set[trio.CancelScope] = set()
        """Scopes in which code waits for a permit."""
        self._closed = False

    async def acquire(self, claimed: Claimed, waits: Waits) -> GiveBack:
        """Wait for a permit that the code of the execution has claimed; returns what gives it back.
        RuntimeError if it claims too many."""
        if len(self._claims) + self._waiting >= EXECUTION_CLAIMS:
            raise RuntimeError(
                f"an execution has at most {EXECUTION_CLAIMS} permits at once, all members of a "
                f"group together, those included for which it waits: "
                f"{claimed.name.partition(':')[2]!r} is not claimed"
            )
        self._waiting += 1
        try:
            return await self._claim(claimed, waits)
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def of_endpoint(self, name: str, most: int) -> AsyncIterator[None]:
        """A permit for one request to an endpoint."""
        give_back = await self._claim(claimed_endpoint(name, most), None)
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            give_back()

    async def _claim(self, claimed: Claimed, waits: Waits | None) -> GiveBack:
        self._check_open()
        holds = len(self._claims) - self._requests
        with trio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                claim = await self._permits.claim(self.number, claimed, waits, holds)
            finally:
                self._waits.remove(scope)
        if scope.cancelled_caught:
            raise RuntimeError(_OVER)
        (self._claims if claimed.per_s is None else self._begins).add(claim)
        if self._closed:
            self._give_back(claim)
            self._check_open()
        return partial(self._give_back, claim)

    def _check_open(self) -> None:
        """RuntimeError if the rollout has ended: a task that it did not await goes on."""
        if self._closed:
            raise RuntimeError(_OVER)

    def _give_back(self, claim: int) -> None:
        if claim in self._claims:
            self._claims.remove(claim)
            self._permits.end(claim)
        elif claim in self._begins:
            self._begins.remove(claim)
            self._permits.begun(claim)

    def close(self) -> None:
        """Give all back: the code of the execution has ended.  A task that it has left behind waits
        no more."""
        self._closed = True
        for scope in self._waits:
            scope.cancel()
        for claim in [*self._claims, *self._begins]:
            self._give_back(claim)


# -- without a router ----------------------------------------------------------------------


@dataclasses.dataclass(slots=True, eq=False)
class _Own:
    """This process as a worker, and an execution in it, for the router's machine."""

    claims: dict[int, PermitClaim] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, eq=False)
class _Holder:
    claims: dict[int, PermitClaim] | None = None


def permits_here() -> WorkerPermits:
    """Permits that hold within this process."""
    machine, own, holder = Permits(math.inf), _Own(), _Holder()

    def take(given: ClaimMade | ClaimOver) -> None:
        now_s = trio.current_time()
        if isinstance(given, ClaimMade):
            machine.claim(own, holder, Claim(*given))
        else:
            machine.ended(own, Ranges([given.claim]))
        machine.tick(now_s)
        for granted, after_s in machine.grant(now_s):
            permits.go_on(granted.number, after_s)

    permits = WorkerPermits(take)
    return permits
