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
from trio_envserve.lab.mutants import find

SIZES = read()["explored"]


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


def test_configurations_that_show_mutants_are_those_that_there_are():
    assert set(SHOWS) <= {each.name for each in ALL}


def test_configuration_that_shows_a_mutant_is_found_by_its_name():
    assert [each.name for each in showing("reruns-without-consent")] == ["crash"]
    assert showing("no-such-mutant") == []
    with pytest.raises(KeyError, match="did you mean small"):
        configuration("smal")
