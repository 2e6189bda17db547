"""The outcome that is made of a value, or of what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
import trio

from trio_envserve.core import error_records, values
from trio_envserve.core.errors import ConfigError, ErrorInfo
from trio_envserve.core.limits import KIB, WireLimits
from trio_envserve.core.terms import SentBody, Status, Verdict
from trio_envserve.envs.request import RolloutRequest
from trio_envserve.foreign import CodeResult
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.outcomes import LargeValue, OutcomeMaker, described

WIRE = WireLimits()
INCARNATION = bytes(range(16))
LARGE = [[number / 3, f"{number}"] * 60 for number in range(1_000)]
"""Takes long to decode, and to encode."""


class Runner:
    """Answers with what ``act`` returns or raises, two seconds later."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self.seen: list[Any] = []

    async def run(self, request: Any, **how: Any) -> Any:
        self.seen = [request, how]
        await trio.sleep(2)
        return self._act()


def maker(act: Callable[[], Any] = lambda: None, wire: WireLimits = WIRE) -> OutcomeMaker:
    runner = cast("Any", Runner(act))
    return OutcomeMaker(runner, worker="w0-1", incarnation=INCARNATION, wire=wire)


def body_of(given: Any) -> bytes:
    asked = RolloutRequest(kind="rollout", input=given, endpoint="oracle", model_name="m")
    return values.encode(asked.to_body(), root="request", limits=WIRE)


def said(piece: bytes) -> None:
    """For deltas."""


def noted(piece: bytes) -> None:
    """For notes."""


async def outcome_of(
    act: Callable[[], Any], wire: WireLimits = WIRE, scope: trio.CancelScope | None = None,
    asked: CodeResult | None = None,
) -> Any:  # fmt: skip
    """The outcome of an execution that began 3 s after the clock."""
    make = maker(act, wire)
    await trio.sleep(3)
    return await make.of(
        "r", asked or CodeResult("asked"), trio.current_time(), scope or trio.CancelScope(), said,
        noted,
    )  # fmt: skip


def error_of(outcome: tuple[Status, SentBody]) -> ErrorInfo:
    """The record in an outcome that is an error, of this worker."""
    status, body = outcome
    info = error_records.decode(bytes(body))
    assert status is (Status.CANCELLED if info.code == "cancelled" else Status.ERROR)
    assert (info.worker, info.incarnation) == ("w0-1", INCARNATION.hex())
    return info


def failure(error: BaseException) -> Callable[[], Any]:
    def act() -> None:
        raise EnvironmentFailure(error, attempts=1, during="rollout") from error

    return act


async def test_a_request_is_decoded_at_once_unless_it_is_large() -> None:
    make = maker()
    small = make.decoded_at_once(body_of("x"))
    assert small is not None
    assert (small.value.input, small.error) == ("x", None)
    assert make.decoded_at_once(body_of(LARGE)) is None
    large = await make.decoded(body_of(LARGE))
    assert (large.value.input, large.error) == (LARGE, None)


async def test_a_request_that_cannot_be_decoded_is_refused(autojump_clock: Any) -> None:
    make = maker()
    broken = make.decoded_at_once(b"\xff")
    assert broken is not None
    info = error_of(await outcome_of(lambda: None, asked=broken))
    assert (info.code, info.verdict, info.type) == (
        "refused", Verdict.DID_NOT_RUN, "trio_envserve.core.values.DecodingError",
    )  # fmt: skip
    assert info.duration_s == 0.0


async def test_the_runner_gets_what_was_asked_and_the_outcome_has_its_value(
    autojump_clock: Any,
) -> None:
    make = maker(lambda: {"a": 1})
    status, body = cast("Any", await make.of(
        "r", CodeResult("asked"), 0.0, trio.CancelScope(), said, noted, "parent"
    ))  # fmt: skip
    assert (status, values.decode(bytes(body))) == (Status.RESULT, {"a": 1})
    how = {
        "request_id": "r", "here": True, "said": said, "noted": noted, "traceparent": "parent",
    }  # fmt: skip
    assert cast("Any", make)._runner.seen == ["asked", how]


async def test_a_wrong_option_that_the_environment_found_is_a_refusal(autojump_clock: Any) -> None:
    def act() -> None:
        raise ConfigError("write it otherwise")

    info = error_of(await outcome_of(act))
    assert (info.code, info.verdict) == ("refused", Verdict.DID_NOT_RUN)
    assert (info.message, info.traceback, info.duration_s) == ("write it otherwise", "", 2.0)


async def test_a_failure_says_that_it_ran(autojump_clock: Any) -> None:
    info = error_of(await outcome_of(failure(ValueError("mine"))))
    assert (info.code, info.verdict) == ("rollout-failed", Verdict.RAN_AND_FAILED)
    assert (info.type, info.message, info.duration_s) == ("ValueError", "mine", 2.0)


async def test_a_failure_after_a_cancel_is_the_cancels(autojump_clock: Any) -> None:
    scope = trio.CancelScope()
    scope.cancel()
    info = error_of(await outcome_of(failure(ValueError("mine")), scope=scope))
    assert (info.code, info.verdict) == ("cancelled", Verdict.MAY_HAVE_RUN)
    assert (info.message, info.duration_s) == ("the execution was cancelled", 2.0)


async def test_a_large_value_is_encoded_later_and_once(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = await outcome_of(lambda: LARGE)
    assert large == LargeValue(LARGE)
    encoded = []
    real = values.encode_to_send

    def encode(value: Any, **how: Any) -> Any:
        encoded.append("pause" in how)
        return real(value, **how)

    monkeypatch.setattr(values, "encode_to_send", encode)
    status, body = await maker().of_large(large, 0.0)
    assert encoded == [True]
    assert (status, values.decode(bytes(body))) == (Status.RESULT, LARGE)


async def test_a_large_value_that_knows_its_thread_is_encoded_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = values.encode_to_send

    def encode(value: Any, **how: Any) -> Any:
        if how.pop("pause", None) is not None:
            raise values.NotHere
        return real(value, **how)

    monkeypatch.setattr(values, "encode_to_send", encode)
    status, body = await maker().of_large(LargeValue("x"), 0.0)
    assert (status, values.decode(bytes(body))) == (Status.RESULT, "x")


class Lazy(Mapping[str, int]):
    """A value with code that fails."""

    def __getitem__(self, name: str) -> int:
        raise AssertionError

    def __iter__(self) -> Iterator[str]:
        raise SystemExit("lazy")

    def __len__(self) -> int:
        return 1


async def test_a_value_that_has_no_encoding_is_told_with_why(autojump_clock: Any) -> None:
    info = error_of(await outcome_of(object))
    assert (info.code, info.verdict) == ("outcome-not-encodable", Verdict.RAN_AND_FAILED)
    assert info.message.startswith("result: cannot encode a value of type object")
    assert info.duration_s == 2.0
    info = error_of(await outcome_of(Lazy))
    assert (info.code, info.verdict) == ("outcome-not-encodable", Verdict.RAN_AND_FAILED)
    assert info.message == "result: encoding it raised SystemExit: lazy"
    assert "in __iter__" in info.traceback


async def test_a_value_may_fill_a_message_and_no_more(autojump_clock: Any) -> None:
    wire = WireLimits(message_bytes=100_000)
    head = len(values.encode(bytes(99_000))) - 99_000
    status, body = await outcome_of(lambda: bytes(100_000 - head), wire)
    assert (status, len(body)) == (Status.RESULT, 100_000)
    info = error_of(await outcome_of(lambda: bytes(100_001 - head), wire))
    assert (info.code, info.verdict) == ("outcome-too-large", Verdict.RAN_AND_FAILED)
    assert info.message == "the outcome has 100001 bytes, 100000 allowed"


@pytest.mark.parametrize(
    ("message_bytes", "most_bytes"), [(64 * KIB, 8 * KIB), (100 * KIB * KIB, 128 * KIB)]
)
async def test_the_texts_of_an_error_fit_into_a_message(
    autojump_clock: Any, message_bytes: int, most_bytes: int
) -> None:
    error = ValueError("mine")
    for _ in range(64):
        error.add_note("\u00e9" * 8 * KIB)
    outcome = await outcome_of(failure(error), WireLimits(message_bytes=message_bytes))
    assert abs(len(error_of(outcome).traceback.encode()) - most_bytes) < 50


def test_a_wrong_option_is_told_with_its_cause() -> None:
    def cause() -> None:
        raise ValueError("of the environment")

    try:
        try:
            cause()
        except ValueError as error:
            raise ConfigError("write it otherwise") from error
    except ConfigError as error:
        info = described(error, "refused", "w")
    assert (info.code, info.worker, info.verdict) == ("refused", "w", Verdict.DID_NOT_RUN)
    assert info.message == "write it otherwise"
    assert "of the environment" in info.traceback
    assert info.traceback.endswith("\nwrite it otherwise")
