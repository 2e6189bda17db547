"""Folders of keys for servers of tests."""

from __future__ import annotations

from pathlib import Path

from trio_envserve import KeyPair
from trio_envserve.net.keypairs import write_whole

SERVER = KeyPair.new()
"""The pair of the server whose folder it is."""


def write_client(folder: Path, name: str, keys: KeyPair, roles: str = '["submit"]') -> None:
    """The file of a client, or another one in its place."""
    text = f'public = "{keys.public}"\nroles = {roles}\n'
    write_whole(folder / "clients" / f"{name}.toml", text, 0o644)


def key_folder(folder: Path) -> Path:
    """A folder of keys, as the command makes it, without clients."""
    (folder / "clients").mkdir(parents=True)
    write_whole(folder / "server.key", f'secret = "{SERVER.secret}"\n', 0o600)
    return folder
