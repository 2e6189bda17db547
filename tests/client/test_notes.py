"""What callers are told of how far their rollouts are, on the in-memory network."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import trio

from tests.memory import pair, virtual
from trio_envserve import Rollout


class Steps:
    """Rollouts of three steps, each of which is noted."""

    async def run_rollout(self, rollout: Rollout) -> str:
        for step in range(3):
            rollout.note(step=step)
            await trio.sleep(5)
        return "done"


@virtual
async def test_who_asks_for_many_is_told_by_the_index_of_the_input() -> None:
    told: list[tuple[int, dict[str, Any]]] = []
    async with pair(Steps()) as (_, client):
        large = np.zeros(3_000_000)
        async with client.run_many(
            ["a", large], on_note=lambda index, note: told.append((index, dict(note)))
        ) as outcomes:
            assert len([each async for each in outcomes]) == 2
        assert client._driver._noting == {}
    for index in (0, 1):
        assert [note for at, note in told if at == index] == [{"step": step} for step in range(3)]


@virtual
async def test_g10_a_callback_that_raises_ended_the_client_of_all_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[int] = []

    def on_note(index: int, note: object) -> None:
        heard.append(index)
        if index == 0:
            raise LookupError("mine")

    async with pair(Steps()) as (_, client):
        with caplog.at_level(logging.ERROR):
            async with client.run_many(["a", "b"], on_note=on_note) as outcomes:
                ended = [outcome async for _, outcome in outcomes]
    assert all(outcome.ok for outcome in ended)
    assert sorted(heard) == [0, 1, 1, 1]
    assert "hears no more of this call" in caplog.text


@virtual
async def test_who_leaves_early_is_told_no_more() -> None:
    told: list[int] = []
    async with pair(Steps()) as (_, client):
        async with client.run_many(["a"], on_note=lambda index, note: told.append(index)):
            await trio.sleep(2)
        assert (told, client._driver._noting) == ([0], {})
        await trio.sleep(20)
    assert told == [0]
