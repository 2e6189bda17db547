"""The stored digests and sizes: what they are compared with stays while code only moves."""

from __future__ import annotations

import pytest

from tests.oracles.digests import (
    BLOCK,
    DIGITS,
    SEEDS,
    WORLDS,
    Ran,
    block_difference,
    block_of,
    compared,
    first_that_differs,
    of_mutant,
    read,
    sizes_difference,
)
from trio_envserve.lab.mutants import MUTANTS


@pytest.mark.parametrize("world", WORLDS)
def test_the_first_seeds_run_as_stored(world: str):
    ran = block_of([WORLDS[world](seed) for seed in range(10)])
    assert first_that_differs(0, read()[world]["0"], ran) == ""


def test_judges_find_in_the_first_mutants_what_is_stored():
    stored = read()["mutants"]
    assert [*stored] == [each.name for each in MUTANTS]
    few = [*stored][:10]
    assert {name: of_mutant(name) for name in few} == {name: stored[name] for name in few}


def test_digests_are_stored_of_every_seed():
    stored = read()
    for world, count in SEEDS.items():
        assert [*stored[world]] == [str(first) for first in range(0, count, BLOCK)]
        assert {len(block["events"]) for block in stored[world].values()} == {BLOCK}


def test_a_difference_names_the_first_seed():
    ran = [Ran(f"{seed:032x}"[::-1], seed) for seed in range(BLOCK)]
    stored = block_of(ran)
    assert block_difference(300, stored, block_of(ran)) == ""
    other = [*ran[:7], ran[7]._replace(digest="f" * 32), *ran[8:]]
    assert block_difference(300, stored, block_of(other)).startswith("seed 307 is the first")
    hidden = [*ran[:7], ran[7]._replace(digest=ran[7].digest[:DIGITS] + "f" * 28), *ran[8:]]
    assert block_difference(300, stored, block_of(hidden)) == "a seed from 300 to 399 differs"


def test_a_difference_of_sizes_leaves_out_the_time_it_took():
    stored = {"states": 3, "depth": 2, "seconds": 1}
    assert sizes_difference(stored, {**stored, "seconds": 9}) == ""
    assert sizes_difference(stored, {**stored, "states": 4}) == "states 3, now 4"


@pytest.mark.slow
def test_every_stored_seed_is_as_stored():
    differ = [each for each in compared([*SEEDS, "mutants"], 2, read()) if each.text]
    assert differ == []
