"""Rollouts that are late: what they are told, and what becomes of what they return."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.envs import scripted
from tests.envs.scripted import Scripted, calls
from trio_envserve import EnvironmentUnavailable, foreign
from trio_envserve.envs.late import Late
from trio_envserve.models.interface import Completion
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.runners import ExecutionContext


def late_in(late_s: float) -> Late:
    """On the clock of this trio loop."""
    return Late(trio.current_time() + late_s, trio.lowlevel.current_clock().current_time)


@asynccontextmanager
async def running(environment: Any, model: Any):
    """A function that runs one input, late after so many seconds."""
    async with scripted.running(environment, model) as asked:

        async def run(late: float | Late, given: Any = None, **more: Any) -> Any:
            moment = late if isinstance(late, Late) else late_in(late)
            return await asked(given, context=ExecutionContext(late=moment), **more)

        yield run


class Slow(Scripted):
    """Takes a second for each answer."""

    async def complete(self, messages: Any, **how: Any) -> Completion:
        await trio.sleep(1.0)
        return await super().complete(messages, **how)


class Never(Scripted):
    """Says when an answer after its script is asked for and when that has ended, and gives none."""

    def __init__(self, script: list[Any]) -> None:
        super().__init__(script)
        self.begun, self.ended = trio.Event(), trio.Event()

    async def complete(self, messages: Any, **how: Any) -> Completion:
        if len(self.asked) < len(self.script):
            return await super().complete(messages, **how)
        self.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            self.ended.set()
        raise AssertionError


# -- what a rollout is told -------------------------------------------------------------


async def test_rollout_is_late_at_its_moment_and_not_before(autojump_clock):
    late = late_in(5.0)
    await trio.sleep(4.999)
    assert not late.is_set()
    assert late.left_s() == pytest.approx(0.001)
    await late.wait()
    assert (late.is_set(), late.left_s()) == (True, 0.0)
    assert trio.current_time() == pytest.approx(5.0)
    await late.wait()


async def test_wait_that_has_no_end_can_be_cancelled(autojump_clock):
    with trio.move_on_after(1000) as scope:
        await Late().wait()
    assert scope.cancelled_caught


def test_wait_on_asyncio_ends_when_it_is_late_and_can_be_cancelled():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        late = Late(loop.time() + 0.05, loop.time)
        await asyncio.wait_for(late.wait(), 60)
        assert late.is_set()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Late().wait(), 0.01)

    asyncio.run(main())


# -- functions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "stop"),
    [({}, "deadline"), ({"stop": "mine"}, "mine"), ({"stop": None}, None)],
)
async def test_result_of_a_late_rollout_says_so_unless_its_code_says_another_stop(
    returned: dict[str, Any], stop: str, autojump_clock
):
    async def play(rollout: Any) -> Any:
        await rollout.late.wait()
        answer = await rollout.ask([{"role": "user", "content": "and?"}])  # it may go on asking
        return {**returned, "reward": 1.0, "answer": answer.text}

    async with running(play, Slow(["yes"])) as run:
        result = await run(5.0)
    assert (result["stop"], result["reward"], result["answer"]) == (stop, 1.0, "yes")
    assert result["usage"]["calls"] == 1


@pytest.mark.parametrize("returned", [{"reward": 1.0}, "text", ["a"], None])
async def test_what_is_returned_in_time_or_is_no_dict_is_as_it_was(returned: Any, autojump_clock):
    async def play(rollout: Any) -> Any:
        await trio.sleep(rollout.input)
        return returned

    async with running(play, Slow(["yes"])) as run:
        assert await run(5.0, 4.0) == returned
        late = await run(5.0, 6.0)
    assert late == ({**returned, "stop": "deadline"} if type(returned) is dict else returned)


async def test_late_attempt_that_fails_is_not_repeated(autojump_clock):
    attempts = []

    async def play(rollout: Any) -> Any:
        attempts.append(rollout.attempt)
        await trio.sleep(2.0)
        raise EnvironmentUnavailable("the service")

    async with running(play, Slow(["yes"])) as run:
        with pytest.raises(EnvironmentFailure) as caught:
            await run(3.0, max_retries=5)
    assert attempts == [1, 2]
    assert caught.value.attempts == 2


class InGroups:
    """A group that waits until it is late, in some members."""

    async def run_rollout(self, rollout: Any) -> Any:
        await trio.sleep(rollout.input)
        return {"reward": 1.0, "was_late": rollout.late.is_set()}


class AsOne(InGroups):
    async def run_group(self, rollouts: Any) -> Any:
        return [await self.run_rollout(each) for each in rollouts]


@pytest.mark.parametrize(
    ("environment", "stops"),
    [(InGroups, [None, "deadline"]), (AsOne, ["deadline", "deadline"])],
)
async def test_members_of_a_group_are_late_together(
    environment: Any, stops: list[Any], autojump_clock
):
    async with running(environment(), Slow(["yes"])) as run:
        members = await run(5.0, [1.0, 6.0], kind="group")
    assert [member["value"].get("stop") for member in members] == stops
    assert [member["value"]["was_late"] for member in members] == [False, True]


# -- classes ----------------------------------------------------------------------------


class Stepper:
    """Counts its steps; a step may take long, on the loop or in a thread."""

    backend = "trio"
    now_s = 0.0

    def reset(self) -> str:
        self.seen: list[Any] = []
        return "Go."

    async def step(self, n: int) -> str:
        """Take a step.

        Args:
            n: Its number.
        """
        self.seen.append(n)
        Stepper.now_s = SOON_S
        if n == 3:
            Stepper.now_s = LATE_S
            await (trio if self.backend == "trio" else asyncio).sleep(1000)
        return f"step {n} done"

    def get_reward(self) -> float:
        return float(len(self.seen))


class OnAsyncio(Stepper):
    backend = "asyncio"


LATE_S = 1000.0
SOON_S = LATE_S - 0.01


@pytest.fixture
def soon() -> Late:
    """A moment that is near once the first step was taken, and has come once the third one
    has."""
    Stepper.now_s = 0.0
    return Late(LATE_S, lambda: Stepper.now_s)


STEPS = [calls(("step", {"n": n})) for n in (1, 2, 4, 5)]


async def test_class_asks_no_more_when_it_is_late_and_gives_what_it_has(autojump_clock):
    model = Slow(STEPS)
    async with running(Stepper, model) as run:
        result = await run(2.5)
    assert trio.current_time() == pytest.approx(2.5)
    assert (result["stop"], result["reward"]) == ("deadline", 2.0)
    assert result["usage"]["calls"] == 2
    assert [message["role"] for message in result["completion"]] == ["assistant", "tool"] * 2
    assert len(model.asked) == 2


async def test_class_that_is_late_from_its_begin_has_no_reward(autojump_clock):
    async with running(Stepper, Slow(STEPS)) as run:
        result = await run(0.0)
        other = await run(0.5)
    for each in (result, other):
        assert (each["stop"], each["completion"]) == ("deadline", [])
        assert each["no_reward"].startswith("the rollout was not finished: the limit of its call")
        assert "reward" not in each


async def test_answer_that_came_before_the_moment_is_no_late_one(autojump_clock):
    """The reward took until after it."""

    class Judged(Stepper):
        async def get_reward(self) -> float:  # type: ignore[override]  # a coroutine may be one
            await trio.sleep(5.0)
            return 1.0

    async with running(Judged, Slow(["done"])) as run:
        result = await run(2.0)
    assert (result["stop"], result["reward"]) == ("answer", 1.0)


@pytest.mark.parametrize("environment", [Stepper, OnAsyncio])
async def test_tool_under_way_is_ended_and_those_after_it_are_not_called(
    environment: Any, soon: Late
):
    answer = calls(("step", {"n": 1}), ("step", {"n": 3}), ("step", {"n": 5}))
    async with running(environment, Scripted([answer])) as run:
        with trio.fail_after(60):
            result = await run(soon)
    said = [message["content"] for message in result["completion"][1:]]
    assert (result["stop"], result["reward"]) == ("deadline", 2.0)
    assert said[0] == "step 1 done"
    assert [json.loads(text)["error"] for text in said[1:]] == [
        "step was ended: the time of the rollout is over",
        "step was not called: the time of the rollout is over",
    ]


@pytest.mark.parametrize("environment", [Stepper, OnAsyncio])
async def test_model_call_under_way_is_ended_on_each_loop(environment: Any, soon: Late):
    model = Never([calls(("step", {"n": 1}))])
    async with running(environment, model) as run:
        with trio.fail_after(60):
            result = await run(soon)
            if model.begun.is_set():
                await model.ended.wait()
    assert (result["stop"], result["reward"]) == ("deadline", 1.0)
    assert result["usage"]["calls"] == 1


@pytest.mark.parametrize("environment", [Stepper, OnAsyncio])
async def test_cancelling_a_rollout_with_a_grace_reaches_its_model_call(environment: Any):
    model = Never([])
    async with running(environment, model) as run:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, 1000.0)
                await model.begun.wait()
                nursery.cancel_scope.cancel()
            await model.ended.wait()


async def test_error_of_the_model_is_the_one_that_it_was(autojump_clock):
    def fail(messages: Any) -> Any:
        raise EnvironmentUnavailable("the model")

    async with running(Stepper, Slow([fail])) as run:
        with pytest.raises(EnvironmentFailure) as caught:
            await run(60.0)
    assert foreign.is_exception(caught.value.exception, EnvironmentUnavailable)
