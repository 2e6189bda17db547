"""Any exception becomes three strings that can be encoded."""

import logging
import math
import traceback
from types import TracebackType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import pair, virtual
from tests.worker import hostile_code
from trio_envserve import (
    EnvironmentUnavailable,
    ModelError,
    NeverStarted,
    RolloutFailed,
)
from trio_envserve.worker import failures
from trio_envserve.worker.failures import (
    COPIES,
    FRAMES,
    MESSAGE_CHARS,
    TRACEBACK_CHARS,
    EnvironmentFailure,
    code_of,
    describe_exception,
    described_cause,
    failure_record,
    log,
    plain,
    retry_after_of,
)


def raised(exc):
    try:
        raise exc
    except BaseException as caught:
        return caught


class Custom(Exception):
    pass


def test_type_message_and_traceback():
    about = describe_exception(raised(ValueError("bad")))
    assert about[:2] == ("ValueError", "bad")
    assert "in raised" in about.traceback
    assert about.traceback.endswith("ValueError: bad\n")
    assert describe_exception(Custom()).type.endswith("test_failures.Custom")


def test_groups_name_their_leaves():
    group = BaseExceptionGroup("many", [ExceptionGroup("inner", [ValueError("a")]), SystemExit(3)])
    about = describe_exception(raised(group))
    assert about.message == "many (2 sub-exceptions): ValueError: a; SystemExit: 3"
    assert "ValueError: a" in about.traceback
    five = ExceptionGroup("five", [ValueError(str(i)) for i in range(5)])
    assert describe_exception(five).message.endswith("ValueError: 4")
    large = ExceptionGroup("large", [ValueError(str(i)) for i in range(9)])
    assert describe_exception(large).message.endswith("ValueError: 4; ...")
    assert "ValueError: leaf" in describe_exception(nested(3000)).message


def test_exceptions_that_cannot_be_formatted():
    hostile = hostile_code.exceptions(ValueError)
    about = describe_exception(raised(hostile["text"]))
    assert about.message == "(its message cannot be formatted)"
    assert "Hostile" in about.traceback
    assert describe_exception(hostile["notes"]).message == "x"
    assert describe_exception(hostile["a text with methods"]).message == "t"


@given(st.text(st.characters()))
def test_everything_can_be_encoded(text):
    for part in describe_exception(raised(ValueError(text + "\ud800"))):
        part.encode("utf-8")


def test_a_failure_is_described_by_what_it_is_about():
    failure = EnvironmentFailure(raised(ValueError("bad")), attempts=3, during="rollout")
    assert describe_exception(failure) == describe_exception(failure.exception)
    assert str(failure) == "rollout failed after 3 attempts: ValueError: bad"
    assert failure.args == (failure.exception, 3, "rollout")
    record = failure_record(failure)
    assert set(record) == {"type", "message", "traceback", "code", "attempts"}
    assert record["attempts"] == 3
    once = EnvironmentFailure(OSError("x"), attempts=1, during="setup")
    assert str(once) == "setup failed: OSError: x"


def test_what_cannot_be_described_has_a_name_all_the_same(monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(traceback, "format_exception", fail)
    why = "(it cannot be described: MemoryError)"
    assert describe_exception(ValueError("x")) == ("ValueError", why, "")
    monkeypatch.setattr(failures, "_type_name", fail)
    assert describe_exception(ValueError("x")) == ("an exception", why, "")


def test_a_syntax_error_is_told_with_its_place():
    with pytest.raises(SyntaxError) as caught:
        compile("a = 1\nb c", "/there.py", "exec")
    about = describe_exception(caught.value)
    assert 'File "/there.py", line 2' in about.traceback
    assert "b c" in about.traceback
    broken = SyntaxError("wrong")
    broken.text = 5  # type: ignore[assignment]  # the traceback module fails at it
    about = describe_exception(raised(broken))
    assert about.message == "wrong"
    assert "in raised" in about.traceback


def test_a_cause_is_told_if_it_is_in_code_of_others():
    wrong = ValueError("what this package says")
    assert described_cause(wrong) == ""
    wrong.__cause__ = KeyError("never raised")
    assert described_cause(wrong) == ""
    wrong.__cause__ = raised(KeyError("theirs"))
    assert "in raised" in described_cause(wrong)
    wrong.__cause__ = SyntaxError("bad", ("/there.py", 2, 1, "b c\n"))
    assert 'File "/there.py", line 2' in described_cause(wrong)


def test_a_line_of_the_log_has_a_copy_of_the_exception(caplog):
    exc = raised(ValueError("x"))
    log(logging.WARNING, "it %s", "failed", about=exc)
    log(logging.WARNING, "it goes on")
    failed, goes_on = caplog.records
    assert failed.getMessage() == "it failed"
    assert failed.exc_info is not None
    assert failed.exc_info[1] is not exc
    assert "in raised" in caplog.text
    assert not goes_on.exc_info


@pytest.mark.parametrize("made", hostile_code.RAISED)
@pytest.mark.parametrize("name", hostile_code.exceptions(ValueError))
async def test_an_exception_with_code_of_its_own_is_described(name, made):
    exc = raised(hostile_code.exceptions(hostile_code.RAISED[made])[name])
    failed: object = None
    try:
        about = describe_exception(exc)
        logging.Formatter().formatException((Exception, plain(exc), None))
        str(EnvironmentFailure(exc, attempts=2, during="rollout"))
    except BaseException as error:  # as an assertion
        failed = type(error)
    assert failed is None
    assert [type(part) for part in about] == [str, str, str]
    assert "in raised" in about.traceback


def test_a_copy_looks_like_its_original():
    """Wherever the original has no code of its own, its traceback is the same."""
    try:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise Custom("second")  # noqa: B904  # the context is what is tested
        except Custom as exc:
            exc.add_note("a note")
            raise ExceptionGroup("third", [ValueError("in it"), raised(OSError(2, "no"))]) from exc
    except ExceptionGroup as exc:
        group = exc
    assert traceback.format_exception(plain(group)) == traceback.format_exception(group)


def test_causes_that_go_in_a_circle():
    text = describe_exception(raised(hostile_code.cycle())).traceback
    assert "ValueError: first" in text
    assert "TypeError: second" in text


def test_a_long_chain_of_causes_is_cut():
    """Each takes the time of a traceback, and a loop of retries makes thousands."""
    text = describe_exception(raised(hostile_code.chain(5_000))).traceback
    assert text.count("ValueError: number") == COPIES
    assert text.endswith("ValueError: number 4999\n")
    assert "what came before it is left out" in text


def test_a_wide_group_is_cut():
    about = describe_exception(
        raised(ExceptionGroup("g", [ValueError(str(i)) for i in range(5000)]))
    )
    assert f"[... {5000 - COPIES + 1} of its members are left out]" in about.traceback
    assert "5000 sub-exceptions" in about.message


def nested(depth):
    exc: Exception = ValueError("leaf")
    for _ in range(depth):
        exc = ExceptionGroup("g", [exc])
    return exc


def shown_groups(exc):
    """How many groups are in each other."""
    count = 0
    while isinstance(exc, BaseExceptionGroup):
        (exc,), count = exc.exceptions, count + 1
    return count


def test_groups_that_no_traceback_shows_take_no_copies():
    assert shown_groups(plain(nested(20))) == 10
    around = ValueError("around")
    around.__cause__ = nested(20)
    assert shown_groups(plain(around).__cause__) == 10


def test_a_cause_that_was_copied_already_is_not_left_out():
    members = [ValueError(str(i)) for i in range(COPIES - 1)]
    members[0].__cause__ = members[1]
    copy = plain(ExceptionGroup("g", members))
    assert isinstance(copy, ExceptionGroup)
    first, second, *_ = copy.exceptions
    assert first.__cause__ is second
    assert not hasattr(first, "__notes__")


def with_frames(count):
    """An exception whose traceback has so many frames, in lines 1 to ``count``."""
    exc, made = raised(ValueError("x")), None
    frame, at = exc.__traceback__.tb_frame, exc.__traceback__.tb_lasti
    for line in range(count, 0, -1):
        made = TracebackType(made, frame, at, line)
    return exc.with_traceback(made)


@pytest.mark.parametrize("more", [0, 1, 300])
def test_of_a_traceback_both_ends_are_kept(more):
    copy, lines = plain(with_frames(FRAMES + more)), []
    each = copy.__traceback__
    while each is not None:
        lines.append(each.tb_lineno)
        each = each.tb_next
    half = FRAMES // 2
    assert lines == [*range(1, half + 1), *range(half + more + 1, FRAMES + more + 1)]
    cut = f"[... {more} frames in the middle of its traceback are left out]"
    assert getattr(copy, "__notes__", []) == ([cut] if more else [])


def test_of_a_long_text_both_ends_are_kept():
    half = (MESSAGE_CHARS - 40) // 2
    whole, long = "x" * MESSAGE_CHARS, "a" * half + "x" * 1000 + "b" * half
    assert describe_exception(ValueError(whole)).message == whole
    cut = f"{'a' * half}\n[... 1000 characters cut ...]\n{'b' * half}"
    assert describe_exception(ValueError(long)).message == cut
    assert len(describe_exception(ValueError("x" * 1_000_000)).traceback) <= TRACEBACK_CHARS


class Down(EnvironmentUnavailable):
    """An environment's own, below one of this package; its ``code`` is not asked for."""

    code = "my-own"


class Claims(Exception):
    code = "model-unavailable"


class Hostile(type):
    def __getattribute__(cls, name):
        if name in ("code", "__mro__", "__dict__"):
            raise RuntimeError("code of the class has run")
        return super().__getattribute__(name)


class OfAMetaclass(ModelError, metaclass=Hostile):
    pass


CODES = [
    (ValueError("no"), "rollout-failed"),
    (Claims("no"), "rollout-failed"),
    (ModelError("no"), "model-unavailable"),
    (OfAMetaclass("no"), "model-unavailable"),
    (EnvironmentUnavailable("no"), "environment-unavailable"),
    (Down("no", retry_after_s=5), "environment-unavailable"),
    (NeverStarted("of a call that the environment made"), "rollout-failed"),
    (KeyboardInterrupt(), "rollout-failed"),
    (ConnectionRefusedError("no"), "environment-unavailable"),
    (TimeoutError("no"), "rollout-failed"),
    (ExceptionGroup("", [ModelError("a"), ExceptionGroup("", [ModelError("b")])]),
     "model-unavailable"),
    (ExceptionGroup("", [ModelError("a"), ValueError("b")]), "rollout-failed"),
]  # fmt: skip


@pytest.mark.parametrize(("exc", "code"), CODES, ids=map(str, range(len(CODES))))
def test_code_of_a_failure_is_said_by_classes_of_this_package_only(exc, code):
    assert code_of(exc) == code
    failure = EnvironmentFailure(exc, attempts=1, during="rollout")
    assert code_of(failure) == failure_record(failure)["code"] == code


def test_unavailable_environment_says_when_to_come_back():
    assert str(EnvironmentUnavailable("the sandboxes are down")) == "the sandboxes are down"
    told = str(EnvironmentUnavailable("the sandboxes are down", retry_after_s=30))
    assert told == "the sandboxes are down (try again after 30 s)"


class Unavailable:
    async def run_rollout(self, rollout):
        if rollout.input == "later":
            raise EnvironmentUnavailable("down", retry_after_s=2.5)
        raise {"engine": ModelError, "service": EnvironmentUnavailable}[rollout.input]("down")

    async def run_group(self, rollouts):
        return [EnvironmentUnavailable("down", retry_after_s=7), ValueError("no")]


@virtual
async def test_code_of_a_failure_reaches_the_caller():
    async with pair(Unavailable()) as (_, client):
        for given, code, fault in [
            ("engine", "model-unavailable", "engine"),
            ("service", "environment-unavailable", "infrastructure"),
        ]:
            with pytest.raises(RolloutFailed) as caught:
                await client.run_rollout(given)
            error = caught.value
            assert (error.code, error.fault.value, error.mask) == (code, fault, True)
        members = await client.run_group(["a", "b"])
        codes = [member.error and member.error.code for member in members]
        assert codes == ["environment-unavailable", "rollout-failed"]
        assert [m.error and m.error.retry_after_s for m in members] == [7.0, None]
        with pytest.raises(RolloutFailed) as caught:
            await client.run_rollout("later")
        assert caught.value.retry_after_s == 2.5


class Broken(EnvironmentUnavailable):
    @property
    def retry_after_s(self):
        raise SystemExit

    @retry_after_s.setter
    def retry_after_s(self, value):
        pass


@pytest.mark.parametrize(
    ("exc", "seconds"),
    [
        (EnvironmentUnavailable("no"), None),
        (EnvironmentUnavailable("no", 0), 0.0),
        (EnvironmentUnavailable("no", retry_after_s=2.5), 2.5),
        (ExceptionGroup("", [EnvironmentUnavailable("a", 3), EnvironmentUnavailable("b", 9)]), 9.0),
        (EnvironmentUnavailable("no", retry_after_s=-1), None),
        (EnvironmentUnavailable("no", retry_after_s=math.inf), None),
        (EnvironmentUnavailable("no", retry_after_s=math.nan), None),
        (EnvironmentUnavailable("no", retry_after_s="soon"), None),  # type: ignore[arg-type]  # as told
        (EnvironmentUnavailable("no", retry_after_s=True), None),
        (Broken("no"), None),
        (ValueError("no"), None),
    ],
    ids=map(str, range(11)),
)  # fmt: skip
def test_how_long_a_service_is_down_is_a_finite_number_or_nothing(exc, seconds):
    failure = EnvironmentFailure(exc, attempts=1, during="rollout")
    assert retry_after_of(exc) == retry_after_of(failure) == seconds
    assert failure_record(failure).get("retry_after_s") == seconds
