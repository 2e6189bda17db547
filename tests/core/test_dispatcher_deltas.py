"""The way of deltas: from a worker's core to the caller, by router and client."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client_effects import Say
from trio_envserve.core.keyed import FOLLOWERS
from trio_envserve.core.router_effects import ToClient
from trio_envserve.core.router_inputs import WorkerMessage
from trio_envserve.core.worker_inputs import DeltaMade

from .client_side import connect, disconnect, hear, session_id
from .helpers import STRANGER, Pair, decoded, identifier
from .keyed import OTHER, Keyed

WORKER = b"w0-1"


def test_deltas_go_to_the_caller_before_the_outcome():
    pair = Pair()
    first, second = pair.submit(), pair.submit()
    for run, number in zip(pair.runs, (first, second), strict=True):
        pair.say(b"one", b"two", run=run)
        assert pair.says == [Say(number, 0, b"one"), Say(number, 1, b"two")]
        pair.says.clear()
    pair.end()
    assert pair.answers
    assert not pair.says


def test_nothing_of_a_delta_is_kept():
    pair = Pair()
    pair.submit()
    before = pair.router.stats()
    pair.say(b"one")
    assert pair.router.stats() == before


def test_deltas_go_to_the_newest_connection():
    pair = Pair()
    number = pair.submit()
    disconnect(pair)
    connect(pair)
    pair.say(b"one")
    assert pair.says == [Say(number, 0, b"one")]


def test_what_comes_after_the_outcome_is_ignored():
    pair = Pair()
    pair.submit()
    worker, run = pair.runs[-1]
    late = pair.workers[worker].take(DeltaMade(run.number, b"late"))
    pair.end()
    pair.work(worker, late)
    pair.settle()
    hear(pair, messages.Delta(session_id(pair), 0, 0), b"later")
    hear(pair, messages.Delta(session_id(pair), 99, 0), b"of nothing")
    hear(pair, messages.Delta(identifier(99), 0, 0), b"of nobody")
    assert not pair.says


def test_g5_a_delta_of_another_incarnation_or_before_any_hello_is_fenced_or_ignored():
    pair = Pair()
    pair.submit()
    header = messages.encode(messages.WorkerDelta(session_id(pair), 0, 0, 0))
    pair.give(WorkerMessage((WORKER, identifier(555), b"c", header, b"lie"), pair.now_s))
    assert pair.router.workforce.fenced == 1
    worker = pair.router.workforce.workers.pop(WORKER)
    pair.give(WorkerMessage((WORKER, worker.incarnation, b"c", header, b"early"), pair.now_s))
    pair.settle()
    assert not pair.says


@pytest.mark.parametrize("wrong", [{"sequence": 9}, {"session": identifier(9)}])
def test_a_delta_of_another_request_than_was_dispatched_is_malformed(wrong):
    pair = Pair()
    pair.submit()
    header = messages.encode(messages.WorkerDelta(session_id(pair), 0, 0, 0)._replace(**wrong))
    life = pair.workers[WORKER].incarnation
    pair.give(WorkerMessage((WORKER, life, b"c", header, b"p"), pair.now_s))
    pair.settle()
    assert (pair.router.malformed, pair.says) == (1, [])


def test_g10_of_many_that_wait_for_a_key_some_hear_its_deltas():
    pair = Keyed()
    session = pair.stranger()
    for number in range(FOLLOWERS + 1):
        pair.request(session, number, caller=OTHER[:-1] + bytes([number]))
    pair.mail.clear()
    pair.say(b"one")
    assert pair.mail == [
        (STRANGER, messages.Delta(session, number, 0)) for number in range(FOLLOWERS)
    ]


def test_a_delta_is_sent_as_it_was_said():
    pair = Pair()
    pair.submit()
    effects = pair.workers[WORKER].take(DeltaMade(pair.runs[-1][1].number, bytes(range(256))))
    pair.work(WORKER, effects)
    [sent] = [each for each in pair.said() if isinstance(each, ToClient)]
    assert isinstance(decoded(sent.frames), messages.Delta)
    assert sent.frames[1] == bytes(range(256))
