"""Every configuration is searched to its end: nothing is broken, and the states are as stored."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.oracles.digests import read
from trio_envserve.core.work import WorkInput, WorkState
from trio_envserve.lab.exploration.configurations import ALL, KEY_TABLE, configuration
from trio_envserve.lab.exploration.search import explore
from trio_envserve.lab.exploration.world import PAIRS
from trio_envserve.lab.simulation.coverage import POSSIBLE, Pair

SIZES = read()["explored"]
SLOW_S = 2
"""Longer searches are slow tests (`nox -s laboratory` has most of them, too)."""


def marked(name: str) -> object:
    slow = SIZES[name]["seconds"] >= SLOW_S
    return pytest.param(name, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize("name", [marked(name) for name in SIZES])
def test_configuration_is_exhausted_and_holds(name: str):
    figures = explore(configuration(name))
    assert figures.violations == ()
    assert figures.exhausted
    assert figures.looked == figures.states
    stored = SIZES[name]
    sizes = figures.states, figures.transitions, figures.depth
    assert sizes == (stored["states"], stored["transitions"], stored["depth"])


LARGEST = {"nightly", "keys-nightly", "keys-disk-nightly"}


def test_all_but_the_largest_have_been_searched_to_their_end():
    assert {each.name for each in ALL} - SIZES.keys() == LARGEST


NOT_HERE = {pair for pair in POSSIBLE if pair[0] is WorkState.ARCHIVED} | {
    (WorkState.COMPLETED, WorkInput.ANSWER)
}
"""The pairs of servers that read outcomes from their journals, or end many works at once; none
does here."""


@pytest.mark.slow
def test_every_pair_of_state_and_input_is_reached_with_keys_or_has_a_reason():
    reached = Counter[Pair]()
    for each in KEY_TABLE:
        if each.name not in LARGEST:
            explore(each)
            reached.update(PAIRS)
    assert set(+reached) == set(POSSIBLE) - NOT_HERE
