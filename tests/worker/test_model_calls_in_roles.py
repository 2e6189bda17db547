"""Rollouts that ask further models in roles, on every backend, over real HTTP."""

import threading
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.cli.commands import until
from tests.endpoint import Endpoint, Reply, Status, serve
from tests.worker.helpers import opened, request
from trio_envserve import ConfigError
from trio_envserve.envs import load
from trio_envserve.models import ModelError
from trio_envserve.models.interface import ContextFull
from trio_envserve.worker.failures import EnvironmentFailure, code_of
from trio_envserve.worker.runners import ExecutionContext

ESSAY = [{"role": "user", "content": "Write."}]
JUDGE = [{"role": "user", "content": "How good is it?"}]
POLICY = {"return_token_ids": True, "logprobs": True, "temperature": 1.5}


class Judged:
    """An essay, with a judge for its reward."""

    async def run_rollout(self, rollout):
        essay = await rollout.ask(ESSAY)
        mark = await rollout.ask(JUDGE, reference="0.5", endpoint="judge")
        return {"reward": float(mark.text), "completion": [essay.message]}


class JudgedOnAsyncio(Judged):
    backend = "asyncio"


class JudgedInThreads:
    def run_rollout(self, rollout):
        essay = rollout.ask_sync(ESSAY)
        mark = rollout.ask_sync(JUDGE, reference="0.5", endpoint="judge")
        return {"reward": float(mark.text), "completion": [essay.message]}


SHAPES = [Judged, JudgedOnAsyncio, JudgedInThreads]


class Essay:
    """A class whose plain methods ask the judge in their thread."""

    rollout: Any = None

    def reset(self):
        return "Write."

    def expert(self, question: str) -> str:
        """Ask an expert.

        Args:
            question: What to ask.
        """
        asked = [{"role": "user", "content": question}]
        return str(self.rollout.ask_sync(asked, reference="42", endpoint="expert").text)

    def get_reward(self):
        return float(self.rollout.ask_sync(JUDGE, reference="0.5", endpoint="judge").text)


class EssayOnTheLoop:
    """A class whose methods are all coroutines."""

    rollout: Any

    async def reset(self):
        return "Write."

    async def get_reward(self):
        mark = await self.rollout.ask(JUDGE, reference="0.5", endpoint="judge")
        return float(mark.text)


class EssayOfBoth(Essay):
    """A class with a plain tool and a coroutine that scores."""

    async def get_reward(self):
        mark = await self.rollout.ask(JUDGE, reference="0.5", endpoint="judge")
        return float(mark.text)


class EssayOnAsyncio(EssayOfBoth):
    backend = "asyncio"


class EssayInAsyncioThreads(Essay):
    backend = "asyncio"


class EssayInTheMainThread(EssayOnTheLoop):
    main_thread = True

    def __init__(self):
        self.begun = threading.current_thread() is threading.main_thread()


CLASSES = [Essay, EssayOnTheLoop, EssayOfBoth, EssayOnAsyncio, EssayInAsyncioThreads]


def with_tool(ask):
    tools = ask.body.get("tools")
    if tools and ask.turn == 0:
        return Reply(tools=[("expert", {"question": "six times seven"})])
    return Reply("An essay.")


@asynccontextmanager
async def judged(environment, judge, policy=with_tool):
    """A function that runs a rollout with these endpoints; the roles are the request's."""
    async with (
        serve(Endpoint(policy)) as url,
        serve(judge) as judge_url,
        opened(load(environment), threads=4) as runner,
    ):

        async def run(request_id="a", **more):
            fields = {"roles": {"judge": judge_url, "expert": judge_url}, **more}
            asked = request(endpoint=url, sampling_args=POLICY, **fields)
            return await runner.run(asked, request_id=request_id)

        vars(run).update(runner=runner, policy_url=url, judge_url=judge_url)
        yield run


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_judge_is_asked_and_its_tokens_are_not_the_policys(shape):
    judge = Endpoint(lambda ask: Reply("0.25"))
    async with judged(shape, judge) as run:
        value = await run()
        total = run.runner.usage.to_record()
    assert value["reward"] == 0.25
    assert value["prompt"] == ESSAY
    assert [each["content"] for each in value["completion"]] == ["An essay."]
    assert "answered_by" not in value
    usage = value["usage"]
    assert usage["calls"] == usage["roles"]["judge"]["calls"] == 1
    assert usage["completion_tokens"] != usage["roles"]["judge"]["completion_tokens"]
    assert total["calls"] == 2
    both = usage["completion_tokens"] + usage["roles"]["judge"]["completion_tokens"]
    assert total["completion_tokens"] == both
    (asked,) = judge.asks
    assert asked.body["messages"] == JUDGE
    assert not {"temperature", "return_token_ids", "logprobs", "tools"} & asked.body.keys()


@pytest.mark.parametrize("shape", CLASSES)
async def test_a_class_asks_a_judge_in_its_methods(shape):
    judge = Endpoint(lambda ask: Reply("0.25" if ask.messages == JUDGE else "42"))
    async with judged(shape, judge) as run:
        value = await run()
    expert = shape is not EssayOnTheLoop
    assert value["reward"] == 0.25
    assert value["usage"]["calls"] == 1 + expert
    assert {name: each["calls"] for name, each in value["usage"]["roles"].items()} == {
        "judge": 1, **({"expert": 1} if expert else {}),
    }  # fmt: skip
    assert ("42" in str(value["completion"])) == expert
    (segment,) = value["segments"]
    assert segment.turns == (0, 1 + expert)
    assert sum(segment.response_mask) == value["usage"]["completion_tokens"]


async def test_a_class_in_the_main_thread_awaits_its_judge():
    judge = Endpoint(lambda ask: Reply("0.25"))
    async with judged(EssayInTheMainThread, judge, lambda ask: Reply("An essay.")) as run:
        assert (await run())["reward"] == 0.25


class BlockingInTheMainThread(Essay):
    main_thread = True


class BlockingOnAsyncio(JudgedOnAsyncio):
    async def run_rollout(self, rollout):
        return rollout.ask_sync(JUDGE, endpoint="judge")


@pytest.mark.parametrize("shape", [BlockingInTheMainThread, BlockingOnAsyncio])
async def test_what_runs_on_a_loop_cannot_block_on_a_judge(shape):
    async with opened(load(shape), threads=2) as runner:
        with pytest.raises(EnvironmentFailure, match="make it async def, and await the call"):
            asked = request(endpoint="random", roles={"judge": "oracle"})
            await runner.run(asked, request_id="a")


class Attributed(Essay):
    rollout = "mine"

    def get_reward(self):
        return float(self.rollout == "mine")


async def test_an_attribute_of_another_kind_stays_the_classs_own():
    async with judged(Attributed, Endpoint(lambda ask: Reply("1"))) as run:
        assert (await run())["reward"] == 1.0


@pytest.mark.parametrize("shape", [*SHAPES, *CLASSES])
async def test_a_judge_that_failed_gave_a_reward_of_zero(shape):
    judge = Endpoint(
        lambda ask: Status(500, b'{"message": "no memory"}') if ask.messages == JUDGE else Reply("")
    )
    async with judged(shape, judge) as run:
        with pytest.raises(EnvironmentFailure) as caught:
            await run()
        usage = run.runner.usage
        assert usage.failed == 1
    assert code_of(caught.value) == "model-unavailable"
    assert str(caught.value).startswith("rollout failed: trio_envserve.models.interface.ModelError")
    assert "the judge (endpoint 'http://" in str(caught.value)
    assert "answered 500: no memory" in str(caught.value)


@pytest.mark.parametrize("shape", [Essay, EssayOfBoth, EssayOnAsyncio])
async def test_a_tool_told_the_policy_that_its_expert_failed(shape):
    full = b'{"error": {"message": "maximum context length", "code": 400}}'
    answers = [Status(403), Status(400, full)]
    while answers:
        judge = Endpoint(lambda ask: answers[-1])
        async with judged(shape, judge) as run:
            with pytest.raises(EnvironmentFailure, match="the expert") as caught:
                await run()
        assert code_of(caught.value) == "model-unavailable"
        assert len(judge.asks) == 1
        answers.pop()


@pytest.mark.parametrize("shape", [Judged, Essay])
async def test_a_full_judge_was_put_down_to_the_policy(shape):
    full = Status(400, b'{"error": {"message": "maximum context length", "code": 400}}')
    async with judged(shape, Endpoint(lambda ask: full), lambda ask: Reply("An essay.")) as run:
        with pytest.raises(EnvironmentFailure) as caught:
            await run()
    assert code_of(caught.value) == "model-unavailable"
    assert isinstance(caught.value.exception.__cause__, ContextFull)


async def test_an_environment_may_catch_its_judges_failure():
    class Careful:
        async def run_rollout(self, rollout):
            try:
                await rollout.ask(JUDGE, endpoint="judge")
            except ModelError as error:
                return {"no_reward": str(error), "status": error.status}

    async with judged(Careful, Endpoint(lambda ask: Status(403))) as run:
        value = await run()
    assert value["status"] == 403
    assert value["usage"]["roles"]["judge"]["failed"] == 1
    assert value["usage"]["failed"] == 0
    assert "prompt" not in value


@pytest.mark.parametrize("shape", [*SHAPES, Essay, EssayOnAsyncio, EssayInAsyncioThreads])
async def test_a_cancelled_rollout_leaves_its_judge(shape):
    judge = Endpoint(lambda ask: Reply(hold=True))
    async with judged(shape, judge, lambda ask: Reply("An essay.")) as run:
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(run, str(number))
            await until(lambda: judge.waiting == 4)
            nursery.cancel_scope.cancel()
        await until(lambda: not judge.waiting)
    assert all(seen.closed for seen in judge.asks)


async def test_a_judge_that_was_asked_after_the_end_is_refused():
    kept: list[Any] = []
    ended: list[BaseException] = []

    class Keeps(Essay):
        def get_reward(self):
            kept.append(self.rollout)
            return 1.0

    def later():
        try:
            kept[0].ask_sync(JUDGE, endpoint="judge")
        except BaseException as error:
            ended.append(error)

    judge = Endpoint(lambda ask: Reply("1"))
    async with judged(Keeps, judge, lambda ask: Reply("An essay.")) as run:
        await run()
        thread = threading.Thread(target=later)
        thread.start()
        await until(lambda: ended)
        thread.join()
    assert type(ended[0]).__name__ == "RolloutCancelled"
    assert not judge.asks


@pytest.mark.parametrize("shape", SHAPES)
async def test_members_of_a_group_each_ask_the_judge(shape):
    judge = Endpoint(lambda ask: Reply("0.25") if ask.number else Status(500))
    async with judged(shape, judge) as run:
        asked = request(
            [None] * 3, "group", endpoint=run.policy_url, roles={"judge": run.judge_url}
        )
        records = await run.runner.run(asked, request_id="g")
    assert sorted(record["ok"] for record in records) == [False, True, True]
    assert [r["value"]["reward"] for r in records if r["ok"]] == [0.25, 0.25]
    (failed,) = [record["error"] for record in records if not record["ok"]]
    assert failed["code"] == "model-unavailable"


async def test_a_group_asks_a_judge_for_all():
    class Ranked(Judged):
        async def run_group(self, rollouts):
            marks = [await each.ask(JUDGE, endpoint="judge") for each in rollouts]
            return [{"reward": float(mark.text)} for mark in marks]

    judge = Endpoint(lambda ask: Reply(str(ask.number)))
    async with judged(Ranked, judge) as run:
        asked = request([None] * 2, "group", roles={"judge": run.judge_url})
        records = await run.runner.run(asked, request_id="g")
    assert [record["value"]["reward"] for record in records] == [0.0, 1.0]
    assert all(record["value"]["usage"]["roles"]["judge"]["calls"] == 1 for record in records)


async def test_a_judge_that_serves_one_at_a_time_serves_all(tmp_path, monkeypatch):
    most = 0

    def answer(ask):
        nonlocal most
        most = max(most, judge.waiting)
        return Reply("0.5")

    judge = Endpoint(answer)
    async with serve(judge) as url:
        file = tmp_path / "endpoints.toml"
        file.write_text(f'[judge]\nurl = "{url}"\nconcurrency = 1\n')
        monkeypatch.setenv("TRIO_ENVSERVE_ENDPOINTS", str(file))
        async with opened(load(JudgedInThreads()), threads=8) as runner:
            values = []

            async def run(number):
                asked = request(endpoint=url if number % 2 else "judge")
                values.append(await runner.run(asked, request_id=str(number)))

            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(run, number)
    assert [value["reward"] for value in values] == [0.5] * 8


# -- which endpoint ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [*SHAPES, Essay])
async def test_an_offline_model_judges(shape):
    async with opened(load(shape), threads=2) as runner:
        asked = request(endpoint="random", roles={"judge": "oracle"})
        assert (await runner.run(asked, request_id="a"))["reward"] == 0.5


async def test_a_role_has_the_endpoint_of_its_name_in_the_file(tmp_path, monkeypatch):
    judge = Endpoint(lambda ask: Reply("0.75"))
    async with serve(judge) as url:
        file = tmp_path / "endpoints.toml"
        file.write_text(f'[judge]\nurl = "{url}"\nmodel = "big"\nbody = {{temperature = 0}}\n')
        monkeypatch.setenv("TRIO_ENVSERVE_ENDPOINTS", str(file))
        async with opened(load(Judged), threads=2) as runner:
            value = await runner.run(request(endpoint="random"), request_id="a")
            other = await runner.run(
                request(endpoint="random", roles={"judge": "oracle"}), request_id="b"
            )
    assert (value["reward"], other["reward"]) == (0.75, 0.5)
    assert (judge.asks[0].body["model"], judge.asks[0].body["temperature"]) == ("big", 0)


@pytest.mark.parametrize("shape", [*SHAPES, Essay])
async def test_a_role_without_an_endpoint_says_what_to_write(shape, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened(load(shape), threads=2) as runner:
        asked = request(endpoint="random", roles={"jugde": "oracle"})
        with pytest.raises(EnvironmentFailure) as caught:
            await runner.run(asked, request_id="a")
    assert type(caught.value.exception) is ConfigError
    text = str(caught.value)
    assert "no model has the role 'judge'; did you mean 'jugde'? (known: jugde)" in text
    assert "--role judge=NAME_OR_URL" in text
    assert "write [judge] into endpoints.toml" in text


class Declared(JudgedOnAsyncio):
    name = "declared"
    model_roles = ("judge",)


class DeclaredClass(Essay):
    name = "declared"
    model_roles = ["judge", "expert"]  # noqa: RUF012  # as users write it


@pytest.mark.parametrize("shape", [Declared, DeclaredClass])
async def test_a_declared_role_without_a_model_is_found_before_anything_runs(
    shape, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    both = {"judge": "oracle", **({"expert": "oracle"} if shape is DeclaredClass else {})}
    async with opened(load(shape), threads=2) as runner:
        with pytest.raises(ConfigError, match="no model has the role 'judge'"):
            await runner.run(request(), request_id="a")
        with pytest.raises(ConfigError, match=r"declared asks no .* 'jugde'; did you mean 'judge'"):
            await runner.run(request(roles={"jugde": "oracle"}), request_id="a")
        value = await runner.run(request(endpoint="random", roles=both), request_id="a")
    assert value["reward"] == 0.5


@pytest.mark.parametrize("roles", ["judge", [""], [1], {"judge": "oracle"}])
def test_roles_that_are_no_list_are_refused(roles):
    with pytest.raises(ConfigError, match="a list of texts such as"):
        load(type("Wrong", (Judged,), {"model_roles": roles}))


def test_a_tool_may_be_called_so():
    class Tools(Essay):
        def model_roles(self) -> str:
            """The roles in the play."""
            return "none"

    assert load(Tools).model_roles == ()


async def test_a_built_in_model_has_no_role_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def asks_the_oracle(rollout):
        return await rollout.ask(JUDGE, reference="mine", endpoint="oracle")

    async with opened(load(asks_the_oracle), threads=2) as runner:
        with pytest.raises(EnvironmentFailure, match="no model has the role 'oracle'"):
            await runner.run(request(), request_id="a")


async def test_an_unknown_endpoint_of_a_role_is_found_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened(load(Judged), threads=2) as runner:
        asked = request(roles={"judge": "bgi"})
        with pytest.raises(ConfigError, match="the role 'judge': unknown model endpoint 'bgi'"):
            await runner.run(asked, request_id="a")


@pytest.mark.parametrize("role", ["Ärger mit Leerzeichen", "a=b", "roles", "policy", "j\n\x1b[2J"])
async def test_any_text_names_a_role(role, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def asks(rollout):
        return {"reward": (await rollout.ask(JUDGE, reference="1", endpoint=role)).text}

    async with opened(load(asks), threads=2) as runner:
        value = await runner.run(request(roles={role: "oracle"}), request_id="a")
        assert list(value["usage"]["roles"]) == [role]
        with pytest.raises(EnvironmentFailure) as caught:
            await runner.run(request(), request_id="a")
    assert f"no model has the role {role!r}" in str(caught.value)


@pytest.mark.parametrize("role", ["", 7, ["judge"]])
async def test_what_is_no_role_is_said(role):
    async def asks(rollout):
        return await rollout.ask(JUDGE, endpoint=role)

    async with opened(load(asks), threads=2) as runner:
        with pytest.raises(EnvironmentFailure, match='endpoint is a role, such as "judge"'):
            await runner.run(request(), request_id="a")


async def test_a_rollout_says_that_it_waits_for_its_judge():
    notes: list[bytes] = []
    judge = Endpoint(lambda ask: Reply(hold=True))
    async with judged(Judged, judge) as run:
        asked = request(endpoint=run.policy_url, roles={"judge": run.judge_url})
        async with trio.open_nursery() as nursery:
            ask = run.runner.run
            noted = ExecutionContext(noted=notes.append)
            nursery.start_soon(lambda: ask(asked, request_id="a", context=noted))
            await until(lambda: judge.waiting)
            while not any(b"for the judge, " in note for note in notes):
                run.runner.tell_waits()
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
