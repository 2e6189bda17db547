"""Heartbeats: how a worker's server reads their lines."""

from __future__ import annotations

import json
import random
import string

import pytest

from trio_envserve.core.heartbeat import (
    ANSWERS_MOST,
    AT_CHARACTERS,
    HEARTBEAT_LINE_BYTES,
    HOLDER_CHARACTERS,
    Heartbeat,
    HeartbeatLines,
    StackQuestion,
)


@pytest.mark.parametrize("stack", ["", "\ud800\u20ac\0" * 30_000], ids=["alone", "with a stack"])
def test_a_line_of_a_heartbeat_is_never_too_long(stack: str):
    where = "".join(random.Random(1).choices(string.printable + "\ud800\u20ac", k=100_000))
    line = Heartbeat(0.5, 7, where, 3, stack).to_line()
    assert len(line) <= HEARTBEAT_LINE_BYTES
    [read] = HeartbeatLines().feed(line)
    assert read.asked == 3
    assert where.replace("\ud800", "?").endswith(read.where.replace("\ud800", "?"))
    assert stack.replace("\ud800", "?").startswith(read.stack)
    assert len(read.where) > 1_000
    assert not stack or len(read.stack) > 1_000


@pytest.mark.parametrize("asked", [None, 3])
def test_a_stack_of_wide_characters_was_too_long_for_a_host_s_router(asked: int | None):
    """JSON makes twelve bytes of each: the router ended the session of the worker's host."""
    line = Heartbeat(0.5, 7, "\U0001f600" * 9_000, asked, "\U0001f600" * 9_000).to_line()
    assert len(line) <= HEARTBEAT_LINE_BYTES
    [read] = HeartbeatLines().feed(line)
    assert len(read.where) > 1_000


def test_questions_that_arrived_together_are_all_read():
    """Only the last one was answered; whoever had asked the others waited and asked again."""
    asked = [StackQuestion(number, f"ab#{number}") for number in range(ANSWERS_MOST + 2)]
    lines = [question.to_line() for question in asked]
    assert StackQuestion.read(b"{}\n".join(lines[:3]) + b"{") == asked[:3]
    assert StackQuestion.read(b"".join(lines)) == asked[2:]


@pytest.mark.parametrize("data", [b"", b"{}\n", b"7\n", b"\xff\n", b'{"stack": null}\n', b"{"])
def test_what_is_no_question_is_left_out(data: bytes):
    assert StackQuestion.read(data) == []


def test_heartbeats_are_read_as_they_arrive_and_the_last_one_counts():
    lines = HeartbeatLines()
    assert lines.feed(b'{"lag_s": 1') == []
    assert lines.feed(b', "memory_bytes": 5}\n{"la') == [Heartbeat(1, 5, "")]
    assert lines.feed(b'g_s": 2.5}\n{}\n{"where": "here"}\n{') == [Heartbeat(0.0, 0, "here")]
    assert lines.feed(b"}\n") == [Heartbeat()]


def test_answers_that_arrive_together_all_count():
    answers = [Heartbeat(asked=number, stack="here") for number in range(2 * ANSWERS_MOST)]
    told = b"7\n".join(each.to_line() for each in answers[:5])
    assert HeartbeatLines().feed(told) == answers[:5]
    assert HeartbeatLines().feed(told + Heartbeat(1.0).to_line()) == [*answers[:5], Heartbeat(1.0)]
    told = b"".join(each.to_line() for each in answers)
    assert HeartbeatLines().feed(told) == answers[-ANSWERS_MOST:]


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\xff", b"[]", b"7", b"{", b'{"lag_s": "late"}', b'{"lag_s": true}',
        b'{"lag_s": -1}', b'{"lag_s": NaN}', b'{"lag_s": Infinity}', b'{"memory_bytes": 1.5}',
        b'{"memory_bytes": 1e400}', b'{"memory_bytes": -1}', b'{"where": null}', b"[" * 60_000,
        b'{"asked": -1}', b'{"asked": "1"}', b'{"asked": 1, "stack": null}',
        b'{"memory_bytes": ' + b"9" * 30 + b"}",
        b'{"where": "' + b"x" * HEARTBEAT_LINE_BYTES + b'"}',
    ],
)  # fmt: skip
def test_what_is_no_heartbeat_is_said_and_the_next_one_is_read(line: bytes):
    """Whatever a worker writes, its server's loop goes on."""
    lines = HeartbeatLines()
    said = ""
    try:
        lines.feed(line + b"\n")
    except ValueError as error:
        said = str(error)
    assert said != ""
    assert lines.feed(b'{"lag_s": 3}\n') == [Heartbeat(3)]


def test_a_line_without_an_end_takes_no_memory_and_is_left_out():
    lines = HeartbeatLines()
    for _ in range(50):
        assert lines.feed(b"x" * HEARTBEAT_LINE_BYTES) == []
        assert len(lines._rest) <= HEARTBEAT_LINE_BYTES
    with pytest.raises(ValueError, match="a line of more than"):
        lines.feed(b'{"lag_s": 1}\n')
    assert lines.feed(json.dumps(Heartbeat(2.0)._asdict()).encode() + b"\n") == [Heartbeat(2.0)]


def test_holder_of_an_interpreter_travels_and_is_told():
    where = '  File "/a.py", line 1, in f\n\n\n  File "/b.py", line 2, in g\n'
    told = Heartbeat(where=where, holder="ab#1")
    line = told.to_line()
    assert HeartbeatLines().feed(line) == [told]
    assert told.held == (
        'its interpreter is held by request ab#1, at File "/a.py", line 1, in f or '
        'File "/b.py", line 2, in g'
    )
    assert Heartbeat(holder="").held == "its interpreter is held"
    assert b"holder" not in Heartbeat().to_line()


def test_g10_holder_is_short_whatever_a_worker_says():
    long = Heartbeat(where='  File "/a.py", line 1, in f\n\n' * 1_000, holder="x" * 10_000)
    [told] = HeartbeatLines().feed(long.to_line())
    assert told.holder == "x" * HOLDER_CHARACTERS
    assert len(long.held) < AT_CHARACTERS + HOLDER_CHARACTERS + 60
    with pytest.raises(ValueError, match="holder is not a text"):
        HeartbeatLines().feed(b'{"holder": 1}\n')
