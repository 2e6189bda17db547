"""The gate: which answers wait for the journal, and for how long; and what one turn may do."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_envserve.core.gate import BUDGET, RECORDS_OF_EACH, Budget, Gate
from trio_envserve.core.journal import Closed, Journal
from trio_envserve.core.limits import KeyLimits

KEYS = KeyLimits(generations=10, retained_bytes=1000)


def gate_of(*, on: bool = True, left: int = BUDGET) -> tuple[Gate[str], Journal, Budget]:
    journal, budget = Journal(on=on), Budget()
    budget.left = left
    return Gate(journal, KEYS, budget), journal, budget


def append(journal: Journal, count: int = 1) -> None:
    for number in range(count):
        journal.append(Closed, number)


def test_a_budget_ends_and_is_renewed_by_the_next_input():
    budget = Budget()
    assert sum(budget.spend() for _ in range(BUDGET + 5)) == BUDGET
    assert not budget.spend()
    budget.renew()
    assert budget.spend()


def test_g11_an_answer_waits_for_what_was_recorded_before_it_and_for_nothing_since():
    gate, journal, _ = gate_of()
    append(journal, 2)
    gate.hold("one", "first")
    append(journal)
    gate.hold("two", "second")
    journal.saved(1)
    assert not gate.is_due
    journal.saved(2)
    assert gate.is_due
    assert gate.is_decided("one")
    assert [*gate.take_due()] == [("first", True)]
    assert (gate.is_decided("one"), gate.is_decided("two")) == (False, True)
    assert (gate.waiting, gate.is_safe()) == (1, False)


def test_g9_what_waits_for_a_journal_that_is_lost_is_due_and_not_safe():
    gate, journal, _ = gate_of()
    append(journal)
    gate.hold("one", "first")
    append(journal)
    gate.hold("two", "second")
    journal.saved(1)
    journal.fail("the disk is gone", final=True)
    assert [*gate.take_due()] == [("first", True), ("second", False)]


def test_one_that_waits_twice_is_decided_until_the_last_answer_was_told():
    gate, journal, _ = gate_of()
    append(journal)
    gate.hold("one", "first")
    gate.hold("one", "second")
    journal.saved(1)
    told = gate.take_due()
    assert next(told) == ("first", True)
    assert gate.is_decided("one")
    assert next(told) == ("second", True)
    assert not gate.is_decided("one")


@given(
    steps=st.lists(st.sampled_from(["pass", "hold", "save", "input", "turn"]), max_size=60),
    most=st.integers(1, 3),
)
@example(steps=["pass", "pass", "hold", "turn"], most=1)
@example(steps=["pass", "pass", "input", "pass", "turn"], most=1)
def test_answers_of_one_who_waits_leave_in_their_order_and_no_turn_has_more_than_its_budget(
    steps: list[str], most: int
):
    gate, journal, budget = gate_of(left=1)
    told: list[str] = []
    late: list[str] = []
    held: list[str] = []
    safe, made, left = 0, 0, 1
    for step in [*steps, "save", *["turn"] * 60]:
        match step:
            case "pass" if gate.is_safe():
                may_pass = not late and left > 0
                assert gate.passes() is may_pass
                (told if may_pass else late).append(f"{made}")
                if may_pass:
                    left -= 1
                else:
                    gate.delay(f"{made}")
                made += 1
            case "pass" | "hold":
                append(journal)
                gate.hold("one", f"{made}")
                held.append(f"{made}")
                made += 1
            case "save":
                journal.saved(journal.appended)
                safe = len(held)
            case "input":
                budget.left = left = most
            case "turn":
                budget.left = most
                expected = [*late, *held[:safe]][:most]
                assert [*gate.take_due()] == [(answer, True) for answer in expected]
                told += expected
                left = most - len(expected)
                from_held = max(0, len(expected) - len(late))
                late, held, safe = late[most:], held[from_held:], safe - from_held
        assert budget.left == left
        assert gate.is_due is bool(late or safe)
        assert gate.waiting == len(late) + len(held)
    assert sorted(told, key=int) == [f"{number}" for number in range(made)]


@pytest.mark.parametrize("part", [1.0, 2.0, 0.5])
def test_g8_the_disk_may_owe_so_many_records_and_answers(part: float):
    gate, journal, _ = gate_of()
    most = int(part * RECORDS_OF_EACH * KEYS.generations)
    append(journal, most - 1)
    assert gate.may_hold(part)
    append(journal)
    assert not gate.may_hold(part)
    journal.saved(journal.appended)
    for number in range(most):
        assert gate.may_hold(part)
        gate.hold(number, "answer")
    assert not gate.may_hold(part)
    journal.fail("the disk is gone", final=True)
    assert gate.may_hold(part), "one that is lost owes nothing"


@pytest.mark.parametrize("part", [1.0, 2.0, 0.5])
def test_g8_the_disk_may_owe_so_many_bytes(part: float):
    gate, journal, _ = gate_of()
    journal.waiting_bytes = int(part * KEYS.retained_bytes) - 1
    assert gate.may_hold(part)
    journal.waiting_bytes += 1
    assert not gate.may_hold(part)


def test_without_a_journal_everything_is_safe():
    gate, journal, _ = gate_of(on=False)
    append(journal)
    assert gate.is_safe()
    assert gate.may_hold()
    assert not gate.is_due


def test_gate_forgets_one_who_waits_and_nobody_else():
    gate, journal, _ = gate_of()
    append(journal)
    for waiter, answer in (("one", "first"), ("two", "second"), ("one", "third")):
        gate.hold(waiter, answer, counts=waiter == "two")
    gate.forget("one")
    gate.forget("unknown")
    assert (gate.is_decided("one"), gate.is_decided("two"), gate.waiting) == (False, True, 1)
    journal.saved(1)
    assert [*gate.take_due()] == [("second", True)]
    assert gate.waiting == 0


class Compared:
    """One who waits, and counts with whom it is compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_g10_each_worker_that_died_cost_a_look_at_all_that_waited_for_a_stuck_disk():
    gate, journal, _ = gate_of()
    append(journal)
    waiters = [Compared() for _ in range(100)]
    for waiter in waiters:
        gate.hold(waiter, "answer")
    Compared.count = 0
    for waiter in waiters:
        gate.forget(waiter)
    assert Compared.count <= len(waiters)
