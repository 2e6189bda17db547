"""Options of a call are looked at before anything is waited for."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy
import pytest
import trio

from tests.memory import ADDRESS
from trio_envserve import ConfigError, PlainClient, open_client, open_client_asyncio, open_host
from trio_envserve.client.options import MOST_NAME_BYTES, Asked, checked, seconds
from trio_envserve.core.client import CallKey, Terms
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.values import EncodingError, decode, encode
from trio_envserve.envs import RolloutRequest
from trio_envserve.net import MemoryNetwork

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
"""A span of somebody else's."""


def test_wrong_option_of_a_call_is_told_with_the_near_name():
    with pytest.raises(TypeError, match=r"has no option 'timeout'; did you mean 'timeout_s'\?$"):
        checked("input", timeout=5)


@pytest.mark.parametrize("function", [open_client, open_client_asyncio, PlainClient, open_host])
def test_wrong_option_of_a_client_or_host_is_told_with_the_near_name(function: Any):
    told = rf"^{function.__name__}\(\) has no option 'limit'; did you mean 'limits'\?$"
    with pytest.raises(TypeError, match=told):
        function(ADDRESS, limit=None)


WRONG: dict[str, list[Any]] = {
    "timeout_s": [
        True, False, math.nan, 0, -1, -(10**400), "5", object(), numpy.timedelta64(5, "ns"),
    ],
    "execution_s": [True, 0, -1, math.nan, math.inf, 1e12, "5", object()],
    "grace_s": [True, 0, -1, math.nan, math.inf, 1e12, "5", object(), 5.0],
    "working_s": [True, 0, -1, math.nan, math.inf, 1e12, "5", object()],
    "max_executions": [True, 2**63, 0, 1.0, 1.5],
    "max_retries": [-1, 1.0, True],
    "rerun": ["yes", 1],
    "model": ["", None, ["oracle"]],
    "model_name": [None],
    "kind": ["groups"],
    "traceparent": ["", PARENT.upper(), PARENT[:-1], "00-1-2-3", b"bytes", 1],
    "roles": ["judge", [], "", 0, {"judge": ""}, {"": "oracle"}, {"judge": {"endpoint": "oracle"}}],
    "sampling_args": [{1: 2}, "hot", 0, [], {"a": object()}],
    "state_columns": ["ab", 3, [3], {}],  # of a text there was a column of each letter
}  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value"),
    [
        pytest.param(option, value, id=f"{option}-{number}")
        for option, values in WRONG.items()
        for number, value in enumerate(values)
    ],
)
def test_an_option_that_is_wrong_is_named(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises((ConfigError, EncodingError), match=option.replace("_", ".")):
        checked("x", **options).encoded(WireLimits())


@pytest.mark.parametrize("method", ["run_rollout", "outcome", "run_group", "run_many"])
async def test_a_wrong_option_is_found_before_anything_is_waited_for(method: str) -> None:
    async with open_client(ADDRESS, network=MemoryNetwork()) as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(ConfigError, match="max_executions"):
                made = getattr(client, method)([1], max_executions=0)
                await (made.__aenter__() if method == "run_many" else made)


@pytest.mark.parametrize("empty", [[], (), "ab", None, 1])
def test_a_group_needs_its_inputs(empty: Any) -> None:
    with pytest.raises(ConfigError, match="input"):
        checked(empty, kind="group")


class Text(str):
    """Text of a class of the user's."""


def as_dict(body: bytes) -> dict[str, Any]:
    decoded = decode(body)
    assert isinstance(decoded, dict)
    return decoded


class Args(dict[str, Any]):
    pass


SURROGATE = "\ud800"


@pytest.mark.parametrize(
    "args",
    [
        Args(a=1), MappingProxyType({"a": 1}), {"a": {1, 2}}, {"a": SURROGATE}, {"a": "x" * 5000},
        {}, {"a": (1, [2])}, {"a": numpy.arange(3)},
    ],
    ids=["a class", "a view", "a set", "a surrogate", "long", "none", "nested", "an array"],
)  # fmt: skip
def test_the_body_is_that_of_the_request_for_any_sampling_arguments(args: Any) -> None:
    request = RolloutRequest(
        kind="rollout", input="x", endpoint="e", model_name="m", sampling_args=args,
        max_retries=2, state_columns=("s",),
    )  # fmt: skip

    def asked() -> bytes:
        made = checked(
            "x", model="e", model_name="m", sampling_args=args, max_retries=2, state_columns=["s"]
        )
        return bytes(made.encoded(WireLimits()))

    if args.get("a", "") is SURROGATE:
        for _ in range(2):
            with pytest.raises(EncodingError, match="sampling_args"):
                asked()
    else:
        assert asked() == asked() == encode(request.to_body())


@pytest.mark.parametrize(
    ("options", "terms", "name"),
    [
        ({}, Terms(), None),
        ({"rerun": True}, Terms(rerun=True), None),
        ({"rerun": False}, Terms(rerun=False), None),
        ({"max_executions": 1}, Terms(max_executions=1), None),
        ({"timeout_s": 0.5}, Terms(limit_s=0.5), None),
        ({"traceparent": PARENT}, Terms(traceparent=PARENT), None),
        ({"key": "k"}, Terms(), (b"default", b"k")),
        ({"key": "k", "namespace": "n", "timeout_s": 2}, Terms(limit_s=2.0), (b"n", b"k")),
        ({"timeout_s": 60, "grace_s": 5}, Terms(limit_s=65.0, grace_s=5.0), None),
        ({"execution_s": 60, "grace_s": 5}, Terms(execution_s=65.0, grace_s=5.0), None),
        (
            {"timeout_s": math.inf, "execution_s": 30, "grace_s": 5},
            Terms(limit_s=math.inf, execution_s=35.0, grace_s=5.0),
            None,
        ),
        # The time limit of a call with a key ends the wait, and so has no grace.
        (
            {"timeout_s": 60, "execution_s": 30, "grace_s": 5, "key": "k"},
            Terms(limit_s=60.0, execution_s=35.0, grace_s=5.0),
            (b"default", b"k"),
        ),
    ],
    ids=repr,
)
def test_the_terms_are_those_that_were_asked_for(
    options: dict[str, Any], terms: Terms, name: KeyName | None
) -> None:
    assert checked("x", **options)[1:] == ("x", terms, name)


@pytest.mark.parametrize(
    ("given", "limit_s"),
    [(None, None), (3, 3.0), (numpy.float32(0.5), 0.5), (10**400, math.inf), (math.inf, math.inf)],
    ids=str,
)
def test_a_limit_may_be_of_any_numeric_kind(given: Any, limit_s: float | None) -> None:
    assert seconds(given) == limit_s
    assert type(seconds(given)) is type(limit_s)


@pytest.mark.parametrize("text", ["k", "x" * MOST_NAME_BYTES, "\u00e9", Text("k")], ids=len)
def test_a_name_is_any_text_that_fits(text: str) -> None:
    assert checked("x", key=text, namespace=text).name == (text.encode(), text.encode())


@pytest.mark.parametrize(
    "text",
    ["", 5, b"k", "\ud800", "x" * (MOST_NAME_BYTES + 1), "\u00e9" * MOST_NAME_BYTES],
    ids=["empty", "a number", "bytes", "a surrogate", "long", "long when encoded"],
)
@pytest.mark.parametrize("which", ["key", "namespace"])
def test_text_that_is_no_name_is_refused(which: str, text: Any) -> None:
    with pytest.raises(ConfigError, match=which):
        checked("x", **{"key": "k", which: text})


def test_each_of_many_has_a_part_of_the_key() -> None:
    many = checked(None, key="k", max_executions=2)
    part = many.member("part", "input")
    assert part.request is many.request
    assert part[1:] == ("input", Terms(max_executions=2), (b"default", b"k/part"))
    assert checked(None).member(1, "input")[1:] == ("input", Terms(), None)


def test_a_key_holds_for_one_input() -> None:
    name, request = KeyName(b"default", b"k"), checked("x").request
    asked = Asked(request, "x", Terms(True, 2, 3.0, None, PARENT), name)
    for body in (b"one", b"other"):
        key = CallKey(KeyAct.ASK, name, input_digest(body, True))
        assert asked.terms_of(body) == Terms(True, 2, 3.0, key, PARENT)
    assert Asked(request, "x", Terms(True)).terms_of(b"one") == Terms(True)


def test_only_a_keyed_input_is_encoded_in_one_order() -> None:
    one, other = {"b": 1, "a": 2}, {"a": 2, "b": 1}
    for key, same in ((None, False), ("k", True)):
        bodies = [bytes(checked(each, key=key).encoded(WireLimits())) for each in (one, other)]
        assert (bodies[0] == bodies[1]) is same


# -- grace ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grace_s": 5}, "grace_s belongs to a limit: give timeout_s or execution_s, too"),
        ({"grace_s": 5, "timeout_s": math.inf}, "grace_s belongs to a limit"),
        ({"grace_s": 5, "working_s": 5}, "grace_s belongs to a limit"),
        ({"grace_s": 5, "timeout_s": 60, "key": "k"}, "with a key belongs to execution_s"),
        (
            {"grace_s": 9e11, "execution_s": 9e11},
            r"execution_s \+ grace_s must be a positive number below 1e\+12",
        ),
    ],
)
def test_a_grace_without_a_limit_is_refused_in_words(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked("x", **options)


def test_limit_of_work_is_a_part_of_the_body_where_there_is_one() -> None:
    assert as_dict(bytes(checked("x", working_s=5).encoded(WireLimits())))["working_s"] == 5.0
    assert "working_s" not in as_dict(bytes(checked("x").encoded(WireLimits())))
