"""Worker processes: started, listened to, killed with all they started, reaped.

Theory of operation
-------------------
A worker is its own process group and session-less child, started from the
loop's own thread (Linux's parent-death signal follows the *thread*).  One
socket pair joins it to the server: the configuration goes out, pulses come
in, and its end tells the worker that the server is gone.

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

import trio

from ..net.forks import forget_in_children
from ..worker.config import WorkerConfig
from ..worker.pulse import PULSE_LINE_BYTES, Pulse, PulseLines
from .allocator import ENVIRON

_log = logging.getLogger("trio_envserve.server")

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from trio_envserve.worker.main import main; main()"
)
_POLL_S = 0.05
_STANDARD_STREAMS = 3
_ROOT = str(Path(__file__).resolve().parent.parent.parent)


@final
class WorkerProcess:
    """One worker process.  Made by :func:`start_process`."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, line: bytes = b""
    ) -> None:
        self._process = process
        self._socket = channel
        channel.setblocking(False)
        self._channel = trio.SocketStream(trio.socket.from_stdlib_socket(channel))
        self._line = line
        """Its configuration, which :meth:`listen` hands over."""
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

    def forget(self) -> None:
        """This is a forked child of the server: the worker is not its own."""
        self._forgotten = True
        self._socket.close()  # not trio's, which would tell the loop of both processes

    async def listen(self, heard: Callable[[Pulse], None]) -> None:
        """Give it its configuration; then pass on what its heartbeat thread says,
        until the process ends."""
        lines = PulseLines()
        warned = False
        with contextlib.suppress(trio.BrokenResourceError):
            # May be longer than the socket holds, and the process may never read it.
            await self._channel.send_all(self._line)
            while data := await self._channel.receive_some(PULSE_LINE_BYTES):
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
        """Kill and reap it if that has not happened, and close the channel."""
        self.kill()
        if self._process.returncode is None:
            with trio.CancelScope(shield=True):
                await self.wait()
        await self._channel.aclose()


def start_process(
    config: WorkerConfig, *, environ: Mapping[str, str], lock: int | None
) -> WorkerProcess:
    """Start a worker that holds the lock, too; OSError if the system has none to give,
    TypeError if the configuration is not JSON."""
    line = config.to_line()
    ours, theirs = socket.socketpair()
    try:
        with theirs, contextlib.ExitStack() as stack:
            given = [theirs.fileno()] if lock is None else [theirs.fileno(), lock]
            inherited = [_beyond_standard(descriptor, stack) for descriptor in given]
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, _ROOT, *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                process_group=0,
                pass_fds=inherited,
                env={**ENVIRON, **os.environ, **environ},
            )
        return WorkerProcess(process, ours, line)
    except BaseException:
        ours.close()
        raise


def _beyond_standard(descriptor: int, stack: contextlib.ExitStack) -> int:
    """A copy that is no standard stream's number: where this process has closed one, its
    number is given away again, and a worker makes its own streams of those."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _STANDARD_STREAMS)
    stack.callback(os.close, copy)
    return copy


def describe_exit(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        meaning = {0: "", 3: ": its environment could not be set up"}.get(returncode, "")
        return f"it exited with status {returncode}{meaning}"
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
