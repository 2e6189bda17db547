"""The host's end of a guard (:mod:`.guard`) and of the worker processes that it starts.

Theory of operation
-------------------
The host sends its orders over one ordered channel and never waits for the guard, so a stopped guard
holds up no loop.  Bytes that cannot be sent at once are sent by a task.

A worker has ended when the guard has reaped it, or, once the guard itself is dead, when no process
of the guard's tree is left: then the pipe that all of them hold is closed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import final

import trio

from ..net import open_background
from ..net.forks import forget_in_children
from .allocator import ENVIRON
from .guard import DEADLINE, ENDED, FAILED, KILL, READY, RECORD, START, STARTED
from .processes import (
    REAP_S,
    ROOT,
    WorkerProcess,
    beyond_standard,
    boot_of,
    describe_exit,
    wait_ended,
)

_log = logging.getLogger("trio_envserve.server")

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from trio_envserve.host.guard import "
    "main; main()"
)
_KILLED = -9
GUARD_DEAD = "its guard has ended, and all workers with it"


@final
class GuardedChild:
    """The host's record of a process that the guard has started."""

    def __init__(self) -> None:
        self.pid = 0
        """Process id; 0 until the guard has reported it."""
        self.returncode: int | None = None
        self.how = ""
        self.ended = trio.Event()
        self.when_started: Callable[[int], None] = lambda pid: None

    def poll(self) -> int | None:
        """The exit status, or None; like :meth:`subprocess.Popen.poll`."""
        return self.returncode

    def wait(self) -> int:
        """The exit status; only after :attr:`ended`."""
        assert self.returncode is not None
        return self.returncode

    def end(self, returncode: int, how: str) -> None:
        """Note that the process is dead."""
        self.returncode, self.how = returncode, how
        self.ended.set()


@final
class GuardedProcess(WorkerProcess):
    """One worker process.  Made by :meth:`Guard.start`.  A failed start counts as its end."""

    def __init__(
        self, child: GuardedChild, link: socket.socket, signs: socket.socket,
        kill: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(child, link, signs)
        self._child = child
        self._kill = kill

    def tell_started(self, started: Callable[[int], None]) -> None:
        """Call ``started`` with the pid once the guard has reported it."""
        self._child.when_started = started
        if self._child.pid:
            started(self._child.pid)

    def _signal_all(self) -> None:
        self._kill()

    async def wait(self) -> str:
        """Wait until the guard has reaped the process, or the guard's whole tree is dead."""
        await self._child.ended.wait()
        return self._child.how


@final
class Guard:
    """A running guard.  Made by :func:`open_guard`."""

    def __init__(
        self, reaper: subprocess.Popen[bytes], channel: socket.socket, life: socket.socket
    ) -> None:
        self.pid = 0
        self.unlocked = ""
        """Reason for which its memory is not locked; empty if it is locked."""
        self.ready = trio.Event()
        """Set when the guard runs, or has ended."""
        self.ended = trio.Event()
        """Set when no process of the guard's tree is left."""
        self._reaper = reaper
        self._channel = channel
        self._life = life
        self._children: dict[int, GuardedChild] = {}
        self._numbers = 0
        self._unsent: deque[tuple[bytes, list[socket.socket | int]]] = deque()
        self._more = trio.Event()
        self._hung_up = False
        channel.setblocking(False)
        forget_in_children(self)

    # -- orders of the host ---------------------------------------------------

    def set_deadline(self, boot_s: float) -> None:
        """Tell the guard the time of CLOCK_BOOTTIME by which it and all workers must be dead,
        unless a later call moves it.  Holds for all workers that are started after this call."""
        self._say(DEADLINE, 0, int(boot_s * 1e9))

    def start(
        self, *, environ: Mapping[str, str], locks: Sequence[int] = (),
        command: Sequence[str] = (), python: str | None = None,
    ) -> GuardedProcess:  # fmt: skip
        """Start a worker as a child of the guard, like :func:`~.processes.start_process`.  Raises
        OSError if this process has no descriptor left."""
        self._numbers += 1
        number = self._numbers
        said = {
            "boot": boot_of(python),
            "command": list(command),
            "environ": {**ENVIRON, **os.environ, **environ},
        }
        with ExitStack() as ours, ExitStack() as theirs:
            ends: list[socket.socket] = []
            given: list[socket.socket] = []
            for _ in range(2):
                end, other = socket.socketpair()
                ends.append(ours.enter_context(end))
                given.append(theirs.enter_context(other))
            ours.pop_all()
            theirs.pop_all()
        child = GuardedChild()
        process = GuardedProcess(child, ends[0], ends[1], lambda: self._say(KILL, number, 0))
        if self._hung_up:
            for other in given:
                other.close()
            child.end(_KILLED, GUARD_DEAD)
        else:
            self._children[number] = child
            payload = json.dumps(said).encode()
            self._unsent.append((RECORD.pack(START, number, len(payload)), [*given, *locks]))
            self._unsent.append((payload, []))
            self._send()
        return process

    def _say(self, kind: int, number: int, value: int) -> None:
        self._unsent.append((RECORD.pack(kind, number, value), []))
        self._send()

    def _send(self) -> None:
        """Send what can be sent now."""
        if self._hung_up:
            self._drop()
        while self._unsent:
            data, given = self._unsent[0]
            try:
                if given:
                    fds = [each if isinstance(each, int) else each.fileno() for each in given]
                    sent = socket.send_fds(self._channel, [data], fds)
                else:
                    sent = self._channel.send(data)
            except BlockingIOError:
                self._more.set()
                return
            except OSError:  # the guard is dead: run() reports the end of all its workers
                self._drop()
                return
            _close(given)
            if sent < len(data):
                self._unsent[0] = (data[sent:], [])
            else:
                self._unsent.popleft()

    def _drop(self) -> None:
        while self._unsent:
            _close(self._unsent.popleft()[1])

    # -- its life -------------------------------------------------------------

    async def run(self) -> None:
        """Serve the guard until no process of it is left."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_later)
            nursery.start_soon(self._listen)
            await trio.lowlevel.wait_readable(self._life)
            await wait_ended(self._reaper)
            self._reaper.wait()
            nursery.cancel_scope.cancel()
        # The guard's last reports say how some of the workers ended.
        self._take_in()
        self._hung_up = True
        self._drop()
        for child in self._children.values():
            child.end(_KILLED, GUARD_DEAD)
        self._children.clear()
        self.ended.set()
        self.ready.set()

    async def _send_later(self) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._unsent:
                await trio.lowlevel.wait_writable(self._channel)
                self._send()

    async def _listen(self) -> None:
        while self._take_in():
            await trio.lowlevel.wait_readable(self._channel)

    def _take_in(self) -> bool:
        """Read the guard's reports; False after the last one."""
        while True:
            try:
                # Whole records only: each was sent by one call.
                data = self._channel.recv(RECORD.size, socket.MSG_PEEK)
                if 0 < len(data) < RECORD.size:
                    return True
                self._channel.recv(len(data))
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._on_report(*RECORD.unpack(data))

    def _on_report(self, kind: int, number: int, value: int) -> None:
        if kind == READY:
            self.pid, self.unlocked = number, os.strerror(value) if value else ""
            self._warn()
            self.ready.set()
        elif kind == STARTED:
            child = self._children[number]
            child.pid = value
            child.when_started(value)
        elif kind == FAILED:
            how = f"it could not be started: {os.strerror(value)}"
            self._children.pop(number).end(1, how)
        elif kind == ENDED:
            self._children.pop(number).end(value, describe_exit(value))

    def _warn(self) -> None:
        if self.unlocked:
            _log.warning(
                "the memory of the guard of the workers cannot be locked (%s): raise that "
                "limit (ulimit -l)", self.unlocked,
            )  # fmt: skip

    def hang_up(self) -> None:
        """End the guard and all that it has started."""
        self._hung_up = True
        self._drop()
        with suppress(OSError):  # the guard has ended
            self._channel.shutdown(socket.SHUT_WR)

    def forget(self) -> None:
        """Close this process's ends of the sockets: at the end, and in a forked child."""
        self._hung_up = True
        self._drop()
        self._channel.close()
        self._life.close()


@asynccontextmanager
async def open_guard(locks: Sequence[int] = ()) -> AsyncIterator[Guard]:
    """Open a guard without a deadline, under which no worker can start yet.  At the end of the
    block all processes that it has started are dead.  Reaper and guard hold the locks as well.

    Raises OSError if the guard cannot be started."""

    async def run(serve: Callable[[Guard], Awaitable[None]]) -> None:
        guard = start_guard(locks)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(guard.run)
                try:
                    await guard.ready.wait()
                    if not guard.pid:
                        raise OSError("the guard of the workers ended before it was ready")
                    await serve(guard)
                finally:
                    guard.hang_up()
                with trio.move_on_after(REAP_S):
                    await guard.ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            guard.forget()

    async with open_background(run) as guard:
        yield guard


def start_guard(locks: Sequence[int] = ()) -> Guard:
    """Start a guard, which accepts orders at once; the caller runs :meth:`Guard.run`.  Raises
    OSError."""
    with ExitStack() as kept, ExitStack() as given:
        channel, other = socket.socketpair()
        kept.enter_context(channel)
        life, held = socket.socketpair()
        kept.enter_context(life)
        for theirs in (other, held):
            given.enter_context(theirs)
        numbers = [beyond_standard(each.fileno(), given) for each in (other, held)]
        inherited = [*numbers, *(beyond_standard(lock, given) for lock in locks)]
        reaper = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, ROOT, *map(str, numbers), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            process_group=0,
            pass_fds=inherited,
        )
        kept.pop_all()
    return Guard(reaper, channel, life)


def _close(given: Sequence[socket.socket | int]) -> None:
    for each in given:
        if not isinstance(each, int):
            each.close()
