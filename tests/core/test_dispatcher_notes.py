"""The way of notes: from a worker's core to the caller, by router and client."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client_effects import SayNote
from trio_envserve.core.client_inputs import CallsCancelled
from trio_envserve.core.keyed import FOLLOWERS
from trio_envserve.core.router_inputs import WorkerMessage

from .client_side import connect, disconnect, hear, session_id
from .helpers import STRANGER, Pair, identifier
from .keyed import OTHER, Keyed

WORKER = b"w0-1"


def tell(pair: Pair, numbers: list[int], notes: list[bytes]) -> None:
    """The worker says notes, whatever they are."""
    header = messages.encode(messages.WorkerNotes(numbers, notes))
    pair.give(WorkerMessage((WORKER, pair.workers[WORKER].incarnation, header), pair.now_s))
    pair.settle()


def test_notes_go_to_their_callers_with_a_beat_in_one_message():
    pair = Pair()
    first, second = pair.submit(), pair.submit()
    pair.note(b"one", pair.runs[0])
    pair.note(b"two", pair.runs[1])
    assert pair.notes == []
    pair.beat()
    assert pair.notes == [SayNote(first, b"one"), SayNote(second, b"two")]
    assert len([each for each in pair.told if isinstance(each, messages.Notes)]) == 1


def test_notes_go_to_the_newest_connection():
    pair = Pair()
    number = pair.submit()
    disconnect(pair)
    connect(pair)
    pair.note(b"one")
    pair.beat()
    assert pair.notes == [SayNote(number, b"one")]


def test_nothing_is_noted_of_what_is_over_or_was_cancelled():
    pair = Pair()
    first, _ = pair.submit(), pair.submit()
    pair.end(pair.runs[1])
    pair.give_client(CallsCancelled([first], pair.now_s))
    pair.settle()
    tell(pair, [0, 3], [b"zero", b"one", b"two"])
    hear(pair, messages.Notes(session_id(pair), [0, 2, 98, 99], [b"a", b"b", b"c"]))
    hear(pair, messages.Notes(identifier(99), [0, 1], [b"of nobody"]))
    assert pair.notes == []
    assert not [each for each in pair.told if isinstance(each, messages.Notes)]


def test_notes_that_are_not_as_many_as_what_they_are_of_are_malformed():
    pair = Pair()
    pair.submit()
    tell(pair, [0, 2], [b"one"])
    tell(pair, [0, 2**62], [b"one"])
    assert (pair.router.malformed, pair.notes) == (2, [])
    hear(pair, messages.Notes(session_id(pair), [0, 1], []))
    assert pair.notes == []


def test_g5_notes_of_another_incarnation_or_before_any_hello_change_nothing():
    pair = Pair()
    pair.submit()
    header = messages.encode(messages.WorkerNotes([0, 1], [b"lie"]))
    pair.give(WorkerMessage((WORKER, identifier(555), header), pair.now_s))
    assert pair.router.workforce.fenced == 1
    worker = pair.router.workforce.workers.pop(WORKER)
    pair.give(WorkerMessage((WORKER, worker.incarnation, header), pair.now_s))
    pair.settle()
    assert (pair.notes, worker.live[0].note) == ([], b"")


@pytest.mark.parametrize("more", [1, 5])
def test_g10_of_many_that_wait_for_a_key_some_hear_its_notes(more: int):
    pair = Keyed()
    session = pair.stranger()
    for number in range(FOLLOWERS + more):
        pair.request(session, number, caller=OTHER[:-1] + bytes([number]))
    pair.mail.clear()
    pair.note(b"one")
    pair.beat()
    told = messages.Notes(session, [0, FOLLOWERS], [b"one"] * FOLLOWERS)
    assert pair.mail == [(STRANGER, told)]
