"""The live page in a real browser: what people see, and that the text of others stays text."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.browser import IN_A_BROWSER, Browser, open_browser
from tests.doors.http.door import HANG_S, TOKEN, tokens
from trio_envserve import Client, open_client, open_server
from trio_envserve.doors.http import open_http_door

pytestmark = IN_A_BROWSER

HOSTILE = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>'

ENVIRONMENT = """
import trio

async def environment(rollout):
    rollout.note(turn=3, text=rollout.input)
    await trio.sleep_forever()
"""

VIEW = {
    "why": "", "status": "ready", "reason": "", "paused": "", "tokens": False,
    "environment": "e", "address": "a", "epoch": "x", "ready": 4, "workers": 4,
    "workers_least": 4, "workers_most": 4, "resized": "", "closing": None, "bounds": {},
    **dict.fromkeys(("waiting", "running", "kept", "kept_bytes", "held_bytes"), 1),
    "sessions": 1, "keys": 1,
    "counts": {"completed": 1, "refused_for_now": 0, "cancelled": 0}, "model_failed": 0,
    "failures": {"worker-lost": 1}, "latency": {"p50": 0.1, "p99": 0.1, "wait_p99": None},
    "total": 1, "typical_s": 1.0,
}  # fmt: skip
"""What the server says, but for its workers and rollouts."""


@asynccontextmanager
async def shown(
    folder: Path, *, guarded: bool = False, **look: Any
) -> AsyncIterator[tuple[Browser, Client]]:
    """The page of a server with one worker, in a browser that shows a view."""
    (folder / "late.py").write_text(ENVIRONMENT)
    token_file = tokens(folder) if guarded else None
    with trio.fail_after(HANG_S):
        async with (
            open_server("late:environment", bind="tcp://127.0.0.1:0", workers=1) as server,
            open_client(server.address, name=HOSTILE) as client,
            open_http_door(server, token_file=token_file) as door,
            open_browser(folder) as browser,
        ):
            await door.wait_ready()
            await browser.look(f"{door.url}/", **look)
            if not guarded:
                await browser.until("document.querySelectorAll('#per_worker tr').length == 1")
            yield browser, client


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_g9_a_killed_worker_is_on_the_page(folder: Path):
    async with shown(folder) as (browser, client), trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.outcome, "late", rerun=False))
        await browser.until("document.querySelector('#slow').textContent.includes('text=late')")
        pid = int(
            await browser.run("document.querySelector('#per_worker').rows[0].cells[1].textContent")
        )
        os.kill(pid, signal.SIGKILL)
        await browser.until("document.querySelector('#deaths').textContent.includes('SIGKILL')")
        lost = await browser.run("document.querySelector('#deaths .bad').textContent")
        failed = await browser.run("document.querySelector('#failures').textContent")
    assert lost == "1"
    assert "worker-lost1" in failed


async def test_hostile_text_is_shown_as_text(folder: Path):
    async with shown(folder) as (browser, client), trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.outcome, HOSTILE, key=HOSTILE))
        nursery.start_soon(partial(client.outcome, HOSTILE))
        await browser.until("document.querySelectorAll('#slow button').length == 2")
        # Each row has its note: a key alone is hostile, too.
        await browser.until(
            "[...document.querySelectorAll('#slow tr')]"
            ".every((row) => row.lastChild.textContent.includes('onerror'))"
        )
        for number in range(2):
            await browser.run(f"document.querySelectorAll('#slow button')[{number}].click()")
            fields = await browser.run("document.querySelector('#one-fields').textContent")
            assert HOSTILE in fields
            await browser.run("document.querySelector('#one').close()")
        assert await browser.run("document.querySelector('#slow').textContent.includes('<img')")
        assert await browser.run("document.querySelectorAll('img').length") == 0
        assert await browser.run("document.querySelectorAll('script').length") == 2
        # Were it to become a script in spite of that, the policy would refuse it.
        await browser.run(
            "document.body.append(Object.assign(document.createElement('script'),"
            " {textContent: 'window.hacked = 1'}))"
        )
        assert await browser.run("window.hacked === undefined")
        assert any("Content Security Policy" in each for each in browser.said)
        nursery.cancel_scope.cancel()


async def test_by_keyboard_a_straggler_is_opened_and_cancelled_with_a_token_only(folder: Path):
    async with shown(folder, guarded=True) as (browser, client), trio.open_nursery() as nursery:
        ended: list[Any] = []

        async def ask() -> None:
            ended.append(await client.outcome("late", key="step-12/7"))

        nursery.start_soon(ask)
        await browser.until("document.querySelector('#ask').open")
        for letter in TOKEN:
            await browser.send("Input.insertText", text=letter)
        await browser.key("Enter")
        await browser.until("document.querySelectorAll('#slow button').length == 1")
        for _ in range(20):
            if await browser.run("document.activeElement.textContent") == "step-12/7":
                break
            await browser.key("Tab")
        await browser.key("Enter")
        assert await browser.run("document.querySelector('#one').open")
        await browser.key("Escape")
        assert not await browser.run("document.querySelector('#one').open")
        await browser.key("Enter")
        await browser.run("document.querySelector('#one-look').focus()")
        await browser.key("Enter")
        await browser.until("!document.querySelector('#one-stack').hidden")
        stack = await browser.run("document.querySelector('#one-stack').textContent")
        await browser.key("Tab")
        while await browser.run("document.activeElement.id") != "one-cancel":
            await browser.key("Tab")
        await browser.key("Enter")
        await browser.until("document.querySelector('#one-said').textContent.includes('cancelled')")
    assert "in environment" in stack
    assert "cancel" in str(ended[0].error)


@pytest.mark.parametrize("width", [390, 1280])
async def test_page_does_not_move_sideways_after_it_has_grown(folder: Path, width: int):
    """A scrollbar that appears takes room: charts that were drawn before were too wide."""
    rollout: dict[str, Any] = {
        "key": None, "namespace": None, "client": "", "worker": "w0-1", "state": "running",
        "executions": 1, "age_s": 1.0, "note": {}, "where": "",
    }  # fmt: skip
    slow = [{**rollout, "number": n, "request": f"r#{n}"} for n in range(60)]
    view = {**VIEW, "at_s": 1e9, "tables": [], "slow": slow, "total": 60}
    async with shown(folder, width=width) as (browser, _):
        await browser.until("document.querySelectorAll('canvas').length == 3")
        await browser.run(f"livePage.show({json.dumps(view)})")
        assert await browser.run("document.documentElement.clientWidth") < width
        await browser.until(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )


async def test_page_without_rollouts_has_no_table_and_without_tokens_no_button(folder: Path):
    async with shown(folder) as (browser, client), trio.open_nursery() as nursery:
        heading = await browser.run("document.querySelector('#h-slow').textContent")
        assert heading == "Slowest rollouts: nothing runs"
        assert await browser.run("document.querySelector('#slow-part').hidden")
        nursery.start_soon(partial(client.outcome, "late", key="one"))
        await browser.until("document.querySelectorAll('#slow button').length == 1")
        await browser.run("document.querySelector('#slow button').click()")
        assert await browser.run("document.querySelector('#one-cancel').hidden")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_it_fits_in_dark_and_light_and_says_no_error(folder: Path, width: int, dark: bool):
    async with shown(folder, width=width, dark=dark) as (browser, _):
        await browser.until("document.querySelectorAll('canvas').length == 3")
        wide = await browser.run("document.documentElement.scrollWidth")
        colour = await browser.run("getComputedStyle(document.body).backgroundColor")
        await browser.run("document.querySelector('#theme').click()")
        other = await browser.run("getComputedStyle(document.body).backgroundColor")
    assert wide <= width
    assert (colour == "rgb(255, 255, 255)") is not dark
    assert (other == "rgb(255, 255, 255)") is dark
    assert browser.said == []


async def test_g8_hours_of_it_take_no_more_memory(folder: Path):
    later = """(() => {
        const table = (field, rows) => ({field, title: field, columns: ['worker', 'lost'],
            left: [0], rows, bad: [[0, 1]], more: 0});
        window.hour = (from) => {
            for (let n = from; n < from + 3600; n++) livePage.show({...SEEN, at_s: n,
                tables: [
                    table('per_worker', [0, 1, 2, 3].map((slot) => [`w${slot}-${n >> 6}`, '1'])),
                    table('deaths', [[`w0-${n >> 6}`, '1']])],
                slow: [{number: n >> 3, key: `k${n}`, namespace: 'd', request: '', client: '',
                    worker: 'w0-1', state: 'running', executions: 1, age_s: 1,
                    note: {turn: n}, where: ''}]});
            return livePage.points();
        };
    })()"""
    async with shown(folder) as (browser, _):
        await browser.run(later.replace("SEEN", json.dumps(VIEW)))
        taken: list[int] = []
        for hour in range(10):
            assert await browser.run(f"hour({10**9 + 3600 * hour})") <= 3600
            taken.append(await browser.heap_bytes())
    # Not all garbage is found each time: what is held for ever is held in all of the last hours.
    assert min(taken[5:]) < 1.05 * taken[1] + 200_000
