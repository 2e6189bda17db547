"""The demonstration's server as a process: started, killed, started again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from ..logs import JsonLog
from ..programs import Program
from ..standing import Standing

SERVER_COMMAND = (sys.executable, "-m", "trio_envserve.lab.demo.server")


@final
class DemoServer(Standing):
    """A server process, to be opened by :func:`~..standing.open_standing`."""

    what = "server"
    end_s = 15.0  # after the drain it is mostly reaping
    terminate = False

    def __init__(
        self, options: dict[str, Any], directory: Path, command: Sequence[str] = SERVER_COMMAND,
        *, cwd: Path | None = None,
    ) -> None:  # fmt: skip
        """It is started by ``command`` with ``options`` as its last argument, as
        :mod:`.server` takes them."""
        super().__init__(directory, cwd)
        self.address = ""
        self.hosts_address = ""
        """Where its hosts join; empty if it has workers of its own."""
        self._command = command
        self._options = options

    def command(self) -> list[str]:
        """With the addresses that it had before."""
        options = {**self._options, "bind": self.address or "tcp://127.0.0.1:0"}
        if self.hosts_address:
            options["hosts_bind"] = self.hosts_address
        return [*self._command, json.dumps(options)]

    async def begun(self, started: Program) -> None:
        """The address is bound."""
        said = await started.line()
        self.address, self.hosts_address = str(said["address"]), str(said.get("hosts", ""))

    def note(self, log: JsonLog) -> None:
        """With its address: judges want to know that it stays the same."""
        log.write("serving", pid=self.pid, address=self.address)
