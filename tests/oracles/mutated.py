"""The judges under mutation: which small changes of them no run shows.

``python -m tests.oracles mutated --runs N --share M`` records what the judges of the simulator see
in N runs, one of five of a mutant, by turns.  It changes each M-th place of a judge (``--of``;
:mod:`tests.mutation.mutate`), gives the changed judges the events of all runs, and names the
changes that find what today's judges find, word for word.  What such a change is in is dead, or no
run has what it looks for: a fault is missing, or the runs are too few.

A recorded event is as the world gives it to its judges.  Two kinds are no judge's to see:
``breaks`` is what others than judges have found, bounds of a router and exceptions, and ``rest``
the end of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tests.mutation.mutate import Mutation, mutations
from trio_envserve.lab import model
from trio_envserve.lab.mutants import MUTANTS, Patches
from trio_envserve.lab.simulation import judges
from trio_envserve.lab.simulation.actors import World
from trio_envserve.lab.simulation.plan import SimulationPlan
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.judges import Event, Violation

FOR_S = 120
"""Processor time of one change, in seconds; what takes longer is taken for seen."""
MUTANT_EACH = 5
"""Of so many runs one is of a mutant."""
SEEDS_APART = 1_000
"""The further runs of a mutant begin to look for a seed so far from each other."""


# -- recorded runs --------------------------------------------------------------------------

Found: TypeAlias = list[tuple[Violation, str]]
"""Violations, each with the key of the call that it is about."""


class Recorded(NamedTuple):
    """What judges saw in a run, and what was found."""

    plan: SimulationPlan
    events: list[Event]
    found: Found


@contextlib.contextmanager
def recording() -> Iterator[list[Event]]:
    """While the block lasts, the events of simulated worlds are recorded."""
    patches, events = Patches(), list[Event]()

    @patches.around(World, "happened")
    def happened(before: Any, world: Any, kind: str, who: str, key: str = "", *what: Any) -> None:
        events.append(Event(world.events.now_s, kind, who, key, what))
        before(world, kind, who, key, *what)

    @patches.around(World, "breaks")
    def breaks(before: Any, world: Any, guarantee: str, text: str) -> None:
        events.append(Event(world.events.now_s, "breaks", "", "", (guarantee, text)))
        before(world, guarantee, text)

    @patches.around(judges.SimulationJudge, "rest")
    def rest(before: Any, judge: Any, at_s: float) -> Any:
        events.append(Event(at_s, "rest", "", "", ()))
        return before(judge, at_s)

    try:
        yield events
    finally:
        patches.undo()


def drawn(number: int) -> tuple[int, str]:
    """The seed and the mutant of the run of this number: seeds in order, and mutants by turns."""
    fives, rest = divmod(number, MUTANT_EACH)
    if rest != MUTANT_EACH - 1:
        return fives * (MUTANT_EACH - 1) + rest, ""
    turn, index = divmod(fives, len(MUTANTS))
    mutant = MUTANTS[index].name
    return next(Protocol(mutant=mutant).seeds(turn * SEEDS_APART)), mutant


def record(number: int) -> Recorded:
    """Run it, and return what judges saw."""
    seed, mutant = drawn(number)
    target = Protocol(mutant=mutant)
    with recording() as events, target.applied():
        ran = target.run(seed)
    return Recorded(ran.plan, events, [(each, each.key) for each in ran.violations])


def found_by(judge: judges.Judges, events: Iterable[Event]) -> Found:
    """The violations that judges find in recorded events."""
    found: list[Violation] = []
    for event in events:
        if event.kind == "breaks":
            guarantee, text = event.what
            found.append(Violation(guarantee, event.at_s, text))
        elif event.kind == "rest":
            found += judge.rest(event.at_s)
        else:
            try:
                found += judge.see(event)
            except Exception:  # the next event says so: the world took it for a crash
                continue
    return [(each, each.key) for each in found]


# -- changed judges -------------------------------------------------------------------------

MODULES = {"guarantees": judges, "model": model}
"""The modules whose judges are changed."""


def shows(mutation: Mutation, runs: Sequence[Recorded], of: str = "guarantees") -> bool:
    """Whether any run is judged otherwise, in a fork of this process."""
    module = MODULES[of]
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (FOR_S, FOR_S))
        try:
            changed = types.ModuleType(module.__name__)
            changed.__dict__.update(vars(module))
            exec(compile(mutation.change(), str(module.__file__), "exec"), changed.__dict__)
            made = changed.Judges if of == "guarantees" else judges.Judges
            clocks = changed.Clocks
            same = all(
                found_by(made(each.plan, clocks), each.events) == each.found for each in runs
            )
        except BaseException:  # it raises where the judges do not, or runs on: that is seen
            same = False
        os._exit(0 if same else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


def survivors(
    count: int, share: int, jobs: int, told: Callable[[int, int], object], of: str = "guarantees"
) -> Iterator[Mutation]:
    """Changes that none of so many runs shows."""
    runs = sorted(map(record, range(count)), key=lambda each: not each.found)
    assert all(found_by(judges.Judges(each.plan), each.events) == each.found for each in runs)
    source = Path(str(MODULES[of].__file__)).read_text(encoding="utf-8")
    chosen = list(mutations(source))[::share]
    with ThreadPoolExecutor(jobs) as pool:
        seen = pool.map(lambda mutation: shows(mutation, runs, of), chosen)
        for number, (mutation, is_seen) in enumerate(zip(chosen, seen, strict=True), 1):
            told(number, len(chosen))
            if not is_seen:
                yield mutation


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--runs", type=int, required=True, help="how many, from run 0 on")
    parser.add_argument("--share", type=int, default=1, metavar="M", help="each M-th change")
    parser.add_argument("--of", choices=MODULES, default="guarantees", help="whose changes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")


def main(given: argparse.Namespace) -> int:
    """The exit code: 0, whatever survives: a look, no verdict."""
    tried = survived = 0

    def told(number: int, of: int) -> None:
        nonlocal tried
        tried = number
        print(f"\r{number} of {of}, {survived} survived ", end="", flush=True)

    for mutation in survivors(given.runs, given.share, given.jobs, told, given.of):
        survived += 1
        print(f"\r{given.of}:{mutation.line}: {mutation.name}", flush=True)
    print(f"\r{tried} tried, {survived} survived")
    return 0
