"""Judges over stored traces: whether they find what the judges of that time found.

``python -m tests.oracles judge DIR`` gives the events of every trace to today's judges of the
simulator, and compares the violations: all of them, word for word.  ``--judges MODULE:FUNCTION``
takes others: the function is given a trace (:mod:`tests.oracles.traces`) and returns pairs of
guarantee and key; of these the set must be the same, for words and moments may differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from trio_envserve.lab.simulation.judge import Judge
from trio_envserve.lab.simulation.judge_records import Execution
from trio_envserve.lab.simulation.plan import from_data

from .traces import EVENTS, EXECUTION, PROCESS, Trace, read_file

Pair: TypeAlias = tuple[str, str]
"""A guarantee, and the key of the call that it is broken for; empty if it is nobody's."""

Judges: TypeAlias = Callable[[Trace], Iterable[Pair]]


# -- today's judges -------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class ReplayedProcess:
    """What a judge looks at of a process, as a trace has it."""

    name: str
    died_s: float | None = None
    held_s: float = 0.0
    held_times: int = 0
    continued_s: float | None = None
    stopped_s: float | None = None
    server: Any = None
    slot: int = 0
    set_up_s: float | None = None
    reaped: bool = False
    junk: bool = False
    locked: bool = False
    workers: dict[str, ReplayedProcess] = dataclasses.field(default_factory=dict)
    # What judges keep at a process.
    known_s: float | None = None
    told_to_stop: set[int] = dataclasses.field(default_factory=set)
    empty_since_s: dict[int, float] = dataclasses.field(default_factory=dict)
    most_workers: int = 0

    @property
    def alive(self) -> bool:
        """Whether it has not died."""
        return self.died_s is None

    def moved_s(self, now_s: float) -> float:
        """Time since it was last continued, in seconds; 0 while stopped."""
        continued_s = -math.inf if self.continued_s is None else self.continued_s
        return 0.0 if self.stopped_s is not None else now_s - continued_s

    def quiet_s(self, now_s: float) -> float:
        """Time for which its router has had no sign of life, in seconds."""
        since_s = (now_s if self.stopped_s is None else self.stopped_s) if self.alive else None
        quiet_s = now_s - (since_s if since_s is not None else self.died_s or 0.0)
        return quiet_s if self.known_s is None else min(quiet_s, now_s - self.known_s)


class Replay:
    """Today's judge, given the events of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.now_s = 0.0
        self.judge = Judge(lambda: self.now_s, lambda who, what: None, from_data(trace["plan"]))
        self._processes: dict[str, ReplayedProcess] = {}
        self._executions: list[Execution] = []
        for at_s, name, *args in trace["events"]:
            self.now_s = at_s
            match name:
                case "is":
                    self._is(*args)
                case "stops":
                    self._executions[args[0]].cancelled = True
                case _:
                    self._call(name, args)

    def _process(self, name: str) -> ReplayedProcess:
        return self._processes.setdefault(name, ReplayedProcess(name))

    def _is(self, name: str, facts: dict[str, Any]) -> None:
        process = self._process(name)
        for fact, value in facts.items():
            if fact == "server":
                process.server = self._process(value)
            elif fact == "workers":
                process.workers = {each: self._process(each) for each in value}
            else:
                setattr(process, fact, value)

    def _call(self, name: str, plain: list[Any]) -> None:
        args = []
        for kind, each in zip(EVENTS[name], plain, strict=False):
            if kind is PROCESS:
                args.append(self._process(each))
            elif kind is EXECUTION:
                args.append(self._executions[each])
            else:
                args.append(kind.from_plain(each))
        judge: Any = self.judge
        match name:
            case "gone_clients":
                judge.gone_clients[args[0]] = self.now_s
            case "keys.calls":
                judge.keys.calls[args[0]] = args[1]
            case _:
                part = judge
                for each in name.split("."):
                    part = getattr(part, each)
                try:
                    made = part(*args)
                except Exception:  # the next event says so: the world took it for a crash
                    return
                if isinstance(made, Execution):
                    self._executions.append(made)


def found_today(trace: Trace) -> list[list[Any]]:
    """The violations that today's judges find, in the form of the trace."""
    violations = Replay(trace).judge.violations
    return [[each.guarantee, each.at_s, each.text, each.key] for each in violations]


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
