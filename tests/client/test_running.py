"""What a client is told of the executions that run, and of how far each is."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import trio

from tests.memory import pair, virtual
from trio_envserve import Client, Rollout, ServerNotReady
from trio_envserve.core import messages, router


class Waiting:
    """Rollouts that note their input and wait."""

    def __init__(self) -> None:
        self.gate = trio.Event()

    async def run_rollout(self, rollout: Rollout) -> str:
        rollout.note(text=rollout.input)
        if rollout.input != "short":
            await self.gate.wait()
        return "done"


@virtual
async def test_running_executions_are_told_with_their_last_notes_the_oldest_first() -> None:
    environment = Waiting()
    async with pair(environment) as (_, client):
        assert (await client.list_running()).typical_s is None
        await client.run_rollout("short")
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                key = name if name == "two" else None
                nursery.start_soon(ask, client, name, key)
                await trio.sleep(3)
            page = await client.list_running()
            environment.gate.set()
    assert (page.total, page.next) == (2, None)
    assert page.typical_s is not None
    assert [each.note for each in page.running] == [{"text": "one"}, {"text": "two"}]
    assert [each.key for each in page.running] == [None, "two"]
    assert [round(each.age_s) for each in page.running] == [6, 3]


async def ask(client: Client, name: str, key: str | None) -> None:
    await client.run_rollout(name, key=key)


@virtual
@pytest.mark.parametrize("question", ["list_running", "list_keys"])
async def test_a_server_that_is_asked_for_too_many_pages_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    async with pair(Waiting()) as (server, client):
        await client.run_rollout("short", key="one")
        pages: Any = server._router._running
        if question == "list_keys":
            pages = server._router._key_pages
        rows = question.removeprefix("list_")
        real, busy = pages.page, 2

        def page(*args: Any) -> dict[str, Any]:
            nonlocal busy
            busy -= 1
            page: dict[str, Any] = real(*args)
            first = next(each for each in args if type(each) is int)
            return page if busy < 0 else {**page, rows: [], "next": first}

        monkeypatch.setattr(pages, "page", page)
        found = await getattr(client, question)()
        assert (busy, len(getattr(found, rows))) == (-1, question == "list_keys")
        busy = 1_000_000
        with pytest.raises(ServerNotReady, match="too many"):
            await getattr(client, question)(timeout_s=1.0)


@virtual
@pytest.mark.parametrize("question", ["list_running", "list_keys", "stats", "stack"])
async def test_a_question_that_the_server_does_not_know_was_asked_again_without_end(
    monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    monkeypatch.delitem(router._HANDLERS, messages.Query)
    async with pair(Waiting()) as (server, client):
        await client.wait_ready()
        arguments = (1,) if question == "stack" else ()
        with pytest.raises(ServerNotReady, match=r"the server refuses it as malformed .Query"):
            await getattr(client, question)(*arguments)
        assert server.stats().malformed == 1
        assert await client.run_rollout("short") == "done"


# -- notes of many calls ---------------------------------------------------------


class Steps:
    """Rollouts of three steps, each of which is noted."""

    async def run_rollout(self, rollout: Rollout) -> str:
        for step in range(3):
            rollout.note(step=step)
            await trio.sleep(5)
        return "done"


@virtual
async def test_notes_of_many_calls_come_with_the_index_of_the_input() -> None:
    told: list[tuple[int, dict[str, Any]]] = []
    async with pair(Steps()) as (_, client):
        large = np.zeros(3_000_000)
        async with client.run_many(
            ["a", large], on_note=lambda index, note: told.append((index, dict(note)))
        ) as outcomes:
            assert len([each async for each in outcomes]) == 2
        assert client._driver._waiting == {}
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
async def test_notes_end_when_the_block_is_left() -> None:
    told: list[int] = []
    async with pair(Steps()) as (_, client):
        async with client.run_many(["a"], on_note=lambda index, note: told.append(index)):
            await trio.sleep(2)
        assert (told, client._driver._waiting) == ([0], {})
        await trio.sleep(20)
    assert told == [0]
