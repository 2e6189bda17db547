"""Numbers that no server takes, in each public argument of a client.

They were sent, refused as malformed, and sent again without end."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import Any

import pytest
import trio

from tests.memory import echo, pair, virtual
from trio_envserve import CallOptions, ConfigError
from trio_envserve.client.shell import Client

np = pytest.importorskip("numpy")


class Number(enum.IntEnum):
    ONE = 1


NUMBERS = [
    -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**5000, True, False, None, 0.0, 1.0,
    -0.5, float("nan"), float("inf"), float("-inf"), "1", b"1", Fraction(1, 2), Number.ONE,
    np.int64(1), np.uint64(2**63), np.float64(1), [1],
]  # fmt: skip

GIVEN: dict[str, dict[str, Any]] = {
    "run_rollout": {"input": 1}, "run_group": {"inputs": [1]}, "outcome": {"input": 1},
    "attach": {"key": "k"}, "cancel_key": {"key": "k"}, "forget": {"key": "k"},
    "stack": {"number": 1},
}  # fmt: skip


def numbers_of(method: Any) -> tuple[str, ...]:
    """The arguments of a method that are numbers, by their types."""
    found = []
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            hints = typing.get_type_hints(CallOptions)
            found += [option for option, hint in hints.items() if is_number(hint)]
        elif is_number(typing.get_type_hints(method).get(name)):
            found.append(name)
    return tuple(found)


def is_number(hint: Any) -> bool:
    return bool({int, float} & {hint, *typing.get_args(hint)})


CALLS = [
    (method, name)
    for method, found in inspect.getmembers(Client, inspect.isfunction)
    if not method.startswith("_")
    for name in numbers_of(found)
]
"""Each method of a client with each number that it takes."""


def test_the_numbers_of_a_method_are_found_by_their_types():
    many = [name for method, name in CALLS if method == "run_many"]
    assert many == [
        "in_flight", "max_retries", "max_executions", "timeout_s", "execution_s", "grace_s",
        "working_s",
    ]  # fmt: skip


async def call_of(client: Client, method: str, options: dict[str, Any]) -> Any:
    if method == "run_many":
        async with client.run_many([1], **options) as outcomes:
            return [outcome.unwrap() async for _, outcome in outcomes]
    act: Callable[..., Awaitable[Any]] = getattr(client, method)
    return await act(**{**GIVEN.get(method, {}), **options})


async def error_of(client: Client, method: str, options: dict[str, Any]) -> Exception | None:
    try:
        await call_of(client, method, options)
    except trio.TooSlowError:
        raise
    except Exception as error:  # which ones may be, the test says
        return error
    return None


@pytest.mark.parametrize(("method", "name"), CALLS)
@virtual
async def test_a_number_that_no_server_takes_was_sent_again_without_end(method: str, name: str):
    async with pair(echo) as (server, client):
        await client.wait_ready()
        for number in NUMBERS:
            if number is None and name in ("first", "number"):
                continue
            with trio.fail_after(20):  # an answer takes milliseconds; a call without end, none
                said = await error_of(client, method, {name: number})
            # Else a time that is too short, or a key that nobody knows.
            is_refused = isinstance(said, ConfigError) and name in str(said)
            assert said is None or is_refused or name == "timeout_s" or method == "attach"
        assert server.stats().malformed == 0
        assert (await client.run_rollout(7)) == 7
