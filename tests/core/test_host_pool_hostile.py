"""What a host sends wrong ends its own session, and harms nobody else."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.host_link import MARKS_MOST, Item, What, to_frames
from trio_envserve.core.host_messages import (
    KINDS,
    HostBeat,
    HostHello,
    HostLeaves,
    Items,
    decode,
    encode,
)
from trio_envserve.core.host_pool import ToHost
from trio_envserve.core.host_said import (
    HOST_WORKERS_MOST,
    HOSTS_MOST,
    NUMBERS_MOST,
    WORKERS_MOST,
)
from trio_envserve.core.messages import Beat
from trio_envserve.core.messages import encode as encode_worker
from trio_envserve.core.remote_hosts import KEPT_BYTES, KEPT_ITEMS
from trio_envserve.core.router_effects import ToWorker
from trio_envserve.core.router_inputs import Exited
from trio_envserve.core.terms import Tenure

from .host_rig import EPOCH, HELLO, Link, about, joined

OTHER = b"o" * 16
JUNK: list[Any] = [
    None, True, -1, 0, 1, 1 << 40, 1 << 62, 1 << 64, 10**400, -(10**400), 0.5, float("inf"),
    float("nan"), b"", b"\xff" * 16, b"x" * 300, "", "a\nb", "\ud7ff" * 100, [], [[]], [0] * 300,
    [b"p" * 16] * 17, [b"\n"], [1 << 62, (1 << 62) + 1], {}, {"gpu": 10**400},
    {"gpu": float("inf")}, {"load": float("nan"), "memory_bytes": -1}, {1: 2},
    [1, [2, [3, [4, [5]]]]],
]  # fmt: skip


def first_hello(name: str = "z", tenure: Tenure = OTHER, workers: int = 1) -> HostHello:
    return HostHello(1, name, tenure, 1, [], b"", workers, workers, {"gpu": 1}, [], b"", [])


def said(link: Link, message: Any, route: bytes = b"z") -> None:
    link.take(link.hosts.message(route, (encode(message),), link.now_s))


def refusals(link: Link, route: bytes) -> list[Any]:
    link_out, link.hosts.out = link.hosts.out, []
    sent = [each.frames for each in link_out if isinstance(each, ToHost) and each.route == route]
    decoded = [decode(frames, most_bytes=1 << 20)[0] for frames in sent]
    return [each for each in decoded if hasattr(each, "code")]


def valid(tenure: Tenure) -> list[Any]:
    life = [b"w9-1-tag", b"i" * 16, 7, HELLO, 4, [1, 3], 0]
    return [
        first_hello(),
        first_hello()._replace(lives=[life]),
        HostBeat(tenure, 1 << 20, 3, EPOCH, 0, 0, False, {"load": 0.5}),
        HostLeaves(tenure, 0),
        Items(tenure, 0, [0], [b"w0-1"], [0]),
        Items(tenure, 1, [2], [b"w0-1"], [0]),
    ]


def broken_ones(tenure: Tenure) -> list[Any]:
    """Each message that a host may send, with each of its fields spoilt in each way."""
    made: list[Any] = []
    for message in valid(tenure):
        array = [KINDS[type(message)], *message]
        made += [array[:at] for at in range(len(array))]
        made.append([*array, 0])
        for at in range(len(array)):
            made += [[*array[:at], junk, *array[at + 1 :]] for junk in JUNK]
        if isinstance(message, HostHello) and message.lives:
            (life,) = message.lives
            for at in range(len(life)):
                lives = [[*life[:at], junk, *life[at + 1 :]] for junk in JUNK]
                made += [[*array[:-1], [each]] for each in lives]
    return made


def test_whatever_a_host_sends_another_host_goes_on():
    """An amount without end, and a name that is none, ended the router."""
    count = refused = 0
    for number, array in enumerate(broken_ones(b"\x00" * 16)):
        if number % 50 == 0:  # a link each would take long
            link = joined(needs={"gpu": 1}, offers={"gpu": 8})
        link.hosts.out.clear()
        tenure = bytes([7, *number.to_bytes(2, "big")]) + bytes(13)
        said(link, first_hello(f"n{number}", tenure), route := b"%d" % number)
        array = [tenure if each == b"\x00" * 16 else each for each in array]
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
        Item(What.SPAWN, b"w0-1", (b"i" * 16, b"0")),
        Item(What.KILL, b"w0-1", (b"",)),
        Item(What.SPAWNED, b"w0-1", (b"9" * 40,)),
        Item(What.SPAWNED, b"w0-1", ()),
        Item(What.FELT, b"w0-1", ()),
        Item(What.FELT, b"w0-1", (b"[" * 10_000 + b"\n",)),
    ],
)
def test_a_host_that_sends_what_is_no_message_begins_anew_and_its_work_is_over(item):
    """What had come with it was lost: that a worker had ended, above all."""
    link = joined()
    tenure = link.host.lease.tenure
    first = link.hosts.hosts[tenure].inbox.have + 1
    items = [Item(What.EXITED, b"w0-1", (b"it ended",)), item]
    with pytest.raises(ProtocolError):
        link.hosts.message(b"r", to_frames(tenure, first, items), link.now_s)
    assert not any(isinstance(each, Exited) for each in link.inputs)
    (record,) = link.hosts.records({}, link.now_s)["hosts"]
    assert (record["state"], record["why"][:28]) == ("set aside", "it sent a malformed message:")
    assert link.hosts.message(b"r", to_frames(tenure, 0, items[:1]), link.now_s) == []
    link.settle()  # the host is told, kills what lives, and joins anew
    assert b"w0-1" not in link.alive
    assert [about(each) for each in link.inputs if isinstance(each, Exited)] == [b"w0-1"]
    link.second(3)
    assert len(link.alive) == 1
    assert link.host.lease.tenure != tenure


def test_a_host_that_was_set_aside_may_send_nonsense_too():
    link = joined()
    link.hosts._set_aside(link.hosts.hosts[link.host.lease.tenure], "info", "it leaves")
    with pytest.raises(ProtocolError):
        link.hosts.message(b"r", (b"",), link.now_s)
    (record,) = link.hosts.records({}, link.now_s)["hosts"]
    assert "malformed message" in record["why"]
    said(link, first_hello("a", link.host.lease.tenure), b"r")
    assert [each.code for each in refusals(link, b"r")] == ["over", "over"]


def test_a_tenure_is_that_of_one_host():
    """The lease of the second name ended, and with it the first one's workers, which lived."""
    link = joined()
    tenure = link.host.lease.tenure
    with pytest.raises(ProtocolError, match="two hosts"):
        said(link, first_hello("b", tenure)._replace(hello=9))
    assert [*link.hosts.leases.holdings] == ["a"]
    link.second(40)
    assert list(link.alive) == [b"w0-1"]


def test_a_place_that_another_host_has_taken_is_not_closed_with_the_first():
    """It got no more workers, and nobody was told why."""
    link = joined()
    first = link.hosts.hosts[link.host.lease.tenure]
    (slot,) = first.slots
    del link.alive[b"w0-1"]
    link.host.exited(b"w0-1", "it ended")
    link.settle()
    link.hosts._set_aside(first, "error", "its workers did not get ready")
    assert link.pool.open_slots(1, "b") == [slot]
    link.hosts._close(first)
    assert slot.is_open


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
    assert "16 hosts with 16384 workers are here" in refusal.text
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


def test_workers_of_one_host_run_so_many_dispatches_together():
    """Each had a bound, and all of them none."""
    most = NUMBERS_MOST // 2
    lives = [[b"w%d" % n, b"i" * 16, 7, b"", most, [0, most], n] for n in range(3)]
    link = Link()
    with pytest.raises(ProtocolError, match="run 98304 dispatches"):
        said(link, first_hello()._replace(lives=lives))


def test_what_is_no_hello_of_a_worker_is_no_statement():
    """It ended the router."""
    link = Link()
    for hello in (b"\xff", encode_worker(Beat(1, [], {}))):
        lives = [[b"w9-1", b"i" * 16, 7, hello, 1, [], 0]]
        with pytest.raises(ProtocolError):
            said(link, first_hello()._replace(lives=lives))
    assert not link.hosts.hosts


def test_a_host_that_takes_nothing_in_gets_no_work_and_then_is_over():
    """What is for it was kept without bound."""
    link = joined()
    tenure, incarnation = link.host.lease.tenure, link.alive[b"w0-1"]
    host, body = link.hosts.hosts[tenure], bytes(KEPT_BYTES)
    link.tell(ToWorker(b"w0-1", incarnation, Beat(1, [], {}), body))
    link.tell(ToWorker(b"w0-1", incarnation, Beat(1, [], {}), body))
    link.take(link.hosts.tick(link.now_s))
    assert host.state == "quiet"
    link.hosts.flush()
    link.hosts.out.clear()
    item = Item(What.TELL, b"w0-1", (b"",))
    for _ in range(KEPT_ITEMS):
        host.outbox.put(item)
    beat = HostBeat(tenure, 1000, 1, EPOCH, 0, host.outbox._have, False, {})
    with pytest.raises(ProtocolError, match="to take in"):
        said(link, beat, b"r")


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
    link.host.said(b"w0-1", frames)
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
    link.hosts._claim = lambda route, name: "it is another key's" if name == "z" else ""
    said(link, first_hello())
    (refused,) = refusals(link, b"z")
    assert (refused.code, refused.text) == ("in-use", "it is another key's")
    assert OTHER not in link.hosts.hosts
    assert "z" not in link.hosts.leases.holdings
    assert link.hosts.records({}, link.now_s)["past_hosts"][-1]["why"] == "it is another key's"
    said(link, first_hello("y"))
    assert not refusals(link, b"z")
    assert OTHER in link.hosts.hosts
