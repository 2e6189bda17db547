"""Failures: looked for, made small, drawn, told, saved and replayed.

Theory of operation
-------------------
A failure has a schedule: the plan of a run, made small, or a shortest path of a search of
every order.  A saved one holds the whole schedule, not just its seed, so it shows the same
when seeds draw other plans.  The asks of a system's callers are drawn again from the seed when
it is loaded, and compared: so values of any class need no form of their own in the file.

Whatever a :class:`.Target` is, its failures are looked for, told and saved in one way; a
:class:`.System` is one as a :class:`SystemTarget`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from . import author
from .draw import sequence
from .explore import WHERE, Explored, Path, explore, walk
from .judges import Violation
from .life import CRASH
from .mutants import Mutant
from .plan import Plan, asks_of
from .plan import draw as draw_plan
from .run import Run, run
from .shrink import ActorShrinker
from .system import Ask, Bounds, BrokenSystem, Fault, System
from .target import HOW_TO_BE_THE_SAME, MOST_RUNS, BaseTally, Target, run_twice, tried
from .values import plain, tuples

FORMAT = 2
"""The version of saved failures."""


# -- a system as a target -------------------------------------------------------------------


class SystemTarget(Target[Any, Run]):
    """A system of actors as a target.  Its plans are those of seeds, and paths of a search of
    every order, which are as short as can be already."""

    def __init__(self, system: System, spec: str = "", mutant: Mutant | None = None) -> None:
        super().__init__(mutant)
        self.system = system
        self.spec = spec
        """Name by which the system is found; empty if it was given as an object."""

    def plan(self, seed: int) -> Plan:
        """The plan that a seed draws."""
        return draw_plan(self.system, seed)

    def run(
        self, seed: int, *, plan: Plan | Path | None = None, trace: bool = False, until: str = ""
    ) -> Run:
        """Run a seed, always to its end: judges look at all events."""
        if isinstance(plan, Path):
            return walk(self.system, plan)
        return run(self.system, seed, plan=plan, trace=trace)

    def tally(self) -> BaseTally[Run]:
        """New sums over runs, with 0 for the kinds of fault that never strike."""
        return BaseTally(faults=Counter({fault.value: 0 for fault in Fault}))

    def shrinker(self, whole: Run, guarantee: str, most_runs: int) -> ActorShrinker:
        """A shrinker of the plan of a run."""
        most_runs = 0 if isinstance(whole.plan, Path) else most_runs
        return ActorShrinker(self, whole, guarantee, most_runs)

    def drawing(self, run: Run, violation: Violation) -> list[str]:
        """The lines of a drawing, up to a violation."""
        return sequence(self.system, run.trace, violation)

    def plan_from_data(self, data: Mapping[str, Any]) -> Plan | Path:
        """The plan in the data of a saved failure."""
        kind: type[Plan | Path] = Path if "path" in data else Plan
        return kind.from_data(data, self._asked_again(data))

    def _asked_again(self, data: Mapping[str, Any]) -> tuple[Ask, ...]:
        """Asks of the file, drawn again from its seed; ValueError if one is another now."""
        drawn = {ask.request: ask for ask in asks_of(self.system, data["seed"])}
        asks = []
        for each in data["asks"]:
            ask = drawn.get(each["request"])
            now = "nothing" if ask is None else plain(ask.what)
            if ask is None or now != each["what"]:
                raise ValueError(
                    f"in seed {data['seed']} {each['request']} asked for {each['what']}, and "
                    f"asks for {now} now"
                )
            asks.append(ask._replace(at_s=each["at_s"]))
        return tuple(asks)

    def figures(self, explored: Explored) -> dict[str, Any]:
        """Figures of a search of every order, for JSON."""
        return explored.to_data()

    def promise(self, guarantee: str) -> str:
        """Words for an actor that raised; a guarantee of an author's needs none."""
        return "an actor raised" if guarantee == CRASH else ""

    def in_words(self, seed: int, plan: Plan | Path) -> str:
        """The run in a few words."""
        return WHERE if isinstance(plan, Path) else super().in_words(seed, plan)

    def again(self, seed: int, plan: Plan | Path) -> str:
        """The command that runs the whole seed again, or the search of every order."""
        how = "--exhaustive" if isinstance(plan, Path) else f"--seed {seed}"
        if self.spec:
            return f"trio-envserve fuzz --protocol {self.spec} {how}"
        return "explore(system)" if isinstance(plan, Path) else super().again(seed, plan)


def target_of(system: System | Target[Any, Any]) -> Target[Any, Any]:
    """The target that this is."""
    return SystemTarget(system) if isinstance(system, System) else system


def find_target(spec: str, options: Mapping[str, Any]) -> Target[Any, Any]:
    """The target that ``spec`` names, with options if it is a class of them; BrokenSystem if
    there is none.

    Runs the code of its module, and puts the folder of a file on the path, as Python
    does for a script.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise BrokenSystem(f"{spec!r}: write file.py:NAME or package.module:NAME")
    module = author.load_file(FilePath(where)) if where.endswith(".py") else author.load(where)
    found = getattr(module, name, None)
    if isinstance(found, System):
        return SystemTarget(found, spec)
    if isinstance(found, type) and issubclass(found, Target):
        ended = author.call(lambda: found(**options))
        if ended.error is not None:
            raise BrokenSystem(f"{spec} could not be made:\n{author.raised(ended.error)}")
        target: Target[Any, Any] = ended.value
        return target
    there = [other for other, value in vars(module).items() if isinstance(value, System)]
    hint = f"; its systems: {', '.join(there)}" if there else "; it has no System at all"
    if found is not None:
        kind = "a class" if isinstance(found, type) else f"of the class {type(found).__name__}"
        raise BrokenSystem(f"{spec} is {kind}, and no object of System{hint}")
    near = difflib.get_close_matches(name, there, n=1)
    hint = f"; did you mean {near[0]}?" if near else hint
    raise BrokenSystem(f"{where} has no {name}{hint}")


# -- a failure --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A guarantee that broke, and the smallest schedule found that breaks it."""

    seed: int
    """The seed that failed."""
    guarantee: str
    """Name of the guarantee that broke."""
    violation: str
    """Text of the violation that the shrunk schedule shows."""
    plan: Any
    """The schedule; :func:`replay` runs it again.  Of a system it is a :class:`.Plan` or a
    :class:`.Path`."""
    luck: int
    """Seed of all random choices that are not in the plan."""
    digest: str
    """The hash of the shrunk run's trace; empty for a path."""
    before: tuple[int, int]
    """Numbers of requests and of kinds of fault before the plan was shrunk."""
    tried: int
    """Number of plans tried while shrinking, or of states found by a search of every order."""
    drawing: tuple[str, ...]
    """The lines of a drawing of the shrunk run."""
    promise: str = ""
    """The guarantee in one line, for people."""
    whole: str = ""
    """The whole run in a few words."""
    again: str = ""
    """Command that runs the whole seed again."""
    requests: int = 0
    """Number of requests in the schedule."""
    mutant: str = ""
    """Name of the mutant; empty if nothing was broken on purpose."""

    def to_data(self) -> dict[str, Any]:
        """Failure as plain data, without its schedule."""
        return {name: getattr(self, name) for name in _AS_DATA}

    def text(self) -> str:
        """Violation, schedule and drawing as text, for a terminal of 100 columns."""
        requests, kinds = self.before
        found = f"a shortest of all, found in {self.tried:,} states"
        if not isinstance(self.plan, Path):
            found = (
                f"shrunk from {_count(requests, 'request')} and {_count(kinds, 'kind')} of fault "
                f"in {_count(self.tried, 'run')}"
            )
        what, *more = self.violation.split("\n")
        lines = [
            f"{self.guarantee}: {self.promise}" if self.promise else self.guarantee,
            f"  broken: {what.removeprefix(f'{self.guarantee} ')}",
            *(f"  {line}" for line in more),
            f"  {self.whole}",
            "",
            f"The schedule, {found}:",
            *(f"  {line}" for line in self.plan.schedule()),
            "",
            *self.drawing,
            "",
            f"The whole run again: {self.again}",
        ]
        return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


_AS_DATA = tuple(field.name for field in dataclasses.fields(Failure) if field.name != "plan")


# -- looked for ---------------------------------------------------------------------------


def examine(
    system: System | Target[Any, Any], seed: int, *, guarantee: str = "", plan: Any = None,
    most_runs: int = MOST_RUNS,
) -> Failure | None:  # fmt: skip
    """Make a failing run small and draw it; None if nothing fails.

    Without ``guarantee`` the first one that breaks is taken; without ``plan`` that of the
    seed.  The mutant of a target is applied by the caller.
    """
    target = target_of(system)
    whole = run_twice(target, seed, plan=plan)
    if not guarantee and whole.violations:
        guarantee = whole.violations[0].guarantee
    if not whole.breaks(guarantee):
        return None
    shrinker = target.shrinker(whole, guarantee, most_runs)
    before = len(shrinker.calls()), len(whole.plan.kinds())
    shrinker.shrink()
    small = target.run(shrinker.luck, plan=shrinker.plan, trace=True, until=guarantee)
    violation = next(each for each in small.violations if each.guarantee == guarantee)
    return Failure(
        seed=seed,
        guarantee=guarantee,
        violation=str(violation),
        plan=shrinker.plan,
        luck=shrinker.luck,
        digest=small.digest,
        before=before,
        tried=shrinker.tried,
        drawing=tuple(target.drawing(small, violation)),
        promise=target.promise(guarantee),
        whole=target.in_words(seed, whole.plan),
        again=target.again(seed, whole.plan),
        requests=len(shrinker.calls()),
        mutant=target.mutant.name if target.mutant else "",
    )


def explored_failure(system: System | SystemTarget, explored: Explored) -> Failure | None:
    """The failure that a search of every order has found, drawn; None if there is none."""
    if explored.path is None or explored.violation is None:
        return None
    seed, guarantee = explored.bounds.seed, explored.violation.guarantee
    failure = examine(system, seed, guarantee=guarantee, plan=explored.path)
    if failure is None:
        raise BrokenSystem(f"{WHERE} is not the same twice: {HOW_TO_BE_THE_SAME}")
    return dataclasses.replace(failure, tried=explored.states)


def search(system: System | Target[Any, Any], *, runs: int = 200, seed: int = 0) -> Failure | None:
    """The first failure among seeds, made small; None if there is none.

    Args:
        system: The system.
        runs: Number of seeds.
        seed: First seed.
    """
    target = target_of(system)
    for one, violation in tried(target, seed, runs):
        if violation is not None:
            return examine(target, one.seed)
    return None


def check(
    system: System, *, runs: int = 200, seed: int = 0, exhaustive: bool | Bounds = False,
    save: FilePath | str | None = None,
) -> None:  # fmt: skip
    """Search for a failure in a test: an AssertionError tells it.

    :func:`search` looks for it, and with ``exhaustive`` also :func:`.explore`, within the
    system's bounds or these.

    Args:
        system: The system.
        runs: Number of seeds; 0: none.
        seed: First seed.
        exhaustive: Whether to search every order as well; or the bounds of that search.
        save: Folder for the failure.
    """
    __tracebackhide__ = True  # pytest shows the test, which is the caller
    failure = search(system, runs=runs, seed=seed) if runs else None
    if failure is None and exhaustive:
        explored = explore(system, exhaustive if isinstance(exhaustive, Bounds) else None)
        failure = explored_failure(system, explored)
        if failure is None and not explored.exhausted:
            raise AssertionError(
                f"{explored.text()}: make the bounds smaller, or most_states larger"
            )
    if failure is not None:
        saved = "" if save is None else f"\nSaved as {save_failure(failure, FilePath(save))}"
        raise AssertionError(f"\n{failure.text()}{saved}")


# -- saved ----------------------------------------------------------------------------------


def save_failure(
    failure: Failure, folder: FilePath, *, system: str = "",
    made_by: Mapping[str, Any] | None = None,
) -> FilePath:  # fmt: skip
    """Write a failure to a file, which is named after the guarantee, and replaced if it is
    there.

    Args:
        failure: The failure.
        folder: Folder, which is made if it is missing.
        system: Name by which the system is found (``file.py:NAME``), for people.
        made_by: Versions of the code that showed it, for people; None: not said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    how = "explored" if isinstance(failure.plan, Path) else f"seed-{failure.seed}"
    of = f"-{failure.mutant}" if failure.mutant else ""
    path = folder / f"{failure.guarantee.lower().replace(' ', '-')}-{how}{of}.json"
    data = {
        "format": FORMAT, "system": system, "made_by": dict(made_by or {}),
        **failure.to_data(), **failure.plan.to_data(),
    }  # fmt: skip
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def saved_system(path: FilePath) -> str:
    """Name of the system of a saved failure, as its file says it; empty if it says none."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8")).get("system", ""))
    except (AttributeError, OSError, RecursionError, ValueError):
        return ""  # whoever loads it says what is wrong


def load_failure(system: System | Target[Any, Any], path: FilePath | str) -> Failure:
    """Read a failure from its file.  ValueError says why the file has no failure of this
    version, or none of this system any more.

    Args:
        system: The system that failed.
        path: The file.
    """
    path = FilePath(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = data["format"] if isinstance(data, dict) else None
        if known != FORMAT:
            raise ValueError(
                f"it is of format {known}, and this version reads {FORMAT}; "
                "find the failure again, with the seed that is in it"
            )
        plan = target_of(system).plan_from_data(data)
        return Failure(**{name: tuples(data[name]) for name in _AS_DATA}, plan=plan)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path.name} is no saved failure of this system: {why}") from error


def replay(system: System | Target[Any, Any], failure: Failure) -> Sequence[Violation]:
    """Violations when a failure's schedule is run again; none if the system is mended.

    ValueError if the system has no such schedule any more.

    Args:
        system: The system, which may have changed.
        failure: The failure.
    """
    target = target_of(system)
    violations: Sequence[Violation] = target.run(failure.luck, plan=failure.plan).violations
    return violations
