"""Rollouts of each kind against a real endpoint: by a client, and by ``eval``.

Rewards are worked out again from what the endpoint said.
"""

import inspect
import itertools
import json
import random
import re
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.cli.commands import run as run_command
from tests.endpoint import Endpoint, Reply, prompt_tokens, serve
from tests.envs.test_classes import PNG, IncrementEnv, Picture
from trio_envserve import open_client, open_server
from trio_envserve.json_values import restored

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


@asynccontextmanager
async def by_client(environment, inputs, said, args=None, columns=(), **sampling):
    async with serve(said.endpoint) as url:
        async with open_server(environment, args=args or {}, workers=0) as server:
            async with open_client(server.address) as client:
                async with client.run_many(
                    inputs, in_flight=20, model=url, model_name="m",
                    state_columns=list(columns), sampling_args=sampling,
                ) as outcomes:  # fmt: skip
                    found = [outcome.value async for _, outcome in outcomes]
                yield found


@asynccontextmanager
async def by_eval(folder, environment, inputs, said, args=None, columns=(), **sampling):
    if inspect.isclass(environment):
        # As its author has it: in a file of its own.
        source = inspect.getsource(environment).replace("Picture()", repr(PNG))
        (folder / "mine.py").write_text(f"import random\n\n\n{source}")
        environment = f"class:mine.py:{environment.__name__}"
    (folder / "inputs.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in inputs))
    named = [("--arg", args or {}), ("--sampling", sampling)]
    given = [w for o, of in named for n, v in of.items() for w in (o, f"{n}={json.dumps(v)}")]
    given += [word for column in columns for word in ("--state-column", column)]
    async with serve(said.endpoint) as url:
        done = await run_command(
            folder, "eval", environment, "--inputs", "inputs.jsonl", "--in-flight", "20",
            "--model", url, "--model-name", "m", "--output", "r.jsonl", "--json", *given,
        )  # fmt: skip
    assert done.code == 0, done.err
    records = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]
    (folder / "r.jsonl").unlink()
    assert sorted(record["index"] for record in records) == list(range(len(inputs)))
    for record in records:
        assert record["input"] == inputs[record["index"]]
        assert record["reward"] == record["value"].get("reward")
    yield [restored(record["value"]) for record in records]


@pytest.fixture(params=["client", pytest.param("eval", marks=pytest.mark.real)])
def results_of(request, tmp_path):
    """By a client, whose answers come whole; or by ``eval``, whose answers are streamed."""
    if request.param == "client":
        return by_client
    return partial(by_eval, tmp_path, stream=True)


async def test_trls_example(results_of):
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
    async with results_of(IncrementEnv, [{}] * ROLLOUTS, said) as results:
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


async def test_the_tokens_of_a_class_and_the_images_of_its_tool_go_where_they_belong(results_of):
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
    async with results_of(Camera, [{}], said, **wanted) as (result,):
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
