"""The one killer: faults of processes and connections, at their times, written down.

Theory of operation
-------------------
An :class:`Act` says what happens to which kind of victim: which of them it falls on depends on
who is there when it is due, which no seed decides.  While nobody is there it waits, for a while.
Each act is a task from its begin to its end, so stops and stalls overlap with kills as they fall;
a process that several acts have stopped goes on when the last of them ends.  Whatever was stopped
is continued, and whatever was done to the network is undone, when the act ends, however it ends.

A worker is nobody's child here, so its id may be given away while its end is not known: a victim
is held by a pidfd, where the system has them.  Nobody starts a victim again here:
:meth:`.Rig.kept` does, at once, so a kill may fall on what is only starting.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import trio

from tests.rig.asleep import Asleep
from tests.rig.rig import Rig, Victim
from tests.rig.wires import DOWN, UP

POLL_S = 0.05
PATIENCE_S = 15.0
"""Time that an act waits for somebody to fall on."""
FROZEN_S = 40.0
"""Time that a frozen worker has to be killed by its server; far more than the limit for that."""
LAST = 0.8
"""The part of a round after which no fault begins, so that all can end in it."""


class Act(NamedTuple):
    """One fault that is due."""

    at_s: float
    """Counted from the begin of the faults."""
    of: str
    """Kind of its victim: worker, client, server, host, network."""
    how: str
    choice: float = 0.0
    """Which of those there are: 0 is the first, almost 1 the last."""
    lasts_s: float = 0.0
    amount: float = 0.0
    """Strength, in the unit of its kind."""


class Kind(NamedTuple):
    """One kind of fault."""

    often: int
    """How often in a round."""
    lasts_s: tuple[float, float] = (0.0, 0.0)
    amount: tuple[float, float] = (0.0, 0.0)


def schedule(
    rng: random.Random, seconds: float, round_s: float, kinds: Mapping[tuple[str, str], Kind]
) -> list[Act]:
    """The faults of a run, in order.  The time is cut into rounds; each has the same faults in
    another order, so a short run has every kind, and a long one all of them many times."""
    rounds = max(1, round(seconds / round_s))
    each_s = seconds / rounds
    return sorted(
        Act(
            each_s * (number + LAST * rng.random()), of, how, rng.random(),
            rng.uniform(*kind.lasts_s), rng.uniform(*kind.amount),
        )
        for number in range(rounds)
        for (of, how), kind in kinds.items()
        for _ in range(kind.often)
    )  # fmt: skip


@final
class Held:
    """A victim that is held while signals are sent to it."""

    def __init__(self, victim: Victim) -> None:
        """ProcessLookupError if it has ended."""
        self.pid = victim.pid
        self._process = victim.process
        self._fd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.signal(number)
            elif self._fd is not None:
                signal.pidfd_send_signal(self._fd, number)
            else:
                os.kill(self.pid, number)

    async def wait_ended(self) -> None:
        """Sleep until it has ended."""
        if self._fd is not None:
            await trio.lowlevel.wait_readable(self._fd)
            return
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(self.pid, 0)
                await trio.sleep(POLL_S)

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            trio.lowlevel.notify_closing(self._fd)
            os.close(self._fd)


@final
class Killer:
    """Does what acts say."""

    def __init__(self, rig: Rig) -> None:
        self.done = 0
        """Acts carried out so far."""
        self._rig = rig
        self._stopped: Counter[int] = Counter()
        """By process id, by how many acts."""

    async def run(self, acts: Sequence[Act]) -> None:
        """A schedule; returns when the last act has ended."""
        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for act in acts:
                await trio.sleep_until(begun_s + act.at_s)
                nursery.start_soon(self.carry_out, act)

    async def carry_out(self, act: Act) -> bool:
        """One act; whether there was somebody whom it fell on."""
        done = False
        with trio.move_on_after(PATIENCE_S) as patience:
            while not done:
                done = await self._try(act, patience)
                if not done:
                    await trio.sleep(POLL_S)
        if not done:
            self._log(act, "nobody", of="missed", how=f"{act.of} {act.how}")
        self.done += done
        return done

    def _log(self, act: Act, name: str, **what: Any) -> None:
        about: dict[str, Any] = {"of": act.of, "how": act.how, "since_s": time.monotonic()}
        self._rig.log.write("harmed", name, **about | what)

    async def _try(self, act: Act, patience: trio.CancelScope) -> bool:
        if act.of == "network":
            return await self._on_network(act, patience)
        victims = self._rig.victims(act.of, act.how)
        if not victims:
            return False
        victim = victims[int(act.choice * len(victims))]
        try:
            held = Held(victim)
        except ProcessLookupError:
            return False
        try:
            if victim not in self._rig.victims(act.of, act.how):
                return False  # it ended before it was held, and may be another one now
            patience.deadline = float("inf")
            await {
                "kill": self._kill, "stop": self._stop, "freeze": self._freeze,
                "sleep": self._sleep, "cut": self._cut, "half cut": self._cut,
            }[act.how](act, victim.name, held)  # fmt: skip
        finally:
            held.close()
        return True

    # -- processes -----------------------------------------------------------------

    async def _kill(self, act: Act, name: str, held: Held) -> None:
        since_s = time.monotonic()
        held.signal(signal.SIGKILL)
        await held.wait_ended()
        self._log(act, name, pid=held.pid, since_s=since_s)

    async def _stop(self, act: Act, name: str, held: Held) -> None:
        self._log(act, name, pid=held.pid, lasts_s=act.lasts_s)
        with self._stopping(held):
            await trio.sleep(act.lasts_s)

    async def _freeze(self, act: Act, name: str, held: Held) -> None:
        """Stop it for good: its server has to notice, and to kill it."""
        since_s = time.monotonic()
        self._log(act, name, pid=held.pid)
        with trio.move_on_after(FROZEN_S) as limit, self._stopping(held):
            await held.wait_ended()
        how = "survived" if limit.cancelled_caught else "ended"
        self._log(act, name, how=how, pid=held.pid, since_s=since_s)

    async def _sleep(self, act: Act, name: str, held: Held) -> None:
        """Let its machine sleep: all of its processes, until the router has lost it."""
        self._log(act, name, pid=held.pid, lasts_s=act.lasts_s)
        with Asleep(held.pid, self._rig.clocks):
            await trio.sleep(act.lasts_s)
            await self._rig.has_lost(name)

    async def _cut(self, act: Act, name: str, held: Held) -> None:
        """Cut a host off, in both directions or in one, until the router has lost it."""
        self._log(act, name, lasts_s=act.lasts_s)
        wire = self._rig.wires[name]
        for direction in (DOWN,) if act.how == "half cut" else (UP, DOWN):
            wire.cut(direction)
        try:
            await trio.sleep(act.lasts_s)
            await self._rig.has_lost(name)
        finally:
            wire.mend()

    @contextmanager
    def _stopping(self, held: Held) -> Iterator[None]:
        """Keep a process stopped for the length of the block."""
        self._stopped[held.pid] += 1
        held.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._stopped[held.pid] -= 1
            if not self._stopped[held.pid]:
                del self._stopped[held.pid]
                held.signal(signal.SIGCONT)

    # -- the network -----------------------------------------------------------------

    async def _on_network(self, act: Act, patience: trio.CancelScope) -> bool:
        proxy = self._rig.proxy
        assert proxy is not None
        await proxy.wait_connections(1)
        patience.deadline = float("inf")
        connections = proxy.open_connections
        undo: Callable[[], object] = lambda: None  # noqa: E731
        match act.how:
            case "cut":
                connections = proxy.cut_all()
            case "half-open":
                connections = proxy.half_open()
            case "stall":
                proxy.stall()
                undo = proxy.resume
            case "throttle":
                proxy.throttle(act.amount)
                undo = lambda: proxy.throttle(None)  # noqa: E731
            case "lag":
                proxy.lag(0.0, act.amount)
                undo = lambda: proxy.lag(0.0, 0.0)  # noqa: E731
        self._log(act, "network", connections=connections, lasts_s=act.lasts_s)
        try:
            await trio.sleep(act.lasts_s)
        finally:
            undo()
        return True
