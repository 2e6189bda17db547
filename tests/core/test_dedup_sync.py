"""The dedup cache: what clients state, what is finished, and what is replayed."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.client_inputs import Connected, Disconnected
from trio_envserve.core.messages import Outcome, Sync, Synced
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.requests import RequestState as State
from trio_envserve.core.router_inputs import ClientMessage

from .dedup_states import reach
from .helpers import CLIENT, Pair, cache_with, session_of
from .spans import ALL, limited

# -- finishing and syncing -------------------------------------------------------


def test_g8_a_statement_of_more_than_a_window_is_ignored():
    cache = cache_with(window=2)
    session = session_of(cache)
    reach(cache, session, State.WAITING)
    assert cache.sync(session, 9, Ranges([3, 4, 5])) == ((), Ranges())
    assert session.state(0) is State.WAITING


def test_g8_a_peer_that_leaves_every_second_sequence_open_is_ignored():
    cache = cache_with(window=3)
    session = session_of(cache)
    for sequence in range(0, 100, 2):
        cache.finish_spans(session, Ranges([sequence]))
    assert session.finished.flat() == [0, 1, 2, 3, 4, 5, 6, 7]
    cache.finish_spans(session, Ranges([1, 3]))  # closing gaps is always taken
    assert session.finished.span_count() == 2


def test_g8_more_gaps_at_once_than_a_window_can_leave_are_ignored():
    cache = cache_with(window=3)
    session = session_of(cache)
    cache.finish_spans(session, Ranges([1, 3, 5, 7]))
    cache.finish_spans(session, Ranges(range(0, 10, 2)))  # five spans: no client has so many
    assert session.finished.flat() == [1, 2, 3, 4, 5, 6, 7, 8]


# -- an outcome that is under way ------------------------------------------------
# A large outcome took longer to arrive than a second.  Every ping meanwhile asked for
# it and got it once more, and the link that was slow already carried it again and
# again: 250 MB of outcomes became several times as much, and the last arrived never.
#
# A replay needs proof now: the answer to a probe was received, and what had been sent
# before that answer was not.


def outcomes_told(pair: Pair) -> int:
    """How often the server has sent one."""
    return sum(isinstance(message, Outcome) for message in pair.told)


def with_an_outcome_lost(*lost: type) -> Pair:
    pair = Pair()
    pair.advance(3.0)  # some probes have been answered
    pair.submit()
    pair.sent.clear()
    pair.lose = lambda message: isinstance(message, (Outcome, *lost))
    pair.end()
    assert outcomes_told(pair) == 1
    return pair


def test_while_no_answer_to_a_probe_arrives_nothing_is_replayed():
    pair = with_an_outcome_lost(Synced)
    pair.advance(10.0)
    assert outcomes_told(pair) == 1
    probes = [message.probe for message in pair.sent if isinstance(message, Sync)]
    assert len(probes) > 8
    assert len(set(probes)) == 1  # a repeated one asks for nothing


def test_after_the_answer_to_a_later_probe_it_is_replayed_once():
    pair = with_an_outcome_lost(Synced)
    pair.advance(10.0)
    pair.lose = lambda message: False
    pair.advance(1.0)
    assert pair.answers == []
    pair.advance(1.0)
    assert [type(answer) for answer in pair.answers] == [Answer]
    pair.receive(0)
    pair.advance(5.0)
    assert outcomes_told(pair) == 2


def test_what_was_sent_between_two_answers_is_replayed_after_the_second():
    pair = with_an_outcome_lost()
    pair.advance(1.0)
    assert outcomes_told(pair) == 1  # it was sent since the answer to the last one
    pair.advance(1.0)
    assert outcomes_told(pair) == 2


def test_a_statement_that_comes_twice_or_late_replays_nothing():
    pair = with_an_outcome_lost()
    pair.advance(3.0)
    before = outcomes_told(pair)
    assert before > 1
    syncs = [message for message in pair.sent if isinstance(message, Sync)]
    for sync in (syncs[-1], syncs[-2], syncs[-1]):
        pair.tell(sync, route=CLIENT)
    assert outcomes_told(pair) == before


def test_on_a_new_connection_it_is_replayed_at_once_and_only_once():
    pair = with_an_outcome_lost()
    pair.give_client(Disconnected(pair.now_s, "cut"))
    pair.give_client(Connected(pair.now_s))
    pair.settle()
    assert outcomes_told(pair) == 2
    sync = next(message for message in reversed(pair.sent) if isinstance(message, Sync))
    pair.give(ClientMessage(CLIENT, (messages.encode(sync),), pair.now_s))
    pair.settle()
    assert outcomes_told(pair) == 2


# -- a finish with endless gaps --------------------------------------------------
# A hostile peer finished every second sequence, as many as fit into a header, again and
# again.  Each was refused, but only after it had been merged, span by span, into a copy
# of what was finished before: a second of the server's time for one message.


WINDOW = 4


def edges(count: int) -> list[int]:
    """That many spans of one sequence each, with a gap after each."""
    return list(range(2 * count))


@pytest.mark.parametrize("count", [WINDOW + 2, 10_000])
def test_it_is_refused_by_its_number_of_spans(count: int, monkeypatch: Any):
    pair = Pair(server={"window": WINDOW})
    session = pair.stranger()
    merged = []

    def update(self: Ranges, other: Ranges) -> None:
        merged.append(other.span_count())

    monkeypatch.setattr(Ranges, "update", update)
    pair.tell(messages.Finish(session, edges(count)), route=b"stranger")
    assert merged == []
    assert pair.router.cache.sessions[session].finished == Ranges()


# -- a huge span that is finished ------------------------------------------------
# A client, broken or hostile, finished every sequence up to 2^62: the server must not go
# through them one by one.


@pytest.mark.parametrize("name", ["finish", "sync"])
def test_neither_does_the_server_walk_through_what_a_client_finishes(name: str, monkeypatch: Any):
    pair = Pair()
    session = pair.stranger()
    for sequence in range(3):
        pair.ask(session, sequence)
    monkeypatch.setattr(Ranges, "__iter__", limited)
    finish = messages.Finish(session, ALL)
    sync = messages.Sync(session, pair.router.epoch, 1, 1, 2**62, [])
    pair.tell(finish if name == "finish" else sync, route=b"stranger")
    assert not pair.router.cache.sessions[session].entries
    assert len(pair.cancels) == 3
