"""A rig: a server, hosts and clients as processes, their log, and what is done to them.

Theory of operation
-------------------
All processes work in the folder of the run, and end with this one.  Whoever is killed is started
again at once (:meth:`Rig.kept`); whoever ends by itself ends the run.  Each process writes to the
one log of the run, ``events.jsonl``; nothing is decided here: the judges read that.

A scenario is a function that opens these processes, gives the clients orders and the killer acts.
:func:`main` makes a command of it.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import trio

from tests.rig.samples import Pool, Samples, sample
from trio_envserve.core.errors import ConfigError, ServerStartError
from trio_envserve.lab.guarantees import judge
from trio_envserve.lab.killer import Act, Killer, Victim, kept
from trio_envserve.lab.logs import EventLog, Lives, prepared
from trio_envserve.lab.processes import (
    LOOK_S,
    TRIO_ENVSERVE,
    EndedByItself,
    Process,
    program,
    serve_process,
    until,
)
from trio_envserve.testing.proxy import FaultProxy

EVENTS = "events.jsonl"
ENVIRONMENT = "trio_envserve.lab.environment:LoggedEnvironment"


@final
class ClientSlot:
    """One client process after the other; the second life of slot 1 is ``c1-2``."""

    def __init__(self, rig: Rig, slot: int, options: Mapping[str, Any]) -> None:
        self.asked = self.ended = 0
        """Calls that have or want an end, and those that have one, as far as it has said."""
        self.before = 0
        """Those that had an end in earlier lives; the others have none."""
        self.done = -1
        """Number of the order that it has carried out."""
        self.right = 0
        """Right answers to that order."""
        self.ready = False
        self._rig = rig
        self._slot = f"c{slot}"

        def command(_: object) -> list[str]:
            caller = {"name": self.next_name, "caller": f"rig-{slot}"}
            return program("tests.rig.client", {**options, **caller})

        self.process = Process(
            command, f"client {self._slot}", cwd=rig.folder, end_s=20.0,
            log=rig.folder / f"client-{slot}.log",
        )  # fmt: skip

    @property
    def next_name(self) -> str:
        return f"{self._slot}-{self.process.lives + 1}"

    @property
    def name(self) -> str:
        return f"{self._slot}-{self.process.lives}"

    async def begin(self) -> None:
        """Give a new life the order that all have."""
        self.before, self.asked, self.ended, self.ready = self.before + self.ended, 0, 0, False
        await self.process.tell(self._rig.order)

    def heard(self, said: dict[str, Any]) -> None:
        match said["event"]:
            case "ready":
                self.ready = True
            case "count":
                self.asked, self.ended = said["asked"], said["ended"]
            case "done":
                self.done, self.right = said["number"], said["right"]
        self._rig.changed.unpark_all()


@final
class Rig:
    def __init__(self, folder: Path, mix: str, seed: int = 0, *, quiet: bool = False) -> None:
        """``mix``: the module whose ``Mix`` says what clients ask.  ConfigError if the folder has
        the log of an earlier run."""
        self.folder = prepared(folder, (EVENTS,))
        self.log = EventLog(self.folder / EVENTS)
        self.lives = Lives(self.folder / EVENTS)
        self.server: Process | None = None
        self.hosts: dict[str, Process] = {}
        self.clients: list[ClientSlot] = []
        self.spared: ClientSlot | None = None
        """A client that is not killed."""
        self.proxy: FaultProxy | None = None
        self.order: dict[str, Any] = {"do": "rest", "number": 0}
        """Order that all clients have."""
        self.changed = trio.lowlevel.ParkingLot()
        """Where to wait for what clients say."""
        self.quiet = quiet
        self.closing = False
        """Whether the first of its processes is told to end."""
        self._mix = {"mix": mix, "seed": seed, "log": str(self.folder / EVENTS)}

    def say(self, text: str) -> None:
        if not self.quiet:
            asked = sum(client.before + client.asked for client in self.clients)
            print(f"{text}: {self.ended} of {asked} calls have ended", file=sys.stderr, flush=True)

    # -- processes -----------------------------------------------------------------

    def serve(
        self, *options: str, workers: int = 2, hosted: bool = False,
        limits: Mapping[str, Any] | None = None, command: Sequence[str] = (),
        environment: str = ENVIRONMENT, logged: bool = True,
    ) -> Process:  # fmt: skip
        """``logged``: whether the environment writes to the log of the run."""
        self.server = serve_process(
            environment, self.folder, *options, workers=workers, hosted=hosted, limits=limits,
            args={"log": str(self.folder / EVENTS)} if logged else {}, cwd=self.folder,
            command=command or TRIO_ENVSERVE,
        )  # fmt: skip
        return self.server

    @asynccontextmanager
    async def kept(self, process: Process, of: str, **more: Any) -> AsyncIterator[None]:
        """A process that is kept (:func:`.killer.kept`); its end is the begin of the closing."""
        async with kept(process, of, self.log, **more):
            try:
                yield
            finally:
                if not self.closing:
                    self.closing = True
                    self.log.write("phase", "closing")

    @asynccontextmanager
    async def kept_clients(self, count: int, address: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for slot in range(count):
                client = ClientSlot(self, slot, {**self._mix, "address": address})
                self.clients.append(client)
                keeping = self.kept(
                    client.process, "client", begin=client.begin, heard=client.heard
                )
                await stack.enter_async_context(keeping)
            yield

    def victims(self, of: str, how: str) -> list[Victim]:
        """The processes of a kind that are there, for a fault."""
        if of in ("worker", "guard"):
            return [Victim(f"{of} {pid}", pid, None) for pid in self._below(f"{of}s")]
        named: dict[str, list[tuple[str, Process | None]]] = {
            "server": [("server", self.server)], "host": list(self.hosts.items()),
            "client": [
                (client.name, client.process) for client in self.clients
                if how != "kill" or client is not self.spared
            ],
        }  # fmt: skip
        return [
            Victim(name, process.pid, process) for name, process in named[of]
            if process is not None and process.living
        ]  # fmt: skip

    def _below(self, kinds: str) -> list[int]:
        """Ids of the workers, or the guards, of the server, or of its hosts."""
        above = [*self.hosts.values()] or [*filter(None, [self.server])]
        return [
            pid for process in above if process.living
            for pid in getattr(Pool.at(self.folder, process.pid), kinds)
        ]  # fmt: skip

    # -- clients -------------------------------------------------------------------

    @property
    def ended(self) -> int:
        """Number of calls that have an end, as far as clients have said."""
        return sum(client.before + client.ended for client in self.clients)

    async def tell(self, do: str, **order: Any) -> int:
        """Give all clients, and those that come after them, an order; its number."""
        number: int = self.order["number"] + (do != "reach")
        told = {"do": do, "number": number, **order}
        self.order = {**self.order, **order} if do == "reach" else told
        for client in self.clients:
            if client.process.living:
                await client.process.tell(told)
        return number

    async def wait_all(self, condition: Callable[[ClientSlot], bool]) -> None:
        """Sleep until it is true of each client, which lives."""
        while not all(client.process.living and condition(client) for client in self.clients):
            await self.changed.park()

    async def carried_out(self, do: str, **order: Any) -> None:
        """Give all clients an order, and wait until it is done."""
        number = await self.tell(do, **order)
        await self.wait_all(lambda client: client.done == number)

    async def measured(self, client: ClientSlot, **order: Any) -> int:
        """Let one client ask for all of something; how many answers were right."""
        number = self.order["number"] = self.order["number"] + 1
        await client.process.tell({"do": "all", "number": number, **order})
        while client.done != number:
            await self.changed.park()
        return client.right

    # -- the run -------------------------------------------------------------------

    async def strike(
        self, killer: Killer, seed: int, count: int, kinds: Sequence[tuple[str, str]], calls: int,
        pause_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Carry out acts of these kinds, while so many calls come to their ends.

        ``pause_s``: the average pause before each, once its time has come.
        """
        rng = random.Random(seed)
        for number in range(count):
            due = number * calls // (count + 1)
            await until(lambda: self.ended >= due)  # noqa: B023  # it is awaited here
            await trio.sleep(rng.uniform(0.0, 2 * pause_s))
            of, how = rng.choice(kinds)
            await killer.carry_out(Act(0.0, of, how, rng.random()))

    async def watch(self) -> None:
        """Follow the log and the processes that write it, until cancelled."""
        while True:
            self.lives.look(self.log)
            await trio.sleep(LOOK_S)

    @contextmanager
    def phase(self, name: str, limit_s: float) -> Iterator[None]:
        """A phase that must come to its end in time; if it does not, the next one begins."""
        self.say(name)
        with trio.move_on_after(limit_s) as limit:
            yield
        if limit.cancelled_caught:
            self.log.write("phase", "hung", phase=name)

    def sample(self, phase: str) -> dict[str, Any]:
        known: dict[int, str] = {}
        owners = {host.pid: "host" for host in self.hosts.values() if host.living}
        if self.server is not None and self.server.living:
            owners[self.server.pid] = "server"
        for pid, kind in owners.items():
            pool = Pool.at(self.folder, pid)
            known |= dict.fromkeys(pool.guards, "guard")
            known |= dict.fromkeys(pool.fuses, "fuse")
            known[pid] = kind
        known |= {each.process.pid: "client" for each in self.clients if each.process.living}
        found = sample(self.folder, known)
        self.log.write("sampled", phase, **found)
        return found


class Scenario(NamedTuple):
    module: str
    """The module that is run; its ``Mix`` says what clients ask."""
    run: Callable[[Rig, argparse.Namespace], Awaitable[None]]
    wants: Callable[[argparse.Namespace], Mapping[str, int]]
    """How much of what must be in the tally, so that something is shown.  ConfigError for
    options that cannot work."""
    options: Callable[[argparse.ArgumentParser], None]
    judged: Callable[[Path, argparse.Namespace], dict[str, Any]] = lambda log, _: judge(
        log, Samples()
    )
    watched: bool = True
    """Whether the deaths of the environment's processes are written down."""


async def play(scenario: Scenario, rig: Rig, given: argparse.Namespace) -> list[str]:
    rig.log.write("phase", "begin", wants=scenario.wants(given), options=str(vars(given)))
    said: list[str] = []
    try:
        async with trio.open_nursery() as nursery:
            if scenario.watched:
                nursery.start_soon(rig.watch)
            await scenario.run(rig, given)
            nursery.cancel_scope.cancel()
    except* (EndedByItself, ServerStartError) as group:
        said += [str(error) for error in group.exceptions]
    finally:
        if scenario.watched:
            rig.lives.look(rig.log)
        rig.log.close()
    return said


def main(scenario: Scenario, words: Sequence[str] | None = None) -> int:
    """Run it, judge the log, and print the figures; exit code 0 only if there is no problem, 2 for
    wrong usage.  Ctrl-C ends everything, and prints the figures so far."""
    parser = argparse.ArgumentParser(prog=f"python -m {scenario.module}", allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0, help="decides what happens")
    parser.add_argument("--server-command", type=shlex.split, default=[], help="a broken server")
    parser.add_argument("--keep", type=Path, help="keep the log, in a folder that has none yet")
    scenario.options(parser)
    given = parser.parse_args(words)
    code = 0
    with tempfile.TemporaryDirectory(prefix="trio-envserve-rig-") as name:
        try:
            scenario.wants(given)
            rig = Rig(given.keep or Path(name), scenario.module, given.seed)
        except ConfigError as error:
            parser.error(str(error))
        try:
            for text in trio.run(play, scenario, rig, given):
                print(text, file=sys.stderr)
        except* KeyboardInterrupt:
            code = 130
        judged = scenario.judged(rig.folder / EVENTS, given)
    for problem in judged["problems"]:
        print(f"FAILED: {problem}", file=sys.stderr)
    print(json.dumps(judged))
    return code or int(not judged["ok"])
