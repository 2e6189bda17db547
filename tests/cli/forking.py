"""Forks a process for each command of a test, and for what it starts, that need not begin as a
process of its own.

To import the command takes longer than most commands take.  So this process imports it once, and
each request becomes a process, which goes on as ``python -m MODULE`` would, or, if its first
argument is a program's file, as ``python -W error FILE``, or with the ``main()`` of a module
(``calls``).  A request is a packet on the socket whose descriptor is the argument of this program:
a JSON object with the module, the arguments, the folder and the environment of a process, the
numbers of the descriptors that it has besides (``kept``), and whether it leads a process group;
and its standard streams, these descriptors, and a pipe for its process ID.

It is a child of the parent of this process: whoever has asked waits for it, kills it, and proves
its death, as with a program.  So each command has a process like this one below it, which forks
what the command starts (workers, the process of an environment's inputs), and ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import platform
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from trio_envserve import cli
from trio_envserve.host.allocator import keep_freed_memory
from trio_envserve.worker.reaper import die_with_parent

IMPORTED = (
    *(f"trio_envserve.cli.{each.name}" for each in pkgutil.iter_modules(cli.__path__)),
    "trio_envserve.doors.verifiers", "trio_envserve.lab.processes", "zmq", "tests.rig.meter",
    "tests.rig.program",
)  # fmt: skip
"""What commands need, and the servers of rigs; h11 is none of it, since a command does without."""

REQUEST_BYTES, MOST_DESCRIPTORS = 1 << 18, 16
WORKER = "trio_envserve.worker.main"
FORKED_HERE = tuple(f"trio_envserve.worker.{name}." for name in ("main", "inputs", "validation"))
"""What a process of tests starts so."""
FORKED = "TRIO_ENVSERVE_FORKED"
"""The variable by which a command asks to be a fork."""

fork_exec_shipped: Callable[..., int] = vars(subprocess)["_fork_exec"]
_CALLS = re.compile(r"import sys; .*; from (\S+) import main; main\(\)")
_api = ctypes.PyDLL(None)
_CLONE = 56 if platform.machine() == "x86_64" else 220
_CLONE_PARENT = 0x8000


def fork_siblings(link: socket.socket) -> dict[str, Any]:
    """Fork a child of this process's parent for each request.  Returns in the children only, each
    with its request."""
    while True:
        data, given, _, _ = socket.recv_fds(link, REQUEST_BYTES, MOST_DESCRIPTORS)
        if not data:
            os._exit(0)
        asked, told = json.loads(data), given.pop()
        pid = fork_sibling()
        if not pid:
            link.detach()  # it is closed below, as everything of this process is
            return become(asked, *given)
        os.write(told, b"%d" % pid)
        for each in (*given, told):
            os.close(each)


def fork_sibling() -> int:
    """A fork whose parent is that of this process."""
    _api.PyOS_BeforeFork()
    flags = ctypes.c_long(_CLONE_PARENT | signal.SIGCHLD)
    pid = int(_api.syscall(ctypes.c_long(_CLONE), flags, None, None, None, None))
    if pid:
        _api.PyOS_AfterFork_Parent()
    else:
        _api.PyOS_AfterFork_Child()
    return pid


def become(asked: dict[str, Any], *given: int) -> dict[str, Any]:
    """Take the folder, the environment and the descriptors of a command."""
    numbers = (0, 1, 2, *asked["kept"])
    above = max(*given, *numbers) + 1
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in given]
    for number, copy in zip(numbers, copies, strict=True):
        os.dup2(copy, number)
    close_all_but(*numbers)
    # It may be of another kind than that of before; tests wait for lines in it.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    if asked["leads"]:
        os.setpgid(0, 0)
    if not asked["calls"]:
        fork_from_below()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    if not asked["calls"]:
        sys.path[:1] = [asked["folder"], *os.environ["PYTHONPATH"].split(os.pathsep)]
    return asked


def close_all_but(*kept: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(number)


def fork_from_below() -> None:
    """Have a process like this one fork what the command starts that this process becomes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork():
        theirs.close()
        vars(subprocess)["_fork_exec"] = fork_exec_by(lambda: ours, "trio_envserve.")
        return
    os.setsid()  # Ctrl-C is not for it
    die_with_parent(parent)
    close_all_but(theirs.fileno())
    run(fork_siblings(theirs))  # it returns in the children only
    os._exit(0)


def fork_exec_by(link: Callable[[], socket.socket], *modules: str) -> Callable[..., int]:
    """What :mod:`subprocess` may call in this process to have another one fork what is one of these
    modules, or in one, or asks for it: for whatever does not look at how it begins."""
    started, parent, limits = {**os.environ}, os.getpid(), limits_of_process()

    def fork_exec(
        words: Sequence[str | bytes], programs: Any, closed: Any, kept: Sequence[int],
        folder: str | bytes | None, variables: Sequence[bytes] | None, *more: Any,
    ) -> int:  # fmt: skip
        stdin, _, _, stdout, _, stderr, _, failure, _, in_session, group, *_ = more
        module, calls, arguments = asked_in([*map(os.fsdecode, words)])
        environ = {**os.environ}
        if variables is not None:
            split = (os.fsdecode(each).partition("=") for each in variables)
            environ = {name: value for name, _, value in split}
        asks = environ.pop(FORKED, "")
        new = {name for name in environ if name[:6] == "PYTHON"} - {"PYTHONPATH"}
        if (
            ((module and asks) or any(f"{module}.".startswith(each) for each in modules))
            and not in_session
            and (os.getpid(), limits_of_process()) == (parent, limits)
            and all(environ[name] == started.get(name) for name in new)
        ):
            streams = enumerate((stdin, stdout, stderr))  # -1: that of this process
            keeps = [each for each in kept if each != failure]
            asked = json.dumps({
                "module": module, "calls": calls, "arguments": arguments, "environ": environ,
                "folder": os.fsdecode(folder or os.getcwd()), "leads": group == 0, "kept": keeps,
            })  # fmt: skip
            given = [*(number if each < 0 else each for number, each in streams), *keeps]
            told, tell = os.pipe()
            try:
                with contextlib.suppress(OSError):  # too much, or a stream that is closed
                    socket.send_fds(link(), [asked.encode()], [*given, tell])
                    os.close(tell)
                    tell = -1
                    return int(os.read(told, 20))
            finally:
                for each in {told, tell} - {-1}:
                    os.close(each)
        return fork_exec_shipped(words, programs, closed, kept, folder, variables, *more)

    return fork_exec


def asked_in(words: Sequence[str]) -> tuple[str, bool, Sequence[str]]:
    """The module that a program is, if that is to be seen, whether its ``main()`` is called, and
    its arguments."""
    match words:
        case [sys.executable, "-P", "-c", code, _, *rest] if found := _CALLS.fullmatch(code):
            return found[1], True, rest
        case [sys.executable, "-m", module, *rest] | [sys.executable, "-P", "-m", module, *rest]:
            return module, False, rest
    return "", False, ()


def limits_of_process() -> list[tuple[int, int]]:
    return [resource.getrlimit(number) for number in range(resource.RLIMIT_NICE)]


def run(asked: dict[str, Any]) -> None:
    """Be what was asked for."""
    module, sys.argv[1:] = asked["module"], asked["arguments"]
    if asked["calls"]:
        sys.argv[0], sys.modules["__main__"] = "-c", types.ModuleType("__main__")
        if module == WORKER:
            keep_freed_memory()
        importlib.import_module(module).main()
    elif sys.argv[1:] and sys.argv[1].endswith(".py"):
        gc.unfreeze()  # a library may look for who refers to its objects
        warnings.simplefilter("error")
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what no collector touches stays shared with the children
    run(fork_siblings(socket.socket(fileno=int(sys.argv[1]))))
