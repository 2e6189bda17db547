"""The one who makes the faults of the demonstration, and writes down each.

Theory of operation
-------------------
A schedule of faults follows from the seed: each is due when a certain part of
all rollouts has been answered, so that it falls into the middle of the work on
any machine.  One task carries them out, one after the other; a second one
follows the environment's log and watches worker processes die.

A worker is killed when the *environment's* log says that enough executions
live on it, and only then; how many died with it is counted from the same log
afterwards.  Where the machine is too slow to have that many running at once,
the next rollouts are made to last longer, until it has.

A call that was issued again after the server's death has no execution to spare
any more (the client held one back for just that), so a worker that runs one of
those is left alone.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar, final

import trio

from .demo_logs import EnvironmentLog, JsonLog, WorkerLife
from .demo_process import DemoServer
from .judge_logs import LEAST_FAULTS, LEAST_LIVING
from .proxy import FaultProxy

T = TypeVar("T")

_POLL_S = 0.01
_OUTCOME = b"completion"
"""A key of every result of the environment, as it stands in an encoded one."""
_FIRST, _LAST = 0.04, 0.60
"""The part of the answers at which the first and the last fault are due."""
_PATIENCE_S = 0.5
"""How long to wait for a worker with enough executions before they are made to
last twice as long."""
_LONGEST_S = 0.6
"""And no longer: those that die with a worker are run again one at a time."""
_LATE, _LATE_S = 0.7, 1.2
"""But when so much has been answered and there still was no such worker, the
rest lasts this long, before nothing is left to be killed."""
_MOST_KILLS = 8
"""Attempts at killing a busy worker, should some of them come too late."""


class Callers(Protocol):
    """What the faults have to know of the callers."""

    answered: int
    durations_s: dict[str, float]
    """By key, all that were asked so far: how long each was to last."""
    duration_s: float
    """How long the next ones are to last."""

    def sessions(self) -> int:
        """The fewest sessions that one of them has had."""
        ...

    async def stats(self) -> dict[str, Any] | None:
        """The server's statistics, or None if it does not say."""
        ...


def schedule(seed: int, rollouts: int) -> list[tuple[int, str]]:
    """The faults of a seed, in order: (answers at which it is due, kind)."""
    rng = random.Random(seed)
    kinds = ["cut", "receipt", "worker"] * LEAST_FAULTS + ["server"]
    rng.shuffle(kinds)
    step = (_LAST - _FIRST) / len(kinds)
    return [
        (int(rollouts * (_FIRST + step * (index + rng.random()))), kind)
        for index, kind in enumerate(kinds)
    ]


async def poll(condition: Callable[[], T | None]) -> T:
    """Sleep until the condition holds; returns what it gave.  For what is in a
    file or another process, where there is no event to wait for."""
    while not (found := condition()):  # noqa: ASYNC110  # as said above
        await trio.sleep(_POLL_S)
    return found


@final
class Faults:
    """Carries the schedule out."""

    def __init__(
        self, server: DemoServer, proxy: FaultProxy, environment: EnvironmentLog, log: JsonLog,
        callers: Callers, *, rollouts: int, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._server = server
        self._proxy = proxy
        self._environment = environment
        self._log = log
        self._callers = callers
        self._rollouts = rollouts
        self._usual_s = callers.duration_s
        self._say = say
        self._spent: set[str] = set()
        """Keys that a lost server may have had: no execution to spare."""
        self._sessions = 1

    async def run(self, due: list[tuple[int, str]]) -> None:
        """The schedule, until it is done or the scope is cancelled."""
        acts = {
            "cut": self._cut, "receipt": self._cut_before_receipt,
            "worker": self._kill_worker, "server": self._kill_server,
        }  # fmt: skip
        for answers, kind in due:
            await poll(partial(self._has_answers, answers))
            await acts[kind]()

    def _has_answers(self, count: int) -> bool:
        return self._callers.answered >= count

    async def watch(self) -> None:
        """Follow the environment's log and its processes until cancelled."""
        while True:
            self._environment.look(self._log)
            await trio.sleep(_POLL_S)

    async def count(self) -> None:
        """Note what the server says of replays and coalesced requests: it is
        shown beside what is judged, and is no part of the verdict but for
        being more than nothing."""
        stats = await self._callers.stats()
        if stats is not None:
            cache = stats["cache"]
            self._log.write(
                "counters", epoch=stats["epoch"], replayed=cache["replayed"],
                coalesced=cache["coalesced"],
            )  # fmt: skip

    # -- faults ----------------------------------------------------------------

    async def _cut(self) -> None:
        await self._proxy.wait_connections(1)
        count = self._proxy.cut_all()
        self._log.write("cut", how="ordinary", connections=count)
        self._say(f"cut {count} connections")

    async def _cut_before_receipt(self) -> None:
        before = self._proxy.counters.cut
        data = await self._proxy.cut_before_receipt(lambda data: _OUTCOME in data)
        count = self._proxy.counters.cut - before
        outcomes = data.count(_OUTCOME)
        self._log.write("cut", how="before receipt", connections=count, outcomes=outcomes)
        self._say(f"cut {count} connections with {outcomes} outcomes on the way")

    async def _kill_worker(self) -> None:
        for _ in range(_MOST_KILLS):
            if await self._kill_busiest() >= LEAST_LIVING:
                return

    async def _kill_busiest(self) -> int:
        """Kill a worker with enough executions; says with how many it died."""
        life = await self._wait_busy_worker()
        sent_s = time.monotonic()
        os.kill(life.pid, signal.SIGKILL)
        await poll(lambda: life.dead)
        self._environment.read()
        died = len(life.living)
        self._log.write(
            "kill", what="worker", process=life.process, pid=life.pid, sent_s=sent_s, living=died
        )
        self._say(f"killed a worker with {died} executions")
        return died

    async def _wait_busy_worker(self) -> WorkerLife:
        """One with enough executions; they last longer if there are too few."""
        in_vain = 0
        while (life := self._busy_worker()) is None:
            await trio.sleep(_POLL_S)
            in_vain += self._in_full_work()
            if self._callers.answered > _LATE * self._rollouts:
                self._callers.duration_s = _LATE_S
            elif in_vain * _POLL_S >= _PATIENCE_S:
                in_vain = 0
                self._callers.duration_s = min(2 * self._callers.duration_s, _LONGEST_S)
        self._callers.duration_s = self._usual_s
        return life

    def _in_full_work(self) -> bool:
        """Whether no worker is missing, and none is left alone for what it runs:
        if too few executions live now, that is how fast the machine is."""
        at_work = [life for life in self._environment.lives.values() if not life.dead]
        return len(at_work) > 1 and all(
            life.living and self._spent.isdisjoint(life.living) for life in at_work
        )

    def _busy_worker(self) -> WorkerLife | None:
        """One with enough executions that will not end in this very moment."""
        self._environment.look(self._log)
        now_s, lasts_s = time.monotonic(), self._callers.durations_s
        for life in self._environment.lives.values():
            young = sum(
                began_s + 0.7 * lasts_s.get(key, 0.0) > now_s
                for key, began_s in life.living.items()
            )
            if not life.dead and young >= LEAST_LIVING and self._spent.isdisjoint(life.living):
                return life
        return None

    async def _kill_server(self) -> None:
        await self.count()
        sent_s = time.monotonic()
        pid = self._server.pid
        await self._server.kill()
        self._log.write("kill", what="server", pid=pid, sent_s=sent_s)
        self._say("killed the server")
        await self._server.start()
        self._log.write("serving", pid=self._server.pid, address=self._server.address)
        self._sessions += 1
        await poll(lambda: self._callers.sessions() >= self._sessions)
        self._spent.update(self._callers.durations_s)
        self._say("the server is back at its address")
