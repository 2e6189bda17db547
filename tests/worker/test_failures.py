"""Any exception becomes three strings that can be encoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.worker.failures import (
    MESSAGE_CHARS,
    TRACEBACK_CHARS,
    EnvironmentFailure,
    describe_exception,
    failure_record,
)


def raised(exc):
    try:
        raise exc
    except BaseException as caught:
        return caught


class Custom(Exception):
    pass


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("not even this")

    __repr__ = __str__


class UnprintableNotes(Exception):
    @property
    def __notes__(self):  # type: ignore[override]  # the hostility under test
        raise ValueError("not even this")


def test_type_message_and_traceback():
    about = describe_exception(raised(ValueError("bad")))
    assert about[:2] == ("ValueError", "bad")
    assert "in raised" in about.traceback
    assert about.traceback.endswith("ValueError: bad\n")
    assert describe_exception(Custom()).type.endswith("test_failures.Custom")


def test_causes_are_in_the_traceback():
    try:
        try:
            raise KeyError("inner")
        except KeyError as exc:
            raise Custom("outer") from exc
    except Custom as exc:
        text = describe_exception(exc).traceback
    assert "KeyError: 'inner'" in text
    assert "direct cause" in text


def test_groups_name_their_leaves():
    group = BaseExceptionGroup("many", [ExceptionGroup("inner", [ValueError("a")]), SystemExit(3)])
    about = describe_exception(raised(group))
    assert about.message == "many (2 sub-exceptions): ValueError: a; SystemExit: 3"
    assert "ValueError: a" in about.traceback
    large = ExceptionGroup("large", [ValueError(str(i)) for i in range(9)])
    assert describe_exception(large).message.endswith("ValueError: 4; ...")


def test_deeply_nested_groups_do_not_recurse():
    exc: Exception = ValueError("leaf")
    for _ in range(3000):
        exc = ExceptionGroup("g", [exc])
    assert "ValueError: leaf" in describe_exception(exc).message


def test_exceptions_that_cannot_be_formatted():
    about = describe_exception(raised(Unprintable()))
    assert about.message == "(its message cannot be formatted)"
    assert "Unprintable" in about.traceback
    assert describe_exception(raised(UnprintableNotes("x"))).message == "x"


def test_lengths_are_bounded_and_both_ends_kept():
    about = describe_exception(raised(ValueError("a" + "x" * 1_000_000 + "b")))
    assert len(about.message) <= MESSAGE_CHARS
    assert (about.message[0], about.message[-1]) == ("a", "b")
    assert "characters cut" in about.message
    assert len(about.traceback) <= TRACEBACK_CHARS


@given(st.text(st.characters()))
def test_everything_can_be_encoded(text):
    for part in describe_exception(raised(ValueError(text + "\ud800"))):
        part.encode("utf-8")


def test_a_failure_is_described_by_what_it_is_about():
    failure = EnvironmentFailure(raised(ValueError("bad")), attempts=3, during="rollout")
    assert describe_exception(failure) == describe_exception(failure.exception)
    assert str(failure) == "rollout failed after 3 attempts: ValueError: bad"
    record = failure_record(failure)
    assert set(record) == {"type", "message", "traceback", "attempts"}
    assert record["attempts"] == 3


@pytest.mark.parametrize("exc", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_exits_are_described_too(exc):
    assert describe_exception(raised(exc)).type == type(exc).__name__
