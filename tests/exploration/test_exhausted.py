"""Every configuration is searched to its end: nothing is broken, and the states are as stored."""

from __future__ import annotations

import pytest

from tests.oracles.digests import read
from trio_envserve.lab.exploration.configurations import ALL, configuration
from trio_envserve.lab.exploration.search import explore

SIZES = read()["explored"]
SLOW_S, NIGHT_S = 2, 40
"""Longer searches are slow tests (`nox -s laboratory` has most of them, too); still longer ones are
those of the night."""


def marked(name: str) -> object:
    slow = SIZES[name]["seconds"] >= SLOW_S
    return pytest.param(name, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize(
    "name", [marked(name) for name, row in SIZES.items() if row["seconds"] < NIGHT_S]
)
def test_configuration_is_exhausted_and_holds(name: str):
    figures = explore(configuration(name))
    assert figures.violations == ()
    assert figures.exhausted
    assert figures.looked == figures.states
    stored = SIZES[name]
    sizes = figures.states, figures.transitions, figures.depth
    assert sizes == (stored["states"], stored["transitions"], stored["depth"])


def test_all_but_the_largest_have_been_searched_to_their_end():
    left = {each.name for each in ALL} - SIZES.keys()
    assert left == {"nightly", "keys-nightly", "keys-disk-nightly"}
