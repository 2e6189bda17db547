"""Two callers and one key: everything that can be is reached, and the judge expects no more."""

from __future__ import annotations

from collections import Counter

import pytest

from trio_envserve.core.work import WorkInput, WorkState
from trio_envserve.lab.exploration.configurations import KEY_TABLE
from trio_envserve.lab.exploration.search import SmallSystem, explore
from trio_envserve.lab.exploration.systems import system_of
from trio_envserve.lab.exploration.world import PAIRS
from trio_envserve.lab.mutants import find
from trio_envserve.lab.simulation.coverage import POSSIBLE, Pair
from trio_envserve.retrylab.explore import Space
from trio_envserve.retrylab.failure import explored_failure

AT_NIGHT = {"keys-nightly", "keys-disk-nightly"}
NOT_HERE = {pair for pair in POSSIBLE if pair[0] is WorkState.ARCHIVED} | {
    (WorkState.COMPLETED, WorkInput.ANSWER)
}
"""The pairs of servers that read outcomes from their journals, or end many works at once; none
does here."""
OF = {each.name: each for each in KEY_TABLE}


@pytest.mark.slow
def test_every_pair_of_state_and_input_is_reached_or_has_a_reason():
    reached = Counter[Pair]()
    for name in OF.keys() - AT_NIGHT:
        explore(OF[name])
        reached.update(PAIRS)
    assert set(+reached) == set(POSSIBLE) - NOT_HERE


def test_callers_that_are_exchanged_are_the_same():
    system = system_of(OF["keys-cancel"])
    space = Space(system, system.bounds)
    first, violations = space.begun(space.first()[0], 0)
    assert not violations
    ways = [space.move(first, ("choose", name, "ask", b"x"))[0] for name in ("c0", "c1")]
    assert ways[0] != ways[1]
    assert space.key(ways[0]) == space.key(ways[1]) != space.key(first)


def test_a_counterexample_says_who_did_what():
    with find("the-first-who-leaves-cancels").applied():
        target = SmallSystem(config="keys-cancel")
        failure = explored_failure(target, explore(target.configuration))
    assert failure is not None
    assert failure.guarantee == "G7"
    text = failure.text()
    assert "1. c0: ask x" in text
    assert "does turn" in text
