"""One run of the benchmark, from its cases to its record.

Theory of operation
-------------------
For each number of workers all contenders are set up side by side.  Each load is
run once by each to warm up, and then round by round by all of them in turn, the
first one another in each round.  Special cases start what they need and are run
once a round.  After each load the environment's log is judged.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, final

import trio

from tests.cost.cases import ALL, BARE, CASES, FRAMES, OURS, PLAIN, Case, Size
from tests.cost.judge import Judge
from tests.cost.measure import column, ratios, summary
from tests.cost.peer import PEERS, NoPeer, Peer, PeerPython, peer_python
from tests.cost.reach import reached
from tests.cost.rigs import Rig, open_ours, open_peer, open_plain
from tests.cost.special import SPECIAL, run_special
from trio_envserve.core.errors import EnvServeError, ServerStartError

MEASURES = ("per_s", "p50_ms", "p99_ms", "mb_per_s", "router_us", "worker_us", "client_us")


class Options(NamedTuple):
    """The cases to run, and how thoroughly."""

    cases: Sequence[Case] = CASES
    rounds: int = 5
    seconds: float = 0.8
    """How long each load lasts in each round, without its last answers."""
    warm_s: float = 0.3
    """How long an uncounted load lasts before the rounds; zero for none."""
    special_rounds: int = 3
    size: Size = Size()
    peers: bool = True
    peer_pythons: Mapping[str, str] = {}
    """By contender: a Python that has this peer installed."""
    install_peers: bool = True


QUICK = Options(
    rounds=1, seconds=0.1, warm_s=0.0, special_rounds=1, install_peers=False,
    size=Size(
        outcomes=1000, pending=200, clients=50, requests=2000, idle_s=1.0, done=3000, window_s=0.3,
        pairs=1, journal_keys=2000, readers=20, readers_s=1.2,
    ),
)  # fmt: skip
"""Shows that everything runs; its figures say nothing."""


@final
class Bench:
    """A run.  ``said`` is told what it is doing."""

    def __init__(self, options: Options, said: Callable[[str], None]) -> None:
        self.options = options
        self.notes: list[str] = []
        self.failed: list[str] = []
        """Special cases that came to no end."""
        self._said = said
        self._rounds: dict[str, dict[str, list[dict[str, Any]]]] = {}
        """By case and contender: the figures of each round."""
        self._load_before = _load()
        self._peer_versions: dict[str, str] = {}
        self._judge: Judge | None = None

    async def run(self) -> None:
        """All cases.  Cancelled, what is done stays in :meth:`record`."""
        with tempfile.TemporaryDirectory(prefix="trio-envserve-bench-") as folder:
            self._judge = Judge(Path(folder))
            peers = await self._find_peers()
            loads = sorted((c for c in self.options.cases if c.load), key=lambda c: c.workers)
            for workers, group in groupby(loads, key=lambda c: c.workers):
                await self._run_loads(list(group), workers, peers)
            for case in self.options.cases:
                if case.name in SPECIAL:
                    await self._run_special(case.name)

    async def _find_peers(self) -> list[tuple[Peer, PeerPython]]:
        """The peers that take part, each with its Python."""
        options = self.options
        wanted = {name for case in options.cases if case.load for name in case.contenders}
        asked = [peer for peer in PEERS if peer.name in wanted]
        if asked and not options.peers:
            self._note("the peers were left out, as asked")
            return []
        found = []
        for peer in asked:
            self._said(f"looking for {peer.requirement}")
            given = options.peer_pythons.get(peer.name)
            try:
                python = await peer_python(peer, given, install=options.install_peers)
            except NoPeer as why:
                self._note(f"without {peer.name}: {why}")
            else:
                self._peer_versions[peer.name] = python.versions
                found.append((peer, python))
        return found

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._said(text)

    async def _run_loads(
        self, cases: list[Case], workers: int, peers: list[tuple[Peer, PeerPython]]
    ) -> None:
        self._said(f"setting up with {workers} worker{'s' * (workers > 1)}")
        wanted = {name for case in cases for name in case.contenders}
        assert self._judge is not None
        async with AsyncExitStack() as stack:
            rigs: list[Rig] = []
            if OURS in wanted:
                rigs.append(await stack.enter_async_context(open_ours(self._judge, workers)))
            for style in (BARE, PLAIN, FRAMES):
                if style in wanted:
                    rigs.append(await stack.enter_async_context(open_plain(workers, style)))
            for peer, python in peers:
                if peer.name not in wanted:
                    continue
                try:
                    opening = open_peer(peer, python.path, workers)
                    rigs.append(await stack.enter_async_context(opening))
                except ServerStartError as error:
                    self._note(f"without {peer.name}, which did not start: {error}")
            for case in cases:
                await self._run_load(case, [rig for rig in rigs if rig.name in case.contenders])

    async def _run_load(self, case: Case, rigs: list[Rig]) -> None:
        self._said(f"{case.name}: {case.title}")
        if self.options.warm_s:
            for rig in rigs:
                await rig.run(case.load_of(rig.name), self.options.warm_s)
        rounds = self._rounds.setdefault(case.name, {rig.name: [] for rig in rigs})
        for number in range(self.options.rounds):
            first = number % len(rigs)
            done = [
                (rig.name, await rig.run(case.load_of(rig.name), self.options.seconds))
                for rig in rigs[first:] + rigs[:first]
            ]
            for name, figures in done:  # only whole rounds: they are compared pair by pair
                rounds[name].append(figures)

    async def _run_special(self, name: str) -> None:
        assert self._judge is not None
        rounds = self._rounds.setdefault(name, {OURS: []})
        for number in range(self.options.special_rounds):
            self._said(f"{name}: {_title(name)} ({number + 1} of {self.options.special_rounds})")
            try:
                rounds[OURS].append(await run_special(name, self._judge, self.options.size))
            except (EnvServeError, trio.TooSlowError) as error:
                self.failed.append(name)
                self._note(f"{name} failed: {type(error).__name__}: {error}")
                return

    # -- the record -----------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """Everything that was found, ready for JSON."""
        cases = [self._case(name) for name, by in self._rounds.items() if by.get(OURS)]
        judged = self._judge.judged.record() if self._judge else {"ok": True}
        return {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": machine(self._load_before),
            "versions": {**versions(), **self._peer_versions},
            "rounds": self.options.rounds,
            "seconds": self.options.seconds,
            "cases": cases,
            "marks": reached(self._rounds),
            "judged": judged,
            "failed": self.failed,
            "notes": self.notes,
        }

    def _case(self, name: str) -> dict[str, Any]:
        by = self._rounds[name]
        measures = MEASURES if name not in SPECIAL else tuple(by[OURS][0])
        figures = {
            contender: {m: s for m in measures if (s := _summary(rounds, m))}
            for contender, rounds in by.items()
        }
        against = {
            other: {
                m: summary(found)
                for m in measures
                if (found := ratios(column(by[OURS], m), column(by[other], m)))
            }
            for other in ALL
            if other != OURS and by.get(other)
        }
        return {"name": name, "title": _title(name), "figures": figures, "ratios": against}


def _summary(rounds: list[dict[str, Any]], measure: str) -> dict[str, Any] | None:
    known = [value for value in column(rounds, measure) if value is not None]
    return summary(known) if known else None


def _title(name: str) -> str:
    return next(case.title for case in CASES if case.name == name)


def _load() -> float | None:
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def machine(load_before: float | None) -> dict[str, Any]:
    """Where this runs, in words, without names."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return {
        "processor": model, "cores": cores, "system": system,
        "load_before": load_before, "load_after": _load(),
    }  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of all that matters for the figures."""
    found = {"python": platform.python_version()}
    for name in ("trio-envserve", "trio", "pyzmq", "cbor2", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    import zmq

    found["libzmq"] = zmq.zmq_version()
    return found
