"""Worker processes: started, listened to, killed with all they started, reaped.

Theory of operation
-------------------
The process that is started here becomes the guard of a worker (:mod:`~trio_envserve.worker.guard`),
and the worker is its child.  Three socket pairs join them to the server, and nothing else does: a
worker has no address.  The *link* carries messages both ways; the first one is the configuration.
The *signs* carry the worker's heartbeat, and their end tells the worker that the server is gone.
On the *guard socket* the server learns the worker's process id and moves the worker's deadline, and
its end has the worker killed.

A worker that is silent, though its process runs, is asked who holds its interpreter
(:mod:`~trio_envserve.worker.held`).

A worker that is another program is started in the same way: the process begins as ours, below its
guard, and becomes that program.

The end of a guard is noticed through its pidfd, without a thread; if there is none, by polling.  A
guard ends as its worker has ended, and after all that the worker has started.  One that is
stopped when it should end is continued.  One that does not end all the same is killed, and its
death kills the worker.
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
from typing import IO, final

import trio

from ..commands import describe_exit
from ..core.heartbeat import (
    HEARTBEAT_LINE_BYTES,
    STACKS_APART,
    Heartbeat,
    HeartbeatLines,
    StackQuestion,
)
from ..core.stack_frames import dumped_stacks, holder_in
from ..net.forks import forget_in_children
from ..redaction import redacted
from ..worker.guard import DEADLINE, STARTED
from ..worker.held import Question, ThreadWatch, make_answers
from ..worker.main import CANNOT_RUN
from ..worker.reaper import END_S
from .allocator import ENVIRON

_log = logging.getLogger("trio_envserve.server")

_MAIN = "from trio_envserve.worker.main import main; main()"
_BOOT = f"import sys; sys.path.insert(0, sys.argv.pop(1)); {_MAIN}"
_MEANINGS = {CANNOT_RUN: ": its command could not be run"}
_POLL_S = 0.05
_INSIST_S = END_S + 1.0
"""Time after which a guard is killed that has not killed its worker, in seconds."""
REAP_S = _INSIST_S + 1.0
"""Time for which an ending server waits for a killed process, in seconds: a process in a system
call that does not return (on a network file system) cannot be reaped."""
ASKED_MOST = 4
"""Most threads of a silent process that are asked where they stand."""
_STANDARD_STREAMS = 3
ROOT = str(Path(__file__).resolve().parent.parent.parent)


@final
class WorkerProcess:
    """One worker process, with its guard.  Made by :func:`start_process`."""

    def __init__(
        self, guard: subprocess.Popen[bytes], link: socket.socket, signs: socket.socket,
        guard_socket: socket.socket, answers: IO[bytes],
    ) -> None:  # fmt: skip
        self.pid = 0
        """Process id of the worker; 0 until the worker has said it."""
        self.unlocked = ""
        """Reason for which the memory of its fuse is not locked; empty if it is."""
        self._guard = guard
        self.link = link
        """The server's end; the stream over it closes it."""
        self._signs = signs
        self._guard_socket = guard_socket
        self._answers = answers
        """File in which threads of the worker write where they stand."""
        for each in (signs, guard_socket):
            each.setblocking(False)
        self._killed = trio.Event()
        self._forgotten = False
        forget_in_children(self)

    def set_deadline(self, boot_s: float) -> None:
        """Move the time of CLOCK_BOOTTIME by which worker and fuse must be dead.  A fuse that does
        not read keeps the deadline that it has."""
        with contextlib.suppress(OSError):
            self._guard_socket.send(DEADLINE.pack(nanoseconds(boot_s)))

    def kill(self) -> None:
        """Kill the worker and all that it has started, if its guard has not been reaped."""
        if self._guard.returncode is None and not self._forgotten:
            with contextlib.suppress(OSError):  # the other side has ended it
                self._guard_socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                # If it is stopped: only the guard can kill all that the worker has started.
                os.kill(self._guard.pid, signal.SIGCONT)
            self._killed.set()

    def hang_up(self) -> None:
        """End both sockets: to the worker, this is the end of its server."""
        for end in (self.link, self._signs):
            with contextlib.suppress(OSError):  # the other side has ended it
                end.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """In a forked child of the server: the worker belongs to the parent."""
        self._forgotten = True
        for each in (self.link, self._signs, self._guard_socket, self._answers):
            each.close()

    def ask(self, question: StackQuestion) -> None:
        """Ask the heartbeat thread where an execution stands.  A process that does not read
        is not asked: who wants to know asks again."""
        with contextlib.suppress(OSError):
            self._signs.send(question.to_line(), socket.MSG_DONTWAIT)

    async def listen(
        self, on_heartbeat: Callable[[Heartbeat], None], heartbeat_s: float = 1.0
    ) -> None:
        """Pass on the worker's heartbeat until the process ends, and who holds its interpreter
        while there is none."""
        lines = HeartbeatLines()
        warned = False
        watch: ThreadWatch | None = None
        while True:
            with trio.move_on_after(2 * heartbeat_s if watch is None else heartbeat_s) as scope:
                await trio.lowlevel.wait_readable(self._signs)
            if scope.cancelled_caught:
                watch = watch or ThreadWatch(self.pid)
                holder = await self._holder(watch.look()) if self.pid else None
                if holder is not None:
                    on_heartbeat(holder)
                continue
            watch = None
            try:
                data = self._signs.recv(HEARTBEAT_LINE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            try:
                heartbeats = lines.feed(data)
            except ValueError as error:
                if not warned:
                    _log.warning("pid %d sends a malformed heartbeat: %s", self.pid, error)
                warned = True
            else:
                for heartbeat in heartbeats:
                    on_heartbeat(heartbeat)

    async def _holder(self, threads: list[int]) -> Heartbeat | None:
        """Who holds the interpreter, of these threads; nobody if there is a heartbeat meanwhile."""
        stacks: list[str] = []
        for thread in threads[:ASKED_MOST]:
            question = Question(self.pid, thread, self._answers)
            while not question.is_over():
                with trio.move_on_after(_POLL_S):
                    await trio.lowlevel.wait_readable(self._signs)
                    return None
            stacks += filter(None, dumped_stacks(question.answer()))
        request, stacks = holder_in(stacks)
        if not stacks:
            return None  # it is none of the environment's code
        return Heartbeat(where=redacted(STACKS_APART.join(stacks)), holder=request)

    async def wait(self, started: Callable[[int], None] = lambda pid: None) -> str:
        """Wait until the worker is dead with all that it has started; returns how it ended.
        ``started`` is called with the worker's process id when the worker has said it."""
        async with trio.open_nursery() as nursery:
            # A guard that was killed ends before its worker does.
            nursery.start_soon(self._follow_guard_socket, started)
            async with trio.open_nursery() as meanwhile:
                meanwhile.start_soon(self._insist)
                await _wait_ended(self._guard)
                meanwhile.cancel_scope.cancel()
        return describe_exit(self._guard.wait(), _MEANINGS)

    async def _follow_guard_socket(self, started: Callable[[int], None]) -> None:
        """Take the worker's process id, and wait until worker and guard are dead."""
        while True:
            await trio.lowlevel.wait_readable(self._guard_socket)
            try:
                report = self._guard_socket.recv(STARTED.size)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not report:
                return
            if not self.pid and len(report) == STARTED.size:  # later ones are the environment's
                self.pid, failed = STARTED.unpack(report)
                self.unlocked = os.strerror(failed) if failed else ""
                started(self.pid)

    async def _insist(self) -> None:
        await self._killed.wait()
        await trio.sleep(_INSIST_S)
        os.kill(self._guard.pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """Kill and reap the processes if that has not happened, and close the sockets."""
        self.kill()
        if self._guard.returncode is None:
            with trio.move_on_after(REAP_S, shield=True):
                await self.wait()
        for each in (self._signs, self._guard_socket, self.link, self._answers):
            each.close()


def start_process(
    *, environ: Mapping[str, str], locks: Sequence[int] = (), command: Sequence[str] = (),
    python: str | None = None, deadline_s: float | None = None,
) -> WorkerProcess:  # fmt: skip
    """Start a worker that holds these locks, too: this package's own, or a command.
    ``python``: another interpreter, which has this package.  ``deadline_s``: the time of
    CLOCK_BOOTTIME by which the worker must be dead, unless that is moved; None: it has none.
    Raises OSError if the system has no process or descriptor left."""
    with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
        starting = _Starting(given, kept)
        forget_in_children(starting)
        ends: list[socket.socket] = []
        inherited: list[int] = []
        for _ in range(3):
            ours, theirs = socket.socketpair()
            ends.append(kept.enter_context(ours))
            inherited.append(beyond_standard(given.enter_context(theirs).fileno(), given))
        answers = kept.enter_context(make_answers())
        inherited.append(beyond_standard(answers.fileno(), given))
        held = [beyond_standard(lock, given) for lock in locks]
        deadline_ns = -1 if deadline_s is None else nanoseconds(deadline_s)
        words = [*map(str, inherited), ",".join(map(str, held)) or "-1"]
        guard = subprocess.Popen(
            [*boot_of(python), *words, str(os.getpid()), str(deadline_ns), *command],
            stdin=subprocess.DEVNULL,
            process_group=0,
            pass_fds=[*inherited, *held],
            env={**ENVIRON, **os.environ, **environ},
        )
        link, signs, guard_socket = ends
        process = WorkerProcess(guard, link, signs, guard_socket, answers)
        kept.pop_all()
        return process


@final
class _Starting:
    """The sockets of a worker that is being started: another thread may fork meanwhile, and a
    child that kept the worker's ends would hide the worker's death."""

    def __init__(self, *ends: contextlib.ExitStack) -> None:
        self._ends = ends

    def forget(self) -> None:
        """In a forked child: close them."""
        for each in self._ends:
            each.close()


def nanoseconds(boot_s: float) -> int:
    """A deadline as it is sent."""
    return max(int(boot_s * 1e9), 0)


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


async def _wait_ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until the child has ended, without reaping it if the system has pidfds."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # No such call (macOS, some sandboxes), or no descriptor left.
        while process.poll() is None:  # noqa: ASYNC110
            await trio.sleep(_POLL_S)
        return
    try:
        await trio.lowlevel.wait_readable(fd)
    finally:
        trio.lowlevel.notify_closing(fd)
        os.close(fd)
