"""The laboratory's programs as processes: started, told what to do, killed, ended.

Theory of operation
-------------------
A program takes orders on standard input and answers on standard output, a JSON object a
line.  It ends with its standard input (the ``serve`` command: with its parent), so nothing
is left behind however the laboratory ends.  In an orderly end it is waited for, and then
killed.  Ctrl-C is not for it: it is in a process group of its own.

A program that works in a folder of its own, and all that it starts there, can be found by
that folder if it is left over (``tests/rig/samples.py``): titles and environments may be
overwritten, a working directory may not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, Final, final

import trio

from ..core.errors import ServerStartError

END_S = 8.0
"""How long a program may take to end by itself."""

START_S = 120.0
"""How long a program may take to say its first line; the peer of the benchmark imports much."""

ANSWER_S = 180.0
"""How long an order may take, far more than any does; only a hang takes longer."""

_ROOT: Final = str(Path(__file__).resolve().parent.parent.parent)
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from {module} import main; sys.exit(main())"
)


def program(module: str) -> tuple[str, ...]:
    """The command that runs ``main()`` of a module from any folder, whatever is installed;
    its arguments are added."""
    return (sys.executable, "-P", "-c", _BOOT.format(module=module), _ROOT)


class EndedByItself(Exception):
    """A program ended, and nobody had killed it."""


@final
class Program:
    """A running program.  Made by :func:`start_program`, or by :func:`open_program`."""

    def __init__(self, process: trio.Process, errors: IO[bytes], what: str) -> None:
        self.process = process
        self.pid = process.pid
        self.killed = False
        """Whether it was sent SIGKILL here."""
        self._what = what
        self._errors = errors
        self._words = ""
        self._buffer = b""
        self._telling = trio.Lock()

    @property
    def living(self) -> bool:
        """Whether it runs, and was not killed."""
        return not self.killed and self.process.poll() is None

    # -- what it says ----------------------------------------------------------

    async def line(self, limit_s: float = START_S) -> dict[str, Any]:
        """The next line of its output.  ServerStartError, with the end of its log,
        if it has ended or takes too long."""
        with trio.move_on_after(limit_s):
            record = await self._next()
            if record is None:
                raise ServerStartError(f"{self._what} ended:\n{self.last_words()}")
            return record
        raise ServerStartError(f"{self._what} said nothing for {limit_s:g} s:\n{self.last_words()}")

    async def event(self, name: str) -> dict[str, Any]:
        """The next line that is this event."""
        while True:
            record = await self.line()
            if record.get("event") == name:
                return record

    async def listen(self, heard: Callable[[dict[str, Any]], object]) -> int:
        """Hand on each line until it has ended; returns its exit status."""
        while (record := await self._next()) is not None:
            heard(record)
        return await self.process.wait()

    async def live(
        self, heard: Callable[[dict[str, Any]], object], limit_s: float = END_S, *,
        first: Mapping[str, Any] | None = None, terminate: bool = False,
    ) -> int | None:  # fmt: skip
        """Give it a first order, and listen until it has ended; if this task is cancelled, it
        is asked to end.  Returns its exit status; None if it was killed here."""
        try:
            if first is not None:
                await self.tell(first)
            status = await self.listen(heard)
        finally:
            await self.end(limit_s, terminate=terminate)  # noqa: ASYNC102  # shields itself
        return None if self.killed else status

    def ended_by_itself(self, status: int) -> EndedByItself:
        """The error about its end, with its last words."""
        return EndedByItself(f"{self._what} ended with status {status}: {self.last_words()}")

    async def _next(self) -> dict[str, Any] | None:
        """The next line; None if there is none any more."""
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            more = await self.process.stdout.receive_some(65536)
            if not more:
                return None
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        record: dict[str, Any] = json.loads(line)
        return record

    def last_words(self) -> str:
        """The end of what it said on standard error."""
        if self._errors.closed:
            return self._words
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4000))
        return self._errors.read().decode(errors="replace")

    # -- what it is told -------------------------------------------------------

    async def tell(self, order: Mapping[str, Any]) -> None:
        """Give it one line.  Nothing happens if it has ended: who listens to it learns that."""
        assert self.process.stdin is not None
        async with self._telling:
            try:
                await self.process.stdin.send_all(json.dumps(order).encode() + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

    async def ask(self, order: Mapping[str, Any], limit_s: float = ANSWER_S) -> dict[str, Any]:
        """Give it one line, and get one.  ServerStartError as for :meth:`line`."""
        await self.tell(order)
        return await self.line(limit_s)

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        self.killed = self.killed or number == signal.SIGKILL
        self.process.send_signal(number)

    async def kill(self) -> None:
        """``kill -9``, and reap it.  What it has started ends by itself."""
        with trio.CancelScope(shield=True):
            self.signal(signal.SIGKILL)
            await self._reap()

    async def end(self, limit_s: float = END_S, *, terminate: bool = False) -> None:
        """Let it go on if it was stopped, ask it to end, and reap it; kill it if that takes
        too long.  With ``terminate`` it gets SIGTERM, too."""
        with trio.CancelScope(shield=True):
            assert self.process.stdin is not None
            await self.process.stdin.aclose()
            for number in (signal.SIGTERM, signal.SIGCONT) if terminate else (signal.SIGCONT,):
                self.process.send_signal(number)
            with trio.move_on_after(limit_s):
                await self.process.wait()
            self.process.kill()
            await self._reap()

    async def _reap(self) -> None:
        await self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                await stream.aclose()
        self._words = self.last_words()
        self._errors.close()


async def start_program(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, what: str,
    cwd: Path | None = None, errors: Path | None = None,
) -> Program:  # fmt: skip
    """Start a program.  ``what`` it is is said in errors; its standard error is added to the
    file ``errors``, or is in none.  Whoever starts it calls :meth:`Program.end`."""
    log: IO[bytes]
    if errors is None:
        log = tempfile.TemporaryFile("a+b", prefix="trio-envserve-lab-")  # noqa: SIM115
    else:
        log = errors.open("a+b")
    try:
        process = await trio.lowlevel.open_process(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            env={**os.environ, **(environ or {})}, process_group=0, cwd=cwd,
        )  # fmt: skip
    except BaseException:
        log.close()
        raise
    return Program(process, log, what)


@asynccontextmanager
async def open_program(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, terminate: bool = False,
    what: str = "a program of the benchmark", cwd: Path | None = None,
) -> AsyncGenerator[Program, None]:  # fmt: skip
    """Start a program, and end it with the block, with ``terminate`` by SIGTERM."""
    started = await start_program(command, environ, what=what, cwd=cwd)
    try:
        yield started
    finally:
        await started.end(terminate=terminate)  # noqa: ASYNC102  # shields itself, and has limits
