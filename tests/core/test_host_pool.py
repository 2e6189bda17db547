"""The router's side of hosts: who is welcome, who gets work, and who is gone."""

from __future__ import annotations

import pytest

from trio_envserve.core.errors import ConfigError, ProtocolError
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import NO_LEASE, Host
from trio_envserve.core.host_effects import StartWorker
from trio_envserve.core.host_link import Item, What, to_frames
from trio_envserve.core.host_pool import Hosts, ToHost
from trio_envserve.core.host_said import check_amounts, fitting, host_name
from trio_envserve.core.lease import NO_LEASE_S, LeaseTerms
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.lives import Phase
from trio_envserve.core.remote_hosts import PAST_HOSTS
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Spawn
from trio_envserve.core.router_inputs import Exited, PoolOpened
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


def test_a_host_without_a_lease_that_never_beat_was_not_heard_of_for_nineteen_years():
    """In the words of its loss, after a minute."""
    link = Link()
    link.hosts.leases.terms = LeaseTerms(NO_LEASE_S)
    link.host.connect()
    link.settle()
    link.hosts.tick(link.now_s + 60.0)
    link.route()
    assert link.logged[-1] == "host a is gone: nothing was heard of it for 60 s"


def test_g9_a_host_without_a_lease_lost_its_workers_when_it_was_back():
    """They had been silent for as long as it was out of reach, and were killed for that."""
    link = joined()
    link.hosts.leases.terms = LeaseTerms(NO_LEASE_S)
    link.host.lease.deadline_s = link.deadline_s = link.now_s + NO_LEASE_S
    link.cut = True
    link.second(3600)
    link.cut = False
    link.host.connect()
    link.second(10)
    assert list(link.alive) == [b"w0-1"]
    link.host.felt(b"w0-1", Heartbeat())
    link.settle()
    assert link.pool.accepts(link.pool.lives[b"w0-1"])
    assert link.pool.restarts == 0


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


@pytest.mark.parametrize("how", ["it leaves", "it is lost"])
def test_a_host_that_went_while_its_worker_started_broke_the_environment(how):
    link = Link()
    link.joined()
    assert link.alive, "its worker is starting"
    if how == "it leaves":
        link.host.leave()
        link.second()
    else:
        link.cut = True
        link.second(60)
    assert not link.alive
    assert not link.pool.broken
    assert not link.pool.is_broken()


@pytest.mark.parametrize("what", ["its worker was killed", "its set-up has failed once"])
def test_a_host_whose_worker_ended_before_it_did_broke_the_environment(what):
    """A batch system kills the workers of a host with it, or before."""
    link = Link(workers=1)
    link.joined()
    (worker,) = link.alive
    if what == "its set-up has failed once":
        link.pool.set_up_failed(link.pool.lives[worker], "the disk of this machine is full")
    del link.alive[worker]
    link.host.exited(worker, "killed by SIGTERM")
    link.settle()
    assert not link.pool.is_broken()
    link.host.leave()
    link.second(2)
    assert not link.pool.is_broken(), "another host may join, as before it came"
    assert not link.pool.is_broken_for_good()


def test_a_leaving_host_starts_nothing():
    link = joined()
    link.host.is_leaving = True
    have = link.host._inbox.have
    spawn = to_frames(link.host.lease.tenure, have + 1, [Item(What.SPAWN, b"x", (b"i" * 16, b"0"))])
    link.host.message(spawn, link.now_s)
    assert not any(isinstance(each, StartWorker) for each in link.host.out)


def test_a_host_whose_workers_all_failed_at_once_told_nobody_that_the_environment_is_broken():
    """Their ends came in one message, and it was set aside before the first of them counted."""
    link = Link(workers=3)
    link.joined()
    link.cut = True  # what is said again goes together
    for worker in list(link.alive):
        del link.alive[worker]
        link.host.exited(worker, "no such file")
    link.settle()
    link.cut = False
    link.second(3)
    assert any("did not get ready: no such file" in text for text in link.logged)
    assert link.pool.is_broken()
    assert "no such file" in link.pool.broken


def test_a_host_whose_lease_let_nothing_start_is_not_set_aside():
    """It got no more workers, though the network had been cut and was whole again."""
    link = Link(workers=1)
    link.joined()
    for number in range(1, 6):
        link.second(10)
        worker = b"w0-%d" % number
        del link.alive[worker]
        link.host.exited(worker, NO_LEASE)
        link.settle()
    link.second(60)
    assert link.alive
    assert not any("gets no more workers" in text for text in link.logged)


def test_one_host_whose_workers_do_not_start_does_not_break_the_environment():
    """All calls ended as broken while another host was about to start its workers."""
    link = Link(workers=1)
    link.joined()
    for number in range(1, 3):
        link.second(10)
        worker = b"w0-%d" % number
        life = link.pool.lives[worker]
        link.pool.set_up_failed(life, "no such file", unloadable=True)
        del link.alive[worker]
        link.host.exited(worker, "no such file")
        link.settle()
    link.second(60)
    assert link.pool.is_broken(), "there is no other host"
    link.pool.open_slots(1, "b")
    assert not link.pool.is_broken()
    assert not link.pool.is_broken_for_good()


def test_hosts_say_how_they_are():
    link = Link(workers=2)
    link.host.connect()
    link.settle()
    (record,) = link.hosts.records({}, link.now_s)["hosts"]
    assert record["state"] == "joining"
    link.second(3)
    link.ready()
    link.host.beat(link.now_s, {"load": 0.5, "memory_bytes": 7, "more": 1})
    link.settle()
    (record,) = link.hosts.records({b"w0-1": 3}, link.now_s + 2)["hosts"]
    assert record == {
        "host": "a", "state": "ready", "why": "", "slots": 2, "workers": 2, "ready": 2,
        "running": 3, "heard_s": 2.0, "lost_s": round(TERMS.wait_s - 2.0, 3), "load": 0.5,
        "memory_bytes": 7,
    }  # fmt: skip
    assert {life.name for life in link.pool.lives.values()} == {"w0-1@a", "w1-1@a"}
    link.host.beat(link.now_s, {"load": "high", "memory_bytes": 1e300})
    link.settle()
    link.take(link.hosts.tick(link.now_s + 11))
    (record,) = link.hosts.records({}, link.now_s)["hosts"]
    assert (record["state"], record["load"], record["memory_bytes"]) == ("quiet", 0.0, 0)
    link.hosts.hosts[link.host.lease.tenure].set_aside = True
    assert link.hosts.records({}, 0.0)["hosts"][0]["state"] == "set aside"
    link.host.leave()
    link.second()
    assert link.hosts.records({}, 0.0)["hosts"][0]["state"] == "leaving"
    link.take(link.hosts.tick(link.now_s + 1000))
    told = link.hosts.records({}, link.now_s + 1000)
    assert not told["hosts"]
    assert [(past["host"], past["state"]) for past in told["past_hosts"]] == [("a", "lost")]


def test_the_names_of_hosts_are_plain_and_those_that_are_gone_are_few():
    assert host_name('n\n"1') == "n__1"
    assert host_name("") == "_"
    link = Link(needs={"gpu": 1})
    for number in range(PAST_HOSTS + 3):
        link.hosts.message(b"r", hello_of(Host(f"h{number}", 1, link.ids)), link.now_s)
    past = link.hosts.records({}, link.now_s)["past_hosts"]
    assert len(past) == PAST_HOSTS
    assert past[-1]["host"] == f"h{PAST_HOSTS + 2}"


@pytest.mark.parametrize("amount", [-1, True, "many", float("nan"), float("inf")])
def test_what_is_no_amount_is_neither_needed_nor_offered(amount):
    check_amounts("needs", {"gpu": 1, "memory": 0.5})
    with pytest.raises(ConfigError, match="gpu"):
        check_amounts("needs", {"gpu": amount})


def test_a_router_without_hosts_says_that_none_is_here():
    router = Router(epoch=EPOCH, slots=0, now_s=0.0, new_id=Link().ids)
    router.take(PoolOpened(set(), 0.0))
    assert router.status()["reason"] == "no host is here that may start workers"


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
    assert any("it has not what a worker needs: gpu=1" in text for text in link.logged)
    (refused,) = link.hosts.records({}, link.now_s)["past_hosts"]
    assert (refused["host"], refused["state"]) == ("a", "refused")


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
