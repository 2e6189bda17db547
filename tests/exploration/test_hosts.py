"""Two hosts and their router: what is broken on purpose is told, what counts as the same is so."""

from __future__ import annotations

from random import Random

import pytest

from trio_envserve.lab.exploration.configurations import HOST_TABLE
from trio_envserve.lab.exploration.search import SmallSystem, explore
from trio_envserve.lab.exploration.world import CLOCKS, FAST, SLOW
from trio_envserve.lab.mutants import find
from trio_envserve.retrylab.failure import explored_failure

from .test_sameness import Whole, after, differing, first, moves, space_of, texts

OF = {each.name: each for each in HOST_TABLE}


def test_clocks_drift_in_every_way_and_first_in_the_worst():
    assert CLOCKS[0] == (SLOW, SLOW, FAST)
    assert len({*CLOCKS}) == len(CLOCKS) == 2**3


def test_counterexample_of_a_lease_says_who_did_what():
    with find("no-margin").applied():
        target = SmallSystem(config="hosts-beat")
        failure = explored_failure(target, explore(target.configuration))
    assert failure is not None
    text = failure.text()
    assert "time: tick" in text
    assert "Items 1(SPAWN w0-1)" in text
    assert text.startswith("G1: ")
    assert "w0-1 is declared lost and lives" in text


@pytest.mark.parametrize("name", ["hosts-sleep", "hosts-guard", "hosts-over-twice"])
def test_states_of_hosts_that_count_as_the_same_have_the_same_future(name: str):
    space = space_of(OF[name], Whole)
    assert differing(space, looked_at=60, share=0.2, rng=Random(name)) > 5


@pytest.mark.parametrize("name", ["hosts-late", "hosts-written-off", "hosts"])
def test_walk_of_merged_hosts_is_a_walk_of_whole_ones(name: str):
    rng = Random(name)
    merged, whole = space_of(OF[name]), space_of(OF[name], Whole)
    one, other = first(merged), first(whole)
    for _ in range(40):
        assert texts(merged, one) == texts(whole, other)
        possible = moves(merged, one)
        assert possible == moves(whole, other)
        if not possible:
            break
        move = rng.choice(possible)
        one, other = after(merged, one, move), after(whole, other, move)
