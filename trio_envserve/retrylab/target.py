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
import itertools
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from .judges import Violation
from .mutants import Mutant
from .system import BrokenSystem
from .world import TraceLine


class Schedule(Protocol):
    """A plan: everything about a run that is drawn before it starts.  A frozen dataclass."""

    def kinds(self) -> Collection[Any]:
        """Kinds of fault in the plan."""

    def without(self, fault: Any) -> Self:
        """Copy of the plan without this kind of fault."""

    def schedule(self) -> list[str]:
        """Plan in words, for people."""

    def to_data(self) -> dict[str, Any]:
        """Plan as plain data, for a file."""


P = TypeVar("P", bound=Schedule)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BaseRun(Generic[P]):
    """The result of a run."""

    seed: int
    """The seed."""
    plan: P
    """Plan of the run."""
    violations: tuple[Violation, ...]
    """Violations that the judges found, or of an actor that raised."""
    events: int = 0
    """Number of events on the virtual clock."""
    virtual_s: float = 0.0
    """Duration of the run in virtual seconds."""
    faults: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of times that each kind of fault struck."""
    told: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of requests by what their callers were told."""
    digest: str = ""
    """The hash of the trace, recorded or not: the same for the same seed."""
    trace: tuple[TraceLine[Any], ...] = ()
    """Trace, if it was asked for."""

    def breaks(self, guarantee: str) -> bool:
        """Whether this guarantee was broken.

        Args:
            guarantee: Name of the guarantee.
        """
        return any(violation.guarantee == guarantee for violation in self.violations)

    @property
    def log(self) -> tuple[str, ...]:
        """The trace as lines for people."""
        return tuple(record.text(self.describe) for record in self.trace)

    def describe(self, message: Any) -> str:
        """Message of the trace in words.

        Args:
            message: The message.
        """
        return str(message)


R = TypeVar("R", bound=BaseRun[Any])
C = TypeVar("C")
T = TypeVar("T")


@dataclasses.dataclass
class BaseTally(Generic[R]):
    """Sums over runs; two of them can be added.  Every field is a number, a counter
    or :attr:`least`."""

    SIZES: ClassVar[tuple[str, ...]] = ("requests", "faults")
    """Measures of how large a run is."""

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

    def sizes(self, run: R) -> tuple[int, ...]:
        """The measures of a run, in the order of :data:`SIZES`."""
        return sum(run.told.values()), sum(run.faults.values())

    def add(self, run: R) -> None:
        """Add a run."""
        self.runs += 1
        self.violating += bool(run.violations)
        self.events += run.events
        self.virtual_s += run.virtual_s
        self.told.update(run.told)
        self.faults.update(run.faults)
        sizes = dict(zip(self.SIZES, self.sizes(run), strict=True))
        self.sums.update(sizes)
        self._smaller(sizes)

    def merge(self, data: Mapping[str, Any]) -> None:
        """Add another tally's runs, which are its fields as data (:func:`vars`)."""
        for name, theirs in data.items():
            mine = getattr(self, name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            elif mine is not self.least:
                setattr(self, name, mine + theirs)
        self._smaller(data["least"])

    def _smaller(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            self.least[name] = min(size, self.least.get(name, size))

    # -- figures ---------------------------------------------------------------

    def average(self) -> dict[str, float]:
        """The sizes of an average run."""
        runs = max(1, self.runs)
        return {name: round(self.sums[name] / runs, 2) for name in self.SIZES} | {
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


class Target(ABC, Generic[P, R]):
    """The target of a search: subclass it for a simulator of your own."""

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
        seeds = iter(range(base, sys.maxsize))
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
        self, target: Target[P, Any], whole: BaseRun[P], guarantee: str, most_runs: int
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
            ran: BaseRun[P] = self._target.run(luck, plan=plan, until=self.guarantee)
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

    def replace_item(self, field: str, index: int, item: Any) -> bool:
        """Take the plan with another item in this field."""
        items = list(getattr(self.plan, field))
        items[index] = item
        return self.replace(**{field: tuple(items)})

    def drop_kinds(self) -> None:
        """Leave out kinds of fault, one after the other."""
        for fault in self.plan.kinds():
            self.take(self.plan.without(fault))

    def drop_items(self, field: str) -> None:
        """Leave out items of this field, half of them at first."""
        items = list(getattr(self.plan, field))
        ddmin(items, lambda kept: self.replace(**{field: tuple(kept)}))

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


# -- seeds tried one after the other ---------------------------------------------------------

HOW_TO_BE_THE_SAME = (
    "an actor must take time and randomness from "
    "self.now_s and self.random, not iterate over sets, and keep nothing outside of itself"
)


def run_twice(target: Target[P, R], seed: int, digest: str = "", *, plan: P | None = None) -> R:
    """Run a seed twice; BrokenSystem if the runs differ, or are not the one of this digest,
    which another process has made."""
    one, other = target.run(seed, plan=plan), target.run(seed, plan=plan)
    if len({one.digest, other.digest, digest or one.digest}) > 1:
        raise BrokenSystem(
            f"{target.in_words(seed, one.plan)} is not the same run twice: {HOW_TO_BE_THE_SAME}"
            f"{_difference(target, seed, plan)}"
        )
    return one


def _difference(target: Target[P, Any], seed: int, plan: P | None) -> str:
    """First lines in which two runs differ, as a sentence; empty if they are equal here."""
    logs = [target.run(seed, plan=plan, trace=True).log for _ in range(2)]
    for one, other in zip(*logs, strict=False):
        if one != other:
            return f". It was once\n  {one.strip()}\nand once\n  {other.strip()}"
    return ""


def tried(
    target: Target[Any, R], base: int, runs: int | None, *, first: int = 0, step: int = 1,
    ending: Callable[[int], AbstractContextManager[None]] = lambda seed: nullcontext(),
) -> Iterator[tuple[R, Violation | None]]:  # fmt: skip
    """Runs of seeds, each with its first violation that counts; the first seed is run twice.

    Args:
        target: The target.
        base: First seed.
        runs: Number of seeds; None: no bound.
        first: Number of the seeds that are left out at first.
        step: Distance of the seeds that are run, if others are run elsewhere.
        ending: Context in which a seed must come to its end.
    """
    for seed in itertools.islice(target.seeds(base), first, runs, step):
        with ending(seed):
            one = run_twice(target, seed) if seed == base else target.run(seed)
        yield one, next(filter(target.counts, one.violations), None)


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
    name, began_s, runs, shown = target.mutant.name, time.perf_counter(), 0, None
    with target.applied():
        for one, violation in tried(target, base, most_runs):
            runs += 1
            if violation is not None:
                shown = one, violation
                break
    took_s = time.perf_counter() - began_s
    if shown is None:
        return Catch(name, False, runs, took_s)
    broken, violation = shown
    clean = target.run(broken.seed)
    return Catch(
        name, True, runs, took_s, broken.seed, violation.guarantee, violation.partition("\n")[0],
        broken.digest, clean.digest, not clean.violations,
    )  # fmt: skip
