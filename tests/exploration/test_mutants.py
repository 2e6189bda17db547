"""What is broken on purpose is found, where the table says that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_envserve.lab.exploration.configurations import (
    ALL,
    BEYOND,
    SHOWS,
    any_configuration,
    configuration,
    showing,
)
from trio_envserve.lab.exploration.hosted_configurations import HOST_SHOWS
from trio_envserve.lab.exploration.mutants import ALL_MUTANTS, OTHERS, find
from trio_envserve.lab.exploration.search import explore
from trio_envserve.lab.hosts.mutants import MUTANTS as MUTANTS_OF_LEASES
from trio_envserve.lab.mutants import MUTANTS, NOT_BY_CHANCE

NAMES = {mutant.name for mutant in ALL_MUTANTS}
SLOW = {"allowed", "hosts-next", "hosts-kept", "hosts-late", "hosts-written-off"}
PAIRS = [
    pytest.param(name, mutant, marks=[pytest.mark.slow] * (name in SLOW))
    for name in SHOWS
    for mutant in SHOWS[name]
]
"""Those of ``ci`` too: it is not exhausted for that, only searched until they show."""


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "mutant"), PAIRS)
def test_a_mutant_is_found_by_its_guarantee(name: str, mutant: str):
    broken = find(mutant)
    with broken.applied():
        figures = explore(any_configuration(name)).figures
    assert figures.found is not None, f"{figures.states} states, exhausted {figures.exhausted}"
    broke = {text.partition(":")[0] for text in figures.found.violations}
    assert any(map(broken.caught_by, broke)), figures.found.violations


def test_the_tables_name_what_there_is():
    assert set(SHOWS) <= {each.name for each in ALL}
    shown = {mutant for each in SHOWS.values() for mutant in each}
    assert shown <= NAMES
    assert set(BEYOND) <= NAMES
    assert not shown & set(BEYOND)
    assert shown | set(BEYOND) == NAMES
    page = Path(__file__).parent.parent.parent.joinpath("docs/laboratory.md").read_text("utf-8")
    of_leases = {mutant for each in HOST_SHOWS.values() for mutant in each}
    others = len(shown - of_leases)
    assert len(NAMES) == len(ALL_MUTANTS)
    assert f"{len(MUTANTS) - len(NOT_BY_CHANCE)} mutants caught" in page
    assert f"{others} of the {len(OTHERS)} without hosts shown by some configuration" in page
    assert f"{len(of_leases)} of the {len(MUTANTS_OF_LEASES)} of leases" in page
    assert len(shown) >= 40
    assert len(SHOWS["ci"]) >= 15


def test_the_smallest_configuration_comes_first():
    assert [each.name for each in showing("reruns-without-consent")] == ["crash", "small"]
    assert showing("no-such-mutant") == []
    with pytest.raises(KeyError, match="did you mean small"):
        configuration("smal")
