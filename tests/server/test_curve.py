"""A server whose clients have keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from trio_envserve import (
    ClientCurve,
    ClientRight,
    ConfigError,
    KeyPair,
    RequestRefused,
    ServerCurve,
    open_client,
    open_server,
)
from trio_envserve.net import MemoryNetwork
from trio_envserve.net.keypairs import write_whole
from trio_envserve.server import curve as curve_module
from trio_envserve.server.curve import read_client, read_clients

SERVER, TRAINER, WATCHER, STRANGER = (KeyPair.new() for _ in range(4))
CLIENTS = {
    "trainer": ClientRight(TRAINER.public),
    "watcher": ClientRight(WATCHER.public, ("watch",)),
}
CURVE = ServerCurve(SERVER, CLIENTS)


def of(keys: KeyPair) -> ClientCurve:
    return ClientCurve(SERVER.public, keys)


def write_client(folder: Path, name: str, keys: KeyPair, roles: str = '["submit"]') -> None:
    text = f'public = "{keys.public}"\nroles = {roles}\n'
    write_whole(folder / "clients" / f"{name}.toml", text, 0o644)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder of keys, as the command makes it."""
    (tmp_path / "clients").mkdir()
    write_whole(tmp_path / "server.key", f'secret = "{SERVER.secret}"\n', 0o600)
    write_client(tmp_path, "trainer", TRAINER)
    return tmp_path


@pytest.mark.real
async def test_a_client_with_a_key_runs_rollouts():
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, curve=CURVE) as server:
            async with open_client(server.address, curve=of(TRAINER)) as client:
                assert (await client.run_rollout({"index": 0}))["reward"] is not None


@pytest.mark.real
async def test_a_wrong_role_is_refused_in_words_and_nothing_runs():
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, curve=CURVE) as server:
            async with open_client(server.address, curve=of(WATCHER)) as client:
                with pytest.raises(RequestRefused, match=r"the key watcher .role watch. may not"):
                    await client.run_rollout({"index": 0})
                assert (await client.stats()).cache.entered == 0


@pytest.mark.real
async def test_a_stranger_is_told_that_its_key_is_not_known():
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, curve=CURVE) as server:
            async with open_client(server.address, curve=of(STRANGER)) as client:
                while "does not know this key" not in client.health().reason:
                    await trio.sleep(0.01)
            async with open_client(server.address) as client:
                while "it wants the mechanism CURVE" not in client.health().reason:
                    await trio.sleep(0.01)
            assert server.stats().sessions == 0


@pytest.mark.real
async def test_a_revoked_key_is_told_and_its_connection_ends(keys, monkeypatch):
    monkeypatch.setattr(curve_module, "RELOAD_S", 0.01)
    with trio.fail_after(60):
        curve = ServerCurve.from_folder(keys)
        async with open_server("arithmetic", workers=0, curve=curve) as server:
            async with open_client(server.address, curve=of(TRAINER)) as client:
                await client.run_rollout({"index": 0})
                (keys / "clients" / "trainer.toml").unlink()
                while "the key trainer was revoked" not in client.health().reason:
                    await trio.sleep(0.01)
                assert server._front.statistics().closed


@pytest.mark.real
async def test_a_new_key_comes_in_without_a_restart(keys, monkeypatch):
    monkeypatch.setattr(curve_module, "RELOAD_S", 0.01)
    with trio.fail_after(60):
        curve = ServerCurve.from_folder(keys)
        async with open_server("arithmetic", workers=0, curve=curve) as server:
            async with open_client(server.address, curve=of(STRANGER)) as client:
                while "does not know this key" not in client.health().reason:
                    await trio.sleep(0.01)
                write_client(keys, "new", STRANGER)
                await client.run_rollout({"index": 0})


@pytest.mark.real
async def test_a_right_that_changes_counts_for_the_next_message(keys, monkeypatch):
    monkeypatch.setattr(curve_module, "RELOAD_S", 0.01)
    with trio.fail_after(60):
        curve = ServerCurve.from_folder(keys)
        async with open_server("arithmetic", workers=0, curve=curve) as server:
            async with open_client(server.address, curve=of(TRAINER)) as client:
                await client.run_rollout({"index": 0})
                write_client(keys, "trainer", TRAINER, '["watch"]')
                with pytest.raises(RequestRefused, match="may not submit"):
                    while True:
                        await client.run_rollout({"index": 0})


@pytest.mark.real
async def test_a_folder_that_cannot_be_read_changes_nothing(keys, caplog):
    curve = ServerCurve.from_folder(keys)
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, curve=curve) as server:
            async with open_client(server.address, curve=of(TRAINER)) as client:
                await client.run_rollout({"index": 0})
                (keys / "clients" / "trainer.toml").write_text("nonsense [")
                keeper = server._doorkeeper
                assert keeper is not None
                await keeper.reload()
                await keeper.reload()
                await client.run_rollout({"index": 0})
    assert caplog.text.count("the keys of clients stay as they were") == 1


@pytest.mark.parametrize(
    "options",
    [{"transport": "libzmq"}, {"network": MemoryNetwork(), "bind": "memory:*"}],
)
async def test_what_cannot_have_keys_is_refused(options):
    with pytest.raises(ConfigError, match="curve needs transport"):
        async with open_server("arithmetic", workers=0, curve=CURVE, **options):
            pass


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the public key is no key"),
        ("nonsense [", "one.toml"),
        ('public = "PUBLIC"', "a key needs a role"),
        ('public = "PUBLIC"\nroles = "submit"', "roles is a list"),
        ('public = "PUBLIC"\nroles = ["root"]', "a role is one of submit, work, watch, admin"),
        ('public = "PUBLIC"\nroles = ["work"]\nshare = 0', "a share is above 0"),
        ('public = "PUBLIC"\nroles = ["work"]\nshare = true', "share is a number"),
        ('public = "PUBLIC"\nroles = ["work"]\nsecret = "x"', "it has secret"),
        ('public = "PUBLIC"\nroles = ["work"]\nnamespaces = [""]', "a namespace is a line"),
    ],
)
def test_a_file_of_a_client_that_is_wrong_is_named(tmp_path, text, why):
    path = tmp_path / "one.toml"
    path.write_text(text.replace("PUBLIC", TRAINER.public))
    with pytest.raises(ConfigError, match=why):
        read_client(path)


def test_two_names_for_one_key_are_refused(keys):
    write_client(keys, "twin", TRAINER)
    with pytest.raises(ConfigError, match="trainer and twin have the same key"):
        read_clients(keys / "clients")
