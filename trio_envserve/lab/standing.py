"""Programs of the laboratory that are killed and started again where they were."""

from __future__ import annotations

import abc
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from .logs import JsonLog
from .programs import Program, start_program


class Standing(abc.ABC):
    """One program after the other at an address that stays the same.  They end by themselves
    or are killed here, and another is started here."""

    what: str
    """Its name, in errors and in the name of its log."""
    end_s: float
    """How long an orderly stop may take."""
    terminate: bool
    """Whether it is asked to stop by SIGTERM; else by the end of its standard input."""

    def __init__(
        self, directory: Path, cwd: Path | None, environ: Mapping[str, str] | None = None
    ) -> None:
        """All its files (locks, logs) are in ``directory``; it has the variables of ``environ``
        besides those of this process."""
        self._directory = directory
        self._cwd = cwd
        self._environ = {**(environ or {}), "XDG_RUNTIME_DIR": str(directory)}
        self._program: Program | None = None

    @abc.abstractmethod
    def command(self) -> list[str]:
        """The command that is started next."""

    @abc.abstractmethod
    async def begun(self, started: Program) -> None:
        """Wait until it serves."""

    @abc.abstractmethod
    def note(self, log: JsonLog) -> None:
        """Write down that it serves, for a judge."""

    @property
    def program(self) -> Program:
        """The one that there is now."""
        assert self._program is not None
        return self._program

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.program.pid

    @property
    def there(self) -> bool:
        """Whether there is such a process."""
        return self._program is not None

    async def start(self) -> None:
        """Start it; returns once it serves.  ServerStartError, with the end of its log, if that
        comes to nothing."""
        self._program = await start_program(
            self.command(), self._environ, what=f"the {self.what}", cwd=self._cwd,
            errors=self._directory / f"{self.what}-stderr.log",
        )  # fmt: skip
        await self.begun(self._program)

    async def kill(self) -> None:
        """``kill -9``, and reap it.  Its workers end by themselves."""
        started, self._program = self._program, None
        assert started is not None
        await started.kill()

    async def replace(self, log: JsonLog) -> None:
        """Kill it, start the next one, and write both down."""
        sent_s, pid = time.monotonic(), self.pid
        await self.kill()
        log.write("kill", what=self.what, pid=pid, sent_s=sent_s)
        await self.start()
        self.note(log)

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        if self._program is not None:
            self._program.signal(number)

    async def wait_unexpected_end(self) -> None:
        """Sleep until the process that there is now ends by itself."""
        while self._program is None or self._program.process.poll() is None:  # noqa: ASYNC110  # another process
            await trio.sleep(0.1)

    async def stop(self) -> None:
        """Ask it to stop, and reap it; kill it if that takes too long."""
        started, self._program = self._program, None
        if started is not None:
            await started.end(self.end_s, terminate=self.terminate)


S = TypeVar("S", bound=Standing)


@asynccontextmanager
async def open_standing(program: S) -> AsyncGenerator[S, None]:
    """Start it, and stop the one that there is when the block ends."""
    try:
        await program.start()
        yield program
    finally:
        await program.stop()  # noqa: ASYNC102  # shields itself, and has limits
