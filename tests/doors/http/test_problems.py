"""Problems: what each error of a call becomes."""

from __future__ import annotations

from trio_envserve.core import errors
from trio_envserve.core.endings import ENDINGS
from trio_envserve.core.terms import Verdict
from trio_envserve.doors.http.problems import KINDS, Problem

LATER = {408, 429, 502, 503, 504}
"""What libraries send again by habit."""


def test_every_error_of_a_call_has_its_problem():
    for code, row in ENDINGS.items():
        error = errors.error_from_info(errors.ErrorInfo(code, row.verdict, "it was so"))
        for problem in (Problem.of(error), Problem(code, "it was so")):
            assert KINDS[code].status == problem.status
            assert problem.record["verdict"] == row.verdict.value
            assert (problem.status in LATER) <= (row.verdict is Verdict.DID_NOT_RUN), code
            said = {name: problem.record[name] for name in ("code", "fault", "mask", "again")}
            assert said == {
                "code": code, "fault": row.fault.value, "mask": row.mask, "again": row.again
            }  # fmt: skip


def test_problem_of_a_wrong_request_said_that_asking_again_can_help():
    of_door = KINDS.keys() - ENDINGS.keys()
    helped = {code for code in of_door if Problem(code, "it was so").record["again"]}
    assert helped == {"body-too-slow"}


def test_an_error_that_this_version_does_not_know_keeps_its_verdict():
    for verdict in Verdict:
        info = errors.ErrorInfo(code="from-the-future", verdict=verdict, message="so")
        problem = Problem.of(errors.error_from_info(info))
        assert problem.record["code"] == "from-the-future"
        assert problem.record["verdict"] == verdict.value
        assert (problem.status in LATER) is (verdict is Verdict.DID_NOT_RUN)


def test_problem_that_ran_does_not_say_that_nothing_was_executed():
    for verdict in Verdict:
        info = errors.ErrorInfo(code="rollout-failed", verdict=verdict, message="so")
        assert "executions" not in Problem.of(errors.error_from_info(info)).record
    info = errors.ErrorInfo("worker-lost", Verdict.MAY_HAVE_RUN, "so", executions=2)
    assert Problem.of(errors.error_from_info(info)).record["executions"] == 2


def test_a_service_that_is_down_for_some_seconds_is_asked_again_in_whole_ones():
    for seconds, header in ((None, ()), (2.5, ((b"retry-after", b"3"),))):
        info = errors.ErrorInfo(
            "environment-unavailable", Verdict.RAN_AND_FAILED, "so", retry_after_s=seconds
        )
        problem = Problem.of(errors.error_from_info(info))
        assert (problem.record.get("retry_after_s"), problem.headers) == (seconds, header)
        assert problem.status == 500, "it ran: no library is to send it again by habit"
