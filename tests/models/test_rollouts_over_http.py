"""Rollouts of every backend that ask a model over HTTP."""

import json
import re
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from tests.cli.commands import run as run_command
from tests.endpoint import Cut, Endpoint, Reply, Status, serve
from tests.envs.scripted import running
from tests.models.helpers import HANG_S
from trio_envserve import open_client, open_server
from trio_envserve.cli.evaluate import _waits
from trio_envserve.cli.render import tables_text
from trio_envserve.cli.status import oldest, slow_table, status_tables
from trio_envserve.core.errors import ConfigError
from trio_envserve.envs import RolloutRequest, load
from trio_envserve.models import ContextFull, open_models
from trio_envserve.models.endpoints import Endpoint as EndpointRecord
from trio_envserve.models.http import HttpModel, _Wait
from trio_envserve.models.interface import AskingRollout
from trio_envserve.models.tokens import token_records
from trio_envserve.net import MemoryNetwork
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.runners import open_runner

TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


class Looks:
    """Answers tool calls until the model makes none."""

    async def run_rollout(self, rollout):
        messages = [{"role": "user", "content": str(rollout.input)}]
        answers = [await rollout.ask(messages, tools=[TOOL])]
        while answers[-1].tool_calls:
            messages.append(answers[-1].message)
            for call in answers[-1].tool_calls:
                seen = str(call.parsed()["at"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
            answers.append(await rollout.ask(messages, tools=[TOOL]))
        reward = float(answers[-1].text)
        return {
            "reward": reward, "turns": len(answers), "usage": rollout.usage.to_record(),
            "tokens": token_records(answers, reward),
        }  # fmt: skip


def three_turns(ask):
    if ask.turn < 2:
        return Reply(tools=[("look", {"at": ask.turn})])
    seen = [message["content"] for message in ask.messages if message["role"] == "tool"]
    return Reply(f"{len(seen)}.{''.join(seen)}")


class Stepper:
    """Calls its one tool until the model is done."""

    def reset(self):
        self.seen = []
        return "Go."

    def step(self, n: int) -> str:
        """Take a step.

        Args:
            n: Its number.
        """
        self.seen.append(n)
        return f"step {n} done"

    def get_reward(self):
        return float(len(self.seen))


@asynccontextmanager
async def asking(environment, endpoint):
    """A function that runs a rollout of an environment that asks this endpoint."""
    with trio.fail_after(HANG_S):
        async with serve(endpoint) as url, running(environment) as asked:

            async def run(**sampling):
                args = {"return_token_ids": True, "logprobs": True, **sampling}
                return await asked("go", endpoint=url, sampling_args=args)

            yield run


def steps(ask, **more):
    if ask.turn < 3:
        return Reply(tools=[("step", {"n": ask.turn})], **more)
    return Reply("Done.", **more)


FULL = Status(400, b'{"error": {"message": "maximum context length", "code": 400}}')


async def test_a_full_context_ended_the_rollout_as_a_failure_and_lost_its_turns():
    async with asking(Stepper, Endpoint(lambda ask: FULL if ask.turn == 2 else steps(ask))) as run:
        value = await run()
    assert (value["stop"], value["reward"]) == ("context", 2.0)
    (segment,) = value["segments"]
    assert segment.turns == (0, 2)
    assert value["usage"]["calls"] == 2


async def test_an_input_that_does_not_fit_is_no_answer_of_the_models():
    async with asking(Stepper, Endpoint(lambda ask: FULL)) as run:
        with pytest.raises(EnvironmentFailure) as caught:
            await run()
    assert type(caught.value.exception) is ContextFull


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_between_tool_calls_were_dropped_and_made_segments(stream):
    endpoint = Endpoint(lambda ask: steps(ask, reasoning=f"I think {ask.turn}."))
    async with asking(Stepper, endpoint) as run:
        value = await run(stream=stream)
    assert len(value["segments"]) == 1
    said = [each for each in endpoint.asks[-1].messages if each["role"] == "assistant"]
    assert [each["reasoning_content"] for each in said] == [f"I think {n}." for n in range(3)]
    assert "I think 3." in str(value["completion"])


async def test_a_rollout_of_several_turns_with_tools():
    endpoint = Endpoint(three_turns)
    async with asking(Looks(), endpoint) as run:
        value = await run()
    assert value["reward"] == 2.01
    assert value["turns"] == len(endpoint.asks) == 3
    assert value["usage"]["calls"] == 3
    assert value["usage"]["retries"] == value["usage"]["failed"] == 0
    assert value["usage"]["completion_tokens"] > 0
    (record,) = value["tokens"]
    assert record.turns == (0, 3)
    assert sum(record.response_mask) == value["usage"]["completion_tokens"]


@pytest.mark.slow
async def test_requests_that_the_endpoint_saw_are_turns_and_counted_retries():
    def answer(ask):
        number = ask.number % 10
        if number == 3:
            return Cut(three_turns(ask))
        return Status(429, headers={"retry-after": "0"}) if number == 7 else three_turns(ask)

    endpoint = Endpoint(answer)
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            serve(endpoint) as url,
            open_server(Looks(), workers=0, network=network, bind="memory:s") as server,
            open_client(server.address, network=network) as client,
        ):
            sampling_args = {"return_token_ids": True, "logprobs": True}
            async with client.run_many(
                range(500), model=url, model_name="m", sampling_args=sampling_args
            ) as outcomes:
                results = [outcome.value async for _, outcome in outcomes]
            stats = await client.stats()
            while stats.model_usage["calls"] < 1500:
                await trio.sleep(0.01)  # a beat says them
                stats = await client.stats()
    assert [result["reward"] for result in results] == [2.01] * 500
    turns = sum(result["turns"] for result in results)
    retries = sum(result["usage"]["retries"] for result in results)
    assert turns == 1500
    assert turns + retries == len(endpoint.asks)
    shown = {row[0]: row[1] for row in status_tables(stats.to_record())[0].rows}
    assert shown["model calls"] == f"1,500 ({retries} sent again)"
    written = sum(result["usage"]["completion_tokens"] for result in results)
    assert shown["tokens"].endswith(f" read, {written:,} written")
    assert shown["mean model call"].endswith(" s")
    (tokens,) = results[0]["tokens"]
    assert tokens["response_ids"].dtype == "int32"


@pytest.mark.real
async def test_eval_asks_a_named_endpoint_and_writes_its_key_nowhere(tmp_path):
    key = "sk-very-secret"
    endpoint = Endpoint(lambda ask: Reply("1", delay_s=0.01))
    async with serve(endpoint) as url:
        file = tmp_path / "mine.toml"
        file.write_text(f'[mine]\nurl = "{url}"\nmodel = "m7"\nkey_env = "MY_KEY"\n')
        ran = await run_command(
            tmp_path, "eval", "arithmetic", "-n", "20", "--model", "mine", "--endpoints", str(file),
            "--output", "r.jsonl", "--log-level", "DEBUG", "--log-dir", "logs", "--json",
            MY_KEY=key,
        )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.last["results"] == 20
    assert len(endpoint.asks) == 40
    assert {ask.body["model"] for ask in endpoint.asks} == {"m7"}
    assert {ask.headers["authorization"] for ask in endpoint.asks} == {f"Bearer {key}"}
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 3
    for text in (ran.out, ran.err, *written):
        assert key not in text
    assert any("HTTP Request" in text for text in written)
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert all(json.loads(line)["error"] is None for line in lines)


@pytest.mark.real
@pytest.mark.parametrize(
    "shape", ["arithmetic", "tests.models.test_rollouts_over_http:AsksInThreads"]
)
async def test_where_a_rollout_stood_was_a_line_of_the_http_library(shape):
    wait = trio.Event()
    endpoint = Endpoint(lambda ask: Reply("1", until=wait))
    async with serve(endpoint) as url, open_server(shape, workers=1) as server:
        async with open_client(server.address) as client, trio.open_nursery() as nursery:
            call = partial(client.run_rollout, {"index": 0}, model=url, model_name="m")
            nursery.start_soon(call)
            with trio.fail_after(HANG_S):
                while "waits" not in repr(slow := await oldest(client, 1)):
                    await trio.sleep(0.05)
            (row,) = slow["running"]
            assert re.fullmatch(r"waits for the model, \d+\.\d s", row["line"])
            shown = tables_text([slow_table(slow)])
            assert row["line"] in shown
            assert "waits=" not in shown
            assert (await _waits(client)).startswith("for the model, ")
            wait.set()


# -- a limit over all workers ----------------------------------------------------------


class Asks:
    """Asks once."""

    async def run_rollout(self, rollout):
        return (await rollout.ask([{"role": "user", "content": "go"}])).text


class AsksInThreads:
    def run_rollout(self, rollout):
        return rollout.ask_sync([{"role": "user", "content": "go"}]).text


@asynccontextmanager
async def limited(environment, endpoint, most):
    """A runner whose endpoint has this ``concurrency_total``, and a function that asks it."""
    with trio.fail_after(HANG_S):
        async with serve(endpoint) as url:
            where = EndpointRecord(url=url, concurrency_total=most)
            async with (
                open_models({"mine": lambda _: HttpModel(where, "mine")}) as models,
                open_runner(load(environment), threads=16, models=models) as runner,
            ):

                async def ask(number, **more):
                    request = RolloutRequest(
                        kind="rollout", input="go", endpoint="mine", model_name="m"
                    )
                    return await runner.run(request, request_id=f"ab#{number}", **more)

                yield runner, ask


@pytest.mark.parametrize("environment", [Asks, AsksInThreads])
async def test_an_endpoint_has_no_more_requests_at_once_than_its_limit_over_all(environment):
    go, most = trio.Event(), 0

    def answer(ask):
        nonlocal most
        most = max(most, endpoint.waiting)
        return Reply("there", until=go)

    endpoint = Endpoint(answer)
    async with limited(environment(), endpoint, 2) as (runner, ask), trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(ask, number)
        while len(runner._permits._waiting) < 6:  # noqa: ASYNC110  # of other threads
            await trio.sleep(0.01)
        assert endpoint.waiting <= 2
        go.set()
    assert (len(endpoint.asks), most) == (8, 2)


async def test_between_two_requests_a_call_holds_no_permit():
    """Another call is answered while one pauses before it is sent again."""

    def answer(ask):
        if ask.number == 0:
            return Status(429, headers={"retry-after": "100"})
        return Reply("there")

    endpoint = Endpoint(answer)
    async with limited(Asks(), endpoint, 1) as (_, ask), trio.open_nursery() as nursery:
        nursery.start_soon(ask, 0)
        while not endpoint.asks:  # noqa: ASYNC110  # of another server
            await trio.sleep(0.01)
        assert await ask(1) == "there"
        assert len(endpoint.asks) == 2
        nursery.cancel_scope.cancel()


async def test_a_rollout_notes_that_it_waits_for_a_limit_over_all(autojump_clock):
    notes: list[Any] = []
    go = trio.Event()
    waits = HttpModel(EndpointRecord(url="http://127.0.0.1:9/v1", concurrency_total=1), "mine")

    @asynccontextmanager
    async def permit(name, most):
        notes.append((name, most))
        await go.wait()
        yield

    asker = AskingRollout("ab#0", "ab#0", 0, 1, notes.append, permit=permit)
    wait = _Wait(asker, trio.current_time())
    waits._waits[0] = wait
    async with trio.open_nursery() as nursery:

        async def ask():
            async with waits._permit(wait):
                waits.tell_waits()

        nursery.start_soon(ask)
        await trio.sleep(2.0)
        waits.tell_waits()
        wait.tell_at_s = 0.0
        go.set()
    assert notes == [
        ("mine", 1), "for concurrency_total of mine, 2.0 s", "for the model, 2.0 s",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a\nb", "", "x" * 129])
def test_an_endpoint_with_a_limit_over_all_has_a_name_that_can_be_shown(name):
    where = EndpointRecord(url="http://127.0.0.1:9/v1", concurrency_total=1)
    with pytest.raises(ConfigError, match="concurrency_total has a printable name"):
        HttpModel(where, name)
    HttpModel(EndpointRecord(url="http://127.0.0.1:9/v1"), name)
