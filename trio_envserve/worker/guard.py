"""The guard: a process beside each worker that kills it when the server has ended.

Theory of operation
-------------------
When a server is killed, Linux kills its workers at once.  Then no code of a worker runs any more,
and nobody ends the processes that the environment has started.  The heartbeat thread cannot do it
in every case, since it needs the interpreter lock, which the environment's code may hold.

So a worker begins by forking a guard into its own process group, while it is small and has one
thread.  The guard waits for the end of the server: of the socket pair to it, and of its process,
because a process that the server has forked may keep the socket open.  Then it kills the worker,
which may have left the process group, and the group with itself.  If the worker ends first, its
server kills the group before it reaps the worker.

The guard holds the epoch lock as well, so the next server waits until the guard is gone.  The guard
is forked twice, so it is not the worker's child, and environments that wait for all their children
do not wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Sequence

_IGNORED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""Signals that an environment may send to its whole process group, meaning its own
processes."""


def start_guard(signs: socket.socket, parent: int, *, unused: Sequence[int] = ()) -> None:
    """Fork the guard of this process group, which must be this process's own.

    Call it before any thread is started.  ``signs`` ends when the server does.  The
    server's process, ``parent``, must be the parent of this one; if it is not, it has
    ended, and this process ends, too.  ``unused``: descriptors that the guard closes.
    """
    assert os.getpgid(0) == os.getpid()
    worker, server = _open_pidfd(os.getpid()), _open_pidfd(parent)
    if os.getppid() != parent:  # asked after the pidfd was opened: so it is the parent's
        os._exit(1)
    child = os.fork()
    if child:
        for pidfd in (worker, server):
            if pidfd is not None:
                os.close(pidfd)
        with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored: reaped already
            os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            for descriptor in unused:
                os.close(descriptor)
            _guard(signs, worker, server)
    finally:
        os._exit(0)


def _open_pidfd(pid: int) -> int | None:
    try:
        opened = os.pidfd_open(pid)
        # If standard streams were closed, it may have the number of one.
        moved = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
    except (AttributeError, OSError):  # no such call (macOS, some sandboxes), or none left
        return None
    os.close(opened)
    return moved


def _guard(signs: socket.socket, worker: int | None, server: int | None) -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for standard in (0, 1, 2):  # so that readers of a worker's output find its end
        with contextlib.suppress(OSError):  # the server's parent had closed it already
            os.close(standard)
    _wait_server_ended(signs, server)
    if worker is not None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(worker, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def _wait_server_ended(signs: socket.socket, server: int | None) -> None:
    poll = select.poll()
    poll.register(signs, select.POLLIN)
    if server is not None:
        poll.register(server, select.POLLIN)
    with contextlib.suppress(OSError):
        while True:
            if any(descriptor == server for descriptor, _ in poll.poll()):
                return
            if not signs.recv(1, socket.MSG_PEEK):
                return
            # A question about a stack: it is for the worker, which may not read it.
            time.sleep(1.0)
