"""Who waits for which run, and when it is stopped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doors.verifiers.desk import DONE, HERE, THERE, Desk, started, told
from trio_envserve.doors.verifiers import msgpack, runs
from trio_envserve.doors.verifiers.keeping import RECORD_BYTES
from trio_envserve.doors.verifiers.records import (
    Deliver,
    Effect,
    Forget,
    Outcome,
    Send,
    Stage,
    Start,
    Stop,
)

# -- what is asked -----------------------------------------------------------------


def test_a_run_is_started_and_its_outcome_sent_and_forgotten():
    desk = Desk()
    peer = desk.peer()
    [start] = desk.run(peer)
    assert isinstance(start, Start)
    assert (start.name, start.payload, start.wire.NAME) == (b"a", b"p", "verifiers-0.4")
    assert desk.end() == [Deliver(peer, (b"a",), False)]
    run = desk.runs.find(b"a")
    assert run is not None
    assert [kind for _, kind, _ in run.messages] == [b"delta", b"delta", b"reply"]
    assert desk.deliver(peer) == []
    assert desk.after(desk.limits.unsure_s - 1) == []
    assert desk.after(1) == [Forget(b"a")]
    assert desk.is_empty


def test_a_probe_is_answered_only_when_something_can_run():
    desk = Desk()
    peer = desk.peer()
    assert desk.say(peer, b"h", b"health", b"\x80", ready=False) == []
    assert told(desk.say(peer, b"h", b"health", b"\x80"))["success"] is True


def test_what_is_wrong_starts_nothing():
    desk = Desk(run_bytes=10)
    peer = desk.peer()
    assert desk.say(peer, b"a") == []
    assert "did not run" in told(desk.say(peer, b"a", b"jump", b""))["error"]
    too_large = desk.run(peer, payload=bytes(11))
    assert "11 bytes, 10 allowed (it did not run)" in told(too_large)["error"]
    assert desk.say(b"unknown", b"a", b"run", b"") == []
    assert desk.runs.not_understood == 2
    assert desk.is_empty


def test_an_error_is_sent_in_words():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    desk.end(outcome=Outcome(error="it broke (it may have run)"))
    run = desk.runs.find(b"a")
    assert run is not None
    [(_, _, body)] = run.messages
    assert msgpack.read(body) == {"success": False, "error": "it broke (it may have run)"}


def test_runs_that_say_nothing_take_nothing():
    desk = Desk()
    peer = desk.peer()
    for name in (b"a", b"b", b"c"):
        desk.run(peer, name, b"")
    for name in (b"a", b"b", b"c"):
        desk.end(name)
        desk.deliver(peer, name)
    desk.after(desk.limits.unsure_s)
    assert desk.is_empty


def test_what_did_not_run_needs_not_be_forgotten():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    desk.end(outcome=Outcome(error="no", ran=False))
    desk.deliver(peer)
    assert desk.after(desk.limits.unsure_s) == []
    assert desk.is_empty


# -- the same id again ---------------------------------------------------------------


def test_the_same_run_is_started_once():
    desk = Desk()
    first, second = desk.peer(), desk.peer(THERE)
    assert started(desk.run(first)) == [b"a"]
    assert desk.run(first) == desk.run(second) == []
    assert desk.end() == [Deliver(first, (b"a",), False), Deliver(second, (b"a",), False)]
    desk.deliver(first)
    assert desk.after(desk.limits.unsure_s) == []  # the second one has not got it
    desk.deliver(second)
    assert desk.after(desk.limits.unsure_s) == [Forget(b"a")]


def test_who_was_lost_before_it_got_the_outcome_holds_it_for_nobody():
    desk = Desk()
    first, second = desk.peer(), desk.peer()
    desk.run(first)
    desk.run(second)
    desk.end()
    desk.deliver(first)
    assert desk.close(second) == []
    assert desk.after(desk.limits.unsure_s) == [Forget(b"a")]
    assert desk.is_empty


def test_who_repeats_a_run_gets_the_outcome_that_is_there():
    desk = Desk()
    first, second = desk.peer(), desk.peer()
    desk.run(first)
    desk.end()
    assert desk.run(first) == []  # it is on its way
    desk.deliver(first)
    assert desk.run(first) == [Deliver(first, (b"a",), True)]
    assert desk.run(second) == [Deliver(second, (b"a",), True)]
    desk.deliver(first)
    assert desk.after(desk.limits.unsure_s) == []  # the second one has not got it


def test_another_run_under_the_same_id_is_refused_and_the_first_goes_on():
    desk = Desk()
    first, second = desk.peer(), desk.peer()
    desk.run(first)
    assert "used for another one (it did not run)" in told(desk.run(second, payload=b"q"))["error"]
    assert desk.end() == [Deliver(first, (b"a",), False)]
    desk.deliver(first)
    desk.after(desk.limits.unsure_s)
    assert "used for another one" in told(desk.run(second, payload=b"q"))["error"]


def test_what_is_over_is_not_run_again():
    desk = Desk(known=1)
    peer = desk.peer()
    desk.run(peer)
    desk.end()
    desk.deliver(peer)
    desk.after(desk.limits.unsure_s)
    assert "not run again (it ran)" in told(desk.run(peer))["error"]
    desk.run(peer, b"b")
    desk.cancel(peer, b"b")
    assert "cancelled" in told(desk.run(peer, b"b"))["error"]


# -- cancels -------------------------------------------------------------------------


def test_a_cancel_stops_a_run_and_tells_who_waits():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    effects = desk.cancel(peer)
    assert Stop(b"a") in effects
    replies = [msgpack.read(each.message[2]) for each in effects if isinstance(each, Send)]
    assert [each.get("cancelled") for each in replies] == [None, True]
    assert replies[0]["error"] == runs.CANCELLED
    assert told(desk.cancel(peer))["cancelled"] is False
    assert desk.is_empty


@pytest.mark.parametrize("ran", [True, False])
def test_an_outcome_that_came_after_the_cancel_was_retained_for_nobody(ran: bool):
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    desk.cancel(peer)
    assert desk.end(outcome=DONE._replace(ran=ran)) == ([Forget(b"a")] if ran else [])
    assert desk.is_empty


def test_a_cancel_of_what_has_ended_changes_nothing():
    desk = Desk()
    peer = desk.peer()
    desk.run(peer)
    desk.end()
    assert told(desk.cancel(peer))["cancelled"] is False
    assert desk.runs.find(b"a") is not None


def test_a_cancel_reaches_the_run_of_a_connection_that_was_lost():
    desk = Desk()
    first = desk.peer()
    desk.run(first)
    desk.close(first)
    assert Stop(b"a") in desk.cancel(desk.peer())
    assert desk.is_empty


def test_nobody_cancels_the_run_of_another_place():
    desk = Desk()
    first, second = desk.peer(), desk.peer(THERE)
    desk.run(first)
    assert told(desk.cancel(second))["cancelled"] is False
    assert desk.end() == [Deliver(first, (b"a",), False)]


def test_a_cancel_that_overtakes_its_run_stops_it():
    desk = Desk(early_cancels=1)
    peer = desk.peer()
    assert told(desk.cancel(peer))["cancelled"] is False
    assert told(desk.run(peer))["error"] == runs.EARLY
    desk.cancel(peer, b"b")
    desk.cancel(peer, b"c")  # takes the place of the other
    assert started(desk.run(peer, b"b")) == [b"b"]


# -- the end -----------------------------------------------------------------------------


def test_a_door_that_closes_tells_who_waits():
    desk = Desk(kept_bytes=2 * RECORD_BYTES)
    peer = desk.peer()
    for name in (b"a", b"b"):
        desk.run(peer, name)
    desk.end(b"a")
    desk.run(peer, b"c")
    effects = desk.runs.close()
    said = {
        bytes(each.message[0]): msgpack.read(each.message[2])["error"]
        for each in effects
        if isinstance(each, Send)
    }
    assert said == {b"b": runs.CLOSED, b"c": runs.NEVER}
    assert desk.is_empty


# -- any history -------------------------------------------------------------------------

NAMES = st.sampled_from([b"a", b"b"])
ANY = st.integers(-4, -1)
"""A connection, counted from the last one."""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from([HERE, THERE])),
        st.tuples(st.just("close"), ANY),
        st.tuples(st.just("run"), ANY, NAMES, st.sampled_from([b"p", b"p", b"q"])),
        st.tuples(st.just("cancel"), ANY, NAMES),
        st.tuples(st.just("end"), NAMES),
        st.tuples(st.just("deliver"), ANY, NAMES),
        st.tuples(st.just("after"), st.sampled_from([1.0, 4.0, 40.0, 700.0])),
    ),
    max_size=60,
)


class History:
    """Does what effects say, as far as a step has not done it yet, and judges them."""

    def __init__(self, redeliver: bool) -> None:
        self.desk = Desk(redeliver=redeliver, kept_bytes=3 * RECORD_BYTES, runs=6)
        self.peers: dict[bytes, bool] = {}
        """Whether a connection is open."""
        self.live: set[bytes] = set()
        self.ever: set[bytes] = set()

    def step(self, what: str, *details: Any) -> None:
        desk = self.desk
        if what == "open":
            route, effects = desk.open(*details)
            self.peers[route] = True
        elif what == "after":
            effects = desk.after(*details)
        elif what == "end":
            if details[0] not in self.live:
                return
            self.live.remove(details[0])
            effects = desk.end(details[0])
        else:
            if len(self.peers) < -details[0]:
                return
            route = list(self.peers)[details[0]]
            if what == "close":
                if not self.peers[route]:
                    return
                self.peers[route] = False
            effects = getattr(desk, what)(route, *details[1:])
        self.take(effects)
        self.check()

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(name):
                    assert name not in self.ever, "a run was started twice"
                    self.ever.add(name)
                    self.live.add(name)
                case Stop(name):
                    self.live.remove(name)
                case Send(route) | Deliver(route):
                    assert isinstance(effect, Send) or self.peers[route]
                case Forget(name):
                    assert name not in self.live

    def check(self) -> None:
        table = self.desk.runs
        kept = [each for each in table._runs.values() if each.stage is Stage.KEPT]
        others = [each for each in table._runs.values() if each.stage is not Stage.KEPT]
        assert table._keeping.bytes.total == sum(each.size_bytes for each in kept)
        assert table._count.total == len(others) <= self.desk.limits.runs
        assert table._asked.total == sum(each.asked_bytes for each in others)
        assert {each.name for each in others if each.stage is Stage.RUNNING} == self.live
        for run in table._runs.values():
            is_orphan = run in table._orphans
            is_sent = run in table._sent
            assert is_sent is (bool(run.waiters) and all(run.waiters.values()))
            assert is_orphan is not bool(run.waiters)
            assert all(self.peers[route] for route in run.waiters)
            for route in run.waiters:
                assert run.name in table._peers[route].runs


@given(STEPS, st.booleans())
def test_whatever_happens_a_run_is_started_once_and_the_books_are_right(steps, redeliver):
    history = History(redeliver)
    for step in steps:
        history.step(*step)
    for route, is_open in history.peers.items():
        if is_open:
            history.step("close", list(history.peers).index(route) - len(history.peers))
    for name in list(history.live):
        history.step("end", name)
    history.step("after", 700.0)
    history.step("after", 700.0)
    assert history.desk.is_empty
