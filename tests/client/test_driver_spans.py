"""Each call has a span, whatever the kind of client, where its process keeps traces."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from tests.client.faces import open_face, serving
from tests.memory import pair
from tests.spans import Kept, about, id_of, kept, parent_of
from trio_envserve import PlainClient, Rollout, open_client
from trio_envserve.client.shell import keep_no_spans
from trio_envserve.net import MemoryNetwork

__all__ = ["kept"]

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def echo(rollout: Rollout) -> Any:
    if rollout.input == "fail":
        raise ValueError("no")
    return rollout.input


@pytest.mark.real
@pytest.mark.parametrize("kind", ["asyncio", "plain"])
def test_a_call_from_another_thread_is_below_the_current_span_of_its_caller(kept: Kept, kind: str):
    with serving(echo) as server, open_face(kind, server.address) as client:
        if kind == "plain":
            with kept.tracer.start_as_current_span("training step"):
                client.run_rollout(1)
            assert parent_of(kept.one("call")) == id_of(kept.one("training step"))
        else:
            client.run_rollout(1)
        client.outcome("fail", traceparent=SPAN)
    assert parent_of(kept.named("rollout")[0]) == id_of(kept.one("call"))
    assert parent_of(kept.named("rollout")[1]) == int(SPAN[36:52], 16)


@pytest.mark.real
def test_a_call_that_a_closed_client_does_not_take_ends_its_span(kept: Kept):
    with serving(echo) as server:
        client = PlainClient(server.address)
        client.close()
        assert client.outcome(1).error is not None
    assert kept.one("call").status.description == "closed"


async def test_each_of_many_calls_has_a_span(kept: Kept, autojump_clock: object):
    async with pair(echo) as (_, client):
        with kept.tracer.start_as_current_span("step") as step:
            async with client.run_many([1, 2, "fail"]) as outcomes:
                assert len([each async for each in outcomes]) == 3
        await client.list_keys()
        await client.cancel_key("none")
    calls = kept.named("call")
    assert [parent_of(span) for span in calls] == [id_of(step)] * 3
    assert sorted(parent_of(span) or 0 for span in kept.named("rollout")) == sorted(
        id_of(span) for span in calls
    )
    assert sum(not span.status.is_ok for span in calls) == 1
    assert len(kept.named("execution")) == 3


async def test_a_call_that_no_server_answers_ends_its_span(kept: Kept, autojump_clock: object):
    network = MemoryNetwork()
    async with open_client("memory:nobody", network=network) as client:
        await client.outcome(1, timeout_s=3.0)
        with trio.move_on_after(1):
            await client.outcome(2)
    failed, cancelled = kept.named("call")
    assert failed.status.description == "server-unreachable"
    assert about(cancelled) == {"envserve.cancelled": True}


async def test_calls_go_through_where_the_provider_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    async with pair(echo) as (_, client):
        assert await client.run_rollout(1, timeout_s=60.0) == 1


async def test_g10_calls_go_through_where_a_processor_raises(kept: Kept, autojump_clock: object):
    class Raising(SpanProcessor):
        def on_end(self, span: object) -> None:
            raise RuntimeError

    kept.provider.add_span_processor(Raising())
    async with pair(echo) as (_, client):
        for each in (1, 2):
            assert await client.run_rollout(each, timeout_s=60.0) == each


async def test_a_client_of_a_door_has_no_spans_of_its_own(kept: Kept, autojump_clock: object):
    async with pair(echo) as (_, client):
        keep_no_spans(client)
        await client.run_rollout(1, traceparent=SPAN)
    assert kept.named("call") == []
    assert parent_of(kept.one("rollout")) == int(SPAN[36:52], 16)
