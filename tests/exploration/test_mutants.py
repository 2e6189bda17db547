"""What is broken on purpose is found, where the table says that it shows."""

from __future__ import annotations

import pytest

from tests.oracles.digests import read
from trio_envserve.lab.exploration.configurations import (
    ALL,
    SHOWS,
    configuration,
    showing,
)
from trio_envserve.lab.exploration.search import explore
from trio_envserve.lab.mutants import MUTANTS, find

from .beyond import BEYOND

SIZES = read()["explored"]
NAMES = {mutant.name for mutant in MUTANTS}


def is_slow(name: str) -> bool:
    return name in SIZES and SIZES[name]["seconds"] >= 10


PAIRS = [
    pytest.param(name, mutant, marks=[pytest.mark.slow] * is_slow(name))
    for name in SHOWS
    for mutant in SHOWS[name]
]


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "mutant"), PAIRS)
def test_a_mutant_is_found_by_its_guarantee(name: str, mutant: str):
    broken = find(mutant)
    with broken.applied():
        search = explore(configuration(name))
    assert search.violations, search.text()
    assert any(broken.caught_by(each.guarantee) for each in search.violations), search.violations


def test_every_mutant_is_shown_or_has_a_reason():
    assert set(SHOWS) <= {each.name for each in ALL}
    shown = {mutant for each in SHOWS.values() for mutant in each}
    assert not shown & set(BEYOND)
    assert shown | set(BEYOND) == NAMES


def test_configuration_that_shows_a_mutant_is_found_by_its_name():
    assert [each.name for each in showing("reruns-without-consent")] == ["crash"]
    assert showing("no-such-mutant") == []
    with pytest.raises(KeyError, match="did you mean small"):
        configuration("smal")
