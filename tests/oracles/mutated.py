"""The judges under mutation: which small changes of them no stored trace shows.

``python -m tests.oracles mutated DIR --share N`` changes each N-th place of a judge of the
simulator (``--of``; :mod:`tests.mutation.mutate`), gives the changed judges every trace in a
directory, and names the changes that find what the judges of that time found, word for word.  What
such a change is in is dead, or no trace has what it looks for: a fault is missing, or the traces
are too few.
"""

from __future__ import annotations

import argparse
import os
import resource
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutation.mutate import Mutation, mutations
from trio_envserve.lab import model
from trio_envserve.lab.simulation import judges
from trio_envserve.lab.simulation.plan import SimulationPlan
from trio_envserve.retrylab.judges import Event
from trio_envserve.retrylab.values import from_data

from .judge import found_by
from .traces import Trace, from_plain, read_file

FOR_S = 120
"""Processor time of one change, in seconds; what takes longer is taken for seen."""


class Prepared(NamedTuple):
    """A trace whose events are made, so that each change judges at once."""

    plan: Any
    events: list[Event]
    violations: list[list[Any]]


def prepared(trace: Trace) -> Prepared:
    """Make the events of a trace."""
    events = [
        Event(at_s, kind, actor, request, tuple(map(from_plain, plain)))
        for at_s, kind, actor, request, plain in trace["events"]
    ]
    plan = from_data(SimulationPlan, trace["plan"])
    return Prepared(plan, events, trace["violations"])


MODULES = {"guarantees": judges, "model": model}
"""The modules whose judges are changed."""


def shows(mutation: Mutation, traces: Sequence[Prepared], of: str = "guarantees") -> bool:
    """Whether any trace is judged otherwise, in a fork of this process."""
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
                found_by(made(each.plan, clocks), each.events) == each.violations for each in traces
            )
        except BaseException:  # it raises where the judges do not, or runs on: that is seen
            same = False
        os._exit(0 if same else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


def survivors(
    directory: Path, share: int, jobs: int, told: Callable[[int, int], object],
    of: str = "guarantees",
) -> Iterator[Mutation]:  # fmt: skip
    """Changes that no trace shows."""
    stored = [trace for path in sorted(directory.glob("*.traces")) for trace in read_file(path)]
    stored.sort(key=lambda trace: not trace["violations"])
    traces = [prepared(trace) for trace in stored]
    assert all(
        found_by(judges.Judges(each.plan), each.events) == each.violations for each in traces
    ), "today's judges find something else already: see `judge`"
    source = Path(str(MODULES[of].__file__)).read_text(encoding="utf-8")
    chosen = list(mutations(source))[::share]
    with ThreadPoolExecutor(jobs) as pool:
        seen = pool.map(lambda mutation: shows(mutation, traces, of), chosen)
        for number, (mutation, is_seen) in enumerate(zip(chosen, seen, strict=True), 1):
            told(number, len(chosen))
            if not is_seen:
                yield mutation


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="each N-th change")
    parser.add_argument("--of", choices=MODULES, default="guarantees", help="whose changes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")


def main(given: argparse.Namespace) -> int:
    """The exit code: 0, whatever survives: a look, no verdict."""
    tried = survived = 0

    def told(number: int, of: int) -> None:
        nonlocal tried
        tried = number
        print(f"\r{number} of {of}, {survived} survived ", end="", flush=True)

    for mutation in survivors(given.directory, given.share, given.jobs, told, given.of):
        survived += 1
        print(f"\r{given.of}:{mutation.line}: {mutation.name}", flush=True)
    print(f"\r{tried} tried, {survived} survived")
    return 0
