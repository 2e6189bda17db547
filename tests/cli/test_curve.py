"""``curve``: keys for a server and its clients, with the command as a process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.commands import run, served

pytestmark = pytest.mark.real


def names(folder: Path) -> list[str]:
    """All files of keys."""
    return sorted(path.name for path in folder.rglob("*") if path.suffix in (".key", ".toml"))


async def test_who_has_a_key_is_let_in_and_a_revoked_one_is_told(tmp_path: Path):
    for name, *more in (
        ("trainer",), ("board", "--role", "watch", "--out", "b.key"), ("one", "--role", "submit"),
    ):  # fmt: skip
        made = await run(tmp_path, "curve", "new", "keys", name, *more, "--json")
        assert made.code == 0, made.err
    for secret in ("keys/server.key", "trainer.key", "b.key"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600
    async with served(tmp_path, "arithmetic", "--curve", "keys") as (_, address):
        ran = ("eval", "arithmetic", "-n", "3", "--address", address, "--json")
        assert (await run(tmp_path, *ran, "--curve", "trainer.key")).code == 0
        seen = await run(tmp_path, "status", address, "--curve", "b.key", "--json")
        assert seen.code == 0, seen.err
        # Its role may not watch, and it is told so.
        blind = await run(tmp_path, "status", address, "--curve", "one.key", "--wait-s", "1")
        assert blind.code == 3
        assert "may not watch" in blind.err
        assert (await run(tmp_path, "curve", "revoke", "keys", "board")).code == 0
        for _ in range(100):
            gone = await run(tmp_path, "status", address, "--curve", "b.key", "--wait-s", "1")
            if gone.code:
                break
        assert gone.code == 3
        assert "the key board was revoked" in gone.err
        keyless = await run(tmp_path, "status", address, "--wait-s", "1")
        assert keyless.code == 3
        assert "it wants the mechanism CURVE" in keyless.err


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
    secret = (tmp_path / "one.key").read_text().rsplit('"', 2)[1]
    assert secret not in shown.out + shown.err + made.out + made.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("new", "keys", "one"), "keys has a key one: revoke it first"),
        (("new", "keys", "two", "--out", "one.key"), "one.key is there"),
        (("new", "keys", "../two"), "a NAME is letters"),
        (("new", "keys", "two", "--public", "x"), "is no key"),
        (("new", "keys", "two", "--role", "root"), "root"),
        (("revoke", "keys", "two"), "keys has no key two"),
        (("show", "nothing"), "nothing/server.key: No such file"),
    ],
)
async def test_what_is_wrong_is_said_and_changes_nothing(tmp_path: Path, arguments, why):
    assert (await run(tmp_path, "curve", "new", "keys", "one")).code == 0
    before = names(tmp_path)
    failed = await run(tmp_path, "curve", *arguments)
    assert failed.code
    assert why in failed.err
    assert names(tmp_path) == before


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


async def test_a_client_may_make_its_own_key(tmp_path: Path):
    from trio_envserve import KeyPair

    own = KeyPair.new()
    made = await run(tmp_path, "curve", "new", "keys", "one", "--public", own.public, "--json")
    assert made.last["public"] == own.public
    assert not (tmp_path / "one.key").exists()


@pytest.mark.parametrize(
    "doors", [(), ("--http", "127.0.0.1:0"), ("--http", "127.0.0.1:0", "--token-file", "x")]
)
async def test_an_address_that_others_reach_needs_keys_or_the_word_insecure(tmp_path, doors):
    failed = await run(tmp_path, "serve", "arithmetic", "--bind", "tcp://0.0.0.0:0", *doors)
    assert failed.code == 2
    assert "give a folder of keys (--curve DIR)" in failed.err
    assert "(--insecure)" in failed.err
