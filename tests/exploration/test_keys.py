"""Two callers and one key: nothing is broken, and everything that can be is reached."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from trio_envserve.core.key_records import GenerationState
from trio_envserve.lab.exploration.configurations import KEY_TABLE
from trio_envserve.lab.exploration.keyed_judge import KeyJudge
from trio_envserve.lab.exploration.search import SystemSearch, explore
from trio_envserve.lab.mutants import find
from trio_envserve.lab.simulation.coverage import (
    IMPOSSIBLE_OF_KEYS,
    POSSIBLE_OF_KEYS,
    KeyPair,
    name_of,
)
from trio_envserve.retrylab.explore import Space

PAGE = Path(__file__).parent.parent.parent.joinpath("docs/exploring.md").read_text(encoding="utf-8")

AT_NIGHT = {"keys-nightly", "keys-disk-nightly"}
LARGE = AT_NIGHT | {
    "keys", "keys-command", "keys-disk", "keys-held", "keys-lease", "keys-other", "keys-shared",
    "keys-waiting",
}  # fmt: skip
READ = {pair for pair in POSSIBLE_OF_KEYS if pair[0] is GenerationState.READING}
"""The pairs of servers that read outcomes from their journals; none does here."""
OF = {each.name: each for each in KEY_TABLE}


@cache
def explored(name: str) -> SystemSearch:
    return explore(OF[name])


def pairs_of(search: SystemSearch) -> Counter[KeyPair]:
    counts = search.figures.key_pairs
    return +Counter({pair: counts[name_of(pair)] for pair in POSSIBLE_OF_KEYS})


def assert_it_holds(name: str) -> None:
    figures = explored(name).figures
    assert figures.found is None
    assert figures.exhausted
    assert figures.transitions > figures.states > 100
    assert row_of(name) == (figures.states, figures.transitions, figures.depth)


def row_of(name: str) -> tuple[int, ...]:
    """The figures that the page has."""
    row = re.search(rf"^\| `{name}` \| .+ \| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert row is not None
    return tuple(int(each.replace(",", "")) for each in row.groups())


@pytest.mark.parametrize("name", sorted(OF.keys() - LARGE))
def test_a_small_configuration_is_exhausted_and_holds(name: str):
    assert_it_holds(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LARGE - AT_NIGHT))
def test_a_larger_one_is_exhausted_and_holds(name: str):
    assert_it_holds(name)


@pytest.mark.slow
def test_every_pair_of_state_and_input_is_reached_or_has_a_reason():
    reached = Counter[KeyPair]()
    for name in OF.keys() - AT_NIGHT:
        reached.update(pairs_of(explored(name)))
    assert set(reached) == set(POSSIBLE_OF_KEYS) - READ


def test_the_page_counts_the_pairs():
    possible, impossible = len(POSSIBLE_OF_KEYS), len(IMPOSSIBLE_OF_KEYS)
    assert f"Of the {possible + impossible} pairs, {possible - len(READ)} are reached" in PAGE
    assert f"Another {len(READ)} need a server that reads outcomes from its journal" in PAGE
    assert f"The other {impossible} cannot occur" in PAGE


def test_callers_that_are_exchanged_are_the_same():
    system = OF["keys-cancel"].system()
    space = Space(system, system.bounds)
    first, violations = space.begun(space.first()[0], 0)
    assert not violations
    ways = [space.move(first, ("choose", name, "ask", b"x"))[0] for name in ("c0", "c1")]
    assert ways[0] != ways[1]
    assert space.key(ways[0]) == space.key(ways[1]) != space.key(first)


def test_a_counterexample_says_who_did_what():
    with find("the-first-who-leaves-cancels").applied():
        search = explore(OF["keys-cancel"])
        found = search.figures.found
        assert found is not None
        lines = search.tell()
    text = "\n".join(lines)
    assert "1. c0: ask x" in text
    assert "does dispatched 0 0 b'x'" in text
    assert lines[-1] == f"VIOLATED {found.violations[-1]}"
    assert lines[-1].startswith("VIOLATED G7: ")


def test_the_judge_expects_no_more_than_was_promised():
    """What is told in the place of something else names the promise that is broken."""
    judge = KeyJudge(consent=False, allowance=3)
    judge.asked((b"s", 0), b"c0", b"x")
    judge.asked((b"t", 0), b"c1", b"y")
    judge.told((b"s", 0), ("result", b"0@0"))
    judge.settle({}, free=True)
    assert [each for each, _ in judge.violations] == ["G6", "G3", "G9"]
