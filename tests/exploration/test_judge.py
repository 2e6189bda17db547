"""The judge of explored steps: each thing that must never happen, shown to it."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.lab.exploration.judge import CallPast, Judge, Past

KEY, RUN, AGAIN = b"c0r0", (0, b"w0-1", 0), (0, b"w0-1", 1)
REQUEST = (b"s" * 16, 0)


def judge(most: int = 1) -> Judge:
    return Judge(Past((CallPast(KEY),)), most, 1)


def start(one: Judge, run=RUN, *, live=(), alive=False, life=0, request=REQUEST) -> None:
    one.started(KEY, run, request, life, live, lambda other: alive)


def guarantees(one: Judge) -> list[str]:
    return [text.partition(":")[0] for text in one.violations]


def test_one_start_and_its_result():
    one = judge()
    start(one)
    one.reported(RUN, b"c0r0@here")
    one.answered(KEY, Status.RESULT, b"c0r0@here")
    one.forget(KEY)
    assert one.violations == []
    assert one.past().calls == (CallPast(KEY, starts=1, told="over"),)


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ({"live": [KEY]}, ["G1"]),
        ({"alive": True}, ["G2"]),
        ({"life": 1}, ["G5"]),
        ({"request": (b"t" * 16, 0), "alive": True}, []),
    ],
)
def test_a_second_start_that_may_be(again, expected):
    one = judge(most=2)
    start(one)
    start(one, AGAIN, **again)
    assert guarantees(one) == expected


def test_a_second_start_that_may_not_be():
    one = judge()
    start(one)
    start(one, AGAIN)
    assert guarantees(one) == ["G2"]


def test_a_start_of_something_else():
    one = judge()
    one.started(b"other", RUN, REQUEST, 0, [], lambda run: False)
    assert guarantees(one) == ["G6"]


def test_a_start_of_what_was_stopped():
    one = judge()
    one.worker_heard(0, b"w0-1", messages.Stop([0, 1]), [])
    start(one)
    assert guarantees(one) == ["G7"]


def test_a_stop_of_what_has_begun_is_forgotten_and_so_is_one_of_the_dead():
    one = judge()
    one.worker_heard(0, b"w0-1", messages.Stop([0, 1]), [0])
    assert one.past().stopped == ()
    one.worker_heard(0, b"w0-1", messages.Stop([0, 1]), [])
    one.worker_gone(0, b"w0-1")
    assert one.past().stopped == ()


def test_a_dispatch_of_what_is_finished():
    one = judge()
    dispatch = messages.Dispatch(REQUEST[0], 0, 0, "c0")
    one.told_worker(dispatch)
    assert one.server_heard(messages.Finish(REQUEST[0], [0, 1]), [REQUEST[0]]) == [REQUEST]
    assert one.violations == []
    one.told_worker(dispatch)
    assert guarantees(one) == ["G7"]


def test_an_unknown_session_finishes_nothing():
    one = judge()
    assert one.server_heard(messages.Finish(REQUEST[0], [0, 1]), []) == []
    assert one.past().finished == ()


@pytest.mark.parametrize(
    "message",
    [
        messages.Cancel(REQUEST[0], 0),
        messages.Goodbye(REQUEST[0]),
        messages.Sync(REQUEST[0], b"e" * 16, 1, 1, 1, []),
    ],
)
def test_what_finishes_a_request(message):
    one = judge()
    one.server_heard(message, [REQUEST[0]])
    assert REQUEST in one.past().finished


@pytest.mark.parametrize("verdict", [Verdict.RAN_AND_FAILED, Verdict.DID_NOT_RUN])
def test_a_verdict_is_true(verdict: Verdict):
    one = judge()
    if verdict is Verdict.DID_NOT_RUN:
        start(one)
    one.failed(KEY, verdict)
    assert guarantees(one) == ["G9"]


def test_a_verdict_stays_true():
    one = judge()
    one.failed(KEY, Verdict.DID_NOT_RUN)
    start(one)
    assert guarantees(one) == ["G9"]


def test_nobody_is_told_twice_or_after_it_has_left():
    one = judge()
    start(one)
    one.failed(KEY, Verdict.MAY_HAVE_RUN)
    one.failed(KEY, Verdict.MAY_HAVE_RUN)
    assert guarantees(one) == ["G9"]


def test_the_result_is_its_own_and_the_one_that_arrived():
    one = judge()
    start(one)
    one.reported(RUN, b"c0r0@here")
    one.answered(KEY, Status.RESULT, b"c0r1@there")
    assert guarantees(one) == ["G3", "G4"]


def test_what_had_ended_is_not_lost_unless_it_is_excused():
    for excused in (False, True):
        one = judge()
        start(one)
        one.reported(RUN, b"c0r0@here")
        if excused:
            one.excuse([KEY])
        one.failed(KEY, Verdict.MAY_HAVE_RUN)
        assert guarantees(one) == ([] if excused else ["G4"])


def test_two_outcomes_that_differ():
    one = judge()
    outcome = messages.Outcome(*REQUEST, 0, "w0-1", None, 1)
    for number in (1, 1, 2):
        one.told_client(lambda request: KEY, number, outcome, [])
    assert guarantees(one) == ["G3"]


def test_what_a_server_says_of_a_session_and_of_a_request_is_true():
    one = judge()
    start(one)
    one.told_client(lambda request: KEY, 1, messages.Cancelled(*REQUEST, False), [])
    gone = messages.Unknown(REQUEST[0], True, b"e" * 16, False)
    one.told_client(lambda request: KEY, 2, gone, [(REQUEST[0], KEY)])
    assert guarantees(one) == ["G9", "G1"]


def test_the_living_are_not_declared_lost():
    one = judge()
    one.lost("w0-1", alive=False)
    one.lost("w0-1", alive=True)
    assert guarantees(one) == ["G1"]


def test_a_dead_server_has_promised_nothing():
    one = judge(most=2)
    start(one)
    one.reported(RUN, b"c0r0@here")
    one.server_heard(messages.Finish(REQUEST[0], [0, 1]), [REQUEST[0]])
    one.server_died()
    one.failed(KEY, Verdict.MAY_HAVE_RUN)
    assert one.violations == []
    assert one.past().finished == ()
