"""Runners and servers of environments, requests for them, and rollouts that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from tests.memory import pair
from trio_envserve import Client, Rollout, Server
from trio_envserve.core import values
from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.envs import LoadedEnvironment, RolloutRequest
from trio_envserve.worker.runners import Runner, open_runner
from trio_envserve.worker.saves import ExecutionSaves, SaveCodec

BACKENDS = ["trio", "thread", "asyncio"]
HANGS_S = 300.0
"""Only what hangs takes so long."""
Function = TypeVar("Function", bound=Callable[..., Any])


def on_asyncio(function: Function) -> Function:
    """Declares the backend of an environment that is a function."""
    function.backend = "asyncio"  # type: ignore[attr-defined]  # as environments do
    return function


@asynccontextmanager
async def opened(env: LoadedEnvironment, **more: Any) -> AsyncIterator[Runner]:
    """A runner, and an end to what hangs."""
    with trio.fail_after(HANGS_S):
        async with open_runner(env, **more) as runner:
            yield runner


@asynccontextmanager
async def served(environment: Any, **limits: Any) -> AsyncIterator[tuple[Server, Client]]:
    """A server in memory with these limits that runs its rollouts here, its client, and an end to
    what hangs."""
    with trio.fail_after(HANGS_S):
        async with pair(environment, server=ServerLimits(**limits)) as both:
            yield both


async def until(true: Callable[[], object]) -> None:
    """Wait for what another thread does."""
    while not true():  # noqa: ASYNC110  # of other threads
        await trio.sleep(0.01)


def request(given: Any = None, kind: str = "rollout", **more: Any) -> RolloutRequest:
    fields: dict[str, Any] = {"kind": kind, "input": given, "endpoint": "oracle"}
    return RolloutRequest(**{**fields, "model_name": "m", **more})


class Held:
    """An environment on any backend: its rollouts run ``body``, wait until the test lets them
    go, and end with what ``then`` does."""

    def __init__(
        self, backend: str, body: Callable[[Rollout], Any],
        then: Callable[[Rollout], Any] = lambda _: "done",
    ) -> None:  # fmt: skip
        self.backend = backend
        self.over = threading.Event()
        self.run_rollout: Any = self._plain if backend == "thread" else self._coroutine
        self._body, self._then = body, then

    async def _coroutine(self, rollout: Rollout) -> Any:
        self._body(rollout)
        while not self.over.is_set():  # noqa: ASYNC110  # it is set in any thread
            await (trio if self.backend == "trio" else asyncio).sleep(0.01)
        return self._then(rollout)

    def _plain(self, rollout: Rollout) -> Any:
        self._body(rollout)
        self.over.wait()
        return self._then(rollout)


class SavesRouter:
    """Who answers the saves of one execution: at once, or when the test says so."""

    def __init__(self, before: bytes | None = None, *, at_once: bool = True) -> None:
        self.sent: list[bytes] = []
        self.refusal = ""
        self.at_once = at_once
        self.saves = ExecutionSaves(
            before, self._take, SaveCodec(WireLimits(), ServerLimits().save_bytes)
        )

    def _take(self, save: bytes) -> None:
        self.sent.append(save)
        if self.at_once:
            self.saves.answered(self.refusal)

    def answer(self, refusal: str = "") -> None:
        self.saves.answered(refusal)

    def states(self, save: bytes | None = None) -> dict[int, Any]:
        """What a save has, decoded, by member; by default the last one."""
        encoded = values.decode(self.sent[-1] if save is None else save)
        assert isinstance(encoded, dict)
        return {member: values.decode(each) for member, each in encoded.items()}
