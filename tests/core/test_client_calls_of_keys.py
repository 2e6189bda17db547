"""Keyed calls that are given up: a server may go on counting their caller, so the client leaves by
name."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client import (
    Answer,
    CallKey,
    CallsCancelled,
    ClientTick,
    Disconnected,
    Fail,
    Stage,
    after_loss,
    of_key,
)
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.journal import Closed
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.router_inputs import PoolOpened, Restored
from trio_envserve.core.terms import Verdict
from trio_envserve.core.work import WorkInput, WorkState
from trio_envserve.core.worker import EnvironmentReady

from .helpers import Pair, limit_keys
from .keyed import Journaled, Keyed, generation

LEASE_S = 20.0


def submit(pair: Pair, word: bytes = b"key", **how: Any) -> int:
    name = KeyName(b"default", word)
    return pair.submit(b"body", key=CallKey(KeyAct.ASK, name, input_digest(b"body", None)), **how)


def lose_session(pair: Pair) -> None:
    """The client is cut off for longer than its lease, and its work goes on."""
    pair.disconnect()
    pair.advance(LEASE_S + 2.0)
    assert len(pair.router.works.open) == len(pair.router.works.orphans)


def cut_off(**how: Any) -> Pair:
    pair = Pair(workers=2, server={"lease_s": LEASE_S}, **how)
    submit(pair)
    assert len(pair.runs) == 1
    lose_session(pair)
    return pair


def left_by_name(pair: Pair) -> list[bytes | None]:
    """The keys that the client has left by name, so far as that was sent."""
    return [m.key for m in pair.sent_of(messages.Request) if m.act == KeyAct.LEAVE]


def is_over(pair: Pair) -> bool:
    """Nothing is left of the call, at the client and at the server."""
    pair.advance(3.0)
    assert not pair.client.calls.live
    assert not pair.session.tickets
    return not pair.router.works.open and len(pair.runs) == len(pair.cancels) == 1


def given_up_while_cut_off(pair: Pair) -> None:
    pair.cancel(0)
    pair.connect()


def given_up_before_the_next_session(pair: Pair) -> None:
    with pair.losing(messages.Welcome):
        pair.connect()
        assert not pair.client.sessions.lost  # the call waits for another session
        pair.cancel(0)


def given_up_when_the_second_ask_was_lost(pair: Pair) -> None:
    with pair.losing(messages.Request):
        pair.connect()
    pair.cancel(0)


def given_up_with_another_for_the_key(pair: Pair) -> None:
    submit(pair)
    pair.cancel(0, 1)
    pair.connect()


@pytest.mark.parametrize(
    "give_up",
    [
        given_up_while_cut_off, given_up_before_the_next_session,
        given_up_when_the_second_ask_was_lost, given_up_with_another_for_the_key,
    ],
)  # fmt: skip
def test_work_went_on_for_a_call_that_was_given_up(give_up: Callable[[Pair], None]):
    pair = cut_off()
    give_up(pair)
    pair.advance(3.0)
    assert {*left_by_name(pair)} == {b"key"}
    assert is_over(pair)


@pytest.mark.parametrize("cut_for_s", [5.0, 30.0])
def test_a_call_whose_limit_passed_in_a_lost_session_ended_what_may_be_asked_again(
    cut_for_s: float,
):
    pair = Pair(workers=2, server={"lease_s": LEASE_S, "client_gone_s": 2.0})
    submit(pair)
    pair.give_client(CallsCancelled((), pair.now_s))
    call = pair.client.calls.live[0]
    lose_session(pair)
    call.limit_s = 1.0
    pair.client.calls.timed[0] = call
    pair.advance(cut_for_s)
    pair.connect()
    pair.advance(10.0)
    assert len(pair.answers) == 1
    assert not left_by_name(pair)
    assert not is_over(pair)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_call_whose_limit_passed_while_cut_off_cancelled_what_was_asked_again(is_lost: bool):
    """It cancels nothing, and keeps its place until the server has answered it."""
    pair = Pair(workers=2, server={"lease_s": LEASE_S})
    submit(pair, limit_s=2.0)
    with pair.losing(messages.Outcome):
        pair.disconnect()
        pair.advance(LEASE_S + 2.0 if is_lost else 5.0)
    told = pair.last()
    assert isinstance(told, Fail)
    assert told.info.code == "no-answer"
    assert pair.client.calls.live[0].stage is Stage.LEFT
    pair.cancel(0)  # which comes too late
    pair.connect()
    submit(pair)
    pair.advance(1.0)
    pair.end(payload=b"once")
    told = pair.last()
    assert isinstance(told, Answer)
    assert (told.call, told.body) == (1, b"once")
    assert (len(pair.answers), len(pair.cancels)) == (2, 0)
    pair.receive(1)
    pair.advance(3.0)
    assert not pair.client.calls.live


def test_a_refusal_for_now_that_came_late_cancelled_work_whose_call_had_left():
    """The server had taken the request since: it was refused before it was sent again."""
    pair = Pair(workers=2)
    submit(pair, limit_s=10.0)
    pair.now_s += 10.0
    pair.client_takes(ClientTick(pair.now_s))
    assert pair.client.calls.live[0].stage is Stage.LEFT
    pair.hear(messages.Refused(pair.session.id, 0, "queue-full", "x", 0.5, b""))
    pair.client_takes(ClientTick(pair.now_s + 0.1))  # before the server knows of the limit
    pair.advance(3.0)
    assert len(pair.runs) == 1
    assert not pair.cancels


def test_calls_without_a_limit_kept_their_places_for_good_when_their_wait_had_ended():
    """No server would ever have answered them: it does not know that nobody waits."""
    pair = Pair(
        workers=4, server={"window": 4},
        client={"recovery_s": 20.0, "start_s": 20.0, "reconnect_s": 1e6},
    )  # fmt: skip
    for number in range(4):
        submit(pair, b"%d" % number)
    with pair.losing(messages.Synced):
        pair.advance(60.0)
    assert {told.info.code for told in pair.answers if isinstance(told, Fail)} <= {
        "no-answer", "never-started",
    }  # fmt: skip
    assert len(pair.answers) == 4
    pair.advance(30.0)
    submit(pair, b"new")
    pair.advance(30.0)
    assert not [each for each in pair.client.calls.live.values() if each.number < 4]


def test_a_call_whose_limit_passed_before_the_server_had_it_leaves_nothing():
    pair = Pair(workers=2)
    with pair.losing(messages.Request):
        submit(pair, limit_s=2.0)
        pair.advance(5.0)
        told = pair.last()
    assert isinstance(told, Fail)
    assert told.info.verdict is Verdict.MAY_HAVE_RUN
    assert not pair.client.calls.live
    assert not pair.runs


@pytest.mark.parametrize("other_first", [True, False])
def test_another_call_for_the_key_takes_the_place_that_was_left_behind(other_first: bool):
    pair = cut_off()
    if other_first:
        submit(pair)
        pair.cancel(0)
    else:
        given_up_before_the_next_session(pair)
        submit(pair)
    pair.connect()
    pair.advance(1.0)
    assert left_by_name(pair) == []
    assert not pair.cancels
    pair.cancel(1)
    assert is_over(pair)


@pytest.mark.parametrize("given_up", [True, False])
def test_who_is_answered_has_taken_the_place_that_was_left_behind(given_up: bool):
    pair = cut_off()
    submit(pair)
    if given_up:
        pair.cancel(0)
    pair.connect()
    pair.end()
    for answer in pair.answers:
        pair.receive(answer.call)
    pair.advance(1.0)
    assert left_by_name(pair) == []
    assert not pair.router.works.generations[0].lost


def test_a_forget_without_an_id_of_its_own_that_is_lost_with_its_session_may_have_been_done():
    pair = Pair(workers=2, server={"lease_s": LEASE_S})
    submit(pair)
    with pair.losing(messages.Outcome):
        pair.submit(b"", key=CallKey(KeyAct.FORGET, KeyName(b"default", b"key")))
    submit(pair)
    lose_session(pair)
    pair.connect()
    pair.advance(2.0)
    assert pair.failure().code == "unknown-key"
    assert len(pair.router.works.open) == 1


def test_what_was_left_by_name_is_left_no_more_when_the_session_is_lost_later():
    pair = Pair(workers=2, server={"lease_s": LEASE_S})
    submit(pair)
    submit(pair, b"stays")
    pair.cancel(0)
    pair.advance(3.0)
    lose_session(pair)
    pair.connect()
    pair.advance(1.0)
    assert left_by_name(pair) == [b"key"]
    assert list(pair.client.calls.live) == [1]


def test_a_call_given_up_before_its_session_was_lost_is_left_by_name_in_the_next():
    pair = Pair(workers=2, server={"lease_s": LEASE_S})
    submit(pair)
    with pair.losing(messages.Request, messages.Finish):
        pair.cancel(0)
    lose_session(pair)
    pair.connect()
    assert left_by_name(pair) == [b"key", b"key"]
    assert is_over(pair)


def test_g11_a_cancel_that_a_sync_had_answered_before_it_was_safe_was_forgotten():
    """The server crashed while its disk was stuck, and the next one ran the work again."""
    pair = journaled()
    pair.cancel(0)
    pair.advance(3.0)
    pair.records = [each for each in pair.records if not isinstance(each, Closed)]
    pair.disconnect()
    restarted(pair)
    pair.connect()
    assert not goes_on(pair)


def test_a_place_was_kept_for_a_call_whose_key_another_call_had_asked_for_in_vain():
    """That one was refused: it had another input."""
    pair = cut_off()
    name = KeyName(b"default", b"key")
    pair.submit(b"other", key=CallKey(KeyAct.ASK, name, input_digest(b"other", None)))
    pair.cancel(0)
    pair.connect()
    pair.advance(1.0)
    assert pair.failure(1).code == "key-conflict"
    assert left_by_name(pair) == [b"key"]
    assert is_over(pair)


def test_a_call_that_leaves_had_the_number_of_one_whose_outcome_is_received_twice():
    """A shared call is received by each of its callers."""
    pair = Pair(workers=2)
    submit(pair)
    pair.end()
    with pair.losing(messages.Outcome):
        submit(pair)
        pair.cancel(1)
    pair.receive(0)
    assert left_by_name(pair) == [b"key"]
    assert 0 not in pair.client.calls.live


def test_g7_a_key_that_is_asked_for_again_is_not_left():
    """The server has it from the call that was given up, and the client from the other."""
    pair = cut_off()
    with pair.losing(messages.Request):
        pair.connect()
        pair.cancel(0)
        assert left_by_name(pair) == [b"key"]
        submit(pair)
    lose_session(pair)
    pair.connect()
    pair.advance(3.0)
    assert len(pair.runs) == 1
    assert not pair.cancels
    assert list(pair.client.calls.live) == [1]


def test_g2_a_call_that_leaves_starts_nothing_where_its_work_is_over():
    pair = cut_off(rerun=True)
    pair.cancel(0)
    pair.router.works.tick()
    (work,) = pair.router.works.open.values()
    pair.router.works.step(work, WorkInput.FORGET)
    pair.router.works.stop()
    pair.connect()
    pair.advance(2.0)
    assert left_by_name(pair) == [b"key"]
    assert len(pair.runs) == 1
    assert not pair.client.calls.live


def restarted(pair: Journaled, *, opens: bool = True) -> None:
    """Another server with the journal, before the client is connected to it."""
    old, records = pair.router.epoch, list(pair.records)
    pair.router = pair.new_router()
    pair.said()
    for each in (pair.workers, pair.runs, pair.records):
        each.clear()
    pair.give(Restored(records, pair.now_s))
    if opens:
        pair.give(PoolOpened((old,), pair.now_s))
    pair.settle()
    pair.route = b"another"


def goes_on(pair: Journaled) -> bool:
    """Whether the work of the key runs again, in the next seconds."""
    for _ in range(8):
        pair.advance(1.0)
        pair.disk()
    return generation(pair) is not WorkState.CLOSED


def journaled(**how: Any) -> Journaled:
    pair = Journaled(workers=1, client={"recovery_s": 30.0, "limit_word_s": 3.0})
    pair.call(rerun=True, **how)
    pair.disk()
    return pair


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
def test_a_call_that_ended_in_a_lost_session_that_was_not_resolved_ran_again(ends: str):
    pair = journaled()
    restarted(pair, opens=False)
    pair.disconnect()
    pair.connect()
    pair.advance(2.0)
    (lost,) = pair.client.sessions.lost
    if ends == "cancelled":
        pair.cancel(0)
    else:
        pair.close_client()
    pair.advance(2.0)
    pair.give(PoolOpened((lost.epoch,), pair.now_s))
    pair.settle()
    assert not goes_on(pair)


@pytest.mark.parametrize("how", ["lost", "refused for now"])
def test_a_request_that_was_to_leave_and_did_not_arrive_was_not_sent_again(how: str):
    pair = journaled()
    pair.disconnect()
    pair.cancel(0)
    restarted(pair)
    with pair.losing(messages.Request):
        pair.connect()
        if how == "refused for now":
            pair.hear(
                messages.Refused(pair.session.id, 0, "journal", "it is behind", 2.5, b"default")
            )
            pair.advance(2.0)
            assert list(pair.client.calls.live) == [~0]
    assert not goes_on(pair)
    assert not pair.client.calls.live


def test_a_closed_client_kept_a_call_that_was_to_leave_in_a_session_that_was_lost_then():
    pair = journaled()
    pair.disconnect()
    pair.cancel(0)
    pair.close_client()
    (session,) = pair.client.sessions
    pair.hear(messages.Unknown(session.id, True, bytes(16), False))
    assert not pair.client.calls.live
    assert not pair.client.calls.queue


def test_g9_a_cancel_that_overtook_its_ask_says_nothing_of_the_work_of_the_key():
    pair = Pair(workers=2)
    with pair.losing(messages.Request, messages.Synced):
        pair.submit(b"", key=CallKey(KeyAct.ATTACH, KeyName(b"default", b"key")), limit_s=2.0)
        pair.advance(6.0)
    told = pair.last()
    assert isinstance(told, Fail)
    assert (told.info.code, told.info.verdict) == ("no-answer", Verdict.MAY_HAVE_RUN)
    assert pair.sent_of(messages.Cancel)


def test_a_place_that_another_call_was_to_take_was_not_left_when_that_was_never_sent():
    pair = journaled()
    pair.disconnect()
    pair.cancel(0)
    pair.call(rerun=True)
    restarted(pair)
    with pair.losing(messages.Welcome):
        pair.connect()
        pair.cancel(1)
    assert not goes_on(pair)


def test_a_call_cancelled_while_it_waited_for_the_word_of_its_limit_was_not_left():
    pair = journaled(limit_s=3.0)
    with pair.losing(messages.Outcome):
        pair.advance(3.5, step_s=0.25)
    assert pair.client.calls.live[0].stage is Stage.LEFT
    pair.disconnect()
    pair.cancel(0)
    restarted(pair)
    pair.connect()
    assert not goes_on(pair)


def test_g8_calls_given_up_while_a_server_is_silent_keep_no_more_than_a_part_of_the_window():
    pair = Pair(workers=2, server={"window": 4})
    pair.lose = lambda message: isinstance(message, messages.Synced | messages.Outcome)
    for number in range(9):
        submit(pair, b"%d" % number)
        pair.cancel(number)
    assert len(pair.client.calls.live) == 3
    pair.lose = lambda message: False
    pair.advance(3.0)
    assert not pair.client.calls.live


def test_g9_calls_that_leave_while_a_disk_is_stuck_took_the_whole_window():
    """Nobody waits for these; but calls without a key were never sent, at a healthy server."""
    pair = Journaled.asked(server={"window": 16})
    for number in range(16):
        pair.cancel(pair.call(name=KeyName(b"default", b"%d" % number)))
    pair.submit(b"plain")
    assert [bytes(run.body) for _, run in pair.runs] == [b"plain"]


@pytest.mark.parametrize("is_sent", [True, False])
def test_g7_calls_for_other_keys_came_before_one_that_leaves_whose_work_ran_again(is_sent: bool):
    """It was called off while its server was lost, or when it waited to be issued again."""
    pair = Journaled(workers=1, server={"window": 32, "worker_capacity": 1})
    for number in range(60):
        pair.call(rerun=True, name=KeyName(b"default", b"%d" % number))
    pair.disk()
    pair.disconnect()
    if is_sent:
        pair.cancel(0)
    restarted(pair)
    pair.connect()
    pair.advance(2.0)
    if not is_sent:
        assert pair.client.calls.live[0].stage is Stage.QUEUED
        pair.cancel(0)
    assert not goes_on(pair)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_call_whose_allowance_is_above_that_of_its_server_never_started_again(keyed: bool):
    pair = Keyed(server={"max_executions": 4})
    if keyed:
        pair.call(rerun=True, max_executions=10)
    else:
        pair.submit(b"body", rerun=True, max_executions=10)
    pair.restart(proven=True)
    pair.advance(3.0)
    assert len(pair.runs) == 2


def test_g9_a_call_issued_again_waited_for_ever_for_an_environment_without_a_name():
    pair = Pair.asked()
    pair.auto_hello = False
    pair.restart(proven=True)
    ((worker, core),) = pair.workers.items()
    pair.work(worker, core.take(EnvironmentReady(1, "", True, 4)))
    pair.settle()
    pair.advance(10.0)
    assert len(pair.runs) == 2


def test_an_error_of_a_key_counted_executions_that_only_its_server_can_know():
    """It said "at most 6 of the 4 executions allowed" when servers were lost."""
    pair = Pair()
    submit(pair, rerun=True)
    pair.restart(proven=True)
    pair.advance(1.5)
    call = pair.client.calls.live[0]
    error = ErrorInfo(code="worker-lost", verdict=Verdict.MAY_HAVE_RUN, message="it died")
    assert call.may_have_run
    text = "it died; servers that were lost may have run the work of its key before"
    assert after_loss(error, call).message == text


def test_an_error_named_the_refusal_of_a_server_that_was_lost_since():
    """The call ran at the next server when its limit passed."""
    pair = Pair()
    limit_keys(pair, generations=1)
    submit(pair, b"first")
    submit(pair, b"second", limit_s=10.0, rerun=True)
    pair.advance(1.0)
    (number,) = pair.client.calls.held
    held = pair.client.calls.live[number]
    assert held.held_as == "keys-full"
    pair.restart(proven=True)
    pair.client.take(Disconnected(pair.now_s, "gone"))
    pair.connect()
    pair.advance(10.0)
    assert "passed while it waited" in pair.failure().message
    assert "keys-full" not in pair.failure().message


@pytest.mark.parametrize(
    ("held_as", "why"), [("", "it waited"), ("keys-full", "for now (keys-full)")]
)
def test_limit_that_passed_says_that_others_may_have_had_the_work_of_the_key(held_as, why):
    call: Any = SimpleNamespace(waits_for_key=True, held_as=held_as)
    error = ErrorInfo(code="no-answer", verdict=Verdict.MAY_HAVE_RUN, message="it passed")
    told = of_key(call, error)
    assert why in told.message
    assert told.message.endswith("may go on: ask for it again")
    call.waits_for_key = False
    assert of_key(call, error) is error


def test_a_call_lost_again_with_nothing_left_of_its_allowance_uses_no_more():
    pair = journaled(max_executions=2)
    records = list(pair.records)
    with pair.losing(messages.Request):
        for _ in range(4):
            pair.records = list(records)
            restarted(pair)
            pair.disconnect()
            pair.connect()
            pair.advance(1.0)
        call = pair.client.calls.live[0]
    assert (call.earlier, call.most) == (2, 2)
