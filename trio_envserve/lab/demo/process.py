"""The demonstration's server as a process: started, killed, started again."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, final

import trio

from ..programs import Program, start_program

SERVER_COMMAND = (sys.executable, "-m", "trio_envserve.lab.demo.server")

_STOP_S = 15.0
"""How long an orderly stop may take; after the drain it is mostly reaping."""


@final
class DemoServer:
    """A server process at an address that stays the same.

    Made by :func:`open_demo_server`.
    """

    def __init__(
        self, command: Sequence[str], options: dict[str, Any], directory: Path,
        cwd: Path | None = None,
    ) -> None:  # fmt: skip
        self.address = ""
        self.hosts_address = ""
        """Where its hosts join; empty if it has workers of its own."""
        self.ended_by_itself = False
        """Whether the process was found dead when nobody had killed it."""
        self._command = command
        self._options = options
        self._directory = directory
        self._cwd = cwd
        self._program: Program | None = None

    @property
    def pid(self) -> int:
        """The id of the process that serves now."""
        assert self._program is not None
        return self._program.pid

    @property
    def serving(self) -> bool:
        """Whether there is such a process."""
        return self._program is not None

    async def start(self) -> None:
        """Start it; returns once the address is bound.  ServerStartError, with
        the end of its log, if that comes to nothing."""
        options = {**self._options, "bind": self.address or "tcp://127.0.0.1:0"}
        if self.hosts_address:
            options["hosts_bind"] = self.hosts_address
        self._program = await start_program(
            [*self._command, json.dumps(options)], {"XDG_RUNTIME_DIR": str(self._directory)},
            what="the demo's server", cwd=self._cwd, errors=self._directory / "server-stderr.log",
        )  # fmt: skip
        said = await self._program.line()
        self.address, self.hosts_address = str(said["address"]), str(said.get("hosts", ""))

    async def kill(self) -> None:
        """``kill -9``, and reap it.  Its workers end by themselves."""
        program, self._program = self._program, None
        assert program is not None
        await program.kill()

    async def wait_unexpected_end(self) -> None:
        """Sleep until the process that serves now ends by itself."""
        while True:
            if self._program is not None and self._program.process.poll() is not None:
                self.ended_by_itself = True
                return
            await trio.sleep(0.1)

    async def stop(self) -> None:
        """Ask it to stop, and reap it; kill it if that takes too long."""
        program, self._program = self._program, None
        if program is not None:
            await program.end(_STOP_S)


@asynccontextmanager
async def open_demo_server(
    options: dict[str, Any], directory: Path, command: Sequence[str] = SERVER_COMMAND,
    *, cwd: Path | None = None,
) -> AsyncGenerator[DemoServer, None]:  # fmt: skip
    """Start ``command`` with ``options`` as its last argument, as
    :mod:`.demo_server` takes them, and stop it when the block ends.

    Its files (locks, logs) are all in ``directory``.
    """
    server = DemoServer(command, options, directory, cwd)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()  # noqa: ASYNC102
