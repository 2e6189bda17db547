"""A host of the laboratory: the command ``join`` as a process, killed and started again.

Theory of operation
-------------------
Its router has no workers of its own then, and all rollouts run on the host.  Both are on
one machine, so the logs are what they are without it: clocks, process ids and the kernel's
word on who is dead are the same.  A host that is started again has the name and the lock of
the one before, and so can say to its router that the workers of that one are dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from .logs import JsonLog
from .programs import Program, program
from .standing import Standing

ANY_PORT: Final = "tcp://127.0.0.1:0"

_JOIN: Final = program("trio_envserve.cli")


def with_host(serving: dict[str, Any]) -> dict[str, Any]:
    """These arguments of :func:`~trio_envserve.server.open_server`, for a server whose workers
    are those of a host."""
    return {**serving, "workers": 0, "hosts_bind": ANY_PORT}


@final
class RemoteHost(Standing):
    """A host of so many workers at an address, to be opened by
    :func:`~.standing.open_standing`."""

    what = "host"
    end_s = 30.0  # the workers are drained
    terminate = True

    def __init__(
        self, address: str, workers: int, directory: Path, *, cwd: Path | None = None,
        name: str = "remote", within: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """``within``: the words before its command, of one that runs it elsewhere."""
        super().__init__(directory, cwd, environ)
        self._address = address
        self._workers = workers
        self._name = name
        self._within = within

    def command(self) -> list[str]:
        """That of a user."""
        return [
            *self._within, *_JOIN, "join", self._address, "--workers", str(self._workers),
            "--name", self._name, "--log-dir", str(self._directory), "--drain-s", "5", "--json",
            "--exit-with-parent",
        ]  # fmt: skip

    async def begun(self, started: Program) -> None:
        """It has joined."""
        await started.event("joined")

    def note(self, log: JsonLog) -> None:
        """That it has joined."""
        log.write("joined", pid=self.pid)
