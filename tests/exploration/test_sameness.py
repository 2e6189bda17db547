"""States that count as the same are the same: whatever can happen, and what comes of it.

The forms of the machines leave out what is thought not to matter.  Here each machine
is kept with the whole past of its path, so what was left out is there, and different
wherever it can be; if it did matter, two states that count as the same would differ
in what can happen next.
"""

from __future__ import annotations

from random import Random

import pytest

from trio_envserve.lab.exploration.configurations import Configuration, configuration
from trio_envserve.lab.exploration.state import SystemState
from trio_envserve.lab.exploration.world import World

MIXED = Configuration(
    name="mixed", clients=2, requests=2, workers=2, capacity=1, consent=True, pings=2, beats=2,
    losses=1, strays=1, cuts=1, late=True, worker_cuts=1, crashes=1, kills=1, restarts=1,
    cancels=1, limits=1, limited=True, leases=1, despairs=1, closes=1, forgeries=1, window=2,
)  # fmt: skip
"""Everything at once: far too much to exhaust, and just right to walk through."""


def first(world: World) -> SystemState:
    state = world.blank()
    for action in world.opening():
        state, violations = world.move(state, action)
        assert not violations
    return state


def successors(world: World, state: SystemState) -> set[bytes]:
    return {world.canonical(world.move(state, action)[0]) for action in actions(world, state)}


def actions(world: World, state: SystemState):
    certain = world.certain(state)
    if world.is_quiet(state, certain) and not world.at_rest(state):
        certain += world.timers(state)
    return [*certain, *world.trouble(state)]


def differing(world: World, *, looked_at: int, share: float, rng: Random) -> int:
    """Compare so many states with the first that counted as the same; how many were."""
    start = first(world)
    known = {world.canonical(start): start}
    layer, compared = [start], 0
    while layer and len(known) < looked_at:
        following = []
        for state in layer:
            for action in actions(world, state):
                after, violations = world.move(state, action)
                assert not violations, (action, violations)
                key = world.canonical(after)
                same = known.get(key)
                if same is None:
                    known[key] = after
                    following.append(after)
                elif rng.random() < share:
                    compared += 1
                    assert successors(world, after) == successors(world, same), action
        layer = following
    return compared


@pytest.mark.parametrize(
    "name",
    [
        "lost",
        "cut",
        "beat",
        "rerun",
        "limit",
        "lease",
        "restart",
        "stray",
        "full",
        "recycle",
        "twins",
    ],
)
def test_states_that_count_as_the_same_have_the_same_future(name: str):
    world = World(configuration(name), merge=False)
    assert differing(world, looked_at=200, share=0.2, rng=Random(name)) > 10


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_of_merged_machines_is_a_walk_of_whole_ones(seed: int):
    """Along the same actions, machines that were replaced by their likes on the way, and
    machines with their own past, are the same, and can do the same."""
    rng = Random(seed)
    merged, whole = World(MIXED), World(MIXED, merge=False)
    one, other = first(merged), first(whole)
    for step in range(60):
        assert merged.canonical(one) == whole.canonical(other)
        possible = actions(merged, one)
        assert set(possible) == set(actions(whole, other))
        if step % 10 == 0:
            assert successors(merged, one) == successors(whole, other)
        if not possible:
            break
        certain = merged.certain(one)
        action = rng.choice(certain if certain and rng.random() < 0.7 else possible)
        one, violated = merged.move(one, action)
        other, violated_too = whole.move(other, action)
        assert violated == violated_too == []


def test_exchanged_clients_and_workers_count_once():
    """Whoever of the twins does something first, it is the same state."""
    world = World(configuration("twins"))
    start = first(world)
    one, other = (world.move(start, ("ask", client))[0] for client in (0, 1))
    assert one != other
    assert world.canonical(one) == world.canonical(other)
    assert world.canonical(one) != world.canonical(start)
    both = {
        world.canonical(world.move(state, ("ask", c))[0]) for state, c in ((one, 1), (other, 0))
    }
    assert len(both) <= 2
