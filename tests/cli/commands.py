"""Runs the real command in processes of its own, and finds what it leaves behind.

Everything that a test starts has the test's folder as its working directory
(workers inherit it), so a process that is left over is found by that: titles
and environments may be overwritten, the working directory is the kernel's.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import trio

from tests.cli.forking import FORKED
from tests.proc import status_of, working_in
from trio_envserve import logs
from trio_envserve.lab.processes import ROOT as ROOT
from trio_envserve.lab.processes import until as until

HANG_S = 300.0
"""Far more than anything here takes on a busy machine; only a hang takes longer."""


LIMITED = """
import resource, sys
from trio_envserve.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(main())
"""
"""The command on a disk that is full after 20 kB of a file."""

GATED = """
import os
import trio

async def gated(rollout):
    asked = rollout.input if isinstance(rollout.input, dict) else {"name": rollout.input}
    name = asked["name"]
    open(f"{name}.started", "a").write("x")
    while asked.get("gate", True) and not os.path.exists(f"{name}.open"):
        await trio.sleep(0.01)
    if asked.get("raises"):
        raise LookupError("no such riddle")
    return {"reward": 1.0, "name": name}
"""


def gated(folder: Path) -> str:
    """An environment in a folder, by its name: each rollout writes that it has started, and
    waits until its gate is open."""
    (folder / "gated.py").write_text(GATED)
    return "gated:gated"


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class Finished(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, Any]:
        """The object on the last line of standard output."""
        record = json.loads(self.out.splitlines()[-1])
        assert isinstance(record, dict)
        return record

    def check_no_traceback(self) -> None:
        assert "Traceback" not in self.err, self.err
        assert "Traceback" not in self.out, self.out


class Running:
    """A command that runs.  Standard output is read as it comes."""

    def __init__(self, process: subprocess.Popen[bytes], err: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.serving: dict[str, Any] = {}
        """The first event of a server, with its addresses (:func:`served`)."""
        self._err = err
        self._out = b""
        self._fd = -1 if process.stdout is None else process.stdout.fileno()
        if self._fd >= 0:
            os.set_blocking(self._fd, False)

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._err.read_text(errors="replace")

    async def line(self) -> str:
        """The next line of standard output.  EOFError if there is none."""
        while b"\n" not in self._out:
            if not await self._more():
                raise EOFError(self._out.decode() + self.err)
        line, _, self._out = self._out.partition(b"\n")
        return line.decode()

    async def event(self, name: str) -> dict[str, Any]:
        """The next event of that name on standard output."""
        while True:
            record: dict[str, Any] = json.loads(await self.line())
            assert "event" in record, (record, self.err)
            if record["event"] == name:
                return record

    async def said(self, text: str) -> None:
        """Sleep until it is on standard error."""
        await until(lambda: text in self.err or self.process.poll() is not None)
        assert text in self.err, self.err

    async def has_taken_signals(self) -> None:
        """Sleep until it handles signals itself: before that it is any Python program."""
        await until(lambda: self.process.poll() is not None or self._takes_signals())

    def _takes_signals(self) -> bool:
        caught = int(status_of(self.pid, "SigCgt"), 16)
        return bool(caught & 1 << (signal.SIGTERM - 1))

    async def wait(self) -> Finished:
        """Until it has ended and its output is read."""
        while await self._more():
            pass
        await until(lambda: self.process.poll() is not None)
        assert self.process.returncode is not None
        return Finished(self.process.returncode, self._out.decode(), self.err)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    async def _more(self) -> bool:
        if self._fd < 0:
            return False
        await trio.lowlevel.wait_readable(self._fd)
        data = os.read(self._fd, 65536)
        self._out += data
        return bool(data)


def _environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    return {
        **os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder),
        "XDG_RUNTIME_DIR": str(folder), "COLUMNS": "100", **environ,
    }  # fmt: skip


def _start(
    folder: Path, module: str, arguments: Sequence[str], streams: Mapping[str, int],
    environ: Mapping[str, str],
) -> tuple[subprocess.Popen[bytes], Path]:  # fmt: skip
    err = folder / f"err-{len(list(folder.glob('err-*')))}"
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with open(err, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=folder,
            env=_environment(folder, environ), **{**given, "stderr": stream, **streams},
        )  # fmt: skip
    return process, err


@functools.cache
def forking() -> tuple[socket.socket, int]:
    """The process that forks commands for this one, as :mod:`tests.cli.forking` says: the socket
    of its requests, and its id."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.forking", str(theirs.fileno())], cwd=ROOT,
            stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for this process, and that one ends with it
        )  # fmt: skip
    atexit.register(process.wait)
    atexit.register(ours.close)  # this is done first
    return ours, process.pid


async def open_forked(
    command: Sequence[str], *, env: Mapping[str, str], **given: Any
) -> trio.Process:
    """As :func:`trio.lowlevel.open_process` opens a :func:`~trio_envserve.lab.processes.program`,
    in a fork of a process that has imported most of it."""
    return await trio.lowlevel.open_process(command, env={**env, FORKED: "1"}, **given)


@asynccontextmanager
async def command(
    folder: Path, *arguments: str, module: str = "trio_envserve",
    streams: Mapping[str, int] = MappingProxyType({}), **environ: str,
) -> AsyncIterator[Running]:  # fmt: skip
    """Start the command in ``folder``, and kill it at the end of the block.  ``streams`` are
    descriptors for standard streams, by name."""
    process, err = _start(folder, module, arguments, streams, environ)
    try:
        with trio.fail_after(HANG_S):
            yield Running(process, err)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@asynccontextmanager
async def forked(folder: Path, *arguments: str, **given: Any) -> AsyncIterator[Running]:
    """Start the command as :func:`command` does, but in a fork of a process that has imported it.
    For whatever does not look at how a process begins."""
    async with command(folder, *arguments, **{**given, FORKED: "1"}) as running:
        yield running


async def run(folder: Path, *arguments: str, **environ: str) -> Finished:
    """Run the command to its end, in a fork of a process that has imported it."""
    async with forked(folder, *arguments, **environ) as running:
        return await running.wait()


@asynccontextmanager
async def served(
    folder: Path, environment: str = "arithmetic", *arguments: str, **environ: str
) -> AsyncIterator[tuple[Running, str]]:
    """A server by the command, ready, and its address; at a free port, unless told another."""
    bind = () if "--bind" in arguments else ("--bind", "tcp://127.0.0.1:0")
    given = (environment, *bind, "--json", *arguments)
    async with forked(folder, "serve", *given, **environ) as running:
        running.serving = await running.event("serving")
        await running.event("ready")
        yield running, running.serving["address"]


def processes_in(folder: Path) -> list[str]:
    """The command lines of all processes, this one apart, that work in ``folder``."""
    found = []
    for pid in working_in(folder):
        with suppress(OSError):  # it has ended meanwhile
            found.append(f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}")
    return found


async def check_nothing_left(folder: Path) -> None:
    """No process works in ``folder`` any more, and no socket is in it.

    A worker notices the end of a server that was killed by itself, which takes
    it a moment: this waits for the last process to go, and hangs if it does not.
    """
    with trio.move_on_after(HANG_S):
        await until(lambda: not processes_in(folder))
    assert processes_in(folder) == []
    assert sockets_in(folder) == []


def sockets_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]


@contextmanager
def process_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a command sets for the whole of its process is as it was after the block."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    root = logging.getLogger()
    ours = logging.getLogger("trio_envserve")
    handlers, level, our_handlers = [*root.handlers], root.level, [*ours.handlers]
    variables = {**os.environ}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        for name in ("excepthook", "unraisablehook", "stderr"):
            patch.setattr(sys, name, getattr(sys, name))
        patch.setattr(threading, "excepthook", threading.excepthook)
        try:
            yield
        finally:
            logs.finish()
            logging.captureWarnings(False)
            root.handlers[:], ours.handlers[:] = handlers, our_handlers
            root.setLevel(level)  # also what loggers below it remember of it
            os.environ.clear()
            os.environ.update(variables)
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
