"""A crash at every write of a journal: ``python -m trio_envserve.lab.simulation 200``.

A seed with keys is run without the calls that name none, and its groups of records are
counted; then it is run once for each of them, with a server that is killed as it writes it.
"""

from __future__ import annotations

import sys

from .target import crashes, keyed_seeds


def main(count: int) -> int:
    """Say what was found in so many seeds; the exit code."""
    runs = broken = 0
    for seed in keyed_seeds(count):
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
