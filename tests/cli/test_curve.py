"""``curve``: keys for a server, its clients and its doors, with the command as a process."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import check_nothing_left, forked, run, served
from trio_envserve import KeyPair

pytest.importorskip("h11")
httpx2 = pytest.importorskip("httpx2")

pytestmark = pytest.mark.real


async def test_keys_are_shown_without_their_secrets(tmp_path: Path):
    more = ("--role", "submit", "--namespace", 'a "b\\', "--share", "0.5", "--host", "n1")
    made = await run(tmp_path, "curve", "new", "keys", "one", *more, "--json")
    assert (made.last["name"], made.last["file"]) == ("one", "one.key")
    shown = await run(tmp_path, "curve", "show", "keys", "--json")
    assert shown.last["keys"] == [
        {
            "name": "one", "public": made.last["public"], "roles": ["submit"],
            "namespaces": ['a "b\\'], "share": 0.5, "hosts": ["n1"],
        }
    ]  # fmt: skip
    own = KeyPair.new()
    other = await run(tmp_path, "curve", "new", "keys", "two", "--public", own.public, "--json")
    assert other.last["public"] == own.public
    assert not (tmp_path / "two.key").exists()
    secret = (tmp_path / "one.key").read_text().rsplit('"', 2)[1]
    assert secret not in shown.out + shown.err + made.out + made.err


@pytest.mark.parametrize("option", ["--namespace", "--host"])
@pytest.mark.parametrize("text", ["a\x7fb", "a\udcff", "a\u2028b"], ids=ascii)
async def test_name_that_no_entry_can_have_was_written_into_one(
    tmp_path: Path, option: str, text: str
):
    """Nobody came in with the first, the second was a traceback, the third was two namespaces."""
    made = await run(tmp_path, "curve", "new", "keys", "one", option, text, "--json")
    assert (made.code, made.last["exit"]) == (2, 2)
    assert "printable text" in made.last["error"]["message"]
    assert not (tmp_path / "keys").exists()
    assert not (tmp_path / "one.key").exists()


async def test_a_file_that_is_wrong_stops_no_verb_and_is_named(tmp_path: Path):
    """A revoke that said 0 beside such a file had no effect at the server."""
    assert (await run(tmp_path, "curve", "new", "keys", "one")).code == 0
    clients = tmp_path / "keys" / "clients"
    (clients / "bad.toml").write_text('share = "x"')
    os.mkfifo(clients / "pipe.toml")
    shown = await run(tmp_path, "curve", "show", "keys", "--json")
    assert [each["name"] for each in shown.last["keys"]] == ["one"]
    assert {*shown.last["faults"]} == {"bad", "pipe"}
    for told in (
        shown, await run(tmp_path, "curve", "new", "keys", "two"),
        await run(tmp_path, "curve", "revoke", "keys", "one"),
    ):  # fmt: skip
        assert told.code == 0, told.err
        assert "nobody comes in with the key 'bad': keys/clients/bad.toml: " in told.err
        assert "nobody comes in with the key 'pipe': keys/clients/pipe.toml" in told.err
    for name in ("bad", "pipe"):
        assert (await run(tmp_path, "curve", "revoke", "keys", name)).code == 0
    assert [path.name for path in clients.iterdir()] == ["two.toml"]


async def test_a_key_under_two_names_is_revoked_with_both(tmp_path: Path):
    """The other name would have let it in again."""
    assert (await run(tmp_path, "curve", "new", "keys", "one")).code == 0
    clients = tmp_path / "keys" / "clients"
    shutil.copy(clients / "one.toml", clients / "two.toml")
    told = await run(tmp_path, "curve", "revoke", "keys", "two", "--json")
    assert told.last["names"] == ["two", "one"]
    assert not [*clients.iterdir()]


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


async def rollout(url: str) -> Any:
    """A reward over HTTP.  The door hears a moment later that a worker is ready."""
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        status = 503
        while status == 503:
            answer = await client.post("/v1/rollouts", json={"input": {"index": 0}})
            status = answer.status_code
        assert status == 200, answer.text
        return answer.json()["value"]["reward"]


async def test_who_has_a_key_is_let_in_at_server_and_doors_and_a_revoked_one_is_told(
    tmp_path: Path,
):
    await new_key(tmp_path, "trainer")
    await new_key(tmp_path, "one", "submit")
    await new_key(tmp_path, "stranger", keys="others")
    made = await run(tmp_path, "curve", "new", "keys", "board", "--role", "watch", "--out", "b.key")
    assert made.code == 0, made.err
    for secret in ("keys/server.key", "trainer.key", "b.key"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600
    theirs, own = ((tmp_path / f"{name}.key").read_text().splitlines() for name in
                   ("trainer", "stranger"))  # fmt: skip
    mixed = [line for line in theirs if line.startswith("server")]
    mixed += [line for line in own if not line.startswith("server")]
    (tmp_path / "unknown.key").write_text("\n".join(mixed))
    (tmp_path / "unknown.key").chmod(0o600)
    doors = (*HTTP, "--verifiers-bind", "tcp://127.0.0.1:0")
    async with served(tmp_path, "arithmetic", "--workers", "0", "--curve", "keys", *doors) as (
        server,
        at,
    ):
        assert await rollout(server.serving["http"]) == 1.0
        assert server.serving["verifiers"].startswith("tcp://127.0.0.1:")
        ran = ("eval", "arithmetic", "-n", "2", "--address", at, "--json", "--wait-s")
        done = await run(tmp_path, *ran, "60", "--curve", "trainer.key")
        assert (done.code, done.last["errors"]) == (0, 0), done.err
        status = ("status", at, "--json", "--wait-s")
        seen = await run(tmp_path, *status, "60", "--curve", "b.key")
        assert seen.code == 0, seen.err

        async def refused(verb: Sequence[str], key: str, why: str) -> None:
            failed = await run(tmp_path, *verb, "8", *(("--curve", key) if key else ()))
            assert failed.code
            assert why in failed.out + failed.err
            failed.check_no_traceback()

        async with trio.open_nursery() as nursery:  # each waits for all of its time
            for each in (
                (ran, "b.key", "may not submit: that needs the role submit"),
                (status, "one.key", "may not watch"),
                # It is not even asked for its own key.
                (ran, "stranger.key", "your file has the key of another server"),
                (ran, "unknown.key", "it does not know this key (400): its operator lets it in"),
                (ran, "", "give this side keys (--curve, or curve=)"),
            ):
                nursery.start_soon(refused, *each)
        assert (await run(tmp_path, "curve", "revoke", "keys", "board")).code == 0
        while (gone := await run(tmp_path, *status, "4", "--curve", "b.key")).code == 0:
            pass
        assert gone.code == 3
        assert "the key board was revoked" in gone.err
    await check_nothing_left(tmp_path)


async def test_doors_and_commands_of_their_own_come_in_with_their_keys(tmp_path: Path):
    await new_key(tmp_path, "door")
    async with served(tmp_path, "arithmetic", "--workers", "0", "--curve", "keys") as (_, address):
        of = ("serve", "--door-only", address, "--json")
        key = ("--door-curve", "door.key")
        async with forked(tmp_path, *of, *HTTP, *key) as door:
            assert await rollout((await door.event("ready"))["http"]) == 1.0
        of_verifiers = ("--verifiers-bind", "tcp://127.0.0.1:0")
        async with forked(tmp_path, *of, *of_verifiers, *key) as door:
            await door.event("ready")
        async with forked(tmp_path, *of, *HTTP) as door:
            await door.said("give this side keys (--curve, or curve=)")
    (tmp_path / "ask.py").write_text(ASK)
    asked = ("--", sys.executable, "ask.py", "door.key")
    done = await run(tmp_path, "run-with", "arithmetic", "--curve", "keys", *asked)
    assert (done.code, done.out.strip()) == (0, "1.0"), done.err
    await check_nothing_left(tmp_path)
