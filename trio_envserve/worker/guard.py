"""The guard of a worker: its parent, which ends whatever the worker has started.

Theory of operation
-------------------
The process that a server starts becomes the *guard*, and forks the worker while it is small and has
one thread.  The guard waits for the end of the worker and for that of the server.  Then it kills
all processes below it, and ends as the worker has ended.  On Linux these are all processes that the
worker has started, in any process group or session: the kernel makes the guard the parent of each
process whose own parent has ended (child subreaper), and the guard reaps it.  Elsewhere they are
the worker and its process group.  So a server that has reaped a guard knows that all of it is dead.

The guard is killed by nothing that is meant for the worker: it is in another process group.  If it
is killed nevertheless, the kernel kills the worker (parent-death signal).  Then the server waits
for the end of the *guard socket*, which guard and worker hold.  The worker says its process id on
it.  The server ends it to have the worker killed.

A worker with a deadline (the host lease, :mod:`~trio_envserve.core.lease`) has a *fuse* above it: a
process between guard and worker that the kernel kills at the deadline.  The deadline is a timer on
a clock that runs while the machine sleeps, whose signal is SIGKILL.  Nothing has to be scheduled
for that, and a stopped process dies as well.  The death of the fuse kills the worker, stopped or
not, and the guard kills the others.  The fuse has one thread and does nothing but read later
deadlines from the guard socket.  Its memory is locked, so that nothing waits for a disk.

Guard and fuse hold the worker's locks, too.  So the next holder of these locks knows that all of it
is dead.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import socket
import struct
from collections.abc import Sequence
from typing import Final, NoReturn, final

from . import folders
from .reaper import (
    be_deaf,
    become_subreaper,
    die_with_parent,
    drain,
    end_as,
    kill_group,
    kill_others,
    reap,
    wait_for_all,
    woken_by_children,
)

STARTED: Final = struct.Struct("<qq")
"""Message of the worker: its process id, and the errno if the memory of its fuse is not locked."""
DEADLINE: Final = struct.Struct("<q")
"""Message of the host: the deadline in nanoseconds of CLOCK_BOOTTIME."""

BOOTTIME = 7
"""Linux's number of the clock; a system without it has no such name in the module time."""
ABSOLUTE = 1
"""The kernel's flag of timers whose time is one of their clock, not a duration from now."""
TIMER_CLOCK, TIMER_SIGNAL, TIMER_FLAGS = BOOTTIME, signal.SIGKILL, ABSOLUTE
"""The timer of the deadline: on a clock that runs while the machine sleeps, with a signal that
needs nobody to be scheduled."""
SWEEP_S = 0.5
"""Time for which a guard waits until the folders of its worker are removed, in seconds.  Nobody
waits longer for the proof that the worker is dead."""

_DESCRIPTORS = 1 << 16
"""More than the number of any descriptor of a guard."""

_SIGEV_SIGNAL = 0
_MCL_CURRENT, _MCL_FUTURE = 1, 2
_NS = 1_000_000_000
_ENDED = getattr(select, "POLLRDHUP", select.POLLIN)
"""The other side has ended a socket.  Where the system does not tell that, nothing is sent either:
deadlines are of hosts, which run on Linux."""


def may_start(armed: bool) -> bool:
    """Whether a host may start a worker: only once it has a deadline."""
    return armed


def start_guard(
    guard_socket: socket.socket, server: int, deadline_ns: int | None, *, unused: Sequence[int] = ()
) -> int:
    """Fork the worker, and return in it: the process id of its parent.  This process stays behind
    as the guard.

    Call it before any thread is started.  ``server`` must be the parent of this process; if it is
    not, it has ended, and this process ends, too.  ``deadline_ns``: the worker's deadline; None if
    it has none.  ``unused``: descriptors that are the worker's only.
    """
    server_pidfd = _open_pidfd(server)
    if os.getppid() != server:  # asked after the pidfd was opened: so it is the server's
        os._exit(1)
    folders.temporary()  # before code of rollouts can change it
    libc = _Libc()
    become_subreaper(libc.calls)
    unlocked, parent = 0, os.getpid()
    with woken_by_children() as woken:
        child = os.fork()
        if child:
            be_deaf(unused)
            _guard(guard_socket, server, server_pidfd, child, woken)
    if server_pidfd is not None:
        os.close(server_pidfd)
    if deadline_ns is not None:
        die_with_parent(parent)
        unlocked, timer = libc.lock_memory(), libc.make_timer()
        libc.set_timer(timer, deadline_ns)
        parent = os.getpid()
        with woken_by_children() as woken:
            child = os.fork()
            if child:
                be_deaf(unused)
                _burn(guard_socket, child, woken, libc, timer)
    os.setpgid(0, 0)
    die_with_parent(parent)
    with contextlib.suppress(OSError):  # the server has ended
        guard_socket.send(STARTED.pack(os.getpid(), unlocked))
    return parent


def _open_pidfd(pid: int) -> int | None:
    try:
        opened = os.pidfd_open(pid)
        # If standard streams were closed, it may have the number of one.
        moved = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
    except (AttributeError, OSError):  # no such call (macOS, some sandboxes), or none left
        return None
    os.close(opened)
    return moved


@final
class _Libc:
    """The calls that Python does not have."""

    def __init__(self) -> None:
        self.calls = ctypes.CDLL(None, use_errno=True)

    def lock_memory(self) -> int:
        """0, or the error number."""
        limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limits[1], limits[1]))
        # With a bound, locking what comes later could end this process.
        later = _MCL_FUTURE if limits[1] == resource.RLIM_INFINITY else 0
        failed = self.calls.mlockall(_MCL_CURRENT | later)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)  # the worker inherits it
        return ctypes.get_errno() if failed else 0

    def make_timer(self) -> ctypes.c_void_p:
        """A timer that kills this process."""
        event = struct.pack("Pii48x", 0, TIMER_SIGNAL, _SIGEV_SIGNAL)
        timer = ctypes.c_void_p()
        self._check(self.calls.timer_create(TIMER_CLOCK, event, ctypes.byref(timer)))
        return timer

    def set_timer(self, timer: ctypes.c_void_p, at_ns: int) -> None:
        setting = struct.pack("llll", 0, 0, *divmod(max(at_ns, 1), _NS))
        self._check(self.calls.timer_settime(timer, TIMER_FLAGS, setting, None))

    def _check(self, failed: int) -> None:
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# -- the fuse -------------------------------------------------------------------------


def _burn(
    guard_socket: socket.socket, worker: int, woken: int, libc: _Libc, timer: ctypes.c_void_p
) -> NoReturn:
    """Take deadlines until the worker has ended."""
    try:
        poll = select.poll()
        poll.register(guard_socket, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while (status := reap(worker)) is None:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    drain(woken)
                elif deadline := guard_socket.recv(DEADLINE.size):
                    libc.set_timer(timer, *DEADLINE.unpack(deadline))
                else:  # the guard kills this process
                    poll.unregister(guard_socket)
        end_as(status)
    finally:
        os._exit(1)


# -- the guard ------------------------------------------------------------------------


def _guard(
    guard_socket: socket.socket, server: int, server_pidfd: int | None, child: int, woken: int
) -> NoReturn:
    """Wait for the end of the child or of the server, and kill what is left."""
    try:
        _start_sweep()
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(guard_socket, _ENDED)
        watched = [guard_socket.fileno()]
        if server_pidfd is not None:
            poll.register(server_pidfd, select.POLLIN)
            watched.append(server_pidfd)
        while (status := reap(child)) is None:
            # Without a pidfd a process that the server has forked may keep the socket open.
            found = poll.poll(None if server_pidfd is not None else 1000)
            drain(woken)
            if os.getppid() != server or any(each in watched for each, _ in found):
                kill_group(child)
                for each in watched:
                    poll.unregister(each)
                watched.clear()
        kill_others(woken)
        _start_sweep()
        wait_for_all(woken, SWEEP_S)
        end_as(status)
    finally:
        os._exit(1)


def _start_sweep() -> None:
    """Have another process remove the folders of ended workers (:mod:`.folders`).  It holds nothing
    of this one, so that it proves nothing and may take as long as it likes."""
    try:
        child = os.fork()
    except OSError:  # no room for another process: the next start removes them
        return
    if not child:
        try:
            os.setsid()
            os.closerange(0, _DESCRIPTORS)
            folders.sweep()
        finally:
            os._exit(0)
