"""Forks a process for each command of a test that need not begin as a process of its own.

To import the command takes longer than most commands take.  So this process imports it once,
and each request becomes a child, which goes on as ``python -m MODULE`` would, or, if its first
argument is a program's file, as ``python -W error FILE``.  A request is a packet on the socket
whose descriptor is the argument of this program: a JSON object with the module, the arguments,
the folder and the environment of a command, and whether it leads a process group; and the
descriptors of its standard input, of its standard output, of its standard error, and of a pipe
for its process ID, in a line, and its exit code, once it has ended.  A command is killed once
nobody reads that pipe any more.  With the socket all of them end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import warnings
from typing import Any, NamedTuple

VERBS = ("verbs", "evaluate", "serve", "status", "results", "validate", "conform")
IMPORTED = (
    *(f"trio_envserve.cli.{verb}" for verb in VERBS), "trio_envserve.lab.mutants",
    "trio_envserve.doors.verifiers", "trio_envserve.lab.processes", "zmq", "tests.rig.meter",
    "tests.rig.program",
)  # fmt: skip
"""What most commands need, and the servers of rigs.  The other verbs import their own."""

REQUEST_BYTES = 1 << 18


class Child(NamedTuple):
    """A command that runs."""

    pid: int
    report: int
    """Where its exit code goes."""


def fork_commands(link: socket.socket) -> tuple[str, list[str]]:
    """Fork for each request.  Returns in the children only, each with its module and arguments."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    children: dict[int, Child] = {}
    """By the descriptor of a process, and by that of a pipe that somebody may stop reading."""
    while True:
        for ready, _ in poll.poll():
            if ready == link.fileno():
                data, given, _, _ = socket.recv_fds(link, REQUEST_BYTES, 4)
                if not data:
                    for child in children.values():
                        os.kill(child.pid, signal.SIGKILL)
                    os._exit(0)
                pid = os.fork()
                if not pid:
                    link.detach()  # it is closed below, as everything of this process is
                    return become(json.loads(data), *given)
                *streams, report = given
                os.write(report, b"%d\n" % pid)
                for each in streams:
                    os.close(each)
                process = os.pidfd_open(pid)
                children[process] = children[report] = Child(pid, report)
                poll.register(process, select.POLLIN)
                poll.register(report, 0)  # so what comes is an error: nobody reads it
                continue
            if ready not in children:
                continue  # its command has ended, in this very turn
            child = children[ready]
            if ready == child.report:
                poll.unregister(ready)
                os.kill(child.pid, signal.SIGKILL)
                continue
            _, status = os.waitpid(child.pid, 0)
            with contextlib.suppress(BrokenPipeError):
                os.write(child.report, b"%d" % os.waitstatus_to_exitcode(status))
            for each in (ready, child.report):
                with contextlib.suppress(KeyError):
                    poll.unregister(each)
                del children[each]
                os.close(each)


def become(asked: dict[str, Any], *given: int) -> tuple[str, list[str]]:
    """Take the folder, the environment and the standard streams of a command."""
    for number, stream in enumerate(given[:3]):
        os.dup2(stream, number)
    os.closerange(3, max(*given, *map(int, os.listdir("/proc/self/fd"))) + 1)
    if asked["leads"]:
        os.setpgid(0, 0)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    sys.path[:1] = [asked["folder"], *os.environ["PYTHONPATH"].split(os.pathsep)]
    return asked["module"], asked["arguments"]


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what no collector touches stays shared with the children
    module, sys.argv[1:] = fork_commands(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[1:] and sys.argv[1].endswith(".py"):
        gc.unfreeze()  # a library may look for who refers to its objects
        warnings.simplefilter("error")
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
