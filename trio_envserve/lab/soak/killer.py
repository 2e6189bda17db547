"""The killer: carries out the schedule, and writes down what it did.

Theory of operation
-------------------
Each fault is a task from its beginning to its end, so stops and stalls overlap
with kills as they fall.  Only the server's own faults take turns: it is killed
and started again, or stopped and continued, one after the other; and so do those of the
remote host.  Whatever was
stopped is continued, and whatever was done to the network is undone, when the
fault's task ends, however it ends.  A process that several faults have stopped goes
on when the last of them ends, as each lasts at least as long as it says.

A fault needs somebody to fall on: while there is nobody (the server is being
started again) it waits, for a while.

A worker is nobody's child here, so its id may be given away while its end is
not known: it is held by a pidfd, where the system has them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import final

import trio

from ...testing.proxy import FaultProxy
from ..demo.process import DemoServer
from ..logs import EnvironmentLog, JsonLog
from ..remote_host import RemoteHost
from .callers import CallerProcess, Callers
from .sampler import OfHost, children_in, has_proc
from .schedule import Act

_POLL_S = 0.05
_PATIENCE_S = 15.0
"""How long a fault waits for somebody to fall on."""
_FROZEN_S = 40.0
"""How long a frozen worker is given to be killed by its server; far more than
the limit for that."""


@final
class Victim:
    """A process that is nobody's child here, held while signals are sent to it."""

    def __init__(self, pid: int) -> None:
        """ProcessLookupError if it has ended."""
        self.pid = pid
        self._fd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._fd is not None:
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
                await trio.sleep(_POLL_S)

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            trio.lowlevel.notify_closing(self._fd)
            os.close(self._fd)


def _signal_child(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself, which is noticed
        os.kill(pid, number)


@contextmanager
def held(pid: int) -> Iterator[Victim]:
    """A :class:`Victim`, let go of at the end.  ProcessLookupError if it has ended."""
    victim = Victim(pid)
    try:
        yield victim
    finally:
        victim.close()


@final
class Killer:
    """Does what the schedule says."""

    def __init__(
        self, directory: Path, server: DemoServer, host: RemoteHost | None, proxy: FaultProxy,
        callers: Callers, environment: EnvironmentLog, log: JsonLog,
    ) -> None:  # fmt: skip
        self.done = 0
        """Faults carried out so far."""
        self._directory = directory
        self._server = server
        self._host = host
        self._proxy = proxy
        self._callers = callers
        self._environment = environment
        self._log = log
        self._serving = True
        self._servers_turn = trio.Lock()
        self._hosts_turn = trio.Lock()
        self._stopped: Counter[int] = Counter()
        """By process id, by how many faults."""

    async def run(self, acts: list[Act]) -> None:
        """The whole schedule; returns when the last fault has ended."""
        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for act in acts:
                await trio.sleep_until(begun_s + act.at_s)
                nursery.start_soon(self._carry_out, act)

    async def _carry_out(self, act: Act) -> None:
        await self._doers()[act.kind](act)
        self.done += 1

    def _doers(self) -> dict[str, Callable[[Act], Awaitable[None]]]:
        return {
            "worker-kill": self._kill_worker, "worker-stop": self._stop_worker,
            "worker-freeze": self._freeze_worker, "client-kill": self._kill_client,
            "client-stop": self._stop_client, "server-kill": self._kill_server,
            "server-stop": self._stop_server, "host-kill": self._kill_host,
            "host-stop": self._stop_host, "cut": self._cut, "half-open": self._half_open,
            "stall": self._stall, "throttle": self._throttle, "lag": self._lag,
        }  # fmt: skip

    # -- workers --------------------------------------------------------------

    def workers(self) -> list[int]:
        """The ids of the workers of the server, or of the host, that serves now."""
        if not self._serving or (self._host is not None and not self._host.there):
            return []
        if self._host is not None and has_proc():
            return OfHost.at(self._directory, self._host.pid).workers
        if has_proc():
            return children_in(self._directory, self._server.pid)
        return [life.pid for life in self._environment.lives.values() if not life.dead]

    async def _worker(self, act: Act) -> int | None:
        """The worker that a fault falls on; None if none came in time."""
        with trio.move_on_after(_PATIENCE_S):
            while not (workers := self.workers()):  # noqa: ASYNC110  # other processes
                await trio.sleep(_POLL_S)
            return workers[int(act.choice * len(workers))]
        self._missed(act)
        return None

    async def _kill_worker(self, act: Act) -> None:
        await self._on_worker(act, self._kill)

    async def _stop_worker(self, act: Act) -> None:
        await self._on_worker(act, self._stop)

    async def _freeze_worker(self, act: Act) -> None:
        await self._on_worker(act, self._freeze)

    async def _on_worker(self, act: Act, do: Callable[[Victim, Act], Awaitable[None]]) -> None:
        pid = await self._worker(act)
        if pid is None:
            return
        try:
            with held(pid) as victim:
                await do(victim, act)
        except ProcessLookupError:
            self._missed(act)  # it ended in this very moment

    async def _kill(self, victim: Victim, act: Act) -> None:
        sent_s = time.monotonic()
        victim.signal(signal.SIGKILL)
        self._log.write("kill", what="worker", pid=victim.pid, sent_s=sent_s)
        await victim.wait_ended()

    async def _stop(self, victim: Victim, act: Act) -> None:
        self._log.write("stop", what="worker", pid=victim.pid, lasts_s=act.lasts_s)
        with self._stopping(victim.pid, victim.signal):
            await trio.sleep(act.lasts_s)

    async def _freeze(self, victim: Victim, act: Act) -> None:
        """Stop it for good: its server has to notice, and to kill it."""
        self._log.write("freeze", what="worker", pid=victim.pid)
        with trio.move_on_after(_FROZEN_S) as limit, self._stopping(victim.pid, victim.signal):
            await victim.wait_ended()
        how = "survived" if limit.cancelled_caught else "ended"
        self._log.write(f"frozen-{how}", what="worker", pid=victim.pid)

    # -- clients --------------------------------------------------------------

    async def _client(self, act: Act, first: int) -> CallerProcess | None:
        """The client that a fault falls on, from this slot on."""
        with trio.move_on_after(_PATIENCE_S):
            while True:
                there = [
                    each for each in self._callers.lives[first:] if each and each.program.living
                ]
                if there:
                    return there[int(act.choice * len(there))]
                await trio.sleep(_POLL_S)
        self._missed(act)
        return None

    async def _kill_client(self, act: Act) -> None:
        caller = await self._client(act, first=1)  # the first one lives throughout
        if caller is not None:
            sent_s = time.monotonic()
            caller.program.signal(signal.SIGKILL)
            self._log.write(
                "kill", what="client", client=caller.name, pid=caller.program.pid, sent_s=sent_s
            )

    async def _stop_client(self, act: Act) -> None:
        caller = await self._client(act, first=0)
        if caller is not None:
            self._log.write("stop", what="client", client=caller.name, lasts_s=act.lasts_s)
            with self._stopping(caller.program.pid, caller.program.signal):
                await trio.sleep(act.lasts_s)

    # -- the server -----------------------------------------------------------

    async def _kill_server(self, act: Act) -> None:
        async with self._servers_turn:
            self._serving = False
            await self._server.replace(self._log)
            self._serving = True

    async def _stop_server(self, act: Act) -> None:
        async with self._servers_turn:
            pid = self._server.pid  # a child, and nobody reaps it while it is our turn
            self._log.write("stop", what="server", pid=pid, lasts_s=act.lasts_s)
            with self._stopping(pid, partial(_signal_child, pid)):
                await trio.sleep(act.lasts_s)

    # -- the remote host ------------------------------------------------------

    async def _kill_host(self, act: Act) -> None:
        assert self._host is not None
        async with self._hosts_turn:
            await self._host.replace(self._log)

    async def _stop_host(self, act: Act) -> None:
        assert self._host is not None
        async with self._hosts_turn:
            pid = self._host.pid
            self._log.write("stop", what="host", pid=pid, lasts_s=act.lasts_s)
            with self._stopping(pid, self._host.signal):
                await trio.sleep(act.lasts_s)

    @contextmanager
    def _stopping(self, pid: int, send: Callable[[int], object]) -> Iterator[None]:
        """Keep a process stopped for the length of the block."""
        self._stopped[pid] += 1
        send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._stopped[pid] -= 1
            if not self._stopped[pid]:
                del self._stopped[pid]
                send(signal.SIGCONT)

    # -- the network ----------------------------------------------------------

    async def _connected(self, act: Act) -> bool:
        with trio.move_on_after(_PATIENCE_S):
            await self._proxy.wait_connections(1)
            return True
        self._missed(act)
        return False

    async def _cut(self, act: Act) -> None:
        if await self._connected(act):
            self._log.write("network", how="cut", connections=self._proxy.cut_all())

    async def _half_open(self, act: Act) -> None:
        if await self._connected(act):
            self._log.write("network", how="half-open", connections=self._proxy.half_open())

    async def _stall(self, act: Act) -> None:
        await self._for_a_while(act, self._proxy.stall, self._proxy.resume)

    async def _throttle(self, act: Act) -> None:
        await self._for_a_while(
            act, lambda: self._proxy.throttle(act.amount), lambda: self._proxy.throttle(None)
        )

    async def _lag(self, act: Act) -> None:
        await self._for_a_while(
            act, lambda: self._proxy.lag(0.0, act.amount), lambda: self._proxy.lag(0.0, 0.0)
        )

    async def _for_a_while(
        self, act: Act, do: Callable[[], object], undo: Callable[[], object]
    ) -> None:
        if await self._connected(act):
            connections = self._proxy.open_connections
            self._log.write("network", how=act.kind, connections=connections, lasts_s=act.lasts_s)
            do()
            try:
                await trio.sleep(act.lasts_s)
            finally:
                undo()

    def _missed(self, act: Act) -> None:
        self._log.write("missed", kind=act.kind)
