"""The prompt and the usage of a rollout, which are recorded without its code."""

from __future__ import annotations

from typing import Any

import pytest

from tests.envs.scripted import running

ASKED = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1 \ud83d"}]
SEEN = [ASKED[0], {"role": "user", "content": "1 + 1 \\ud83d"}]


class Adds:
    """Asks once, goes on talking, and returns what its input says."""

    async def run_rollout(self, rollout: Any) -> Any:
        talk = [dict(each) for each in ASKED]
        if rollout.input["asks"]:
            talk.append((await rollout.ask(talk, reference="2")).message)
            talk.append({"role": "user", "content": "Sure?"})
            await rollout.ask(talk, reference="2")
        return rollout.input["returns"]


class AddsByThread:
    """The same in a thread."""

    def run_rollout(self, rollout: Any) -> Any:
        rollout.ask_sync([dict(each) for each in ASKED], reference="2")
        return rollout.input["returns"]


class InGroups(Adds):
    """The same in a group that runs itself."""

    async def run_group(self, rollouts: Any) -> Any:
        return [await self.run_rollout(each) for each in rollouts]


async def run(environment: Any, given: Any, **kind: str) -> Any:
    async with running(environment) as asked:
        return await asked(given, endpoint="oracle", **kind)


@pytest.mark.parametrize(("environment", "calls"), [(Adds(), 2), (AddsByThread(), 1)])
async def test_prompt_and_usage_are_recorded_by_themselves(environment: Any, calls: int):
    result = await run(environment, {"asks": True, "returns": {"reward": 1.0}})
    assert (result["prompt"], result["usage"]["calls"], result["reward"]) == (SEEN, calls, 1.0)


async def test_prompt_and_usage_of_a_group_are_recorded():
    (record,) = await run(InGroups(), [{"asks": True, "returns": {"reward": 1.0}}], kind="group")
    assert (record["value"]["prompt"], record["value"]["usage"]["calls"]) == (SEEN, 2)


@pytest.mark.parametrize(
    ("asks", "returns"),
    [
        (False, {"reward": 1.0}),
        (True, None),
        (True, [1, 2]),
        (True, {"reward": 1.0, "usage": {"calls": 7}, "prompt": "mine"}),
    ],
)
async def test_a_result_that_has_them_or_is_none_stays_as_it_is(asks: bool, returns: Any):
    assert await run(Adds(), {"asks": asks, "returns": returns}) == returns


async def test_a_completion_that_begins_with_the_prompt_has_it_already():
    returns = {"completion": [*SEEN, {"role": "assistant", "content": "2"}]}
    result = await run(Adds(), {"asks": True, "returns": returns})
    assert set(result) == {"completion", "usage"}
