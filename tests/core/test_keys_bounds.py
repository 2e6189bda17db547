"""How long an outcome is retained under its key, and what there is room for."""

from __future__ import annotations

import itertools

from trio_envserve.core.key_records import GenerationState, KeyName
from trio_envserve.core.keys import ENDED_AT_ONCE
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.terms import RequestId

from .helpers import kept
from .key_desk import NAME, OUTCOME, A, B, C, Desk

S = GenerationState


def test_retention_begins_when_the_outcome_is_there_and_the_last_waiter_has_left():
    desk = Desk()
    desk.ask(A)
    desk.ask(B)
    desk.run()
    desk.leave(A)
    desk.wait(500.0)
    assert desk.ask(A) == [("answer", A, OUTCOME)]
    desk.leave(A)
    desk.leave(B)
    desk.wait(99.0)
    assert desk.ask(A) == [("answer", A, OUTCOME)]
    desk.wait(99.0)
    desk.leave(A)
    desk.wait(99.0)
    assert desk.state() is S.COMPLETED
    desk.wait(1.0)
    assert desk.ask(A) == [("enter", 1)]


def test_what_waiters_were_lost_for_is_retained_after_the_deadline_for_orphans():
    desk = Desk()
    desk.ask(A)
    desk.lose(A)
    desk.run()
    desk.wait(10.0)
    desk.wait(99.0)
    assert desk.state() is S.COMPLETED
    desk.wait(1.0)
    assert desk.state() is S.CLOSED


def test_who_attaches_does_not_prolong_the_retention():
    desk = Desk()
    desk.ask(A)
    desk.run()
    desk.leave(A)
    desk.wait(99.0)
    desk.attach(C)
    desk.wait(1.0)
    assert desk.state() is S.CLOSED


def test_what_runs_or_waits_is_not_forgotten_however_long_it_takes():
    desk = Desk()
    desk.ask(A)
    desk.wait(1000.0)
    desk.keys.dispatched(0)
    desk.wait(1000.0)
    assert desk.state() is S.RUNNING


def test_what_never_ran_is_not_retained():
    desk = Desk()
    desk.ask(A)
    assert desk.outcome() == [("finish", 0), ("answer", A, OUTCOME)]
    assert desk.ask(B) == [("enter", 1)]
    assert desk.leave(A) == []


def test_one_turn_ends_so_many_by_time_and_no_more():
    desk = Desk(KeyLimits(retention_s=1.0, namespace_share=1.0))
    for number in range(ENDED_AT_ONCE + 1):
        desk.ask(A._replace(sequence=number), KeyName(b"default", b"%d" % number))
        desk.run(number)
    desk.keys.leave_all([*desk.keys.waiting], 0.0, lost=False)
    assert desk.keys.behind  # one of them leaves in the next turn
    desk.wait(0.0)
    assert not desk.keys.behind
    desk.wait(1.0)
    assert len(desk.keys.generations) == 1
    assert desk.keys.behind
    desk.wait(0.0)
    assert not desk.keys.behind
    assert desk.keys.generations == {}


def test_each_end_of_a_retention_had_a_turn_of_its_own():
    """Where much was retained, something was due at any time, and a server went round and
    round between its ticks."""
    desk = Desk(KeyLimits(retention_s=1.0))
    desk.ask(A)
    desk.run(0)
    desk.leave(A)
    desk.now_s += 2.0
    assert not desk.keys.behind
    desk.wait(0.0)
    assert not desk.keys.behind
    assert desk.keys.generations == {}


def test_one_turn_answers_so_many_and_no_more():
    desk = Desk(KeyLimits(orphan_s=1.0, namespace_share=1.0))
    for number, sequence in itertools.product(range(3), range(600)):
        name = KeyName(b"default", b"%d" % number)
        if not sequence:
            desk.ask(A._replace(sequence=number), name)
        desk.attach(C._replace(sequence=1000 * number + sequence), name)
    desk.lose(A)
    assert len(desk.wait(1.0)) == 2 * 601
    assert desk.keys.behind


def names(namespace: bytes) -> list[KeyName]:
    """Nine keys."""
    return [KeyName(namespace, b"%d" % n) for n in range(9)]


def test_at_the_bound_new_keys_wait_and_nothing_is_dropped():
    desk = Desk(KeyLimits(generations=2, namespace_share=1.0, retention_s=100.0))
    first, second, third, *_ = names(b"a")
    desk.ask(A, first)
    desk.run(0)
    desk.leave(A)
    desk.ask(A, second)
    assert desk.ask(B, third) == [("FULL", B)]
    assert desk.ask(B, first) == [("answer", B, OUTCOME)]
    assert desk.ask(B._replace(sequence=1), second) == []
    desk.leave(B)
    desk.wait(100.0)
    assert desk.ask(B, third) == [("enter", 2)]


def test_a_closed_generation_takes_up_room_while_its_execution_lives():
    desk = Desk(KeyLimits(generations=1, namespace_share=1.0))
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.cancel(0)
    assert desk.ask(B, names(b"a")[0]) == [("FULL", B)]
    desk.keys.execution_ended(0)
    assert desk.ask(B, names(b"a")[0]) == [("enter", 1)]


def test_a_namespace_leaves_room_for_the_others():
    desk = Desk(KeyLimits(generations=8, namespace_share=0.5))
    taken = []
    for namespace in (b"a", b"b", b"c", b"d", b"e"):
        before = len(desk.keys.open)
        for sequence, name in enumerate(names(namespace)):
            desk.ask(RequestId(namespace, sequence), name)
        taken.append(len(desk.keys.open) - before)
    assert taken == [4, 2, 1, 1, 0]


def test_at_the_bound_in_bytes_new_keys_wait_and_dispatching_pauses():
    desk = Desk(KeyLimits(retained_bytes=20, namespace_share=1.0))
    first, second, third, *_ = names(b"a")
    desk.ask(A, first)
    desk.ask(A._replace(sequence=1), second)
    assert desk.keys.room.may_retain(b"a")
    desk.run(0, kept(b"x" * 30))
    assert not desk.keys.room.may_retain(b"a")
    assert desk.ask(B, third) == [("FULL", B)]
    desk.keys.forget(first, 0, 0.0)
    assert desk.keys.room.may_retain(b"a")
    assert desk.ask(B, third) == [("enter", 2)]


def test_an_input_that_waits_for_an_earlier_generation_counts():
    desk = Desk(KeyLimits(retained_bytes=40, namespace_share=1.0))
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.cancel(0)
    assert desk.ask(B, body=b"x" * 30) == [("FULL", B)]
    assert desk.ask(B, body=b"x" * 10) == []
    assert desk.keys.usage.size_bytes == 2 * NAME.size_bytes + 10
    desk.keys.execution_ended(0)
    assert desk.keys.usage.size_bytes == NAME.size_bytes


def test_what_is_larger_than_the_bound_may_be_there_alone():
    desk = Desk(KeyLimits(retained_bytes=5))
    assert desk.ask(A) == [("enter", 0)]
    assert desk.keys.room.may_retain(NAME.namespace)
    assert desk.ask(B, names(b"a")[0]) == [("FULL", B)]
