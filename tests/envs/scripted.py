"""A model that says what the test has written down, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Unpack

import trio

from trio_envserve.envs import Rollout, RolloutRequest, load
from trio_envserve.models.interface import Asking, Completion, Messages, ToolCall
from trio_envserve.models.offline import OracleModel
from trio_envserve.models.registry import open_models
from trio_envserve.worker.runners import ExecutionContext, open_runner


class Scripted:
    """Answers with the items of ``script``, one for each turn of a conversation; each is a
    text, a completion, or a function that makes one of the messages."""

    def __init__(self, script: Iterable[Any]) -> None:
        self.script = list(script)
        self.asked: list[list[Mapping[str, Any]]] = []
        self.tools: list[Any] = []

    async def complete(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        await trio.lowlevel.checkpoint()
        self.asked.append([dict(message) for message in messages])
        self.tools.append(how["sampling_args"].get("tools"))
        turn = sum(message["role"] == "assistant" for message in messages)
        said = self.script[min(turn, len(self.script) - 1)]
        if isinstance(said, Callable):  # type: ignore[arg-type]  # it is callable, says Python
            said = said(messages)
        return said if isinstance(said, Completion) else Completion(said)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def a_rollout(**changes: Any) -> Rollout:
    """A rollout that asks the oracle."""
    fields: dict[str, Any] = {
        "input": None, "model": OracleModel(), "model_name": "m", "sampling_args": {},
        "state_columns": (), "attempt": 1, "request": "ab#0",
    }  # fmt: skip
    return Rollout(**{**fields, **changes})


def calls(*wanted: tuple[str, Any], text: str = "") -> Completion:
    """An answer that asks for tools; arguments that are text are sent as they are."""
    made = [
        ToolCall(f"call-{i}", name, args if isinstance(args, str) else json.dumps(args))
        for i, (name, args) in enumerate(wanted)
    ]
    return Completion(text, tool_calls=tuple(made), finish_reason="tool_calls")


@asynccontextmanager
async def running(environment: Any, model: Any = None, args: Any = None):
    """A function that runs one input; the model answers to the endpoint ``scripted``."""
    async with open_models({"scripted": lambda endpoint: model}) as models:
        async with open_runner(load(environment, args), threads=2, models=models) as runner:

            async def run(
                given: Any = None, *columns: str, endpoint: str = "scripted",
                request_id: str = "r", context: ExecutionContext | None = None, **more: Any,
            ) -> Any:  # fmt: skip
                asked: Any = {"kind": "rollout", "model_name": "m", **more}
                request = RolloutRequest(
                    input=given, endpoint=endpoint, state_columns=columns, **asked
                )
                return await runner.run(request, request_id=request_id, context=context)

            yield run


async def offline(environment: Any, given: Any, *columns: str, **args):
    """The result of one rollout with the oracle."""
    async with running(environment, args=args) as run:
        return await run(given, *columns, endpoint="oracle")


async def one(environment: Any, script: Iterable[Any], given: Any = None, *columns: str, **args):
    """One rollout with a model that follows the script, and the model."""
    model = Scripted(script)
    async with running(environment, model, args) as run:
        return await run(given, *columns), model
