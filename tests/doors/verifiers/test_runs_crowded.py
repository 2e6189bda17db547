"""What makes room where the server has less of it than the door, and who is first."""

from __future__ import annotations

from tests.doors.verifiers.desk import HERE, THERE, Desk, started
from trio_envserve.doors.verifiers.keeping import RECORD_BYTES
from trio_envserve.doors.verifiers.records import Deliver, Effect, Forget, Outcome
from trio_envserve.doors.verifiers.runs import CROWDED_S

LARGE = Outcome(reply=bytes(20 * RECORD_BYTES))


def leave(desk: Desk, *names: bytes, place: str = HERE, outcome: Outcome | None = LARGE) -> None:
    """Runs whose client is gone, with their outcomes or without."""
    lost, _ = desk.open(place)
    for name in names:
        desk.run(lost, name)
        if outcome is not None:
            desk.end(name, outcome)
    desk.close(lost)


def waits(desk: Desk, name: bytes = b"waits") -> bytes:
    """A run for which somebody waits."""
    peer, _ = desk.open()
    assert started(desk.run(peer, name)) == [name]
    return peer


def crowded(desk: Desk, *names: bytes) -> list[Effect]:
    return desk.runs.crowded(names, desk.now_s)


def test_what_nobody_had_read_took_the_room_of_all_until_its_lease_was_over():
    """The door had room for more, but its server had none: its runs were refused for now."""
    desk = Desk()
    leave(desk, b"a", b"b", b"c", b"d")
    waits(desk)
    assert crowded(desk, b"waits") == [Forget(b"a"), Forget(b"b")]
    assert crowded(desk, b"waits") == []  # what was done may be enough
    desk.now_s += CROWDED_S
    assert crowded(desk, b"waits") == [Forget(b"c")]
    desk.now_s += CROWDED_S
    assert crowded(desk, b"waits") == [Forget(b"d")]
    desk.now_s += CROWDED_S
    assert crowded(desk, b"waits") == []


def test_what_was_sent_makes_room_before_what_nobody_has():
    desk = Desk()
    leave(desk, b"a")
    peer = waits(desk, b"sent")
    desk.end(b"sent", LARGE)
    desk.deliver(peer, b"sent")
    waits(desk)
    assert crowded(desk, b"waits") == [Forget(b"sent")]


def test_nothing_makes_room_for_runs_for_which_nobody_waits():
    desk = Desk()
    leave(desk, b"a", b"b")
    leave(desk, b"c", outcome=None)
    waits(desk)
    assert crowded(desk) == []
    assert crowded(desk, b"c", b"unknown") == []
    assert desk.runs.find(b"a") is not None


def test_what_may_not_go_stays():
    """Its client is there, and was not sent all of it."""
    desk = Desk()
    waits(desk, b"unread")
    desk.end(b"unread", LARGE)
    waits(desk)
    assert crowded(desk, b"waits") == []


def test_the_place_that_has_most_gives_most():
    desk = Desk()
    leave(desk, b"a", b"b", b"c", b"d", b"e")
    leave(desk, b"f", place=THERE)
    waits(desk)
    assert crowded(desk, b"waits") == [Forget(b"a"), Forget(b"b"), Forget(b"c")]


def test_runs_whose_clients_were_gone_were_started_before_those_of_others():
    desk = Desk(kept_bytes=2 * RECORD_BYTES)
    reader, lost, peer = desk.peer(), desk.peer(), desk.peer()
    desk.run(reader, b"full")
    desk.end(b"full")
    for name in (b"a", b"b"):
        desk.run(lost, name)
    desk.run(peer, b"c")
    desk.close(lost)
    assert started(desk.deliver(reader, b"full")) == [b"c", b"a", b"b"]


def test_who_comes_back_for_a_run_moves_it_up():
    desk = Desk(kept_bytes=2 * RECORD_BYTES)
    reader, lost, peer = desk.peer(), desk.peer(), desk.peer()
    desk.run(reader, b"full")
    desk.end(b"full")
    for name in (b"a", b"b"):
        desk.run(lost, name)
    desk.close(lost)
    assert desk.run(peer, b"b") == []
    effects = desk.deliver(reader, b"full")
    assert started(effects) == [b"b", b"a"]
    assert Deliver(peer, (b"b",), False) in desk.end(b"b")
