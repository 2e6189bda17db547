"""Two hosts and their router: nothing is broken, and what is broken on purpose is told."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from trio_envserve.core.earlier_epochs import EpochWait
from trio_envserve.lab.exploration.hosted_configurations import HOST_TABLE
from trio_envserve.lab.exploration.hosted_rules import HOST_RULES
from trio_envserve.lab.exploration.hosted_stages import CLOCKS, FAST, SLOW
from trio_envserve.lab.exploration.hosted_state import HostsState
from trio_envserve.lab.exploration.hosted_world import HostsWorld
from trio_envserve.lab.exploration.mutants import find
from trio_envserve.lab.exploration.search import explore
from trio_envserve.lab.exploration.story import tell

PAGE = Path(__file__).parent.parent.parent.joinpath("docs/exploring.md").read_text(encoding="utf-8")
OF = {each.name: each for each in HOST_TABLE}
AT_NIGHT = {"hosts"}
LARGE = {"hosts-start", "hosts-next", "hosts-kept", "hosts-late", "hosts-written-off"}


def assert_it_holds(name: str) -> None:
    figures = explore(OF[name]).figures
    assert figures.found is None
    assert figures.exhausted
    assert figures.quiet > 0
    assert figures.transitions > figures.states >= 10
    assert row_of(name) == (figures.states, figures.transitions, figures.depth)


def row_of(name: str) -> tuple[int, ...]:
    """The figures that the page has."""
    row = re.search(rf"^\| `{name}` \| .+ \| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert row is not None
    return tuple(int(each.replace(",", "")) for each in row.groups())


@pytest.mark.parametrize("name", sorted(OF.keys() - LARGE - AT_NIGHT))
def test_a_small_configuration_is_exhausted_and_holds(name: str):
    assert_it_holds(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_larger_one_is_exhausted_and_holds(name: str):
    assert_it_holds(name)


def test_the_page_has_the_large_one():
    assert row_of("hosts")[0] >= 100_000


def test_the_clocks_drift_in_every_way_and_first_in_the_worst():
    assert CLOCKS[0] == (SLOW, SLOW, FAST)
    assert len({*CLOCKS}) == len(CLOCKS) == 2**3


def test_a_rule_is_for_an_attribute_that_there_is():
    world = HostsWorld(OF["hosts-beat"])
    state = first(world)
    router = world.routers.machine(state.router).router
    machine = world.machines.machine(state.hosts[0].stage).machine
    (worker,) = machine.workers.values()
    parts = {type(each): each for each in (router, machine, machine.host, worker)}
    assert HOST_RULES.keys() == parts.keys()
    for kind, rules in HOST_RULES.items():
        assert all(hasattr(parts[kind], name) for name in rules)
        assert all(rule.why for rule in rules.values())


def test_the_order_in_which_a_set_was_filled_makes_no_other_state():
    """It did, so that a configuration had more states with one hash seed than with another."""
    world = HostsWorld(OF["hosts-beat"])
    tenures = [b"h%d.%d" % (h, n) for h in range(8) for n in range(8)]
    stages = [world.routers.machine(first(world).router) for _ in range(2)]
    for stage, order in zip(stages, (tenures, tenures[::-1]), strict=True):
        stage.disk = (EpochWait(b"e.1", 1.0, frozenset(order)),)
    one, other = map(world.routers.add, stages)
    assert one == other


def test_a_counterexample_says_who_did_what():
    with find("no-margin").applied():
        search = explore(OF["hosts-beat"])
        found = search.figures.found
        assert found is not None
        lines = tell(search.world, found)
    assert [action[0] for action in found.path[found.opening :]] == ["tick", "rule"] or found.path
    assert lines[0].strip() == "-- both hosts are welcome, and known to hear the router --"
    text = "\n".join(lines)
    assert "the time passes" in text
    assert "the router has its turn" in text
    assert lines[-1] == "VIOLATED G1: 1 is declared lost, and lives on h0"


# -- which states are the same ----------------------------------------------------------


def first(world: HostsWorld) -> HostsState:
    state = world.blank()
    for action in world.opening():
        state, violations = world.move(state, action)
        assert not violations
    return state


def actions(world: HostsWorld, state: HostsState):
    return [*world.certain(state), *world.trouble(state)]


@pytest.mark.parametrize("name", ["hosts-sleep", "hosts-guard", "hosts-over-twice", "hosts"])
def test_a_walk_of_merged_machines_is_a_walk_of_whole_ones(name: str):
    """Along the same actions, machines that were replaced by their likes on the way, and
    machines with their own past, can do the same, and come to as many states."""
    rng = Random(name)
    for _ in range(5):
        merged, whole = HostsWorld(OF[name]), HostsWorld(OF[name], merge=False)
        one, other = first(merged), first(whole)
        for _ in range(40):
            possible = actions(merged, one)
            assert possible == actions(whole, other)
            if not possible:
                break
            action = rng.choice(possible)
            one, violated = merged.move(one, action)
            other, violated_too = whole.move(other, action)
            assert violated == violated_too == []
            assert [part[1:] for part in one.hosts] == [part[1:] for part in other.hosts]
            assert one[3:] == other[3:]
