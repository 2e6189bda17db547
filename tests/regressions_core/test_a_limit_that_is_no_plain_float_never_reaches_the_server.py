"""``timeout_s=math.inf`` was sent as it is, and the wire has no infinity: the server took
the request for malformed, never answered it, and the client sent it again with every
ping, for ever.  A numpy scalar could not be encoded at all and crashed the client in
the middle of a message; ``True`` was a limit of one second.
"""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import trio

from tests.core.helpers import Pair
from trio_envserve import ConfigError, open_client
from trio_envserve.core.messages import Request
from trio_envserve.net import MemoryNetwork


def requests(pair: Pair) -> list[Request]:
    return [message for message in pair.sent if isinstance(message, Request)]


def connected(pair: Pair) -> Pair:
    """Only now is anything encoded."""
    pair.client.connected(pair.now_s)
    pair.settle()
    return pair


@pytest.mark.parametrize(
    "limit_s", [math.inf, 1e12, 1e300, 10**400, np.float64("inf")], ids=lambda n: repr(n)[:20]
)
def test_a_limit_past_all_bounds_is_none(limit_s: Any):
    pair = Pair(welcomed=False)
    number = pair.submit(limit_s=limit_s)
    assert pair.client.calls.live[number].limit_s is None
    assert [request.deadline_s for request in requests(connected(pair))] == [None]
    assert len(pair.runs) == 1


@pytest.mark.parametrize(
    "limit_s", [5, np.float32(5), np.int64(5), Decimal(5), Fraction(5)], ids=repr
)
def test_any_real_number_is_the_same_limit(limit_s: Any):
    pair = Pair(welcomed=False)
    pair.submit(limit_s=5.0)
    pair.submit(limit_s=limit_s)
    _, other = pair.client.calls.live.values()
    assert type(other.limit_s) is float
    assert [request.deadline_s for request in requests(connected(pair))] == [5.0, 5.0]


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": True}, {"timeout_s": False}, {"timeout_s": math.nan}, {"timeout_s": 0},
        {"max_executions": True}, {"max_executions": 2**63}, {"max_executions": 0},
    ],
    ids=repr,
)  # fmt: skip
async def test_what_is_no_number_of_seconds_or_executions_is_refused(options: dict[str, Any]):
    said = ""
    async with open_client("memory:nobody", network=MemoryNetwork()) as client:
        with trio.CancelScope() as scope:
            scope.cancel()  # it is found out before anything is waited for
            try:
                await client.outcome("input", **options)
            except ConfigError as error:
                said = str(error)
    assert said.startswith(next(iter(options)))
