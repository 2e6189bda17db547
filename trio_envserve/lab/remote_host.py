"""A host of the laboratory: the command ``join`` as a process, killed and started again.

Theory of operation
-------------------
Its router has no workers of its own then, and all rollouts run on the host.  Both are on
one machine, so the logs are what they are without it: clocks, process ids and the kernel's
word on who is dead are the same.  A host that is started again has the name and the lock of
the one before, and so can say to its router that the workers of that one are dead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import trio

from .programs import Program, program, start_program

ANY_PORT: Final = "tcp://127.0.0.1:0"

_JOIN: Final = program("trio_envserve.cli")
_STOP_S = 30.0
"""How long an orderly stop may take: the workers are drained."""


def with_host(serving: dict[str, Any]) -> dict[str, Any]:
    """These arguments of :func:`~trio_envserve.server.open_server`, for a server whose workers
    are those of a host."""
    return {**serving, "workers": 0, "hosts_bind": ANY_PORT}


@final
class RemoteHost:
    """One after the other at an address that stays the same.  Made by
    :func:`open_remote_host`."""

    def __init__(self, address: str, workers: int, directory: Path, cwd: Path | None) -> None:
        self._command = [
            *_JOIN, "join", address, "--workers", str(workers), "--name", "remote",
            "--log-dir", str(directory), "--drain-s", "5", "--json", "--exit-with-parent",
        ]  # fmt: skip
        self._directory = directory
        self._cwd = cwd
        self._program: Program | None = None

    @property
    def pid(self) -> int:
        """The id of the process that is the host now."""
        assert self._program is not None
        return self._program.pid

    @property
    def there(self) -> bool:
        """Whether there is such a process."""
        return self._program is not None

    async def start(self) -> None:
        """Start it; returns once it has joined.  ServerStartError, with the end of its log,
        if that comes to nothing."""
        self._program = await start_program(
            self._command, {"XDG_RUNTIME_DIR": str(self._directory)}, what="the remote host",
            cwd=self._cwd, errors=self._directory / "host-stderr.log",
        )  # fmt: skip
        await self._program.event("joined")

    async def kill(self) -> None:
        """``kill -9``, and reap it.  Its workers end by themselves."""
        started, self._program = self._program, None
        assert started is not None
        await started.kill()

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        if self._program is not None:
            self._program.signal(number)

    async def wait_unexpected_end(self) -> None:
        """Sleep until the process that is the host now ends by itself."""
        while self._program is None or self._program.process.poll() is None:  # noqa: ASYNC110  # another process
            await trio.sleep(0.1)

    async def stop(self) -> None:
        """Let it leave, and reap it; kill it if that takes too long."""
        started, self._program = self._program, None
        if started is not None:
            await started.end(_STOP_S, terminate=True)


@asynccontextmanager
async def open_remote_host(
    address: str, workers: int, directory: Path, *, cwd: Path | None = None
) -> AsyncGenerator[RemoteHost, None]:
    """A host of so many workers that has joined at ``address``; it leaves when the block ends.

    Its files (locks, logs) are all in ``directory``.
    """
    host = RemoteHost(address, workers, directory, cwd)
    try:
        await host.start()
        yield host
    finally:
        await host.stop()  # noqa: ASYNC102  # shields itself, and has limits
