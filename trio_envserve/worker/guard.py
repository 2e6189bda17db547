"""The guard: a process beside each worker that outlives it by one system call.

Theory of operation
-------------------
When a server is killed, the system kills its workers (where it can), and at
once: no code of theirs runs any more that could end what the environment has
started.  And the heartbeat thread, which could, needs an interpreter that the
environment's code may hold.

So a worker begins by forking a guard into its own process group, while it is
small and has one thread.  The guard runs nothing but a wait for the end of the
socket pair to the server, and then kills the group, itself included.  If the
worker ends first, its server kills the group before it reaps the worker.

The guard holds the epoch lock as well: the next server waits until it is gone.
It is nobody's child (it is forked twice), so environments that wait for all
their children do not meet it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

_IGNORED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""What an environment may send to its whole group, meaning its own processes."""


def start_guard(channel: socket.socket) -> None:
    """Fork the guard of this process group, which must be this process's own.

    Call it before any thread is started.  ``channel`` ends when the server does.
    """
    assert os.getpgid(0) == os.getpid()
    child = os.fork()
    if child:
        with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored: reaped already
            os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            _guard(channel)
    finally:
        os._exit(0)


def _guard(channel: socket.socket) -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for standard in (0, 1, 2):  # whoever reads a worker's output finds its end
        with contextlib.suppress(OSError):  # closed already, by whoever started the server
            os.close(standard)
    # A server says nothing more after the configuration; should a later one do, that
    # is for the worker to read.
    with contextlib.suppress(OSError):
        while channel.recv(1, socket.MSG_PEEK):
            time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)
