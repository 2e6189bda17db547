"""A run drawn: lanes for who has a part in it, arrows both ways, all within the page."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.retrylab.small import SMALL, Far, Near
from trio_envserve.retrylab import System, Violation
from trio_envserve.retrylab.draw import MOST_ROWS, WIDTH, Trace, lanes, sequence
from trio_envserve.retrylab.system import Envelope
from trio_envserve.retrylab.world import ARRIVED, LOST, STRAY, TraceLine

THREE = dataclasses.replace(SMALL, actors={"a": Near, "idle": Near, "b": Far, "c": Far})
BROKEN = Violation("at most once", 3.0, "again", "a#1")

DRAWING = """\
  seconds   a                                      b                                      c
    1.000   * asks a#1: one                        |                                      |
    1.100   |- ask one -------------------------------------------------------------x     |
    1.200   |~ ask one ~~~~~~~~~~~~~~~~~~~~~~~~~~~>|                                      |
    1.300   |                                      |- ask one --------------------------->|
    1.400   |<-------------------------------------------------------------- answer 1 x2 -|
    1.600  ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ connection cut: a-b ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    1.700   |                                      |         is killed before it writes x *
    1.800   |                                      |                         starts again *
    1.900   |                                      * is stopped                           |
    2.000   |     x----------------------- answer -|                                      |
    3.000  ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ at most once: broken ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
"""


def sent(at_s: float, sender: str, to: str, message: Any, way: str) -> TraceLine[Envelope]:
    return TraceLine(at_s, f"{sender}-{to}", way, Envelope(sender, to, message))


def drawn(protocol: System, trace: Trace, violation: Violation = BROKEN) -> list[str]:
    return sequence(protocol, trace, violation)


def test_who_has_a_part_in_it_has_a_lane():
    trace: Trace = (
        TraceLine(0.0, "a", "starts"),
        TraceLine(0.0, "b", "starts"),
        TraceLine(0.0, "c", "starts"),
        TraceLine(0.0, "idle", "starts"),
        TraceLine(1.0, "a", "asks a#1: one"),
        sent(1.1, "a", "c", ("ask", "one"), LOST[True]),
        sent(1.2, "a", "b", ("ask", "one"), STRAY[True]),
        sent(1.3, "b", "c", ("ask", "one"), ARRIVED[True]),
        sent(1.4, "c", "a", ("answer", 1), ARRIVED[False]),
        sent(1.5, "c", "a", ("answer", 1), ARRIVED[False]),
        TraceLine(1.55, "a", "timer again"),
        TraceLine(1.55, "a", "writes x"),
        TraceLine(1.6, "fault", "connection cut: a-b"),
        TraceLine(1.7, "c", "dies: killed before it writes x"),
        TraceLine(1.8, "c", "starts"),
        TraceLine(1.9, "b", "is stopped"),
        sent(2.0, "b", "a", ("answer",), LOST[False]),
        TraceLine(2.9, "world", "calm"),
        TraceLine(3.1, "a", "is told a#1: one"),
    )
    assert drawn(THREE, trace) == DRAWING.splitlines()


def test_a_message_that_reads_as_nothing_is_left_out():
    quiet = dataclasses.replace(THREE, describe=lambda message: "")
    trace = (TraceLine(1.0, "a", "asks a#1: one"), sent(1.1, "a", "b", "x", ARRIVED[True]))
    assert len(drawn(quiet, trace)) == 3
    assert len(drawn(THREE, trace)) == 4


def test_a_text_of_many_lines_is_drawn_in_one():
    torn = dataclasses.replace(THREE, describe=lambda message: "one\n  two")
    trace = (sent(1.1, "a", "b", "x", ARRIVED[True]),)
    assert "- one two -" in drawn(torn, trace)[1]


def test_many_rows_are_cut_and_many_actors_fit():
    names = [f"actor{n}" for n in range(20)]
    many = dataclasses.replace(SMALL, actors=dict.fromkeys(names, Far))
    trace = [
        sent(n / 100, names[n % 20], names[(n * 7 + 3) % 20], f"message {n} " * 5, way)
        for n in range(100)
        for way in (ARRIVED[True], LOST[True], STRAY[True])
        if n % 20 != (n * 7 + 3) % 20
    ]
    trace += [
        TraceLine(2.0, name, "does actor0#1: something that is rather long") for name in names
    ]
    lines = drawn(many, trace)
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) == MOST_ROWS + 2
    assert any("rows left out" in line for line in lines)


def test_an_arrow_between_narrow_lanes_is_an_arrow():
    names = [f"a{n}" for n in range(25)]
    many = dataclasses.replace(SMALL, actors=dict.fromkeys(names, Far))
    everybody: Trace = [TraceLine(0.5, name, "asks a0#1: one") for name in names]
    trace: Trace = [
        *everybody,
        sent(1.0, "a1", "a2", "long text", ARRIVED[True]),
        sent(2.0, "a2", "a1", "long text", ARRIVED[True]),
        sent(3.0, "a1", "a2", "long text", LOST[True]),
    ]
    left, right = lanes(names).columns[1:3]
    *_, there, back, lost, _ = drawn(many, trace)
    assert [line[left : right + 1] for line in (there, back, lost)] == ["|->|", "|<-|", "|x |"]
    assert {line.count("|") for line in (there, back, lost)} == {25}


def test_one_actor_alone():
    alone = dataclasses.replace(SMALL, actors={"a": Near})
    lines = drawn(alone, (TraceLine(1.0, "a", "asks a#1: one"),))
    assert lines[1] == "    1.000   * asks a#1: one"
    assert lanes(["a"]).columns == (12,)


def test_a_violation_of_nobody_in_particular_is_drawn():
    assert drawn(SMALL, (), Violation("x", 0.0, "always"))[-1].endswith("~")
