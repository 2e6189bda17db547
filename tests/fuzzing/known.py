"""Seeds that show mutants: that of the ledger, or if it does not, another; and what is left of such
a run when it is made small."""

from __future__ import annotations

import functools

from tests.oracles import ledger
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.failure import Failure, examine
from trio_envserve.retrylab.target import hunt

KNOWN = ledger.seeds_that_show()


@functools.cache
def broken_by(name: str) -> tuple[int, str]:
    """Seed, and the guarantee that breaks."""
    target, seed = Protocol(mutant=name), KNOWN.get(name, 0)
    with target.applied():
        one = target.run(seed)
    for violation in filter(target.counts, one.violations):
        return seed, violation.guarantee
    catch = hunt(target)
    assert catch.seed is not None, name
    return catch.seed, catch.guarantee


@functools.cache
def made_small(name: str) -> Failure:
    """The failure of that seed."""
    (seed, guarantee), target = broken_by(name), Protocol(mutant=name)
    with target.applied():
        failure = examine(target, seed, guarantee=guarantee)
    assert failure is not None
    return failure
