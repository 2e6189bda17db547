"""The driver of a client's core: what goes out when, and who is told."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from tests.client.faces import open_face, serving
from tests.memory import ADDRESS, Probe, echo, pair, virtual
from tests.spans import Kept, about, id_of, kept, parent_of
from trio_envserve import (
    Client,
    ClientLimits,
    PlainClient,
    Rollout,
    ServerLimits,
    ServerNotReady,
    ServerStats,
    open_client,
    open_server,
)
from trio_envserve.client.driver import Ended
from trio_envserve.client.options import checked
from trio_envserve.client.shell import keep_no_spans
from trio_envserve.core.client import ClientEffect, ClientInput, ClientTick
from trio_envserve.core.messages import Finish, Query, Request, read
from trio_envserve.core.terms import whole
from trio_envserve.net import MemoryNetwork, Message


class Watched:
    """A client's socket: which messages of the calls were sent together."""

    def __init__(self, client: Client) -> None:
        self.sent: list[list[type]] = []
        self._socket: Any = client._driver._socket
        client._driver._socket = self  # type: ignore[assignment]  # all of it that is used

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        came = [[*map(whole, frames)] for frames in messages]
        rows = [row for frames in came for row in read(frames, most_bytes=1 << 16)]
        kinds = [type(message) for message, _ in rows]
        if calls := [kind for kind in kinds if kind in (Request, Finish)]:
            self.sent.append(calls)
        return bool(self._socket.send_many_nowait(messages))


def submit(client: Client, given: object, ended: Callable[[Ended], None]) -> int:
    asked = checked(given)
    body = asked.encoded(client._wire)
    return client._driver.submit(body, trio.current_time(), asked.terms_of(body), ended)


@virtual
async def test_a_lone_request_goes_out_at_once_and_those_of_one_turn_together() -> None:
    async with pair(Probe()) as (_, client), trio.open_nursery() as nursery:
        await client.wait_ready()
        watched = Watched(client)
        for number in range(5):
            nursery.start_soon(client.run_rollout, [number, "wait"])
        await trio.testing.wait_all_tasks_blocked()
        assert watched.sent == [[Request], [Request] * 4]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_lone_call_and_its_cancel_go_out_at_once_one_after_the_other() -> None:
    ended: list[Ended] = []
    async with pair(Probe()) as (_, client):
        await client.wait_ready()
        watched = Watched(client)
        for turn in range(1, 4):
            number = submit(client, [turn, "wait"], ended.append)
            client._driver.cancel([number])
            assert watched.sent == [[Request], [Finish]] * turn
        await trio.sleep(1)
    assert ended == []


@virtual
async def test_a_cancel_beside_other_calls_is_told_in_the_next_turn() -> None:
    ended: list[Ended] = []
    async with pair(Probe()) as (_, client):
        await client.wait_ready()
        numbers = [submit(client, [number, "wait"], ended.append) for number in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        watched = Watched(client)
        client._driver.cancel(numbers[:2])
        assert watched.sent == []
        await trio.testing.wait_all_tasks_blocked()
        assert watched.sent == [[Finish]]
        client._driver.cancel(numbers[2:])


@virtual
async def test_a_cancel_goes_out_before_a_call_that_is_made_after_it() -> None:
    ended: list[Ended] = []
    async with pair(Probe()) as (_, client):
        await client.wait_ready()
        watched = Watched(client)
        first, second = (submit(client, [number, "wait"], ended.append) for number in range(2))
        client._driver.cancel([second])
        third = submit(client, [2, "wait"], ended.append)
        await trio.testing.wait_all_tasks_blocked()
        assert watched.sent == [[Request], [Request, Finish, Request]]
        client._driver.cancel([first, third])


@virtual
async def test_a_call_that_is_cancelled_because_another_ended_is_not_told() -> None:
    told = []

    def first_ended(end: Ended) -> None:
        told.append(end.call)
        client._driver.cancel([second])

    def second_ended(end: Ended) -> None:
        told.append(end.call)

    async with pair(Probe()) as (_, client):
        first = submit(client, [1, "wait"], first_ended)
        second = submit(client, [2, "wait"], second_ended)
    assert told == [first]  # though both ended with the client


@virtual
async def test_a_call_that_waits_for_room_goes_out_when_an_outcome_is_received() -> None:
    """Not with the next acknowledgement, milliseconds later."""
    async with pair(echo, server=ServerLimits(window=1)) as (_, client):
        await client.wait_ready()
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(client.run_rollout, number)
        assert trio.current_time() == began_s


# -- the clock -----------------------------------------------------------------------


@virtual
async def test_a_tick_says_how_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a loop that was held takes no silence of its server for one."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    ticks: list[ClientTick] = []
    async with pair(echo) as (_, client):
        await client.wait_ready()
        take = client._driver.core.take

        def watched(given: ClientInput) -> list[ClientEffect]:
            if isinstance(given, ClientTick):
                ticks.append(given)
            return take(given)

        monkeypatch.setattr(client._driver.core, "take", watched)
        for number in range(3):
            assert await client.run_rollout(number) == number  # it pokes the clock
            await trio.sleep(3)
        assert {tick.late_s for tick in ticks} == {0.0}
        ticks.clear()
        clock.jump(7.0)
        await trio.testing.wait_all_tasks_blocked()
        assert [round(tick.late_s) for tick in ticks] == [7]


# -- the connection ------------------------------------------------------------------


@virtual
async def test_a_client_introduces_itself_as_soon_as_it_is_connected() -> None:
    network = MemoryNetwork()
    async with open_server(echo, bind=ADDRESS, workers=0, network=network) as server:
        await server.wait_ready()
        began_s = trio.current_time()
        async with open_client(ADDRESS, network=network) as client:
            await client.wait_ready()
            assert trio.current_time() == began_s


@virtual
async def test_a_silent_connection_is_given_up_for_another() -> None:
    network = MemoryNetwork()
    async with pair(echo, network=network) as (_, client):
        await client.wait_ready()
        network.partition(ADDRESS)
        await trio.sleep(120)
        network.heal(ADDRESS)
        await trio.sleep(10)
        assert client.counters().connections == 2
        assert await client.run_rollout("still there") == "still there"


# -- what people are told ------------------------------------------------------------


@virtual
async def test_health_is_told_when_it_changes_and_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trio_envserve.client")
    network = MemoryNetwork()
    async with open_client(ADDRESS, network=network) as client:
        await trio.sleep(120)
        async with open_server(echo, bind=ADDRESS, workers=0, network=network):
            await client.wait_ready()
            await trio.sleep(120)
            told = [(record.levelname, record.getMessage()) for record in caplog.records]
    unhealthy, healthy = ((level, text) for level, text in told if "healthy" in text)
    assert unhealthy[0] == "WARNING"
    assert unhealthy[1].startswith(f"{ADDRESS}: unhealthy: nothing listens at {ADDRESS}")
    assert healthy == ("INFO", f"{ADDRESS}: healthy")


class NoNames(trio.abc.HostnameResolver):
    """A resolver that knows no name."""

    async def getaddrinfo(self, host: Any, *args: Any, **how: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


@virtual
async def test_name_of_a_host_that_is_not_known_is_told() -> None:
    """It read as if nothing listened there: whoever saw it looked for the server."""
    trio.socket.set_custom_hostname_resolver(NoNames())
    async with open_client("tcp://srever:5555") as client:
        with pytest.raises(ServerNotReady, match="name of the host in tcp://srever:5555 is not"):
            await client.wait_ready(5)


# -- statistics ----------------------------------------------------------------------


@virtual
async def test_a_question_for_statistics_that_is_lost_is_asked_again() -> None:
    network = MemoryNetwork()
    asked = []

    def lose_two(direction: str, route: bytes, frames: Any) -> bool:
        if isinstance(read(frames, most_bytes=1 << 16)[0][0], Query):
            asked.append(trio.current_time())
        return len(asked) > 2 or not asked

    async with pair(echo, network=network) as (_, client):
        await client.wait_ready()
        network.filter = lose_two
        began_s, pause_s = trio.current_time(), ClientLimits().ping_s
        for _ in range(2):
            assert isinstance(await client.stats(timeout_s=10), ServerStats)
    assert asked == pytest.approx([began_s + pause_s * turn for turn in (0, 1, 2, 2)])


@virtual
async def test_a_question_for_statistics_ends_at_its_limit_and_is_forgotten() -> None:
    async with open_client("memory:nobody", network=MemoryNetwork()) as client:
        began_s = trio.current_time()
        with pytest.raises(ServerNotReady, match="no answer after 3 s"):
            await client.stats(timeout_s=3)
        assert trio.current_time() == began_s + 3
        with trio.move_on_after(1):
            await client.stats(timeout_s=3)
        assert client._driver._asked == {}


@virtual
async def test_statistics_that_come_too_late_are_for_nobody() -> None:
    network = MemoryNetwork()
    async with pair(echo, network=network) as (_, client):
        await client.wait_ready()
        network.latency_s = 2.0
        with pytest.raises(ServerNotReady, match="no answer after 3 s"):
            await client.stats(timeout_s=3)
        await trio.sleep(10)
        assert await client.run_rollout("on it goes") == "on it goes"


# -- spans ---------------------------------------------------------------------------


__all__ = ["kept"]

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def spanned(rollout: Rollout) -> Any:
    if rollout.input == "fail":
        raise ValueError("no")
    return rollout.input


@pytest.mark.real
@pytest.mark.parametrize("kind", ["asyncio", "plain"])
def test_a_call_from_another_thread_is_below_the_current_span_of_its_caller(kept: Kept, kind: str):
    with serving(spanned) as server, open_face(kind, server.address) as client:
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
def test_call_that_a_closed_client_does_not_take_has_no_span_that_never_ends(kept: Kept):
    with serving(spanned) as server:
        client = PlainClient(server.address)
        client.close()
        assert client.outcome(1).error is not None
    assert kept.named("call") == []


async def test_each_of_many_calls_has_a_span(kept: Kept, autojump_clock: object):
    async with pair(spanned) as (_, client):
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
    async with pair(spanned) as (_, client):
        assert await client.run_rollout(1, timeout_s=60.0) == 1


async def test_g10_calls_go_through_where_a_processor_raises(kept: Kept, autojump_clock: object):
    class Raising(SpanProcessor):
        def on_end(self, span: object) -> None:
            raise RuntimeError

    kept.provider.add_span_processor(Raising())
    async with pair(spanned) as (_, client):
        for each in (1, 2):
            assert await client.run_rollout(each, timeout_s=60.0) == each


async def test_a_client_of_a_door_has_no_spans_of_its_own(kept: Kept, autojump_clock: object):
    async with pair(spanned) as (_, client):
        keep_no_spans(client)
        await client.run_rollout(1, traceparent=SPAN)
    assert kept.named("call") == []
    assert parent_of(kept.one("rollout")) == int(SPAN[36:52], 16)
