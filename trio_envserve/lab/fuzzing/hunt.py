"""The life of a mutant: seeds are run until one shows it.

The seed that shows it is then run on what ships, which must be clean: so it is
the mutant that was found, and not a schedule that nothing could survive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from ..mutants import Mutant
from ..simulation.simulator import Run, plan_of, run
from .failure import is_harsh

MOST_RUNS = 1200
"""A mutant that has survived so many runs counts as not caught."""

MOST_SEEDS = 100_000
"""Most seeds whose plans are searched for the faults that a mutant needs."""


class Catch(NamedTuple):
    """The catch of a mutant."""

    name: str
    caught: bool
    runs: int
    seconds: float
    seed: int | None
    harsh: bool
    guarantee: str
    violation: str
    digest: str
    """The hash of the trace that shows it."""
    clean_digest: str
    """The hash of the trace of the same seed on what ships, which differs."""
    clean: bool
    """Whether the code that ships shows nothing with this seed."""


def hunt(mutant: Mutant, first_seed: int = 0, *, most_runs: int = MOST_RUNS) -> Catch:
    """Run seeds until the mutant is caught by a guarantee that it names."""
    began_s = time.perf_counter()
    runs = 0
    caught: Run | None = None
    with mutant.applied():
        for seed in seeds(mutant, first_seed):
            one = run(seed, harsh=is_harsh(seed))
            runs += 1
            if any(mutant.caught_by(violation.guarantee) for violation in one.violations):
                caught = one
            if caught is not None or runs >= most_runs:
                break
    took_s = time.perf_counter() - began_s
    if caught is None:
        return Catch(mutant.name, False, runs, took_s, None, False, "", "", "", "", True)
    violation = next(v for v in caught.violations if mutant.caught_by(v.guarantee))
    clean = run(caught.seed, harsh=caught.harsh)
    return Catch(
        mutant.name, True, runs, took_s, caught.seed, caught.harsh, violation.guarantee,
        violation.partition("\n")[0], caught.digest, clean.digest, not clean.violations,
    )  # fmt: skip


def seeds(mutant: Mutant, first_seed: int, *, harsh: bool = False) -> Iterator[int]:
    """The seeds whose plans have what the mutant needs to show."""
    for seed in range(first_seed, first_seed + MOST_SEEDS):
        if mutant.needs <= plan_of(seed, harsh=is_harsh(seed, always=harsh)).faults:
            yield seed
