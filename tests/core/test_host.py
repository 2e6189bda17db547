"""A host, over a link that loses, doubles and ends."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host_effects import KillWorker, StartWorker, TellWorker, ToRouter
from trio_envserve.core.host_link import Item, What, to_frames
from trio_envserve.core.host_messages import (
    IN_USE,
    KINDS,
    VERSION,
    ForeignHost,
    HostLeaves,
    HostRefused,
    HostWelcome,
    encode,
)
from trio_envserve.core.lives import LifeInput, Phase
from trio_envserve.core.router_effects import Kill, Report, ToWorker
from trio_envserve.core.router_inputs import Exited, HeartbeatFelt, Spawned, WorkerMessage

from .host_rig import BEAT, EPOCH, HELLO, TERMS, Link, about, joined

DISPATCH = messages.Dispatch(bytes(16), 0, 0, "client")


def test_a_worker_of_a_host_is_like_any_other():
    link = joined(workers=2)
    assert link.host.is_joined
    assert list(link.alive) == [b"w0-1", b"w1-1"]
    assert [life.phase for life in link.pool.lives.values()] == [Phase.READY] * 2
    assert link.tell(ToWorker(b"w1-1", link.alive[b"w1-1"], DISPATCH, b"body"))
    link.settle()
    assert link.told == [(b"w1-1", link.alive[b"w1-1"], messages.encode(DISPATCH), b"body")]
    link.host.said(b"w0-1", (link.alive[b"w0-1"], b"client", b"\x00header", b"payload"))
    link.host.said(b"w0-1", (link.alive[b"w0-1"], BEAT))
    link.host.felt(b"w0-1", Heartbeat(0.5, 7, "there"))
    link.settle()
    outcome, beat, felt = link.inputs[-3:]
    assert outcome.frames[0] == b"w0-1"
    assert outcome.frames[-1] == b"payload"
    assert beat.frames[-1] == BEAT
    assert felt == HeartbeatFelt(b"w0-1", link.now_s, 0.5, 7, "there")
    assert Spawned(b"w0-1", 7) in link.inputs
    assert not link.hosts.take(Kill(b"another", "of this machine"))
    assert (link.hosts.host_of(b"w1-1"), link.hosts.host_of(b"another")) == ("a", None)
    assert not link.hosts.take(Report("info", "no business of hosts"))


def test_a_replacement_has_its_predecessors_place_on_the_host():
    """The number of a place says which GPU a worker has; a worker that still ends beside its
    replacement had the next free number."""
    link = Link(workers=2)
    for slot in link.pool.open_slots(3):  # of this machine
        slot.start_at_s = 1e9
    link.joined()
    link.ready()
    worker = next(each for each, place in link.places.items() if place == 1)
    link.host.out.clear()
    life = link.pool.lives[worker]
    link.pool.step(life, LifeInput.RETIRE, link.now_s, "it is recycled")
    link.pool.step(life, LifeInput.DRAINED, link.now_s, "it is recycled")
    link.second(3)
    (fresh,) = [each for each in link.alive if link.places[each] == 1 and each != worker]
    assert worker in link.alive
    assert fresh.endswith(b"-2")


@pytest.mark.parametrize("frames", [(b"i" * 16,), (b"i" * 16, b"x"), (b"i" * 16, b"1" * 7)])
def test_a_start_without_a_place_is_none(frames):
    link = joined()
    have = link.host._inbox.have
    spawn = to_frames(link.host.lease.tenure, have + 1, [Item(What.SPAWN, b"x", frames)])
    with pytest.raises(ProtocolError):
        link.host.message(spawn, link.now_s)


def test_a_refusal_is_logged_once_and_is_over_with_the_welcome():
    link = Link()
    link.host.connect()
    link.host.message(
        (encode(HostRefused(link.host.lease.tenure, 1, EPOCH, IN_USE, "another is here\n")),), 0.0
    )
    link.host.connect()
    link.host.message(
        (encode(HostRefused(link.host.lease.tenure, 2, EPOCH, IN_USE, "another is here\n")),), 0.0
    )
    assert link.host.refusal == (IN_USE, "another is here?")
    link.joined()
    assert [text for text in link.logged if "refuses" in text] == [
        "the router refuses this host: another is here?"
    ]
    assert link.host.refusal is None


def test_a_router_of_another_version_is_noticed():
    link = Link()
    link.host.connect()
    with pytest.raises(ForeignHost):
        link.host.message((cbor2.dumps([KINDS[HostWelcome], 2, "more"]),), 0.0)
    assert link.host.refusal == (VERSION, "there protocol version 2 is not spoken, 1 is")


def test_what_ends_after_the_connection_did_waits_for_the_next():
    link = joined()
    link.host.disconnect()
    assert not link.host.is_joined
    link.host.exited(b"w0-1", "exit code 1")
    assert not link.host.out


def test_an_outcome_is_kept_while_the_host_is_cut_off():
    link = joined()
    link.cut = True
    link.host.said(b"w0-1", (link.alive[b"w0-1"], b"client", b"\x00header", b"payload"))
    link.host.said(b"w0-1", (link.alive[b"w0-1"], BEAT))
    link.second(5)
    assert len(link.inputs) == 2
    link.cut = False
    link.host.connect()
    link.settle()
    assert [each.frames[-1] for each in link.inputs[2:]] == [b"payload"]


def test_what_a_lost_message_had_comes_with_the_next_beats():
    link = joined()
    link.host.said(b"w0-1", (link.alive[b"w0-1"], b"client", b"\x00header", b"payload"))
    link.carry()
    link.up.clear()
    link.tell(ToWorker(b"w0-1", b"i", DISPATCH, b"body"))
    link.route()
    link.down.clear()
    link.second(3)
    assert link.inputs[-1].frames[-1] == b"payload"
    assert link.told[-1][-1] == b"body"


def test_a_host_that_is_cut_off_for_long_is_dead_before_it_is_lost():
    link = joined()
    link.cut = True
    link.second(21)
    assert not link.alive
    assert not any(isinstance(each, Exited) for each in link.inputs)
    link.second(int(TERMS.wait_s) - 20)
    assert isinstance(link.inputs[-1], Exited)
    assert not link.hosts.hosts
    link.cut = False
    link.second(2)
    assert not link.alive, "its slots are closed"
    link.host.connect()
    link.settle()
    assert any("its tenure is over" in text for text in link.logged)
    link.second(5)
    assert list(link.alive) == [b"w0-2"]


def test_a_host_that_was_stopped_past_its_deadline_begins_with_a_new_guard():
    link = joined()
    link.cut = True
    link.host.beat(link.now_s + 1)
    link.carry()
    late = link.up.pop()
    link.now_s += 22  # the guard has killed it; the host has not noticed, and gets an answer
    link.take(link.hosts.message(b"r", late, link.now_s - 21))
    link.route()
    link.cut = False
    link.settle()
    assert not link.alive
    assert link.deadline_s is None
    link.second(2)
    assert link.deadline_s is not None
    assert link.deadline_s > link.now_s
    link.second(3)
    assert list(link.alive) == [b"w0-2"]


def test_a_host_that_was_lost_comes_back_over_the_same_connection():
    """It went on with beats that the router answered no more, for ever."""
    link = joined()
    tenure = link.host.lease.tenure
    link.cut = True
    for _ in range(60):
        link.second()
    assert not link.hosts.hosts
    link.cut = False
    for _ in range(5):
        link.second()
        if not link.host.is_joined:  # as its shell does
            link.host.connect()
    assert link.host.lease.tenure != tenure
    assert link.host.is_joined
    assert link.alive


def test_a_spawn_that_comes_too_late_is_an_end():
    link = joined()
    incarnation = link.ids()
    spawn = [Item(What.SPAWN, b"x", (incarnation, b"0"))]
    link.host.message(to_frames(link.host.lease.tenure, 9, spawn), link.now_s)
    assert b"x" not in link.host.workers, "others before it are missing"
    have = link.host._inbox.have
    link.host.message(to_frames(link.host.lease.tenure, have + 1, spawn), link.now_s + 100)
    assert not any(isinstance(each, StartWorker) for each in link.host.out)
    late = [Item(what, b"x", (b"why",)) for what in (What.TELL, What.KILL)]
    link.host.message(to_frames(link.host.lease.tenure, have + 2, late), link.now_s)
    assert not any(isinstance(each, TellWorker | KillWorker) for each in link.host.out)


def test_a_host_that_finds_its_time_over_kills_what_lives():
    """The guard has: but it costs nothing."""
    link = joined()
    link.host.beat(link.now_s + 100)
    link.carry()
    assert not link.alive
    assert not link.host.workers


def test_a_tenure_ends_only_when_its_workers_have():
    link = joined()
    tenure = link.host.lease.tenure
    link.host.connect()
    link.host.lease.refused(link.host.lease.hellos)
    link.host.out.clear()
    link.host.beat(link.now_s)
    assert any(isinstance(each, KillWorker) for each in link.host.out)
    link.host.out.clear()
    link.host.connect()
    assert not link.host.out
    link.host.exited(b"w0-1", "killed")
    assert link.host.lease.tenure != tenure
    assert any(isinstance(each, ToRouter) for each in link.host.out)


def test_what_ends_while_there_is_no_connection_is_told_later():
    link = joined()
    link.host.connect()
    link.host.out.clear()
    link.host.felt(b"w0-1", Heartbeat())
    link.host.exited(b"w0-1", "exit code 1")
    link.host.flush()
    assert not link.host.out


def test_messages_of_the_wrong_side_are_refused():
    link = joined()
    tenure = link.host.lease.tenure
    with pytest.raises(ProtocolError):
        link.host.message((encode(HostLeaves(tenure, 0)),), link.now_s)
    with pytest.raises(ProtocolError):
        link.hosts.message(b"r", (encode(HostWelcome(1, tenure, 1, EPOCH, 1.0, {})),), link.now_s)
    with pytest.raises(ProtocolError):
        spawned = to_frames(tenure, 0, [Item(What.SPAWNED, b"w0-1", (b"7",))])
        link.host.message(spawned, link.now_s)
    link.host.message((encode(HostWelcome(1, b"x" * 16, 1, EPOCH, 1.0, {})),), link.now_s)


STEPS = ["second", "say", "die", "tell", "lose up", "lose down", "double", "move", "connect", "cut"]


@given(steps=st.lists(st.sampled_from(STEPS), max_size=60))
def test_whatever_is_lost_each_word_of_a_worker_comes_once_and_its_end_comes_last(steps):
    link = joined(workers=2)
    said: dict[bytes, int] = {}
    for step in steps:
        worker = next(iter(link.alive), None)
        if step == "second":
            link.second()
        elif step == "cut":
            link.cut = not link.cut
        elif step == "connect":
            link.host.connect()
        elif step == "lose up" and link.up:
            link.up.popleft()
        elif step == "lose down" and link.down:
            link.down.popleft()
        elif step == "double" and link.up:
            link.up.appendleft(link.up[0])
        elif step == "move":
            link.move()
        elif step == "say" and worker is not None:
            said[worker] = said.get(worker, 0) + 1
            word = b"%d" % said[worker]
            link.host.said(worker, (link.alive[worker], b"client", b"\x00header", word))
        elif step == "die" and worker is not None:
            del link.alive[worker]
            link.host.exited(worker, "exit code 1")
        elif step == "tell" and worker in link.hosts._of_worker:
            link.tell(ToWorker(worker, b"i", DISPATCH, b"body"))
        link.carry()
        link.route()
    link.cut = False
    for _ in range(3):
        link.host.connect()
        link.second(20)
    ended = [each.worker for each in link.inputs if isinstance(each, Exited)]
    assert len(ended) == len({*ended})
    for worker, words in said.items():
        mine = [
            each.frames[-1] if isinstance(each, WorkerMessage) else each
            for each in link.inputs
            if about(each) == worker and not isinstance(each, Spawned)
        ]
        heard = [each for each in mine if isinstance(each, bytes) and each != HELLO]
        assert heard == [b"%d" % number for number in range(1, len(heard) + 1)]
        if any(isinstance(each, Exited) for each in mine):
            assert isinstance(mine[-1], Exited)
            lost = any("is gone" in each.how for each in mine if isinstance(each, Exited))
            assert lost or len(heard) == words
        else:
            assert worker in link.alive
            assert len(heard) == words
