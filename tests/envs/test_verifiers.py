"""The adapter for verifiers 0.4, under an interpreter of its own.

TRIO_ENVSERVE_VERIFIERS_PYTHON is the path of one that has verifiers 0.4, uv and this
package (``nox -s verifiers`` makes one).  Without it only what needs no library runs.
"""

import os
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from tests.endpoint import Endpoint, Reply, serve
from trio_envserve import RolloutFailed, open_client, open_server
from trio_envserve.core.errors import ConfigError
from trio_envserve.envs import load, verifiers

PYTHON = os.environ.get("TRIO_ENVSERVE_VERIFIERS_PYTHON", "")

TASKSET = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.5)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        if "fail" in trace.last_reply:
            raise ValueError("the judge is not there")
        return float(len(trace.last_reply) < 3)


class SumConfig(vf.TasksetConfig):
    size: int = 20


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for i in range(self.config.size):
            data = SumData(prompt=f"What is {i} + {i}?", answer=str(2 * i))
            yield SumTask(data, self.config.task)


__all__ = ["SumTaskset"]
"""


def test_another_version_is_refused(monkeypatch):
    class Verifiers:
        __version__ = "0.3.0"

    monkeypatch.setitem(sys.modules, "verifiers", Verifiers)
    with pytest.raises(ConfigError, match=r"is for verifiers 0\.4, and 0\.3\.0 is installed"):
        load("verifiers:sums")


class Message:
    def __init__(self, text):
        self.text = text

    def model_dump(self, **options):
        return {"role": "assistant", "content": self.text}


def trace(number, reward):
    """What is read of a trace of the library."""
    rewards = {} if reward is None else {"right": SimpleNamespace(value=reward), "other": None}
    said = [SimpleNamespace(sampled=sampled, message=Message(str(number))) for sampled in (0, 1)]
    return SimpleNamespace(
        id=number, rewards=rewards, reward=reward, metrics={"turns": number, "none": None},
        nodes=said,
    )  # fmt: skip


def test_reward_of_each_of_several_traces_stays_with_its_completion():
    """The reward was their mean, and the completion that of the last one."""
    result = verifiers._result([trace(1, 1.0), trace(2, 0.0), trace(3, None)])
    assert "reward" not in result
    assert "completion" not in result
    assert result["no_reward"].startswith("the episode has 3 traces, each with a reward of its own")
    said = [each["completion"] for each in result["traces"]]
    assert said == [[{"role": "assistant", "content": str(number)}] for number in (1, 2, 3)]
    assert [each.get("reward") for each in result["traces"]] == [1.0, 0.0, None]
    assert [each["id"] for each in result["traces"]] == ["1", "2", "3"]


def test_one_trace_is_the_result():
    assert verifiers._result([trace(1, 0.5)]) == {
        "reward": 0.5, "rewards": {"right": 0.5}, "metrics": {"turns": 1.0},
        "completion": [{"role": "assistant", "content": "1"}],
    }  # fmt: skip
    assert verifiers._result([trace(1, None)])["no_reward"] == "the library has scored nothing"
    assert verifiers._result([])["no_reward"] == "the episode has no trace"


@pytest.fixture
def taskset(tmp_path, monkeypatch):
    if not PYTHON:
        pytest.skip("TRIO_ENVSERVE_VERIFIERS_PYTHON is not set")
    (tmp_path / "envserve_sums.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(PYTHON).parent}:{os.environ['PATH']}")


def said(question, number):
    answer = 2 * int(re.findall(r"\d+", question)[0])
    return ["fail" if number is None else str(answer), "I don't know", "-1"][(number or 0) % 3]


@asynccontextmanager
async def asking(endpoint, **args):
    """A function that runs an episode on a worker of the library's interpreter."""
    with trio.fail_after(240):
        async with (
            serve(endpoint) as url,
            open_server(
                "verifiers:envserve_sums", args=args, workers=1, worker_python=PYTHON
            ) as server,
            open_client(server.address) as client,
        ):

            async def run(given, *columns, model=url):
                return await client.run_rollout(
                    given, model=model, model_name="m", state_columns=columns,
                    sampling_args={"temperature": 0.5},
                )  # fmt: skip

            yield run


@pytest.mark.real
@pytest.mark.slow
async def test_episodes_are_rewarded_as_the_library_does(taskset):
    def answer(ask):
        question = ask.messages[-1]["content"]
        number = int(re.findall(r"\d+", question)[0])
        return Reply("I fail" if number == 4 else said(question, number))

    endpoint = Endpoint(answer)
    async with asking(endpoint) as run:
        for i, reward in [(0, 0.75), (1, 0.0), (2, 0.25), (3, 0.75)]:
            result = await run({"index": i}, "deltas", "episode")
            assert result["reward"] == reward
            assert sum(result["rewards"].values()) == reward
            (message,) = result["completion"]
            assert message["content"] == said(f"{i}", i)
            assert len(result["state"]["deltas"]) > 1
            assert result["state"]["episode"]["ok"]
        own = {"task": {"prompt": "What is 6 + 6?", "answer": "12"}}
        assert (await run(own))["reward"] == 0.75
        with pytest.raises(RolloutFailed, match="the judge is not there"):
            await run({"index": 4})
        with pytest.raises(RolloutFailed, match=r"is not within 0\.\.19"):
            await run({"index": 20})
        with pytest.raises(RolloutFailed, match="takes an endpoint over HTTP"):
            await run({"index": 0}, model="oracle")
    assert len(endpoint.asks) == 6
    assert endpoint.asks[0].body["temperature"] == 0.5


@pytest.mark.real
@pytest.mark.slow
async def test_a_cancelled_episode_closes_its_request(taskset):
    endpoint = Endpoint(lambda ask: Reply(hold=True))
    async with asking(endpoint) as run:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, {"index": 0})
            while not endpoint.waiting:
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        while not endpoint.asks[0].closed:
            await trio.sleep(0.05)


@pytest.mark.real
@pytest.mark.slow
async def test_a_harness_with_tools_runs_them(taskset):
    """The model asks for a shell command, and answers what that has printed."""

    def answer(ask):
        if ask.turn == 0:
            return Reply(tools=[("bash", {"command": "echo $((3 + 3))"})])
        printed = ask.messages[-1]
        assert printed["role"] == "tool"
        return Reply(re.findall(r"\d+", str(printed["content"]))[0])

    endpoint = Endpoint(answer)
    async with asking(endpoint, harness="bash") as run:
        result = await run({"index": 3}, "deltas")
    assert result["reward"] == 0.75
    roles = [message["role"] for message in result["completion"]]
    assert roles == ["assistant", "tool", "assistant"]
    # It asks what models there are, too.
    assert [ask.turn for ask in endpoint.asks if "messages" in ask.body] == [0, 1]
