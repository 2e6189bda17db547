"""``serve --curve DIR`` with its doors, and the verbs that come to it with a key."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Running, check_nothing_left, forked, run

pytest.importorskip("hypercorn")
httpx2 = pytest.importorskip("httpx2")

pytestmark = pytest.mark.real

BIND = ("--bind", "tcp://127.0.0.1:0")
HTTP = ("--http", "127.0.0.1:0")

ASK = """
import os, sys
from trio_envserve import ClientCurve, PlainClient

curve = ClientCurve.from_file(sys.argv[1])
with PlainClient(os.environ["TRIO_ENVSERVE_ADDRESS"], curve=curve) as client:
    print(client.run_rollout({"index": 0})["reward"])
"""


async def new_key(folder: Path, name: str, *roles: str, keys: str = "keys") -> None:
    of_roles = [part for role in roles for part in ("--role", role)]
    made = await run(folder, "curve", "new", keys, name, *of_roles)
    assert made.code == 0, made.err


@asynccontextmanager
async def serving(folder: Path, *options: str) -> AsyncIterator[tuple[Running, dict[str, Any]]]:
    """A server with the keys of the folder, and what it says of itself."""
    arguments = ("arithmetic", *BIND, "--curve", "keys", *options, "--json")
    async with forked(folder, "serve", *arguments) as process:
        serving = await process.event("serving")
        yield process, {**serving, **await process.event("ready")}


async def rollout(url: str) -> Any:
    """A reward over HTTP.  The door hears a moment later that a worker is ready."""
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        status = 503
        while status == 503:
            answer = await client.post("/v1/rollouts", json={"input": {"index": 0}})
            status = answer.status_code
        assert status == 200, answer.text
        return answer.json()["value"]["reward"]


async def test_the_doors_of_a_server_with_keys_work_and_a_stranger_is_refused(tmp_path: Path):
    await new_key(tmp_path, "trainer")
    await new_key(tmp_path, "stranger", keys="others")
    doors = (*HTTP, "--verifiers-bind", "tcp://127.0.0.1:0")
    async with serving(tmp_path, *doors) as (_, ready):
        assert await rollout(ready["http"]) == 1.0
        assert ready["verifiers"].startswith("tcp://127.0.0.1:")
        ran = ("eval", "arithmetic", "-n", "2", "--address", ready["address"], "--wait-s", "2")
        done = await run(tmp_path, *ran, "--curve", "trainer.key", "--json")
        assert (done.code, done.last["errors"]) == (0, 0), done.err
        # It has the key of another server; so it is not even asked for its own.
        other = await run(tmp_path, *ran, "--curve", "stranger.key")
        assert other.code == 3
        assert "your file has the key of another server" in other.err
        server = (tmp_path / "trainer.key").read_text().splitlines()
        own = (tmp_path / "stranger.key").read_text().splitlines()
        mixed = [line for line in server if line.startswith("server")]
        mixed += [line for line in own if not line.startswith("server")]
        (tmp_path / "stranger.key").write_text("\n".join(mixed))
        stranger = await run(tmp_path, *ran, "--curve", "stranger.key")
        assert stranger.code == 3
        assert "it does not know this key (400): who runs it lets it in" in stranger.err
        keyless = await run(tmp_path, *ran)
        assert keyless.code == 3
        assert "give this side keys (--curve, or curve=)" in keyless.err
        for failed in (other, stranger, keyless):
            failed.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_a_key_that_may_only_watch_is_told_what_it_needs_for_a_rollout(tmp_path: Path):
    await new_key(tmp_path, "board", "watch")
    await new_key(tmp_path, "blind", "submit")
    async with serving(tmp_path) as (_, ready):
        ran = ("eval", "arithmetic", "-n", "2", "--address", ready["address"], "--wait-s", "2")
        refused = await run(tmp_path, *ran, "--curve", "board.key")
        assert refused.code
        assert "may not submit: that needs the role submit" in refused.out + refused.err
        refused.check_no_traceback()
        blind = await run(tmp_path, *ran, "--curve", "blind.key")
        assert blind.code
        assert "may not watch: that needs the role watch" in blind.out + blind.err
        blind.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_a_door_apart_comes_in_with_its_key(tmp_path: Path):
    await new_key(tmp_path, "door")
    async with serving(tmp_path) as (_, ready):
        at = ("--address", ready["address"], "--json")
        key = ("--curve", "door.key")
        async with forked(tmp_path, "door", "http", *at, *HTTP, *key) as door:
            assert await rollout((await door.event("ready"))["http"]) == 1.0
        of_verifiers = ("--verifiers-bind", "tcp://127.0.0.1:0")
        async with forked(tmp_path, "door", "verifiers", *at, *of_verifiers, *key) as door:
            await door.event("ready")
        async with forked(tmp_path, "door", "http", *at, *HTTP) as door:
            await door.said("give this side keys (--curve, or curve=)")
        wrong = await run(tmp_path, "door", "http", *at, "--curve", "missing.key")
        assert wrong.code == 2
        assert "missing.key: No such file" in wrong.err
    await check_nothing_left(tmp_path)


async def test_the_command_of_run_with_comes_in_with_its_key(tmp_path: Path):
    await new_key(tmp_path, "trainer")
    (tmp_path / "ask.py").write_text(ASK)
    asked = ("--", sys.executable, "ask.py", "trainer.key")
    done = await run(tmp_path, "run-with", "arithmetic", "--curve", "keys", *asked)
    assert (done.code, done.out.strip()) == (0, "1.0"), done.err
    await check_nothing_left(tmp_path)
