"""A process that does jobs: they come in on standard input, results go out.

Theory of operation
-------------------
One job is one line of JSON; so is each result, and the last one of a job has
``done``.  A process does one job at a time, so what a job changes in it (a mutant, an
import) is seen by nobody else.  The process ends when its input does, or when nobody
reads its results: so it outlives its parent (:mod:`.campaign`) by no more than
:data:`TELL_S` and a run.  Runs are added up before they are told (:class:`BaseTally`).

Output of a job's own code goes to standard error, among the process's last words.

Run as a program it does the jobs of anybody's system.  A handler may never return, and
nothing in the process can end it then but a signal: one comes when a run has used
:data:`STUCK_S` of processor time, says where it was, and ends the process.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath
from types import FrameType
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from . import author
from .author import find
from .explore import Exploration, Explored, Path
from .failure import (
    Failure,
    examine,
    explored_failure,
    load_failure,
    replay,
    run_twice,
    save_failure,
)
from .judges import Violation
from .run import Run, run
from .shrink import MOST_RUNS
from .system import BrokenSystem, Fault, System


class Ran(Protocol):
    """Figures that every run has."""

    @property
    def violations(self) -> Sequence[Violation]:
        """The violations that the judge found."""

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


R = TypeVar("R", bound=Ran)


@dataclasses.dataclass
class BaseTally(ABC, Generic[R]):
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

    @abstractmethod
    def sizes(self, run: R) -> dict[str, int]:
        """The measures of how large a run is."""

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


TELL_S = 0.4
"""Time between results of a job that has many, in seconds."""

Job: TypeAlias = dict[str, Any]


class Tell(Protocol):
    """The report of a job's result."""

    def __call__(self, **result: Any) -> None:
        """Report one result."""


class JobError(Exception):
    """A job cannot be done; the message says why."""


def do_jobs(by_name: Mapping[str, Callable[[Job, Tell], None]]) -> None:
    """Do jobs until there are no more; ``do`` names the function."""
    jobs, results = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)

    def tell(**result: Any) -> None:
        try:
            print(json.dumps(result), file=results, flush=True)
        except BrokenPipeError:  # nobody is there any more
            os._exit(0)

    for line in jobs:
        job = json.loads(line)
        try:
            by_name[job["do"]](job, tell)
        except JobError as error:
            tell(failed=str(error))
        tell(done=True)


def search_seeds(
    job: Job, tell: Tell, *, seeds: Iterable[int], run: Callable[[int], R],
    tally: Callable[[], BaseTally[R]], counts: Callable[[Violation], bool] = lambda violation: True,
) -> None:  # fmt: skip
    """Run seeds; tell their sums, and a violation of each that fails."""
    sums, told_s = tally(), time.monotonic()
    ends_s = told_s + job["seconds"] if job["seconds"] is not None else None
    for seed in _mine(job, seeds):
        one = run(seed)
        sums.add(one)
        violation = next(filter(counts, one.violations), None)
        if violation is not None:
            guarantee = violation.guarantee
            tell(seed=seed, guarantee=guarantee, violation=violation, digest=one.digest)
        now_s = time.monotonic()
        if violation is not None or now_s - told_s >= TELL_S:
            tell(tally=sums.to_data())
            sums, told_s = tally(), now_s
        if ends_s is not None and now_s >= ends_s:
            break
    tell(tally=sums.to_data())


def tell_run(tell: Tell, one: R, tally: BaseTally[R]) -> None:
    """Tell the figures and the log of one run; ``tally`` is empty."""
    tally.add(one)
    tell(
        tally=tally.to_data(), digest=one.digest, events=one.events, virtual_s=one.virtual_s,
        violations=[[v.guarantee, v] for v in one.violations], log=list(one.log),
    )  # fmt: skip


def _mine(job: Job, seeds: Iterable[int]) -> Iterator[int]:
    """Every ``step``-th seed, from the ``first`` on."""
    return itertools.islice(seeds, job["first"], job["runs"], job["step"])


def seeds_from(base: int) -> Iterator[int]:
    """All seeds from this one on."""
    return iter(range(base, sys.maxsize))


SIZES = ("requests", "faults")
"""Measures of the least run and of the average run."""


class ActorTally(BaseTally[Run]):
    """Sums over runs."""

    def sizes(self, run: Run) -> dict[str, int]:
        """Number of requests and of faults, by the names of :data:`SIZES`."""
        sizes = (sum(run.told.values()), sum(run.faults.values()))
        return dict(zip(SIZES, sizes, strict=True))

    def average(self) -> dict[str, float]:
        """The sizes of an average run."""
        return {**dict.fromkeys(SIZES, 0.0), **super().average()}

    def figures(self, took_s: float) -> dict[str, Any]:
        """All figures, with 0 for the kinds of fault that never struck."""
        faults = {fault.value: self.faults[fault.value] for fault in Fault}
        return super().figures(took_s) | {"faults": faults}


STUCK_S = 20.0
"""Processor time in seconds after which a run is taken for one that does not end."""

USUAL_S = 0.2
"""Processor time in seconds that is added for each run: far more than one takes that ends."""

T = TypeVar("T")


def _search(system: System, job: Job, tell: Tell) -> None:
    """Run seeds; tell their sums, and a violation of each that fails."""

    def simulate(seed: int) -> Run:
        with _ending(job, f"seed {seed}", tell):
            return run_twice(system, seed) if seed == job["base"] else run(system, seed)

    search_seeds(job, tell, seeds=seeds_from(job["base"]), run=simulate, tally=ActorTally)


def _one(system: System, job: Job, tell: Tell) -> None:
    """Run one seed, and tell its figures and its log."""
    with _ending(job, f"seed {job['seed']}", tell):
        one = run(system, job["seed"], trace=job["trace"])
    tell_run(tell, one, ActorTally())


def _examine(system: System, job: Job, tell: Tell) -> None:
    """Make a failing run small."""
    with _ending(job, f"seed {job['seed']}", tell, runs=MOST_RUNS):
        run_twice(system, job["seed"], job["digest"])
        failure = examine(system, job["seed"], guarantee=job["guarantee"], most_runs=MOST_RUNS)
    tell(failure=failure and _data(failure, job))


def _explore(system: System, job: Job, tell: Tell) -> None:
    """Look at every order; tell the progress, and at the end the failure."""
    search = Exploration(system)
    told_s = time.monotonic()
    progress = search.run()
    while True:
        with _ending(job, "a search of every order", tell):
            explored = next(progress, None)
        if explored is None:
            break
        if time.monotonic() - told_s >= TELL_S:
            tell(explored=_explored(search.explored))
            told_s = time.monotonic()
    tell(explored=_explored(search.explored))
    failure = explored_failure(system, search.explored)
    tell(failure=failure and _data(failure, job))


def _explored(explored: Explored) -> dict[str, object]:
    """Progress of a search of every order, for JSON."""
    names = ("states", "transitions", "depth", "exhausted", "seconds")
    data = {name: getattr(explored, name) for name in names}
    return {**data, "bounds": dataclasses.asdict(explored.bounds), "text": explored.text()}


def _replay(system: System, job: Job, tell: Tell) -> None:
    """Run a saved failure again."""
    try:
        failure = load_failure(system, job["path"])
        with _ending(job, f"seed {failure.seed}", tell):
            violations = replay(system, failure)
    except ValueError as error:
        raise JobError(str(error)) from error
    data = _data(failure, {**job, "save": None})
    tell(failure=data, violations=[[v.guarantee, v] for v in violations])


def _data(failure: Failure, job: Job) -> dict[str, object]:
    """Failure for JSON, with its text for people; saved, if the job says so."""
    explored = isinstance(failure.plan, Path)
    how = "--exhaustive" if explored else f"--seed {failure.seed}"
    command = f"trio-envserve fuzz --protocol {job['system']} {how}"
    text, saved = failure.text(command), {}
    if job.get("save"):
        try:
            path = save_failure(failure, FilePath(job["save"]), system=job["system"])
            saved = {"saved": str(path)}
            text += f"\nSaved as {path}"
        except OSError as error:
            text += f"\nNot saved: {error}"
    return {
        **saved,
        "seed": failure.seed,
        "guarantee": failure.guarantee,
        "violation": failure.violation,
        "requests": len(failure.plan.asks),
        "schedule": failure.plan.schedule(),
        "luck": failure.luck,
        "digest": failure.digest,
        "before": list(failure.before),
        "tried": failure.tried,
        "drawing": list(failure.drawing),
        "command": command,
        "text": text,
    }


def _of_system(do: Callable[[System, Job, Tell], None]) -> Callable[[Job, Tell], None]:
    """Do a job with the system that it names."""

    def done(job: Job, tell: Tell) -> None:
        try:
            do(find(job["system"]), job, tell)
        except BrokenSystem as error:
            raise JobError(str(error)) from error

    return done


@contextmanager
def _ending(job: Job, what: str, tell: Tell, *, runs: int = 1) -> Iterator[None]:
    """Context of runs that must end in time; if not, the job fails and the process ends."""
    stuck_s: float = job.get("stuck_s", STUCK_S) + runs * USUAL_S

    def stuck(signal_number: int, frame: FrameType | None) -> None:
        tell(failed=f"{what} has not ended after {stuck_s:g} s; it was here:\n{_place(frame)}")
        os._exit(1)

    before = signal.signal(signal.SIGPROF, stuck)
    signal.setitimer(signal.ITIMER_PROF, stuck_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _place(frame: FrameType | None) -> str:
    """Stack of an author's code, from where it was called."""
    stack = traceback.extract_stack(frame)
    calls = [n for n, each in enumerate(stack, 1) if each.filename == author.__file__]
    return "".join(traceback.format_list(stack[calls[0] if calls else 0 :])).rstrip()


JOBS = {
    "search": _of_system(_search),
    "one": _of_system(_one),
    "examine": _of_system(_examine),
    "explore": _of_system(_explore),
    "replay": _of_system(_replay),
}

if __name__ == "__main__":
    do_jobs(JOBS)
