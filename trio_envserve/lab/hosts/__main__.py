"""Leases in small worlds that do them harm, one for each seed.

``python -m trio_envserve.lab.hosts 1000`` runs the first thousand seeds, on all processors, and
exits with 0 only if the judge finds nothing.  With ``--mutants`` one rule after the other is
broken: the exit code is then whether one of them was not seen in 2,000 seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count

from ..mutants import Mutant
from .mutants import MUTANTS
from .world import Run, run

MUTANT_SEEDS = 2_000
"""A mutant that so many seeds do not show is not caught."""
SEEDS = 1_000


def find(mutant: Mutant, *, most: int = MUTANT_SEEDS, first: int = 0) -> Run | None:
    """The first seed that shows what is broken in a mutant."""
    with mutant.applied():
        for seed in range(first, first + most):
            found = run(seed)
            if found.violations:
                return found
    return None


def find_beyond(bound: str, *, most: int = MUTANT_SEEDS) -> Run | None:
    """The first seed that shows that a bound is needed: ``drift``, or ``guard``."""
    runs = (run(seed, beyond=bound) for seed in range(most))
    return next((each for each in runs if each.violations), None)


def _judged(seed: int) -> tuple[int, str, int]:
    ran = run(seed)
    return seed, str(ran.violations[0]) if ran.violations else "", ran.events


def _seeds(most: int) -> int:
    broken = events = 0
    with ProcessPoolExecutor() as pool:
        for done, (seed, violation, its) in zip(
            count(1), pool.map(_judged, range(most), chunksize=50), strict=False
        ):
            events += its
            if violation:
                broken += 1
                print(f"seed {seed}: {violation}", flush=True)
            if done % 10_000 == 0:
                print(f"{done} seeds, {events} events, {broken} with a violation", flush=True)
    print(f"{most} seeds, {events} events, {broken} with a violation")
    return int(broken > 0)


def _mutants() -> int:
    missed = 0
    for mutant in MUTANTS:
        found = find(mutant)
        missed += found is None
        said = "NOT CAUGHT" if found is None else f"seed {found.seed}: {found.violations[0]}"
        print(f"{mutant.name}: {said}", flush=True)
    return int(missed > 0)


def _count(text: str) -> int:
    if (seeds := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return seeds


def main(arguments: Sequence[str]) -> int:
    """The exit code: whether anything was found that should not be."""
    name = "python -m trio_envserve.lab.hosts"
    parser = argparse.ArgumentParser(name, description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "seeds", type=_count, nargs="?", default=SEEDS,
        help=f"how many seeds, from 0 on; default {SEEDS}",
    )  # fmt: skip
    what.add_argument(
        "--mutants", action="store_true",
        help="break one rule at a time, and say by which seed that is seen",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    return _mutants() if given.mutants else _seeds(given.seeds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
