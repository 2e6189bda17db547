"""One run of the cases: what takes part in them, rounds, and the record.

Theory of operation
-------------------
A case compares *sides*: each has processes (:class:`Setup`) and a load.  They are set up side by
side, each load is run once to warm up, and then round by round by all sides in turn, the first
one another in each round: a machine's speed drifts by more than what is to be seen, so the runs
of one round are compared.  The median of the ratios counts, and their spread says how far to
trust it.  A *special* case is a function that starts what it needs and is run once a round; only
this project takes part in it.  After each load the environment's log is judged.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import trio

from tests.cost.load import Load
from tests.cost.over_http import open_engine, watched
from tests.proc import below, cpu_s
from trio_envserve.core.errors import ServerStartError
from trio_envserve.host.allocator import ENVIRON
from trio_envserve.lab.processes import Process, program, serve_process

OURS, PLAIN, PEER, HTTP, ALONE = "ours", "plain", "peer-0.4", "http", "asyncio"
OF_OTHERS = (PEER, ALONE)
"""Kinds that need the peer's Python."""
MEASURES = (
    "per_s", "mb_per_s", "p50_ms", "p99_ms", "router_us", "worker_us", "client_us", "ends_us",
    "all_us",
)  # fmt: skip
SPECIAL_S = 600.0
"""Only a hang takes longer."""

Figures: TypeAlias = "dict[str, Any]"


# -- nothing twice, nothing lost --------------------------------------------------------


@final
class Judge:
    """Numbers requests, and judges them by the environment's logs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.next_call = 0
        names = ("asked", "answered", "wrong", "started_twice", "never_started")
        self._found = dict.fromkeys(names, 0)

    def took(self, asked: int, answered: int, wrong: int = 0, *, consent: bool = False) -> None:
        """So many requests from ``next_call`` on have ended: so many of them with an answer, and
        of those so many with that of another request.  Consent is to further starts."""
        starts = self._starts(asked)
        self._add(asked=asked, answered=answered, wrong=wrong, never_started=starts.count(0))
        if not consent:
            self._add(started_twice=sum(max(0, each - 1) for each in starts))

    def cancelled(self, count: int) -> None:
        """So many from ``next_call`` on were cancelled: each was started once, or never."""
        self._add(started_twice=sum(max(0, each - 1) for each in self._starts(count)))

    def record(self) -> dict[str, Any]:
        """For the report."""
        lost = self._found["asked"] - self._found["answered"]
        bad = (lost, *(self._found[name] for name in ("wrong", "started_twice", "never_started")))
        return {**self._found, "lost": lost, "ok": not any(bad)}

    def _add(self, **counts: int) -> None:
        for name, count in counts.items():
            self._found[name] += count

    def _starts(self, count: int) -> list[int]:
        """Number of starts of each of the next requests, by all workers together."""
        first, self.next_call = self.next_call, self.next_call + count
        logs: list[bytes] = [bytes(count)]
        for path in self.folder.glob("starts-*"):
            with path.open("rb") as file:
                file.seek(first)
                logs.append(file.read(count))
        return [sum(column) for column in zip(*logs, strict=True)]


# -- what takes part --------------------------------------------------------------------


class Setup(NamedTuple):
    """The processes of a side."""

    kind: str = OURS
    workers: int = 1
    options: tuple[str, ...] = ()
    """Of ``serve``; ``NEW`` is a folder that nobody has used."""
    environment: str = "Echo"
    curve: bool = False


class Side(NamedTuple):
    """One of those that a case compares."""

    name: str
    load: Load
    setup: Setup = Setup()


class Mark(NamedTuple):
    """A figure of the first side that is to be reached."""

    measure: str
    sense: str
    """``<=`` or ``>=``."""
    bound: float
    against: str = ""
    """Side whose figure divides it; empty: the figure itself."""

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"{self.sense} {self.bound:g}"

    def reached(self, value: float) -> bool:
        """Whether this figure is good enough."""
        return value >= self.bound if self.sense == ">=" else value <= self.bound


class Size(NamedTuple):
    """The size of special cases."""

    outcomes: int = 10_000
    pending: int = 1000
    clients: int = 1000
    requests: int = 100_000
    """Requests that wait or run."""
    hosts: int = 200
    idle_s: float = 5.0
    done: int = 100_000
    journal_keys: int = 1_000_000
    window_s: float = 1.0


class Case(NamedTuple):
    """A case: a row of the table (:mod:`tests.cost.cases`)."""

    name: str
    title: str
    sides: tuple[Side, ...] = ()
    marks: tuple[Mark, ...] = ()
    special: Callable[[Run], Awaitable[Figures]] | None = None
    """What is done where there are no sides.  No figures: they cannot be known here."""
    asked: bool = False
    """Whether it is run only if it is asked for by name."""

    @property
    def setups(self) -> frozenset[Setup]:
        """Those of its sides."""
        return frozenset(side.setup for side in self.sides)


@final
class Run:
    """The place of a run: its folder, its sizes, and its judge."""

    def __init__(self, folder: Path, size: Size, peer_python: str = "") -> None:
        self.folder = folder
        self.size = size
        self.judge = Judge(folder)
        self.peer_python = peer_python

    def new_folder(self) -> Path:
        """One that nobody has used: what another left there would count twice."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def server(self, setup: Setup) -> Process:
        """The command that serves, with default settings, as its users start it."""
        words = [str(self.new_folder()) if word == "NEW" else word for word in setup.options]
        args = {"log": str(self.folder)} if setup.environment == "Echo" else {}
        return serve_process(
            f"tests.cost.environment:{setup.environment}", self.new_folder(),
            "--log-level", "WARNING", *words, workers=setup.workers, args=args,
        )  # fmt: skip

    @asynccontextmanager
    async def served(self, setup: Setup) -> AsyncGenerator[Process, None]:
        """The same, ready."""
        async with self.server(setup) as server:
            await server.event("ready")
            yield server

    @asynccontextmanager
    async def rig(self, setup: Setup) -> AsyncGenerator[Rig, None]:
        """A side's processes, ready.  Servers and workers of all have the settings of the
        allocator that ours have."""
        async with AsyncExitStack() as stack:

            async def begun(command: Sequence[str], what: str) -> tuple[Process, dict[str, Any]]:
                environ = {} if what == "client" else ENVIRON
                process = await stack.enter_async_context(Process(command, what, environ=environ))
                return process, await process.line()

            router: Process | None = None
            pids: list[int] = []
            loop, python = "tests.cost.plain", [self.peer_python, "-P", "-m"]
            if setup.kind == PLAIN:
                router, at = await begun(program(loop, "router"), "router")
                for _ in range(setup.workers):
                    worker, _ = await begun(program(loop, "worker", at["back"]), "worker")
                    pids.append(worker.pid)
                calling = program(loop, "client", at["front"])
            elif setup.kind == PEER:
                peer = [*python, "tests.cost.peer"]
                router, at = await begun([*peer, "server", str(setup.workers)], "peer")
                calling = [*peer, "client", at["address"]]
            elif setup.kind == ALONE:
                calling = [*python, "tests.cost.over_http", "alone"]
            else:
                keys, file = await self._new_keys() if setup.curve else ((), ())
                secured = setup._replace(options=(*setup.options, *keys))
                router = await stack.enter_async_context(self.served(secured))
                calling = program("tests.cost.client", router.said["address"], *file)
                if setup.kind == HTTP:
                    calling = program("tests.cost.over_http", "rollouts", router.said["http"])
            client, _ = await begun(calling, "client")
            yield Rig(self, setup, client, router, pids)

    async def _new_keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The option of a server that wants keys, and the file of its one client."""
        folder = self.new_folder()
        keys, file = str(folder / "keys"), str(folder / "bench.key")
        command = program("trio_envserve", "curve", "new", keys, "bench", "--out", file)
        await trio.run_process(command, capture_stdout=True, capture_stderr=True)
        return ("--curve", keys), (file,)


@final
class Rig:
    """The processes of a side, ready for loads.  Made by :meth:`Run.rig`."""

    def __init__(
        self, run: Run, setup: Setup, client: Process, router: Process | None,
        workers: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """``workers``: those that are no children of the router."""
        self.router = router
        self._workers = workers
        self._run = run
        self._client = client
        self._judged = setup.kind in (OURS, HTTP) and setup.environment == "Echo"

    async def run(self, load: Load, seconds: float) -> Figures:
        """Carry out a load; its figures.  Processor times are microseconds for each request,
        and None where they cannot be known."""
        async with AsyncExitStack() as stack:
            order = {**dataclasses.asdict(load), "seconds": max(seconds, load.least_s)}
            order["first"] = self._run.judge.next_call
            if load.watchers and self.router is not None:
                watching = watched(self.router.said["http"], *load.watchers)
                await stack.enter_async_context(watching)
            if load.turns:
                order["model"] = await stack.enter_async_context(open_engine())
            router = [self.router.pid] if self.router is not None else []
            pids = {
                "router_us": router, "client_us": [self._client.pid],
                "worker_us": self._workers or [pid for each in router for pid in below(each)],
            }  # fmt: skip
            before = {who: [cpu_s(pid) for pid in some] for who, some in pids.items()}
            figures = await self._client.ask(order)
            await trio.sleep(load.tail_s)  # not to wait: it is a part of what is measured
            for who, some in pids.items():
                took_s = spent(before[who], [cpu_s(pid) for pid in some]) if some else None
                figures[who] = None if took_s is None else 1e6 * took_s / figures["answered"]
        for name, parts in (("ends_us", ("router_us", "client_us")), ("all_us", tuple(pids))):
            known = [figures[part] for part in parts if pids[part]]
            figures[name] = None if None in known else sum(known)
        figures["per_s"] = figures["answered"] / figures["seconds"]
        if load.carried_bytes:
            figures["mb_per_s"] = figures["per_s"] * load.carried_bytes / 1e6
        if self._judged:
            self._run.judge.took(figures["asked"], figures["answered"], figures["wrong"])
        return figures


def spent(before: Sequence[float | None], after: Sequence[float | None]) -> float | None:
    """Seconds of processor time between two looks; None if something is not known."""
    if None in before or None in after:
        return None
    return sum(map(float, filter(None, after))) - sum(map(float, filter(None, before)))


async def share_of_core(pid: int, seconds: float) -> float | None:
    """Average share of a core that a process takes, over so many seconds."""
    before, began_s = cpu_s(pid), time.monotonic()
    await trio.sleep(seconds)  # not to wait: it is what is measured
    took_s = spent([before], [cpu_s(pid)])
    return None if took_s is None else took_s / (time.monotonic() - began_s)


# -- rounds and their record --------------------------------------------------------------


class Options(NamedTuple):
    """The cases to run, and how thoroughly."""

    cases: Sequence[Case]
    rounds: int = 5
    seconds: float = 0.8
    """Duration of each load in each round, without its last answers."""
    warm_s: float = 0.3
    """Duration of an uncounted load before the rounds; zero for none."""
    special_rounds: int = 3
    size: Size = Size()
    peer_python: str = ""
    """A Python that has the peer; empty: those that need it are left out."""


@final
class Bench:
    """A run.  ``said`` is told what it is doing."""

    def __init__(self, options: Options, said: Callable[[str], None]) -> None:
        self.options = options
        self.notes: list[str] = []
        self.failed: list[str] = []
        """Cases that came to no end."""
        self._said = said
        self._rounds: dict[str, dict[str, list[Figures]]] = {}
        """By case and side: the figures of each round."""
        self._load_before = round(os.getloadavg()[0], 1)
        self._versions = versions()
        self._judge: Judge | None = None

    async def run(self) -> None:
        """All cases.  Cancelled, what is done stays in :meth:`record`."""
        options = self.options
        if not options.peer_python and any(
            setup.kind in OF_OTHERS for case in options.cases for setup in case.setups
        ):
            self._note("without the peer: no --peer-python")
        with tempfile.TemporaryDirectory(prefix="trio-envserve-cost-") as folder:
            run = Run(Path(folder), options.size, options.peer_python)
            self._judge = run.judge
            if options.peer_python:
                self._versions[PEER] = await _peer_versions(options.peer_python)
            for setups, group in groupby(options.cases, key=lambda case: case.setups):
                async with AsyncExitStack() as stack:
                    rigs: dict[Setup, Rig] = {}
                    for setup in sorted(setups):
                        if setup.kind in OF_OTHERS and not options.peer_python:
                            continue
                        try:
                            rigs[setup] = await stack.enter_async_context(run.rig(setup))
                        except ServerStartError as error:
                            self._note(f"without {setup.kind}, which did not start: {error}")
                    for case in group:
                        await self._run_case(case, run, rigs)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._said(text)

    async def _run_case(self, case: Case, run: Run, rigs: Mapping[Setup, Rig]) -> None:
        self._said(f"{case.name}: {case.title}")
        options = self.options
        sides = [side for side in case.sides if side.setup in rigs]
        if sides[:1] != list(case.sides[:1]):
            self.failed.append(case.name)
            return
        rounds = self._rounds[case.name] = {side.name: [] for side in sides} or {OURS: []}
        try:
            for side in sides if options.warm_s else ():
                await rigs[side.setup].run(side.load, options.warm_s)
            for number in range(options.rounds if sides else options.special_rounds):
                done: dict[str, Figures] = {}
                first = number % max(len(sides), 1)
                for side in sides[first:] + sides[:first]:
                    done[side.name] = await rigs[side.setup].run(side.load, options.seconds)
                if case.special:
                    with trio.fail_after(SPECIAL_S):
                        done[OURS] = await case.special(run)
                for name, figures in done.items():  # only whole rounds: they are compared
                    rounds[name].append(figures)
        except Exception as error:  # whatever a case raises: the others go on, and it is said
            self.failed.append(case.name)
            self._note(f"{case.name} failed: {type(error).__name__}: {error}")

    def record(self) -> dict[str, Any]:
        """Everything that was found, ready for JSON."""
        found, marks = [], []
        for case in self.options.cases:
            by = self._rounds.get(case.name, {})
            if not any(by.values()):
                continue
            first = case.sides[0].name if case.sides else OURS
            measures = MEASURES if case.sides else tuple(by[OURS][0])
            found.append({
                "name": case.name, "title": case.title,
                "figures": {side: summaries(rounds, measures) for side, rounds in by.items()},
                "ratios": {
                    side: summaries(_ratios(by[first], rounds, measures), measures)
                    for side, rounds in by.items() if side != first
                },
            })  # fmt: skip
            marks += reached(case, found[-1])
        return {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": machine(self._load_before),
            "versions": self._versions,
            "rounds": self.options.rounds,
            "seconds": self.options.seconds,
            "cases": found,
            "marks": marks,
            "judged": self._judge.record() if self._judge else {"ok": True},
            "failed": self.failed,
            "notes": self.notes,
        }


def reached(case: Case, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The marks of a case that could be measured, held against its record."""
    found = []
    for mark in case.marks:
        first = case.sides[0].name if case.sides else OURS
        of = record["ratios"].get(mark.against, {}) if mark.against else record["figures"][first]
        if mark.measure in of:
            got = of[mark.measure]
            found.append({
                "case": case.name, "measure": mark.measure, "against": mark.against,
                "wanted": mark.wanted, "got": got, "reached": mark.reached(got["median"]),
            })  # fmt: skip
    return found


def summary(values: Iterable[float]) -> dict[str, float | int]:
    """Median and spread of some values, of which there is at least one."""
    known = sorted(values)
    return {
        "median": statistics.median(known), "min": known[0], "max": known[-1], "n": len(known),
    }  # fmt: skip


def summaries(rounds: Sequence[Figures], measures: Sequence[str]) -> dict[str, Any]:
    """Each measure that is known in some round."""
    known = {m: [each[m] for each in rounds if each.get(m) is not None] for m in measures}
    return {measure: summary(values) for measure, values in known.items() if values}


def _ratios(
    ours: Sequence[Figures], others: Sequence[Figures], measures: Sequence[str]
) -> list[Figures]:
    """The first side's to the other's, round by round, where both are known."""
    return [
        {m: one[m] / other[m] for m in measures if one.get(m) is not None and other.get(m)}
        for one, other in zip(ours, others, strict=True)
    ]


def machine(load_before: float) -> dict[str, Any]:
    """Where this runs, in words, without names."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return {
        "processor": models[0] if models else platform.machine(), "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "load_before": load_before, "load_after": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of all that matters for the figures."""
    import zmq

    names = ("trio-envserve", "trio", "pyzmq", "cbor2", "numpy")
    found = {each.name: each.version for each in importlib.metadata.distributions()}
    there = {name: found[name] for name in names if name in found}
    return {"python": platform.python_version(), **there, "libzmq": zmq.zmq_version()}


async def _peer_versions(python: str) -> str:
    """Those of the peer, and of what it stands on, in words."""
    names = ("verifiers", "pyzmq", "msgpack", "pydantic", "uvloop")
    asked = (
        "import importlib.metadata as m; "
        f"print(', '.join(f'{{n}} {{m.version(n)}}' for n in {names}))"
    )
    done = await trio.run_process([python, "-c", asked], capture_stdout=True)
    return done.stdout.decode().strip()
