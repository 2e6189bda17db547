"""The walk: exhausts what is small, is the same each time, and finds shortest ways."""

from __future__ import annotations

import pytest

from trio_envserve.core.dedup import DedupCache
from trio_envserve.lab.exploration.configurations import TABLE, Configuration, configuration
from trio_envserve.lab.exploration.search import Search, explore
from trio_envserve.lab.exploration.story import tell
from trio_envserve.lab.exploration.world import World
from trio_envserve.lab.mutants import find

LARGE = {"ci", "nightly", "pair", "couple", "ghost", "allowed"}
PLAIN = Configuration(name="plain")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each.name, marks=[pytest.mark.slow] * (each.name == "announced"))
        for each in TABLE
        if each.name not in LARGE
    ],
)
def test_a_small_configuration_is_exhausted_and_holds(name: str):
    figures = explore(configuration(name)).figures
    assert figures.found is None
    assert figures.exhausted
    assert figures.frontier == 0
    assert figures.quiet > 0
    assert figures.transitions > figures.states > 100


def test_one_call_without_trouble_has_one_way_to_go():
    figures = explore(PLAIN).figures
    assert figures.exhausted
    assert figures.states == figures.depth + 1 == figures.transitions + 1
    assert figures.quiet == 1


def test_it_is_the_same_each_time():
    first, again = (explore(configuration("rerun")).figures.record() for _ in range(2))
    for changing in ("seconds", "transitions_per_second", "peak_mib"):
        del first[changing], again[changing]
    assert first == again


def test_it_tells_how_far_it_is_and_stops_at_a_number_of_states():
    search = Search(configuration("ci"), most_states=5_000)
    seen = [figures.states for figures in search.run()]
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert 5_000 <= seen[-1] < 5_100
    assert not search.figures.exhausted
    assert 0 < search.figures.frontier < 5_000


def test_a_counterexample_is_a_shortest_way_and_can_be_walked_again():
    with find("acknowledged-on-arrival").applied():
        search = explore(configuration("crash"))
        found = search.figures.found
        assert found is not None
        assert found.violations == ("G4: c0r0 is acknowledged, and its caller has nothing",)
        # Asked, dispatched, begun, ended, reported, answered, acknowledged: no way is shorter.
        assert [action[0] for action in found.path[found.opening :]] == [
            "ask", "up", "wdown", "end", "wup", "down", "up",
        ]  # fmt: skip
        world = World(configuration("crash"))
        state = world.blank()
        for action in found.path:
            state, violations = world.move(state, action)
        assert tuple(violations) == found.violations
        lines = tell(search.world, found)
    assert lines[0].strip() == "-- the server, w0-1, w1-1, and c0 are up and connected --"
    assert lines[-1] == f"VIOLATED {found.violations[0]}"
    text = "\n".join(lines)
    assert "1  c0 asks" in text
    assert "w0-1 runs c0r0 as 0" in text
    assert "the caller of c0r0 is told: result" in text
    assert "server <- c0: Finish(session=e0-n1-c0, finished=[0])" in text


def test_what_goes_on_for_ever_is_told_with_its_aftermath():
    with find("a-lost-request-is-not-repeated").applied():
        search = explore(configuration("small"))
        found = search.figures.found
        assert found is not None
        lines = tell(search.world, found)
    assert found.aftermath
    assert any("from here on nothing goes wrong any more" in line for line in lines)
    assert "waits for ever" in lines[-1]
    assert len(lines) < 60


def test_what_a_core_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch):
    def broken(self, *args):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(DedupCache, "finish_spans", broken)
    found = explore(PLAIN).figures.found
    assert found is not None
    assert "CRASH: " in found.violations[0]
    assert "no such thing" in found.violations[0]


def test_a_violation_before_the_first_state_is_told_too(monkeypatch: pytest.MonkeyPatch):
    def broken(self, *args):
        raise RuntimeError("nobody is welcome")

    monkeypatch.setattr(DedupCache, "open", broken)
    search = explore(PLAIN)
    found = search.figures.found
    assert found is not None
    assert found.steps == 0
    assert "nobody is welcome" in "\n".join(tell(search.world, found))
    assert not search.figures.exhausted
