"""Failures: looked for, made small, drawn, told, saved and replayed.

Theory of operation
-------------------
A failure has a schedule: the plan of a run, made small, or a shortest path of a search of
every order.  A saved one holds the whole schedule, not just its seed, so it shows the same
when seeds draw other plans.  The asks of callers are drawn again from the seed when it is
loaded, and compared: so values of any class need no form of their own in the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from .draw import sequence, shrunk, story
from .explore import Explored, Path, explore, walk
from .judges import Violation
from .life import CRASH
from .plan import Crash, Plan, Strike, asks_of
from .run import Run, run
from .shrink import MOST_RUNS, ActorShrinker
from .system import Ask, Bounds, BrokenSystem, Clock, Fault, System
from .values import plain
from .world import Rates

FORMAT = 1
"""The version of saved failures."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A guarantee that broke, and the smallest schedule found that breaks it."""

    seed: int
    """The seed that failed."""
    guarantee: str
    """Name of the guarantee that broke."""
    violation: str
    """Text of the violation that the shrunk schedule shows."""
    plan: Plan | Path
    """The schedule; :func:`replay` runs it again."""
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

    def text(self, again: str = "") -> str:
        """Violation, schedule and drawing as text, for a terminal of 100 columns.

        Args:
            again: Command that runs the whole seed.
        """
        explored = isinstance(self.plan, Path)
        found = f"a shortest of all, found in {self.tried:,} states"
        lines = story(
            self.violation,
            guarantee=self.guarantee,
            promise="an actor raised" if self.guarantee == CRASH else "",
            run="a search of every order" if explored else f"seed {self.seed}",
            found=found if explored else shrunk(self.before, self.tried),
            schedule=self.plan.schedule(),
            drawing=self.drawing,
            again=again or ("explore(system)" if explored else f"run(system, {self.seed})"),
        )
        return "\n".join(lines)


# -- looked for ---------------------------------------------------------------------------


def examine(
    system: System, seed: int, *, guarantee: str = "", plan: Plan | None = None,
    most_runs: int = MOST_RUNS,
) -> Failure | None:  # fmt: skip
    """Make a failing run small and draw it; None if nothing fails.

    Without ``guarantee`` the first one that breaks is taken; without ``plan`` that of the
    seed.
    """
    whole = run_twice(system, seed, plan=plan)
    if not guarantee and whole.violations:
        guarantee = whole.violations[0].guarantee
    if not whole.breaks(guarantee):
        return None
    shrinker = ActorShrinker(system, whole, guarantee, most_runs)
    shrinker.shrink()
    small = run(system, shrinker.luck, plan=shrinker.plan, trace=True)
    violation = next(each for each in small.violations if each.guarantee == guarantee)
    return Failure(
        seed=seed,
        guarantee=guarantee,
        violation=str(violation),
        plan=shrinker.plan,
        luck=shrinker.luck,
        digest=small.digest,
        before=(len(whole.plan.asks), len(whole.plan.kinds())),
        tried=shrinker.tried,
        drawing=tuple(sequence(system, small.trace, violation)),
    )


def explored_failure(system: System, explored: Explored) -> Failure | None:
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
    )


def _first_line(violation: str) -> str:
    """A violation without a traceback, in which there may be addresses."""
    return violation.partition("\n")[0]


HOW_TO_BE_THE_SAME = (
    "an actor must take time and randomness from "
    "self.now_s and self.random, not iterate over sets, and keep nothing outside of itself"
)


def run_twice(system: System, seed: int, digest: str = "", *, plan: Plan | None = None) -> Run:
    """Run a seed twice; BrokenSystem if the runs differ, or are not the one of this digest,
    which another process has made."""
    one, other = run(system, seed, plan=plan), run(system, seed, plan=plan)
    if len({one.digest, other.digest, digest or one.digest}) > 1:
        raise BrokenSystem(
            f"seed {seed} is not the same run twice: {HOW_TO_BE_THE_SAME}"
            f"{_difference(system, seed, plan)}"
        )
    return one


def _difference(system: System, seed: int, plan: Plan | None) -> str:
    """First lines in which two runs differ, as a sentence; empty if they are equal here."""
    logs = [run(system, seed, plan=plan, trace=True).log for _ in range(2)]
    for one, other in zip(*logs, strict=False):
        if one != other:
            return f". It was once\n  {one.strip()}\nand once\n  {other.strip()}"
    return ""


def search(system: System, *, runs: int = 200, seed: int = 0) -> Failure | None:
    """The first failure among seeds, made small; None if there is none.

    Args:
        system: The system.
        runs: Number of seeds.
        seed: First seed.
    """
    run_twice(system, seed)
    for each in range(seed, seed + runs):
        if run(system, each).violations:
            return examine(system, each)
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


def save_failure(failure: Failure, folder: FilePath, *, system: str = "") -> FilePath:
    """Write a failure to a file, which is named after the guarantee, and replaced if it is
    there.

    Args:
        failure: The failure.
        folder: Folder, which is made if it is missing.
        system: Name by which the system is found (``file.py:NAME``), for people.
    """
    folder.mkdir(parents=True, exist_ok=True)
    how = "explored" if isinstance(failure.plan, Path) else f"seed-{failure.seed}"
    path = folder / f"{failure.guarantee.lower().replace(' ', '-')}-{how}.json"
    data = {
        "format": FORMAT, "system": system, "seed": failure.seed, "guarantee": failure.guarantee,
        "violation": failure.violation, "luck": failure.luck, "digest": failure.digest,
        "before": failure.before, "tried": failure.tried, "drawing": failure.drawing,
        "asks": [
            {"request": ask.request, "at_s": ask.at_s, "what": plain(ask.what)}
            for ask in failure.plan.asks
        ],
        **_schedule_data(failure.plan),
    }  # fmt: skip
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def _schedule_data(plan: Plan | Path) -> dict[str, Any]:
    if isinstance(plan, Path):
        return {"path": plan.moves, "rests": plan.rests, "bounds": dataclasses.asdict(plan.bounds)}
    return {
        "plan": {
            "strikes": [{**each._asdict(), "fault": each.fault.name} for each in plan.strikes],
            "rates": dataclasses.asdict(plan.rates),
            "busy_s": plan.busy_s,
            "clocks": {name: list(clock) for name, clock in plan.clocks.items()},
            "crash": plan.crash,
        }
    }


def load_failure(system: System, path: FilePath | str) -> Failure:
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
        asks = _asked_again(system, data)
        return Failure(
            **{name: data[name] for name in _AS_THEY_ARE},
            plan=_schedule(data, asks), before=tuple(data["before"]),
            drawing=tuple(data["drawing"]),
        )  # fmt: skip
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path.name} is no saved failure of this system: {why}") from error


_AS_THEY_ARE = ("seed", "guarantee", "violation", "luck", "digest", "tried")


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


def _schedule(data: Mapping[str, Any], asks: tuple[Ask, ...]) -> Plan | Path:
    if "path" in data:
        return Path(_tuples(data["path"]), Bounds(**data["bounds"]), asks, data["rests"])
    plan = data["plan"]
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


def replay(system: System, failure: Failure) -> Sequence[Violation]:
    """Violations when a failure's schedule is run again; none if the system is mended.

    ValueError if the system has no such schedule any more.

    Args:
        system: The system, which may have changed.
        failure: The failure.
    """
    if isinstance(failure.plan, Path):
        return walk(system, failure.plan).violations
    return run(system, failure.luck, plan=failure.plan).violations
