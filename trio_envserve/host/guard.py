"""The guard of a host: the parent of its workers, which the kernel kills at a deadline.

Theory of operation
-------------------
A host promises its router that its workers are dead by a deadline (the host lease,
:mod:`~trio_envserve.core.lease`).  The host's own loop cannot keep that promise: it may be held
up, stopped, or asleep with the machine.  So the workers are children of another process, the
guard.  The deadline is a timer of the kernel, on a clock that runs while the machine sleeps, whose
signal is SIGKILL.  Nothing has to be scheduled for that, and a stopped process dies as well.  The
death of the guard kills the workers (parent-death signal), stopped or not.

The guard has one thread, which reads the host's orders from one ordered channel: so a deadline that
was sent before the start of a worker is set before that worker starts.  Without a deadline no
worker starts.  The guard's memory is locked, so that nothing waits for a disk.  The guard kills and
reaps the workers, so the id of a worker cannot belong to another process yet.

The *reaper* stands between the host and the guard.  The kernel makes it the parent of all orphans
of the guard and the workers, in any process group or session (child subreaper).  When the guard or
the host has ended, the reaper kills all of these, and ends.  Reaper, guard and workers hold one end
of a pipe: once that end is closed, all of them are dead.

This module is the main program of both, and imports nothing large.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn, final

DEADLINE, START, KILL = range(3)
"""Kinds of the host's messages.  Each has the number of a worker, and a value: the deadline in
nanoseconds, the length of the record that follows, none."""
READY, STARTED, FAILED, ENDED = range(4)
"""Kinds of the guard's messages.  READY has the guard's pid, and the errno if its memory is not
locked.  The others have the number of a worker, and its pid, the errno of the failed start, or its
exit status."""

RECORD: Final = struct.Struct("<qqq")
"""A message of either side: its kind and two numbers."""

_FDS_MOST = 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIGEV_SIGNAL = 0
BOOTTIME = 7
"""Linux's number of the clock; a system without it has no such name in the module time."""
ABSOLUTE = 1
"""The kernel's flag of timers whose time is one of their clock, not a duration from now."""
TIMER_CLOCK, TIMER_SIGNAL, TIMER_FLAGS = BOOTTIME, signal.SIGKILL, ABSOLUTE
"""The timer of the deadline: on a clock that runs while the machine sleeps, with a signal that
needs nobody to be scheduled."""
_MCL_CURRENT, _MCL_FUTURE = 1, 2
_NS = 1_000_000_000
_DEAF_TO = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGCHLD,
)  # fmt: skip


def main() -> NoReturn:
    """The reaper, which forks the guard.  Arguments: the numbers of the channel and of the pipe,
    and the host's process id.  Other inherited descriptors stay open."""
    channel, life, parent = map(int, sys.argv[1:4])
    for number in _DEAF_TO:
        # A handler and not SIG_IGN, which workers would inherit.
        signal.signal(number, lambda *_: None)
    host = os.pidfd_open(parent)
    if os.getppid() != parent:  # asked after the pidfd was opened: so it is the host's
        os._exit(1)
    libc = _Libc()
    libc.control(_PR_SET_CHILD_SUBREAPER, 1)
    reaper = os.getpid()
    woken = _wake_for_children()
    guard = os.fork()
    try:
        if guard == 0:
            os.close(host)
            libc.control(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == reaper:
                _Guard(socket.socket(fileno=channel), life, _wake_for_children(), libc).run()
        else:
            os.close(channel)
            _keep(host, guard, woken)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the host has ended
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _wake_for_children() -> int:
    """A descriptor that can be read once a child has ended."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def _drain(woken: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(woken, 4096):
            pass


@final
class _Libc:
    """The calls that Python does not have."""

    def __init__(self) -> None:
        self._calls = ctypes.CDLL(None, use_errno=True)

    def control(self, option: int, value: int) -> None:
        self._check(self._calls.prctl(option, ctypes.c_ulong(value)))

    def lock_memory(self) -> int:
        """0, or the error number."""
        most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
        # With a bound, locking what comes later could end this process.
        later = _MCL_FUTURE if most == resource.RLIM_INFINITY else 0
        return ctypes.get_errno() if self._calls.mlockall(_MCL_CURRENT | later) else 0

    def make_timer(self) -> ctypes.c_void_p:
        """A timer that kills this process."""
        event = struct.pack("Pii48x", 0, TIMER_SIGNAL, _SIGEV_SIGNAL)
        timer = ctypes.c_void_p()
        self._check(self._calls.timer_create(TIMER_CLOCK, event, ctypes.byref(timer)))
        return timer

    def set_timer(self, timer: ctypes.c_void_p, at_ns: int) -> None:
        setting = struct.pack("llll", 0, 0, *divmod(max(at_ns, 1), _NS))
        self._check(self._calls.timer_settime(timer, TIMER_FLAGS, setting, None))

    def _check(self, failed: int) -> None:
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# -- the guard ------------------------------------------------------------------------


def may_start(armed: bool) -> bool:
    """Whether a worker may start: only once a deadline was said."""
    return armed


@final
class _Guard:
    def __init__(self, channel: socket.socket, life: int, woken: int, libc: _Libc) -> None:
        self._channel = channel
        self._life = life
        self._woken = woken
        self._libc = libc
        self._timer = libc.make_timer()
        self._armed = False
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        """Follow the host until it hangs up."""
        self._say(READY, os.getpid(), self._libc.lock_memory())
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        following = True
        while following:
            for descriptor, _ in poll.poll():
                if descriptor == self._woken:
                    _drain(self._woken)
                else:
                    following = self._follow()
            self._look()

    def _say(self, *record: int) -> None:
        self._channel.sendall(RECORD.pack(*record))

    def _follow(self) -> bool:
        """Do one thing that the host has said; False at its end."""
        head, fds, _, _ = socket.recv_fds(
            self._channel, RECORD.size, _FDS_MOST, socket.MSG_CMSG_CLOEXEC
        )
        try:
            if not head:
                return False
            kind, number, value = RECORD.unpack(head + self._exactly(RECORD.size - len(head)))
            if kind == DEADLINE:
                self._libc.set_timer(self._timer, value)
                self._armed = True
            elif kind == START:
                self._start(number, self._exactly(value), fds)
            elif number in self._children:
                _kill_group(self._children[number].pid)
            return True
        finally:
            for descriptor in fds:
                os.close(descriptor)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += (more := self._channel.recv(size - len(data)))
            if not more:
                os._exit(0)
        return bytes(data)

    def _start(self, number: int, said: bytes, fds: list[int]) -> None:
        if not may_start(self._armed):
            self._say(FAILED, number, errno.EPERM)
            return
        link, signs, *locks = fds
        held = ",".join(map(str, [*locks, self._life]))
        given = json.loads(said)
        words = [str(link), str(signs), held, str(os.getpid())]
        try:
            process = subprocess.Popen(
                [*given["boot"], *words, *given["command"]],
                stdin=subprocess.DEVNULL,
                process_group=0,
                pass_fds=[*fds, self._life],
                env=given["environ"],
                preexec_fn=self._die_with_guard,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._say(FAILED, number, getattr(error, "errno", 0) or errno.EIO)
        else:
            self._children[number] = process
            self._say(STARTED, number, process.pid)

    def _die_with_guard(self) -> None:
        self._libc.control(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def _look(self) -> None:
        """Reap the workers that have ended, and say so."""
        for number, process in list(self._children.items()):
            # Not reaped yet: so its group's id is no other's.
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, process.pid, ended) is not None:
                _kill_group(process.pid)
                del self._children[number]
                self._say(ENDED, number, process.wait())


def _kill_group(pid: int) -> None:
    """Kill a process, which may have left its group, and that group."""
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)


# -- the reaper -----------------------------------------------------------------------


def _keep(host: int, guard: int, woken: int) -> None:
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while all(descriptor != host for descriptor, _ in poll.poll()):
        _drain(woken)
        if _reap(guard):
            break
    else:
        os.kill(guard, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # there is no child left
        while True:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _reap(guard: int) -> bool:
    """Reap what has been left behind and has ended.  Whether the guard was among it."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            if pid == guard:
                return True
    return False


def _children() -> list[int]:
    """The children of this process that are not reaped."""
    own, found = os.getpid(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[1]) == own:
                found.append(int(process.name))
    return found
