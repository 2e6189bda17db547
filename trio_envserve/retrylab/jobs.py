"""A process that does jobs: they come in on standard input, results go out.

Theory of operation
-------------------
One job is one line of JSON; so is each result, and the last one of a job has
``done``.  A process does one job at a time, so what a job changes in it (a mutant, an
import) is seen by nobody else.  The process ends when its input does, or when nobody
reads its results: so it outlives its parent (:mod:`.campaign`) by no more than
:data:`TELL_S` and a run.  Runs are added up before they are told (:class:`.BaseTally`).

Output of a job's own code goes to standard error, among the process's last words.

A handler may never return, and
nothing in the process can end it then but a signal: one comes when a run has used
:data:`STUCK_S` of processor time, says where it was, and ends the process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path as FilePath
from types import FrameType
from typing import Any, Protocol, TypeAlias

from . import author
from .explore import WHERE, Exploration
from .failure import (
    Failure,
    SystemTarget,
    examine,
    explored_failure,
    find_target,
    load_failure,
    save_failure,
)
from .system import BrokenSystem
from .target import MOST_RUNS, Target, hunt, run_twice, tried

YOUNG_OBJECTS = 50_000
"""Number of new objects after which cycles are looked for.  A run makes few, and is over soon."""

TELL_S = 0.4
"""Time between results of a job that has many, in seconds."""

Job: TypeAlias = dict[str, Any]


class Tell(Protocol):
    """The report of a job's result."""

    def __call__(self, **result: Any) -> None:
        """Report one result."""


class JobError(Exception):
    """A job cannot be done; the message says why."""


def do_jobs() -> None:
    """Do jobs until there are no more; ``do`` names the function, ``system`` its target.  The
    process is broken as the target's mutant says, but for a hunt, which does that itself."""
    gc.freeze()  # nothing of the program itself is garbage
    gc.set_threshold(YOUNG_OBJECTS)
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
        do = JOBS[job["do"]]
        try:
            target = find_target(job["system"], job.get("options") or {})
            with nullcontext() if do is _hunt else target.applied():
                do(target, job, tell)
        except (BrokenSystem, JobError) as error:
            tell(failed=str(error))
        tell(done=True)


STUCK_S = 20.0
"""Processor time in seconds after which a run is taken for one that does not end."""

USUAL_S = 0.2
"""Processor time in seconds that is added for each run: far more than one takes that ends."""


def _search(target: Target[Any, Any], job: Job, tell: Tell) -> None:
    """Run seeds; tell their sums, and a violation of each that fails."""
    sums, told_s = target.tally(), time.monotonic()
    ends_s = told_s + job["seconds"] if job["seconds"] is not None else None
    runs = tried(
        target, job["base"], job["runs"], first=job["first"], step=job["step"],
        ending=lambda seed: _ending(job, f"seed {seed}", tell),
    )  # fmt: skip
    for one, violation in runs:
        sums.add(one)
        if violation is not None:
            guarantee = violation.guarantee
            tell(seed=one.seed, guarantee=guarantee, violation=violation, digest=one.digest)
        now_s = time.monotonic()
        if violation is not None or now_s - told_s >= TELL_S:
            tell(tally=vars(sums))
            sums, told_s = target.tally(), now_s
        if ends_s is not None and now_s >= ends_s:
            break
    tell(tally=vars(sums))


def _one(target: Target[Any, Any], job: Job, tell: Tell) -> None:
    """Run a seed or a saved failure, and tell its figures and its log."""
    failure, seed, plan = None, job["seed"], None
    try:
        if job.get("path"):
            failure = load_failure(target, job["path"])
            seed, plan = failure.luck, failure.plan
        with _ending(job, f"seed {seed}", tell):
            one = target.run(seed, plan=plan, trace=job["trace"])
    except ValueError as error:
        raise JobError(str(error)) from error
    tally = target.tally()
    tally.add(one)
    tell(
        tally=vars(tally), digest=one.digest, events=one.events, virtual_s=one.virtual_s,
        violations=[[violation.guarantee, violation] for violation in one.violations],
        log=one.log, whole=target.in_words(one.seed, one.plan),
        failure=failure and _data(failure, {}),
    )  # fmt: skip


def _again(target: Target[Any, Any], job: Job, tell: Tell) -> None:
    """Run a seed twice more, which another process has run."""
    with _ending(job, f"seed {job['seed']}", tell, runs=2):
        run_twice(target, job["seed"], job["digest"])


def _examine(target: Target[Any, Any], job: Job, tell: Tell) -> None:
    """Make a failing run small."""
    with _ending(job, f"seed {job['seed']}", tell, runs=MOST_RUNS):
        run_twice(target, job["seed"], job["digest"])
        failure = examine(target, job["seed"], guarantee=job["guarantee"], most_runs=MOST_RUNS)
    tell(failure=failure and _data(failure, job))


def _hunt(target: Target[Any, Any], job: Job, tell: Tell) -> None:
    """Run seeds until the target's mutant is caught."""
    tell(caught=hunt(target, job["base"])._asdict())


def _explore(target: Target[Any, Any], job: Job, tell: Tell) -> None:
    """Look at every order; tell the progress, and at the end the failure."""
    if not isinstance(target, SystemTarget):
        raise JobError("only of a system of actors every order can be searched")
    search = Exploration(target.system)
    progress, told_s, left = search.run(), time.monotonic(), True
    while left:
        with _ending(job, WHERE, tell):
            left = next(progress, None) is not None
        if not left or time.monotonic() - told_s >= TELL_S:
            tell(explored=target.figures(search.explored))
            told_s = time.monotonic()
    failure = explored_failure(target, search.explored)
    tell(failure=failure and _data(failure, job))


def _data(failure: Failure, job: Job) -> dict[str, object]:
    """Failure for JSON, with its text for people; saved, if the job says so."""
    data, text = failure.to_data(), failure.text()
    if job.get("save"):
        try:
            folder, made_by = FilePath(job["save"]), job.get("made_by")
            path = save_failure(failure, folder, system=job["system"], made_by=made_by)
            data["saved"] = str(path)
            text += f"\nSaved as {path}"
        except OSError as error:
            text += f"\nNot saved: {error}"
    schedule, command = failure.plan.schedule(), data.pop("again")
    return data | {"schedule": schedule, "command": command, "text": text}


@contextmanager
def _ending(job: Job, what: str, tell: Tell, *, runs: int = 1) -> Iterator[None]:
    """Context of runs that must end in time; if not, the job fails and the process ends."""
    stuck_s: float = job.get("stuck_s", STUCK_S) + runs * USUAL_S

    def stuck(signal_number: int, frame: FrameType | None) -> None:
        tell(failed=f"{what} has not ended after {stuck_s:g} s; it was here:\n{_where(frame)}")
        os._exit(1)

    before = signal.signal(signal.SIGPROF, stuck)
    signal.setitimer(signal.ITIMER_PROF, stuck_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _where(frame: FrameType | None) -> str:
    """Stack of an author's code, from where it was called."""
    stack = traceback.extract_stack(frame)
    calls = [n for n, each in enumerate(stack, 1) if each.filename == author.__file__]
    return "".join(traceback.format_list(stack[calls[0] if calls else 0 :])).rstrip()


JOBS: dict[str, Callable[[Target[Any, Any], Job, Tell], None]] = {
    "search": _search, "one": _one, "again": _again, "examine": _examine, "hunt": _hunt,
    "explore": _explore,
}  # fmt: skip

if __name__ == "__main__":
    do_jobs()
