"""Rollouts of each kind by ``eval`` against a real endpoint.

Rewards are worked out again from what the endpoint said.
"""

import itertools
import json
import random
import re
from collections import Counter

import pytest

from tests.cli.commands import run as run_command
from tests.endpoint import Endpoint, Reply, prompt_tokens, serve
from tests.envs.test_classes import PNG, IncrementEnv, Picture
from trio_envserve.json_values import restored

pytestmark = pytest.mark.real
ROLLOUTS = 30


class Said:
    """Answers by ``answer(ask)``, and remembers what it said."""

    def __init__(self, answer):
        self._answer = answer
        self.texts: Counter[str] = Counter()
        self.endpoint = Endpoint(self._reply)

    def _reply(self, ask):
        reply = self._answer(ask)
        self.texts[reply.text] += 1
        return reply

    def judge(self, results):
        """What is in the results is what was said: nothing is lost, doubled or changed."""
        found = Counter(
            message["content"] or ""
            for result in results
            for message in result["completion"]
            if message["role"] == "assistant"
        )
        assert found == self.texts
        assert sum(result["usage"]["calls"] for result in results) == len(self.endpoint.asks)


async def evaluated(folder, kind, inputs, said, **sampling):
    """The results of a class by ``eval``, with answers that are streamed."""
    (folder / "inputs.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in inputs))
    sampled = [word for n, v in sampling.items() for word in ("--sampling", f"{n}={json.dumps(v)}")]
    async with serve(said.endpoint) as url:
        done = await run_command(
            folder, "eval", f"class:{kind.__module__}:{kind.__name__}", "--inputs", "inputs.jsonl",
            "--in-flight", "20", "--model", url, "--model-name", "m", "--output", "r.jsonl",
            "--json", "--sampling", "stream=true", *sampled,
        )  # fmt: skip
    assert done.code == 0, done.err
    records = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]
    assert sorted(record["index"] for record in records) == list(range(len(inputs)))
    for record in records:
        assert record["input"] == inputs[record["index"]]
        assert record["reward"] == record["value"].get("reward")
    return [restored(record["value"]) for record in records]


async def test_trls_example(tmp_path):
    chance = random.Random(4)
    added = []

    def answer(ask):
        if ask.turn:
            return Reply(f"It is {ask.messages[-1]['content']} now.")
        target = int(re.findall(r"\d+", ask.messages[0]["content"])[0])
        step = target + chance.choice((0, 0, 1))
        added.append(float(step == target))
        return Reply(tools=[("increment", {"step": step})])

    said = Said(answer)
    results = await evaluated(tmp_path, IncrementEnv, [{}] * ROLLOUTS, said)
    said.judge(results)
    assert sorted(result["reward"] for result in results) == sorted(added)
    assert len(results) == ROLLOUTS
    for result in results:
        counted = result["completion"][1]["content"]
        assert result["completion"][2]["content"] == f"It is {counted} now."
    assert said.endpoint.asks[0].body["tools"][0]["function"]["name"] == "increment"


class Camera:
    """Its tool returns an image."""

    def reset(self, **row):
        return "What is there?"

    def look(self, where: str) -> object:
        """Take a picture.

        Args:
            where: The direction.
        """
        return [f"{where}:", Picture()]


async def test_the_tokens_of_a_class_and_the_images_of_its_tool_go_where_they_belong(tmp_path):
    wanted = {"return_token_ids": True, "logprobs": True}
    chance = random.Random(9)
    replies = [
        Reply(tools=[("look", {"where": "north"})]),
        Reply(tools=[("look", {"where": "south"})]),
        Reply("A bird."),
    ]
    for reply in replies:
        reply.logprobs = [-chance.random() for _ in (reply.text or '{"where": "north"}') + " "]
    said = Said(lambda ask: replies[ask.turn])
    (result,) = await evaluated(tmp_path, Camera, [{}], said, **wanted)
    last = said.endpoint.asks[-1]
    assert last.messages[-1]["content"] == [{"type": "text", "text": "south:"}, PNG]
    (segment,) = result["segments"]
    assert list(segment["prompt_ids"]) == prompt_tokens(said.endpoint.asks[0].messages)
    tokens = [*segment["prompt_ids"], *segment["response_ids"]]
    answer = prompt_tokens([{"role": "assistant", "content": "A bird."}])
    assert tokens == [*prompt_tokens(last.messages), *answer]
    sampled = segment["logprobs"][segment["response_mask"] == 1].tolist()
    given = itertools.chain.from_iterable(reply.logprobs or () for reply in replies)
    assert sampled == pytest.approx(list(given))
    assert segment["reward"] is None
