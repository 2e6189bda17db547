"""Keys beside their model (``test_keys_machine``): what names and digests are, what one turn
does, what a namespace leaves to others, and which commands are remembered."""

from __future__ import annotations

import itertools

import pytest

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.journal import Commanded
from trio_envserve.core.key_records import CommandAnswer, KeyName, input_digest
from trio_envserve.core.keys import BUDGET
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.requests import Ask
from trio_envserve.core.restored import Remains

from .key_desk import LIMITS, NAME, A, B, C, Desk, asking, said


def test_a_digest_that_is_said_of_another_input_is_a_conflict():
    desk = Desk()
    desk.ask(A)
    claimed = Ask(input_digest(b"input", None), b"longer input", None, 4)
    assert said(desk.keys.ask(asking(B, claimed), 0.0)) == [("CONFLICT", B)]


def test_the_digest_is_of_the_input_and_the_consent():
    digests = {
        input_digest(body, rerun) for body in (b"", b"1", b"11") for rerun in (None, True, False)
    }
    assert len(digests) == 9
    assert {*map(len, digests)} == {32}
    assert input_digest(memoryview(b"11"), True) == input_digest(b"11", True)


@pytest.mark.parametrize("part", ["namespace", "key"])
def test_a_name_has_a_bounded_length(part):
    desk = Desk()
    most = getattr(LIMITS, f"{part}_bytes")
    for length in (0, most + 1):
        name = NAME._replace(**{part: b"k" * length})
        with pytest.raises(ProtocolError, match=f"a {part} has 1 to {most} bytes"):
            desk.ask(A, name)
    assert desk.ask(A, NAME._replace(**{part: b"k" * most}))[0] == ("enter", 0)


def test_a_cancel_is_not_remembered_for_a_key_whose_execution_still_ends():
    desk = Desk()
    desk.ask(A)
    desk.keys.dispatched(0)
    desk.cancel(0)
    desk.cancel(b"id")
    assert not desk.keys.commands.early


# -- turns and bounds ---------------------------------------------------------------


def test_one_turn_ends_so_many_by_time_and_no_more():
    desk = Desk(KeyLimits(retention_s=1.0, namespace_share=1.0))
    for number in range(BUDGET + 1):
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


def test_what_is_larger_than_the_bound_may_be_there_alone():
    desk = Desk(KeyLimits(retained_bytes=5))
    assert desk.ask(A) == [("enter", 0)]
    assert desk.keys.room.may_retain(NAME.namespace)
    assert desk.ask(B, KeyName(b"a", b"other")) == [("FULL", B)]


# -- commands -----------------------------------------------------------------------


def test_what_a_door_had_forgotten_filled_the_memory_of_commands():
    """A door forgets the key of each run.  The server remembered all of these commands for
    minutes; then it refused them, and what nobody wanted stayed retained."""
    desk = Desk(KeyLimits(commands=100))
    for number in range(1000):
        desk.ask(A)
        desk.run(number)
        desk.leave(A)
        assert desk.keys.forget(NAME, b"", 0.0) == ((), CommandAnswer(number))
    assert not desk.keys.commands.said
    assert not desk.keys.commands.of
    assert not desk.keys.usage.generations


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


def test_a_command_that_a_journal_has_twice_counted_twice_for_ever():
    """A copy of it had come after the first was forgotten, and a crash before the disk forgot
    that, too."""
    commands = Desk(KeyLimits(command_s=1.0)).keys.commands
    record = Commanded(False, *NAME, b"t" * 16, None, False, False)
    commands.restore(Remains({}, [record, record], {}, 0), 0.0)
    commands.pass_by(1.0)
    assert not commands.said
    assert not commands.of
