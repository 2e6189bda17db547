"""The protocol that ships as a target of searches: its runs are added up, made small and drawn.

A failing plan is made small in this order: all calls but the one that it broke for, fault
kinds, clients, moments, calls, workers, what the world and single calls are like, when things
happen (:mod:`trio_envserve.retrylab.target`).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ...retrylab.judges import Violation
from ...retrylab.target import BaseShrinker, BaseTally, Target
from ...retrylab.values import from_data
from ..mutants import find
from .coverage import IMPOSSIBLE, POSSIBLE, name_of
from .diagram import sequence
from .plan import (
    CONFIGURATIONS,
    GUARANTEES,
    PLAIN_BOUNDS,
    PLAIN_LEASE_S,
    FaultKind,
    PlannedAsk,
    SimulationPlan,
    body_of,
    have_keys,
    is_harsh,
    of_keys_only,
    plan_of,
)
from .simulator import SimulationRun, run

SPEC = "trio_envserve.lab.simulation.target:Protocol"
"""Name by which the processes of a search find it."""


class Protocol(Target[SimulationPlan, SimulationRun]):
    """The protocol that ships, or a mutant of it."""

    def __init__(self, *, harsh: bool = False, mutant: str = "", **with_: bool) -> None:
        super().__init__(find(mutant) if mutant else None)
        needs = frozenset() if self.mutant is None else self.mutant.needs
        self.harsh = harsh
        """Whether all seeds are run harsh, not only the odd ones."""
        needed = {name: True for name, (kind, _) in CONFIGURATIONS.items() if kind in needs}
        self.with_ = {**with_, **needed}
        """Whether plans have each of the :data:`.plan.CONFIGURATIONS`, by name."""

    def plan(self, seed: int) -> SimulationPlan:
        """The plan that a seed draws."""
        harsh = is_harsh(seed, always=self.harsh)
        return plan_of(seed, harsh=harsh, **self.with_)

    def run(
        self, seed: int, *, plan: SimulationPlan | None = None, trace: bool = False, until: str = ""
    ) -> SimulationRun:
        """Run a seed, or another plan with its luck, which stays as harsh as it is."""
        return run(seed, plan=plan or self.plan(seed), trace=trace, until=until)

    def tally(self) -> SimulationTally:
        """New sums over runs."""
        return SimulationTally()

    def shrinker(self, whole: SimulationRun, guarantee: str, most_runs: int) -> Shrinker:
        """A shrinker of the plan of a run."""
        return Shrinker(self, whole, guarantee, most_runs)

    def drawing(self, run: SimulationRun, violation: Violation) -> list[str]:
        """The lines of a drawing, up to a violation."""
        return sequence(run.trace, violation)

    def plan_from_data(self, data: Mapping[str, Any]) -> SimulationPlan:
        """The plan in the data of a saved failure."""
        plan: SimulationPlan = from_data(SimulationPlan, data["plan"])
        return plan

    def promise(self, guarantee: str) -> str:
        """The guarantee in one line."""
        return GUARANTEES[guarantee]

    def in_words(self, seed: int, plan: SimulationPlan) -> str:
        """Seed, mode, and what runs."""
        of = f"mutant {self.mutant.name}" if self.mutant else "what ships"
        more = "".join(
            f", with {name}" for name, (kind, _) in CONFIGURATIONS.items() if plan.has(kind)
        )
        return f"seed {seed} ({'harsh' if plan.harsh else 'usual'}{more}), {of}"

    def again(self, seed: int, plan: SimulationPlan) -> str:
        """The command that runs the whole seed again."""
        words = ["trio-envserve fuzz", f"--seed {seed}"]
        words += ["--harsh"] * (plan.harsh != is_harsh(seed))
        words += [
            f"--{name}" for name, is_asked in self.with_.items() if is_asked and not self.mutant
        ]
        words += [f"--mutant {self.mutant.name}"] if self.mutant else []
        return " ".join(words)


# -- a crash at every write --------------------------------------------------------------


def keyed_seeds(count: int) -> Iterator[int]:
    """The first seeds that have keys."""
    return itertools.islice(filter(have_keys, itertools.count()), count)


def crashes(seed: int, *, most: int | None = None, **with_: bool) -> Iterator[SimulationRun]:
    """The run of a seed with keys, without the calls that name none; and then once for each
    group of records that its servers wrote, with one that is killed as it writes that group.

    Args:
        seed: The seed.
        most: Most crashes, evenly spread; None: all.
        with_: As for :func:`.plan.plan_of`.
    """
    plan = of_keys_only(plan_of(seed, harsh=is_harsh(seed), **with_))
    whole = run(seed, plan=plan)
    yield whole
    step = 1 if most is None else max(1, whole.writes // most)
    for write in range(1 + seed % step, whole.writes + 1, step):
        yield run(seed, plan=dataclasses.replace(plan, crash_at_write=write))


# -- sums over runs -------------------------------------------------------------------------


@dataclasses.dataclass
class SimulationTally(BaseTally[SimulationRun]):
    """Sums over runs of the protocol that ships."""

    SIZES = ("clients", "workers", "requests", "faults")

    harsh: int = 0
    executions: int = 0
    pairs: Counter[str] = dataclasses.field(default_factory=Counter)

    def sizes(self, run: SimulationRun) -> tuple[int, ...]:
        """By the names of :data:`SIZES`."""
        return run.plan.clients, run.plan.workers, run.asked, sum(run.faults.values())

    def add(self, run: SimulationRun) -> None:
        """One more run."""
        super().add(run)
        self.harsh += run.plan.harsh
        self.executions += run.executions
        self.pairs.update(run.pairs)

    # -- what to tell ---------------------------------------------------------

    def every_fault(self) -> dict[str, int]:
        """All kinds, those that never occurred with 0."""
        return {fault.value: self.faults[fault.value] for fault in FaultKind}

    def every_pair(self) -> dict[str, int]:
        """All pairs that can occur, those that never did with 0."""
        return {name: self.pairs[name] for name in map(name_of, POSSIBLE)}

    def average(self) -> dict[str, float]:
        """The sizes of an average run."""
        executions = round(self.executions / max(1, self.runs), 2)
        return {**super().average(), "executions": executions}

    def figures(self, took_s: float) -> dict[str, Any]:
        """All of it, for ``--json``."""
        return super().figures(took_s) | {
            "harsh_runs": self.harsh,
            "executions": self.executions,
            "faults": self.every_fault(),
            "pairs": self.every_pair(),
            "pairs_that_cannot_occur": {name_of(pair): why for pair, why in IMPOSSIBLE.items()},
        }


# -- smaller plans --------------------------------------------------------------------------

PLAIN_DELAY_S = (0.001, 0.001)
PLAIN_CAPACITY = 3

Call: TypeAlias = tuple[int, PlannedAsk]
"""The number of a client, and what it asks for."""


class Shrinker(BaseShrinker[SimulationPlan, Call]):
    """Shrinker of the plan of a run that breaks a guarantee."""

    def passes(self) -> Iterable[Callable[[], object]]:
        """Passes in the order that the top of this file gives."""
        return (
            self.drop_kinds, self._drop_clients, self._drop_moments, self.drop_calls,
            self._fewer_workers, self._plainer_world, self._plainer_asks, self._rounder_times,
        )  # fmt: skip

    def named(self, call: Call) -> str:
        """Name of the call."""
        return call[1].key

    def calls(self) -> list[Call]:
        """Client by client."""
        return [(client, ask) for client, asks in enumerate(self.plan.asks) for ask in asks]

    def with_calls(self, kept: Sequence[Call]) -> SimulationPlan:
        """Each stays with its client."""
        clients = range(len(self.plan.asks))
        asks = tuple(tuple(ask for owner, ask in kept if owner == client) for client in clients)
        return dataclasses.replace(self.plan, asks=asks)

    def _with_ask(self, client: int, index: int, ask: PlannedAsk) -> bool:
        asks = [list(each) for each in self.plan.asks]
        asks[client][index] = ask
        return self.replace(asks=tuple(map(tuple, asks)))

    # -- passes ---------------------------------------------------------------

    def _drop_clients(self) -> None:
        for index, asks in enumerate(self.plan.asks):
            if asks:
                self.take(self.with_calls([each for each in self.calls() if each[0] != index]))
        asking = tuple(asks for asks in self.plan.asks if asks) or ((),)
        if self.replace(asks=asking, clients=len(asking)):
            return
        kept = list(self.plan.asks)
        while len(kept) > 1 and not kept[-1]:
            kept.pop()
        self.replace(asks=tuple(kept), clients=len(kept))

    def _drop_moments(self) -> None:
        self.drop_items("moments")

    def _fewer_workers(self) -> None:
        for workers in range(1, self.plan.workers):
            if self.replace(workers=workers):
                return

    def _plainer_world(self) -> None:
        plan = self.plan
        latest_s = max(
            [at_s for at_s, _ in plan.moments] + [ask.at_s for asks in plan.asks for ask in asks],
            default=0.0,
        )
        self.replace(busy_s=round(latest_s + 0.5, 1))
        self.replace(delay_s=PLAIN_DELAY_S)
        self.replace(linger_s=0.05)
        self.replace(declares_rerun=False)
        if plan.hosts is not None:
            rates = (1.0,) * len(plan.hosts.rates)
            for change in ({"rates": rates}, {"varies": False}, {"late_s": 0.0}):
                hosts = self.plan.hosts
                assert hosts is not None
                self.replace(hosts=dataclasses.replace(hosts, **change))
        plain = {**PLAIN_BOUNDS, "lease_s": PLAIN_LEASE_S, "recycle_executions": None}
        for name, value in (*plain.items(), ("worker_capacity", PLAIN_CAPACITY)):
            changes: dict[str, Any] = {name: value}
            self.replace(server=dataclasses.replace(self.plan.server, **changes))

    def _plainer_asks(self) -> None:
        for client, asks in enumerate(self.plan.asks):
            for index in range(len(asks)):
                for change in _plainer(self.plan.asks[client][index]):
                    ask = self.plan.asks[client][index]
                    plainer = dataclasses.replace(ask, **change)  # type: ignore[arg-type]  # by name
                    if ask.use is not None:  # others ask the same, byte for byte
                        self._with_ask(client, index, plainer)
                        continue
                    body = body_of(plainer.key, plainer.behaviour, plainer.duration_s)
                    self._with_ask(client, index, dataclasses.replace(plainer, body=body))

    def _rounder_times(self) -> None:
        for digits in (1, 2):
            for index, (at_s, fault) in enumerate(self.plan.moments):
                moments = list(self.plan.moments)
                moments[index] = (round(at_s, digits), fault)
                self.replace(moments=tuple(sorted(moments, key=lambda moment: moment[0])))
            for client, asks in enumerate(self.plan.asks):
                for index in range(len(asks)):
                    ask = self.plan.asks[client][index]
                    rounder = dataclasses.replace(ask, at_s=round(ask.at_s, digits))
                    self._with_ask(client, index, rounder)


def _plainer(ask: PlannedAsk) -> Iterator[dict[str, object]]:
    """The fields of a call that may be made plain, one at a time."""
    if ask.use is None:
        yield from _plainer_work(ask)
    if ask.cancel_after_s is not None:
        yield {"cancel_after_s": None}
        yield {"cancel_after_s": round(ask.cancel_after_s, 1)}
    if ask.limit_s is not None:
        yield {"limit_s": None}
        yield {"limit_s": round(ask.limit_s, 1) or 0.1}


def _plainer_work(ask: PlannedAsk) -> Iterator[dict[str, object]]:
    """The same of what environment code is to do."""
    yield {}  # only its padding goes
    if ask.behaviour != "return":
        yield {"behaviour": "return"}
    if ask.rerun is None:
        yield {"rerun": False}
    for duration_s in (0.1, round(ask.duration_s, 1) or 0.1):
        yield {"duration_s": duration_s}


# -- the code that was run --------------------------------------------------------------------

ROOT = Path(__file__).resolve().parent.parent.parent.parent

GIT_S = 10.0
"""How long git may take to name the commit."""


def origin() -> dict[str, Any]:
    """``version`` of the package, ``commit`` if it runs from a checkout (with ``+`` if
    something is changed in it; None elsewhere), and ``python``."""
    try:
        version = importlib.metadata.version("trio-envserve")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return {"version": version, "commit": _commit(), "python": platform.python_version()}


def _commit() -> str | None:
    if not (ROOT / ".git").exists():
        return None
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    return commit + "+" * bool(_git("status", "--porcelain", "--", "trio_envserve"))


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            capture_output=True, text=True, timeout=GIT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or a checkout that it does not like
    return done.stdout.strip()


def describe(made_by: dict[str, Any]) -> str:
    """In a few words, for people."""
    commit = f", commit {made_by['commit']}" if made_by["commit"] else ""
    return f"trio-envserve {made_by['version']}{commit}, Python {made_by['python']}"
