"""Worker processes: started, listened to, killed with all they started, reaped.

Theory of operation
-------------------
A worker is its own process group and session-less child, started from the
loop's own thread (Linux's parent-death signal follows the *thread*).  Two
socket pairs join it to the server, and nothing else does: it has no address.
On the *link* messages go both ways, the first of them the configuration.  On the
*signs* pulses come in, and their end tells the worker that the server is gone.

A worker that is another program is started in the same way: the process begins as
ours, with its guard, and becomes that program.

The end of a process is noticed through its pidfd, without a thread; where
there is none, it is looked for often.  The process is killed by its own id, for it
may have left its group, and with its group, while neither id can have been given
away yet, that is, before it is reaped.  What it has started in other groups or
sessions is not known here, and lives on.
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
from typing import final

import trio

from ..core.pulse import PULSE_LINE_BYTES, Pulse, PulseLines
from ..net.forks import forget_in_children
from ..worker.main import CANNOT_RUN
from .allocator import ENVIRON

_log = logging.getLogger("trio_envserve.server")

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from trio_envserve.worker.main import main; main()"
)
_MEANINGS = {
    3: ": its environment could not be set up",
    CANNOT_RUN: ": its command could not be run",
}
_POLL_S = 0.05
REAP_S = 5.0
"""Longer a killed process is not waited for where a server must end: one in the middle of
a system call that does not return (a network file system) cannot be reaped by anybody."""
_STANDARD_STREAMS = 3
_ROOT = str(Path(__file__).resolve().parent.parent.parent)


@final
class WorkerProcess:
    """One worker process.  Made by :func:`start_process`."""

    def __init__(
        self, process: subprocess.Popen[bytes], link: socket.socket, signs: socket.socket
    ) -> None:
        self._process = process
        self.link = link
        """The server's end; who opens a stream over it closes it."""
        self._signs = signs
        signs.setblocking(False)
        self._forgotten = False
        forget_in_children(self)

    @property
    def pid(self) -> int:
        """The process id; its process group had the same at its start."""
        return self._process.pid

    def kill(self) -> None:
        """Kill it and what it has started, if it has not been reaped."""
        if self._process.returncode is None and not self._forgotten:
            self._signal_all()

    def _signal_all(self) -> None:
        for send in (os.kill, os.killpg):
            # Not permitted: what macOS says of a group whose processes have all ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """End both sockets: to the worker, this is the end of its server."""
        for end in (self.link, self._signs):
            with contextlib.suppress(OSError):  # it has ended from the other side
                end.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """This is a forked child of the server: the worker is not its own."""
        self._forgotten = True
        self.link.close()
        self._signs.close()

    async def listen(self, heard: Callable[[Pulse], None]) -> None:
        """Pass on what its heartbeat thread says, until the process ends."""
        lines = PulseLines()
        warned = False
        while True:
            await trio.lowlevel.wait_readable(self._signs)
            try:
                data = self._signs.recv(PULSE_LINE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            try:
                pulse = lines.feed(data)
            except ValueError as error:
                if not warned:
                    _log.warning("pid %d sends signs of life that are %s", self.pid, error)
                warned = True
            else:
                if pulse is not None:
                    heard(pulse)

    async def wait(self) -> str:
        """Until it has ended; kills what it started, reaps it, says how it ended."""
        await _wait_ended(self._process)
        self._signal_all()
        how = describe_exit(self._process.wait())
        # As process 1 of a container, this one inherits the guard: reap that too.
        with contextlib.suppress(ChildProcessError), trio.move_on_after(1.0):
            while True:
                if not os.waitpid(-self.pid, os.WNOHANG)[0]:  # noqa: ASYNC222
                    await trio.sleep(0.01)
        return how

    async def aclose(self) -> None:
        """Kill and reap it if that has not happened, and close the sockets."""
        self.kill()
        if self._process.returncode is None:
            with trio.move_on_after(REAP_S, shield=True):
                await self.wait()
        self._signs.close()
        self.link.close()


def start_process(
    *, environ: Mapping[str, str], lock: int | None, command: Sequence[str] = ()
) -> WorkerProcess:
    """Start a worker that holds the lock, too: this package's own, or a command that
    becomes one.  OSError if the system has no process or descriptor to give."""
    with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
        ends: list[socket.socket] = []
        inherited: list[int] = []
        for _ in range(2):
            ours, theirs = socket.socketpair()
            ends.append(kept.enter_context(ours))
            inherited.append(_beyond_standard(given.enter_context(theirs).fileno(), given))
        if lock is not None:
            inherited.append(_beyond_standard(lock, given))
        numbers = [*inherited, -1][:3]
        process = subprocess.Popen(
            [
                sys.executable, "-P", "-c", _BOOT, _ROOT,
                *map(str, numbers), str(os.getpid()), *command,
            ],
            stdin=subprocess.DEVNULL,
            process_group=0,
            pass_fds=inherited,
            env={**ENVIRON, **os.environ, **environ},
        )  # fmt: skip
        kept.pop_all()
        return WorkerProcess(process, *ends)


def _beyond_standard(descriptor: int, stack: contextlib.ExitStack) -> int:
    """A copy that is no standard stream's number: where this process has closed one, its
    number is given away again, and a worker makes its own streams of those."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _STANDARD_STREAMS)
    stack.callback(os.close, copy)
    return copy


def describe_exit(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        return f"it exited with status {returncode}{_MEANINGS.get(returncode, '')}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"it was ended by {name}"


async def _wait_ended(process: subprocess.Popen[bytes]) -> None:
    """Until the child has ended, without reaping it where the system has pidfds to give."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # No such call (macOS, some sandboxes), or no descriptor left.  Its group's id is
        # not given away as long as the guard is in it.
        while process.poll() is None:  # noqa: ASYNC110
            await trio.sleep(_POLL_S)
        return
    try:
        await trio.lowlevel.wait_readable(fd)
    finally:
        trio.lowlevel.notify_closing(fd)
        os.close(fd)
