"""Worker processes: started, listened to, killed with all they started, reaped.

Theory of operation
-------------------
A worker has a process group of its own and no session of its own.  It is started from
the loop's own thread (Linux's parent-death signal follows the *thread*).  Two socket
pairs join it to the server, and nothing else does: it has no address.  The *link*
carries messages both ways; the first one is the configuration.  The *signs* carry the
worker's heartbeat, and their end tells the worker that the server is gone.

A worker that is another program is started in the same way: the process begins as
ours, with its guard, and becomes that program.

The end of a process is noticed through its pidfd, without a thread; if there is none,
by polling.  The process is killed by its own id, because it may have left its process
group, and with its process group.  This happens before it is reaped, so neither id can
belong to another process yet.  Processes that it has started in other groups or
sessions are not known here, and live on.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import trio

from ..core.heartbeat import HEARTBEAT_LINE_BYTES, Heartbeat, HeartbeatLines, StackQuestion
from ..net.forks import forget_in_children
from ..worker.main import CANNOT_RUN
from .allocator import ENVIRON

_log = logging.getLogger("trio_envserve.server")

_MAIN = "from trio_envserve.worker.main import main; main()"
_BOOT = f"import sys; sys.path.insert(0, sys.argv.pop(1)); {_MAIN}"
_MEANINGS = {
    3: ": its environment could not be set up",
    CANNOT_RUN: ": its command could not be run",
}
_POLL_S = 0.05
REAP_S = 5.0
"""Time for which an ending server waits for a killed process, in seconds: a process in a system
call that does not return (on a network file system) cannot be reaped."""
_STANDARD_STREAMS = 3
STARTED: set[int] = set()
"""The process ids of all workers that this process has started and not reaped."""
ROOT = str(Path(__file__).resolve().parent.parent.parent)


class Child(Protocol):
    """The part of :class:`subprocess.Popen` that is used here."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """The status if it has ended; that reaps it."""
        ...

    def wait(self) -> int:
        """Wait for its end, and reap it."""
        ...


class WorkerProcess:
    """One worker process.  Made by :func:`start_process`."""

    def __init__(self, process: Child, link: socket.socket, signs: socket.socket) -> None:
        self._process = process
        self.link = link
        """The server's end; the stream over it closes it."""
        self._signs = signs
        signs.setblocking(False)
        self._forgotten = False
        forget_in_children(self)

    @property
    def pid(self) -> int:
        """The process id; its process group had the same id at the start."""
        return self._process.pid

    def tell_started(self, started: Callable[[int], None]) -> None:
        """Say the process id, once it is known."""
        started(self.pid)

    def kill(self) -> None:
        """Kill the process and its process group, if it has not been reaped."""
        if self._process.returncode is None and not self._forgotten:
            self._signal_all()

    def _signal_all(self) -> None:
        for send in (os.kill, os.killpg):
            # PermissionError: on macOS, if all processes of the group have ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """End both sockets: to the worker, this is the end of its server."""
        for end in (self.link, self._signs):
            with contextlib.suppress(OSError):  # the other side has ended it
                end.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """In a forked child of the server: the worker belongs to the parent."""
        self._forgotten = True
        self.link.close()
        self._signs.close()

    def ask(self, question: StackQuestion) -> None:
        """Ask the heartbeat thread where an execution stands.  A process that does not read
        is not asked: who wants to know asks again."""
        with contextlib.suppress(OSError):
            self._signs.send(question.to_line(), socket.MSG_DONTWAIT)

    async def listen(self, heard: Callable[[Heartbeat], None]) -> None:
        """Pass on the worker's heartbeat until the process ends."""
        lines = HeartbeatLines()
        warned = False
        while True:
            await trio.lowlevel.wait_readable(self._signs)
            try:
                data = self._signs.recv(HEARTBEAT_LINE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            try:
                heartbeat = lines.feed(data)
            except ValueError as error:
                if not warned:
                    _log.warning("pid %d sends a malformed heartbeat: %s", self.pid, error)
                warned = True
            else:
                if heartbeat is not None:
                    heard(heartbeat)

    async def wait(self) -> str:
        """Wait until the process has ended, kill its process group, reap it; returns how
        it ended."""
        await wait_ended(self._process)
        self._signal_all()
        how = describe_exit(self._process.wait())
        STARTED.discard(self.pid)
        # As process 1 of a container, this one inherits the guard: reap that too.
        with contextlib.suppress(ChildProcessError), trio.move_on_after(1.0):
            while True:
                if not os.waitpid(-self.pid, os.WNOHANG)[0]:  # noqa: ASYNC222
                    await trio.sleep(0.01)
        return how

    async def aclose(self) -> None:
        """Kill and reap the process if that has not happened, and close the sockets."""
        self.kill()
        if self._process.returncode is None:
            with trio.move_on_after(REAP_S, shield=True):
                await self.wait()
        self._signs.close()
        self.link.close()


def start_process(
    *, environ: Mapping[str, str], locks: Sequence[int] = (), command: Sequence[str] = (),
    python: str | None = None,
) -> WorkerProcess:  # fmt: skip
    """Start a worker that holds these locks, too: this package's own, or a command.
    ``python``: another interpreter, which has this package.  Raises OSError if the system
    has no process or descriptor left."""
    with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
        ends: list[socket.socket] = []
        inherited: list[int] = []
        for _ in range(2):
            ours, theirs = socket.socketpair()
            ends.append(kept.enter_context(ours))
            inherited.append(beyond_standard(given.enter_context(theirs).fileno(), given))
        held = [beyond_standard(lock, given) for lock in locks]
        numbers = [*map(str, inherited), ",".join(map(str, held)) or "-1"]
        inherited += held
        process = subprocess.Popen(
            [*boot_of(python), *numbers, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            process_group=0,
            pass_fds=inherited,
            env={**ENVIRON, **os.environ, **environ},
        )
        STARTED.add(process.pid)
        kept.pop_all()
        return WorkerProcess(process, *ends)


def boot_of(python: str | None) -> list[str]:
    """The first words of a worker's command line."""
    if python is None:
        return [sys.executable, "-P", "-c", _BOOT, ROOT]
    return [python, "-P", "-c", _MAIN]


def beyond_standard(descriptor: int, stack: contextlib.ExitStack) -> int:
    """A copy whose number is not a standard stream's.  If this process has closed one,
    its number is used again, and a worker would take it for its own stream."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _STANDARD_STREAMS)
    stack.callback(os.close, copy)
    return copy


def describe_exit(returncode: int) -> str:
    """The end of a process, in words."""
    if returncode >= 0:
        return f"it exited with status {returncode}{_MEANINGS.get(returncode, '')}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"it was ended by {name}"


async def wait_ended(process: Child) -> None:
    """Wait until the child has ended, without reaping it if the system has pidfds."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # No such call (macOS, some sandboxes), or no descriptor left.  The process group's
        # id is not used again as long as the guard is in it.
        while process.poll() is None:  # noqa: ASYNC110
            await trio.sleep(_POLL_S)
        return
    try:
        await trio.lowlevel.wait_readable(fd)
    finally:
        trio.lowlevel.notify_closing(fd)
        os.close(fd)
