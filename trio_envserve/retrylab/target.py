"""Targets: whatever a search tries, a system of actors or another simulator; sums over its runs.

Theory of operation
-------------------
A :class:`Target` draws plans, runs them, and knows how a failing one is made small and drawn.
With a mutant (:mod:`.mutants`) it is a system that is broken on purpose: :func:`hunt` runs
seeds until the mutant is caught, and then the same seed without it, which must be clean.

A :class:`BaseShrinker` makes a failing plan small, as long as it still fails.  A subclass says
what its *calls* are (whatever callers ask for), and what else may be taken away from it.  Each
pass takes something away, or makes it plain, and keeps that if the plan still fails; the passes
are repeated until none of them changes anything.  The *luck* (the seed of all that is not in
the plan) stays, except where calls are left out: a failure that needs the luck of one message
is often there with another luck.  Nothing here depends on time, so a case always shrinks to
the same plan.  The number of runs bounds the work.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from .judges import Violation
from .mutants import Mutant
from .system import BrokenSystem


class Schedule(Protocol):
    """A plan: everything about a run that is drawn before it starts.  A frozen dataclass."""

    def kinds(self) -> Collection[Any]:
        """Kinds of fault in the plan."""

    def schedule(self) -> list[str]:
        """Plan in words, for people."""

    def to_data(self) -> dict[str, Any]:
        """Plan as plain data, for a file."""


class Ran(Protocol):
    """Figures that every run has."""

    @property
    def seed(self) -> int:
        """The seed."""

    @property
    def plan(self) -> Any:
        """Plan of the run."""

    @property
    def violations(self) -> Sequence[Violation]:
        """The violations that the judges found."""

    @property
    def digest(self) -> str:
        """The hash of the trace, recorded or not."""

    @property
    def events(self) -> int:
        """Number of events."""

    @property
    def virtual_s(self) -> float:
        """Duration of the run in virtual seconds."""

    @property
    def told(self) -> Mapping[str, int]:
        """Number of requests by what their callers were told."""

    @property
    def faults(self) -> Mapping[str, int]:
        """Number of times that each kind of fault struck."""

    @property
    def log(self) -> Sequence[str]:
        """The trace as lines for people, if it was recorded."""

    def breaks(self, guarantee: str) -> bool:
        """Whether this guarantee was broken."""


R = TypeVar("R", bound=Ran)
P = TypeVar("P", bound=Schedule)
C = TypeVar("C")
T = TypeVar("T")


SIZES = ("requests", "faults")
"""Measures of the least run and of the average run."""


@dataclasses.dataclass
class BaseTally(Generic[R]):
    """Sums over runs; two of them can be added.  Every field is a number, a counter
    or :attr:`least`."""

    runs: int = 0
    violating: int = 0
    """Runs in which a guarantee was broken."""
    events: int = 0
    virtual_s: float = 0.0
    told: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    sums: Counter[str] = dataclasses.field(default_factory=Counter)
    """The sum of each of the :meth:`sizes` over all runs."""
    least: dict[str, int] = dataclasses.field(default_factory=dict)
    """The smallest of each of the :meth:`sizes` in any run."""

    def sizes(self, run: R) -> dict[str, int]:
        """The measures of how large a run is: of requests and of faults, by :data:`SIZES`."""
        sizes = (sum(run.told.values()), sum(run.faults.values()))
        return dict(zip(SIZES, sizes, strict=True))

    def add(self, run: R) -> None:
        """Add a run."""
        self.runs += 1
        self.violating += bool(run.violations)
        self.events += run.events
        self.virtual_s += run.virtual_s
        self.told.update(run.told)
        self.faults.update(run.faults)
        sizes = self.sizes(run)
        self.sums.update(sizes)
        self._smaller(sizes)

    def merge(self, other: Self) -> None:
        """Add another tally's runs."""
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            elif mine is not self.least:
                setattr(self, field.name, mine + theirs)
        self._smaller(other.least)

    def _smaller(self, sizes: dict[str, int]) -> None:
        for name, size in sizes.items():
            self.least[name] = min(size, self.least.get(name, size))

    def to_data(self) -> dict[str, Any]:
        """Fields as data, for another process."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The inverse of :meth:`to_data`."""
        empty = cls()
        return cls(**{name: type(getattr(empty, name))(value) for name, value in data.items()})

    # -- figures ---------------------------------------------------------------

    def average(self) -> dict[str, float]:
        """The sizes of an average run."""
        runs = max(1, self.runs)
        sizes = {name: round(total / runs, 2) for name, total in self.sums.items()}
        return sizes | {
            "events": round(self.events / runs, 1),
            "seconds": round(self.virtual_s / runs, 2),
        }

    def figures(self, took_s: float) -> dict[str, Any]:
        """All figures, for ``--json``."""
        return {
            "runs": self.runs,
            "violations": self.violating,
            "seconds": round(took_s, 3),
            "runs_per_minute": round(60.0 * self.runs / took_s, 1) if took_s else 0.0,
            "simulated_hours": round(self.virtual_s / 3600.0, 3),
            "events": self.events,
            "average": self.average(),
            "least": dict(self.least),
            "told": dict(self.told.most_common()),
            "faults": dict(self.faults),
        }


def seeds_from(base: int) -> Iterator[int]:
    """All seeds from this one on."""
    return iter(range(base, sys.maxsize))


class Target(ABC, Generic[P, R]):
    """Something that a search tries: subclass it for a simulator of your own."""

    def __init__(self, mutant: Mutant | None = None) -> None:
        self.mutant = mutant
        """Way in which it is broken on purpose; None: it is not."""

    # -- to be written ------------------------------------------------------------

    @abstractmethod
    def plan(self, seed: int) -> P:
        """The plan that a seed draws."""

    @abstractmethod
    def run(self, seed: int, *, plan: P | None = None, trace: bool = False, until: str = "") -> R:
        """Run a seed, or another plan with a seed's luck.

        Args:
            seed: The seed.
            plan: Another plan than that of the seed.
            trace: Whether to keep the trace.
            until: Guarantee at whose first violation the run may end; empty: none.
        """

    @abstractmethod
    def shrinker(self, whole: R, guarantee: str, most_runs: int) -> BaseShrinker[P, Any]:
        """A shrinker of the plan of a run that breaks a guarantee."""

    @abstractmethod
    def drawing(self, run: R, violation: Violation) -> list[str]:
        """The lines of a drawing of a run with its trace, up to a violation."""

    @abstractmethod
    def plan_from_data(self, data: Mapping[str, Any]) -> P:
        """The plan in the data of a saved failure.  KeyError, TypeError or ValueError if it
        is none of this version."""

    # -- to be overridden ---------------------------------------------------------

    def tally(self) -> BaseTally[R]:
        """New sums over runs."""
        return BaseTally()

    def promise(self, guarantee: str) -> str:
        """The guarantee in one line, for people."""
        return ""

    def in_words(self, seed: int, plan: P) -> str:
        """The run in a few words."""
        return f"seed {seed}"

    def again(self, seed: int, plan: P) -> str:
        """The command that runs the whole seed again."""
        return f"run(system, {seed})"

    # -- broken on purpose --------------------------------------------------------

    def applied(self) -> AbstractContextManager[None]:
        """Context in which this process is broken as the mutant says."""
        return nullcontext() if self.mutant is None else self.mutant.applied()

    def seeds(self, base: int) -> Iterator[int]:
        """Seeds from this one on; of a mutant those whose plans have what it needs."""
        seeds = seeds_from(base)
        if self.mutant is None:
            return seeds
        needs = self.mutant.needs
        return (seed for seed in seeds if needs <= set(self.plan(seed).kinds()))

    def counts(self, violation: Violation) -> bool:
        """Whether a violation is one to look for; of a mutant, one that it must be caught by."""
        return self.mutant is None or self.mutant.caught_by(violation.guarantee)


MOST_RUNS = 700
"""Most smaller plans that are tried, by default."""

MOST_CALLS = 12
"""Most calls of a plan from which one is left out with another luck."""


class BaseShrinker(ABC, Generic[P, C]):
    """The smallest failing plan so far, and the luck that it fails with."""

    lucks = 6
    """Number of lucks that are tried where another may help."""

    def __init__(
        self, target: Target[P, Any], whole: Ran, guarantee: str, most_runs: int
    ) -> None:  # fmt: skip
        self.plan: P = whole.plan
        self.luck = whole.seed
        self.tried = 0
        self.guarantee = guarantee
        self._target = target
        self._most_runs = most_runs
        keys = [each.key for each in whole.violations if each.guarantee == guarantee]
        self.broken = [call for call in self.calls() if self.named(call) == keys[0]]
        """Call that it broke for, if it is one's."""

    def fails(self, plan: P, luck: int) -> bool:
        """Whether the same guarantee breaks.  A judge may raise where nothing is asked
        for any more, say: then this plan is not the failure that is made small."""
        try:
            ran: Ran = self._target.run(luck, plan=plan, until=self.guarantee)
            return ran.breaks(self.guarantee)
        except BrokenSystem:
            return False

    @abstractmethod
    def named(self, call: C) -> str:
        """The name of a call, as violations have it."""

    @abstractmethod
    def calls(self) -> list[C]:
        """All calls of the plan."""

    @abstractmethod
    def with_calls(self, kept: Sequence[C]) -> P:
        """The plan with these calls only."""

    @abstractmethod
    def passes(self) -> Iterable[Callable[[], object]]:
        """Functions that take something away by :meth:`take`, the largest part first."""

    def shrink(self) -> None:
        """Run all passes until none of them helps; first with the broken call alone."""
        if self.broken:
            self.take_with_some_luck(self.with_calls(self.broken))
        while self.tried < self._most_runs:
            before = self.plan
            for one in self.passes():
                one()
            if self.plan == before and not self._one_call_less():
                return

    def take(self, plan: P, luck: int | None = None) -> bool:
        """Try a plan; returns whether it fails, too, and so is the one to go on with."""
        luck = self.luck if luck is None else luck
        if plan == self.plan or self.tried >= self._most_runs:
            return False
        self.tried += 1
        if not self.fails(plan, luck):
            return False
        self.plan, self.luck = plan, luck
        return True

    def replace(self, **changes: Any) -> bool:
        """Take the plan with these fields changed."""
        plan: Any = self.plan
        return self.take(dataclasses.replace(plan, **changes))

    def drop_calls(self) -> None:
        """Leave out calls, half of them at first."""
        ddmin(self.calls(), lambda kept: self.take(self.with_calls(kept)))

    def _one_call_less(self) -> bool:
        """Leave out a call with another luck."""
        calls = self.calls()
        if len(calls) > MOST_CALLS:
            return False
        return any(
            self.take_with_some_luck(self.with_calls(calls[:index] + calls[index + 1 :]))
            for index in range(len(calls))
        )

    def take_with_some_luck(self, plan: P) -> bool:
        """Try a plan with several lucks; returns whether it fails with one of them."""
        return any(self.take(plan, luck) for luck in range(self.luck, self.luck + self.lucks))


def ddmin(items: list[T], take: Callable[[Sequence[T]], bool]) -> list[T]:
    """Smaller list that ``take`` accepts: by leaving out halves, quarters, and in the
    end single items.  ``take`` is asked for the empty list first."""
    if items and take([]):
        return []
    parts = 2
    while len(items) >= 2:
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            fewer = items[:start] + items[start + size :]
            if fewer and take(fewer):
                items = fewer
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                return items
            parts = min(len(items), parts * 2)
    return items


MOST_HUNTED = 1200
"""Number of runs after which a mutant counts as not caught."""


class Catch(NamedTuple):
    """The catch of a mutant."""

    name: str
    caught: bool
    runs: int
    """Number of runs until it was caught."""
    seconds: float
    seed: int | None = None
    guarantee: str = ""
    violation: str = ""
    digest: str = ""
    """The hash of the trace that shows it."""
    clean_digest: str = ""
    """The hash of the trace of the same seed without the mutant, which differs."""
    clean: bool = True
    """Whether the seed shows nothing without the mutant."""


def hunt(target: Target[Any, Any], base: int = 0, *, most_runs: int = MOST_HUNTED) -> Catch:
    """Run seeds until the target's mutant is caught by a guarantee that it names.

    Args:
        target: The target, with a mutant.
        base: First seed.
        most_runs: Most runs.
    """
    assert target.mutant is not None
    name, began_s, runs = target.mutant.name, time.perf_counter(), 0
    with target.applied():
        for seed in target.seeds(base):
            one, runs = target.run(seed), runs + 1
            violation = next(filter(target.counts, one.violations), None)
            if violation is not None or runs >= most_runs:
                break
    took_s = time.perf_counter() - began_s
    if violation is None:
        return Catch(name, False, runs, took_s)
    clean = target.run(seed)
    return Catch(
        name, True, runs, took_s, seed, violation.guarantee, violation.partition("\n")[0],
        one.digest, clean.digest, not clean.violations,
    )  # fmt: skip
