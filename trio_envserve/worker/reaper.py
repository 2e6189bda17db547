"""Kills all processes below one: for the guard, and for each process of a rollout.

Theory of operation
-------------------
On Linux a *child subreaper* becomes the parent of each process below it whose own parent has ended,
whatever the process group or session.  So it finds all its descendants, one generation after the
other, and kills and reaps them (:func:`kill_others`).  Other systems have no such thing.

Run as a program, this module is the *reaper*, the parent of one process that a rollout has started
(:mod:`.made`).  Its arguments are the process id of the worker and the number of a socket.  From
the socket the reaper reads the command, and then signals for the command's process group; to the
socket it writes how the command began and ended.  When the socket ends (the block has ended), or
the worker (whose forks may hold the socket), the reaper kills all processes below it, and ends:
with status 1 if some of them do not end.  The command dies with its reaper.

Each process of a rollout pays for what is imported here.  So nothing of this package is.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import marshal
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import NoReturn

END_S = 5.0
"""Time for which the end of killed processes is waited for, in seconds: a process in a system call
that does not return (on a network file system) does not end."""

SIZE_BYTES = 8
"""Length of the size, big-endian, before a command."""
STARTED, FAILED, ENDED = b"started", b"failed", b"ended"
"""First words of a reaper's lines: before the process id; the step and the errno; the status."""

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_DEAF_TO = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
_IGNORED = ("SIGINT", "SIGPIPE", "SIGXFZ", "SIGXFSZ")
"""Signals that the worker, or Python, ignores; a command would inherit that."""


def become_subreaper(libc: ctypes.CDLL) -> None:
    """Make this process the parent of all orphans below it; nothing where the system cannot."""
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent ends (Linux); if it has ended already, kill
    this one and its process group now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        end_process_group()


def end_process_group() -> NoReturn:
    """Kill this process and its process group, if that is its own."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def be_deaf(unused: Sequence[int] = ()) -> None:
    """Ignore signals that are meant for others, and close the standard streams and ``unused``."""
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (0, 1, 2, *unused):  # so that readers of their output find its end
        with contextlib.suppress(OSError):  # it was closed already
            os.close(descriptor)


@contextlib.contextmanager
def woken_by_children() -> Iterator[int]:
    """For this block, a descriptor that can be read once a child has ended."""
    ends = []
    for each in os.pipe():  # if standard streams were closed, it may have the number of one
        ends.append(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3))
        os.close(each)
        os.set_blocking(ends[-1], False)
    # SIGCHLD may be ignored, by inheritance: then the system reaps children itself.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # it may be blocked so, too
    yield ends[0]
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end in ends:
        os.close(end)


def drain(woken: int) -> None:
    """Empty such a descriptor."""
    with contextlib.suppress(BlockingIOError):
        while os.read(woken, 4096):
            pass


def kill_group(pid: int) -> None:
    """Kill a child and its first process group, which it may have left."""
    for send in (os.kill, os.killpg):
        # PermissionError: on macOS, if all processes of the group have ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def wait_for_all(woken: int, most_s: float, kill: bool = False) -> bool:
    """Reap all processes below this one, orphans included; with ``kill`` kill them.  False if some
    have not ended in time."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    until_s = time.monotonic() + most_s
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # there is none left
            return True
        for pid in children_of_this() if kill else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):  # sudo's
                os.kill(pid, signal.SIGKILL)
        poll.poll(min(100, left_s * 1000))
        drain(woken)
    return False


def kill_others(woken: int) -> bool:
    """Kill and reap all processes below this one.  False if some have not ended within
    :data:`END_S`."""
    return wait_for_all(woken, END_S, kill=True)


def children_of_this() -> list[int]:
    """Children of this process that are not reaped; none where there is no /proc."""
    own, found = b"%d" % os.getpid(), []
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                # The name, in brackets, may hold anything.
                if stat.read().rpartition(b")")[2].split()[1] == own:
                    found.append(int(name))
    return found


def reap(child: int) -> int | None:
    """Reap what has ended; the status of ``child`` if that was among it."""
    if not hasattr(os, "waitid"):  # macOS, where no orphans come to this process
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            kill_group(child)
        return status if ended else None
    while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if found.si_pid == child:
            kill_group(child)  # before it is reaped: so the group's id is no other's
        status = os.waitpid(found.si_pid, 0)[1]
        if found.si_pid == child:
            return status
    return None


def end_as(status: int) -> NoReturn:
    """End this process as another one has ended."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the other one has made its own
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    time.sleep(END_S)  # it is under way
    os._exit(1)


# -- the program ----------------------------------------------------------------------


def main() -> None:
    """Start the command, and end it with all processes below."""
    status = 1
    try:
        status = _reap(int(sys.argv[1]), int(sys.argv[2]))
    finally:
        os._exit(status)


def _reap(worker: int, link: int) -> int:
    for each in map(int, sys.argv[2:]):
        os.set_inheritable(each, False)
    watched = None
    with contextlib.suppress(AttributeError, OSError):  # no such call, or it has ended
        watched = os.pidfd_open(worker)
    if os.getppid() != worker:  # asked after the pidfd was opened: so it is the worker's
        return 0
    become_subreaper(ctypes.CDLL(None))
    size = int.from_bytes(_read(link, SIZE_BYTES), "big")
    args, cwd, env = marshal.loads(_read(link, size))
    with woken_by_children() as woken:
        child, failed = _start(args, cwd, env)
        be_deaf()
        if failed:
            os.write(link, b"%s %s\n" % (FAILED, failed))
            return 0
        os.write(link, b"%s %d\n" % (STARTED, child))
        left = _serve(link, watched, child, woken)
        if left is not None:
            kill_group(left)
        return 0 if kill_others(woken) else 1


def _read(link: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(link, size - len(data))
        if not piece:  # the worker has ended, or does not want it any more
            os._exit(0)
        data += piece
    return data


def _start(args: list[bytes], cwd: bytes, env: dict[bytes, bytes]) -> tuple[int, bytes]:
    """The process id of the command; or the step that failed, and its errno."""
    own, step = os.getpid(), b"fork"
    try:
        told, tell = os.pipe()
        child = os.fork()
    except OSError as error:
        return 0, b"%s %d" % (step, error.errno or 0)
    if child:
        os.close(tell)
        failed = os.read(told, 64)
        os.close(told)
        return child, failed
    try:
        os.setsid()
        die_with_parent(own)
        for name in _IGNORED:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = b"cwd"
        os.chdir(cwd)
        step = b"exec"
        os.execvpe(args[0], args, env)
    except OSError as error:
        os.write(tell, b"%s %d" % (step, error.errno or 0))
    finally:
        os._exit(127)


def _serve(link: int, watched: int | None, child: int, woken: int) -> int | None:
    """Reap, and send signals, until the socket or the watched process ends.  Returns the child if
    it still runs."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(link, select.POLLIN)
    if watched is not None:
        poll.register(watched, select.POLLIN)
    running: int | None = child
    while True:
        ready = [each for each, _ in poll.poll()]
        drain(woken)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == running:
                    if sys.platform != "linux":  # while a process has it as its group
                        kill_group(running)
                    running = None
                    code = os.waitstatus_to_exitcode(found[1])
                    with contextlib.suppress(OSError):  # the worker has ended
                        os.write(link, b"%s %d\n" % (ENDED, code))
        if watched in ready:
            return running
        if link in ready:
            try:
                signals = os.read(link, 64)
            except OSError:
                signals = b""
            if not signals:
                return running
            for number in signals:
                if running is not None:
                    with contextlib.suppress(OSError):
                        os.killpg(running, number)
