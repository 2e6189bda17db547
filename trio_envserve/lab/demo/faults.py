"""The faults of the demonstration, made and written down one by one.

Theory of operation
-------------------
A schedule of faults follows from the seed: each is due when a certain part of
all rollouts has been answered, so that it falls into the middle of the work on
any machine.  One task carries them out, one after the other; a second one
follows the environment's log and watches worker processes die.

A worker is killed when the *environment's* log says that enough executions live on it,
and only then; how many died with it is counted from the same log afterwards.  Where the
machine is too slow to have that many running at once, the next rollouts are made to last
longer, until it has.  The same happens where one fault is not done when the next is due,
because otherwise the work would be over first.

The log of a cut between an outcome and its receipt names the request of the outcome: the
proxy shows the bytes that it withheld, and the head of an outcome names its request.

A call that was issued again after the server's death has no execution to spare
any more (the client held one back for just that), so a worker that runs one of
those is left alone.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, final

import cbor2
import trio

from ...core.messages import KINDS, Outcome
from ...core.terms import ID_BYTES
from ...testing.proxy import FaultProxy
from ..logs import EventLog, Life, Lives
from ..processes import Process
from .judge import CUT, CUT_BEFORE_RECEIPT, LEAST_FAULTS, LEAST_LIVING
from .wiretap import id_of

T = TypeVar("T")

_POLL_S = 0.01
_HEAD = bytes((0x80 + len(Outcome._fields) + 2, KINDS[Outcome]))
"""How the head of an outcome begins: an array, its kind, and a session follows."""
_RESULT = b"execution"
"""A key of every result of the environment, as it stands in an encoded one."""
_FIRST, _LAST = 0.04, 0.60
"""The part of the answers at which the first and the last fault are due."""
_PATIENCE_S = 0.5
"""How long to wait for a worker with enough executions before they are made to
last twice as long."""
_LONGEST_S = 0.6
"""How long they last at most: those that die with a worker are run again one at a time."""
_LATE, _LATE_S = 0.7, 1.2
"""The part of the answers after which, if there was no such worker yet, the rest lasts so
many seconds, before nothing is left to be killed."""
_MOST_KILLS = 8
"""Attempts at killing a busy worker, should some of them come too late."""


class Callers(Protocol):
    """The state of the callers that the faults depend on."""

    answered: int
    durations_s: dict[str, float]
    """By key, all that were asked so far: how long each was to last."""
    duration_s: float
    """How long the next ones are to last."""

    received: set[str]
    """Ids of the requests of which an outcome has come."""

    def sessions(self) -> int:
        """The fewest sessions that one of them has had."""
        ...


def schedule(seed: int, rollouts: int, hosts: int = 0) -> list[tuple[int, str]]:
    """The faults of a seed, in order: (answers at which it is due, kind)."""
    rng = random.Random(seed)
    kinds = ["cut", "receipt", "worker"] * LEAST_FAULTS + ["server"] + ["host"] * hosts
    rng.shuffle(kinds)
    step = (_LAST - _FIRST) / len(kinds)
    return [
        (int(rollouts * (_FIRST + step * (index + rng.random()))), kind)
        for index, kind in enumerate(kinds)
    ]


def outcomes_in(data: bytes) -> list[str]:
    """Ids of the requests whose results stand in bytes that a server has sent, in
    order; also of one that is not there to its end."""
    found: list[str] = []
    for message in data.split(_HEAD)[1:]:
        stream = io.BytesIO(message)
        with contextlib.suppress(cbor2.CBORError):  # it only looked like a header
            _, session, sequence = (cbor2.load(stream) for _ in range(3))
            sequences = sequence if isinstance(sequence, list) else [sequence]
            if _RESULT in message and type(session) is bytes and len(session) == ID_BYTES:
                found += [id_of(session, number) for number in sequences]
    return found


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
        self, server: Process, host: Process | None, proxy: FaultProxy,
        lives: Lives, log: EventLog, callers: Callers, *, rollouts: int,
        workers: int, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._server = server
        self._host = host
        self._proxy = proxy
        self._lives = lives
        self._log = log
        self._callers = callers
        self._rollouts = rollouts
        self._workers = workers
        self._usual_s = callers.duration_s
        self._say = say
        self._next_due = math.inf
        """At how many answers the fault after the one that is being made is due."""
        self._spent: set[str] = set()
        """Keys that a lost server may have had: no execution to spare."""
        self._sessions = 1

    async def run(self, due: list[tuple[int, str]]) -> None:
        """The schedule, until it is done or the scope is cancelled."""
        acts = {
            "cut": self._cut, "receipt": self._cut_before_receipt,
            "worker": self._kill_worker, "server": self._kill_server, "host": self._kill_host,
        }  # fmt: skip
        following = [answers for answers, _ in due[1:]] + [self._rollouts]
        for (answers, kind), next_due in zip(due, following, strict=True):
            await poll(partial(self._has_answers, answers))
            self._next_due = next_due
            await acts[kind]()
            self._next_due = math.inf

    def lasts_s(self) -> float:
        """How long the next rollout is to last."""
        late = self._callers.answered >= self._next_due
        return max(self._callers.duration_s, _LONGEST_S if late else 0.0)

    def _has_answers(self, count: int) -> bool:
        return self._callers.answered >= count

    async def watch(self) -> None:
        """Follow the environment's log and its processes until cancelled."""
        while True:
            self._lives.look(self._log)
            await trio.sleep(_POLL_S)

    # -- faults ----------------------------------------------------------------

    async def _cut(self) -> None:
        await self._proxy.wait_connections(1)
        count = self._proxy.cut_all()
        self._log.write("harmed", "network", of="network", how=CUT, connections=count)
        self._say(f"cut {count} connections")

    async def _cut_before_receipt(self) -> None:
        before = self._proxy.counters.cut
        withheld = self._not_received(
            await self._proxy.cut_before_receipt(lambda data: bool(self._not_received(data)))
        )
        count = self._proxy.counters.cut - before
        self._log.write(
            "harmed", "network", of="network", how=CUT_BEFORE_RECEIPT, connections=count,
            withheld=withheld,
        )  # fmt: skip
        outcomes = "1 outcome" if len(withheld) == 1 else f"{len(withheld)} outcomes"
        self._say(f"cut {count} connections with {outcomes} on the way")

    def _not_received(self, data: bytes) -> list[str]:
        """The requests whose outcomes are in these bytes and have not come yet.

        The cut falls on the first bytes with such a one, so none of them was
        forwarded whole."""
        return [each for each in outcomes_in(data) if each not in self._callers.received]

    async def _kill_worker(self) -> None:
        for _ in range(_MOST_KILLS):
            if await self._kill_busiest() >= LEAST_LIVING:
                return

    async def _kill_busiest(self) -> int:
        """Kill a worker with enough executions; says with how many it died."""
        life = await self._wait_busy_worker()
        since_s = time.monotonic()
        os.kill(life.pid, signal.SIGKILL)
        await poll(lambda: life.dead)
        died = len(life.running)
        self._log.write(
            "harmed", life.process, of="worker", how="kill", pid=life.pid, since_s=since_s
        )
        self._say(f"killed a worker with {died} executions")
        await poll(lambda: self._appeared_since(since_s))
        return died

    def _appeared_since(self, moment_s: float) -> bool:
        """Whether a process has begun its first rollout: all slots had one
        before, so it is a replacement."""
        self._lives.look(self._log)
        return any(life.began_s > moment_s for life in self._lives.all.values())

    async def _wait_busy_worker(self) -> Life:
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
        return self._at_work() > 1

    def _busy_worker(self) -> Life | None:
        """One with enough executions that will not end in this very moment."""
        self._lives.look(self._log)
        if len(self._lives.living) < self._workers:
            return None  # else nobody could tell a replacement from a late beginner
        now_s, lasts_s = time.monotonic(), self._callers.durations_s
        for life in self._lives.living:
            young = sum(
                began_s + 0.7 * lasts_s.get(request, 0.0) > now_s
                for request, began_s in life.running.values()
            )
            if young >= LEAST_LIVING and self._spent.isdisjoint(life.requests):
                return life
        return None

    async def _kill_host(self) -> None:
        """Kill it while all of its workers run something; another one joins."""
        assert self._host is not None
        await poll(self._all_busy)
        self._say("killing the host")
        since_s = await self._replace(self._host)
        await poll(lambda: self._appeared_since(since_s))
        self._say("another host has joined")

    async def _replace(self, process: Process) -> float:
        """Kill it, and start it where it was; when it was killed."""
        since_s, pid = time.monotonic(), process.pid
        await process.kill()
        what = process.what
        self._log.write("harmed", what, of=what, how="kill", pid=pid, since_s=since_s)
        await process.start()
        self._log.write("serving", what, of=what, pid=process.pid)
        return since_s

    def _all_busy(self) -> bool:
        """Whether all workers are there, run something, and none is left alone for it."""
        self._lives.look(self._log)
        return self._at_work() == self._workers

    def _at_work(self) -> int:
        """How many workers there are, if each runs something and none is left alone; else 0."""
        at_work = self._lives.living
        if all(life.running and self._spent.isdisjoint(life.requests) for life in at_work):
            return len(at_work)
        return 0

    async def _kill_server(self) -> None:
        self._say("killing the server")
        await self._replace(self._server)
        self._sessions += 1
        await poll(lambda: self._callers.sessions() >= self._sessions)
        self._spent.update(self._callers.durations_s)
        self._say("the server is back at its address")
