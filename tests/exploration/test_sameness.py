"""States that count as the same are the same: whatever can happen, and what comes of it.

The forms of the cores leave out what is thought not to matter.  Here each actor is kept with
the whole past of its path, so what was left out is there, and different wherever it can be; if
it did matter, two states that count as the same would differ in what can happen next.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from trio_envserve.lab.exploration.configurations import (
    Configuration,
    configuration,
)
from trio_envserve.lab.exploration.systems import system_of
from trio_envserve.retrylab.explore import Local, Space, SystemState

MIXED = Configuration(
    name="mixed", clients=2, requests=2, workers=2, capacity=1, consent=True, pings=2, beats=2,
    losses=1, strays=1, cuts=1, crashes=1, kills=1, restarts=1, cancels=1, limits=1, limited=True,
    leases=1, despairs=1, closes=1, forgeries=1, window=2,
)  # fmt: skip
"""Everything at once: far too much to exhaust, and just right to walk through."""


class Whole(Space):
    """States whose actors have their whole past."""

    def local(self, *args: Any) -> Local:
        """Another local state each time."""
        self._locals.clear()
        return super().local(*args)


def space_of(asked: Configuration, kind: type[Space] = Space) -> Space:
    system = system_of(asked)
    return kind(system, system.bounds)


def first(space: Space) -> SystemState:
    blank, _ = space.first()
    state, violations = space.begun(blank, 0)
    assert not violations
    return state


def moves(space: Space, state: SystemState) -> list[Any]:
    certain = space.certain(state)
    return [*certain, *space.repairs(state, certain), *space.trouble(state)]


def after(space: Space, state: SystemState, move: Any) -> SystemState:
    state, step = space.move(state, move)
    assert not step.violations, (move, step.violations)
    return state


def key_of(space: Space, state: SystemState) -> tuple[Any, ...]:
    """What a search knows a state by."""
    return space.key(state), state.faults, state.spent


def successors(space: Space, state: SystemState) -> set[tuple[Any, ...]]:
    return {key_of(space, after(space, state, move)) for move in moves(space, state)}


def differing(space: Space, *, looked_at: int, share: float, rng: Random) -> int:
    """Compare so many states with the first that counted as the same; how many were."""
    start = first(space)
    known = {key_of(space, start): start}
    layer, compared = [start], 0
    while layer and len(known) < looked_at:
        following = []
        for state in layer:
            for move in moves(space, state):
                found = after(space, state, move)
                key = key_of(space, found)
                same = known.get(key)
                if same is None:
                    known[key] = found
                    following.append(found)
                elif rng.random() < share:
                    compared += 1
                    assert successors(space, found) == successors(space, same), move
        layer = following
    return compared


ALONE = (
    "lost", "cut", "beat", "rerun", "limit", "lease", "restart", "stray", "full", "recycle",
    "twins", "keys-fall", "keys-lease", "keys-goodbye",
)  # fmt: skip
HOSTED = ("hosts-sleep", "hosts-guard", "hosts-over-twice")


@pytest.mark.parametrize(
    ("name", "looked_at", "least"),
    [*((name, 200, 10) for name in ALONE), *((name, 60, 5) for name in HOSTED)],
)
def test_states_that_count_as_the_same_have_the_same_future(name: str, looked_at: int, least: int):
    space = space_of(configuration(name), Whole)
    assert differing(space, looked_at=looked_at, share=0.2, rng=Random(name)) > least


@pytest.mark.parametrize(
    ("asked", "seed"),
    [
        *((MIXED, seed) for seed in range(4)),
        *((configuration(name), name) for name in ("hosts-late", "hosts-written-off", "hosts")),
    ],
    ids=str,
)
def test_walk_of_merged_actors_is_a_walk_of_whole_ones(asked: Configuration, seed: int | str):
    """Along the same moves, actors that were replaced by their likes on the way, and actors
    with their own past, are the same, and can do the same."""
    rng = Random(seed)
    merged, whole = space_of(asked), space_of(asked, Whole)
    one, other = first(merged), first(whole)
    for _ in range(60):
        assert texts(merged, one) == texts(whole, other)
        possible = moves(merged, one)
        assert set(possible) == set(moves(whole, other))
        if not possible:
            break
        certain = merged.certain(one)
        move = rng.choice(certain if certain and rng.random() < 0.7 else possible)
        one, other = after(merged, one, move), after(whole, other, move)


def texts(space: Space, state: SystemState) -> list[str]:
    """Its local states as text."""
    return [repr(part.local.form) for part in state.parts.values()]


@pytest.mark.parametrize(
    ("name", "ask"), [("twins", ("ask", "{}")), ("keys-cancel", ("choose", "{}", "ask", b"x"))]
)
def test_exchanged_clients_and_workers_count_once(name: str, ask: tuple[Any, ...]):
    """Whoever of the twins does something first, it is the same state."""
    space = space_of(configuration(name))
    start = first(space)

    def asked_by(state: SystemState, client: str) -> SystemState:
        return after(space, state, tuple(client if word == "{}" else word for word in ask))

    one, other = asked_by(start, "c0"), asked_by(start, "c1")
    assert one != other
    assert key_of(space, one) == key_of(space, other) != key_of(space, start)
    both = {key_of(space, asked_by(one, "c1")), key_of(space, asked_by(other, "c0"))}
    assert len(both) <= 2
