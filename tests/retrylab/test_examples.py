"""The examples, five protocols with their famous bugs and a store: each bug is found, made small
and drawn, by seeds and by a search of every order; the corrected one is clean, and exhausted
within its bounds."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from trio_envserve.retrylab import System, explore, replay, run, search, sweep
from trio_envserve.retrylab.failure import explored_failure

FOLDER = Path(__file__).parent.parent.parent / "examples" / "protocols"
MOST_LINES = 40

EXAMPLES = {
    "kv_store": ("STORE", "FORGETFUL", "at most once"),
    "idempotency_keys": ("PAYMENTS", "BROKEN", "at most once"),
    "outbox": ("ORDERS", "BROKEN", "at most once"),
    "lock_with_a_pause": ("LOCK", "BROKEN", "writes in order"),
    "leaders_lease": ("LEASE", "BROKEN", "one holder"),
    "exactly_once_sink": ("SINK", "BROKEN", "no lost acknowledgement"),
}


def systems(name: str) -> tuple[System, System]:
    """The corrected one, and the one with the bug."""
    folder = "examples" if name == "kv_store" else "examples.protocols"
    module = importlib.import_module(f"{folder}.{name}")
    good, broken, _ = EXAMPLES[name]
    return getattr(module, good), getattr(module, broken)


def test_every_example_of_the_folder_is_tried_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*EXAMPLES} - {"kv_store"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_broken_variant_is_short(name: str):
    _, broken = systems(name)
    classes = {*broken.actors.values()} - {*systems(name)[0].actors.values()}
    assert 0 < sum(len(inspect.getsource(each).splitlines()) for each in classes) <= MOST_LINES


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bug_is_found_by_seeds_and_is_the_bugs(name: str):
    good, broken = systems(name)
    failure = search(broken, runs=100)
    assert failure is not None
    assert failure.guarantee == EXAMPLES[name][2]
    assert len(failure.plan.asks) <= 2
    assert failure.drawing[-1].endswith("~")
    assert max(map(len, failure.text().splitlines())) <= 100
    assert [v.guarantee for v in replay(broken, failure)][:1] == [failure.guarantee]
    assert not replay(good, failure)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bug_is_found_by_a_search_of_every_order_on_a_shortest_way(name: str):
    _, broken = systems(name)
    failure = explored_failure(broken, explore(broken))
    assert failure is not None
    assert failure.guarantee == EXAMPLES[name][2]
    assert len(failure.plan.schedule()) <= 6
    assert failure.drawing[-1].endswith("~")
    assert max(map(len, failure.text().splitlines())) <= 100


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_corrected_one_is_clean_in_seeds_and_at_every_act(name: str):
    good, _ = systems(name)
    for seed in range(60):
        assert run(good, seed).violations == (), seed
    assert not [v for ran in sweep(good, 1) for v in ran.violations]


@pytest.mark.parametrize(
    "name",  # the lease takes five seconds of a processor
    [pytest.param(each, marks=[pytest.mark.slow] * (each == "leaders_lease")) for each in EXAMPLES],
)
def test_the_corrected_one_is_exhausted_within_its_bounds(name: str):
    found = explore(systems(name)[0])
    assert (found.violation, found.exhausted) == (None, True), found.text()
    assert found.states > 100
