"""Stored results that are scored anew: what becomes of them, and scorers on every backend."""

import copy
import math
from typing import Any

import pytest

from tests.worker.helpers import opened, request
from trio_envserve import ConfigError
from trio_envserve.core.errors import ProtocolError
from trio_envserve.envs import RolloutRequest, load
from trio_envserve.worker.failures import EnvironmentFailure, code_of

VALUE: dict[str, Any] = {
    "reward": 0.0,
    "completion": [{"role": "assistant", "content": "four words, more or"}],
    "usage": {"calls": 1, "roles": {"old": {"calls": 3}}},
    "segments": [{"reward": 0.0, "turns": [0, 1]}, {"reward": 0.0, "turns": [1, 2]}],
}
CLOSED: list[int] = []
JUDGE = [{"role": "user", "content": "How good is it?"}]


def scorer(given):
    class Scorer:
        async def run_rollout(self, rollout):
            raise AssertionError("the policy was asked")

        async def rescore(self, rollout, value):
            return given(rollout, value) if callable(given) else given

    return Scorer


async def scored(environment, value=VALUE, **more):
    async with opened(load(environment), threads=2) as runner:
        asked = request({"input": 7, "value": copy.deepcopy(value)}, "rescore", **more)
        return await runner.run(asked, request_id="a")


async def test_a_number_is_the_reward_of_all_records_and_the_rest_stays():
    value = await scored(scorer(0.5))
    assert value["reward"] == 0.5
    assert [each["reward"] for each in value["segments"]] == [0.5, 0.5]
    assert value["segments"][1]["turns"] == [1, 2]
    assert value["completion"] == VALUE["completion"]
    assert value["usage"] == {"calls": 1}


async def test_named_numbers_are_metrics_and_what_was_named_before_is_gone():
    value = await scored(scorer({"style": 0.25, "length": 0.5}), {**VALUE, "rewards": {"old": 1}})
    assert value["reward"] == 0.75
    assert value["rewards"] == {"style": 0.25, "length": 0.5}
    before = {"rewards": {"old": 1}, "metrics": {"style": 0.5}, "no_reward": "why"}
    assert await scored(scorer({"reward": 1}), before) == {"reward": 1.0}
    both = await scored(scorer({"reward": 1, "metrics": {"new": 2}}), before)
    assert both == {"reward": 1, "metrics": {"new": 2}}
    whole = await scored(scorer(lambda rollout, value: {**value, "reward": 1}), before)
    assert whole["metrics"] == {"style": 0.5}


@pytest.mark.parametrize("max_retries", [0, 1])
async def test_what_a_scorer_changed_in_the_result_was_taken_for_what_was_stored(max_retries):
    def take_apart(rollout, value):
        value["segments"].clear()
        return 0.5 * len(value["completion"].pop())

    value = await scored(scorer(take_apart), max_retries=max_retries)
    assert value["reward"] == 1.0
    assert (value["completion"], len(value["segments"])) == (VALUE["completion"], 2)


async def test_a_reward_with_its_reason_lost_the_turns_and_the_records_of_the_rollout():
    def judged(rollout, value):
        return {"reward": 1.0, "why": str(rollout.input), "completion": []}

    value = await scored(scorer(judged), {**VALUE, "rewards": {"old": 1}, "no_reward": "why"})
    records = [{**each, "reward": 1.0} for each in VALUE["segments"]]
    assert value == {
        "reward": 1.0, "why": "7", "completion": [], "segments": records, "usage": {"calls": 1},
    }  # fmt: skip


async def test_named_rewards_of_a_whole_result_are_those_of_its_records():
    """The records had none, though the result counts."""
    value = await scored(scorer(lambda rollout, value: {**value, "reward": {"a": 1, "b": 0.5}}))
    assert value["reward"] == {"a": 1, "b": 0.5}
    assert [each["reward"] for each in value["segments"]] == [1.5, 1.5]


async def test_a_result_that_is_no_mapping_stays_beside_its_reward():
    assert await scored(scorer(1), "text") == {"reward": 1.0, "value": "text"}


async def test_a_reward_that_is_not_finite_is_that_of_no_record():
    value = await scored(scorer(math.nan))
    assert math.isnan(value["reward"])
    assert value["segments"][0]["reward"] is None


NO_REWARDS = [
    (None, "None"), ("1.0", "a str"), ([1.0], "a list"), ({}, "a dict"), ({"score": "x"}, "a dict"),
    ({"reward": None}, "a dict"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "told"), NO_REWARDS)
async def test_no_reward_was_a_reward_of_zero(given, told):
    with pytest.raises(EnvironmentFailure, match=rf"rescore\(\) returned {told} and no") as caught:
        await scored(scorer(given))
    assert code_of(caught.value) == "scorer-failed"


async def test_an_error_of_a_scorer_is_its_own():
    def wrong(rollout, value):
        raise KeyError("mark")

    with pytest.raises(EnvironmentFailure, match=r"rescore\(\) raised KeyError: 'mark'") as caught:
        await scored(scorer(wrong))
    assert code_of(caught.value) == "scorer-failed"
    assert isinstance(caught.value.exception.__cause__, KeyError)


async def test_each_attempt_of_a_scorer_gets_what_was_stored():
    seen = []

    def second(rollout, value):
        seen.append(dict(value))
        value.clear()
        if rollout.attempt == 1:
            raise ValueError("not yet")
        return 1.0

    await scored(scorer(second), max_retries=1)
    assert seen == [VALUE, VALUE]


# -- how they are written ----------------------------------------------------------------


class OnTrio:
    async def run_rollout(self, rollout):
        raise AssertionError("the policy was asked")

    async def rescore(self, rollout, value):
        mark = await rollout.ask(JUDGE, reference=str(len(value["completion"])), endpoint="judge")
        return float(mark.text) + rollout.input


class OnAsyncio(OnTrio):
    backend = "asyncio"


class InThreads:
    def run_rollout(self, rollout):
        raise AssertionError("the policy was asked")

    def rescore(self, rollout, value):
        mark = rollout.ask_sync(JUDGE, reference=str(len(value["completion"])), endpoint="judge")
        return float(mark.text) + rollout.input


class WithTools:
    """A class whose reward asks a judge, as that of a rollout does."""

    rollout: Any = None

    def reset(self):
        raise AssertionError("the policy was asked")

    def rescore(self, rollout, value):
        self.turns = len(value["completion"])
        return self.get_reward()

    def get_reward(self):
        mark = self.rollout.ask_sync(JUDGE, reference=str(self.turns), endpoint="judge")
        return float(mark.text) + self.rollout.input

    def close(self):
        CLOSED.append(self.turns)


class WithToolsOnAsyncio(WithTools):
    backend = "asyncio"


class LoopClass:
    async def reset(self):
        raise AssertionError("the policy was asked")

    rescore = OnTrio.rescore


class MainThreadClass(LoopClass):
    main_thread = True


SHAPES = [OnTrio, OnAsyncio, InThreads, WithTools, WithToolsOnAsyncio, LoopClass, MainThreadClass]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_scorer_asks_its_judge(shape):
    value = await scored(shape, roles={"judge": "oracle"})
    assert value["reward"] == 8.0
    assert value["usage"]["calls"] == 1
    assert list(value["usage"]["roles"]) == ["judge"]


async def test_an_object_that_scores_is_closed():
    CLOSED.clear()
    await scored(WithTools, roles={"judge": "oracle"})
    assert CLOSED == [1]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_scorer_whose_judge_failed_gave_a_reward_of_zero(shape, monkeypatch, tmp_path):
    (tmp_path / "endpoints.toml").write_text('[judge]\nurl = "http://127.0.0.1:9/v1"\nretries=0\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentFailure, match=r"the judge \(endpoint 'judge'\)") as caught:
        await scored(shape)
    assert code_of(caught.value) == "model-unavailable"


async def test_the_policy_is_not_asked():
    async def asks(self, rollout, value):
        return await rollout.ask(JUDGE, reference="1")

    class Asks(OnTrio):
        rescore = asks

    with pytest.raises(EnvironmentFailure, match="must not ask the model that is measured"):
        await scored(Asks)


async def test_an_environment_without_a_scorer_says_what_to_write():
    class Plain:
        name = "plain"

        async def run_rollout(self, rollout):
            return 1

    with pytest.raises(ConfigError, match=r"plain cannot score .*: write a method rescore\(self"):
        await scored(Plain)


class Wrong:
    async def run_rollout(self, rollout):
        return 1

    async def rescore(self, value):
        return 1


class WrongClass:
    def reset(self):
        pass

    def rescore(self, text: str) -> str:
        "A tool."
        return text


@pytest.mark.parametrize("shape", [Wrong, WrongClass])
def test_a_scorer_that_takes_something_else_is_refused(shape):
    with pytest.raises(ConfigError, match=r"called as rescore\(rollout, value\)"):
        load(shape)


def test_a_coroutine_that_scores_in_threads_is_refused():
    class Mixed(InThreads):
        rescore = OnTrio.rescore

    with pytest.raises(ConfigError, match="rescore is a coroutine function"):
        load(Mixed)


@pytest.mark.parametrize("given", [None, 1, {"input": 1}, {"input": 1, "value": 2, "more": 3}])
def test_a_request_to_rescore_has_an_input_and_a_value(given):
    with pytest.raises(ConfigError, match="a mapping with the fields input and value"):
        request(given, "rescore")
    body = {**request().to_body(), "kind": "rescore", "input": given}
    with pytest.raises(ProtocolError, match="the fields input and value"):
        RolloutRequest.from_body(body)
