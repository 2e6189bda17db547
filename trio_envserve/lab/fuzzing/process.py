"""A process that simulates: jobs come in on standard input, results go out.

Theory of operation
-------------------
One job is one line of JSON; so is each result, and the last one of a job has
``done``.  A process runs one job at a time, so a mutant that one is told to apply
is seen by nobody else.  It ends when its input does, or when nobody reads what
it says: so it outlives its parent by no more than :data:`TELL_S` and a run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, TypeAlias

from ..kit.violation import Violation
from ..mutants import find
from ..simulation.plans import from_data
from ..simulation.simulator import run
from .failure import examine, is_harsh
from .hunt import hunt, seeds
from .tally import Tally

TELL_S = 0.4
"""Between results of a job that has many."""

Tell: TypeAlias = Callable[..., None]


def main() -> None:
    """Do jobs until there are no more."""
    for line in sys.stdin:
        job = json.loads(line)
        mutant = find(job["mutant"]) if job.get("mutant") else None
        with mutant.applied() if mutant and job["do"] != "hunt" else nullcontext():
            JOBS[job["do"]](job, _tell)
        _tell(done=True)


def _tell(**result: Any) -> None:
    try:
        print(json.dumps(result), flush=True)
    except BrokenPipeError:  # nobody is there any more
        os._exit(0)


def _search(job: dict[str, Any], tell: Tell) -> None:
    """Run seeds; tell what they came to, and which of them fail."""
    tally, told_s = Tally(), time.monotonic()
    ends_s = told_s + job["seconds"] if job["seconds"] is not None else None
    mutant = find(job["mutant"]) if job.get("mutant") else None

    def counts(violation: Violation) -> bool:
        return mutant is None or mutant.caught_by(violation.guarantee)

    for seed in _seeds(job):
        one = run(seed, harsh=is_harsh(seed, always=job["harsh"]))
        tally.add(one)
        violation = next(filter(counts, one.violations), None)
        if violation is not None:
            tell(
                seed=seed, harsh=one.harsh, guarantee=violation.guarantee, violation=violation,
                digest=one.digest,
            )  # fmt: skip
        now_s = time.monotonic()
        if violation is not None or now_s - told_s >= TELL_S:
            tell(tally=tally.to_data())
            tally, told_s = Tally(), now_s
        if ends_s is not None and now_s >= ends_s:
            break
    tell(tally=tally.to_data())


def _seeds(job: dict[str, Any]) -> Iterator[int]:
    """Every ``step``-th seed; of a mutant, of those that could show it."""
    first, step, runs = job["first"], job["step"], job["runs"]
    if job.get("mutant"):
        source: Iterator[int] = seeds(find(job["mutant"]), job["base"], harsh=job["harsh"])
    else:
        source = iter(range(job["base"], sys.maxsize))
    for index, seed in enumerate(source):
        if runs is not None and index >= runs:
            return
        if index % step == first:
            yield seed


def _one(job: dict[str, Any], tell: Tell) -> None:
    """Run one seed, or one plan, and tell all of it."""
    plan = from_data(job["plan"]) if job.get("plan") else None
    one = run(job["seed"], harsh=job["harsh"], plan=plan, trace=job["trace"])
    tally = Tally()
    tally.add(one)
    tell(
        tally=tally.to_data(), digest=one.digest, events=one.events, virtual_s=one.virtual_s,
        violations=[[v.guarantee, v] for v in one.violations], log=list(one.log),
    )  # fmt: skip


def _examine(job: dict[str, Any], tell: Tell) -> None:
    """Make a failing run small."""
    plan = from_data(job["plan"]) if job.get("plan") else None
    failure = examine(
        job["seed"], harsh=job["harsh"], guarantee=job["guarantee"], mutant=job.get("mutant") or "",
        plan=plan,
    )  # fmt: skip
    tell(failure=failure and failure.to_data())


def _hunt(job: dict[str, Any], tell: Tell) -> None:
    """Run seeds until a mutant is caught."""
    tell(caught=hunt(find(job["mutant"]), job["base"])._asdict())


JOBS: dict[str, Callable[[dict[str, Any], Tell], None]] = {
    "search": _search, "one": _one, "examine": _examine, "hunt": _hunt,
}  # fmt: skip

if __name__ == "__main__":
    main()
