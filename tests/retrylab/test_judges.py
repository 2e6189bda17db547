"""Judges are folds: the ready ones, over events by hand, and the logs of real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trio_envserve.retrylab import (
    AtMostOnce,
    Event,
    Judge,
    NoLostAcknowledgement,
    OneHolder,
    OneTrueAnswer,
    judge_log,
    read_log,
)


def events(*rows: str) -> list[Event]:
    """``kind actor request what``, a second apart."""
    found = []
    for at_s, row in enumerate(rows):
        kind, actor, *more = row.split()
        request, what = (*more, "", "")[:2]
        found.append(Event(float(at_s), kind, actor, request, what))
    return found


def found(judge: Callable[[], Judge], *rows: str) -> list[str]:
    return [violation.text for violation in judge_log([judge], events(*rows))]


def test_a_second_deed_for_a_request_is_seen():
    assert found(AtMostOnce, "did s a 1", "did s b 1", "told c a 1") == []
    assert found(AtMostOnce, "did s a 1", "died s", "did s a 1") == ["a is done again"]


def test_each_caller_is_told_one_true_thing():
    asked = "asked c a"
    assert found(OneTrueAnswer, asked, "did s a 1", "told c a 1", "told c a 1") == []
    assert found(OneTrueAnswer, asked, "told c a 1") == ["a is told '1', which was not done for it"]
    two = (asked, "did s a 1", "did s a 2", "told c a 1", "told c a 2")
    assert found(OneTrueAnswer, *two) == ["a is told '2', and '1' before"]
    assert found(OneTrueAnswer, asked) == ["a is never told"]
    assert found(OneTrueAnswer, asked, "died c") == []
    assert found(lambda: OneTrueAnswer(as_done=False), asked, "told c a ok") == []


def test_what_one_holds_nobody_else_begins():
    begins = "began a - lock"
    assert found(OneHolder, begins, "ended a - lock", "began b - lock") == []
    assert found(OneHolder, begins, "died a", "began b - lock") == []
    assert found(OneHolder, begins, "began b - other") == []
    assert found(OneHolder, begins, "began b - lock") == ["b holds 'lock' with a"]
    assert found(OneHolder, begins, "ended b - lock", "began b - lock") == ["b holds 'lock' with a"]


def test_what_was_acknowledged_is_there_at_the_end():
    judge = NoLostAcknowledgement
    assert found(judge, "told c a ok", "has s a") == []
    assert found(judge, "told c a ok") == ["a was acknowledged, and nobody has it"]
    assert found(judge, "has s a", "told c a ok", "died s") == [
        "a was acknowledged, and nobody has it"
    ]
    assert found(lambda: NoLostAcknowledgement(refuses=["no"]), "told c a no") == []


def test_a_log_that_is_not_complete_is_not_missing_anything():
    log = events("asked c a")
    assert judge_log([OneTrueAnswer], log, at_rest=False) == []
    assert len(judge_log([OneTrueAnswer], log)) == 1


def test_lines_of_a_log_are_events():
    lines = [
        json.dumps({"at_s": 1, "kind": "asked", "actor": "c", "request": "a", "what": [1, [2]]}),
        "",
        json.dumps({"at_s": 2.5, "kind": "died", "actor": "s"}),
    ]
    assert list(read_log(lines)) == [
        Event(1.0, "asked", "c", "a", (1, (2,))), Event(2.5, "died", "s", "", None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "7", '{"at_s": 1}', '{"at_s": "x", "kind": "did", "actor": "a"}',
     '{"at_s": 1, "kind": "dreamt", "actor": "a"}'],
)  # fmt: skip
def test_a_line_that_is_no_event_is_named(line: str):
    good: Any = json.dumps({"at_s": 1, "kind": "died", "actor": "a"})
    with pytest.raises(ValueError, match="line 2 is no event"):
        list(read_log([good, line]))
