"""The server and the clients as processes: started, killed, started again at once.

Each life ends in a kill, and the next one begins without waiting for anything: so a kill
also falls on what is only starting.  All of it works in the folder of the run, and ends
with this process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from ..logs import JsonLog
from ..programs import Program, program, start_program

SERVER_PROGRAM = program("trio_envserve.cli")
CLIENT_PROGRAM = program("trio_envserve.lab.kills.client")

_STOP_S = 30.0


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
        self.program: Program | None = None
        self.number = 0
        self.may_end = False
        self._directory = directory
        self._log = log
        self._command = command
        self._heard = heard

    async def live(self) -> None:
        """One after the other, until it may end and does."""
        while True:
            self.number += 1
            name = f"{self.what}-{self.number}"
            self.program = started = await start_program(
                self._command(self.number), what=f"the {name}", cwd=self._directory,
                errors=self._directory / f"{self.what}.err",
            )  # fmt: skip
            self._log.write("started", what=name, pid=started.pid)
            try:
                # A server is asked to stop, a client ends with its standard input.
                status = await started.live(self._heard, _STOP_S, terminate=True)
            finally:
                self.program = None
            if status == 0 and self.may_end:
                return
            if status is not None:
                self._log.write("ended-by-itself", who=name, status=status)
                raise started.ended_by_itself(status)

    def kill(self) -> int | None:
        """``kill -9``; its process id, or None while there is none."""
        if self.program is None or not self.program.living:
            return None
        self.program.signal(signal.SIGKILL)
        return self.program.pid

    async def tell(self, **order: Any) -> None:
        """Say what to do.  One that was killed hears it no more."""
        if self.program is not None:
            await self.program.tell(order)
