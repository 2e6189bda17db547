"""The folders and processes of a worker's rollouts (:mod:`trio_envserve.envs.made`), and their end.

Theory of operation
-------------------
Everything that an attempt makes is known here before it exists.  When the code of the attempt has
ended, for whatever reason, all of it is ended and removed before there is an outcome
(:meth:`AttemptMade.close`).

A process has a parent of its own, the reaper (:mod:`.reaper`), which kills the process and all its
descendants once the worker's end of a socket is closed, or the worker has ended.  The worker has a
task for each reaper, from before its start until its end.  So a cancelled start leaves nothing
behind.  If the worker is killed, its guard kills all, and has the folders
removed (:mod:`.folders`).
"""

from __future__ import annotations

import errno
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import final

import trio

from ..commands import (
    PIECE_BYTES,
    CommandRun,
    CompletedProcess,
    CutOutput,
    completed,
    describe_exit,
    feed,
    open_pipe,
)
from ..envs.made import (
    TAIL_BYTES,
    ProcessCommand,
    ProcessFailed,
    ProcessNotStarted,
    ProcessTimeout,
)
from ..redaction import hidden_names, redacted
from . import reaper
from .failures import log
from .folders import Folders

REMOVING = 8
"""Threads of a worker that remove folders at once."""
REMOVE_S = 10.0
"""Time for which an outcome waits for the removal of a folder, in seconds: a cancelled rollout that
takes much longer would have its worker killed, with its neighbours."""
KILL_S = reaper.END_S + 2.0
"""Time limit of a reaper for killing all processes below it, in seconds; then it is killed."""
REST_S = 1.0
"""Time limit for the last output of a killed process, and for the end of its group, in seconds."""
PAUSE_S = 0.1
"""Pause before another try if the system has no room for a thread, in seconds."""
GROUP_S = 0.01
"""Pause between two looks for a killed process group without a reaper, in seconds."""
SHOWN_BYTES = 2000
"""Most bytes of standard error in an error."""

_PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); import reaper; reaper.main()"
"""Imports the reaper without this package, which takes long; with a file, it would be compiled each
time."""
_OVER = "the rollout has ended, and makes nothing any more"


@final
class Maker:
    """The maker of all folders and processes of one worker, in tasks of this nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.folders = Folders()
        self.limiter = trio.CapacityLimiter(REMOVING)

    async def close(self) -> None:
        """Remove the folder of the worker.  All tasks must have ended."""
        if self.folders.lock != -1:
            await _in_thread(self.folders.close)


@final
class AttemptMade:
    """Folder and processes of one attempt of a rollout (:class:`~..envs.made.RolloutMaker`)."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._making = threading.Lock()
        self._folder: Path | None = None
        self._processes: set[_Process] = set()
        self._is_over = False

    def folder(self) -> Path:
        """See :meth:`~..envs.made.RolloutMaker.folder`."""
        with self._making:
            self._check_open()
            if self._folder is None:
                self._folder = self._maker.folders.make()
            return self._folder

    async def start(self, command: ProcessCommand, most_bytes: int = 0) -> _Process:
        """See :meth:`~..envs.made.RolloutMaker.start`.  ``most_bytes``: most bytes of standard
        error that are kept beside its tail."""
        self._check_open()
        cwd = os.fsencode(self.folder()) if command.cwd is None else command.cwd
        process = _Process(command, cwd, self._maker.folders.lock, CutOutput(most_bytes))
        self._processes.add(process)
        self._maker.nursery.start_soon(process.run)
        try:
            await process.begun()
        except BaseException:
            await self._close_process(process)  # noqa: ASYNC102  # shielded
            raise
        return process

    async def run(self, command: ProcessCommand, how: CommandRun) -> CompletedProcess:
        """See :meth:`~..envs.made.RolloutMaker.run`."""
        process = await self.start(command, how.most_bytes)
        try:
            stdout, is_late = await process.run_to_end(how)
        finally:
            await self._close_process(process)  # noqa: ASYNC102  # shielded
        code, stderr = process.returncode or 0, process.errors.kept()
        ended = completed(code, stdout, stderr, "timeout" if is_late else "")
        if is_late:
            text = f"{command.name!r} had not ended after {how.timeout_s:g} s (timeout_s)"
            raise ProcessTimeout(f"{text}, and was killed", ended)
        if how.check and code:
            raise ProcessFailed(process.failure(), ended)
        return ended

    def end(self) -> None:
        """Note that the code of the attempt has ended: refuse to make more, for a task that it has
        left behind, and have all processes killed, without waiting."""
        with self._making:
            self._is_over = True
        for process in self._processes:
            process.end()

    async def close(self) -> None:
        """Wait for the end of all processes, and remove the folder; after :meth:`end`."""
        for process in list(self._processes):
            await self._close_process(process)
        if self._folder is not None:
            removed = trio.Event()
            self._maker.nursery.start_soon(self._remove, self._folder, removed)
            with trio.move_on_after(REMOVE_S, shield=True):
                await removed.wait()

    async def _remove(self, folder: Path, removed: trio.Event) -> None:
        await _in_thread(partial(self._maker.folders.remove, folder), self._maker.limiter)
        removed.set()

    async def _close_process(self, process: _Process) -> None:
        await process.aclose()
        self._processes.discard(process)

    def _check_open(self) -> None:
        if self._is_over:
            raise RuntimeError(_OVER)


async def _in_thread(work: Callable[[], None], limiter: trio.CapacityLimiter | None = None) -> None:
    """Do some work in a thread, even if cancelled, once the system has room for a thread."""
    with trio.CancelScope(shield=True):
        while True:
            try:
                return await trio.to_thread.run_sync(work, limiter=limiter)
            except RuntimeError:  # Python's, if no thread can be started
                await trio.sleep(PAUSE_S)


@final
class _Process:
    """A process of a rollout, with its reaper (:class:`~..envs.made.LoopProcess`)."""

    def __init__(self, command: ProcessCommand, cwd: bytes, lock: int, errors: CutOutput) -> None:
        self._command = command
        self._cwd = cwd
        self._lock = lock
        """Descriptor of the lock of the worker's folders, which the reaper holds, too; -1: none."""
        self.pid = 0
        self.returncode: int | None = None
        self.tail = b""
        """Last bytes of standard error so far; may be read in any thread."""
        self.errors = errors
        """Standard error for the result."""
        self._lines = b""
        """Standard output that was read and not received yet."""
        self._scope = trio.CancelScope(shield=True)  # its block ends it, or its attempt
        self._begun, self._ended, self._over = trio.Event(), trio.Event(), trio.Event()
        self._failed: ProcessNotStarted | None = None
        self._reaper: trio.Process | None = None
        self._link: trio.SocketStream | None = None
        self._stdin: trio.lowlevel.FdStream | None = None
        self._stdout: trio.lowlevel.FdStream | None = None
        self._stderr: trio.lowlevel.FdStream | None = None

    # -- its life -------------------------------------------------------------------------

    async def run(self) -> None:
        """Start the process, and return once it and all its descendants are dead."""
        try:
            with self._scope:
                await self._live()
        except OSError as error:
            self._failed = _not_started(self._command, self._cwd, b"fork", error.errno or 0)
        finally:
            with trio.CancelScope(shield=True):
                await self._finish()

    async def _live(self) -> None:
        with ExitStack() as given:
            link, its_link = socket.socketpair()
            given.enter_context(its_link)
            self._link = trio.SocketStream(trio.socket.from_stdlib_socket(link))
            stdin, stdout, stderr = self._standard_streams(given)
            passed = [its_link.fileno(), *([self._lock] if self._lock != -1 else [])]
            folder = os.path.dirname(reaper.__file__)
            numbers = map(str, (os.getpid(), *passed))
            words = [sys.executable, "-I", "-S", "-c", _PROGRAM, folder, *numbers]
            try:
                self._reaper = await trio.lowlevel.open_process(
                    words, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=passed, cwd="/",
                    env=_inherited(), start_new_session=True,  # the command can read it
                )  # fmt: skip
            except RuntimeError as error:  # Python's, if no thread can be started for that
                raise OSError(errno.EAGAIN, str(error)) from error
        job = marshal.dumps((list(self._command.words), self._cwd, self._environment()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_tail)
            with suppress(trio.BrokenResourceError):  # somebody has killed the reaper
                await self._link.send_all(len(job).to_bytes(reaper.SIZE_BYTES, "big") + job)
                await self._listen(self._link)
            nursery.cancel_scope.cancel()

    def _standard_streams(self, given: ExitStack) -> tuple[int, int, int]:
        """The three standard streams of the process; the other ends are kept."""

        def pipe(way: str, its_end: int) -> tuple[trio.lowlevel.FdStream | None, int]:
            """Our end of a pipe, and the number of the other one."""
            return open_pipe(its_end, given) if way == "pipe" else (None, subprocess.DEVNULL)

        command = self._command
        self._stdin, stdin = pipe(command.stdin, 0)
        self._stdout, stdout = pipe(command.stdout, 1)
        self._stderr, stderr = pipe(command.stderr, 1)
        return stdin, stdout, stdout if command.stderr == "stdout" else stderr

    def _environment(self) -> dict[bytes, bytes]:
        inherited = {os.fsencode(name): os.fsencode(value) for name, value in _inherited().items()}
        return {
            name: value
            for name, value in {**inherited, **self._command.env}.items()
            if value is not None
        }

    async def _listen(self, link: trio.SocketStream) -> None:
        told = b""
        while piece := await link.receive_some(4096):
            *lines, told = (told + piece).split(b"\n")
            for line in lines:
                word, *more = line.split()
                if word == reaper.STARTED:
                    self.pid = int(more[0])
                    self._begun.set()
                elif word == reaper.ENDED:
                    self.returncode = int(more[0])
                    self._ended.set()
                else:
                    self._failed = _not_started(self._command, self._cwd, more[0], int(more[1]))

    async def _keep_tail(self) -> None:
        with suppress(trio.ClosedResourceError):
            while self._stderr and (piece := await self._stderr.receive_some(PIECE_BYTES)):
                self.tail = (self.tail + piece)[-TAIL_BYTES:]
                self.errors.take(piece)

    async def _finish(self) -> None:
        """Have the reaper kill all processes, and wait for its end."""
        if self._link is not None:
            with suppress(OSError, trio.BrokenResourceError):
                self._link.socket.shutdown(socket.SHUT_WR)
        if self._reaper is not None:
            await self._wait_for(self._reaper)
        if self._link is not None:
            await self._link.aclose()
        if self.returncode is None:
            self.returncode = -signal.SIGKILL  # its reaper's, or by the system with its reaper
        with trio.move_on_after(REST_S):  # who holds it may be alive if the reaper was killed
            await self._keep_tail()
        for event in (self._begun, self._ended, self._over):
            event.set()

    async def _wait_for(self, process: trio.Process) -> None:
        process.send_signal(signal.SIGCONT)  # what it has started may have stopped it
        with trio.move_on_after(KILL_S):
            await process.wait()
        if process.returncode == 0:
            return
        process.kill()
        with trio.move_on_after(REST_S):
            await process.wait()
        if not self.pid:  # it has started nothing
            return
        with trio.move_on_after(REST_S), suppress(ProcessLookupError, PermissionError):
            while True:  # until none of the group is left
                os.killpg(self.pid, signal.SIGKILL)
                await trio.sleep(GROUP_S)
        log(
            logging.WARNING,
            "some of what the process %r has started may be alive until the worker ends: its "
            "reaper could not end it",
            self._command.name,
        )

    # -- what the rollout does with it ----------------------------------------------------

    async def begun(self) -> None:
        """Wait until the process has started.  Raises :class:`ProcessNotStarted`."""
        await self._begun.wait()
        if self._failed is not None:
            raise self._failed
        if not self.pid and self._scope.cancel_called:
            raise RuntimeError(_OVER)
        if not self.pid:
            assert self._reaper is not None  # it has ended
            ended = describe_exit(self._reaper.returncode or 0)
            text = f"{self._command.name!r} could not be started; of its parent: {ended}"
            raise ProcessNotStarted(self._with_tail(text))

    async def send(self, data: bytes) -> None:
        """See :meth:`~..envs.made.RolloutProcess.send`."""
        try:
            await _need(self._stdin, "stdin").send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            text = f"nobody reads the standard input of {self._command.name!r}"
            raise BrokenPipeError(errno.EPIPE, text) from None

    async def end_input(self) -> None:
        """See :meth:`~..envs.made.RolloutProcess.end_input`."""
        await _need(self._stdin, "stdin").aclose()

    async def receive(self, most_bytes: int) -> bytes:
        """See :meth:`~..envs.made.RolloutProcess.receive`."""
        if self._lines:
            piece, self._lines = self._lines[:most_bytes], self._lines[most_bytes:]
            await trio.lowlevel.checkpoint()
            return piece
        try:
            return bytes(await _need(self._stdout, "stdout").receive_some(most_bytes))
        except trio.ClosedResourceError:  # the block has ended
            return b""

    async def receive_line(self, most_bytes: int) -> bytes:
        """See :meth:`~..envs.made.RolloutProcess.receive_line`."""
        while (at := self._lines.find(b"\n", 0, most_bytes) + 1) == 0:
            if len(self._lines) >= most_bytes:
                raise ValueError(f"a line of {self._command.name!r} is longer than {most_bytes}")
            held, self._lines = self._lines, b""
            try:
                piece = await self.receive(PIECE_BYTES)
            finally:
                self._lines = held + self._lines
            if not piece:
                at = len(self._lines)
                break
            self._lines += piece
        line, self._lines = self._lines[:at], self._lines[at:]
        return line

    async def wait(self, check: bool) -> int:
        """See :meth:`~..envs.made.RolloutProcess.wait`."""
        await self._ended.wait()
        assert self.returncode is not None
        if check and self.returncode:
            raise ProcessFailed(self.failure())
        return self.returncode

    def failure(self) -> str:
        """The failed end of the process, in words."""
        return self._with_tail(f"{self._command.name!r}: {describe_exit(self.returncode or 0)}")

    def _with_tail(self, text: str) -> str:
        ending = self.tail[-SHOWN_BYTES:].decode(errors="backslashreplace").strip()
        return redacted(f"{text}; its standard error ends so:\n{ending}" if ending else text)

    def send_signal(self, number: int) -> None:
        """See :meth:`~..envs.made.RolloutProcess.kill`."""
        if self._link is not None and not self._over.is_set():
            with suppress(OSError):  # the reaper has ended
                os.write(self._link.socket.fileno(), bytes([number]))

    async def run_to_end(self, how: CommandRun) -> tuple[tuple[bytes, int], bool]:
        """Run the process to its end or its limit, and kill what is left.  Returns its standard
        output with the number of bytes left out, and whether it reached the limit."""
        stdout = CutOutput(how.most_bytes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed, _need(self._stdin, "stdin"), how.input)
            nursery.start_soon(stdout.collect, _need(self._stdout, "stdout"))
            with trio.move_on_after(how.timeout_s) as scope:
                await self._ended.wait()
            self.end()
            await self._over.wait()
            nursery.cancel_scope.deadline = trio.current_time() + REST_S
        return stdout.kept(), scope.cancelled_caught

    def end(self) -> None:
        """Have all killed, without waiting."""
        self._scope.cancel()

    async def aclose(self) -> None:
        """Have all killed, and wait for that."""
        self.end()
        with trio.CancelScope(shield=True):
            await self._over.wait()
            for stream in (self._stdin, self._stdout, self._stderr):
                if stream is not None:
                    await stream.aclose()


def _inherited() -> dict[str, str]:
    """The variables of the worker, without the hidden ones."""
    hidden = hidden_names()
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _need(stream: trio.lowlevel.FdStream | None, name: str) -> trio.lowlevel.FdStream:
    if stream is None:
        raise ValueError(f'the process has no pipe there: its {name} is "null"')
    return stream


def _not_started(
    command: ProcessCommand, cwd: bytes, step: bytes, number: int
) -> ProcessNotStarted:
    """The error of a process that was not started, in words."""
    name, where = repr(command.name), repr(os.fsdecode(cwd))
    told = {
        (b"exec", errno.ENOENT): f"{name} was not found (nor the interpreter that it may name)",
        (b"exec", errno.EACCES): f"this user may not run {name}",
        (b"exec", errno.ENOEXEC): f"{name} is no program that this system can run",
        (b"exec", errno.E2BIG): f"the words and variables of {name} are too long",
        (b"cwd", errno.ENOENT): f"the directory {where} for {name} does not exist",
        (b"cwd", errno.ENOTDIR): f"{where}, the directory for {name}, is none",
        (b"cwd", errno.EACCES): f"this user may not enter {where}, the directory for {name}",
        (b"fork", errno.EAGAIN): f"the system has no room for another process, {name}",
        (b"fork", errno.ENOMEM): f"the system has no memory for another process, {name}",
        (b"fork", errno.EMFILE): f"this worker has no descriptor left for the process {name}",
    }.get((step, number), f"{name} could not be started: {os.strerror(number)}")
    return ProcessNotStarted(redacted(told), number)
