"""The one killer: faults of processes and connections, when they are due, written down; and
whoever starts again what was killed.

Theory of operation
-------------------
An :class:`Act` says what happens to which kind of victim: which of them it falls on depends on
who is there when it is due (:class:`FaultTarget`), which no seed decides.  While nobody is there it
waits, for a while.  Acts that are due by time are a task each, so stops and stalls overlap with
kills as they fall; a process that several acts have stopped goes on when the last of them ends.
Whatever was stopped is continued, and whatever was done to the network is undone, when the act
ends, however it ends.

A worker is nobody's child here, so its id may be given away while its end is not known: a victim
is held by a pidfd, where the system has them.  It does not start a victim again:
:func:`kept` does, at once, so a kill may fall on what is only starting.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias, final

import trio

from ..core.errors import ServerStartError
from ..net import unwrap_single
from ..testing.proxy import FaultProxy
from .logs import EventLog
from .processes import LOOK_S, Process

PATIENCE_S = 15.0
"""Time that an act waits for somebody to fall on."""
FROZEN_S = 40.0
"""Time that a frozen worker has to be killed by its server; far more than the limit for that."""


class Victim(NamedTuple):
    """A process on which a fault may fall."""

    name: str
    pid: int
    process: Process | None
    """None: a worker, which is nobody's child here."""


class Act(NamedTuple):
    """One fault that is due."""

    at: float
    """When it is due: seconds since the begin of the faults, or another measure of a run."""
    of: str
    """Kind of its victim: worker, client, server, host, network."""
    how: str
    choice: float = 0.0
    """Which of those there are: 0 is the first, almost 1 the last."""
    lasts_s: float = 0.0
    amount: float = 0.0
    """Strength, in the unit of its kind."""


class FaultTarget(Protocol):
    """The run on which faults fall."""

    log: EventLog
    proxy: FaultProxy | None
    """The proxy before its server, for faults of the network."""

    def victims(self, of: str, how: str) -> Sequence[Victim]:
        """The processes of a kind that are there, for a fault."""
        ...


@final
class HeldVictim:
    """A victim that is held while signals are sent to it."""

    def __init__(self, victim: Victim) -> None:
        """ProcessLookupError if it has ended."""
        self.name, self.pid, self._process = victim
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
                await trio.sleep(LOOK_S)

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            trio.lowlevel.notify_closing(self._fd)
            os.close(self._fd)


Fault: TypeAlias = Callable[[Act, HeldVictim], Awaitable[None]]
"""A deed on a victim, from its begin to its end, which writes itself down."""


@final
class Killer:
    """Does what acts say."""

    def __init__(
        self, field: FaultTarget, more: Mapping[str, Fault] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        """
        Args:
            field: The run.
            more: Further faults of processes, by ``how``.
            patience_s: Time that an act waits for somebody to fall on.
        """
        self.done = 0
        """Acts carried out so far."""
        self._field = field
        self._faults: dict[str, Fault] = {
            "kill": self._kill, "stop": self._stop, "freeze": self._freeze, **(more or {})
        }  # fmt: skip
        self._patience_s = patience_s
        self._stopped: Counter[int] = Counter()
        """By process id, by how many acts."""

    async def run(self, acts: Sequence[Act]) -> None:
        """A schedule by seconds; returns when the last act has ended."""
        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for act in acts:
                await trio.sleep_until(begun_s + act.at)
                nursery.start_soon(self.carry_out, act)

    async def carry_out(self, act: Act) -> bool:
        """One act; whether there was somebody whom it fell on."""
        done = False
        with trio.move_on_after(self._patience_s) as patience:
            while not (done := await self._try(act, patience)):  # noqa: ASYNC110  # processes
                await trio.sleep(LOOK_S)
        if not done:
            self.write(act, "nobody", of="missed", how=f"{act.of} {act.how}")
        self.done += done
        return done

    def write(self, act: Act, name: str, **what: Any) -> None:
        """Write down what was done to whom."""
        about: dict[str, Any] = {"of": act.of, "how": act.how, "since_s": time.monotonic()}
        self._field.log.write("harmed", name, **about | what)

    async def _try(self, act: Act, patience: trio.CancelScope) -> bool:
        if act.of == "network":
            return await self._on_network(act, patience)
        victims = self._field.victims(act.of, act.how)
        if not victims:
            return False
        victim = victims[int(act.choice * len(victims))]
        try:
            held = HeldVictim(victim)
        except ProcessLookupError:
            return False
        try:
            if victim not in self._field.victims(act.of, act.how):
                return False  # it ended before it was held, and may be another one now
            patience.deadline = float("inf")
            await self._faults[act.how](act, held)
        finally:
            held.close()
        return True

    # -- processes -----------------------------------------------------------------

    async def _kill(self, act: Act, held: HeldVictim) -> None:
        since_s = time.monotonic()
        held.signal(signal.SIGKILL)
        await held.wait_ended()
        self.write(act, held.name, pid=held.pid, since_s=since_s)

    async def _stop(self, act: Act, held: HeldVictim) -> None:
        self.write(act, held.name, pid=held.pid, lasts_s=act.lasts_s)
        with self._stopping(held):
            await trio.sleep(act.lasts_s)

    async def _freeze(self, act: Act, held: HeldVictim) -> None:
        """Stop it for good: its server has to notice, and to kill it."""
        since_s = time.monotonic()
        self.write(act, held.name, pid=held.pid)
        with trio.move_on_after(FROZEN_S) as limit, self._stopping(held):
            await held.wait_ended()
        how = "survived" if limit.cancelled_caught else "ended"
        self.write(act, held.name, how=how, pid=held.pid, since_s=since_s)

    @contextmanager
    def _stopping(self, held: HeldVictim) -> Iterator[None]:
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
        proxy = self._field.proxy
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
        self.write(act, "network", connections=connections, lasts_s=act.lasts_s)
        try:
            await trio.sleep(act.lasts_s)
        finally:
            undo()
        return True


# -- whoever starts it again -----------------------------------------------------------


@asynccontextmanager
async def kept(
    process: Process, of: str, log: EventLog, *, name: str = "",
    begin: Callable[[], Awaitable[None]] | None = None,
    heard: Callable[[dict[str, Any]], object] = lambda _: None,
) -> AsyncIterator[None]:  # fmt: skip
    """A process that is started again whenever it was killed, and ended with the block; when it
    is there, and if it ended by itself, is written down.

    EndedByItself if it does, which ends the block.

    Args:
        process: The process.
        of: Its kind, for the log.
        log: The log.
        name: Its name there; empty: what it is called in errors.
        begin: What is done at the begin of each life.
        heard: Given each line that it says.
    """
    actor = name or process.what

    async def keep(task_status: trio.TaskStatus[None]) -> None:
        first = True
        while True:
            try:
                await process.start()
                log.write("serving", actor, of=of, pid=process.pid)
                if begin is not None:
                    await begin()
                if first:
                    task_status.started()
                    first = False
                await process.listen(heard)
            except ServerStartError:
                if not process.killed:
                    raise
            finally:
                await process.end()  # noqa: ASYNC102  # shields itself, and has limits
            if not process.killed:
                log.write("harmed", actor, of=of, how="ended by itself")
                raise process.ended_by_itself()

    with unwrap_single():
        async with trio.open_nursery() as nursery:
            await nursery.start(keep)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
