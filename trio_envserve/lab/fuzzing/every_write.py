"""A crash at every write of a journal: ``python -m trio_envserve.lab.fuzzing.every_write 200``.

A seed with keys is run without the calls that name none, and its groups of records are
counted; then it is run once for each of them, with a server that is killed as it writes it.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator

from ..simulation.journals import of_keys_only
from ..simulation.keyed_asks import have_keys
from ..simulation.simulator import Run, plan_of, run
from .failure import is_harsh


def seeds(count: int) -> Iterator[int]:
    """The first seeds that have keys."""
    return itertools.islice(filter(have_keys, itertools.count()), count)


def crashes(seed: int, *, most: int | None = None) -> Iterator[Run]:
    """The run without a crash that this asks for, and one for each write; or for no more than
    ``most`` of these, evenly spread."""
    harsh = is_harsh(seed)
    plan = of_keys_only(plan_of(seed, harsh=harsh))
    whole = run(seed, harsh=harsh, plan=plan)
    yield whole
    step = 1 if most is None else max(1, whole.writes // most)
    for write in range(1 + seed % step, whole.writes + 1, step):
        crash = dataclasses.replace(plan, crash_at_write=write)
        yield run(seed, harsh=harsh, plan=crash)


def main(count: int) -> int:
    """Say what was found in so many seeds; the exit code."""
    runs = broken = 0
    for seed in seeds(count):
        for each in crashes(seed):
            runs += 1
            if each.violations:
                broken += 1
                at = each.plan.crash_at_write
                print(f"seed {seed}, write {at}: {each.violations[0]}", flush=True)
    print(f"{count} seeds, {runs} runs, {broken} with a violation")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
