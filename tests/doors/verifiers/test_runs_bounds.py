"""At the bounds of runs and outcomes: who is refused, who waits, what makes room."""

from __future__ import annotations

import pytest

from tests.doors.verifiers.desk import HERE, THERE, Desk, started, told
from trio_envserve.core.errors import ConfigError
from trio_envserve.doors.verifiers import VerifiersLimits, msgpack, runs
from trio_envserve.doors.verifiers.keeping import RECORD_BYTES
from trio_envserve.doors.verifiers.records import Deliver, Forget, Send, Stop


def test_past_the_bound_of_runs_a_run_is_refused():
    desk = Desk(runs=4)
    first, second = desk.peer(), desk.peer(THERE)
    assert started(desk.run(first, b"a") + desk.run(first, b"b")) == [b"a", b"b"]
    assert told(desk.run(first, b"c"))["error"] == runs.FULL
    assert started(desk.run(second, b"d")) == [b"d"]
    assert told(desk.run(second, b"e"))["error"] == runs.FULL
    desk.end(b"a")
    assert told(desk.run(first, b"c"))["error"] == runs.FULL  # its share is less now
    desk.end(b"d")
    assert started(desk.run(first, b"c")) == [b"c"]


def test_past_the_bound_in_bytes_a_run_is_refused():
    desk = Desk(runs_bytes=20)
    peer = desk.peer()
    assert told(desk.run(peer, b"a", bytes(11)))["error"] == runs.FULL
    assert started(desk.run(peer, b"b", bytes(10))) == [b"b"]


def test_past_the_bound_of_outcomes_those_that_were_sent_make_room():
    desk = Desk(kept_bytes=2 * (RECORD_BYTES + 100))
    peer = desk.peer()
    for name in (b"a", b"b"):
        desk.run(peer, name)
    desk.end(b"a")
    desk.deliver(peer, b"a")
    assert desk.end(b"b") == [Deliver(peer, (b"b",), False), Forget(b"a")]


def crowded_by_another_place(*others_of_b: str) -> tuple[Desk, bytes]:
    """A connection waits for "a", which another one was sent, and was sent "b".  Then another
    place takes room, so that this one has more than its share."""
    desk = Desk(kept_bytes=4 * (RECORD_BYTES + 100))
    peer, other, far = desk.peer(), desk.peer(), desk.peer(THERE)
    of_b = [peer, *(desk.peer(each) for each in others_of_b)]
    for route, name in ((peer, b"a"), (other, b"a"), *((each, b"b") for each in of_b), (far, b"c")):
        desk.run(route, name)
    desk.end(b"a")
    desk.deliver(other, b"a")
    desk.end(b"b")
    for route in of_b:
        desk.deliver(route, b"b")
    desk.end(b"c")
    return desk, peer


def test_g10_a_connection_that_was_lost_at_a_place_without_room_ended_the_door():
    desk, peer = crowded_by_another_place()
    effects = desk.close(peer)
    assert [each for each in effects if isinstance(each, Forget)] == [Forget(b"a")]
    assert desk.runs.find(b"b") is not None, "its client may come back"


def test_g10_a_run_that_made_room_when_a_connection_was_lost_was_kept_all_the_same():
    desk, peer = crowded_by_another_place(HERE)
    assert desk.close(peer) == [Forget(b"b")]
    assert desk.after(desk.limits.unsure_s) == [Forget(b"a")]


def test_then_orphans_make_room():
    desk = Desk(kept_bytes=2 * (RECORD_BYTES + 100))
    lost, peer = desk.peer(), desk.peer()
    desk.run(lost, b"a")
    desk.end(b"a")
    desk.close(lost)
    desk.run(peer, b"b")
    assert desk.end(b"b") == [Deliver(peer, (b"b",), False), Forget(b"a")]


def test_then_new_runs_wait():
    desk = Desk(kept_bytes=2 * RECORD_BYTES)
    peer, other = desk.peer(), desk.peer(THERE)
    desk.run(peer, b"a")
    assert desk.end(b"a") == [Deliver(peer, (b"a",), False)]
    assert desk.run(peer, b"b") == []
    assert started(desk.run(other, b"c")) == [b"c"]


def test_a_run_that_waits_is_started_when_there_is_room():
    desk = Desk(kept_bytes=2 * RECORD_BYTES)
    peer = desk.peer()
    desk.run(peer, b"a")
    desk.end(b"a")
    assert desk.run(peer, b"b") == []
    effects = desk.deliver(peer, b"a")
    assert effects[0] == Forget(b"a")
    assert started(effects) == [b"b"]


def test_a_run_that_waits_is_cancelled_and_did_not_run():
    desk = Desk(kept_bytes=2 * RECORD_BYTES)
    peer = desk.peer()
    desk.run(peer, b"a")
    desk.end(b"a")
    desk.run(peer, b"b")
    effects = desk.cancel(peer, b"b")
    assert not any(isinstance(each, Stop) for each in effects)
    assert isinstance(effects[0], Send)
    assert msgpack.read(effects[0].message[2])["error"] == runs.NEVER


def test_room_that_others_give_back_is_taken():
    desk = Desk(kept_bytes=2 * RECORD_BYTES, place_share=1.0)
    peer, other = desk.peer(), desk.peer(THERE)
    for name in (b"a", b"b"):
        desk.run(other, name)
    desk.end(b"a")
    desk.end(b"b")
    assert desk.run(peer, b"c") == []
    desk.deliver(other, b"a")
    desk.deliver(other, b"b")
    assert started(desk.after(desk.limits.unsure_s)) == [b"c"]


def test_a_limit_must_be_positive():
    with pytest.raises(ConfigError, match="must be a positive"):
        VerifiersLimits(runs=0)
