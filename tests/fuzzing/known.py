"""A seed that shows a mutant: the one of `seeds.json`, or if that does not, another."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from trio_envserve.lab.fuzzing.failure import is_harsh
from trio_envserve.lab.fuzzing.hunt import hunt
from trio_envserve.lab.mutants import find
from trio_envserve.lab.simulation.simulator import run

KNOWN: dict[str, int] = json.loads(Path(__file__).with_name("seeds.json").read_text())


@functools.cache
def broken_by(name: str) -> tuple[int, bool, str]:
    """Seed, whether harsh, and the guarantee that breaks."""
    mutant, seed = find(name), KNOWN.get(name, 0)
    with mutant.applied():
        one = run(seed, harsh=is_harsh(seed))
    for violation in one.violations:
        if mutant.caught_by(violation.guarantee):
            return seed, one.harsh, violation.guarantee
    catch = hunt(mutant)
    assert catch.seed is not None, name
    return catch.seed, catch.harsh, catch.guarantee
