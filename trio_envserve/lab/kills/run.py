"""Kill -9 at random moments of server, workers and clients, under keys with a journal.

``python -m trio_envserve.lab.kills.run --kills 300 --keys 1000`` prints the judge's figures,
and exits with 0 only if there is no problem.

Theory of operation
-------------------
A server with a journal and two workers runs :class:`.Executions`; three clients ask for keys,
all of them for the same, and write down durably what they were told.  How many keys are known
grows with the kills, so that work always begins, runs and ends while they fall.  The killer
draws from a seed who dies, and after how long.  Whoever dies is started again at once, a
client under the name of its caller; it does not know what it had asked.

After the last kill each client asks for all keys once more.  Nothing is decided here:
:mod:`.judge` reads the logs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import trio

from ...net import unwrap_single
from ...server.journal import tools
from ..history import CALLERS, ENVIRONMENT, KILLER
from ..logs import EnvironmentLog, JsonLog, prepared
from ..programs import EndedByItself
from ..soak.killer import held
from ..soak.sampler import children_in
from .judge import judge
from .processes import CLIENT_PROGRAM, SERVER_PROGRAM, Life

WORKERS, CLIENTS = 2, 3
WHO = ("server", "worker", "worker", "client")
"""The victims of kills, drawn from these."""
PAUSE_S = 1.2
"""Between two kills, on average."""
JOURNAL = "journal"

_FIRST_KEYS = 0.05
"""The part of the keys that is known from the start."""
_LOOK_S = 0.05
_CALM_S = 1200.0
"""Far more than it takes to ask for all keys once more; only a hang takes longer."""
_LIMITS = ("restart_pause_max_s=1.0", "restart_healthy_s=2.0", "broken_after=1000")
"""Kills fall on workers that are only starting, which is no fault of the environment."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run."""

    directory: Path
    kills: int
    keys: int
    seed: int = 0
    who: Sequence[str] = WHO
    patient: bool = False
    """A kill waits until a client was told something since the one before: so what is shown
    does not depend on how quick the machine is."""
    server: Sequence[str] = SERVER_PROGRAM


@final
class Kills:
    """One run.  :meth:`run` it, once."""

    def __init__(self, options: Options) -> None:
        """ConfigError if the folder has logs already."""
        self.directory = prepared(options.directory, (ENVIRONMENT, CALLERS, KILLER))
        self.done = 0
        """Kills so far."""
        self._options = options
        self._rng = random.Random(options.seed)
        self._log = JsonLog(self.directory / KILLER)
        self._environment = EnvironmentLog(self.directory / ENVIRONMENT)
        self._address = ""
        self._bound = trio.Event()
        self._finished = 0
        self._told = 0
        """How many outcomes clients were told since the last kill, as far as they have said."""
        self._calm = False
        """Whether all kills are done."""
        self.server = Life("server", self.directory, self._log, self._serve, self._server_said)
        self.clients = [
            Life(
                f"client-{slot}", self.directory, self._log, self._client_of(slot),
                self._client_said,
            )
            for slot in range(CLIENTS)
        ]  # fmt: skip

    async def run(self) -> str:
        """All of it; what went wrong in the processes, if anything."""
        self._log.write(
            "begin", kills=self._options.kills, keys=self._options.keys, seed=self._options.seed
        )
        try:
            with unwrap_single():
                await self._run()
        except EndedByItself as error:
            return str(error)
        else:
            problems = await trio.to_thread.run_sync(tools.check, self.directory / JOURNAL)
            self._log.write("journal", problems=problems)
        finally:
            self._environment.look(self._log)
            self._log.close()
        return ""

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self.server.live)
            await self._bound.wait()
            async with trio.open_nursery() as clients:
                for client in self.clients:
                    clients.start_soon(client.live)
                await self._kill()
                self._log.write("calm")
                clients.cancel_scope.deadline = trio.current_time() + _CALM_S
                self._calm = True
                for client in self.clients:
                    client.may_end = True
                    await client.tell(do="finish")
            self._log.write("end" if self._finished == CLIENTS else "hung")
            nursery.cancel_scope.cancel()

    # -- processes --------------------------------------------------------------

    def _serve(self, number: int) -> list[str]:
        limits = [word for limit in _LIMITS for word in ("--limit", limit)]
        return [
            *self._options.server, "serve", "trio_envserve.lab.kills.environment:Executions",
            "--arg", f"log_path={self.directory / ENVIRONMENT}", "--workers", str(WORKERS),
            "--bind", self._address or "tcp://127.0.0.1:0", "--journal", JOURNAL, "--json",
            "--drain-s", "0", "--exit-with-parent", *limits,
        ]  # fmt: skip

    def _server_said(self, said: dict[str, Any]) -> None:
        if said["event"] == "serving":
            self._address = said["address"]
            self._log.write("serving", pid=said["pid"])
            self._bound.set()

    def _client_of(self, slot: int) -> Any:
        def command(number: int) -> list[str]:
            options = {
                "address": self._address, "log": str(self.directory / CALLERS),
                "name": f"c{slot}-{number}", "caller": f"kills-{slot}",
                "seed": self._options.seed, "keys": self._reach(),
                # One that is only starting hears no order.
                "finish": self._calm,
            }  # fmt: skip
            return [*CLIENT_PROGRAM, json.dumps(options)]

        return command

    def _client_said(self, said: dict[str, Any]) -> None:
        self._finished += said["event"] == "done"
        self._told += said["event"] == "told"

    def _reach(self) -> int:
        """How many keys are known by now."""
        part = max(_FIRST_KEYS, (self.done + 1) / self._options.kills)
        return math.ceil(self._options.keys * min(part, 1.0))

    # -- kills --------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._environment.look(self._log)
            await trio.sleep(_LOOK_S)

    async def _kill(self) -> None:
        while self.done < self._options.kills:
            await trio.sleep(self._rng.uniform(0.0, 2 * PAUSE_S))
            what, choice = self._rng.choice(self._options.who), self._rng.random()
            while self._options.patient and not self._told:  # noqa: ASYNC110  # processes
                await trio.sleep(_LOOK_S)
            began_s = time.monotonic()
            while (pid := self._strike(what, choice)) is None:  # noqa: ASYNC110  # processes
                await trio.sleep(_LOOK_S)
                began_s = time.monotonic()
            self._log.write("kill", what=what, pid=pid, began_s=began_s)
            self.done += 1
            self._told = 0
            for client in self.clients:
                await client.tell(do="reach", keys=self._reach())

    def _strike(self, what: str, choice: float) -> int | None:
        """Kill one; its process id, or None if there is none at this moment."""
        if what == "server":
            return self.server.kill()
        if what == "client":
            return self.clients[int(choice * CLIENTS)].kill()
        server = self.server.program
        workers = [] if server is None else children_in(self.directory, server.pid)
        if server is None or not workers:
            return None
        pid = workers[int(choice * len(workers))]
        try:
            with held(pid) as victim:
                if pid not in children_in(self.directory, server.pid):
                    return None  # it ended before it was held, and may be another one now
                victim.signal(signal.SIGKILL)
        except ProcessLookupError:
            return None
        return pid


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, judge, print the figures; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trio_envserve.lab.kills.run")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patient", action="store_true", help="no kill before something was told")
    parser.add_argument("--keep", type=Path, help="keep the logs, in a folder that has none yet")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="trio-envserve-kills-") as name:
        run = Kills(
            Options(
                directory=given.keep or Path(name), kills=given.kills, keys=given.keys,
                seed=given.seed, patient=given.patient,
            )
        )  # fmt: skip
        said = trio.run(run.run)
        figures = judge(run.directory)
    if said:
        print(said, file=sys.stderr)
    for problem in figures["problems"]:
        print(f"FAILED: {problem}", file=sys.stderr)
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
