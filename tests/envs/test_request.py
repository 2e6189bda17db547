"""The body of a request."""

import pytest
from hypothesis import given

from trio_envserve.core.errors import ConfigError, ProtocolError
from trio_envserve.core.values import decode
from trio_envserve.envs.request import RolloutRequest
from trio_envserve.testing.strategies import plain_values, request_bodies, same


def body(**changes):
    made = RolloutRequest(kind="rollout", input=1, endpoint="oracle", model_name="m").to_body()
    return {**made, **changes}


@given(request_bodies())
def test_bodies_round_trip(body_):
    given_ = decode(body_)
    assert same(RolloutRequest.from_body(given_).to_body(), given_)


WRONG = [
    ("kind", "grupo"),
    ("kind", ["rollout"]),
    ("model", None),
    ("model", {"endpoint": "oracle"}),
    ("model", {"endpoint": "", "name": "m"}),
    ("model", {"endpoint": 3, "name": "m"}),
    ("model", {"endpoint": "oracle", "name": 3}),
    ("model", {"endpoint": "oracle", "name": "m", "key": "k"}),
    ("sampling_args", []),
    ("sampling_args", {1: 2}),
    ("max_retries", -1),
    ("max_retries", True),
    ("max_retries", 1.0),
    ("state_columns", "abc"),
    ("state_columns", [1]),
    ("max_retrys", 1),
    ("roles", None),
    ("roles", ["judge"]),
    ("roles", {"": "oracle"}),
    ("roles", {"judge": ""}),
    ("roles", {"judge": None}),
    ("roles", {1: "oracle"}),
    ("working_s", 0),
    ("working_s", -1.0),
    ("working_s", float("nan")),
    ("working_s", True),
    ("working_s", "5"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_field_is_named(field, value):
    with pytest.raises(ProtocolError, match=field):
        RolloutRequest.from_body(body(**{field: value}))


@pytest.mark.parametrize("field", sorted(body()))
def test_a_missing_field_is_named(field):
    wrong = body()
    del wrong[field]
    with pytest.raises(ProtocolError, match=f"'{field}' is missing"):
        RolloutRequest.from_body(wrong)


def test_a_body_without_roles_is_as_it_was_before_there_were_any():
    assert "roles" not in body()
    assert "roles" not in RolloutRequest.from_body(body(roles={})).to_body()


@pytest.mark.parametrize("group", [[], "ab", None, {}])
def test_a_group_needs_a_list_of_inputs(group):
    with pytest.raises(ProtocolError, match="input must be a list"):
        RolloutRequest.from_body(body(kind="group", input=group))


@given(plain_values())
def test_anything_else_is_a_protocol_error(value):
    with pytest.raises(ProtocolError):
        RolloutRequest.from_body(value)


def test_the_callers_mistake_is_a_config_error_and_long_values_are_cut():
    with pytest.raises(ConfigError, match="max_retries") as caught:
        RolloutRequest(
            kind="rollout",
            input=1,
            endpoint="oracle",
            model_name="m",
            max_retries="x" * 999,  # type: ignore[arg-type]  # the mistake under test
        )
    assert len(str(caught.value)) < 200
