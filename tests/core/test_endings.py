"""One table says how calls end; errors are checked against it."""

from __future__ import annotations

import pytest

from trio_envserve.core import errors
from trio_envserve.core.endings import ENDINGS, RAISED, Fault, ending_of
from trio_envserve.core.errors import ErrorInfo, RolloutFailed, error_from_info
from trio_envserve.core.terms import Verdict

from .test_errors import BASES, CONCRETE

WITHOUT_CLASS = {
    "key-deleted", "busy", "not-ready", "no-reward", "internal", "foreign-version", "malformed",
    "server-stopped", "stopping", "unreadable",
}  # fmt: skip
"""Codes that nobody catches by a class of their own."""


def test_table_has_a_row_for_each_class_and_a_class_for_each_row():
    assert {cls.code: cls.verdict for cls in CONCRETE} == {
        code: row.verdict
        for code, row in ENDINGS.items()
        if code not in WITHOUT_CLASS | {*RAISED} - {RolloutFailed.code}
    }


@pytest.mark.parametrize("code", ENDINGS)
def test_row_of_each_code_is_what_its_error_says(code: str):
    row = ENDINGS[code]
    assert code == row.code
    error = error_from_info(ErrorInfo(code, row.verdict, "text"))
    assert isinstance(error, BASES[row.verdict])
    assert (type(error) is RolloutFailed) == row.raised == (code in RAISED)
    assert (error.code, error.ending) == (code, row)
    assert (error.fault, error.mask, error.again) == (row.fault, row.mask, row.again)
    assert row.meaning


def test_only_policies_stay_in_the_gradient():
    assert {row.fault for row in ENDINGS.values() if not row.mask} == {Fault.POLICY}
    assert {row.verdict for row in ENDINGS.values() if row.raised} == {Verdict.RAN_AND_FAILED}


@pytest.mark.parametrize("verdict", Verdict)
def test_unknown_code_has_what_its_verdict_says(verdict: Verdict):
    row = ending_of("of the future", verdict)
    assert (row.code, row.verdict, row.mask, row.again) == ("of the future", verdict, True, True)
    error = error_from_info(ErrorInfo("of the future", verdict, "text"))
    assert (error.code, error.ending) == ("of the future", row)


def test_known_code_with_another_verdict_has_what_that_verdict_says():
    assert ending_of("context-full", Verdict.MAY_HAVE_RUN).fault is Fault.INFRASTRUCTURE
    error = errors.DidNotRun("text", ErrorInfo("deadline", Verdict.RAN_AND_FAILED, "text"))
    assert error.code == ""


def test_error_that_the_client_made_has_the_row_of_its_class():
    assert errors.NoAnswer("text").ending is ENDINGS["no-answer"]
