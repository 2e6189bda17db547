"""Whether a model call is sent again, and when."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.models.interface import BrokenNumbers, ModelAborted
from trio_envserve.models.patience import (
    LONGEST_PAUSE_S,
    LONGEST_RETRY_AFTER_S,
    EndpointFailure,
    failure_of_status,
    pause_s,
)

NOW_S = 1_792_000_000.0


def of(status, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return failure_of_status(status, named, "text", now_s=NOW_S)


@pytest.mark.parametrize(
    ("status", "headers", "again"),
    [
        *((status, {}, True) for status in (408, 429, 502, 503, 504)),
        *((status, {}, False) for status in (201, 301, 400, 401, 403, 404, 409, 422, 500, 501)),
        (500, {"retry_after": "3"}, True),
        (500, {"x_should_retry": "true"}, True),
        (429, {"x_should_retry": "false"}, False),
        (429, {"retry_after": str(LONGEST_RETRY_AFTER_S)}, True),
        (429, {"retry_after": "3600"}, False),
    ],
)
def test_status_is_sent_again_if_it_or_the_endpoint_says_so(status, headers, again):
    assert of(status, **headers).again == again


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after_ms": "250", "retry_after": "7"}, 0.25),
        ({"retry_after": "Wed, 14 Oct 2026 18:13:30 GMT"}, 1_792_001_610.0 - NOW_S),
        ({"retry_after": "Wed, 14 Oct 2020 18:13:30 GMT"}, 0.0),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "Wed, 99 Oct 99999 99:13:30 GMT"}, None),
        ({"retry_after_ms": "x"}, None),
    ],
)
def test_retry_after_is_read_in_each_form(headers, wait_s):
    assert of(429, **headers).retry_after_s == wait_s


@given(
    st.integers(1, 2000), st.floats(0, 1), st.none() | st.floats(0, LONGEST_RETRY_AFTER_S)
)  # fmt: skip
def test_nobody_comes_sooner_than_asked_nor_much_later(retry, jitter, asked_s):
    waited_s = pause_s(retry, EndpointFailure("", again=True, retry_after_s=asked_s), jitter)
    if asked_s is None:
        assert 0.25 <= waited_s <= LONGEST_PAUSE_S
    else:
        assert asked_s <= waited_s <= asked_s + max(asked_s, 1)


@pytest.mark.parametrize(
    ("error", "jitter", "least_s", "most_s"),
    [(None, 0.0, 60, math.inf), (ModelAborted, 1.0, 15, 40), (BrokenNumbers, 1.0, 15, 40)],
)
def test_ten_retries_outlast_an_outage_of_a_minute_but_no_answer_that_is_always_cut(
    error, jitter, least_s, most_s
):
    """The latter took two minutes."""
    failure = EndpointFailure("", again=True, **({} if error is None else {"error": error}))
    assert least_s < sum(pause_s(retry, failure, jitter) for retry in range(1, 11)) < most_s


@given(st.text() | st.dates().map(lambda day: day.strftime("%a, %d %b %Y 00:00:00 -9999")))
def test_whatever_stands_in_retry_after_is_read_or_ignored(text):
    failure = of(429, retry_after=text)
    assert failure.retry_after_s is None or failure.retry_after_s >= 0
