"""A server's limit on how long an execution may last."""

from __future__ import annotations

import pytest

from trio_envserve.core import deadlines, error_records
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.terms import Status, Verdict

from .helpers import Pair
from .keyed import Keyed

LIMIT = {"execution_s": 60}


def error(pair: Pair) -> tuple[str, Verdict, str]:
    """The error of the last answer."""
    answer = pair.answers[-1]
    assert isinstance(answer, Answer)
    info = error_records.decode(answer.body)
    return info.code, info.verdict, info.message


def test_what_lasts_too_long_is_stopped_and_its_caller_told_so():
    pair = Pair(server=LIMIT, rerun=True)
    pair.submit()
    pair.beat()
    pair.advance(59.0)
    assert not pair.answers
    pair.advance(2.0)
    code, verdict, text = error(pair)
    assert (code, verdict) == ("execution-limit", Verdict.RAN_AND_FAILED)
    assert text.startswith("the 60 s that this server lets an execution last (execution_s)")
    assert [number for _, number in pair.cancels] == [0]
    pair.end(status=Status.CANCELLED)
    pair.advance(100.0)
    assert (len(pair.answers), len(pair.runs)) == (1, 1)


def test_what_may_not_have_arrived_may_have_run():
    pair = Pair(server=LIMIT)
    pair.submit()
    pair.advance(61.0)  # no beat has said so
    assert error(pair)[:2] == ("no-answer", Verdict.MAY_HAVE_RUN)


def test_what_waits_is_not_counted_and_each_execution_has_its_own_time():
    pair = Pair(server={**LIMIT, "worker_capacity": 1})
    pair.submit()
    pair.submit()
    pair.advance(50.0)
    pair.end(pair.runs[0])
    pair.advance(50.0)
    assert len(pair.answers) == 1
    pair.advance(11.0)
    assert error(pair)[0] in ("execution-limit", "no-answer")


def test_without_the_limit_nothing_ends_by_its_age():
    pair = Pair()
    pair.submit()
    pair.advance(10_000.0)
    assert not pair.answers


def test_whoever_waits_for_a_key_is_told():
    pair = Keyed(server=LIMIT)
    pair.call()
    pair.beat()
    pair.advance(61.0)
    assert error(pair)[0] in ("execution-limit", "no-answer")


def test_g10_many_that_are_too_old_together_are_answered_in_portions(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(deadlines, "ANSWERS_AT_ONCE", 2)
    pair = Pair(server=LIMIT)
    for _ in range(5):
        pair.submit()
    pair.advance(61.0)
    assert len(pair.answers) == 5
