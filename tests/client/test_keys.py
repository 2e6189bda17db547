"""Calls with keys, on the in-memory network: what a caller sends, and what it is told."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from tests.memory import pair, virtual
from trio_envserve import (
    Client,
    ConfigError,
    ExecutionCancelled,
    KeyConflict,
    KeyEnded,
    KeyLimits,
    NeverStarted,
    NoAnswer,
    RequestRefused,
    Rollout,
    ServerLimits,
    UnknownKey,
)
from trio_envserve.client.shell import release
from trio_envserve.core.limits import WireLimits


class Orders:
    """An environment that tells in which order the keys of its input came."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    async def run_rollout(self, rollout: Rollout) -> Any:
        self.seen.append(list(rollout.input))
        return len(self.seen)


@pytest.mark.parametrize(
    ("given", "by_many"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, False),
        ({"a": 1, "b": {"c": 2, "d": 3}}, True),
        ({str(number): number for number in range(70_000)}, False),
    ],
    ids=["encoded at once", "one of many", "encoded in a thread"],
)
@virtual
async def test_the_order_of_the_keys_in_a_dict_made_another_input_of_it(
    given: dict[str, Any], by_many: bool
) -> None:
    environment, reordered = Orders(), dict(reversed(given.items()))
    async with pair(environment) as (_, client):
        first = await client.run_rollout(given, key="many/0")
        if by_many:
            async with client.run_many([reordered], key="many") as outcomes:
                again = (await anext(outcomes))[1].unwrap()
        else:
            again = await client.run_rollout(reordered, key="many/0")
    assert first == again == 1
    assert [sorted(keys) for keys in environment.seen] == [sorted(given)]


@virtual
async def test_a_dict_without_a_key_reaches_the_environment_as_it_was_filled() -> None:
    environment = Orders()
    async with pair(environment) as (_, client):
        await client.run_rollout({"b": 2, "a": 1})
    assert environment.seen == [["b", "a"]]


# -- what a caller is told ------------------------------------------------------


async def waits(rollout: Rollout) -> Any:
    await trio.sleep(rollout.input)
    return rollout.input


@virtual
async def test_another_input_under_a_key_is_told_from_other_errors() -> None:
    async with pair(waits) as (_, client):
        await client.run_rollout(1, key="key")
        with pytest.raises(KeyConflict):
            await client.run_rollout(2, key="key")
        with pytest.raises(KeyConflict):
            await client.run_rollout(1, key="key", rerun=True)
        assert await client.run_rollout(1, key="key") == 1


@virtual
async def test_an_unknown_key_is_told_from_other_errors() -> None:
    async with pair(waits) as (_, client):
        assert isinstance((await client.attach("key")).error, UnknownKey)


@pytest.mark.parametrize("act", ["cancel_key", "forget"])
@virtual
async def test_a_waiter_is_told_that_its_key_was_ended_by_name(act: str) -> None:
    errors: list[Any] = []

    async def ask(client: Client, **how: Any) -> None:
        errors.append((await client.outcome(1000, **how)).error)

    limits = ServerLimits(worker_capacity=1)
    async with pair(waits, server=limits) as (_, client), trio.open_nursery() as nursery:
        for key in ("runs", "waits"):
            nursery.start_soon(partial(ask, client, key=key))
            await trio.sleep(1)
        assert await getattr(client, act)("waits") == KeyEnded(known=True, started=False)
        assert await getattr(client, act)("runs") == KeyEnded(known=True, started=True)
    assert [type(error) for error in errors] == [NeverStarted, ExecutionCancelled]


@virtual
async def test_forgetting_for_a_door_tells_what_there_was() -> None:
    async with pair(waits) as (_, client):
        await client.run_rollout(1, key="key")
        assert await release(client, "key") == KeyEnded(known=True, started=True)


@virtual
async def test_a_limit_that_passes_without_room_for_a_key_names_what_it_waited_for() -> None:
    async with pair(waits, keys=KeyLimits(generations=1)) as (_, client):
        await client.run_rollout(1, key="key")
        with pytest.raises(NoAnswer, match=r"refused it for now \(keys-full\)"):
            await client.run_rollout(1, key="another", timeout_s=5)


@virtual
async def test_a_limit_that_passes_while_others_wait_says_that_it_may_go_on() -> None:
    async with pair(waits) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.run_rollout, 100, key="key"))
        await trio.sleep(1)
        with pytest.raises(NoAnswer):
            await client.run_rollout(100, key="key", timeout_s=5)
        nursery.cancel_scope.cancel()


@virtual
async def test_a_call_whose_key_fitted_into_no_header_waited_for_ever() -> None:
    long = "k" * WireLimits().header_bytes
    async with pair(waits) as (_, client):
        with trio.fail_after(60):
            for key, namespace in ((long, "default"), ("key", long)):
                with pytest.raises(ConfigError, match="at most 32768 bytes"):
                    await client.run_rollout(1, key=key, namespace=namespace)
            with pytest.raises(RequestRefused, match="1 to 256 bytes"):
                await client.run_rollout(1, key="k" * 32768)


@virtual
async def test_known_keys_are_listed_page_by_page() -> None:
    async with pair(Orders()) as (_, client):
        async with client.run_many([{}] * 150, key="step", namespace="a") as outcomes:
            assert len([index async for index, _ in outcomes]) == 150
        await client.run_rollout({}, key="one")
        page = await client.list_keys("a")
        assert (len(page.keys), page.generations) == (100, 150)
        assert page.next is not None
        rest = await client.list_keys("a", first=page.next)
        assert rest.next is None
        names = {known.key for known in (*page.keys, *rest.keys)}
        assert names == {f"step/{number}" for number in range(150)}
        (one,) = (await client.list_keys()).keys
        assert (one.namespace, one.key, one.executions) == ("default", "one", 1)
        assert (await client.list_keys(None)).generations == 151
        assert (await client.stats()).keys == 151
