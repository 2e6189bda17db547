"""The search of a configuration: it is the same each time, and tells shortest ways."""

from __future__ import annotations

import pytest

from trio_envserve.core.sessions import Sessions
from trio_envserve.core.work import Works
from trio_envserve.lab.exploration.configurations import Configuration, configuration
from trio_envserve.lab.exploration.search import Search, explore
from trio_envserve.lab.mutants import find

PLAIN = Configuration(name="plain")


def test_call_without_trouble_has_one_way_to_go():
    figures = explore(PLAIN).figures
    assert figures.exhausted
    assert figures.states == figures.depth + 1 == figures.transitions + 1 == 10


def test_search_is_the_same_each_time():
    first, again = (explore(configuration("rerun")).record() for _ in range(2))
    for changing in ("seconds", "transitions_per_second", "peak_mib"):
        del first[changing], again[changing]
    assert first == again


def test_search_tells_how_far_it_is_and_stops_at_a_number_of_states():
    search = Search(configuration("ci"), most_states=2_000)
    seen = [figures.states for figures in search.run()]
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert 2_000 <= seen[-1] < 2_100
    assert not search.figures.exhausted
    assert 0 < search.figures.states - search.figures.looked < 2_000


def test_counterexample_is_a_shortest_way():
    with find("acknowledged-on-arrival").applied():
        search = explore(configuration("crash"))
        assert search.violations == ("G4: c0#1 is acknowledged, and its caller has nothing",)
        text = "\n".join(search.tell())
    assert "* asks c0#1: run" in text
    assert "does started c0#1" in text
    assert "is told c0#1: result" in text
    assert "and then on without a fault" in text
    assert text.endswith(f"VIOLATED {search.violations[0]}")


def test_system_that_goes_on_for_ever_is_told_with_its_aftermath():
    with find("a-lost-request-is-not-repeated").applied():
        search = explore(configuration("small"))
        text = "\n".join(search.tell())
    assert "and then on without a fault, until all is at rest" in text
    assert text.endswith("waits for ever")


def test_exception_of_a_core_is_a_violation(monkeypatch: pytest.MonkeyPatch):
    def broken(self, *args):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(Works, "finish", broken)
    violation = explore(PLAIN).violations[0]
    assert "CRASH: " in violation
    assert "no such thing" in violation


def test_violation_before_the_first_state_is_told_too(monkeypatch: pytest.MonkeyPatch):
    def broken(self, *args):
        raise RuntimeError("nobody is welcome")

    monkeypatch.setattr(Sessions, "open", broken)
    search = explore(PLAIN)
    assert search.violations
    assert "nobody is welcome" in "\n".join(search.tell())
    assert not search.figures.exhausted
