"""Whether a model call is sent again, and when.  Pure.

Theory of operation
-------------------
A call is sent again only if the endpoint has not answered it (there was no connection, or
it broke before the answer was whole), or if the answer says so: status 408, 429, 502, 503
and 504, a ``Retry-After``, or ``x-should-retry: true``.  An answer cut in its middle has
reached nobody, so nothing is run twice but the generation.  A timeout, any other status
and an answer that is no completion end the call.

The pauses double from half a second to half a minute, each with jitter; ten of them last
at least 75 s.  ``Retry-After`` replaces a pause, and nobody comes sooner than it says.  An
endpoint that asks for more than two minutes has refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LONGEST_RETRY_AFTER_S = 120.0

_COME_AGAIN = frozenset({408, 429, 502, 503, 504})


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A request that was not answered with a completion."""

    text: str
    """The failure, as the end of a sentence about the endpoint."""
    again: bool
    """The call may be sent again."""
    retry_after_s: float | None = None
    """The endpoint wants nothing sooner."""


def failure_of_status(
    status: int, headers: Mapping[str, str], text: str, *, now_s: float
) -> Failure:
    """The failure of a status other than 200.  ``now_s`` is the calendar's time, in seconds
    since 1970; ``headers`` finds lower-case names."""
    wait_s = _retry_after_s(headers, now_s)
    again = status in _COME_AGAIN or wait_s is not None
    if headers.get("x-should-retry") in ("true", "false"):
        again = headers["x-should-retry"] == "true"
    told = f"answered {status}"
    if 300 <= status < 400 and "location" in headers:
        told += f" (it wants to be called at {headers['location'][:200]!r})"
    if wait_s is not None and wait_s > LONGEST_RETRY_AFTER_S:
        again, told = False, f"{told} and asks to wait for {wait_s:.0f} s"
    return Failure(f"{told}: {text}" if text else told, again, wait_s)


def pause_s(retry: int, failure: Failure, jitter: float) -> float:
    """How long to wait before the ``retry``-th repetition (from 1).

    ``jitter`` is a random number from 0 to 1.
    """
    backoff_s = min(FIRST_PAUSE_S * 2.0 ** min(retry - 1, 10), LONGEST_PAUSE_S)
    if failure.retry_after_s is None:
        return backoff_s * (1 + jitter) / 2
    return failure.retry_after_s + jitter * min(backoff_s, max(failure.retry_after_s, 1.0))


def _retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """The pause that the endpoint asks for, if it can be read."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            asked_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if 0 <= asked_s < math.inf:
            return asked_s
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(moment.timestamp() - now_s, 0.0)
