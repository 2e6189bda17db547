"""Sandboxes by bubblewrap: namespaces of Linux, without a daemon, an image or rights of root.

Theory of operation
-------------------
A sandbox is one process 1 (:mod:`.bubblewrap_init`) in namespaces of its own.  The sandbox sees the
machine's programs (``/usr``, read-only), and may write to ``/home/sandbox`` and ``/tmp``, each a
file system in memory of ``disk_bytes``, or a folder on the disk.  All its processes die with
process 1, and process 1 dies with the worker's thread that started it, that of the trio loop.
Nothing is mounted outside of the namespaces.

On the machine a sandbox has a folder, below the folder for temporary files and named after it::

    control     the socket on which process 1 takes commands
    processes   process 1 and its parent, and the boot of the machine in which they were started
    home, tmp   the sandbox's files, if ``disk_bytes`` is None

So ``destroy`` needs only the name: it kills process 1 if that is alive, and removes the folder.

A server that runs as root starts sandboxes as *nobody*: the kernel would grant root more processes
than the limit, for example.  The page on sandboxes says what is not limited.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import hashlib
import importlib.resources
import json
import os
import re
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, final

import trio

from ..commands import CompletedProcess, CutOutput, completed, feed, open_pipe
from ..core.errors import ConfigError
from ..removal import remove_folder
from .bubblewrap_init import MOST_BYTES
from .interface import SandboxCommand, SandboxDied, SandboxSpec, SandboxUnavailable

here: Final = True
"""Its sandboxes are of their machine."""

INSTALL: Final = "install bubblewrap 0.8 or newer (in Debian and Ubuntu: apt install bubblewrap)"
HOME: Final = "/home/sandbox"
USER: Final = 1000
"""User and group inside."""
NOBODY: Final = 65534
"""User and group outside, of a server that runs as root."""
VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": HOME, "USER": "sandbox", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
    }
)  # fmt: skip
"""Environment variables of each command."""
OPEN_FILES: Final = 1024
"""Most open files of each process."""

START_S: Final = 30.0
"""Time limit for the start of a sandbox, in seconds."""
END_S: Final = 10.0
"""Time limit for the end of killed processes, in seconds."""

PROCESSES: Final = "processes"

_Process: TypeAlias = tuple[int, int]
"""A process id, and the start time of that process in ticks; 0 if it has ended."""
_LENGTH = struct.Struct("!I")
_REPLY_BYTES = 4096
_BACKLOG = 1024
_FIRST_FREE = 16
"""Lowest descriptor number that is not one of a new sandbox."""
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")


def check(spec: SandboxSpec) -> None:
    """See ``Provider.check``."""
    if spec.image is not None:
        raise ConfigError(
            "bubblewrap has no images: a sandbox sees the programs of its machine. Leave image "
            'out, or take "docker" or "podman"'
        )
    if not hasattr(os, "pidfd_open"):
        raise ConfigError("sandboxes by bubblewrap need Linux")
    if shutil.which("bwrap") is None:
        raise ConfigError(f"sandboxes by bubblewrap need bwrap, which is not here: {INSTALL}")
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        raise ConfigError("as root, sandboxes by bubblewrap need setpriv: install util-linux")


# -- create -------------------------------------------------------------------------------


async def create(name: str, spec: SandboxSpec) -> str:
    """See ``Provider.create``.  The calling thread must live as long as the sandbox."""
    with ExitStack() as stack:
        try:
            folder = _make_folder(name, on_disk=spec.disk_bytes is None)
            started = _start(folder, spec, stack)
        except OSError as error:
            raise SandboxUnavailable(f"a sandbox could not be started: {error}") from error
        init = 0
        try:
            with trio.move_on_after(START_S):
                init = await started.init()
                if await started.ready.receive_some() == b"ready\n":
                    _note(folder, [_identity(init), _identity(started.pid)])
                    return name
            raise SandboxUnavailable(f"a sandbox did not start: {started.errors()}")
        except BaseException:
            with trio.CancelScope(shield=True):  # bounded by END_S
                with trio.move_on_after(END_S):
                    # The child of a bwrap that is killed early waits for that one for ever.
                    init = await started.init()
                ends = [_identity(pid) for pid in (init, started.pid) if pid]
                await trio.to_thread.run_sync(_end, ends)
            raise


class _Started(NamedTuple):
    """A starting sandbox, and the descriptors that report on it."""

    pid: int
    """Process id of bwrap, the parent of process 1."""
    ready: trio.lowlevel.FdStream
    info: trio.lowlevel.FdStream
    info_read: bytearray
    """Everything read from ``info``."""
    errors_file: int

    async def init(self) -> int:
        """Process id of process 1, seen from outside; 0 if there is none."""
        while (found := re.search(rb'"child-pid": *(\d+)\D', self.info_read)) is None:
            piece = await self.info.receive_some()
            if not piece:
                return 0
            self.info_read.extend(piece)
        return int(found[1])

    def errors(self) -> str:
        """The reason why the sandbox did not start, in bwrap's words."""
        text = os.pread(self.errors_file, 2000, 0).decode(errors="replace").strip()
        if "namespace" in text or "uid map" in text:
            text += " (does this machine, or the container around it, allow user namespaces?)"
        if "nknown option" in text:
            text += f": {INSTALL}"
        return text or f"no answer within {START_S:g} s"


def _start(folder: Path, spec: SandboxSpec, stack: ExitStack) -> _Started:
    """Start bwrap.  ``stack`` closes the descriptors of the returned sandbox."""
    with ExitStack() as ends:

        def own(number: int) -> int:
            """A copy of a descriptor, with a number that is not one of the sandbox's."""
            moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
            ends.callback(os.close, moved)
            return moved

        def file_of(data: bytes) -> int:
            number = os.memfd_create("trio-envserve-sandbox")
            os.pwrite(number, data, 0)
            ends.callback(os.close, number)
            return number

        def pipe() -> tuple[trio.lowlevel.FdStream, int]:
            out, into = open_pipe(1, ends)
            stack.callback(out.close)
            return out, into

        (ready, to_ready), (info, to_info) = pipe(), pipe()
        errors = os.memfd_create("trio-envserve-sandbox")
        stack.callback(os.close, errors)
        init = importlib.resources.files(__package__).joinpath("bubblewrap_init.py").read_bytes()
        passwd = f"sandbox:x:{USER}:{USER}::{HOME}:/bin/sh\n".encode()
        listener = ends.enter_context(_listener(folder))
        inherited = [
            file_of(init), to_ready, errors, listener.fileno(), to_info, file_of(passwd)
        ]  # fmt: skip
        argv = _argv(folder, spec, info=inherited.index(to_info), passwd=5)
        pid = os.posix_spawnp(
            argv[0], argv, {"PATH": os.environ.get("PATH", os.defpath)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, own(each), number) for number, each in enumerate(inherited)
            ],
        )  # fmt: skip
        return _Started(pid, ready, info, bytearray(), errors)


def _argv(folder: Path, spec: SandboxSpec, *, info: int, passwd: int) -> list[str]:
    """The command line of a sandbox."""
    python, base = _python()
    size = spec.disk_bytes

    def shown(path: str) -> list[str]:
        return ["--ro-bind", path, path]

    def written(path: str, name: str) -> list[str]:
        if size is None:
            return ["--bind", str(folder / name), path]
        return ["--perms", "0700", "--size", str(size), "--tmpfs", path]

    argv = [
        "bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent",
        "--new-session", "--as-pid-1", "--clearenv",
        "--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox", "--info-fd", str(info),
        *shown("/usr"),
    ]  # fmt: skip
    if os.geteuid() == 0:
        nobody = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        argv = ["setpriv", *nobody, *argv]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(name):
            argv += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            argv += shown(name)
    # Programs of Debian are links to here, and libraries are found by it.
    more = ["/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"]
    if spec.network:
        more += [
            "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki",
            "/etc/ca-certificates",
        ]  # fmt: skip
        argv.append("--share-net")
    for name in more:
        argv += ["--ro-bind-try", name, name]
    argv += [
        "--ro-bind-data", str(passwd), "/etc/passwd", "--proc", "/proc", "--dev", "/dev",
        "--size", str(size or spec.memory_bytes), "--tmpfs", "/dev/shm",
        *written("/tmp", "tmp"), *written(HOME, "home"),
        *(word for path in (*base, *spec.readable) for word in shown(path)),
        # They are file systems in memory, of no size.
        "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME,
    ]  # fmt: skip
    limits = {
        "RLIMIT_DATA": spec.memory_bytes,
        "RLIMIT_NPROC": spec.processes + 1,  # process 1 is one of them
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_CORE": 0,
        **({} if size is None else {"RLIMIT_FSIZE": size}),
        **({} if spec.cpu_s is None else {"RLIMIT_CPU": spec.cpu_s}),
    }
    settings = json.dumps({"memory": spec.memory_bytes, "each": limits})
    return [*argv, python, "-I", "-S", "-", settings]


def _python() -> tuple[str, Sequence[str]]:
    """The interpreter of process 1, and the paths of the machine that it needs."""
    for path in _PYTHONS:
        if os.access(path, os.X_OK):
            return path, ()
    base = os.path.realpath(sys.base_prefix)
    found = os.path.join(base, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    return found, (() if base.startswith("/usr/") else (base,))


# -- the folder ---------------------------------------------------------------------------


def folder_of(name: str) -> Path:
    """The folder of the sandbox with this name."""
    known = re.fullmatch(r"[0-9a-zA-Z][0-9a-zA-Z._-]{0,99}", name)
    plain = name if known else hashlib.sha256(name.encode()).hexdigest()
    return Path(tempfile.gettempdir(), f"trio-envserve-sandboxes-{os.geteuid()}", plain)


def _make_folder(name: str, *, on_disk: bool) -> Path:
    folder = folder_of(name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder.parent)
    found = os.lstat(folder.parent)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SandboxUnavailable(f"{folder.parent} is not a folder of this user's own")
    os.mkdir(folder)
    for passed in (folder.parent, folder):  # by nobody, who does not see what is in them
        os.chmod(passed, 0o711)
    for name_in in ("home", "tmp") if on_disk else ():
        os.mkdir(folder / name_in, 0o700)
        if os.geteuid() == 0:
            os.chown(folder / name_in, NOBODY, NOBODY)
    return folder


@contextlib.contextmanager
def _control(folder: Path) -> Iterator[str]:
    """A short path of the control socket: a socket takes no long one, and that of the folder for
    temporary files may be long."""
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{number}/control"
    finally:
        os.close(number)


def _listener(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _control(folder) as path:
        listener.bind(path)
    os.chmod(folder / "control", 0o600)
    listener.listen(_BACKLOG)
    return listener


def _note(folder: Path, processes: Sequence[_Process]) -> None:
    text = json.dumps({"boot": _boot(), "processes": processes})
    (folder / PROCESSES).write_text(text)


def processes_of(name: str) -> list[_Process]:
    """Process 1 of a sandbox and its parent, unless the machine has been restarted since."""
    try:
        noted = json.loads((folder_of(name) / PROCESSES).read_text())
    except (FileNotFoundError, ValueError):  # what wrote it died, and its sandbox with it
        return []
    return [(pid, began) for pid, began in noted["processes"] if noted["boot"] == _boot()]


# -- destroy ------------------------------------------------------------------------------


def destroy(name: str, handle: Any) -> None:
    """See ``Provider.destroy``."""
    _end(processes_of(name))
    with contextlib.suppress(FileNotFoundError):
        remove_folder(folder_of(name))


def _boot() -> str:
    """Id of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _identity(pid: int) -> _Process:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return pid, 0
    return pid, int(text.rpartition(b")")[2].split()[19])


def _end(processes: Sequence[_Process]) -> None:
    """Kill the first of these processes, and wait for the end of all: a parent ends once it has
    reaped.  A process with the id of one of them and another start time is left alone."""
    kills = True
    for pid, began in processes:
        try:
            number = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _identity(pid)[1] != began:
                continue
            poll = select.poll()
            poll.register(number, select.POLLIN)
            if kills or not poll.poll(END_S * 1000):
                signal.pidfd_send_signal(number, signal.SIGKILL)
            if not poll.poll(END_S * 1000):
                raise SandboxUnavailable(f"process {pid} of a sandbox was killed and does not end")
            with contextlib.suppress(ChildProcessError):  # another one's child
                os.waitpid(pid, os.WNOHANG)
        except ProcessLookupError:
            continue
        finally:
            os.close(number)
        kills = False


# -- open ---------------------------------------------------------------------------------


async def open(handle: Any) -> BubblewrapSandbox:
    """See ``Provider.open``."""
    return BubblewrapSandbox(handle)


@final
class BubblewrapSandbox:
    """A running sandbox."""

    def __init__(self, handle: Any) -> None:
        self._folder = folder_of(handle)

    async def run(self, command: SandboxCommand) -> CompletedProcess:
        """See ``OpenSandbox.run``."""
        env = {**VARIABLES, **command.env}
        asked = {"argv": [*command.argv], "cwd": command.cwd or HOME, "env": env}
        request = json.dumps(asked).encode()
        out, err = CutOutput(command.most_bytes), CutOutput(command.most_bytes)
        if len(request) > MOST_BYTES:  # the kernel takes a tenth of it
            text = f"{command.argv[0]}: {os.strerror(errno.E2BIG)}\n"
            err.take(text.encode(errors="backslashreplace"))
            return completed(126, out.kept(), err.kept(), "")
        with ExitStack() as stack, ExitStack() as theirs:
            stdin, its_stdin = open_pipe(0, theirs)
            stack.callback(stdin.close)
            stdout, its_stdout = open_pipe(1, theirs)
            stack.callback(stdout.close)
            stderr, its_stderr = open_pipe(1, theirs)
            stack.callback(stderr.close)
            connection = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stack.enter_context(connection)
            with trio.move_on_after(END_S) as asking:
                await self._ask(connection, request, [its_stdin, its_stdout, its_stderr])
            if asking.cancelled_caught:
                raise SandboxDied(_SILENT)
            theirs.close()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed, stdin, command.input)
                nursery.start_soon(out.collect, stdout)
                nursery.start_soon(err.collect, stderr)
                is_there = False
                with trio.move_on_after(command.timeout_s) as limit:
                    reply = await _reply(connection)
                if limit.cancelled_caught:
                    reply = b""
                    with contextlib.suppress(OSError):  # it has died
                        connection.shutdown(socket.SHUT_WR)  # which has it killed
                    with trio.move_on_after(END_S) as killing:
                        reply = await _reply(connection)
                    is_there = killing.cancelled_caught
                nursery.cancel_scope.cancel()
            status, reached = _told(reply, is_there=is_there)
            out.take_left(stdout)
            err.take_left(stderr)
        if limit.cancelled_caught:
            reached = reached or "timeout"
        return completed(status, out.kept(), err.kept(), reached)

    async def _ask(
        self, connection: trio.socket.SocketType, asked: bytes, streams: Sequence[int]
    ) -> None:
        request = memoryview(_LENGTH.pack(len(asked)) + asked)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        try:
            with _control(self._folder) as path:
                await connection.connect(path)
            sent = await connection.sendmsg([request], beside)
            while sent < len(request):
                sent += await connection.send(request[sent:])
        except OSError as error:  # nobody listens; the folder is gone
            raise SandboxDied(_DIED) from error


_DIED = (
    "the sandbox has died: its first process is gone (killed, or this machine had no memory left)"
)


_SILENT = "the sandbox has died: its first process does not answer"


async def _reply(connection: trio.socket.SocketType) -> bytes:
    """The line that reports the end of a command; incomplete if the connection ends first."""
    found = b""
    while not found.endswith(b"\n") and len(found) < _REPLY_BYTES:
        try:
            piece = await connection.recv(_REPLY_BYTES)
        except OSError:  # it has died
            break
        if not piece:
            break
        found += piece
    return found


def _told(reply: bytes, *, is_there: bool) -> tuple[int, str]:
    """Status and limit in a reply.  ``is_there``: process 1 still has the connection open.  Code
    that has taken process 1 over may write anything, or nothing."""
    if not reply.endswith(b"\n"):
        raise SandboxDied(_SILENT if is_there else _DIED)
    try:
        told = json.loads(reply)
        status, limit = told["status"], told["limit"]
    except (ValueError, TypeError, KeyError, RecursionError):
        status, limit = None, ""
    if type(status) is not int or limit not in ("", "memory"):
        raise SandboxDied("the sandbox has died: its first process says what it does not say")
    return status, limit
