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
import json
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from . import author
from .draw import sequence, shrunk, story
from .explore import Explored, Path, explore, walk
from .judges import Violation
from .life import CRASH
from .mutants import Mutant
from .plan import Crash, Plan, Strike, asks_data, asks_of
from .plan import draw as draw_plan
from .run import Run, run
from .shrink import ActorShrinker
from .system import Ask, Bounds, BrokenSystem, Clock, Fault, System
from .target import MOST_RUNS, SIZES, BaseTally, Target
from .values import plain
from .world import Rates

FORMAT = 2
"""The version of saved failures."""


# -- a system as a target -------------------------------------------------------------------


class ActorTally(BaseTally[Run]):
    """Sums over runs of a system."""

    def average(self) -> dict[str, float]:
        """The sizes of an average run."""
        return {**dict.fromkeys(SIZES, 0.0), **super().average()}

    def figures(self, took_s: float) -> dict[str, Any]:
        """All figures, with 0 for the kinds of fault that never struck."""
        faults = {fault.value: 0 for fault in Fault}
        return super().figures(took_s) | {"faults": faults | self.faults}


class SystemTarget(Target[Plan, Run]):
    """A system of actors as a target."""

    def __init__(self, system: System, spec: str = "", mutant: Mutant | None = None) -> None:
        super().__init__(mutant)
        self.system = system
        self.spec = spec
        """Name by which the system is found; empty if it was given as an object."""

    def plan(self, seed: int) -> Plan:
        """The plan that a seed draws."""
        return draw_plan(self.system, seed)

    def run(
        self, seed: int, *, plan: Plan | None = None, trace: bool = False, until: str = ""
    ) -> Run:
        """Run a seed, always to its end: judges look at all events."""
        return run(self.system, seed, plan=plan, trace=trace)

    def tally(self) -> ActorTally:
        """New sums over runs."""
        return ActorTally()

    def shrinker(self, whole: Run, guarantee: str, most_runs: int) -> ActorShrinker:
        """A shrinker of the plan of a run."""
        return ActorShrinker(self, whole, guarantee, most_runs)

    def drawing(self, run: Run, violation: Violation) -> list[str]:
        """The lines of a drawing, up to a violation."""
        return sequence(self.system, run.trace, violation)

    def plan_from_data(self, data: Mapping[str, Any]) -> Plan:
        """The plan in the data of a saved failure."""
        return _plan(data["plan"], _asked_again(self.system, data))

    def promise(self, guarantee: str) -> str:
        """Words for an actor that raised; a guarantee of an author's needs none."""
        return "an actor raised" if guarantee == CRASH else ""

    def again(self, seed: int, plan: Plan) -> str:
        """The command that runs the whole seed again."""
        if not self.spec:
            return super().again(seed, plan)
        return f"trio-envserve fuzz --protocol {self.spec} --seed {seed}"


def target_of(system: System | Target[Any, Any]) -> Target[Any, Any]:
    """The target that this is."""
    return SystemTarget(system) if isinstance(system, System) else system


def find_target(spec: str, options: Mapping[str, Any]) -> Target[Any, Any]:
    """The target that ``spec`` names, with options if it is a class of them; BrokenSystem if
    there is none."""
    found = author.find(spec)
    if isinstance(found, System):
        return SystemTarget(found, spec)
    ended = author.call(lambda: found(**options))
    if ended.error is not None:
        raise BrokenSystem(f"{spec} could not be made:\n{author.raised(ended.error)}")
    target: Target[Any, Any] = ended.value
    return target


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

    def text(self) -> str:
        """Violation, schedule and drawing as text, for a terminal of 100 columns."""
        explored = isinstance(self.plan, Path)
        found = f"a shortest of all, found in {self.tried:,} states"
        lines = story(
            self.violation,
            guarantee=self.guarantee,
            promise=self.promise,
            run=self.whole,
            found=found if explored else shrunk(self.before, self.tried),
            schedule=self.plan.schedule(),
            drawing=self.drawing,
            again=self.again,
        )
        return "\n".join(lines)


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


def explored_failure(
    system: System, explored: Explored, again: str = "explore(system)"
) -> Failure | None:
    """The failure that a search of every order has found, drawn; None if there is none."""
    if explored.path is None or explored.violation is None:
        return None
    path = explored.path
    walked = walk(system, path)
    if _first_line(explored.violation) not in map(_first_line, walked.violations):
        raise BrokenSystem(f"a path is not the same twice: {HOW_TO_BE_THE_SAME}")
    return Failure(
        seed=path.bounds.seed,
        guarantee=explored.violation.guarantee,
        violation=str(explored.violation),
        plan=path,
        luck=path.bounds.seed,
        digest="",
        before=(len(path.asks), len(path.kinds())),
        tried=explored.states,
        drawing=tuple(sequence(system, walked.trace, explored.violation)),
        promise=SystemTarget(system).promise(explored.violation.guarantee),
        whole="a search of every order",
        again=again,
        requests=len(path.asks),
    )


def _first_line(violation: str) -> str:
    """A violation without a traceback, in which there may be addresses."""
    return violation.partition("\n")[0]


HOW_TO_BE_THE_SAME = (
    "an actor must take time and randomness from "
    "self.now_s and self.random, not iterate over sets, and keep nothing outside of itself"
)


def run_twice(target: Target[Any, Any], seed: int, digest: str = "", *, plan: Any = None) -> Any:
    """Run a seed twice; BrokenSystem if the runs differ, or are not the one of this digest,
    which another process has made."""
    one, other = target.run(seed, plan=plan), target.run(seed, plan=plan)
    if len({one.digest, other.digest, digest or one.digest}) > 1:
        raise BrokenSystem(
            f"seed {seed} is not the same run twice: {HOW_TO_BE_THE_SAME}"
            f"{_difference(target, seed, plan)}"
        )
    return one


def _difference(target: Target[Any, Any], seed: int, plan: Any) -> str:
    """First lines in which two runs differ, as a sentence; empty if they are equal here."""
    logs = [target.run(seed, plan=plan, trace=True).log for _ in range(2)]
    for one, other in zip(*logs, strict=False):
        if one != other:
            return f". It was once\n  {one.strip()}\nand once\n  {other.strip()}"
    return ""


def search(system: System | Target[Any, Any], *, runs: int = 200, seed: int = 0) -> Failure | None:
    """The first failure among seeds, made small; None if there is none.

    Args:
        system: The system.
        runs: Number of seeds.
        seed: First seed.
    """
    target = target_of(system)
    run_twice(target, seed)
    for each in range(seed, seed + runs):
        if target.run(each).violations:
            return examine(target, each)
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
        **{name: getattr(failure, name) for name in (*_AS_THEY_ARE, "before", "drawing")},
        **_path_or_plan_data(failure.plan),
    }  # fmt: skip
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def _path_or_plan_data(plan: Any) -> dict[str, Any]:
    if isinstance(plan, Path):
        bounds = dataclasses.asdict(plan.bounds)
        path = {"path": plan.moves, "rests": plan.rests, "bounds": bounds}
        return {"asks": asks_data(plan.asks), **path}
    data: dict[str, Any] = plan.to_data()
    return data


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
        return Failure(
            **{name: data[name] for name in _AS_THEY_ARE},
            plan=_path_or_plan(system, data), before=tuple(data["before"]),
            drawing=tuple(data["drawing"]),
        )  # fmt: skip
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path.name} is no saved failure of this system: {why}") from error


_AS_THEY_ARE = (
    "seed", "guarantee", "violation", "luck", "digest", "tried", "promise", "whole", "again",
    "requests", "mutant",
)  # fmt: skip


def _asked_again(system: System, data: Mapping[str, Any]) -> tuple[Ask, ...]:
    """Asks of the file, drawn again from its seed; ValueError if one is another now."""
    drawn = {ask.request: ask for ask in asks_of(system, data["seed"])}
    asks = []
    for each in data["asks"]:
        ask = drawn.get(each["request"])
        if ask is None or plain(ask.what) != each["what"]:
            now = "nothing" if ask is None else plain(ask.what)
            raise ValueError(
                f"in seed {data['seed']} {each['request']} asked for {each['what']}, and asks "
                f"for {now} now"
            )
        asks.append(ask._replace(at_s=each["at_s"]))
    return tuple(asks)


def _path_or_plan(system: System | Target[Any, Any], data: Mapping[str, Any]) -> Any:
    target = target_of(system)
    if "path" not in data:
        return target.plan_from_data(data)
    if not isinstance(target, SystemTarget):
        raise ValueError("it is of a search of every order")
    asks, bounds = _asked_again(target.system, data), Bounds(**data["bounds"])
    return Path(_tuples(data["path"]), bounds, asks, data["rests"])


def _plan(plan: Mapping[str, Any], asks: tuple[Ask, ...]) -> Plan:
    rates = {name: _tuples(value) for name, value in plan["rates"].items()}
    return Plan(
        asks=asks,
        strikes=tuple(
            Strike(**{**each, "fault": Fault[each["fault"]], "others": tuple(each["others"])})
            for each in plan["strikes"]
        ),
        rates=Rates(**rates),
        busy_s=plan["busy_s"],
        clocks={name: Clock(*clock) for name, clock in plan["clocks"].items()},
        crash=Crash(*plan["crash"]) if plan["crash"] else None,
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def replay(system: System | Target[Any, Any], failure: Failure) -> Sequence[Violation]:
    """Violations when a failure's schedule is run again; none if the system is mended.

    ValueError if the system has no such schedule any more.

    Args:
        system: The system, which may have changed.
        failure: The failure.
    """
    if isinstance(failure.plan, Path):
        assert isinstance(system, System), "only of a system every order is searched"
        return walk(system, failure.plan).violations
    violations: Sequence[Violation] = (
        target_of(system).run(failure.luck, plan=failure.plan).violations
    )
    return violations
