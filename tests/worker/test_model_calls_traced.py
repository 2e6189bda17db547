"""Spans of model calls and tools, in each backend."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.memory import pair
from tests.spans import Kept, about, id_of, kept, parent_of
from trio_envserve import Rollout, tracing
from trio_envserve.models.interface import AskingRollout, Completion
from trio_envserve.worker.carriers import TrioCarrier
from trio_envserve.worker.model_calls import AskedModel

__all__ = ["kept"]

QUESTION = [{"role": "user", "content": "a secret"}]


async def on_trio(rollout: Rollout) -> float:
    with rollout.span("think"):
        await rollout.ask(QUESTION, reference="!")
    await rollout.ask(QUESTION, reference="!")
    return 1.0


def in_a_thread(rollout: Rollout) -> float:
    with rollout.span("think"):
        rollout.ask_sync(QUESTION, reference="!")
    rollout.ask_sync(QUESTION, reference="!")
    return 1.0


class OnAsyncio:
    backend = "asyncio"

    async def run_rollout(self, rollout: Rollout) -> float:
        await asyncio.sleep(0)
        return await on_trio(rollout)


class Tools:
    """Its tool works with the place 1 only."""

    def reset(self) -> str:
        return "?"

    def oracle(self) -> Any:
        call = {"name": "tell_time", "arguments": {"place": 1}}
        return [[call], [{**call, "arguments": {"place": 2}}], "done"]

    def tell_time(self, place: int) -> str:
        """Tell the time.

        Args:
            place: Where.
        """
        if place != 1:
            raise ValueError("a secret")
        return "noon"


async def run(environment: Any, **options: Any) -> None:
    async with pair(environment) as (_, client):
        await client.run_rollout({}, **options)


@pytest.mark.parametrize("environment", [on_trio, in_a_thread, OnAsyncio()])
async def test_model_calls_are_below_the_block_in_which_they_are_made(kept: Kept, environment: Any):
    await run(environment, model_name="small")
    execution, think = kept.one("execution"), kept.one("think")
    first, second = kept.named("chat small")
    assert parent_of(think) == parent_of(second) == id_of(execution)
    assert parent_of(first) == id_of(think)
    assert first.kind.name == "CLIENT"
    assert about(first)["envserve.endpoint"] == "oracle"
    assert "secret" not in repr([about(span) for span in kept.all])


async def test_tools_are_below_the_execution_and_say_what_type_of_error_they_raised(kept: Kept):
    await run(Tools)
    good, bad = kept.named("execute_tool tell_time")
    assert parent_of(good) == parent_of(bad) == id_of(kept.one("execution"))
    assert "error.type" not in about(good)
    assert about(bad)["error.type"] == "ValueError"
    assert "secret" not in repr([about(span) for span in kept.all])


class Answers:
    """A model that reports as much as it is given here."""

    def __init__(self, completion: Completion) -> None:
        self.completion = completion

    async def complete(self, *_: Any, **__: Any) -> Completion:
        return self.completion

    async def aclose(self) -> None:
        raise AssertionError("the worker owns the model")


def model_of(completion: Completion, trace: tracing.Trace) -> AskedModel:
    asker = AskingRollout("r", "r", 0, 1, lambda text: None)
    return AskedModel(lambda: ("there", Answers(completion)), asker, trace, TrioCarrier())


SAMPLED = f"00-{'a' * 32}-{'b' * 16}-01"
FULL = Completion(
    "a secret", prompt_tokens=5, completion_tokens=0, finish_reason="stop", requests=2
)


USAGE = {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 0}
END = {"envserve.finish_reason": "stop", "envserve.model_requests": 2}


@pytest.mark.parametrize(
    ("completion", "told"),
    [(FULL, USAGE | END), (Completion("a secret"), {"envserve.model_requests": 1})],
    ids=["everything", "nothing"],
)
async def test_a_span_says_what_the_model_reports_and_nothing_else(
    kept: Kept, completion: Completion, told: dict[str, Any]
):
    model = model_of(completion, tracing.Trace(SAMPLED))
    assert await model.complete(QUESTION, name="", sampling_args={}) is completion
    await model.aclose()
    asked = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "",
        "envserve.endpoint": "there",
    }
    assert about(kept.one("chat there")) == asked | told


async def test_a_call_of_which_no_trace_is_kept_is_answered_all_the_same(kept: Kept):
    model = model_of(FULL, tracing.NO_TRACE)
    assert await model.complete(QUESTION, name="", sampling_args={}) is FULL
    assert kept.all == []
