"""The router's side of hosts: who is welcome, who gets work, and who is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import cbor2
import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.errors import ConfigError, ProtocolError
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import NO_LEASE, Host
from trio_envserve.core.host_checks import (
    HOST_WORKERS_MOST,
    HOSTS_MOST,
    NUMBERS_MOST,
    WORKERS_MOST,
    check_amounts,
    fitting,
    host_name,
)
from trio_envserve.core.host_link import MARKS_MOST, Item, ItemKind, to_frames
from trio_envserve.core.host_messages import (
    KINDS,
    HostBeat,
    HostHello,
    HostLeaves,
    Items,
    decode,
    encode,
)
from trio_envserve.core.host_pool import KEPT_BYTES, KEPT_ITEMS, PAST_HOSTS
from trio_envserve.core.journal import Closed, Journal, Record
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.lease import NO_LEASE_S, EpochWait, LeaseTerms
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.messages import Beat, RouterChanged, Stop
from trio_envserve.core.pool import NO_SLOT, Elastic, LifeInput, Need, Phase
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Spawn, ToHost, ToWorker
from trio_envserve.core.router_inputs import (
    Exited,
    HostsBefore,
    HostsDead,
    OfHost,
    PoolOpened,
    Restored,
    WorkerBack,
    WorkerMessage,
)
from trio_envserve.core.terms import Membership, Status, Verdict
from trio_envserve.core.worker_range import WorkerRange
from trio_envserve.core.workforce import UNREAD_BEATS

from .host_rig import BEAT, EPOCH, HELLO, TERMS, Link, about, hello_of, joined, spoilt, starting
from .keyed import Journaled, told


def test_a_host_without_a_lease_that_never_beat_was_not_heard_of_for_nineteen_years():
    """In the words of its loss, after a minute."""
    link = Link()
    link.hosts.leases.terms = LeaseTerms(NO_LEASE_S)
    link.host.connect()
    link.settle()
    link.hosts.tick(link.now_s + 60.0)
    link.route()
    assert link.logged[-1] == "host a is gone: it sent nothing for 60 s"


def test_g9_a_host_without_a_lease_lost_its_workers_when_it_was_back():
    """They had been silent for as long as it was out of reach, and were killed for that."""
    link = joined()
    link.hosts.leases.terms = LeaseTerms(NO_LEASE_S)
    link.host.lease.deadline_s = link.deadline_s = link.now_s + NO_LEASE_S
    link.cut = True
    link.second(900)
    link.cut = False
    link.host.connect()
    link.second(10)
    assert list(link.alive) == [b"w0-1"]
    link.host.worker_heartbeat(b"w0-1", Heartbeat())
    link.settle()
    assert link.pool.accepts(link.pool.lives[b"w0-1"])
    assert link.pool.restarts == 0


def test_a_host_leaves_by_draining():
    link = joined(workers=2)
    link.dies(b"w1-1", "it is replaced")
    link.second(5)
    assert b"w1-2" in link.alive
    link.host.leave()
    link.second()
    assert list(link.alive) == [b"w0-1"], "what was not ready is killed"
    link.from_router(Item(ItemKind.SPAWN, b"x", (b"i" * 16, b"0")))
    assert not any(isinstance(each, Spawn) for each in link.host.out)
    assert link.pool.lives[b"w0-1"].phase is Phase.RETIRING
    link.dies(b"w0-1", "it retired")
    link.settle()
    assert not link.hosts.hosts
    link.second(3)
    assert not link.alive
    link.host.leave()  # said again: nobody knows it any more
    link.settle()


@pytest.mark.parametrize("how", ["it leaves", "it is lost"])
def test_a_host_that_went_while_its_worker_started_broke_the_environment(how):
    link = starting()
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
    link = starting(workers=1)
    (worker,) = link.alive
    if what == "its set-up has failed once":
        link.pool.set_up_failed(link.pool.lives[worker], "the disk of this machine is full")
    link.dies(worker, "killed by SIGTERM")
    link.settle()
    assert not link.pool.is_broken()
    link.host.leave()
    link.second(2)
    assert not link.pool.is_broken(), "another host may join, as before it came"
    assert not link.pool.is_broken_for_good()


def test_a_host_whose_workers_all_failed_at_once_told_nobody_that_the_environment_is_broken():
    """Their ends came in one message, and it was set aside before the first of them counted."""
    link = starting(workers=3)
    link.cut = True  # what is said again goes together
    for worker in list(link.alive):
        link.dies(worker, "no such file")
    link.settle()
    link.cut = False
    link.second(3)
    assert any("did not get ready: no such file" in text for text in link.logged)
    assert link.pool.is_broken()
    assert "no such file" in link.pool.broken


def test_a_host_whose_lease_let_nothing_start_is_not_set_aside():
    """It got no more workers, though the network had been cut and was whole again."""
    link = starting(workers=1)
    for number in range(1, 6):
        link.second(10)
        worker = b"w0-%d" % number
        link.dies(worker, NO_LEASE)
        link.settle()
    link.second(60)
    assert link.alive
    assert not any("gets no more workers" in text for text in link.logged)


def test_one_host_whose_workers_do_not_start_does_not_break_the_environment():
    """All calls ended as broken while another host was about to start its workers."""
    link = starting(workers=1)
    for number in range(1, 3):
        link.second(10)
        worker = b"w0-%d" % number
        life = link.pool.lives[worker]
        link.pool.set_up_failed(life, "no such file", unloadable=True)
        link.dies(worker, "no such file")
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
        "running": 3, "beat_age_s": 2.0, "lost_s": round(TERMS.wait_s - 2.0, 3), "load": 0.5,
        "memory_bytes": 7,
    }  # fmt: skip
    assert {life.name for life in link.pool.lives.values()} == {"w0-1@a", "w1-1@a"}
    link.host.beat(link.now_s, {"load": "high", "memory_bytes": 1e300})
    link.settle()
    link.take(link.hosts.tick(link.now_s + 11))
    (record,) = link.hosts.records({}, link.now_s)["hosts"]
    assert (record["state"], record["load"], record["memory_bytes"]) == ("quiet", 0.0, 0)
    link.hosts.hosts[link.host.lease.membership].set_aside = True
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


def test_an_old_hello_is_not_answered():
    link = Link()
    hello = hello_of(link.host)
    for _ in range(2):
        link.hosts.message(b"r", hello, link.now_s)
    assert sum(isinstance(each, ToHost) for each in link.said()) == 1


def test_needs():
    assert fitting(8, {}, {}) == 8
    assert fitting(8, {"gpu": 4}, {"gpu": 1, "cpu": 0}) == 4
    assert fitting(8, {"gpu": 4, "cpu": 5}, {"gpu": 2, "cpu": 2.5}) == 2
    assert fitting(8, {"gpu": "many"}, {"gpu": 1}) == 0
    assert fitting(8, {"gpu": -1}, {"gpu": 1}) == 0
    link = starting(needs={"gpu": 1})
    assert not link.alive
    assert any("it offers less than one worker needs: gpu=1" in text for text in link.logged)
    (refused,) = link.hosts.records({}, link.now_s)["past_hosts"]
    assert (refused["host"], refused["state"]) == ("a", "refused")


# -- What a host sends wrong ends its own session, and harms nobody else -------

OTHER = b"o" * 16


def first_hello(name: str = "z", membership: Membership = OTHER, workers: int = 1) -> HostHello:
    return HostHello(2, name, membership, 1, [], b"", workers, workers, {"gpu": 1}, [], b"", [])


def said(link: Link, message: Any, route: bytes = b"z") -> None:
    link.take(link.hosts.message(route, (encode(message),), link.now_s))


def refusals(link: Link, route: bytes) -> list[Any]:
    link_out = link.said()
    sent = [each.frames for each in link_out if isinstance(each, ToHost) and each.route == route]
    decoded = [decode(frames, most_bytes=1 << 20)[0] for frames in sent]
    return [each for each in decoded if hasattr(each, "code")]


def valid(membership: Membership) -> list[Any]:
    life = [b"w9-1-tag", b"i" * 16, 7, HELLO, 4, [1, 3], 0]
    return [
        first_hello(),
        first_hello()._replace(lives=[life]),
        HostBeat(membership, 1 << 20, 3, EPOCH, 0, 0, False, {"load": 0.5}),
        HostLeaves(membership, 0),
        Items(membership, 0, [0], [b"w0-1"], [0]),
        Items(membership, 1, [2], [b"w0-1"], [0]),
    ]


def broken_ones(membership: Membership) -> list[Any]:
    """Each message that a host may send, with each of its fields spoilt in each way."""
    made: list[Any] = []
    for message in valid(membership):
        array = [KINDS[type(message)], *message]
        made += [array[:at] for at in range(len(array))]
        made += [[*array, 0], *spoilt(array)]
        if isinstance(message, HostHello) and message.lives:
            made += [[*array[:-1], [each]] for each in spoilt(message.lives[0])]
    return made


def test_whatever_a_host_sends_another_host_goes_on():
    """An amount without end, and a name that is none, ended the router."""
    count = refused = 0
    for number, array in enumerate(broken_ones(b"\x00" * 16)):
        if number % 50 == 0:  # a link each would take long
            link = joined(needs={"gpu": 1}, offers={"gpu": 8})
        link.said()
        membership = bytes([7, *number.to_bytes(2, "big")]) + bytes(13)
        said(link, first_hello(f"n{number}", membership), route := b"%d" % number)
        array = [membership if each == b"\x00" * 16 else each for each in array]
        for frames in [(cbor2.dumps(array),), (cbor2.dumps(array), b"more"), (b"",)]:
            count += 1
            try:
                link.take(link.hosts.message(route, frames, link.now_s))
            except ProtocolError:
                refused += 1
        link.hosts.records({}, link.now_s)
        assert [host.state for host in link.hosts.hosts.values() if host.name == "a"] == ["ready"]
        if number % 50 == 49:
            link.second(3)
            assert list(link.alive) == [b"w0-1"]
    assert count > 3 * 1500
    assert refused > count / 2


@pytest.mark.parametrize(
    "item",
    [
        Item(ItemKind.SPAWN, b"w0-1", (b"i" * 16, b"0")),
        Item(ItemKind.KILL, b"w0-1", (b"",)),
        Item(ItemKind.ASK, b"w0-1", (b"5", b"0a1b2c3d#4")),
        Item(ItemKind.SPAWNED, b"w0-1", (b"seven",)),
        Item(ItemKind.SPAWNED, b"w0-1", (b"9" * 40,)),
        Item(ItemKind.SPAWNED, b"w0-1", ()),
        Item(ItemKind.HEARTBEAT, b"w0-1", ()),
        Item(ItemKind.HEARTBEAT, b"w0-1", (b"\n",)),
        Item(ItemKind.HEARTBEAT, b"w0-1", (b"{}",)),
        Item(ItemKind.HEARTBEAT, b"w0-1", (b'{"asked": -1}\n',)),
        Item(ItemKind.HEARTBEAT, b"w0-1", (b'{"asked": 1, "stack": 2}\n',)),
        Item(ItemKind.HEARTBEAT, b"w0-1", (b"[" * 10_000 + b"\n",)),
    ],
)
def test_a_host_that_sends_what_is_no_message_begins_anew_and_its_work_is_over(item):
    """What had come with it was lost: that a worker had ended, above all."""
    link = joined()
    membership = link.host.lease.membership
    first = link.hosts.hosts[membership].inbox.have + 1
    items = [Item(ItemKind.EXITED, b"w0-1", (b"it ended",)), item]
    with pytest.raises(ProtocolError):
        link.hosts.message(b"r", to_frames(membership, first, items), link.now_s)
    assert not any(isinstance(each, Exited) for each in link.inputs)
    (record,) = link.hosts.records({}, link.now_s)["hosts"]
    assert (record["state"], record["why"][:28]) == ("set aside", "it sent a malformed message:")
    assert link.hosts.message(b"r", to_frames(membership, 0, items[:1]), link.now_s) == []
    link.settle()  # the host is told, kills what lives, and joins anew
    assert b"w0-1" not in link.alive
    assert [about(each) for each in link.inputs if isinstance(each, Exited)] == [b"w0-1"]
    link.second(3)
    assert len(link.alive) == 1
    assert link.host.lease.membership != membership


def test_a_host_that_was_set_aside_may_send_nonsense_too():
    link = joined()
    link.hosts._set_aside(link.hosts.hosts[link.host.lease.membership], "info", "it leaves")
    with pytest.raises(ProtocolError):
        link.hosts.message(b"r", (b"",), link.now_s)
    (record,) = link.hosts.records({}, link.now_s)["hosts"]
    assert "malformed message" in record["why"]
    said(link, first_hello("a", link.host.lease.membership), b"r")
    assert [each.code for each in refusals(link, b"r")] == ["over", "over"]


def test_a_membership_is_that_of_one_host():
    """The lease of the second name ended, and with it the first one's workers, which lived."""
    link = joined()
    membership = link.host.lease.membership
    with pytest.raises(ProtocolError, match="two hosts"):
        said(link, first_hello("b", membership)._replace(hello=9))
    assert [*link.hosts.leases.holdings] == ["a"]
    link.second(40)
    assert list(link.alive) == [b"w0-1"]


def test_a_place_that_another_host_has_taken_is_not_closed_with_the_first():
    """It got no more workers, and nobody was told why."""
    link = joined()
    first = link.hosts.hosts[link.host.lease.membership]
    (slot,) = first.slots
    link.dies(b"w0-1", "it ended")
    link.settle()
    link.hosts._set_aside(first, "error", "its workers did not get ready")
    assert link.pool.open_slots(1, "b") == [slot]
    link.hosts._close(first)
    assert slot.is_open


def emptied() -> Link:
    """A host whose only worker has left its place and lives on."""
    link = joined()
    for each in (LifeInput.RETIRE, LifeInput.SPENT):
        link.pool.step(link.pool.lives[b"w0-1"], each, link.now_s, "old")
    return link


def test_worker_of_a_host_that_was_set_aside_kept_its_place_from_those_of_another():
    """They could not leave the place before it had given all."""
    link = emptied()
    first = link.hosts.hosts[link.host.lease.membership]
    (slot,) = first.slots
    link.hosts._set_aside(first, "error", "its workers did not get ready")
    (other,) = link.pool.open_slots(1, "b")
    assert other is not slot
    link.pool.step(link.pool.lives[b"w0-1"], LifeInput.EXITED, link.now_s, "it ended")
    assert link.pool.open_slots(1, "c") == [slot]


def test_host_was_set_aside_for_starts_beside_a_worker_that_had_left_its_place():
    """That had their GPU, until one client took its outcomes."""
    link = emptied()
    for number in range(2, 8):
        link.host.worker_heartbeat(b"w0-1", Heartbeat())
        link.second(20)
        link.dies(b"w0-%d" % number, "the GPU has no memory left")
        link.settle()
    assert link.hosts.hosts[link.host.lease.membership].state == "ready"
    assert not link.pool.is_broken()
    link.dies(b"w0-1", "exit 0")
    link.second(30)
    for number in range(8, 10):
        link.dies(b"w0-%d" % number, "the GPU has no memory left")
        link.second(30)
    assert link.hosts.hosts[link.host.lease.membership].state == "set aside"


def test_host_said_that_more_workers_were_ready_than_it_has_places():
    link = emptied()
    link.second()
    link.ready()
    (record,) = link.hosts.records({}, link.now_s)["hosts"]
    assert (record["slots"], record["workers"], record["ready"]) == (1, 2, 1)


# -- bounds -----------------------------------------------------------------------------


def test_a_host_of_more_workers_than_a_host_has_is_refused():
    """The router made a place for each of them."""
    link = Link()
    said(link, first_hello(workers=1 << 60))
    (refusal,) = refusals(link, b"z")
    assert refusal.code == "unfit"
    assert f"{HOST_WORKERS_MOST} at most" in refusal.text
    assert not link.hosts.hosts


def test_past_the_most_workers_and_the_most_hosts_a_host_waits():
    link = Link()
    for number in range(WORKERS_MOST // HOST_WORKERS_MOST):
        said(link, first_hello(f"n{number}", b"%016d" % number, HOST_WORKERS_MOST))
    assert not refusals(link, b"z")
    said(link, first_hello("one"))
    (refusal,) = refusals(link, b"z")
    assert refusal.code == "full"
    assert "it has 16 hosts with 16384 workers" in refusal.text
    again = first_hello("n0", b"n" * 16)._replace(ended=[b"%016d" % 0])
    said(link, again)
    assert not refusals(link, b"z"), "it takes its own place"
    link = Link()
    for number in range(HOSTS_MOST + 1):
        said(link, first_hello(f"n{number}", b"%016d" % number))
    (refusal,) = refusals(link, b"z")
    assert (refusal.code, len(link.hosts.hosts)) == ("full", HOSTS_MOST)
    refused = link.hosts.records({}, link.now_s)["past_hosts"]
    assert [past["state"] for past in refused] == ["refused"]


LIFE: list[Any] = [b"w9-1", b"i" * 16, 7, b"", [0, 1], [], 0]
"""A worker that lives on, as its host states it."""


def life(**changed: Any) -> list[Any]:
    """That of another worker in a few fields."""
    names = ("worker", "incarnation", "pid", "hello", "seen", "running", "is_to_end")
    return list({**dict(zip(names, LIFE, strict=True)), **changed}.values())


HALF = NUMBERS_MOST // 2
WRONG_LIVES: dict[str, list[Any]] = {
    "twice": [LIFE] * 2,
    "it runs what was not dispatched": [life(running=[0, 2])],
    "it runs too many": [life(seen=[0, 1 << 30], running=[0, 1 << 30])],
    "they run too many": [
        life(worker=b"w%d" % n, seen=[0, HALF], running=[0, HALF]) for n in range(3)
    ],
    "a hello that is none": [life(hello=b"\xff")],  # it ended the router
    "a hello that is a beat": [life(hello=BEAT)],
    "the name of another worker": [life(worker=b"w0-1")],
    "too short": [LIFE[:-1]],
    "an incarnation that is short": [life(incarnation=b"i")],
    "a process below 0": [life(pid=-7)],
    "spans backwards": [life(running=[2, 1])],
    "dispatches backwards": [life(seen=[2, 1])],
    "a name that is text": [life(worker="w")],
    "no list": [b"w"],
}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"lives": lives} for lives in WRONG_LIVES.values()),
        {"to": b"short"}, {"continues": [b"c" * 16] * 17},
    ],
    ids=[*WRONG_LIVES, "a router whose id is short", "more memberships than it may continue"],
)  # fmt: skip
def test_a_statement_of_lives_that_is_none_is_refused(wrong: dict[str, Any]):
    link = joined()
    hello = first_hello()._replace(lives=[], epoch=b"x" * 16, to=EPOCH, continues=[b"c" * 16])
    with pytest.raises(ProtocolError):
        said(link, hello._replace(**wrong))
    assert [host.name for host in link.hosts.hosts.values()] == ["a"]
    said(link, hello._replace(lives=[LIFE]))
    assert [each.code for each in refusals(link, b"z")] == ["over"], "it is no router before"


def test_a_host_that_takes_nothing_in_gets_no_work_and_then_is_over():
    """What is for it was kept without bound."""
    link = joined()
    membership, incarnation = link.host.lease.membership, link.alive[b"w0-1"]
    host, body = link.hosts.hosts[membership], bytes(KEPT_BYTES)
    link.tell(ToWorker(b"w0-1", incarnation, Beat(b"", 1, 0, [], {}), body))
    link.tell(ToWorker(b"w0-1", incarnation, Beat(b"", 1, 0, [], {}), body))
    link.hosts.turn_over()
    link.take(link.hosts.tick(link.now_s))
    assert host.state == "quiet"
    link.said()
    item = Item(ItemKind.TELL, b"w0-1", (b"",))
    for _ in range(KEPT_ITEMS):
        host.outbox.put(item)
    beat = HostBeat(membership, 1000, 1, EPOCH, 0, host.outbox._have, False, {})
    with pytest.raises(ProtocolError, match="has not read"):
        said(link, beat, b"r")


def test_a_message_is_under_way_until_its_host_says_that_it_has_come():
    """Whatever else is: beside steady traffic to others a lost message was never missed."""
    link = joined(workers=2)
    life = link.pool.lives[b"w0-1"]
    link.tell(ToWorker(b"w0-1", link.alive[b"w0-1"], Stop([0, 1])))
    link.hosts.turn_over()
    host = link.hosts.hosts[link.host.lease.membership]
    host.refresh(link.pool, has_lease=True)
    assert life.under_way
    link.settle()
    link.host.beat(link.now_s)
    link.settle()
    link.tell(ToWorker(b"w1-1", link.alive[b"w1-1"], Stop([0, 1])))
    link.hosts.turn_over()
    host.refresh(link.pool, has_lease=True)
    assert (life.under_way, link.pool.lives[b"w1-1"].under_way) == (False, True)


def test_a_message_to_a_worker_that_has_ended_meanwhile_is_not_waited_for():
    link = joined()
    host = link.hosts.hosts[link.host.lease.membership]
    link.tell(ToWorker(b"w0-1", link.alive[b"w0-1"], Stop([0, 1])))
    host.ended(b"w0-1", "it exited", link.pool)
    link.hosts.turn_over()
    host.refresh(link.pool, has_lease=True)
    assert (len(host.outbox), host.workers) == (1, {})


def test_g9_a_worker_that_does_not_answer_its_new_router_is_killed():
    """All permits waited for its first beat, and what it said was taken for old."""
    other = Followed(Journaled.running())
    with other.losing(RouterChanged):
        other.back(0)
    for _ in range(UNREAD_BEATS):
        assert other.kills == []
        other.now_s += 1.0
        other.beat()
    assert "does not answer its new router" in other.kills[0].why


def test_a_host_of_another_version_with_a_name_of_another_kind_is_refused():
    """Its name was written out, which a number of many digits does not allow."""
    link = Link()
    names: list[Any] = [10**5000, [], "plain"]
    for name in names:
        with pytest.raises(ProtocolError, match="version 9"):
            link.hosts.message(b"z", (cbor2.dumps([128, 9, name, OTHER, 1]),), link.now_s)
    assert [each.code for each in refusals(link, b"z")] == ["version"] * 3


def test_a_host_that_leaves_is_not_gone_before_all_that_it_kept_has_come():
    """Outcomes that a cut had taken were lost, and their requests ran again."""
    link = joined()
    frames = (link.alive.pop(b"w0-1"), b"client", b"\x84header", b"payload")
    link.host.leave()
    link.host.worker_message(b"w0-1", frames)
    link.host.exited(b"w0-1", "exit 0")
    link.carry()
    leaves = link.up.pop()
    link.up.clear()  # the connection is lost, and another one is there
    link.up.append(leaves)
    link.settle()
    assert link.hosts.hosts, "it has more to say"
    link.second(2)
    assert not link.hosts.hosts
    assert [type(each).__name__ for each in link.inputs[-2:]] == ["WorkerMessage", "Exited"]


def test_a_beat_that_is_never_answered_takes_no_memory():
    link = joined()
    link.cut = True
    for _ in range(1000):
        link.host.beat(link.now_s)
    assert len(link.host._outbox._sent_at) == MARKS_MOST


def test_a_host_of_no_worker_at_least_ended_the_server():
    """Once it held its lease, the range of its workers was one that there cannot be."""
    link = Link(workers=2)
    link.host._least = 0
    link.host.connect()
    link.carry()
    with pytest.raises(ProtocolError, match="a host of 0 workers at least, 2 at most"):
        link.second(3)
    link.second(3)
    assert not link.hosts.hosts


def test_a_name_that_the_peer_may_not_have_is_refused_and_takes_nothing() -> None:
    """Another key's host could be kept out for as long as somebody liked."""
    link = joined()
    link.hosts.claim = lambda route, name: "it is another key's" if name == "z" else ""
    said(link, first_hello())
    (refused,) = refusals(link, b"z")
    assert (refused.code, refused.text) == ("in-use", "it is another key's")
    assert OTHER not in link.hosts.hosts
    assert "z" not in link.hosts.leases.holdings
    assert link.hosts.records({}, link.now_s)["past_hosts"][-1]["why"] == "it is another key's"
    said(link, first_hello("y"))
    assert not refusals(link, b"z")
    assert OTHER in link.hosts.hosts


# -- Hosts that have as many workers as there is work for ----------------------

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
                self.hosts.take(effect)
            super().second()

    def all_ready(self) -> None:
        self.ready()
        self.second()


def sized(least: int, most: int, **given) -> Sized:
    link = Sized(WorkerRange(least, most), **given)
    link.joined()
    link.all_ready()
    return link


def test_a_host_that_is_not_known_to_hear_the_router_gets_no_more_and_holds_up_nobody():
    link = sized(1, 3)
    part = link.pool.vary(link.pool.open_slots(3, "b"), 1)  # of another one: nothing starts there
    part.slots[0].awaited, part.slots[0].start_at_s = False, float("inf")
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


@pytest.mark.parametrize("how", ["it is lost", "it leaves"])
def test_what_was_of_a_host_that_is_gone_is_opened_for_nobody(how: str):
    link = sized(1, 3)
    if how == "it leaves":
        link.host.leave()
        link.second()
    else:
        link.cut = True
        link.second(40)
        assert not link.hosts.hosts
    assert not link.pool.parts
    link.need = MUCH
    link.second(3)
    assert link.pool.wanted == 0


def test_the_next_router_keeps_the_workers_that_there_are():
    link = sized(1, 4)
    link.need = MUCH
    link.second(2)
    link.need = NONE
    link.all_ready()
    assert sorted(link.places[worker] for worker in link.alive) == [0, 1]
    link.follow()
    link.anew()
    link.second(3)
    assert [slot.index for slot in link.pool.parts[0].open()] == [0, 1]
    assert len(link.alive) == 2


# -- A router with a journal takes back what a host runs for the one before ----

WORKER, BEFORE = b"w0-1", b"b" * 16
READY = messages.encode(messages.WorkerHello(2, 7, "env", False, 256))


class Followed(Journaled):
    """The router that follows that of another pair, whose only worker lives on."""

    options: ClassVar[dict[str, Any]] = {"journaled": True, "lease": TERMS}

    def __init__(
        self, first: Journaled, records: list[Record] | None = None, *, rerun: bool = False
    ) -> None:
        super().__init__(ready=False, workers=0, rerun=rerun)
        self.now_s = first.now_s
        self.first = first
        self.core = first.workers[WORKER]
        saved = first.records if records is None else records
        waits = [EpochWait(BEFORE, 1e6, None)]
        self.router_takes(
            HostsBefore(waits, self.now_s), Restored(saved, self.now_s),
            PoolOpened((BEFORE,), self.now_s),
        )  # fmt: skip
        self.slots_of_host = self.router.pool.open_slots(1, "host", "-tag")

    def back(
        self, *running: int, next: int = 1, hello: bytes = READY, is_to_end: bool = False,
        missing: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.workers[WORKER] = self.core
        slot, spans = self.slots_of_host[0].index, Ranges(running).flat()
        self.follow(
            WorkerBack(
                WORKER, slot, self.core.incarnation, 7, is_to_end, hello, next, spans, self.now_s,
                missing,
            )
        )  # fmt: skip
        self.settle()

    def follow(self, given: OfHost) -> None:
        """What follows from a message or the silence of a host."""
        self.give(given)  # type: ignore[arg-type]  # it is none of its own

    def attach(self) -> None:
        self.request(self.stranger(), act=KeyAct.ATTACH)
        self.disk()

    @property
    def unknown(self) -> int:
        return self.router.dispatches.unknown.live_executions


def test_g2_what_runs_goes_on_and_is_answered_by_the_next_router():
    first = Journaled.running()
    other = Followed(first)
    other.attach()
    other.back(0)
    assert not other.runs
    assert other.router.pool.lives[WORKER].phase is Phase.READY
    assert other.router.pool.lives[WORKER].held, "no work before it is known to hold its lease"
    assert not other.unknown
    counters = other.router.works.counters
    assert (counters.dispatched, counters.reruns) == (0, 0), "it was, by the router before"
    other.runs = first.runs
    other.end(payload=b"outcome")
    other.disk()
    outcome, payload = told(other)
    assert (outcome.status, payload, outcome.executions) == (Status.RESULT, b"outcome", 1)
    assert len(first.runs) == 1


@pytest.mark.parametrize("running", [True, False], ids=["running", "announced"])
def test_g8_input_of_what_runs_on_was_kept_by_the_next_router_until_its_end(
    running: bool, monkeypatch: pytest.MonkeyPatch
):
    """Uncounted, though a worker had it."""
    first = Journaled.running()
    if not running:
        monkeypatch.setattr(first.router.announced, "grant", list)
        first.end(payload=bytes(first.workers[WORKER].limits.announce_bytes + 1))
    other = Followed(first)
    monkeypatch.setattr(other.router.announced, "grant", list)
    other.attach()
    other.back(*[0] * running)
    (execution,) = other.router.workforce.workers[WORKER].live.values()
    assert (execution.sent_at, execution.body) == (0, None)


def test_nothing_is_said_before_what_runs_is_merged():
    first = Journaled.running()
    other = Followed(first)
    said: list[Any] = []
    other.to_workers = said
    other.back(0)
    assert said == [messages.RouterChanged(other.router.epoch)]
    assert other.kills == [], "its first beat names what the router knows"


def test_g9_what_waited_for_the_journal_behind_what_did_not_ended_as_what_may_have_run():
    """Its number was below that of a dispatch that had come, so it was taken for one that had come
    and ended."""
    first = Journaled.asked()
    first.disk(1)  # its start is written, and not known to be safe
    first.submit(b"without a key")
    worker, run = first.runs[0]
    assert (worker, run.number) == (WORKER, 1)
    other = Followed(first)
    other.attach()
    other.back(1, next=2, missing=[0, 1])
    other.beat()
    assert [run.number for _, run in other.runs] == [0]
    other.end(payload=b"outcome")
    other.disk()
    outcome, payload = told(other)
    assert (outcome.status, payload, outcome.executions) == (Status.RESULT, b"outcome", 1)


def test_what_the_journal_does_not_know_is_stopped_and_holds_the_dead_epoch():
    first = Journaled()
    first.submit(b"without a key")
    assert len(first.runs) == 1
    other = Followed(first)
    other.back(0)
    assert other.unknown == 1
    assert other.cancels == [(WORKER, 0)]
    other.runs = first.runs
    other.end(status=Status.CANCELLED, payload=b"")
    assert not other.unknown
    other.follow(HostsDead([BEFORE], other.now_s))
    assert BEFORE in other.router.dead_epochs


def test_no_key_begins_before_all_of_the_router_before_is_dead():
    first = Journaled()
    first.call()  # its start is not safe
    other = Followed(first, first.records[:1])
    other.back(next=0)
    other.router.pool.lives[WORKER].held = False
    other.request(other.stranger(), body=b"another", name=KeyName(b"default", b"new"))
    other.advance(0.5)
    other.disk()
    assert not other.runs
    assert not other.router.behind
    other.follow(HostsDead([BEFORE], other.now_s))
    other.disk()
    assert sorted(bytes(run.body) for _, run in other.runs) == [b"another", b"body"]


def test_an_outcome_that_the_router_before_had_and_lost_may_have_run():
    first = Journaled.running()
    saved = list(first.records)
    first.end(payload=b"outcome")
    other = Followed(first, saved)
    other.attach()
    other.back()
    other.disk()
    outcome, payload = told(other)
    assert (outcome.status, outcome.executions) == (Status.ERROR, 1)
    assert error_records.decode(payload).verdict is Verdict.MAY_HAVE_RUN


def test_what_the_router_before_had_begun_to_cancel_is_not_cancelled_for_others():
    first = Journaled.running()
    saved = list(first.records)
    first.about(KeyAct.CANCEL)
    assert first.cancels
    other = Followed(first, saved)
    other.attach()
    other.back(0)
    other.runs = first.runs
    other.end(status=Status.CANCELLED, payload=b"")
    other.disk()
    _, payload = told(other)
    assert error_records.decode(payload).verdict is Verdict.MAY_HAVE_RUN


@pytest.mark.parametrize("arrived", [True, False])
def test_what_was_cancelled_meanwhile_is_stopped_if_it_had_arrived(arrived: bool):
    first = Journaled()
    if not arrived:
        first.lose = lambda message: isinstance(message, messages.Dispatch)
    first.call()
    first.disk()
    other = Followed(first)
    other.request(other.stranger(), act=KeyAct.CANCEL, tag=other.ids())
    other.disk()
    other.back(*[0] * arrived, next=int(arrived))
    assert other.cancels == [(WORKER, 0)] * arrived
    assert other.unknown == arrived


def test_worker_that_has_no_place_at_the_next_router_runs_to_its_end_and_gets_nothing_more():
    first = Journaled.running()
    other = Followed(first)
    other.attach()
    other.back(0, is_to_end=True)
    life = other.router.pool.lives[WORKER]
    assert (life.phase, life.why) == (Phase.EMPTYING, NO_SLOT)
    site = other.router.workforce.workers[WORKER].site
    assert (site.members, site.workers) == (1, 0), "its machine takes no work for it"
    other.runs = first.runs
    other.end(payload=b"outcome")
    other.disk()
    assert told(other)[1] == b"outcome"
    other.advance(0.5)
    assert other.exits == [WORKER]
    assert not other.kills


def test_a_worker_that_has_not_said_hello_says_it_to_the_next_router():
    first = Journaled.running()
    other = Followed(first, [])
    other.back(hello=b"", next=0)
    assert WORKER not in other.router.workforce.workers
    life = other.router.pool.lives[WORKER]
    assert (life.phase, life.pid) == (Phase.STARTING, 7)
    other.give(WorkerMessage([WORKER, life.incarnation, READY], other.now_s))
    assert life.phase is Phase.READY


def test_what_is_no_hello_makes_no_worker():
    other = Followed(Journaled.running(), [])
    other.back(hello=messages.encode(messages.Beat(b"", 1, 0, [], {})))
    assert WORKER not in other.router.workforce.workers


def back_with_an_outcome(monkeypatch: pytest.MonkeyPatch) -> Followed:
    """The next router, to which a worker is back that has announced an outcome without a key."""
    first = Journaled()
    first.submit(b"without a key")
    monkeypatch.setattr(first.router.announced, "grant", list)
    first.end(payload=bytes(first.workers[WORKER].limits.announce_bytes + 1))
    other = Followed(first)
    other.back()
    return other


def test_what_a_worker_announces_and_its_next_router_does_not_know_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
):
    other = back_with_an_outcome(monkeypatch)
    assert not other.core._held
    other.beat()
    assert other.kills == []


@pytest.mark.parametrize(
    ("number", "why"), [(0, "it was announced before"), (1, "it was not dispatched")]
)
def test_g10_a_worker_that_is_back_and_announces_what_it_cannot_have_is_killed(
    number: int, why: str, monkeypatch: pytest.MonkeyPatch
):
    other = back_with_an_outcome(monkeypatch)
    assert not other.kills
    other.from_worker(messages.Announced(b"s" * 16, 0, number, 1 << 20))
    assert [kill.worker for kill in other.kills] == [WORKER], why


def test_g5_only_outcomes_count_of_what_was_said_to_the_router_before():
    first = Journaled.running()
    other = Followed(first)
    with other.losing(messages.RouterChanged):
        other.back(0)
    permits = other.router.dispatches.permits
    (execution,) = other.router.workforce.workers[WORKER].live.values()
    ids = execution.session.id, execution.sequence, 0
    for message, *body in (
        (messages.Beat(b"", 0, 0, [], {}),), (messages.Claim(0, 0, "a", 1, None),),
        (messages.WorkerNotes([0, 1], [b"\xa0"]),), (messages.WorkerSave(*ids, 1), b"state"),
        (messages.Announced(*ids, 10),), (messages.WorkerHello(2, 7, "env", False, 256, BEFORE),),
    ):  # fmt: skip
        other.from_worker(message, *body)
    assert (permits.lines, execution.note, execution.saves) == ({}, b"", 0)
    assert (execution.size_bytes, other.kills) == (None, [])
    other.from_worker(messages.WorkerOutcome(*ids, 0, 1.0), b"outcome")
    assert not other.router.workforce.workers[WORKER].live


def test_a_host_is_told_what_is_safe_in_the_journal():
    journal, link = Journal(on=True), joined()
    (host,) = link.hosts.hosts.values()
    beat = HostBeat(host.holding.membership, 1, 0, EPOCH, 0, host.outbox.sent, False, {})

    def safe() -> int:
        return host.answer(beat, journal).safe

    have = host.inbox.have
    assert safe() == have
    journal.append(Closed, 1)
    host.inbox.have += 1
    assert (safe(), safe()) == (have, have)
    host.inbox.have += 1  # of which the journal has nothing
    journal.saved(journal.appended)
    assert (safe(), safe()) == (have + 1, have + 2)


def test_a_start_that_waits_for_the_journal_outlives_the_first_beat_of_a_worker_that_is_back():
    """It ended with what nobody had any more (seed 433 with hosts and resources)."""
    first = Journaled.running()
    other = Followed(first, [])
    with other.losing(messages.RouterChanged):
        other.back(next=1)
    other.follow(HostsDead([BEFORE], other.now_s))
    other.router.pool.lives[WORKER].held = False
    other.request(other.stranger(), body=b"new")
    other.advance(0.5)
    worker = other.router.workforce.workers[WORKER]
    assert list(worker.live) == [1]
    assert other.router.dispatches.settle(worker, Ranges()) == []
    assert list(worker.live) == [1]
