"""Which deltas of a run go on as they come, and which are told at its end."""

from __future__ import annotations

import pytest

from tests.doors.verifiers.desk import Desk
from trio_envserve.doors.verifiers.records import Deliver, Outcome, Stream


def test_deltas_go_on_as_they_come_and_the_outcome_has_the_rest():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    [stream] = desk.runs.delta(b"a", 0, memoryview(b"one"))
    assert stream == Stream(peer, b"a", (b"a", b"delta", b"one"))
    assert desk.end() == [Deliver(peer, (b"a",), False, 1)]
    assert desk.stream(b"late", first=1) == []
    assert desk.stream(b"of nothing", name=b"b") == []


def test_who_was_sent_all_deltas_gets_the_reply_alone():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(b"one", b"two") == [peer, peer]
    assert desk.end() == [Deliver(peer, (b"a",), False, 2)]


def test_after_a_gap_nothing_is_streamed_and_the_outcome_comes_afresh():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(b"one") == [peer]
    assert desk.stream(b"three", first=2) == desk.stream(b"two", first=1) == []
    assert desk.end() == [Deliver(peer, (b"a",), True)]


def test_a_run_whose_first_delta_was_lost_is_delivered_as_one_without_any():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(b"two", first=1) == desk.stream(b"one") == []
    assert desk.end() == [Deliver(peer, (b"a",), False)]


def test_a_run_that_begins_anew_is_delivered_afresh():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(b"of the first execution") == [peer]
    assert desk.stream(b"one") == []
    assert desk.end() == [Deliver(peer, (b"a",), True)]


@pytest.mark.parametrize("streamed", [[b"other"], [b"one", b"two", b"three"], [b"on", b"etwo"]])
def test_what_was_streamed_and_is_not_in_the_outcome_is_taken_back(streamed):
    """Of another execution, whose end was lost: only its numbers go on."""
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(*streamed) == [peer] * len(streamed)
    assert desk.end() == [Deliver(peer, (b"a",), True)]


def test_whoever_missed_a_delta_gets_the_outcome_afresh_and_the_others_the_rest():
    desk = Desk()
    first, second = desk.peer(), desk.peer()
    desk.run(first)
    desk.run(second)
    assert desk.stream(b"one") == [first]
    desk.runs.missed(first, b"a")
    assert desk.stream(b"two", first=1) == []
    afresh = {Deliver(first, (b"a",), True), Deliver(second, (b"a",), True)}
    assert set(desk.end()) == afresh


def test_whose_connection_is_lost_gets_no_more_deltas():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(b"one") == [peer]
    desk.close(peer)
    assert desk.stream(b"two", first=1) == []
    later = desk.peer()
    assert desk.end() == [Deliver(later, (b"a",), True)]


def test_an_error_is_told_whatever_was_streamed():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(b"one") == [peer]
    assert desk.end(outcome=Outcome(error="lost")) == [Deliver(peer, (b"a",), False)]


def test_g10_no_more_is_streamed_than_may_be_hashed_at_once():
    desk = Desk(streamed_bytes=5)
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(b"one") == [peer]
    assert desk.stream(b"two", b"3", first=1) == []
    assert desk.end() == [Deliver(peer, (b"a",), False, 1)]


def test_a_delta_that_is_too_large_for_the_wire_is_not_sent():
    desk = Desk(frame_bytes=10, run_bytes=5)
    peer = desk.peer()
    desk.run(peer)
    assert desk.stream(bytes(11)) == desk.stream(b"two", first=1) == []
