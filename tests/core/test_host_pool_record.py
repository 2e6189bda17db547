"""The record of a router's hosts: nobody hears from it before a later server would know of it."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core.heartbeat import HEARTBEAT_LINE_BYTES
from trio_envserve.core.host_checks import is_hello
from trio_envserve.core.host_link import Item, ItemKind, items_of, to_frames
from trio_envserve.core.host_messages import (
    OVER,
    HostBeat,
    HostHello,
    HostRefused,
    HostWelcome,
    decode,
    encode,
    without_environment,
)
from trio_envserve.core.journal import ResourceOpened
from trio_envserve.core.lease import NO_LEASE_S, EpochWait, LeaseTerms
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RecordHosts, Report, Spawn, ToHost
from trio_envserve.core.router_inputs import (
    CloseAsked,
    HostMessage,
    HostsBefore,
    HostsRecorded,
    HostsTick,
    PoolOpened,
    Restored,
    Spawned,
    Tick,
    TurnOver,
)
from trio_envserve.core.terms import Membership

from .helpers import Ids
from .host_rig import EPOCH, HELLO, TERMS

NOW_S = 100.0
OURS: Membership = b"1" * 16
THEIRS: Membership = b"2" * 16


class Hosted:
    """A router that hosts may join; a test says when the disk has what it writes."""

    def __init__(self, *before: EpochWait, journaled: bool = True) -> None:
        self.router = Router(
            epoch=EPOCH, slots=0, now_s=NOW_S, new_id=Ids(), lease=TERMS, journaled=journaled
        )
        self.router.take(HostsBefore(before, NOW_S))

    @property
    def earlier(self) -> Any:
        assert self.router.hosts is not None
        return self.router.hosts.leases.earlier

    def open(self) -> None:
        """Hosts are welcome, and the first record is safe."""
        self.router.take(PoolOpened([], NOW_S))
        (record,) = self.router.take(TurnOver())
        assert isinstance(record, RecordHosts)
        self.recorded()

    def recorded(self, why: str = "") -> list[Any]:
        """What is wanted once the record is safe, or could not be written."""
        return self.router.take(HostsRecorded(why)) + self.router.take(TurnOver())

    def come(self, *said: tuple[bytes, list[bytes]]) -> list[Any]:
        """What is wanted in the turn in which these messages come."""
        out: list[Any] = []
        for route, frames in said:
            out += self.router.take(HostMessage(route, frames, NOW_S))
        return out + self.router.take(TurnOver())


def opened(*before: EpochWait) -> Hosted:
    hosted = Hosted(*before)
    hosted.open()
    return hosted


def hello(
    membership: Membership = OURS, name: str = "a", number: int = 1,
    ended: tuple[bytes, ...] = (),
) -> list[bytes]:  # fmt: skip
    """A hello of a host of one worker."""
    hello = HostHello(
        PROTOCOL_VERSION, name, membership, number, [*ended], b"", 1, 1, {}, [], b"", []
    )  # fmt: skip
    return [encode(hello)]


def beat(number: int = 1) -> list[bytes]:
    return [encode(HostBeat(OURS, number, number - 1, EPOCH, 0, 0, False, {}))]


def routes(out: list[Any]) -> set[bytes]:
    """Those to whom something is said."""
    return {each.route for each in out if isinstance(each, ToHost)}


def records(out: list[Any]) -> list[frozenset[bytes] | None]:
    """The memberships in each record that is to be written."""
    return [each.waits[-1].memberships for each in out if isinstance(each, RecordHosts)]


def test_a_host_that_comes_while_a_record_is_written_waits_for_the_next():
    hosted = opened()
    hosted.come((b"r", hello()))
    out = hosted.come((b"s", hello(THEIRS, "b")))
    assert (records(out), routes(out)) == ([], set())
    out = hosted.recorded()
    assert (records(out), routes(out)) == ([frozenset({OURS, THEIRS})], {b"r"})
    assert routes(hosted.recorded()) == {b"s"}


def test_a_host_that_is_recorded_waited_for_the_records_of_others():
    """One peer that joined again and again kept it without an answer."""
    hosted = opened()
    hosted.come((b"r", hello()))
    hosted.recorded()
    for number in range(1, 20):
        evil = bytes([number]) * 16
        out = hosted.come((b"evil", hello(evil, f"b{number}")), (b"r", beat(number)))
        assert routes(out) == {b"r"}
        assert hosted.router.hosts is not None
        assert not hosted.router.hosts.out


def test_a_host_that_could_not_be_recorded_gets_no_answer_and_others_do():
    hosted = opened()
    hosted.come((b"r", hello()))
    hosted.recorded()
    out = hosted.come((b"new", hello(THEIRS, "b")), (b"r", beat()))
    assert (records(out), routes(out)) == ([frozenset({OURS, THEIRS})], {b"r"})
    out = hosted.recorded("the disk is full")
    assert routes(out) == set()
    (report,) = [each for each in out if isinstance(each, Report)]
    assert report == Report("error", "no further host can join: the disk is full")
    assert records(hosted.come((b"new", hello(THEIRS, "b")))) != []
    out = hosted.recorded("the disk is full")
    assert not any(isinstance(each, Report) for each in out), "it is told of once"
    assert b"new" not in routes(out)
    assert records(hosted.come((b"new", hello(THEIRS, "b", 2)))) != []
    assert b"new" in routes(hosted.recorded())


def test_a_host_that_could_not_be_recorded_and_is_gone_is_forgotten():
    hosted = opened()
    hosted.come((b"r", hello()))
    hosted.recorded("the disk is full")
    out = hosted.router.take(HostsTick(NOW_S + 1000)) + hosted.router.take(TurnOver())
    assert records(out) == [], "the last record is right again"
    assert records(hosted.come((b"s", hello(THEIRS, "b")))) == [frozenset({THEIRS})]
    assert any(isinstance(each, Report) for each in hosted.recorded("the disk is full")), "anew"


def with_resource_of_host(lease: LeaseTerms | None) -> Router:
    """A router whose journal has left a resource of a host that is not there."""
    router = Router(
        epoch=EPOCH, slots=1, now_s=NOW_S, new_id=Ids(), lease=lease, journaled=True
    )  # fmt: skip
    if lease is not None:
        router.take(HostsBefore((), NOW_S))
    left = ResourceOpened(0, "r", "sandbox", "m:f", b"a" * 16, 0, b"", 0, 0, "host")
    router.take(Restored([left], NOW_S))
    router.take(PoolOpened([], NOW_S))
    return router


@pytest.mark.parametrize(
    ("lease", "grace_s"),
    [(None, 0.0), (TERMS, TERMS.wait_s), (LeaseTerms(NO_LEASE_S), LeaseTerms().wait_s)],
)
def test_g13_resource_of_a_host_was_stuck_before_that_could_join_the_next_server(
    lease: LeaseTerms | None, grace_s: float
):
    router, waited_s = with_resource_of_host(lease), 0.0
    while not router.resources.stuck and waited_s < 1000.0:
        waited_s += 1.0
        router.take(Tick(NOW_S + waited_s))
    assert grace_s <= waited_s < grace_s + 2.0


def test_g13_server_that_stops_waits_for_no_host_to_join():
    router = with_resource_of_host(TERMS)
    router.take(CloseAsked(NOW_S + 1.0))
    router.take(Tick(NOW_S + 2.0))
    assert [each.name for each in router.resources.stuck] == ["r"]


def test_a_first_record_that_could_not_be_written_knows_no_host():
    hosted = Hosted()
    hosted.router.take(PoolOpened([], NOW_S))
    hosted.router.take(TurnOver())
    hosted.recorded("the disk is full")
    assert hosted.router.hosts is not None
    assert not hosted.router.hosts.is_recorded


def test_nothing_is_recorded_before_hosts_are_welcome():
    hosted = Hosted()
    assert hosted.router.hosts is not None
    for given in (HostMessage(b"r", hello(), NOW_S), HostsTick(NOW_S), Tick(NOW_S), TurnOver()):
        assert not hosted.router.take(given)
    assert not hosted.router.hosts.is_open
    assert not hosted.router.hosts.is_recorded


def test_a_host_of_an_earlier_server_hears_that_its_membership_is_over():
    wait = EpochWait(b"o" * 16, 60.0, frozenset({OURS, THEIRS}))
    hosted = Hosted(wait, journaled=False)
    assert not hosted.come((b"r", beat()))
    assert not hosted.come((b"r", hello(b"3" * 16))), "it joins, once hosts are welcome"
    (told,) = hosted.come((b"r", hello()))
    refused, _ = decode(told.frames, most_bytes=1 << 16)
    assert isinstance(refused, HostRefused)
    assert (told.route, refused.membership, refused.epoch) == (b"r", OURS, EPOCH)
    assert refused.code == OVER
    hosted.come((b"r", [b"nonsense"]))
    assert hosted.router.malformed == 1
    assert not hosted.earlier.have_ended(NOW_S)
    hosted.come((b"r", hello(b"3" * 16, ended=(OURS, THEIRS))))
    assert hosted.earlier.have_ended(NOW_S)


def test_an_epoch_whose_hosts_are_dead_is_recorded_no_more():
    wait = EpochWait(b"o" * 16, 60.0, frozenset({OURS}))
    hosted = opened(wait)
    hosted.router.take(HostsTick(NOW_S + 60.0))
    (follows,) = hosted.router.followed
    assert follows == ([b"o" * 16], NOW_S + 60.0)
    (record,) = [each for each in hosted.router.take(TurnOver()) if isinstance(each, RecordHosts)]
    assert [each.epoch for each in record.waits] == [EPOCH]


def test_an_effect_for_another_machine_is_here_for_who_watches():
    hosted = opened()
    assert hosted.router.stats()["hosts"] == []
    hosted.come((b"r", hello()))
    hosted.recorded()
    for number in (1, 2):
        hosted.come((b"r", beat(number)))
        hosted.router.take(HostsTick(NOW_S))
    (spawn,) = [each for each in hosted.router.take(Tick(NOW_S)) if isinstance(each, Spawn)]
    assert hosted.router.pool.lives[spawn.worker].host == "a"
    assert routes(hosted.router.take(TurnOver())) == {b"r"}
    assert [each["workers"] for each in hosted.router.stats()["hosts"]] == [1]
    pid = Item(ItemKind.SPAWNED, spawn.worker, (b"7",))
    later_s = NOW_S + 1.0
    hosted.router.take(HostMessage(b"r", to_frames(OURS, 1, [pid]), later_s))
    assert hosted.router.followed == [Spawned(spawn.worker, 7)]
    assert hosted.router.pool.lives[spawn.worker].pid == 7


def test_a_starting_worker_of_a_host_that_leaves_was_killed_in_the_log_only():
    hosted = opened()
    hosted.come((b"r", hello()))
    hosted.recorded()
    for number in (1, 2):
        hosted.come((b"r", beat(number)))
        hosted.router.take(HostsTick(NOW_S))
    hosted.router.take(Tick(NOW_S))
    assert kinds(hosted.router.take(TurnOver())) == [ItemKind.SPAWN]
    leaves = HostBeat(OURS, 3, 2, EPOCH, 0, 1, True, {})
    assert kinds(hosted.come((b"r", [encode(leaves)]))) == [ItemKind.KILL]


def kinds(out: list[Any]) -> list[ItemKind]:
    """The items that a host is sent."""
    told = [each.frames for each in out if isinstance(each, ToHost)]
    return [item.kind for each in told for item in items_of(each, 4096, {OURS}.__contains__)]


@pytest.mark.parametrize("kind", [ItemKind.EXITED, ItemKind.SPAWNED, ItemKind.HEARTBEAT])
def test_a_long_item_of_a_host_is_refused(kind: ItemKind):
    hosted = opened()
    hosted.come((b"r", hello()))
    hosted.recorded()
    item = Item(kind, b"w0-1", (bytes(HEARTBEAT_LINE_BYTES), b"1"))
    hosted.come((b"r", [bytes(each) for each in to_frames(OURS, 1, [item])]))
    assert hosted.router.malformed == 1


def test_a_hello_of_a_worker_that_is_too_long_is_none():
    frames = [bytes(16), HELLO]
    assert is_hello(frames, len(HELLO))
    assert not is_hello(frames, len(HELLO) - 1)


def test_what_is_for_a_worker_that_has_ended_is_told_to_nobody():
    hosted = opened()
    assert hosted.router.hosts is not None
    hosts = hosted.router.hosts
    hosted.come((b"r", hello()))
    hosted.recorded()
    hosts._told[b"w9-1", bytes(16)] = []
    assert routes(hosted.router.take(TurnOver())) == set()


def test_a_message_without_items_has_none():
    item = Item(ItemKind.SPAWNED, b"w0-1", (b"7",))
    frames = to_frames(OURS, 1, [item])
    assert items_of(frames, 4096, {OURS}.__contains__) == [item]
    assert items_of(frames, 4096, {THEIRS}.__contains__) == []
    for wrong in ([], [b"nonsense"], hello()):
        assert items_of(wrong, 4096, {OURS}.__contains__) == []


def test_the_environment_is_left_out_of_a_welcome_only():
    secret = HostWelcome(PROTOCOL_VERSION, OURS, 1, EPOCH, 20.0, {"environ": "secret"})
    other = secret._replace(serves={})
    assert without_environment(encode(secret)) == without_environment(encode(other))
    assert b"secret" not in without_environment(encode(secret))
    assert without_environment(hello()[0]) == hello()[0]


@pytest.mark.parametrize("frames", [[], [b"\x00"]])
def test_a_malformed_message_of_a_host_is_counted(frames: list[bytes]):
    hosted = opened()
    hosted.come((b"r", frames))
    assert hosted.router.malformed == 1
