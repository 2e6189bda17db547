"""A server's limit on how long an execution may last."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_g10_many_that_are_too_old_together_are_answered_in_portions(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(deadlines, "ANSWERS_AT_ONCE", 2)
    pair = Pair(server=LIMIT)
    for _ in range(5):
        pair.submit()
    pair.advance(61.0)
    assert len(pair.answers) == 5


def test_a_call_cannot_have_more_than_the_server_lets_any():
    pair = Pair(server=LIMIT)
    pair.submit(execution_s=500.0)
    pair.beat()
    pair.advance(61.0)
    assert error(pair)[2].startswith("the 60 s that this server lets an execution last")


def test_a_call_has_a_limit_where_the_server_has_none_and_others_have_none():
    pair = Pair()
    pair.submit()
    pair.submit(execution_s=5.0)
    pair.advance(100.0)
    assert [answer.call for answer in pair.answers] == [1]


def test_g8_limits_of_executions_that_have_ended_are_dropped():
    pair = Pair(server={"execution_s": 100_000})
    for _ in range(3000):
        pair.submit()
        pair.end()
        pair.answers.clear()
    pair.advance(1.0)
    assert len(pair.router.dispatcher.deadlines._limited) < 1024


@settings(max_examples=50, deadline=None)
@given(
    server_s=st.none() | st.integers(1, 20),
    calls=st.lists(st.none() | st.integers(1, 20), min_size=1, max_size=6),
    ends=st.lists(st.integers(1, 25), min_size=6, max_size=6),
)
def test_each_execution_ends_by_itself_or_at_the_smaller_limit(
    server_s: int | None, calls: list[int | None], ends: list[int]
):
    pair = Pair(server={"execution_s": server_s})
    for own_s in calls:
        pair.submit(execution_s=own_s)
    pair.beat()
    expected = {}
    for number, own_s in enumerate(calls):
        limit_s = min((each for each in (server_s, own_s) if each is not None), default=None)
        runs_out = limit_s is not None and limit_s < ends[number]
        expected[number] = (limit_s, Status.ERROR) if runs_out else (ends[number], Status.RESULT)
    told: dict[int, tuple[float | None, Status]] = {}
    for second in range(1, 27):
        pair.advance(0.5)
        for number, run in enumerate(pair.runs):
            if ends[number] == second and number not in told:
                pair.end(run)
        pair.advance(0.5)
        for answer in pair.answers:
            assert isinstance(answer, Answer)
            told.setdefault(answer.call, (second, answer.status))
    assert told == expected


def test_the_limit_of_a_key_is_that_of_the_ask_that_opened_it():
    pair = Keyed()
    pair.call(execution_s=5.0)
    pair.call(execution_s=50.0)
    pair.call()
    pair.beat()
    pair.advance(6.0)
    assert len(pair.answers) == 3
    assert error(pair)[0] == "execution-limit"
    other = Keyed()
    other.call()
    other.call(execution_s=5.0)
    other.advance(50.0)
    assert not other.answers
