"""Each error that ends a call says which of the three is true (G9)."""

from __future__ import annotations

import functools

import pytest

from trio_envserve.core import errors
from trio_envserve.core.errors import CallError, ErrorInfo, error_from_info
from trio_envserve.core.terms import RequestId, Verdict, short

BASES = {
    Verdict.DID_NOT_RUN: errors.DidNotRun,
    Verdict.RAN_AND_FAILED: errors.RanAndFailed,
    Verdict.MAY_HAVE_RUN: errors.MayHaveRun,
}


def all_below(cls: type[CallError]) -> set[type[CallError]]:
    return {cls}.union(*map(all_below, cls.__subclasses__()))


CONCRETE = sorted(all_below(CallError) - {CallError, *BASES.values()}, key=lambda c: c.__name__)


@pytest.mark.parametrize("cls", CONCRETE)
def test_g9_each_error_has_exactly_one_verdict_and_says_it(cls):
    assert [issubclass(cls, base) for base in BASES.values()].count(True) == 1
    assert issubclass(cls, BASES[cls.verdict])
    assert str(cls("text")) == f"text ({cls.verdict.value})"


def test_codes_are_unique():
    codes = [cls.code for cls in CONCRETE]
    assert all(codes)
    assert len({*codes}) == len(codes)


@pytest.mark.parametrize("cls", [c for c in CONCRETE if c is not errors.OutcomeNotDecodable])
def test_a_record_becomes_the_class_of_its_code(cls):
    info = ErrorInfo(cls.code, cls.verdict, "text", type="ValueError", worker="w0-1")
    error = error_from_info(info)
    assert type(error) is cls
    assert error.info is info
    assert str(error) == f"ValueError: text [worker w0-1] ({cls.verdict.value})"


def test_an_error_of_this_package_is_named_without_its_module():
    text = "unknown model endpoint 'orcle'"
    info = ErrorInfo(
        "refused", Verdict.DID_NOT_RUN, text, type="trio_envserve.core.errors.ConfigError"
    )
    assert str(error_from_info(info)) == f"ConfigError: {text} (it did not run)"
    assert errors.short_type("my_envs.trio_envserve.Lost") == "my_envs.trio_envserve.Lost"
    assert errors.short_type("") == ""


@pytest.mark.parametrize("verdict", Verdict)
def test_g9_an_unknown_code_becomes_the_base_of_its_verdict(verdict):
    error = error_from_info(ErrorInfo("of the future", verdict, "text"))
    assert type(error) is BASES[verdict]
    assert str(error) == f"text ({verdict.value})"


def test_g9_a_known_code_with_another_verdict_is_believed_in_its_verdict():
    error = error_from_info(ErrorInfo("deadline", Verdict.DID_NOT_RUN, "text"))
    assert type(error) is errors.DidNotRun


def test_what_some_errors_carry_besides():
    info = ErrorInfo("environment-unavailable", Verdict.RAN_AND_FAILED, "down", retry_after_s=2.5)
    assert error_from_info(info).retry_after_s == 2.5
    assert errors.WorkerLost("gone").retry_after_s is None
    assert errors.NotEncodable("text", path="a.b").path == "a.b"
    undecodable = errors.OutcomeNotDecodable("text", b"raw")
    assert (undecodable.raw, undecodable.info) == (b"raw", None)


def test_an_id_is_shown_too_short_to_be_used():
    assert short(b"\x01" * 16) == "01010101"
    assert str(RequestId(b"\x01" * 16, 7)) == "01010101#7"


def test_an_error_of_the_environments_says_where_it_was_raised():
    record = functools.partial(
        ErrorInfo, code="rollout-failed", verdict=Verdict.RAN_AND_FAILED, message="no", type="E"
    )
    traced = 'Traceback:\n  File "/home/me/env.py", line 3, in run_rollout\n    raise E("no")'
    error = error_from_info(record(traceback=traced))
    assert str(error).startswith("E: no at env.py:3 in run_rollout")
    assert error.__notes__ == [f"In the environment:\n{traced}"]
    assert " at " not in str(error_from_info(record(traceback="somewhere")))
    placed = "E: no at env.py:3 in run_rollout"
    for library in (
        "/usr/lib/python3.11/json/decoder.py",
        "/venv/lib/python3.11/site-packages/trio/_unix_pipes.py",
        "/venv/lib/python3.11/site-packages/numpy/linalg.py",
    ):
        below = f'{traced}\n  File "{library}", line 139, in send_all\n    memoryview(data)'
        assert str(error_from_info(record(traceback=below))).startswith(placed)
        alone = below.replace("/home/me", "/venv/lib/python3.11/site-packages/envs")
        told = str(error_from_info(record(traceback=alone)))
        assert (" at env.py:3" in told) == ("numpy" not in library)
    slow = 'it took longer than 5 s, at File "/home/me/score.py", line 7, in hang'
    told = str(error_from_info(record(traceback=traced, message=slow)))
    assert " at env.py" not in told, "one place is enough"


def test_environment_says_for_how_long_a_service_is_down():
    down = errors.EnvironmentUnavailable("the sandbox service", retry_after_s=30.0)
    assert str(down) == "the sandbox service (try again after 30 s)"
    assert str(errors.EnvironmentUnavailable("a browser")) == "a browser"
