"""The processes of a siege, and what all of its parts write to.

Theory of operation
-------------------
Programs are started with one JSON object, told what to do a line at a time, and write
their logs themselves; the testbed starts them in the folder of the siege, so that what is
left over can be found by it, and watches the memory of the victims from outside.  A
victim that ends by itself, or does not answer any more, is written down with its last
words, and the siege goes on with a new one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import trio

from tests.proc import children, cpu_s
from tests.rig.samples import OfHost, rss_kib
from trio_envserve.lab.history import CALLERS, ENVIRONMENT
from trio_envserve.lab.logs import JsonLog
from trio_envserve.lab.programs import Program, open_program, program
from trio_envserve.lab.remote_host import RemoteHost
from trio_envserve.lab.standing import open_standing

EVENTS, ATTACKS, LOOPS, SAMPLES, STALLS = (
    "events.jsonl", "attacks.jsonl", "loops.jsonl", "samples.jsonl", "stalls.jsonl",
)  # fmt: skip
LOGS: Final = (EVENTS, ATTACKS, LOOPS, SAMPLES, STALLS, CALLERS, ENVIRONMENT)

ROOT: Final = str(Path(__file__).resolve().parent.parent.parent)
"""Of this checkout: workers find the environment there."""

SIZE = 1000
"""Tasks of the environment."""

IN_FLIGHT = 16
"""Calls at once of the honest client."""

END_S = 40.0
"""How long a victim may take to end: a server's own limits for its close add up to less."""
START_S = 60.0
"""From starting a program to its first line."""

SAMPLE_S = 0.2
"""Between two looks at the memory of the victims."""


@final
class Testbed:
    """One siege's folder, seed and logs."""

    def __init__(
        self, directory: Path, seed: int, victim: tuple[str, ...], options: Mapping[str, Any]
    ) -> None:
        self.directory = directory
        self.events = JsonLog(directory / EVENTS)
        self.phase = "starting"
        self.faults: list[str] = []
        """The failures so far, for whoever watches."""
        self.seed = seed
        self._samples = JsonLog(directory / SAMPLES)
        self._victim = victim
        self._options = dict(options)
        """Options of every server and client of this project."""
        self._numbers = 0

    def close(self) -> None:
        """No more lines."""
        self.events.close()
        self._samples.close()

    # -- programs -------------------------------------------------------------

    @asynccontextmanager
    async def program(
        self, name: str, options: Mapping[str, Any], what: str,
        command: tuple[str, ...] | None = None,
    ) -> AsyncGenerator[tuple[Program, dict[str, Any]], None]:  # fmt: skip
        """A program of the siege, and the first line that it said."""
        command = command or program(f"tests.attack.{name}")
        environ = {"XDG_RUNTIME_DIR": str(self.directory), "PYTHONPATH": ROOT}
        async with open_program(
            [*command, json.dumps(dict(options))], environ, what=what, cwd=self.directory
        ) as started:
            yield started, await started.line(START_S)

    @asynccontextmanager
    async def watching_stalls(self) -> AsyncGenerator[None, None]:
        """Write down when the machine itself stands still."""
        log = {"log": str(self.directory / STALLS)}
        async with self.program("stalls", log, "the watch for stalls") as (watch, said):
            self.events.write("stalls", watched=said["event"] == "watching")
            yield
            await watch.end()

    @asynccontextmanager
    async def server(
        self, bind: str = "tcp://127.0.0.1:0", **options: Any
    ) -> AsyncGenerator[tuple[Program, dict[str, str]], None]:
        """A besieged server, and its addresses: of its ``front``, and of each door."""
        args = {
            "log_path": str(self.directory / ENVIRONMENT),
            "loop_path": str(self.directory / LOOPS),
            "size": SIZE, "meter": options.get("workers") != 0 or "hosts_bind" in options,
        }  # fmt: skip
        asked = {
            "environment": "tests.attack.environment:Besieged", "args": args,
            "bind": bind, "loop": str(self.directory / LOOPS), **self._options, **options,
        }  # fmt: skip
        async with self.program("server", asked, "the server", self._victim) as (started, said):
            yield started, said["addresses"]
            await self.end(started, "server")

    @asynccontextmanager
    async def host(self, address: str, workers: int) -> AsyncGenerator[Program, None]:
        """A remote host that has joined."""
        host = RemoteHost(
            address, workers, self.directory, cwd=self.directory, environ={"PYTHONPATH": ROOT}
        )
        async with open_standing(host):
            yield host.program
            await self.end(host.program, "host", terminate=True)

    @asynccontextmanager
    async def client(self, address: str, **options: Any) -> AsyncGenerator[Program, None]:
        """A client."""
        self._numbers += 1
        asked = {
            "address": address, "name": f"c{self._numbers}", "size": SIZE,
            "log": str(self.directory / CALLERS), "loop": str(self.directory / LOOPS),
            **self._options, **options,
        }  # fmt: skip
        async with self.program("client", asked, "the client") as (started, _):
            yield started
            await self.end(started, "client")

    async def end(self, started: Program, who: str, *, terminate: bool = False) -> None:
        """Ask a victim to end, and write down how it did."""
        code = started.process.poll()
        began_s = trio.current_time()
        await started.end(END_S, terminate=terminate)
        if code is None:
            took_s = round(trio.current_time() - began_s, 2)
            code = started.process.returncode
            self.events.write("stopped", who=who, code=code, took_s=took_s, phase=self.phase)

    async def blame(
        self, victims: Mapping[str, Program], suspect: str, number: int, why: str
    ) -> None:
        """Write down which of the victims has ended, or that the suspect does not
        answer any more; and end it."""
        await trio.sleep(0.5)  # whoever has closed its output has a moment to end
        gone = [who for who, one in victims.items() if one.process.poll() is not None]
        for who in gone or [suspect]:
            event, code = ("ended" if gone else "hung"), victims[who].process.poll()
            words = victims[who].last_words()[-2000:]
            self.events.write(event, who=who, code=code, round=number, why=why[:300], words=words)
            self.faults.append(f"the {who} {event} in {self.phase}")
            await victims[who].kill()

    # -- memory ---------------------------------------------------------------

    async def sample(self, stage: str, victims: Mapping[str, Program]) -> None:
        """Write down the memory of the victims and their children until cancelled."""
        while True:
            self.look(stage, victims)
            await trio.sleep(SAMPLE_S)

    def look(self, stage: str, victims: Mapping[str, Program], phase: str = "siege") -> None:
        """Write down the resident memory of the victims and of the workers."""
        pids = {(who, started.pid) for who, started in victims.items()}
        if "host" in victims:
            of_host = OfHost.at(self.directory, victims["host"].pid)
            pids |= {("worker", pid) for pid in of_host.workers}
        elif "server" in victims:
            pids |= {("worker", pid) for pid in children(victims["server"].pid)}
        for who, pid in sorted(pids):
            try:
                self._samples.write(
                    "sample", stage=stage, phase=phase, who=who, pid=pid, rss_kib=rss_kib(pid),
                    cpu_s=cpu_s(pid),
                )  # fmt: skip
            except OSError:
                continue  # it has ended; the judge decides whether it may
