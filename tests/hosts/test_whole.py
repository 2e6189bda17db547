"""Whole systems with hosts: what ships, under faults; and what is broken is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trio_envserve.core.earlier_epochs import EarlierEpochs
from trio_envserve.core.host import Host
from trio_envserve.core.host_link import Outbox, What
from trio_envserve.core.host_pool import Hosts
from trio_envserve.core.lease import LeaseTerms
from trio_envserve.core.lives import Life

from .whole import CALLS, FAULT_NAMES, World


def violations(seeds: range) -> list[str]:
    return [f"seed {seed}: {wrong}" for seed in seeds for wrong in World(seed).run()]


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_no_request_has_two_executions_and_each_is_answered(first):
    assert violations(range(first, first + 5)) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 300, 50))
def test_many_seeds(first):
    assert violations(range(first, first + 50)) == []


def test_a_seed_comes_to_the_same_again():
    worlds = [World(3) for _ in range(2)]
    assert [world.run() for world in worlds] == [[], []]
    assert worlds[0].starts == worlds[1].starts
    assert len(worlds[0].answers) == CALLS


def test_every_fault_strikes_and_executions_run_again():
    worlds = [World(seed) for seed in range(5)]
    assert {fault for world in worlds for _, fault, _, _ in world.faults} == {*FAULT_NAMES}
    for world in worlds:
        world.run()
    assert max(starts for world in worlds for starts in world.starts.values()) > 1


def nothing_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    """What a cut has taken is gone."""
    patch.setattr(Outbox, "again", lambda self: None)


def a_host_is_lost_before_its_lease_is_over(patch: pytest.MonkeyPatch) -> None:
    """The router waits for half as long as the host."""
    patch.setattr(LeaseTerms, "wait_s", property(lambda self: self.fence_s / 2))


def what_a_lost_host_ran_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Its workers are not said to have ended."""
    original = Hosts._gone

    def gone(self: Any, *given: Any) -> Any:
        original(self, *given)
        return []

    patch.setattr(Hosts, "_gone", gone)


def an_end_is_said_before_it_has_come(patch: pytest.MonkeyPatch) -> None:
    """A host that tells a worker anything says that it has ended."""
    original = Host._item

    def item(self: Any, item: Any, *given: Any) -> None:
        if item.what is What.TELL and item.worker in self.workers:
            self.exited(item.worker, "it ends soon")
        original(self, item, *given)

    patch.setattr(Host, "_item", item)


def a_router_begins_while_the_hosts_of_the_one_before_live(patch: pytest.MonkeyPatch) -> None:
    """It has the lock of its machine, and waits for nobody else."""

    def take_dead(self: Any, now_s: float) -> Any:
        dead, self.waits = [each.epoch for each in self.waits], ()
        return dead

    patch.setattr(EarlierEpochs, "take_dead", take_dead)


def the_silence_of_a_host_is_that_of_its_workers(patch: pytest.MonkeyPatch) -> None:
    """All time counts against a worker, also that in which nothing of it could come through."""
    patch.setattr(Life, "counted_s", lambda self, since_s, now_s: now_s - since_s)


MUTANTS = [
    a_router_begins_while_the_hosts_of_the_one_before_live,
    nothing_is_sent_again,
    a_host_is_lost_before_its_lease_is_over,
    what_a_lost_host_ran_is_forgotten,
    an_end_is_said_before_it_has_come,
    the_silence_of_a_host_is_that_of_its_workers,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_what_is_broken_is_seen(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mutant(monkeypatch)
    assert any(World(seed).run() for seed in range(20))
