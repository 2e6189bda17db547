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
from trio_envserve.lab.exploration.search import explore
from trio_envserve.lab.mutants import MUTANTS, find

NAMES = {mutant.name for mutant in MUTANTS}
PAIRS = [(name, mutant) for name in SHOWS for mutant in SHOWS[name]]
"""Those of ``ci`` too: it is not exhausted for that, only searched until they show."""


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
    assert f"all {len(NAMES)} mutants caught" in page
    assert f"{len(shown)} of {len(NAMES)} shown by some configuration" in page
    assert len(shown) >= 40
    assert len(SHOWS["ci"]) >= 15


def test_the_smallest_configuration_comes_first():
    assert [each.name for each in showing("reruns-without-consent")] == ["crash", "small"]
    assert showing("no-such-mutant") == []
    with pytest.raises(KeyError, match="did you mean small"):
        configuration("smal")
