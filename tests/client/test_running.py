"""What a client is told of the executions that run, on the in-memory network."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.memory import pair, virtual
from trio_envserve import Client, Rollout, ServerNotReady
from trio_envserve.core import client_handlers, messages


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
async def test_what_runs_is_told_with_its_last_note_the_oldest_first() -> None:
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
async def test_a_server_that_is_asked_for_too_many_pages_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair(Waiting()) as (server, client):
        pages = server._router._running
        real, busy = pages.page, 2

        def page(first: int, *times: float) -> dict[str, Any]:
            nonlocal busy
            busy -= 1
            left = {"running": [], "next": first, "total": 1, "typical_s": None}
            return left if busy >= 0 else real(first, *times)

        monkeypatch.setattr(pages, "page", page)
        assert (await client.list_running()).total == 0
        busy = 1_000_000
        with pytest.raises(ServerNotReady, match="too many"):
            await client.list_running(timeout_s=1.0)


@virtual
@pytest.mark.parametrize("question", ["list_running", "list_keys", "stats", "stack"])
async def test_a_question_that_the_server_does_not_know_was_asked_again_without_end(
    monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    kinds = [messages.AskRunning, messages.AskKeys, messages.AskStats, messages.AskStack]
    for kind in kinds:
        monkeypatch.delitem(client_handlers._HANDLERS, kind)
    async with pair(Waiting()) as (server, client):
        await client.wait_ready()
        arguments = (1,) if question == "stack" else ()
        with pytest.raises(ServerNotReady, match=r"the server refuses it as malformed .Ask"):
            await getattr(client, question)(*arguments)
        assert server.stats().malformed == 1
        assert await client.run_rollout("short") == "done"
