"""Process 1 of a bubblewrap sandbox.  An interpreter is given the text of this file, so it imports
nothing of this package, and runs on any Python from 3.8 on.

Theory of operation
-------------------
This process listens on a socket that only the worker can reach.  A connection is one command: four
bytes of length and JSON, with the three descriptors of the command's streams; the answer is one
line of JSON once the command has ended.  If the other side of a connection ends while its command
runs, that is killed, with all that is below it or in its session.  Other processes that a command
leaves, daemons for example, run on, and die with this one, by the kernel's rule for process 1 of a
namespace.

While nothing runs it sleeps.  Otherwise it sums up the memory of all processes, and kills them at
the limit.

Signals from within the sandbox do not reach it, SIGKILL and SIGSTOP included: that is the kernel's
rule, too.
"""

from __future__ import annotations

import array
import json
import os
import resource
import select
import signal
import socket
import struct
import sys

TYPE_CHECKING = False  # importing typing takes a third of the time in which this starts
if TYPE_CHECKING:
    from typing import Any, NoReturn

LISTENER = 3
LENGTH = struct.Struct("!I")
STREAMS = 3
MOST_BYTES = 1 << 26
"""Most bytes of a command."""
WATCH_MS = 200
"""Time between two looks at the memory."""
PASSES = 100
"""Most looks for processes that start others while they are killed."""
KIB = 1024


class SandboxCall:
    """A command, and the connection that asks for it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.data = bytearray()
        self.streams: list[int] = []
        self.pid = 0
        self.limit = ""

    def close_streams(self) -> None:
        """Leave them to the command."""
        for each in self.streams:
            os.close(each)
        self.streams = []


class FirstProcess:
    """The commands of a sandbox."""

    def __init__(self, listener: socket.socket, limits: dict[str, Any]) -> None:
        self.listener = listener
        self.limits = limits
        self.calls: dict[int, SandboxCall] = {}
        """By the descriptor of the connection."""
        self.running: dict[int, SandboxCall] = {}
        """By process id."""
        self.poll = select.poll()
        self.has_children = False

    def serve(self) -> NoReturn:
        """Take commands for ever."""
        woken, wakes = os.pipe()
        for each in (woken, wakes):
            os.set_blocking(each, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        for each in (woken, self.listener.fileno()):
            self.poll.register(each, select.POLLIN)
        while True:
            for number, _ in self.poll.poll(WATCH_MS if self.has_children else None):
                if number == woken:
                    os.read(woken, 4096)
                elif number == self.listener.fileno():
                    self.accept()
                elif number in self.calls:
                    self.receive(self.calls[number])
            self.reap(os.WNOHANG)
            if self.has_children and memory() > self.limits["memory"]:
                for call in self.running.values():
                    call.limit = "memory"
                send(-1, signal.SIGKILL)  # all but this one, at one moment
                self.reap(0)  # what dies has its memory yet, which the next command would pay for

    def accept(self) -> None:
        """Take a connection."""
        try:
            connection, _ = self.listener.accept()
        except OSError:  # the other side has gone again
            return
        self.calls[connection.fileno()] = SandboxCall(connection)
        self.poll.register(connection.fileno(), select.POLLIN)

    def receive(self, call: SandboxCall) -> None:
        """Take what comes of a connection: a piece of a command, or its end."""
        try:
            space = socket.CMSG_SPACE(STREAMS * array.array("i").itemsize)
            data, beside, _, _ = call.connection.recvmsg(1 << 16, space, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            data, beside = b"", []
        for _, _, given in beside:
            numbers = array.array("i")
            numbers.frombytes(given[: len(given) - len(given) % numbers.itemsize])
            call.streams += numbers
        call.data += data
        if not data:
            if call.pid:  # it is answered once it has ended
                self.poll.unregister(call.connection.fileno())
                kill_call(call.pid)
            else:
                self.forget(call)
        elif not call.pid and len(call.data) >= LENGTH.size:
            (length,) = LENGTH.unpack(call.data[: LENGTH.size])
            if length > MOST_BYTES:
                self.forget(call)
            elif len(call.data) >= LENGTH.size + length:
                self.start(call, json.loads(bytes(call.data[LENGTH.size :])))

    def start(self, call: SandboxCall, asked: dict[str, Any]) -> None:
        """Start a command."""
        call.data.clear()
        try:
            call.pid = os.fork()
        except OSError as error:
            os.write(call.streams[2], f"cannot start a process: {error.strerror}\n".encode())
            self.answer(call, 126)
            return
        if not call.pid:
            become(asked, call.streams, self.limits["each"])
        call.close_streams()
        self.running[call.pid] = call
        self.has_children = True

    def answer(self, call: SandboxCall, status: int) -> None:
        """Tell the end of a command."""
        line = json.dumps({"status": status, "limit": call.limit})
        try:
            call.connection.sendall(line.encode() + b"\n")
        except OSError:  # nobody waits for it
            pass
        self.forget(call)

    def forget(self, call: SandboxCall) -> None:
        """End a connection."""
        try:
            self.poll.unregister(call.connection.fileno())
        except KeyError:  # its other side has ended
            pass
        del self.calls[call.connection.fileno()]
        call.close_streams()
        call.connection.close()

    def reap(self, options: int) -> None:
        """Reap what has ended (options 0: all that there is), and answer for commands."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                self.has_children = False
                return
            if not pid:
                return
            call = self.running.pop(pid, None)
            if call is not None:
                signaled = os.WIFSIGNALED(status)
                self.answer(call, -os.WTERMSIG(status) if signaled else os.WEXITSTATUS(status))


def become(asked: dict[str, Any], streams: list[int], limits: dict[str, int]) -> NoReturn:
    """Turn a child into the command."""
    status, about = 126, asked["cwd"]
    try:
        os.setsid()
        for target, each in enumerate(streams):
            os.dup2(each, target)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for name, value in limits.items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (most, most))
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # to die before anything of the machine's, should that be full
        except OSError:
            pass
        os.chdir(asked["cwd"])
        about = asked["argv"][0]
        os.execvpe(about, asked["argv"], asked["env"])
    except OSError as error:
        if about == asked["argv"][0] and isinstance(error, FileNotFoundError):
            status = 127
        os.write(2, f"{about}: {error.strerror}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(status)


def processes() -> list[int]:
    """Process ids of all but this one."""
    return [int(each) for each in os.listdir("/proc") if each.isdigit() and int(each) != 1]


def memory() -> int:
    """Bytes of memory of all processes but this one."""
    total = 0
    for pid in processes():
        try:
            with open(f"/proc/{pid}/status", "rb") as file:
                for line in file:
                    if line.startswith((b"RssAnon:", b"RssShmem:")):
                        total += int(line.split()[1]) * KIB
        except OSError:  # it has ended
            pass
    return total


def kill_call(leader: int) -> None:
    """Kill a command that is not reaped, all below it, and its session."""
    stopped: set[int] = set()
    for _ in range(PASSES):
        found = members(leader) - stopped
        if not found:
            break
        for pid in found:  # a stopped process starts no other
            send(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        send(pid, signal.SIGKILL)


def members(leader: int) -> set[int]:
    """Process ids of a command and all that belongs to it."""
    parents: dict[int, int] = {}
    found = {leader}
    for pid in processes():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        if fields[0] == b"Z":
            continue
        parents[pid] = int(fields[1])
        if int(fields[3]) == leader:
            found.add(pid)
    size = 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def send(pid: int, number: int) -> None:
    """Send a signal, if there is somebody."""
    try:
        os.kill(pid, number)
    except OSError:  # it has ended
        pass


def main() -> NoReturn:
    """Say that this process is ready, and serve."""
    os.closerange(LISTENER + 1, 4096)
    listener = socket.socket(fileno=LISTENER)
    os.set_inheritable(LISTENER, False)
    listener.setblocking(False)
    os.write(1, b"ready\n")
    nothing = os.open("/dev/null", os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nothing, each)
    os.close(nothing)
    FirstProcess(listener, json.loads(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
