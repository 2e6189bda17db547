"""Shared calls: who waits for them, what they hold, and when the server may let go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from itertools import starmap
from typing import Any

import pytest
import trio
import trio.testing

from tests.client.conftest import patient_pair
from tests.client.test_many import LARGE
from tests.memory import Probe, pair, virtual
from trio_envserve import (
    Client,
    DidNotRun,
    ExecutionCancelled,
    KeyLimits,
    NoAnswer,
    Outcome,
    RolloutFailed,
    ServerLimits,
)
from trio_envserve.client.options import HASHED_AT_ONCE, Encoded, checked
from trio_envserve.client.shell import is_asked, is_shared, open_many, release, run_encoded

SPAN = "00-000102030405060708090a0b0c0d0e0f-0001020304050607-01"


class Bounds:
    """What calls hold of the bounds of a door."""

    def __init__(self) -> None:
        self.held = 0

    def hold(self) -> ExitStack:
        held = ExitStack()
        self.held += 1
        held.callback(self._give)
        return held

    def _give(self) -> None:
        self.held -= 1


def ask(client: Client, input: Any, key: str = "a", **options: Any) -> Encoded:
    asked = checked(input, key=key, **options)
    body = asked.encoded(client._wire)
    return Encoded(body, asked.terms_of(body))


@asynccontextmanager
async def asking(client: Client, asked: Encoded, hold: Callable[[], ExitStack]) -> AsyncIterator[
    tuple[list[Outcome], trio.CancelScope]
]:  # fmt: skip
    """A caller of a shared call, what it has been told, and the scope in which it waits."""
    told: list[Outcome] = []

    async def run() -> None:
        with scope:
            told.append(await run_encoded(client, asked, hold))

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        yield told, scope


@virtual
async def test_a_call_goes_on_when_its_caller_is_cancelled_and_holds_until_it_has_ended() -> None:
    probe, bounds = Probe(), Bounds()
    async with pair(probe) as (server, client):
        asked = ask(client, ["a", "wait"])
        async with asking(client, asked, bounds.hold) as (told, scope):
            scope.cancel()
        await trio.sleep(5)
        assert is_shared(client, asked)
        assert is_asked(client, "a", "default")
        assert (bounds.held, probe.ended) == (1, [])
        probe.gate.set()
        await trio.sleep(5)
        assert not is_shared(client, asked)
        assert not is_asked(client, "a", "default")
        assert (bounds.held, told, server.stats().kept) == (0, [], 0)
        assert client._driver.core.calls.live == {}
        assert (await client.attach("a")).unwrap() == {"did": "wait"}
    assert probe.started == ["a"]


@virtual
async def test_callers_on_the_same_terms_wait_for_one_call_and_each_is_told() -> None:
    probe, bounds = Probe(), Bounds()
    async with pair(probe) as (server, client):
        asked = ask(client, ["a", "wait"])
        async with (
            asking(client, asked, bounds.hold) as (first, scope),
            asking(client, asked, bounds.hold) as (second, _),
            asking(client, ask(client, ["a", "wait"], traceparent=SPAN), bounds.hold) as (third, _),
            asking(client, ask(client, ["a", "wait"], timeout_s=1), bounds.hold) as (other, _),
        ):
            assert bounds.held == len(client._driver.core.calls.live) == 2
            scope.cancel()
            await trio.sleep(5)
            assert isinstance(other[0].error, NoAnswer)
            assert (first, second, bounds.held) == ([], [], 1)
            probe.gate.set()
        assert first == []
        assert [each.unwrap() for each in (*second, *third)] == [{"did": "wait"}] * 2
        await trio.sleep(5)
        assert (bounds.held, server.stats().kept) == (0, 0)
        assert client._driver.core.calls.live == {}
    assert probe.started == ["a"]


@virtual
async def test_an_error_is_told_to_all_callers() -> None:
    async with pair(Probe()) as (_, client):
        asked = ask(client, ["a", "raise"])
        async with (
            asking(client, asked, ExitStack) as (first, _), asking(client, asked, ExitStack) as (
                second, _
            ),
        ):  # fmt: skip
            pass
        for [outcome] in (first, second):
            assert isinstance(outcome.error, RolloutFailed)


@virtual
async def test_a_caller_is_told_that_its_time_has_passed_while_its_call_waits_for_the_server() -> (
    None
):
    bounds = Bounds()
    async with pair(Probe()) as (_, client):
        await client.wait_ready()
        socket, client._driver._socket = client._driver._socket, None  # what is sent is lost
        asked = ask(client, ["a", "wait"], timeout_s=1)
        async with asking(client, asked, bounds.hold) as (told, _):
            await trio.sleep(30)
            assert isinstance(told[0].error, NoAnswer)
            assert is_asked(client, "a", "default")
            assert (is_shared(client, asked), bounds.held) == (False, 0)
            client._driver._socket = socket


@virtual
async def test_an_outcome_that_came_as_its_only_caller_was_cancelled_was_never_received() -> None:
    async with pair(Probe()) as (server, client):
        asked = ask(client, ["a", 1])
        async with asking(client, asked, ExitStack) as (told, scope):
            call = client._driver.shared(asked.terms)
            assert call is not None
            call.waiting.insert(0, lambda ended: scope.cancel())
        await trio.sleep(5)
        assert (told, server.stats().kept) == ([], 0)
        assert client._driver.core.calls.live == {}


@virtual
async def test_callers_of_a_key_that_was_forgotten_are_told_and_the_next_asks_anew() -> None:
    probe, bounds = Probe(), Bounds()
    async with pair(probe) as (_, client):
        asked = ask(client, ["a", "wait"])
        async with asking(client, asked, bounds.hold) as (told, _):
            ended = await release(client, "a")
        assert (ended.known, ended.started) == (True, True)
        assert isinstance(told[0].error, ExecutionCancelled)
        probe.gate.set()
        again = await run_encoded(client, asked, bounds.hold)
        assert (again.unwrap(), bounds.held) == ({"did": "wait"}, 0)
        assert (await release(client, "a")).known
        assert not (await release(client, "a")).known
    assert probe.started == ["a", "a"]


@virtual
async def test_a_forgotten_call_for_which_the_server_has_no_room_ends_too() -> None:
    probe, bounds = Probe(), Bounds()
    keys = KeyLimits(generations=1, namespace_share=1.0)
    async with pair(probe, keys=keys) as (_, client):
        async with (
            asking(client, ask(client, ["a", "wait"]), bounds.hold) as (_, first),
            asking(client, ask(client, ["b", "wait"], "b"), bounds.hold) as (told, _),
        ):
            first.cancel()
            ended = await release(client, "b")
            assert (ended.known, bounds.held) == (True, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert isinstance(told[0].error, ExecutionCancelled)
        probe.gate.set()
        await release(client, "a")
        await trio.sleep(100)
        assert client._driver.core.calls.live == {}
    assert probe.started == ["a"]


@virtual
async def test_forgotten_call_whose_first_forget_was_cut_off_is_ended_by_the_next_one() -> None:
    """The next one did not find it, and its work started when there was room."""
    probe, bounds = Probe(), Bounds()
    keys = KeyLimits(generations=1, namespace_share=1.0)
    async with pair(probe, keys=keys) as (_, client):
        async with (
            asking(client, ask(client, ["a", "wait"]), bounds.hold) as (_, first),
            asking(client, ask(client, ["b", "wait"], "b"), bounds.hold) as (_, second),
        ):
            first.cancel()
            second.cancel()
            await trio.testing.wait_all_tasks_blocked()
            with trio.CancelScope() as hung_up:
                hung_up.cancel()
                await release(client, "b")
            assert (await release(client, "b")).known
            assert bounds.held == 1
        probe.gate.set()
        await release(client, "a")
        await trio.sleep(100)
    assert probe.started == ["a"]


async def test_large_outcome_of_a_shared_call_is_decoded_once_for_all_callers() -> None:
    """Each caller had a copy of its own in memory."""
    gate = trio.Event()

    async def environment(rollout: Any) -> Any:
        await gate.wait()
        return LARGE

    async with patient_pair(environment) as client:
        asked = ask(client, "x")
        async with asking(client, asked, ExitStack) as (first, _):
            async with asking(client, asked, ExitStack) as (second, _):
                gate.set()
        assert first[0].unwrap() == LARGE
        assert first[0].value is second[0].value
        assert client._decoding == {}


@virtual
async def test_a_caller_whose_key_was_forgotten_before_it_started_is_told_so() -> None:
    async with pair(Probe(), server=ServerLimits(worker_capacity=1)) as (_, client):
        async with (
            asking(client, ask(client, ["a", "wait"]), ExitStack) as (_, first),
            asking(client, ask(client, ["b", "wait"], "b"), ExitStack) as (told, _),
        ):
            assert (await release(client, "b")).started is False
            first.cancel()
        error = told[0].error
        assert isinstance(error, DidNotRun)
        assert error.code == "key-deleted"


@virtual
async def test_a_client_that_closes_ends_its_shared_calls() -> None:
    bounds = Bounds()
    async with pair(Probe()) as (_, client):
        async with asking(client, ask(client, ["a", "wait"]), bounds.hold) as (_, scope):
            scope.cancel()
        assert bounds.held == 1
    assert bounds.held == 0


# -- many ---------------------------------------------------------------------------


@virtual
async def test_many_shared_calls_go_on_after_their_block_and_hold_until_all_have_ended() -> None:
    probe, bounds = Probe(), Bounds()
    inputs = [["a", 1], ["b", 2], ["c", "wait"], ["d", "wait"], ["e", "wait"]]
    async with pair(probe) as (server, client):
        calls = starmap(checked(None, key="many").member, enumerate(inputs))
        async with open_many(client, calls, 4, hold=bounds.hold) as outcomes:
            assert (await anext(outcomes))[0] == 0
            await trio.sleep(5)
            assert bounds.held == 1
        await trio.sleep(5)
        assert (bounds.held, server.stats().kept, len(client._driver.core.calls.live)) == (1, 0, 3)
        again = starmap(checked(None, key="many").member, enumerate(inputs))
        async with open_many(client, again, 9, hold=bounds.hold) as outcomes:
            await trio.sleep(5)
            assert (len(client._driver.core.calls.live), bounds.held) == (5, 2)
            probe.gate.set()
            assert {index for index, _ in [each async for each in outcomes]} == {*range(5)}
        await trio.sleep(5)
        assert (bounds.held, client._driver.core.calls.live) == (0, {})
    assert sorted(probe.started) == ["a", "b", "c", "d", "e"]


async def test_large_inputs_of_many_shared_calls_go_on_too() -> None:
    probe, bounds = Probe(), Bounds()

    async def environment(rollout: Any) -> Any:
        probe.started.append(rollout.input[0])
        await probe.gate.wait()
        return LARGE

    async with patient_pair(environment) as client:
        inputs = [[n, "x" * HASHED_AT_ONCE] for n in range(3)]
        calls = starmap(checked(None, key="many").member, enumerate(inputs))
        async with open_many(client, calls, 3, hold=bounds.hold) as outcomes:
            while len(probe.started) < 3:
                await trio.sleep(0.01)
            assert outcomes._tasks == 3
        assert (len(client._driver.core.calls.live), bounds.held) == (3, 1)
        probe.gate.set()
        while bounds.held:
            await trio.sleep(0.01)
        assert (await client.attach("many/2")).unwrap() == LARGE
        assert client._driver.core.calls.live == {}


@pytest.mark.parametrize("hold", [None, ExitStack])
@virtual
async def test_what_had_arrived_of_many_is_there_after_the_block(hold: Any) -> None:
    async with pair(Probe()) as (server, client):
        calls = starmap(checked(None, key="many").member, enumerate([["a", 1], ["b", "raise"]]))
        async with open_many(client, calls, 2, hold=hold) as outcomes:
            await trio.sleep(5)
        await trio.sleep(5)
        assert server.stats().kept == 0
        found = dict(outcomes.arrived())
        assert found[0].unwrap() == {"did": 1}
        assert isinstance(found[1].error, RolloutFailed)
