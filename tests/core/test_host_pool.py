"""The router's side of hosts: who is welcome, who gets work, and who is gone."""

from __future__ import annotations

import pytest

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import (
    Host,
    StartWorker,
)
from trio_envserve.core.host_link import Item, What, to_frames
from trio_envserve.core.host_pool import Hosts, ToHost, fitting
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.lives import Phase
from trio_envserve.core.router_effects import Spawn
from trio_envserve.core.router_inputs import Exited
from trio_envserve.core.slots import Pool

from .host_rig import EPOCH, TERMS, Link, hello_of, joined, last


def test_a_host_that_does_not_hear_gets_no_work():
    link = joined()
    life = link.pool.lives[b"w0-1"]
    assert link.pool.accepts(life)
    for _ in range(11):
        link.now_s += 1.0
        link.host.beat(link.now_s)
        link.host.felt(b"w0-1", Heartbeat())
        link.carry()
        while link.up:
            link.take(link.hosts.message(b"r", link.up.popleft(), link.now_s))
            link.hosts.out.clear()
        link.take(link.hosts.tick(link.now_s))
    assert not link.pool.accepts(life)
    assert not life.silent
    link.second(2)
    assert link.pool.accepts(life)


def test_a_slot_of_this_machine_is_no_business_of_hosts():
    pool = Pool(1, ServerLimits(), Link().ids)
    hosts = Hosts(pool, TERMS, EPOCH)
    (spawn,) = pool.tick(0.0)
    assert isinstance(spawn, Spawn)
    assert not hosts.take(spawn)


def test_what_is_over_changes_nothing():
    link = joined()
    tenure = link.host.lease.tenure
    of_nobody = [Item(What.EXITED, b"nobody", (b"",))]
    assert link.hosts.message(b"r", to_frames(tenure, 0, of_nobody), link.now_s) == []
    link.host.beat(link.now_s)
    beat = last(link.host.out).frames
    link.hosts.out.clear()
    assert link.hosts.message(b"r", beat, link.now_s + 1000) == []
    assert not link.hosts.out, "it is not answered"
    link.take(link.hosts.tick(link.now_s + 1000))
    assert link.hosts.message(b"r", beat, link.now_s + 1000) == []


def test_a_host_leaves_by_draining():
    link = joined(workers=2)
    link.host.exited(b"w1-1", "it is replaced")
    del link.alive[b"w1-1"]
    link.second(5)
    assert b"w1-2" in link.alive
    link.host.leave()
    link.second()
    assert list(link.alive) == [b"w0-1"], "what was not ready is killed"
    assert link.pool.lives[b"w0-1"].phase is Phase.RETIRING
    del link.alive[b"w0-1"]
    link.host.exited(b"w0-1", "it retired")
    link.settle()
    assert not link.hosts.hosts
    link.second(3)
    assert not link.alive
    link.host.leave()  # said again: nobody knows it any more
    link.settle()


def test_a_leaving_host_starts_nothing():
    link = joined()
    link.host.is_leaving = True
    have = link.host._inbox.have
    spawn = to_frames(link.host.lease.tenure, have + 1, [Item(What.SPAWN, b"x", (b"i" * 16,))])
    link.host.message(spawn, link.now_s)
    assert not any(isinstance(each, StartWorker) for each in link.host.out)


def test_a_host_whose_workers_never_get_ready_is_set_aside():
    link = Link(workers=1)
    link.joined()
    for number in range(1, 3):
        link.second(10)
        worker = b"w0-%d" % number
        del link.alive[worker]
        link.host.exited(worker, "no such file")
        link.settle()
    link.second(60)
    assert not link.alive
    assert any("did not get ready: no such file" in text for text in link.logged)


def test_a_second_host_with_its_id_is_refused_and_its_own_next_tenure_is_not():
    link = joined()
    other = Host("a", 1, link.ids)
    link.hosts.message(b"o", hello_of(other), link.now_s)
    refusal = last(link.hosts.out)
    assert refusal.route == b"o"
    other.message(refusal.frames, link.now_s)
    assert "another host is here as a" in last(other.out).text
    assert not other.lease.over
    again = Host("a", 1, link.ids, past=[link.host.lease.tenure])
    (ended,) = link.hosts.message(b"n", hello_of(again), link.now_s)
    assert isinstance(ended, Exited)
    assert ended.worker == b"w0-1"
    link.hosts.out.clear()
    assert link.hosts.message(b"n", hello_of(link.host), link.now_s) == []


def test_an_old_hello_is_not_answered():
    link = Link()
    hello = hello_of(link.host)
    for _ in range(2):
        link.hosts.message(b"r", hello, link.now_s)
    assert sum(isinstance(each, ToHost) for each in link.hosts.out) == 1


def test_needs():
    assert fitting(8, {}, {}) == 8
    assert fitting(8, {"gpu": 4}, {"gpu": 1, "cpu": 0}) == 4
    assert fitting(8, {"gpu": 4, "cpu": 5}, {"gpu": 2, "cpu": 2.5}) == 2
    assert fitting(8, {"gpu": "many"}, {"gpu": 1}) == 0
    assert fitting(8, {"gpu": -1}, {"gpu": 1}) == 0
    link = Link(needs={"gpu": 1})
    link.joined()
    assert not link.alive
    assert any("nothing for workers that need" in text for text in link.logged)


@pytest.mark.parametrize(
    "item",
    [
        Item(What.SPAWN, b"w0-1", (b"i",)),
        Item(What.SPAWNED, b"w0-1", (b"seven",)),
        Item(What.FELT, b"w0-1", (b"\n",)),
        Item(What.FELT, b"w0-1", (b"{}",)),
    ],
    ids=["spawn", "pid", "heartbeat", "half"],
)
def test_items_that_are_none_are_refused(item):
    link = joined()
    with pytest.raises(ProtocolError):
        link.hosts.message(b"r", to_frames(link.host.lease.tenure, 0, [item]), link.now_s)
