"""The server and the clients as processes: started, killed, started again at once.

Each life ends in a kill, and the next one begins without waiting for anything: so a kill
also falls on what is only starting.  All of it works in the folder of the run, and ends
with this process.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, final

import trio

from ..logs import JsonLog
from ..soak.programs import program

SERVER_PROGRAM = program("trio_envserve.cli")
CLIENT_PROGRAM = program("trio_envserve.lab.kills.client")

_STOP_S = 30.0


class EndedByItself(Exception):
    """A process ended, and nobody had killed it."""


@final
class Life:
    """One process after the other."""

    def __init__(
        self, what: str, directory: Path, log: JsonLog, command: Callable[[int], Sequence[str]],
        heard: Callable[[dict[str, Any]], object],
    ) -> None:  # fmt: skip
        """``command``: that of the life with this number; ``heard``: what is done with the
        objects that it prints, a line each."""
        self.what = what
        self.process: trio.Process | None = None
        self.number = 0
        self.may_end = False
        self._killed = False
        self._directory = directory
        self._log = log
        self._command = command
        self._heard = heard

    async def live(self) -> None:
        """One after the other, until it may end and does."""
        while True:
            self.number += 1
            name = f"{self.what}-{self.number}"
            self._killed = False
            async with self._started(name) as process:
                await self._listen(process)
                status = await process.wait()
            if self._killed:
                continue
            if self.may_end and status == 0:
                return
            self._log.write("ended-by-itself", who=name, status=status)
            raise EndedByItself(f"the {name} ended with status {status}: {self._errors()}")

    def kill(self) -> int | None:
        """``kill -9``; its process id, or None while there is none."""
        if self.process is None or self.process.poll() is not None or self._killed:
            return None
        self._killed = True
        self.process.kill()
        return self.process.pid

    async def tell(self, **order: Any) -> None:
        """Say what to do.  One that was killed hears it no more."""
        process = self.process
        if process is None or process.stdin is None:
            return
        try:
            await process.stdin.send_all(json.dumps(order).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            if not self._killed and process.poll() is None:
                raise

    @asynccontextmanager
    async def _started(self, name: str) -> AsyncIterator[trio.Process]:
        with (self._directory / f"{self.what}.err").open("ab") as errors:
            process = await trio.lowlevel.open_process(
                list(self._command(self.number)), cwd=self._directory, stderr=errors,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C is for who kills, and ends them
            )  # fmt: skip
        self._log.write("started", what=name, pid=process.pid)
        self.process = process
        try:
            yield process
        finally:
            self.process = None
            with trio.CancelScope(shield=True):
                await _end(process)

    async def _listen(self, process: trio.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while more := await process.stdout.receive_some(65536):
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                self._heard(json.loads(line))

    def _errors(self) -> str:
        return (self._directory / f"{self.what}.err").read_text(errors="replace")[-2000:]


async def _end(process: trio.Process) -> None:
    """A server is asked to stop, a client ends with its standard input."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.aclose()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    with trio.move_on_after(_STOP_S):
        await process.wait()
    process.kill()
    await process.wait()
    await process.stdout.aclose()
