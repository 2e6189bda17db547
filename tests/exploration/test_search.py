"""The search of a configuration: it is the same each time, and tells shortest ways."""

from __future__ import annotations

import dataclasses

import pytest

from trio_envserve.core.sessions import Sessions
from trio_envserve.core.work import Works
from trio_envserve.lab.exploration.configurations import Configuration, configuration
from trio_envserve.lab.exploration.search import SmallSystem, explore
from trio_envserve.lab.exploration.systems import system_of
from trio_envserve.lab.mutants import find
from trio_envserve.retrylab.explore import Exploration
from trio_envserve.retrylab.failure import explored_failure

PLAIN = Configuration(name="plain")


def test_call_without_trouble_has_one_way_to_go():
    figures = explore(PLAIN)
    assert figures.exhausted
    assert figures.states == figures.depth + 1 == figures.transitions + 1 == 10


def test_search_is_the_same_each_time():
    target = SmallSystem(config="forged")
    first, again = (target.figures(explore(target.configuration)) for _ in range(2))
    del first["seconds"], again["seconds"]
    assert first == again


def test_search_tells_how_far_it_is_and_stops_at_a_number_of_states():
    system = system_of(configuration("ci"))
    search = Exploration(system, dataclasses.replace(system.bounds, most_states=2_000))
    seen = [figures.states for figures in search.run()]
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert 2_000 <= seen[-1] < 2_100
    assert not search.explored.exhausted
    assert 0 < search.explored.states - search.explored.looked < 2_000


def told(asked: Configuration) -> str:
    """The failure of a configuration, as text."""
    failure = explored_failure(SmallSystem(config=asked.name), explore(asked))
    assert failure is not None
    return failure.text()


COUNTEREXAMPLES = {
    ("crash", "acknowledged-on-arrival"): (
        "broken: at 0.000 s: c0#1 is acknowledged, and its caller has nothing",
        "* asks c0#1: run", "does started c0#1", "is told c0#1: result",
        "and then on without a fault",
    ),
    ("small", "a-lost-request-is-not-repeated"): (
        "and then on without a fault, until all is at rest", "waits for ever",
    ),
    ("keys-cancel", "the-first-who-leaves-cancels"): ("G7: ", "1. c0: ask x", "does turn"),
    ("hosts-beat", "no-margin"): (
        "G1: ", "time: tick", "Items 1(SPAWN w0-1)", "w0-1 is declared lost and lives",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "mutant"), COUNTEREXAMPLES)
def test_counterexample_is_a_shortest_way_and_says_who_did_what(name: str, mutant: str):
    """Also that of a system that goes on for ever, with its aftermath."""
    with find(mutant).applied():
        text = told(configuration(name))
    assert [words for words in COUNTEREXAMPLES[name, mutant] if words not in text] == []
    assert text.endswith(f"again: trio-envserve fuzz --exhaustive --config {name}")


def test_exception_of_a_core_is_a_violation(monkeypatch: pytest.MonkeyPatch):
    def broken(self, *args):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(Works, "finish", broken)
    violation = explore(PLAIN).violation
    assert violation is not None
    assert violation.guarantee == "CRASH"
    assert "no such thing" in violation


def test_violation_before_the_first_state_is_told_too(monkeypatch: pytest.MonkeyPatch):
    def broken(self, *args):
        raise RuntimeError("nobody is welcome")

    monkeypatch.setattr(Sessions, "open", broken)
    assert "nobody is welcome" in told(configuration("small"))
    assert not explore(PLAIN).exhausted
