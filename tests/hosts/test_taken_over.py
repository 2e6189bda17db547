"""Routers with a journal that follow each other, and take over what hosts run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trio_envserve.core.dispatcher import Dispatcher
from trio_envserve.core.dispatches import Dispatches

from .taken_over import FollowedWorld


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_g1_g2_no_request_has_two_executions_and_each_is_answered(first):
    worlds = [FollowedWorld(seed) for seed in range(first, first + 4)]
    assert [world.run() for world in worlds] == [[]] * 4
    assert sum(world.came_back for world in worlds) > 4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 200, 20))
def test_many_seeds(first):
    assert [wrong for seed in range(first, first + 20) for wrong in FollowedWorld(seed).run()] == []


def work_of_keys_begins_before_all_hosts_are_back(patch: pytest.MonkeyPatch) -> None:
    """Though an earlier generation may run on one of them."""
    never = property(lambda self: False, lambda self, value: None)
    patch.setattr(Dispatcher, "earlier_lives", never, raising=False)


def what_is_not_known_runs_on(patch: pytest.MonkeyPatch) -> None:
    """Nobody stops it, and the router before is taken for dead."""
    patch.setattr(Dispatches, "stop_unknown", lambda self, worker, number, now_s: None)


MUTANTS = [work_of_keys_begins_before_all_hosts_are_back, what_is_not_known_runs_on]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_what_is_broken_is_seen(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mutant(monkeypatch)
    assert any(FollowedWorld(seed).run() for seed in range(20))
