"""Who counts for a key: the last one's leaving cancels its work."""

from __future__ import annotations

from trio_envserve.core.key_records import GenerationState, KeyName
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.terms import RequestId

from .helpers import identifier
from .key_desk import A_BACK, OUTCOME, A, B, C, Desk, said

S = GenerationState


def test_a_waiter_is_counted_once():
    desk = Desk()
    desk.ask(A)
    assert desk.ask(A) == []
    assert desk.attach(A) == []
    assert desk.leave(A) == [("finish", 0)]


def test_two_calls_of_one_session_are_two_waiters():
    desk = Desk()
    second = A._replace(sequence=1)
    desk.ask(A)
    desk.ask(second)
    assert desk.leave(A) == []
    assert desk.leave(second) == [("finish", 0)]


def test_the_first_of_two_waiters_cancels_nothing_and_the_last_one_does():
    desk = Desk()
    desk.ask(A)
    desk.ask(B)
    assert desk.leave(A) == []
    assert desk.leave(A) == []
    assert desk.leave(B) == [("finish", 0)]


def test_a_waiter_that_was_lost_goes_on_counting():
    desk = Desk()
    desk.ask(A)
    desk.ask(B)
    desk.lose(A)
    assert desk.leave(B) == []
    assert desk.run() == []
    assert desk.ask(A_BACK) == [("answer", A_BACK, OUTCOME)]


def test_a_caller_that_is_back_takes_its_old_place():
    desk = Desk()
    desk.ask(A)
    desk.lose(A)
    assert desk.ask(A_BACK) == []
    assert desk.leave(A_BACK) == [("finish", 0)]


def test_a_caller_that_is_back_before_its_lease_has_ended_is_counted_once():
    desk = Desk()
    desk.ask(A)
    desk.ask(A_BACK)
    desk.lose(A)
    assert desk.leave(A_BACK) == [("finish", 0)]


def test_who_was_replaced_is_answered_all_the_same():
    desk = Desk()
    desk.ask(A)
    desk.ask(A_BACK)
    answers = [("answer", A_BACK, OUTCOME), ("answer", A, OUTCOME)]
    assert desk.run() == [*answers]
    assert desk.leave(A_BACK) == []
    assert desk.wait(100.0) == []
    assert desk.state() is S.CLOSED


def test_a_caller_that_is_back_for_a_retained_outcome_does_not_wait_twice():
    desk = Desk()
    desk.ask(A)
    desk.run()
    assert desk.ask(A_BACK) == [("answer", A_BACK, OUTCOME)]
    desk.leave(A_BACK)
    desk.wait(100.0)
    assert desk.state() is S.CLOSED
    assert desk.leave(A) == []


def test_a_caller_that_is_back_may_want_none():
    desk = Desk()
    desk.ask(A)
    desk.ask(B)
    desk.lose(A)
    assert desk.withdraw(A_BACK) == []
    assert desk.leave(B) == [("finish", 0)]


def test_a_second_withdrawal_does_not_hit_what_the_caller_has_asked_for_since():
    desk = Desk()
    desk.ask(A)
    desk.lose(A)
    desk.withdraw(A_BACK)
    desk.ask(A_BACK)
    assert desk.withdraw(A_BACK) == []
    assert desk.state(1) is S.WAITING


def test_a_withdrawal_by_who_does_not_count_lets_the_deadline_for_orphans_run():
    desk = Desk()
    desk.ask(A)
    desk.lose(A)
    desk.wait(9.0)
    assert desk.withdraw(B) == []
    assert desk.wait(1.0) == [("finish", 0)]


def test_the_deadline_for_orphans_runs_only_while_nobody_waits():
    desk = Desk()
    desk.ask(A)
    desk.ask(B)
    desk.lose(A)
    assert desk.wait(50.0) == []
    desk.leave(B)
    assert desk.wait(9.0) == []
    desk.ask(B)
    assert desk.wait(50.0) == []
    desk.leave(B)
    assert desk.wait(9.0) == []
    assert desk.wait(1.0) == [("finish", 0)]


def test_the_deadline_for_orphans_goes_on_when_one_of_two_gives_up():
    desk = Desk()
    desk.ask(A)
    desk.ask(B)
    desk.lose(A)
    desk.lose(B)
    desk.wait(9.0)
    assert desk.withdraw(A_BACK) == []
    assert desk.wait(1.0) == [("finish", 0)]


def test_who_attaches_without_input_never_counts():
    desk = Desk()
    desk.ask(A)
    assert desk.attach(C) == []
    desk.lose(A)
    assert desk.wait(9.0) == []
    assert desk.wait(1.0) == [("finish", 0), ("cancelled", C, False)]
    desk.ask(A)
    desk.attach(B)
    assert desk.leave(B) == []
    desk.attach(C)
    assert desk.lose(C) == []
    assert desk.leave(A) == [("finish", 1)]


def test_who_attaches_without_input_does_not_take_a_place_that_was_lost():
    desk = Desk()
    desk.ask(A)
    desk.lose(A)
    desk.attach(A_BACK)
    desk.leave(A_BACK)
    assert desk.run() == []


def test_a_client_that_says_goodbye_leaves_all_that_it_waits_for():
    desk = Desk()
    other = KeyName(b"default", b"other")
    desk.ask(A)
    desk.ask(B, other)
    desk.attach(A._replace(sequence=1), other)
    desk.attach(A._replace(sequence=2))
    all_of = [A._replace(sequence=number) for number in range(4)]
    assert said(desk.keys.leave_all(all_of, 0.0, lost=False)) == [("finish", 0)]
    assert desk.run(1) == [("answer", B, OUTCOME)]
    assert desk.keys.leave_all(all_of, 0.0, lost=False) == []


def test_so_many_may_wait_for_a_key_and_no_more():
    desk = Desk(KeyLimits(waiters=3))
    desk.ask(A)
    desk.lose(A)
    desk.ask(B)
    desk.attach(C)
    late = RequestId(identifier(4), 0)
    assert desk.ask(late) == [("CROWDED", late)]
    assert desk.attach(late) == [("CROWDED", late)]
    assert desk.ask(A_BACK) == []
    desk.run()
    desk.ask(C)
    assert desk.ask(late) == [("CROWDED", late)]
    assert desk.attach(late) == [("answer", late, OUTCOME)]
