"""What answers whom: the connection that asked, or the session's newest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.client_effects import Say, SayNote
from trio_envserve.core.health import Health
from trio_envserve.core.keyed import FOLLOWERS
from trio_envserve.core.limits import CAPACITY
from trio_envserve.core.router_effects import ToClient
from trio_envserve.core.terms import Status
from trio_envserve.core.worker_inputs import DeltaMade, EnvironmentReady

from .helpers import STRANGER, Pair, decoded, identifier, kinds
from .keyed import OTHER, Keyed


def hello(connection: int) -> messages.Hello:
    """That of a stranger on one of its connections."""
    return messages.Hello(1, identifier(900), connection, "other", 1 << 20)


def answers(
    pair: Pair, route: bytes, message: messages.Message, *body: bytes
) -> list[tuple[str, bytes]]:
    """What is sent for a message, and over which routes."""
    pair.mail.clear()
    pair.tell(message, *body, route=route)
    return [(type(each).__name__, to) for to, each in pair.mail]


def test_a_refusal_goes_to_its_asker_and_an_answer_to_the_newest_connection():
    pair, session = Pair.with_stranger()
    assert answers(pair, b"new", hello(2)) == [("Welcome", b"new")]
    assert answers(pair, b"new", messages.Finish(session, [0, 1])) == []
    request = messages.Request(session, 0, identifier(901), None, 1, None)
    assert answers(pair, b"old", request, b"body") == [("Refused", b"old")]
    assert answers(pair, b"old", messages.Cancel(session, 0)) == [("Cancelled", b"new")]
    sync = messages.Sync(session, pair.router.epoch, 1, 1, 1, [])
    assert answers(pair, b"old", sync) == [("Synced", b"new")]
    assert answers(pair, b"old", hello(1)) == [("Welcome", b"old")]


# -- outcomes that a connection has swallowed ------------------------------------
# A client that said hello first on its next connection got the outcomes that the old
# one had swallowed a ping later than one that said sync: the hello had moved the session,
# so the sync behind it was no news, and what was sent over the old connection counted as
# under way.
#
# Found by `trio-envserve conform`: the-same-nonce-gets-the-same-session.


def swallowed() -> tuple[Pair, Callable[[int], messages.Sync]]:
    """A stranger's outcome was sent over its first connection; and a sync of one of them."""
    pair, session = Pair.with_stranger()
    pair.ask(session)
    pair.end()
    epoch = pair.router.epoch
    return pair, lambda connection: messages.Sync(session, epoch, connection, 1, 1, [0, 1])


def test_after_a_hello_the_first_sync_has_them_replayed():
    pair, sync = swallowed()
    assert answers(pair, b"new", hello(2)) == [("Welcome", b"new")]
    assert answers(pair, b"new", sync(2)) == [("Outcome", b"new"), ("Synced", b"new")]
    assert answers(pair, b"new", sync(2)) == [("Synced", b"new")]  # said twice: it is under way


def test_a_hello_of_the_same_connection_has_nothing_replayed():
    pair, sync = swallowed()
    assert answers(pair, STRANGER, hello(1)) == [("Welcome", STRANGER)]
    assert answers(pair, STRANGER, sync(1)) == [("Synced", STRANGER)]


# -- a conflict is told to who caused it -----------------------------------------
# A refusal went to the session's own client, whoever had caused it: that client
# took its running call for one that did not run.


def test_g6_a_conflict_from_elsewhere_does_not_reach_the_sessions_client():
    pair = Pair.asked()
    request = next(m for m in pair.sent if isinstance(m, messages.Request))
    pair.tell(request._replace(digest=b"x" * 16), b"evil", route=STRANGER)
    assert isinstance(pair.heard(), messages.Refused)
    assert "Refused" not in kinds(pair.told)


# -- failures that servers of this kind are known for ----------------------------


def test_failure_11_answer_goes_to_the_identity_before_the_cut_and_is_lost():
    """The connection is cut for an instant; the answer goes to the identity that the
    client had before; pings under the new one are fine; the caller waits for ever.

    Here the client states at once what it holds, answers go to its newest connection,
    and what is completed is replayed there.
    """
    pair = Pair()
    call = pair.submit()
    pair.route = b"route 2"  # it is connected anew, and has not said so yet
    pair.end()
    assert pair.endings == {}
    pair.reconnect(b"route 2")
    pair.advance(5.0)
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY
    assert pair.result(call) == b"outcome"

    # And one that completes later goes there at once.
    later = pair.submit()
    pair.end()
    assert pair.result(later) == b"outcome"


# -- How many executions a worker has at once: as many as it says it takes, and no more than its


def get_ready(pair: Pair, worker: bytes, capacity: int = CAPACITY) -> None:
    ready = EnvironmentReady(1, "env", False, capacity)
    pair.work(worker, pair.workers[worker].take(ready))
    pair.settle()


def runs(pair: Pair) -> Counter[bytes]:
    return Counter(worker for worker, _ in pair.runs)


@pytest.mark.parametrize(("said", "option", "most"), [(8, 3, 3), (2, 3, 2), (8, None, 8)])
def test_a_worker_has_no_more_than_its_server_lets_any(said: int, option: int | None, most: int):
    pair = Pair(hello=False, workers=1, server={"worker_capacity": option})
    get_ready(pair, b"w0-1", said)
    pair.submit_many(10)
    assert len(pair.runs) == most
    stats = pair.router.stats()
    assert stats["per_worker"][0]["capacity"] == stats["bounds"]["pending"] == most


@given(
    capacities=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    option=st.none() | st.integers(1, 4),
    steps=st.lists(st.integers(0, 9), max_size=40),
)
def test_no_worker_ever_has_more_and_none_has_room_while_something_waits(
    capacities: list[int], option: int | None, steps: list[int]
):
    pair = Pair(
        ready=False, workers=len(capacities), server={"worker_capacity": option, "spread_s": 0.001}
    )  # fmt: skip
    pair.open_pool()
    most = {}
    for slot, capacity in enumerate(capacities):
        worker = b"w%d-1" % slot
        most[worker] = capacity if option is None else min(capacity, option)
        get_ready(pair, worker, capacity)
    pair.advance(1.0)
    ended = 0
    for step in steps:
        if step < 6:
            pair.submit()
        elif ended < len(pair.runs):
            pair.end(pair.runs[ended])
            ended += 1
        now = Counter(worker for worker, _ in pair.runs[ended:])
        assert all(now[worker] <= most[worker] for worker in most)
        has_room = any(now[worker] < most[worker] for worker in most)
        assert not (has_room and pair.router.stats()["waiting"])


# -- The first dispatches, while some workers still start ----------------------


def test_the_first_ready_worker_took_what_the_others_had_a_share_in():
    pair = Pair(hello=False, workers=2)
    pair.submit_many(20)
    get_ready(pair, b"w0-1")
    assert runs(pair) == {b"w0-1": 10}
    pair.advance(1.0)
    get_ready(pair, b"w1-1")
    assert runs(pair) == {b"w0-1": 10, b"w1-1": 10}


def test_a_worker_that_starts_for_long_is_not_waited_for():
    pair = Pair(hello=False, workers=2, server={"spread_s": 3.0})
    pair.submit_many(20)
    get_ready(pair, b"w0-1")
    pair.advance(2.5)
    assert runs(pair) == {b"w0-1": 10}
    pair.advance(1.0)
    assert runs(pair) == {b"w0-1": 20}


@pytest.mark.parametrize("spread_s", [0.001, 5.0])
@given(workers=st.integers(1, 4), calls=st.integers(1, 40), data=st.data())
def test_no_worker_has_more_than_its_share_and_all_is_run(
    spread_s: float, workers: int, calls: int, data: st.DataObject
):
    pair = Pair(hello=False, workers=workers, server={"spread_s": spread_s})
    pair.submit_many(calls)
    for slot in data.draw(st.permutations(range(workers))):
        get_ready(pair, b"w%d-1" % slot)
        assert max(runs(pair).values()) <= -(-calls // workers)
    assert sum(runs(pair).values()) == calls
    for run in list(pair.runs):
        pair.end(run, status=Status.RESULT)
    assert len(pair.answers) == calls


# -- The way of deltas: from a worker's core to the caller, by router and client

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
    pair = Pair.asked()
    before = pair.router.stats()
    pair.say(b"one")
    assert pair.router.stats() == before


def say(pair: Pair, how: str) -> None:
    if how == "delta":
        pair.say(b"one")
    else:
        pair.note(b"one")
        pair.beat()


DELTA_AND_NOTE = pytest.mark.parametrize("how", ["delta", "note"])


@DELTA_AND_NOTE
def test_deltas_and_notes_go_to_the_newest_connection(how: str):
    pair = Pair()
    number = pair.submit()
    pair.disconnect()
    pair.connect()
    say(pair, how)
    told = Say(number, 0, b"one") if how == "delta" else SayNote(number, b"one")
    assert [*pair.says, *pair.notes] == [told]


def test_what_comes_after_the_outcome_is_ignored():
    pair = Pair.asked()
    worker, run = pair.runs[-1]
    late = pair.workers[worker].take(DeltaMade(run.number, b"late"))
    pair.end()
    pair.work(worker, late)
    pair.settle()
    pair.hear(messages.Delta(pair.session.id, 0, 0), b"later")
    pair.hear(messages.Delta(pair.session.id, 99, 0), b"of nothing")
    pair.hear(messages.Delta(identifier(99), 0, 0), b"of nobody")
    assert not pair.says


@pytest.mark.parametrize(
    ("kind", "fields", "body"),
    [
        (messages.WorkerDelta, (identifier(1), 0, 0, 0), (b"lie",)),
        (messages.WorkerNotes, ([0, 1], [b"lie"]), ()),
    ],
)
def test_g5_deltas_and_notes_of_another_incarnation_or_before_any_hello_change_nothing(
    kind, fields, body
):
    pair = Pair.asked()
    message = kind(*fields)
    if kind is messages.WorkerDelta:
        message = message._replace(session=pair.session.id)
    pair.from_worker(message, *body, incarnation=identifier(555))
    assert pair.router.workforce.fenced == 1
    worker = pair.router.workforce.workers.pop(WORKER)
    pair.from_worker(message, *body)
    assert (pair.says, pair.notes, worker.live[0].note) == ([], [], b"")


@pytest.mark.parametrize("wrong", [{"sequence": 9}, {"session": identifier(9)}])
def test_a_delta_of_another_request_than_was_dispatched_is_malformed(wrong):
    pair = Pair.asked()
    pair.from_worker(messages.WorkerDelta(pair.session.id, 0, 0, 0)._replace(**wrong), b"p")
    assert (pair.router.malformed, pair.says) == (1, [])


@DELTA_AND_NOTE
def test_g10_of_many_that_wait_for_a_key_some_hear_its_deltas_and_notes(how: str):
    pair, session = Keyed.with_stranger()
    for number in range(FOLLOWERS + 5):
        pair.request(session, number, caller=OTHER[:-1] + bytes([number]))
    pair.mail.clear()
    say(pair, how)
    if how == "delta":
        told = [messages.Delta(session, number, 0) for number in range(FOLLOWERS)]
        assert pair.mailed(messages.Delta) == told
    else:
        notes = messages.Notes(session, [0, FOLLOWERS], [b"one"] * FOLLOWERS)
        assert pair.mail == [(STRANGER, notes)]


def test_a_delta_is_sent_as_it_was_said():
    pair = Pair.asked()
    effects = pair.workers[WORKER].take(DeltaMade(pair.runs[-1][1].number, bytes(range(256))))
    pair.work(WORKER, effects)
    [sent] = [each for each in pair.said() if isinstance(each, ToClient)]
    assert isinstance(decoded(sent.frames), messages.Delta)
    assert sent.frames[1] == bytes(range(256))


# -- The way of notes: from a worker's core to the caller, by router and client


def test_notes_go_to_their_callers_with_a_beat_in_one_message():
    pair = Pair()
    first, second = pair.submit(), pair.submit()
    pair.note(b"one", pair.runs[0])
    pair.note(b"two", pair.runs[1])
    assert pair.notes == []
    pair.beat()
    assert pair.notes == [SayNote(first, b"one"), SayNote(second, b"two")]
    assert len([each for each in pair.told if isinstance(each, messages.Notes)]) == 1


def test_nothing_is_noted_of_what_is_over_or_was_cancelled():
    pair = Pair()
    first, _ = pair.submit(), pair.submit()
    pair.end(pair.runs[1])
    pair.cancel(first)
    pair.from_worker(messages.WorkerNotes([0, 3], [b"zero", b"one", b"two"]))
    pair.hear(messages.Notes(pair.session.id, [0, 2, 98, 99], [b"a", b"b", b"c"]))
    pair.hear(messages.Notes(identifier(99), [0, 1], [b"of nobody"]))
    assert pair.notes == []
    assert not [each for each in pair.told if isinstance(each, messages.Notes)]


def test_notes_that_are_not_as_many_as_what_they_are_of_are_malformed():
    pair = Pair.asked()
    pair.from_worker(messages.WorkerNotes([0, 2], [b"one"]))
    pair.from_worker(messages.WorkerNotes([0, 2**62], [b"one"]))
    assert (pair.router.malformed, pair.notes) == (2, [])
    pair.hear(messages.Notes(pair.session.id, [0, 1], []))
    assert pair.notes == []
