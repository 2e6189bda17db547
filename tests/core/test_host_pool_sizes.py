"""Hosts that have as many workers as there is work for."""

from __future__ import annotations

from trio_envserve.core.elastic import Elastic, Need
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.slots import Part
from trio_envserve.core.worker_range import WorkerRange

from .host_rig import Link

NONE, MUCH = Need(0, 0, 0.0), Need(1, 500, 6.0)


class Sized(Link):
    """A host of a few workers, and the router's part that decides how many."""

    def __init__(self, workers: int | WorkerRange, **given) -> None:
        super().__init__(workers, **given)
        self.need = NONE
        self.limits = ServerLimits(shrink_after_s=5.0)
        self.anew()

    def anew(self) -> None:
        self.elastic = Elastic(self.pool, {}, self.limits)

    def second(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            for effect in self.elastic.tick(self.now_s, self.need, 1):
                self.carry_effect(effect)
            super().second()

    def all_ready(self) -> None:
        self.ready()
        self.second()


def sized(least: int, most: int, **given) -> Sized:
    link = Sized(WorkerRange(least, most), **given)
    link.joined()
    link.all_ready()
    return link


def places(link: Link) -> list[int]:
    return sorted(link.places[worker] for worker in link.alive)


def test_a_host_begins_with_its_least_and_has_more_as_there_is_work():
    link = sized(1, 4)
    assert places(link) == [0]
    assert "host a: 1..4 workers" in link.logged
    link.need = MUCH
    link.second(2)
    assert places(link) == [0, 1], "twice as many at most"
    link.second(2)
    assert places(link) == [0, 1], "those that start are waited for"
    link.all_ready()
    link.second(2)
    assert places(link) == [0, 1, 2, 3]
    link.all_ready()
    link.second(5)
    assert len(link.alive) == 4


def test_what_is_not_needed_is_told_to_end_and_none_is_killed():
    link = sized(1, 3)
    link.need = MUCH
    link.second(2)
    link.all_ready()
    link.second(2)
    link.all_ready()
    assert len(link.alive) == 3
    link.need = NONE
    link.second(8)
    assert link.pool.wanted == 1
    assert len(link.alive) == 3, "they are told, and end by themselves"
    for worker in (b"w1-1", b"w2-1"):
        del link.alive[worker]
        link.host.exited(worker, "exit 0")
    link.second(5)
    assert places(link) == [0]


def another(link: Sized) -> Part:
    """That of another host, on which nothing starts."""
    part = link.pool.vary(link.pool.open_slots(3, "b"), 1)
    part.slots[0].awaited, part.slots[0].start_at_s = False, float("inf")
    return part


def test_a_host_that_is_not_known_to_hear_the_router_gets_no_more_and_holds_up_nobody():
    link = sized(1, 3)
    other = another(link)
    link.cut = True
    link.second(12)
    quiet, other = link.pool.parts
    assert (quiet.held, other.held) == (True, False)
    quiet.slots[0].awaited = True
    link.elastic.tick(link.now_s, MUCH, 1)
    assert [len(each.open()) for each in (quiet, other)] == [1, 3]
    other.slots[1].start_at_s = other.slots[2].start_at_s = float("inf")
    link.cut = False
    link.second(3)
    assert not quiet.held


def test_what_was_of_a_host_that_is_gone_is_opened_for_nobody():
    link = sized(1, 3)
    link.cut = True
    link.second(40)
    assert not link.hosts.hosts
    assert not link.pool.parts
    link.need = MUCH
    link.second(3)
    assert link.pool.wanted == 0


def test_a_host_that_leaves_or_is_set_aside_is_no_part_any_more():
    link = sized(1, 3)
    link.host.leave()
    link.second()
    assert not link.pool.parts


def test_the_next_router_keeps_the_workers_that_there_are():
    link = sized(1, 4)
    link.need = MUCH
    link.second(2)
    link.need = NONE
    link.all_ready()
    assert places(link) == [0, 1]
    link.follow()
    link.anew()
    link.second(3)
    assert [slot.index for slot in link.pool.parts[0].open()] == [0, 1]
    assert len(link.alive) == 2
