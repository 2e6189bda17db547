"""Each cell of the table of keys: what an input does to a generation in each state."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trio_envserve.core.key_records import Payload, WorkState
from trio_envserve.core.key_table import TABLE, KeyInput, _never
from trio_envserve.core.requests import RetainedOutcome

from .helpers import kept
from .key_desk import A_BACK, OUTCOME, A, B, C, Desk, said

S = WorkState


def desk_in(state: WorkState) -> tuple[Desk, int]:
    """A desk whose key's newest generation is in this state, and its number.  Of an open
    one A waits, and C watches."""
    desk = Desk()
    if state is S.ABSENT:
        return desk, -1
    number = 0
    if state is S.HELD:
        desk.ask(B, body=b"earlier")
        desk.keys.dispatched(0)
        desk.cancel(0)
        number = 1
    if state is S.READING:
        unread(desk)
    desk.ask(A)
    desk.attach(C)
    if state in (S.RUNNING, S.CLOSED):
        desk.keys.dispatched(0)
    if state is S.CLOSED:
        desk.cancel(0)
    if state is S.COMPLETED:
        desk.run()
    assert desk.state(number) is state
    return desk, number


def unread(desk: Desk) -> None:
    """Its outcome is on the disk, and somebody has asked for it."""
    desk.ask(A)
    desk.run()
    desk.leave(A)
    generation = desk.keys.generations[0]
    assert generation.outcome is not None
    desk.keys.room.let_go(generation.outcome.shared)
    generation.outcome = dataclasses.replace(
        kept(b""), size_bytes=7, shared=Payload(generation.name.namespace, 0, 1)
    )
    generation.state = S.READING


def read(desk: Desk, input: KeyInput, outcome: RetainedOutcome | None) -> list[Any]:
    generation = desk.keys.generations[0]
    return said(desk.keys.step(generation, input, outcome, 0.0))


def late(desk: Desk) -> list[Any]:
    """The router answered it while its execution was being stopped."""
    desk.keys.generations[0].live = True
    return said(desk.keys.execution_ended(0))


def orphaned(desk: Desk) -> list[Any]:
    assert desk.lose(A) == []
    return desk.wait(10.0)


def retained(desk: Desk) -> list[Any]:
    assert desk.leave(A) == []
    return desk.wait(100.0)


def outcome_of_what_started(desk: Desk, number: int) -> list[Any]:
    """Here, or, as a request says that is issued again, in an earlier epoch."""
    desk.keys.generations[number].earlier = 1
    return desk.outcome(number)


OPEN = (S.HELD, S.WAITING, S.RUNNING)
DONE = S.COMPLETED
UNREAD = S.READING
GONE = [("cancelled", A, True), ("cancelled", C, True)]

# What is done, the states, what follows, and the state then.  A number: of the generation;
# "started": whether it was.
CELLS: list[tuple[KeyInput, tuple[WorkState, ...], Any, list[Any], Any]] = [
    (KeyInput.ASK, (S.ABSENT,), lambda d, n: d.ask(B), [("enter", 0)], S.ABSENT),
    (KeyInput.ASK, (*OPEN, UNREAD), lambda d, n: d.ask(B), [], None),
    (KeyInput.ASK, (DONE,), lambda d, n: d.ask(B), [("answer", B, OUTCOME)], None),
    (
        KeyInput.OTHER_INPUT, (*OPEN, DONE, UNREAD), lambda d, n: d.ask(B, body=b"other"),
        [("CONFLICT", B)], None,
    ),
    (KeyInput.ATTACH, (S.ABSENT,), lambda d, n: d.attach(B), [("UNKNOWN_KEY", B)], None),
    (KeyInput.ATTACH, (*OPEN, UNREAD), lambda d, n: d.attach(B), [], None),
    (KeyInput.ATTACH, (DONE,), lambda d, n: d.attach(B), [("answer", B, OUTCOME)], None),
    (
        KeyInput.LEAVE, OPEN, lambda d, n: d.leave(A),
        [("finish", "n"), ("cancelled", C, "started")], S.CLOSED,
    ),
    (KeyInput.LEAVE, (DONE, UNREAD), lambda d, n: d.leave(A), [], None),
    (KeyInput.LOSE, (*OPEN, DONE, UNREAD), lambda d, n: d.lose(A), [], None),
    (KeyInput.LOSE, OPEN, lambda d, n: d.lose(C), [], None),
    (KeyInput.WITHDRAW, (S.ABSENT,), lambda d, n: d.withdraw(A_BACK), [], None),
    (
        KeyInput.WITHDRAW, OPEN, lambda d, n: d.withdraw(A_BACK),
        [("finish", "n"), ("cancelled", C, "started"), ("cancelled", A, "started")], S.CLOSED,
    ),
    (KeyInput.WITHDRAW, (DONE, UNREAD), lambda d, n: d.withdraw(A_BACK), [], None),
    (KeyInput.CANCEL, (S.ABSENT,), lambda d, n: d.cancel(b"id"), [], None),
    (
        KeyInput.CANCEL, OPEN, lambda d, n: d.cancel(n),
        [("finish", "n"), ("cancelled", A, "started"), ("cancelled", C, "started")], S.CLOSED,
    ),
    (KeyInput.CANCEL, (DONE, UNREAD), lambda d, n: d.cancel(n), [], None),
    (KeyInput.FORGET, (UNREAD,), lambda d, n: d.forget(n), GONE, S.CLOSED),
    (
        KeyInput.RETENTION_ENDED, (UNREAD,), lambda d, n: retained(d), GONE[1:], S.CLOSED,
    ),
    (
        KeyInput.READ, (UNREAD,), lambda d, n: read(d, KeyInput.READ, OUTCOME),
        [("answer", A, OUTCOME), ("answer", C, OUTCOME)], DONE,
    ),
    (KeyInput.UNREADABLE, (UNREAD,), lambda d, n: read(d, KeyInput.UNREADABLE, None), [], None),
    (KeyInput.FORGET, (S.ABSENT,), lambda d, n: d.forget(b"id"), [], None),
    (
        KeyInput.FORGET, OPEN, lambda d, n: d.forget(n),
        [("finish", "n"), ("cancelled", A, "started"), ("cancelled", C, "started")], S.CLOSED,
    ),
    (KeyInput.FORGET, (DONE,), lambda d, n: d.forget(n), [], S.CLOSED),
    (KeyInput.DISPATCH, (S.WAITING,), lambda d, n: d.keys.dispatched(n) or [], [], S.RUNNING),
    (
        KeyInput.EXECUTION_ENDED, (S.RUNNING,), lambda d, n: said(d.keys.execution_ended(n)),
        [], S.WAITING,
    ),
    (KeyInput.EXECUTION_ENDED, (DONE,), lambda d, n: late(d), [], None),
    (
        KeyInput.EXECUTION_ENDED, (S.CLOSED,), lambda d, n: said(d.keys.execution_ended(n)),
        [], S.CLOSED,
    ),
    (
        KeyInput.OUTCOME, OPEN, lambda d, n: outcome_of_what_started(d, n),
        [("answer", A, OUTCOME), ("answer", C, OUTCOME)], DONE,
    ),
    (
        KeyInput.NEVER_RAN, (S.HELD, S.WAITING), lambda d, n: d.outcome(n),
        [("finish", "n"), ("answer", A, OUTCOME), ("answer", C, OUTCOME)], S.CLOSED,
    ),
    (
        KeyInput.ORPHANED, OPEN, lambda d, n: orphaned(d),
        [("finish", "n"), ("cancelled", C, "started")], S.CLOSED,
    ),
    (KeyInput.ORPHANED, (DONE, UNREAD), lambda d, n: orphaned(d), [], None),
    (KeyInput.RETENTION_ENDED, (DONE,), lambda d, n: retained(d), [], S.CLOSED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "do", "expected", "then"),
    [
        pytest.param(state, do, expected, then, id=f"{input.value} while {state.value}")
        for input, states, do, expected, then in CELLS
        for state in states
    ],
)
def test_what_an_input_does(state, do, expected, then):
    desk, number = desk_in(state)
    values = {"n": number, "started": state is S.RUNNING}
    filled = [
        tuple(values.get(part, part) if isinstance(part, str) else part for part in each)
        for each in expected
    ]
    assert do(desk, number) == filled
    if state is not S.ABSENT:
        assert desk.state(number) is (then or state)


def test_every_cell_is_in_that_list_or_cannot_be():
    listed = {(input, state) for input, states, *_ in CELLS for state in states}
    possible = {(i, s) for i, row in TABLE.items() for s, cell in row.items() if cell != _never}
    assert listed == possible
    assert {*TABLE} == {*KeyInput}
    assert all({*row} == {*WorkState} for row in TABLE.values())


@pytest.mark.parametrize(
    ("input", "state"),
    [(i, s) for i, row in TABLE.items() for s, cell in row.items() if cell == _never],
    ids=lambda value: value.value,
)
def test_what_cannot_be_changes_nothing(input, state):
    desk, number = desk_in(state)
    before = repr(vars(desk.keys))
    with pytest.raises(AssertionError, match="cannot reach"):
        desk.keys.step(desk.keys.generations.get(number), input, None, 0.0)
    assert repr(vars(desk.keys)) == before
