"""Judges over stored traces: whether they find what the judges of that time found.

``python -m tests.oracles judge DIR`` gives the events of every trace to today's judges of the
simulator, and compares the violations: all of them, word for word.  ``--judges MODULE:FUNCTION``
takes others: the function is given a trace (:mod:`tests.oracles.traces`) and returns pairs of
guarantee and key; of these the set must be the same, for words and moments may differ.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from trio_envserve.lab.simulation.judges import Judges as Ours
from trio_envserve.lab.simulation.plan import SimulationPlan
from trio_envserve.retrylab.judges import Event, Violation
from trio_envserve.retrylab.values import from_data

from .traces import Trace, from_plain, read_file

Pair: TypeAlias = tuple[str, str]
"""A guarantee, and the key of the call that it is broken for; empty if it is nobody's."""

Judges: TypeAlias = Callable[[Trace], Iterable[Pair]]


# -- today's judges -------------------------------------------------------------


def found_by(judge: Ours, events: Iterable[Event]) -> list[list[Any]]:
    """The violations that a judge finds, in the form of a trace."""
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
    return [[each.guarantee, each.at_s, each.text, each.key] for each in found]


def found_today(trace: Trace) -> list[list[Any]]:
    """The violations that today's judges find in a trace."""
    events = (
        Event(at_s, kind, actor, request, tuple(map(from_plain, plain)))
        for at_s, kind, actor, request, plain in trace["events"]
    )
    return found_by(Ours(from_data(SimulationPlan, trace["plan"])), events)


# -- comparison -----------------------------------------------------------------


class Compared(NamedTuple):
    """The comparison of one trace."""

    run: int
    mutant: str
    stored: int
    """Number of violations in the trace."""
    text: str
    """The difference in words; empty if there is none."""


def compared(trace: Trace, judges: Judges | None) -> Compared:
    """Compare what judges find in a trace with what is stored; None: today's."""
    before, text = trace["violations"], ""
    if judges is None:
        now = found_today(trace)
        if now != before:
            pairs = itertools.zip_longest(before, now)
            was, comes = next((a, b) for a, b in pairs if a != b)
            text = f"was {was}, now {comes}"
    else:
        missing = {(each[0], each[3]) for each in before}
        more = {*judges(trace)} - missing
        missing -= {*judges(trace)}
        text = "; ".join(
            f"{word} {sorted(what)}" for word, what in (("lost", missing), ("new", more)) if what
        )
    return Compared(trace["run"], trace["mutant"], len(before), text)


def judges_of(spec: str) -> Judges | None:
    """The judges that ``MODULE:FUNCTION`` names; None, today's, if it is empty."""
    if not spec:
        return None
    module, _, name = spec.partition(":")
    made: Judges = getattr(importlib.import_module(module), name)
    return made


def compare_file(path: Path, spec: str) -> list[Compared]:
    """Compare all traces in a file."""
    judges = judges_of(spec)
    return [compared(trace, judges) for trace in read_file(path)]


def all_compared(directory: Path, spec: str, jobs: int) -> Iterator[Compared]:
    """Compare all traces in a directory."""
    paths = sorted(directory.glob("*.traces"))
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(compare_file, paths, itertools.repeat(spec)):
            yield from found


# -- the command ----------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--judges", default="", metavar="MODULE:FUNCTION", help="default: today's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")


def main(given: argparse.Namespace) -> int:
    """The exit code: whether any trace is judged otherwise than it was, or there is none."""
    counts = Counter[str]()
    for each in all_compared(given.directory, given.judges, given.jobs):
        counts["traces"] += 1
        counts["of mutants"] += bool(each.mutant)
        counts["with violations"] += each.stored > 0
        counts["violations"] += each.stored
        if each.text:
            counts["judged otherwise"] += 1
            of = f" of {each.mutant}" if each.mutant else ""
            print(f"run {each.run}{of}: {each.text}", flush=True)
    names = ("traces", "of mutants", "with violations", "violations", "judged otherwise")
    print(", ".join(f"{counts[name]} {name}" for name in names))
    return int(counts["judged otherwise"] > 0 or not counts["traces"])
