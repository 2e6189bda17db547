"""Options of a call are looked at before anything is waited for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.memory import ADDRESS
from trio_envserve import ConfigError, open_client
from trio_envserve.client.options import checked
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.values import EncodingError, decode, encode
from trio_envserve.envs import RolloutRequest
from trio_envserve.net import MemoryNetwork


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


@pytest.mark.parametrize(
    "options",
    [
        {"rerun": "yes"},
        {"max_executions": 0},
        {"timeout_s": -1},
        {"max_retries": -1},
        {"model": ""},
        {"sampling_args": {1: 2}},
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(options: dict[str, Any]) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with open_client(ADDRESS, network=network) as client:
            with pytest.raises(ConfigError):
                await client.run_rollout(1, **options)

    trio.run(main, clock=MockClock(autojump_threshold=0))


EQUAL_BUT_OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_retries": 1}, {"max_retries": True}),
    ({"max_retries": 0}, {"max_retries": False}),
    ({"max_retries": 1}, {"max_retries": 1.0}),
    ({"sampling_args": None}, {"sampling_args": []}),
    ({"sampling_args": {"1": 2}}, {"sampling_args": {1: 2}}),
    ({"state_columns": ("a",)}, {"state_columns": "a"}),
    ({"state_columns": ["a"]}, {"state_columns": [1]}),
    ({"model": "oracle"}, {"model": ["oracle"]}),
    ({"model_name": ""}, {"model_name": None}),
]


@pytest.mark.parametrize(("right", "wrong"), EQUAL_BUT_OTHER, ids=repr)
def test_options_that_are_known_are_not_taken_for_wrong_ones(
    right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    """Options of plain values are checked once, and then known by their values."""
    for _ in range(2):
        checked("input", **right)
        with pytest.raises(ConfigError):
            checked("input", **wrong)


@pytest.mark.parametrize("empty", [[], (), "ab", None, 1])
def test_a_group_needs_its_inputs_however_often_its_options_were_right(empty: Any) -> None:
    checked([1], kind="group")
    with pytest.raises(ConfigError, match="input"):
        checked(empty, kind="group")


def as_dict(body: bytes) -> dict[str, Any]:
    decoded = decode(body)
    assert isinstance(decoded, dict)
    return decoded


def test_each_call_has_its_own_options() -> None:
    args: dict[str, Any] = {"temperature": 1, "stop": ["a"]}
    bodies = []
    for temperature, stop in ((1, "a"), (1.0, "a"), (True, "a"), (1, "b")):
        args["temperature"], args["stop"][0] = temperature, stop
        bodies.append(as_dict(bytes(checked("x", sampling_args=args).encoded(WireLimits()))))
    found = [body["sampling_args"] for body in bodies]
    assert [(type(f["temperature"]), f["temperature"], f["stop"][0]) for f in found] == [
        (int, 1, "a"), (float, 1.0, "a"), (bool, True, "a"), (int, 1, "b"),
    ]  # fmt: skip


class Args(dict[str, Any]):
    pass


@pytest.mark.parametrize(
    "args",
    [Args(a=1), {"a": {1, 2}}, {"a": "\ud800"}, {"a": "x" * 5000}, {}, {"a": (1, [2])}],
    ids=["a class", "a set", "a surrogate", "long", "none", "nested"],
)
def test_whatever_the_sampling_arguments_are_the_body_is_that_of_the_request(args: Any) -> None:
    request = RolloutRequest(
        kind="rollout", input="x", endpoint="e", model_name="m", sampling_args=args,
        max_retries=2, state_columns=("s",),
    )  # fmt: skip

    def asked() -> bytes:
        made = checked(
            "x", model="e", model_name="m", sampling_args=args, max_retries=2, state_columns=["s"]
        )
        return bytes(made.encoded(WireLimits()))

    if args.get("a") == "\ud800":
        for _ in range(2):
            with pytest.raises(EncodingError, match="sampling_args"):
                asked()
    else:
        assert asked() == asked() == encode(request.to_body())
