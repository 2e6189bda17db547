"""A process that does jobs: they come in on standard input, results go out.

Theory of operation
-------------------
One job is one line of JSON; so is each result, and the last one of a job has
``done``.  A process does one job at a time, so what a job changes in it (a mutant, an
import) is seen by nobody else.  It ends when its input does, or when nobody reads
what it says: so it outlives its parent (:mod:`.campaign`) by no more than
:data:`TELL_S` and a run.

What the code of a job prints goes to standard error, among the process's last words.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from .tally import BaseTally, R
from .violation import Violation

TELL_S = 0.4
"""Between results of a job that has many."""

Job: TypeAlias = dict[str, Any]


class Tell(Protocol):
    """The report of a job's result."""

    def __call__(self, **result: Any) -> None:
        """One result."""


class JobError(Exception):
    """A job cannot be done, for a reason that whoever gave it should read."""


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


def search(
    job: Job, tell: Tell, *, seeds: Iterable[int], run: Callable[[int], R],
    tally: Callable[[], BaseTally[R]], counts: Callable[[Violation], bool] = lambda violation: True,
) -> None:  # fmt: skip
    """Run seeds; tell what they came to, and which of them fail."""
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
    """All of one run; ``tally`` is empty."""
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
