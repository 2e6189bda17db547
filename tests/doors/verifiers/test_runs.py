"""Who waits for which run, when it is stopped, and what makes room: the table without a door."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.doors.verifiers import VerifiersLimits, runs
from trio_envserve.doors.verifiers.runs import (
    GONE_S,
    RECORD_BYTES,
    Deliver,
    Effect,
    RunOutcome,
    Runs,
    Send,
    StartRun,
    StopRun,
    StreamDelta,
)

HERE, THERE = "10.0.0.1", "10.0.0.2"
DONE = RunOutcome(reply=b"reply", deltas=[b"one", b"two"], traces=["t"])


class Desk:
    """A table of runs, its clock, and what became of its effects."""

    def __init__(self, *, redeliver: bool = True, **limits: Any) -> None:
        self.limits = VerifiersLimits(**limits)
        self.runs = Runs(self.limits, redeliver=redeliver)
        self.now_s = 0.0
        self.routes = 0

    def open(self, place: str = HERE) -> tuple[bytes, list[Effect]]:
        self.routes += 1
        route = b"route %d" % self.routes
        return route, self.runs.opened(route, place)

    def peer(self, place: str = HERE) -> bytes:
        route, effects = self.open(place)
        assert effects == []
        return route

    def close(self, route: bytes) -> list[Effect]:
        return self.runs.closed(route, self.now_s)

    def say(self, route: bytes, *frames: bytes, ready: bool = True) -> list[Effect]:
        return self.runs.received(route, list(frames), self.now_s, ready=ready)

    def run(self, route: bytes, name: bytes = b"a", payload: bytes = b"p") -> list[Effect]:
        return self.say(route, name, b"run", payload)

    def cancel(self, route: bytes, target: bytes = b"a") -> list[Effect]:
        return self.say(route, b"c", b"cancel", msgpack.packb({"request_id": target.decode()}))

    def stream(self, *deltas: bytes, name: bytes = b"a", first: int = 0) -> list[bytes]:
        """Deltas of a run; the routes that they are sent to."""
        effects: list[Effect] = []
        for number, delta in enumerate(deltas, first):
            effects += self.runs.delta(name, number, delta)
        assert all(isinstance(each, StreamDelta) for each in effects)
        return sorted(each.route for each in effects if isinstance(each, StreamDelta))

    def end(self, name: bytes = b"a", outcome: RunOutcome = DONE) -> list[Effect]:
        return self.runs.ended(name, outcome, self.now_s)

    def deliver(self, route: bytes, name: bytes = b"a") -> list[Effect]:
        return self.runs.delivered(route, name, self.now_s)

    def after(self, seconds: float) -> list[Effect]:
        self.now_s += seconds
        return self.runs.tick(self.now_s)

    @property
    def names(self) -> list[bytes]:
        """The runs that are not over."""
        return list(self.runs._runs)

    @property
    def is_empty(self) -> bool:
        table = self.runs
        states = [
            runs for place in table._origins.values()
            for runs in (place.wanted, place.unwanted, place.sent, place.orphans)
        ]  # fmt: skip
        kinds = (table._runs, *states)
        shared = (table._count, table._asked, table._kept)
        return not any(kinds) and not any(each.taken or each._by for each in shared)


def told(effects: list[Effect]) -> dict[str, Any]:
    """The one reply among the effects."""
    [(_, kind, body)] = [each.message for each in effects if isinstance(each, Send)]
    assert kind == b"reply"
    record: dict[str, Any] = msgpack.unpackb(body)
    return record


def started(effects: list[Effect]) -> list[bytes]:
    return [each.name for each in effects if isinstance(each, StartRun)]


def begun(*names: bytes, **options: Any) -> tuple[Desk, bytes]:
    """A table, and a connection that has asked for these runs."""
    desk = Desk(**options)
    peer = desk.peer()
    for name in names or (b"a",):
        desk.run(peer, name)
    return desk, peer


def told_afterwards(desk: Desk, name: bytes = b"a") -> list[tuple[Any, bytes]]:
    """The messages of an outcome that is kept."""
    run = desk.runs.find(name)
    assert run is not None
    return [(kind, bytes(body)) for _, kind, body in run.messages]


# -- what is asked -----------------------------------------------------------------


def test_run_is_started_and_its_outcome_sent_and_kept_for_a_while():
    desk = Desk()
    peer = desk.peer()
    [start] = desk.run(peer)
    assert start == StartRun(b"a", b"p")
    assert desk.end() == [Deliver(peer, (b"a",), False)]
    assert [kind for kind, _ in told_afterwards(desk)] == [b"delta", b"delta", b"reply"]
    assert desk.deliver(peer) == []
    desk.after(desk.limits.unsure_s - 1)
    assert desk.names == [b"a"]
    desk.after(1)
    assert desk.is_empty


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


# -- the same id again ---------------------------------------------------------------


def test_who_was_lost_before_it_got_the_outcome_holds_it_for_nobody():
    desk = Desk()
    first, second = desk.peer(), desk.peer()
    desk.run(first)
    desk.run(second)
    desk.end()
    desk.deliver(first)
    assert desk.close(second) == []
    desk.after(desk.limits.unsure_s)
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
    desk.after(desk.limits.unsure_s)
    assert desk.names == [b"a"]  # the second one has not got it


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
    desk, peer = begun(known=1)
    desk.end()
    desk.deliver(peer)
    desk.after(desk.limits.unsure_s)
    assert "not run again (it ran)" in told(desk.run(peer))["error"]
    desk.run(peer, b"b")
    desk.cancel(peer, b"b")
    assert "cancelled" in told(desk.run(peer, b"b"))["error"]


# -- cancels -------------------------------------------------------------------------


def test_a_cancel_stops_a_run_and_tells_who_waits():
    desk, peer = begun()
    effects = desk.cancel(peer)
    assert StopRun(b"a") in effects
    replies = [msgpack.unpackb(each.message[2]) for each in effects if isinstance(each, Send)]
    assert [each.get("cancelled") for each in replies] == [None, True]
    assert replies[0]["error"] == runs.CANCELLED
    assert told(desk.cancel(peer))["cancelled"] is False
    assert desk.is_empty


def test_an_outcome_that_comes_after_the_cancel_is_kept_for_nobody():
    desk, peer = begun()
    desk.cancel(peer)
    assert desk.end() == []
    assert desk.is_empty


def test_a_cancel_reaches_the_run_of_a_connection_that_was_lost():
    desk = Desk()
    first = desk.peer()
    desk.run(first)
    desk.close(first)
    assert StopRun(b"a") in desk.cancel(desk.peer())
    assert desk.is_empty


def test_a_cancel_that_overtakes_its_run_stops_it():
    desk = Desk(early_cancels=1)
    peer = desk.peer()
    assert told(desk.cancel(peer))["cancelled"] is False
    assert told(desk.run(peer))["error"] == runs.EARLY
    desk.cancel(peer, b"b")
    desk.cancel(peer, b"c")  # takes the place of the other
    assert started(desk.run(peer, b"b")) == [b"b"]


# -- lost connections ----------------------------------------------------------------


@pytest.mark.parametrize("just_before", [True, False])
def test_outcome_that_was_sent_is_offered_again_if_the_loss_came_just_after(just_before: bool):
    desk, lost = begun()
    desk.end()
    desk.deliver(lost)
    later = desk.peer()
    desk.after(desk.limits.unsure_s - just_before)
    offered = [Deliver(later, (b"a",), True)] if just_before else []
    assert desk.close(lost) == offered
    assert len(desk.open()[1]) == just_before
    desk.after(desk.limits.unsure_s)
    assert desk.names == [b"a"] * just_before
    desk.after(desk.limits.lease_s)
    assert desk.is_empty


def test_room_is_made_of_orphans_as_soon_as_their_client_is_lost():
    """Runs of the same place waited until the lease of what nobody had read was over."""
    desk = Desk(kept_bytes=RECORD_BYTES)
    lost, other = desk.peer(), desk.peer()
    desk.run(lost, b"unread")
    desk.end(b"unread")
    assert started(desk.run(other, b"waits")) == []
    assert started(desk.close(lost)) == [b"waits"]


def test_many_orphans_are_offered_to_many_in_one_list_for_each():
    """Hundreds of outcomes times hundreds of connections held the loop for seconds."""
    desk = Desk()
    earlier, lost = desk.peer(), desk.peer()
    names = [b"%d" % number for number in range(50)]
    for name in names:
        desk.run(lost, name)
        desk.end(name)
    between = [desk.peer() for _ in range(3)]
    taken = b"taken"
    desk.run(lost, taken)
    desk.end(taken)
    desk.run(between[1], taken)
    joined, last = between[1], desk.peer()
    assert desk.close(joined) == []
    offered = desk.close(lost)
    assert offered == [
        Deliver(between[0], tuple(names), True),
        Deliver(between[2], (*names, taken), True),
        Deliver(last, (*names, taken), True),
    ]
    assert desk.close(earlier) == []


def test_nothing_is_offered_where_that_is_not_wanted():
    desk, lost = begun(redeliver=False)
    desk.close(lost)
    later = desk.peer()
    assert desk.end() == []
    assert desk.open()[1] == []
    assert desk.run(later) == [Deliver(later, (b"a",), True)]  # but who asks gets it
    assert desk.after(desk.limits.lease_s) == []  # and waits, until it was sent


def test_a_run_for_which_nobody_comes_ends_with_its_lease():
    desk, lost = begun()
    desk.close(lost)
    assert desk.after(desk.limits.lease_s - 1) == []
    assert desk.after(1) == [StopRun(b"a")]
    assert desk.is_empty
    assert told(desk.run(desk.peer()))["error"] == runs.LOST


def test_lease_stands_still_while_its_client_may_be_back():
    desk = Desk()
    desk.peer()  # was there before: it is another client
    lost = desk.peer()
    desk.run(lost)
    desk.close(lost)
    later = desk.peer()
    assert desk.after(10 * desk.limits.lease_s) == []
    desk.close(later)
    assert desk.after(desk.limits.lease_s) == [StopRun(b"a")]


def test_what_a_lost_connection_had_said_is_still_heard():
    desk = Desk()
    lost = desk.peer()
    desk.close(lost)
    assert started(desk.run(lost)) == [b"a"]
    assert desk.run(lost) == []
    later = desk.peer()
    assert desk.end() == [Deliver(later, (b"a",), True)]
    desk.after(GONE_S + 1)
    assert desk.run(lost, b"b") == []
    assert desk.runs.find(b"b") is None


# -- bounds --------------------------------------------------------------------------


def test_past_the_bound_in_bytes_a_run_is_refused():
    desk = Desk(runs_bytes=20)
    peer = desk.peer()
    assert told(desk.run(peer, b"a", bytes(11)))["error"] == runs.FULL
    assert started(desk.run(peer, b"b", bytes(10))) == [b"b"]


@pytest.mark.parametrize("lost", [False, True])
def test_outcomes_that_were_sent_and_orphans_make_room(lost: bool):
    desk = Desk(kept_bytes=2 * (RECORD_BYTES + 100))
    first, peer = desk.peer(), desk.peer()
    desk.run(first, b"a")
    desk.run(peer, b"b")
    desk.end(b"a")
    if lost:
        desk.close(first)
    else:
        desk.deliver(first, b"a")
    assert desk.end(b"b") == [Deliver(peer, (b"b",), False)]
    assert desk.names == [b"b"]


def test_run_waits_where_there_is_no_room_and_is_started_or_cancelled():
    desk, peer = begun(kept_bytes=2 * RECORD_BYTES)
    assert desk.end(b"a") == [Deliver(peer, (b"a",), False)]
    assert desk.run(peer, b"b") == desk.run(peer, b"c") == []
    assert started(desk.run(desk.peer(THERE), b"d")) == [b"d"]
    effects = desk.cancel(peer, b"c")
    assert not any(isinstance(each, StopRun) for each in effects)
    assert isinstance(effects[0], Send)
    assert msgpack.unpackb(effects[0].message[2])["error"] == runs.NEVER
    effects = desk.deliver(peer, b"a")
    assert b"a" not in desk.names
    assert started(effects) == [b"b"]


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
    desk.close(peer)
    assert desk.names == [b"b", b"c"], "the client of b may come back"


def test_g10_a_run_that_made_room_when_a_connection_was_lost_was_kept_all_the_same():
    desk, peer = crowded_by_another_place(HERE)
    desk.close(peer)
    assert desk.names == [b"a", b"c"]
    desk.after(desk.limits.unsure_s)
    assert desk.names == [b"c"]


def test_room_that_others_give_back_is_taken():
    desk = Desk(kept_bytes=2 * RECORD_BYTES, origin_share=1.0)
    peer, other = desk.peer(), desk.peer(THERE)
    for name in (b"a", b"b"):
        desk.run(other, name)
    desk.end(b"a")
    desk.end(b"b")
    assert desk.run(peer, b"c") == []
    desk.deliver(other, b"a")
    desk.deliver(other, b"b")
    assert started(desk.after(desk.limits.unsure_s)) == [b"c"]


@pytest.mark.parametrize("back", [b"", b"b"])
def test_runs_whose_clients_were_gone_were_started_before_those_of_others(back: bytes):
    desk, reader = begun(b"full", kept_bytes=2 * RECORD_BYTES)
    desk.end(b"full")
    lost, peer = desk.peer(), desk.peer()
    for name in (b"a", b"b"):
        desk.run(lost, name)
    desk.run(peer, b"c")
    desk.close(lost)
    if back:  # who comes back for a run moves it up
        assert desk.run(peer, back) == []
    order = [b"c", b"b", b"a"] if back else [b"c", b"a", b"b"]
    assert started(desk.deliver(reader, b"full")) == order
    assert (Deliver(peer, (b"b",), False) in desk.end(b"b")) is bool(back)


# -- deltas --------------------------------------------------------------------------


STREAMED = {
    # What is streamed, by number; which of it goes on; how the outcome comes, and from where.
    "nothing": ([], "", (False, 0)),
    "a part": ([(0, b"one")], "0", (False, 1)),
    "all": ([(0, b"one"), (1, b"two")], "01", (False, 2)),
    "a gap": ([(0, b"one"), (2, b"three"), (1, b"two")], "0", (True, 0)),
    "its first was lost": ([(1, b"two"), (0, b"one")], "", (False, 0)),
    "it began anew": ([(0, b"of the first execution"), (0, b"one")], "0", (True, 0)),
    # Of another execution, whose end was lost: only its numbers go on.
    "other": ([(0, b"other")], "0", (True, 0)),
    "more": ([(0, b"one"), (1, b"two"), (2, b"three")], "012", (True, 0)),
    "cut elsewhere": ([(0, b"on"), (1, b"etwo")], "01", (True, 0)),
}


@pytest.mark.parametrize("case", STREAMED)
def test_delta_goes_on_as_it_comes_and_the_outcome_has_the_rest_or_comes_afresh(case: str):
    streamed, sent, how = STREAMED[case]
    desk, peer = begun()
    effects = [each for number, delta in streamed for each in desk.runs.delta(b"a", number, delta)]
    texts = dict(reversed(streamed))
    assert effects == [
        StreamDelta(peer, b"a", (b"a", b"delta", texts[int(number)])) for number in sent
    ]
    assert desk.end() == [Deliver(peer, (b"a",), *how)]
    assert desk.stream(b"late", first=len(sent)) == []
    assert desk.stream(b"of nothing", name=b"b") == []


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
    desk, peer = begun()
    assert desk.stream(b"one") == [peer]
    desk.close(peer)
    assert desk.stream(b"two", first=1) == []
    later = desk.peer()
    assert desk.end() == [Deliver(later, (b"a",), True)]


def test_an_error_is_told_whatever_was_streamed():
    desk, peer = begun()
    assert desk.stream(b"one") == [peer]
    assert desk.end(outcome=RunOutcome(error="lost")) == [Deliver(peer, (b"a",), False)]


def test_g10_no_more_is_streamed_than_may_be_hashed_at_once():
    desk, peer = begun(streamed_bytes=5)
    assert desk.stream(b"one") == [peer]
    assert desk.stream(b"two", b"3", first=1) == []
    assert desk.end() == [Deliver(peer, (b"a",), False, 1)]


def test_a_delta_that_is_too_large_for_the_wire_is_not_sent():
    desk, _ = begun(frame_bytes=10, run_bytes=5)
    assert desk.stream(bytes(11)) == desk.stream(b"two", first=1) == []


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
        bytes(each.message[0]): msgpack.unpackb(each.message[2])["error"]
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
        st.tuples(st.just("run"), ANY, NAMES, st.sampled_from([b"p", b"p", b"q", b""])),
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
                case StartRun(name):
                    assert name not in self.ever, "a run was started twice"
                    self.ever.add(name)
                    self.live.add(name)
                case StopRun(name):
                    self.live.remove(name)
                case Send(route) | Deliver(route):
                    assert isinstance(effect, Send) or self.peers[route]

    def check(self) -> None:
        table = self.desk.runs
        kept = [each for each in table._runs.values() if each.messages]
        others = [each for each in table._runs.values() if not each.messages]
        assert table._kept.taken == sum(each.size_bytes for each in kept)
        assert table._count.taken == len(others) <= self.desk.limits.runs
        assert table._asked.taken == sum(each.asked_bytes for each in others)
        assert {each.name for each in others if each.payload is None} == self.live
        for run in table._runs.values():
            is_orphan = run.name in run.origin.orphans
            is_sent = run.name in run.origin.sent
            assert is_sent is (bool(run.waiters) and all(run.waiters.values()))
            assert is_orphan is not bool(run.waiters)
            assert table._origins[run.origin.name] is run.origin
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
    assert not history.desk.runs._origins
