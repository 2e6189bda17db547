"""The hosts of one server: nobody hears from it before a later server would know of it."""

from __future__ import annotations

import pytest

from trio_envserve.core.earlier_epochs import EarlierEpochs, EpochWait
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.host_messages import OVER, HostBeat, HostHello, HostRefused, decode, encode
from trio_envserve.core.host_pool import ToHost
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Spawn
from trio_envserve.core.server_hosts import ServerHosts
from trio_envserve.core.terms import Membership

from .helpers import Ids
from .host_rig import EPOCH, TERMS

NOW_S = 100.0
OURS: Membership = b"1" * 16
THEIRS: Membership = b"2" * 16


def opened(earlier: EarlierEpochs | None = None) -> ServerHosts:
    """Hosts that are welcome; the first record is safe."""
    router = Router(epoch=EPOCH, slots=0, now_s=NOW_S, new_id=Ids())
    hosts = ServerHosts(router, TERMS)
    hosts.open(earlier)
    record = hosts.record(NOW_S)
    assert record is not None
    hosts.written(record)
    assert hosts.is_recorded
    return hosts


def said(
    membership: Membership = OURS, name: str = "a", number: int = 1,
    ended: tuple[bytes, ...] = (),
) -> list[bytes]:  # fmt: skip
    """A hello of a host of one worker."""
    hello = HostHello(
        PROTOCOL_VERSION, name, membership, number, [*ended], b"", 1, 1, {}, [], b"", []
    )  # fmt: skip
    return [encode(hello)]


def beat() -> list[bytes]:
    return [encode(HostBeat(OURS, 1, 0, EPOCH, 0, 0, False, {}))]


def routes(hosts: ServerHosts) -> set[bytes]:
    """Those to whom something is said now."""
    return {each.route for each in hosts.effects() if isinstance(each, ToHost)}


def test_a_new_host_is_answered_once_it_is_recorded():
    hosts = opened()
    hosts.message(b"r", said(), NOW_S)
    hosts.hosts.out.append(Spawn(0, b"w0-1", OURS))
    assert [type(each) for each in hosts.effects()] == [Spawn], "the answer waits"
    record = hosts.record(NOW_S)
    assert record is not None
    assert record[-1].memberships == frozenset({OURS})
    hosts.written(record)
    assert routes(hosts) == {b"r"}
    assert hosts.record(NOW_S) is None


def test_a_message_that_changes_nothing_waits_for_no_record():
    hosts = opened()
    hosts.message(b"r", said(), NOW_S)
    hosts.written(hosts.record(NOW_S) or ())
    hosts.effects()
    hosts.message(b"r", beat(), NOW_S)
    assert hosts.record(NOW_S) is None
    hosts.tick(NOW_S)
    hosts.effects()
    assert not hosts.hosts.out


def test_a_host_that_could_not_be_recorded_gets_no_answer_and_others_do():
    hosts = opened()
    hosts.message(b"r", said(), NOW_S)
    hosts.written(hosts.record(NOW_S) or ())
    hosts.effects()
    hosts.message(b"new", said(THEIRS, "b"), NOW_S)
    hosts.message(b"r", beat(), NOW_S)
    assert hosts.record(NOW_S) is not None
    assert hosts.not_written()
    assert routes(hosts) == {b"r"}
    hosts.message(b"new", said(THEIRS, "b"), NOW_S)
    assert hosts.record(NOW_S) is not None
    assert not hosts.not_written(), "it is told of once"
    assert b"new" not in routes(hosts)
    hosts.message(b"new", said(THEIRS, "b", 2), NOW_S)
    hosts.written(hosts.record(NOW_S) or ())
    assert b"new" in routes(hosts)


def test_nothing_is_recorded_before_hosts_are_welcome():
    router = Router(epoch=EPOCH, slots=0, now_s=NOW_S, new_id=Ids())
    hosts = ServerHosts(router, TERMS)
    assert hosts.record(NOW_S) is None
    assert not hosts.is_recorded
    assert not hosts.is_open


def test_a_host_of_an_earlier_server_hears_that_its_membership_is_over():
    router = Router(epoch=EPOCH, slots=0, now_s=NOW_S, new_id=Ids())
    hosts = ServerHosts(router, TERMS)
    hosts.earlier = EarlierEpochs([EpochWait(b"o" * 16, 60.0, frozenset({OURS, THEIRS}))], NOW_S)
    assert hosts.end_membership(b"r", beat()) is None
    assert hosts.end_membership(b"r", said(b"3" * 16)) is None, "it joins, once hosts are welcome"
    told = hosts.end_membership(b"r", said())
    assert told is not None
    refused, _ = decode(told.frames, most_bytes=1 << 16)
    assert isinstance(refused, HostRefused)
    assert (told.route, refused.membership, refused.epoch) == (b"r", OURS, EPOCH)
    assert refused.code == OVER
    with pytest.raises(ProtocolError):
        hosts.end_membership(b"r", [b"nonsense"])
    hosts.end_membership(b"r", said(b"3" * 16, ended=(OURS, THEIRS)))
    assert hosts.earlier.have_ended(NOW_S)


def test_hosts_of_an_earlier_server_come_back_to_one_with_its_journal():
    wait = EpochWait(b"o" * 16, 60.0, frozenset({OURS}))
    hosts = opened(EarlierEpochs([wait], NOW_S))
    record = hosts.record(NOW_S + 1.0)
    assert record is None, "it was written as hosts were welcomed"
    assert hosts.earlier.waits == (wait,)
