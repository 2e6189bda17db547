"""Saves through a whole server: bad input, cancellation, and what is left when it ends."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from tests.worker.helpers import served
from trio_envserve import EncodingError, Rollout, RolloutFailed, SaveRefused, Server


def held_bytes(server: Server) -> int:
    return server._router.accounts.all.held_bytes


async def test_states_are_held_while_their_rollout_runs_and_not_longer():
    saved, over = trio.Event(), trio.Event()

    async def environment(rollout: Rollout) -> str:
        for number in range(200):
            await rollout.save({"number": number, "padding": "." * 10_000})
        saved.set()
        await over.wait()
        return "done"

    async with served(environment) as (server, client), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: client.run_rollout(None, rerun=True))
        await saved.wait()
        assert 10_000 < held_bytes(server) < 11_000
        over.set()
    assert held_bytes(server) == 0


@pytest.mark.parametrize(
    ("state", "kind", "told"),
    [
        ("." * 5_000, SaveRefused, "bytes, and 4000 are allowed"),
        ({"a": [object()]}, EncodingError, r"save\.state\.a\[0\]"),
    ],
)
async def test_what_cannot_be_saved_is_told_and_the_state_before_stays(
    state: Any, kind: type[Exception], told: str
):
    async def environment(rollout: Rollout) -> Any:
        if rollout.attempt == 1:
            await rollout.save("small")
            with pytest.raises(kind, match=told):
                await rollout.save(state)
            raise ValueError("again")
        assert rollout.saved is not None
        return rollout.saved.state

    async with served(environment, save_bytes=4_000) as (_, client):
        assert await client.run_rollout(None, rerun=True, max_retries=1) == "small"


async def test_a_caller_has_its_share_for_states_and_no_more():
    async def environment(rollout: Rollout) -> str:
        for size in (1_000, 3_000):
            await rollout.save("." * size)
        return "done"

    async with served(environment, queue_bytes=5_000) as (_, client):
        with pytest.raises(RolloutFailed, match=r"no room for \d+ bytes more of this caller"):
            await client.run_rollout(None, rerun=True)


@pytest.mark.parametrize("shielded", [False, True])
async def test_g7_a_save_after_a_cancel_ends_and_saves_nothing(shielded: bool):
    began, told = trio.Event(), list[str]()

    async def environment(rollout: Rollout) -> None:
        try:
            began.set()
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=shielded):
                try:
                    await rollout.save("too late")
                except SaveRefused as refused:
                    told.append(str(refused))

    async with served(environment) as (server, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.run_rollout(None, rerun=True))
            await began.wait()
            nursery.cancel_scope.cancel()
        while server._router.workforce.live_count():  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert held_bytes(server) == 0
    assert told == ["the state was not saved: the rollout was cancelled, or has ended"][:shielded]


async def test_what_a_rollout_leaves_behind_cannot_save_for_it():
    left: list[Rollout] = []

    async def environment(rollout: Rollout) -> str:
        left.append(rollout)
        return "done"

    async with served(environment) as (_, client):
        await client.run_rollout(None, rerun=True)
        with pytest.raises(SaveRefused, match="has ended"):
            await left[0].save("late")


async def test_members_of_a_group_save_at_once():
    async def environment(rollout: Rollout) -> Any:
        for number in range(20):
            await rollout.save([rollout.member, number])
        if rollout.attempt == 1:
            raise ValueError("again")
        assert rollout.saved is not None
        return rollout.saved.state

    async with served(environment) as (_, client):
        members = await client.run_group([None] * 8, rerun=True, max_retries=1)
    assert [each.value for each in members] == [[member, 19] for member in range(8)]
