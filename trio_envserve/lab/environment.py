"""The environment of runs of real processes, whose results say by which execution they were made.

So a second execution cannot give the result of the first.  Each begin and end is in the log of
the run, with the process and the kernel's word on the process that had begun the request before.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, final

import trio

from ..envs.interface import Rollout
from .logs import EventLog
from .witness import Witness


@final
class LoggedEnvironment:
    """An input is ``{"request": str, "seconds": float, "give": int}``, and perhaps more.  A
    result has ``request``, ``execution`` and so many bytes.  Without a request (of a
    measurement) only the begin is logged, under the name of the server's."""

    name = "logged"

    def __init__(self, log: str) -> None:
        self._log = EventLog(Path(log))
        self._lives = f"{log}.lives"
        self._witness: Witness | None = None

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """One execution."""
        # Here, and not before: a process whose fork runs rollouts would hold its lock.
        witness = self._witness = self._witness or Witness(self._lives)
        request, execution = rollout.input["request"], secrets.token_hex(8)
        about = {"execution": execution, "pid": os.getpid()}
        if not request:
            unasked = {"unasked": True, "predecessor": "none", **about}
            self._log.write("began", witness.process, f"#{rollout.request}", **unasked)
            self._log.write("ended", witness.process, f"#{rollout.request}", how="result", **about)
            return {"request": request, "execution": execution}
        before = witness.begin(request)
        self._log.write("began", witness.process, request, predecessor=before, **about)
        how = "result"
        try:
            await trio.sleep(rollout.input["seconds"])
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            self._log.write("ended", witness.process, request, how=how, **about)
        pad = secrets.token_bytes(rollout.input.get("give", 0))
        return {"request": request, "execution": execution, "pad": pad}
