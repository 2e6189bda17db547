"""A user's program, for the type checker alone: each line that is wrong must be found.

The checker is strict, so an ignored error that is none is an error, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from trio_envserve import (
    Arrays,
    CallOptions,
    Client,
    ClosingStage,
    Completion,
    Health,
    Messages,
    Model,
    ModelError,
    Outcome,
    Rollout,
    RolloutCancelled,
    Server,
    ServerHealth,
    ServerStats,
    ServerStatus,
    StatusRecord,
    Transport,
    WorkerRange,
    open_client,
    open_server,
    serve,
)


class Echo:
    """A model of the user's own."""

    async def complete(
        self, messages: Messages, *, name: str, sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:  # fmt: skip
        """What was said last."""
        if not messages:
            raise ModelError("nothing was said")
        return Completion(messages[-1]["content"])

    async def aclose(self) -> None:
        """Has nothing to give back."""


class Spelling:
    """An environment of the user's own, in a thread."""

    def run_rollout(self, rollout: Rollout) -> float:
        """Ask, and count the rollout that was cancelled as none."""
        try:
            answer: Completion = rollout.ask_sync([{"role": "user", "content": "spell"}])
        except RolloutCancelled:
            return 0.0
        return float(len(answer.text))


async def right(client: Client) -> None:
    """What a user writes."""
    options: CallOptions = {"model": "oracle", "timeout_s": 5.0, "rerun": True}
    await client.run_rollout({"index": 0}, **options)
    members: list[Outcome] = await client.run_group([1, 2], max_retries=1)
    assert members
    async with client.run_many([1, 2], in_flight=2, max_executions=1) as outcomes:
        async for index, outcome in outcomes:
            assert index >= 0
            assert outcome.ok


def known(server: Server, client: Client) -> str:
    """What is known of a server."""
    seen: ServerHealth = client.health()
    said: StatusRecord = server.status()
    if said.closing is not None and said.closing.stage is ClosingStage.DRAINING:
        return f"{said.closing.running} run, {said.closing.left_s} s are left"
    counted: ServerStats = server.stats()
    if counted.running and counted.cache.replayed:
        return ", ".join(f"{each.worker} {each.pending}" for each in counted.per_worker)
    if said.status is not ServerStatus.READY:
        return f"{said.ready} of {said.workers}: {said.reason}"
    return seen.reason if seen.health is Health.UNHEALTHY else ""


async def wrong(client: Client) -> None:
    """What a user mistypes."""
    await client.run_rollout(1, timeout=5)  # type: ignore[call-arg]  # timeout_s
    await client.run_rollout(1, timeout_s="5")  # type: ignore[arg-type]  # a number
    await client.run_group([1], retries=1)  # type: ignore[call-arg]  # max_retries
    async with client.run_many([1], modell="oracle"):  # type: ignore[call-arg]  # model
        pass
    async with open_server("arithmetic", workers="2..4"):  # type: ignore[arg-type]  # a WorkerRange
        pass
    async with open_server("arithmetic", workers=WorkerRange(2, 4)):
        pass
    async with open_server("arithmetic", worker=2):  # type: ignore[call-arg]  # workers
        pass
    async with open_client("tcp://localhost:1", array="numpy"):  # type: ignore[call-arg]  # arrays
        pass
    await serve("arithmetic", worker=2)  # type: ignore[call-arg]  # workers


def wrongly_known(server: Server, client: Client) -> None:
    """Records taken for pairs."""
    _, _ = client.health()  # type: ignore[misc]  # it has names
    assert client.health()[0]  # type: ignore[index]  # .health
    assert server.status()["ready"]  # type: ignore[index]  # .ready
    assert server.status().closing.stage  # type: ignore[union-attr]  # it may not close
    assert server.status().status == "ready"  # type: ignore[comparison-overlap]  # ServerStatus
    assert server.stats()["kept"]  # type: ignore[index]  # .kept
    assert server.stats().runing  # type: ignore[attr-defined]  # running
    assert server.stats().cache["lost"]  # type: ignore[index]  # .lost
    assert server.stats().per_worker["w0-1"]  # type: ignore[call-overload]  # by position
    server.stats().kept = 0  # type: ignore[misc]  # it is frozen
    server.status().ready = 0  # type: ignore[misc]  # it is frozen
    client.health().reason = ""  # type: ignore[misc]  # it is frozen


def wrong_words() -> None:
    """Names of the package that are used for something else."""
    transport: Transport = "zeromq"  # type: ignore[assignment]  # zmtp, or libzmq
    arrays: Arrays = "cupy"  # type: ignore[assignment]  # auto, numpy or torch
    model: Model = Spelling()  # type: ignore[assignment]  # an environment
    completion = Completion(text=1)  # type: ignore[arg-type]  # a text
    completion.text = "x"  # type: ignore[misc]  # it is frozen
    assert transport
    assert arrays
    assert model


async def started() -> None:
    """A server as a task."""
    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve, "arithmetic")
        assert server.address
