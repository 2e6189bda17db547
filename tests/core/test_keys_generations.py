"""Generations of a key: what ends one, and what the next one waits for."""

from __future__ import annotations

import pytest

from trio_envserve.core.journal import Commanded
from trio_envserve.core.key_records import (
    CommandAnswer,
    Enter,
    GenerationState,
    KeyName,
    Reissue,
    input_digest,
)
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.restored import Remains

from .key_desk import A_BACK, NAME, OUTCOME, A, B, C, Desk, caller, said

S = GenerationState


def test_a_cancel_by_key_ends_it_whoever_waits():
    desk = Desk()
    desk.ask(A)
    desk.ask(B)
    desk.lose(B)
    desk.keys.dispatched(0)
    assert desk.cancel(0) == [("finish", 0), ("cancelled", A, True)]
    assert desk.leave(A) == []


def test_the_next_generation_waits_until_no_execution_of_an_earlier_one_lives():
    desk = Desk()
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.cancel(0)
    assert desk.ask(B, body=b"other input") == []
    assert desk.state(1) is S.HELD
    assert said(desk.keys.execution_ended(0)) == [("enter", 1)]
    assert desk.state(1) is S.WAITING


def test_a_generation_that_is_held_enters_with_its_own_input():
    desk = Desk()
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.cancel(0)
    desk.ask(B, body=b"other input", rerun=True, allowance=2)
    (enter,) = desk.keys.execution_ended(0)
    assert isinstance(enter, Enter)
    assert (enter.body, enter.allowance) == (b"other input", 2)
    assert (enter.generation.digest, enter.generation.rerun) == (
        input_digest(b"other input", True), True,
    )  # fmt: skip


def test_what_was_cancelled_while_it_was_held_never_enters():
    desk = Desk()
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.cancel(0)
    desk.ask(B)
    assert desk.cancel(1) == [("finish", 1), ("cancelled", B, False)]
    assert desk.keys.execution_ended(0) == ()
    assert desk.keys.generations == {}


def test_what_was_answered_while_it_was_held_never_enters():
    desk = Desk()
    desk.keys.declared_rerun = True
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.cancel(0)
    desk.ask(B, reissue=Reissue(gone=True, earlier=1))
    assert desk.outcome(1) == [("answer", B, OUTCOME)]
    assert desk.keys.execution_ended(0) == ()
    assert desk.state(1) is S.COMPLETED


def test_an_outcome_that_was_forgotten_while_its_execution_ends_holds_the_next_one():
    desk = Desk()
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.outcome(0)
    assert desk.forget(0) == []
    assert desk.ask(B) == []
    assert said(desk.keys.execution_ended(0)) == [("enter", 1)]


def test_a_command_by_number_hits_no_other_generation():
    desk = Desk()
    desk.ask(A)
    desk.cancel(0)
    desk.ask(B)
    for command in (desk.keys.cancel, desk.keys.forget):
        assert command(NAME, 0, 0.0) == ((), CommandAnswer())
    assert desk.state(1) is S.WAITING
    assert desk.cancel(0, KeyName(b"default", b"never seen")) == []
    assert not desk.keys.commands.early


@pytest.mark.parametrize("command", ["cancel", "forget"])
def test_a_second_copy_of_a_command_hits_nothing_and_is_answered_as_the_first(command):
    desk = Desk()
    desk.ask(A)
    do = getattr(desk.keys, command)
    effects, answer = do(NAME, b"id", 0.0)
    assert said(effects) == [("finish", 0), ("cancelled", A, False)]
    assert answer == CommandAnswer(generation=0, started=False)
    desk.ask(B)
    assert do(NAME, b"id", 0.0) == ((), answer)
    assert do(NAME, b"another id", 0.0)[1] == CommandAnswer(generation=1, started=False)


def test_a_forget_that_found_nothing_hits_nothing_later():
    desk = Desk()
    assert desk.keys.forget(NAME, b"id", 0.0) == ((), CommandAnswer())
    desk.ask(A)
    assert desk.keys.forget(NAME, b"id", 0.0) == ((), CommandAnswer())
    assert desk.state() is S.WAITING


def test_a_cancel_of_a_key_that_was_never_seen_hits_the_request_that_it_overtook():
    desk = Desk()
    assert desk.keys.cancel(NAME, b"id", 0.0) == ((), CommandAnswer(None, started=True))
    assert desk.ask(A) == [("cancelled", A, False)]
    assert desk.ask(B) == [("enter", 0)]
    assert desk.cancel(b"id") == []


def test_an_early_cancel_is_not_of_who_attaches_or_may_not_start():
    desk = Desk()
    desk.cancel(b"id")
    assert desk.attach(C) == [("UNKNOWN_KEY", C)]
    assert desk.ask(B, reissue=Reissue(gone=False, earlier=0)) == [("UNKNOWN_KEY", B)]
    assert desk.ask(A) == [("cancelled", A, False)]


def test_who_may_have_run_earlier_is_told_so_by_an_early_cancel():
    desk = Desk()
    desk.cancel(b"id")
    again = Reissue(gone=True, earlier=1)
    assert desk.ask(A, rerun=True, reissue=again) == [("cancelled", A, True)]


def test_an_early_cancel_is_remembered_for_a_time():
    desk = Desk()
    desk.cancel(b"id")
    desk.wait(10.0)
    desk.cancel(b"another id")
    desk.wait(10.0)
    assert desk.keys.commands.early  # of the second
    desk.wait(10.0)
    assert desk.ask(A) == [("enter", 0)]


def test_a_cancel_of_what_is_ending_is_not_of_what_comes_next():
    desk = Desk()
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.cancel(0)
    desk.cancel(b"id")
    assert desk.ask(B) == []


def test_so_many_commands_are_remembered_and_the_next_is_refused_for_now():
    desk = Desk(KeyLimits(commands=1, command_s=20.0))
    desk.cancel(b"1")
    desk.ask(A, KeyName(b"default", b"other"))
    refused = desk.keys.cancel(KeyName(b"default", b"other"), b"2", 0.0)
    assert refused == ((), CommandAnswer(refused=True))
    assert desk.state() is S.WAITING
    desk.wait(20.0)
    assert desk.cancel(b"2", KeyName(b"default", b"other")) != []


def test_what_a_door_had_forgotten_filled_the_memory_of_commands():
    """A door forgets the key of each run.  The server remembered all of these commands for
    minutes; then it refused them, and what nobody wanted stayed retained."""
    desk = Desk(KeyLimits())
    for number in range(100_000):
        desk.ask(A)
        desk.run(number)
        desk.leave(A)
        assert desk.keys.forget(NAME, b"", 0.0) == ((), CommandAnswer(number))
    assert not desk.keys.commands.said
    assert not desk.keys.commands.of
    assert not desk.keys.usage.generations


def test_a_cancel_without_an_id_of_its_own_does_not_wait_for_a_request():
    desk = Desk()
    assert desk.keys.cancel(NAME, b"", 0.0) == ((), CommandAnswer())
    assert not desk.keys.commands.early
    assert desk.ask(A) == [("enter", 0)]
    assert desk.cancel(b"") == [("finish", 0), ("cancelled", A, False)]


def test_commands_of_one_namespace_left_no_room_for_those_of_others():
    desk = Desk(KeyLimits(commands=8, command_s=20.0))
    for number in range(8):
        desk.keys.forget(KeyName(b"busy", b"%d" % number), b"id", 0.0)
    assert len(desk.keys.commands.said) == 4
    assert not desk.keys.forget(KeyName(b"other", b"key"), b"id", 0.0)[1].refused
    assert desk.keys.forget(KeyName(b"busy", b"7"), b"id", 0.0)[1].refused
    assert not desk.keys.forget(KeyName(b"busy", b"0"), b"id", 0.0)[1].refused  # is known
    desk.wait(20.0)
    assert not desk.keys.commands.of
    assert not desk.keys.forget(KeyName(b"busy", b"7"), b"id", 20.0)[1].refused


def test_started_is_false_only_if_this_cancel_ended_what_never_started():
    desk = Desk()
    desk.ask(A)
    desk.ask(B)
    assert desk.keys.leave(A, 0.0) == ((), True)  # it goes on
    assert desk.keys.leave(A, 0.0) == ((), True)
    assert desk.keys.leave(B, 0.0)[1] is False
    assert desk.keys.cancel(NAME, 0, 0.0)[1].started  # it was ended by another
    desk.ask(A)
    desk.lose(A)
    assert desk.keys.withdraw(NAME, caller(A), A_BACK.session, 0.0)[1] is False
    assert desk.keys.withdraw(NAME, caller(A), A_BACK.session, 0.0)[1] is True
    desk.ask(A)
    desk.keys.dispatched(2)
    desk.keys.execution_ended(2)  # its worker has died
    assert desk.keys.cancel(NAME, 2, 0.0)[1] == CommandAnswer(2, started=True)
    desk.ask(A)
    desk.attach(C)
    assert desk.keys.leave(C, 0.0) == ((), True)


def test_a_command_that_a_journal_has_twice_counted_twice_for_ever():
    """A copy of it had come after the first was forgotten, and a crash before the disk forgot
    that, too."""
    commands = Desk(KeyLimits(command_s=1.0)).keys.commands
    record = Commanded(False, *NAME, b"t" * 16, None, False, False)
    commands.restore(Remains({}, [record, record], {}, 0), 0.0)
    commands.pass_by(1.0)
    assert not commands.said
    assert not commands.of
