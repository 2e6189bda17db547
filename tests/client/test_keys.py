"""Calls with keys, on the in-memory network: what a caller sends, and what it is told."""

from __future__ import annotations

from typing import Any

from tests.memory import pair, virtual
from trio_envserve import Rollout


class Orders:
    """An environment that tells in which order the keys of its input came."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    async def run_rollout(self, rollout: Rollout) -> Any:
        self.seen.append(list(rollout.input))
        return len(self.seen)


@virtual
async def test_the_order_of_the_keys_in_a_dict_made_another_input_of_it() -> None:
    environment = Orders()
    async with pair(environment) as (_, client):
        first = await client.run_rollout({"a": 1, "b": {"c": 2, "d": 3}}, key="key")
        again = await client.run_rollout({"b": {"d": 3, "c": 2}, "a": 1}, key="key")
    assert first == again == 1
    assert environment.seen == [["a", "b"]]


@virtual
async def test_an_input_that_is_encoded_in_a_thread_is_the_same_input_too() -> None:
    async with pair(Orders()) as (_, client):
        large = {str(number): number for number in range(70_000)}
        first = await client.run_rollout(large, key="key")
        again = await client.run_rollout(dict(reversed(large.items())), key="key")
    assert first == again == 1


@virtual
async def test_one_of_many_is_the_same_input_too() -> None:
    async with pair(Orders()) as (_, client):
        first = await client.run_rollout({"a": 1, "b": 2}, key="many/0")
        async with client.run_many([{"b": 2, "a": 1}], key="many") as outcomes:
            assert [outcome.unwrap() async for _, outcome in outcomes] == [first]


@virtual
async def test_without_a_key_an_environment_gets_a_dict_as_it_was_filled() -> None:
    environment = Orders()
    async with pair(environment) as (_, client):
        await client.run_rollout({"b": 2, "a": 1})
    assert environment.seen == [["b", "a"]]
