"""The verbs ``curve new``, ``show`` and ``revoke``: the keys of a server and of its clients, in a
folder."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ..core.errors import ConfigError
from ..core.rights import ROLES
from ..net.keypairs import ClientCurve, KeyPair, read_secret_file, write_whole
from ..options import argument, option
from ..pages.tables import records_table
from ..server.curve import (
    CLIENTS,
    REVOKED,
    SERVER_FILE,
    ClientRight,
    read_client,
    read_clients,
)
from .common import OK, Result
from .render import say
from .verbs import VerbOptions, verb

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ConfigError("a NAME is letters, digits and _ . - , at most 64")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfCurve(VerbOptions):
    """The options of the verbs of keys."""

    folder: Path = argument("The folder of keys.", metavar="DIR", make=Path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RevokeKey(OfCurve):
    """The options of ``curve revoke``."""

    name: str = argument("The name of a key.", make=_name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewKey(RevokeKey):
    """The options of ``curve new``."""

    roles: tuple[str, ...] = option(
        (), "What the key may do.", flag="--role", metavar="|".join(ROLES),
        shown="submit and watch", common=True,
    )  # fmt: skip
    namespace: tuple[str, ...] = option(
        (), "The only namespaces that it may use.", metavar="NAME", shown="any", common=True
    )
    share: float = option(
        1.0, "The part of the bound on waiting requests that it may have unfinished.",
        metavar="PART", above=0, most=1, common=True,
    )  # fmt: skip
    host: tuple[str, ...] = option(
        (), "The only names that its hosts may have. No other key's have them then.",
        metavar="NAME", common=True,
    )  # fmt: skip
    out: Path | None = option(
        None, "Where the client's file goes.", metavar="FILE", shown="NAME.key", make=Path,
        common=True,
    )  # fmt: skip
    public: str | None = option(
        None, "A public key that the client has made itself. No file is written for it.",
        metavar="KEY", common=True,
    )  # fmt: skip


@verb(NewKey)
def new(asked: NewKey) -> Result:
    """Make a key of a client, NAME, in DIR; the first one comes with the server's own.

    Examples:
      trio-envserve curve new keys trainer
      trio-envserve curve new keys dashboard --role watch --out dashboard.key
      trio-envserve serve arithmetic --curve keys --bind tcp://0.0.0.0:5555
      trio-envserve status tcp://server:5555 --curve dashboard.key

    A running server takes a new key within some seconds. The roles are submit, watch, admin,
    and work, which is for machines that join; eval needs submit and watch.
    """
    folder, name = asked.folder, asked.name
    if asked.public is not None and asked.out is not None:
        raise ConfigError("--out is for a key that is made here: no file is written with --public")
    pair = None if asked.public is not None else KeyPair.new()
    key = asked.public or (pair.public if pair else "")
    roles = asked.roles or ("submit", "watch")
    right = ClientRight(key, roles, asked.namespace, asked.share, asked.host)
    target = asked.out or Path(f"{name}.key")
    entry = folder / CLIENTS / f"{name}.toml"
    if entry.exists():
        raise ConfigError(f"{folder} has a key {name}: revoke it first")
    if pair is not None and target.exists():
        raise ConfigError(f"{target} is there: name another file with --out")
    server = _server(folder)
    clients, faults = read_clients(folder / CLIENTS)
    _say_faults(faults)
    if any(each.public == right.public for each in clients.values()):
        raise ConfigError(f"{folder} has this public key under another name")
    record: dict[str, Any] = {"name": name, "public": right.public, "server": server.public}
    if pair is not None:
        text = ClientCurve(server.public, pair).to_text()
        write_whole(target, f"# The key of {name}: keep it secret.\n{text}", 0o600)
        record["file"] = os.fspath(target)
    write_whole(entry, _entry(right), 0o644)
    if pair is not None:
        say(f"wrote {target}, which has the client's secret key: give it to nobody else")
    line = f"{name} may {', '.join(right.roles)}; the server's public key is {server.public}"
    return Result(OK, record, [line])


@verb(OfCurve)
def show(asked: OfCurve) -> Result:
    """Show the server's public key, and the keys of its clients, which DIR has.

    Example:
      trio-envserve curve show keys
    """
    folder = asked.folder
    server = KeyPair.of_secret(read_secret_file(folder / SERVER_FILE).get("secret", ""))
    clients, faults = read_clients(folder / CLIENTS)
    _say_faults(faults)
    listed = [{"name": name, **dataclasses.asdict(each)} for name, each in clients.items()]
    summary = {"server": server.public, "keys": listed, "faults": faults}
    table = records_table(
        f"{len(listed)} keys in {folder}", listed,
        ("name", "roles", "namespaces", "hosts", "share", "public"),
        left=["name", "roles", "namespaces", "hosts", "public"],
    )  # fmt: skip
    return Result(OK, summary, [f"the server's public key is {server.public}", table])


@verb(RevokeKey)
def revoke(asked: RevokeKey) -> Result:
    """Take the key NAME away, and others in DIR that are the same key.

    A running server ends the connections of a revoked key within some seconds.

    Example:
      trio-envserve curve revoke keys trainer
    """
    folder, name = asked.folder, asked.name
    entry = folder / CLIENTS / f"{name}.toml"
    if not os.path.lexists(entry):
        raise ConfigError(f"{folder} has no key {name}")
    public = _public(entry)
    names = [name]
    if public:  # under another name it would come in again
        others = sorted({*(folder / CLIENTS).glob("*.toml")} - {entry})
        names += [path.stem for path in others if _public(path) == public]
    revoked = folder / REVOKED
    with _told():
        revoked.mkdir(exist_ok=True)
        for each in names:
            os.replace(folder / CLIENTS / f"{each}.toml", revoked / f"{each}.toml")
    _say_faults(read_clients(folder / CLIENTS)[1])
    line = f"revoked: {', '.join(names)}; a running server ends the connections in some seconds"
    return Result(OK, {"name": name, "names": names, "public": public}, [line])


def _server(folder: Path) -> KeyPair:
    """The server's pair, made if the folder has none."""
    path = folder / SERVER_FILE
    if path.exists():
        return KeyPair.of_secret(read_secret_file(path).get("secret", ""))
    pair = KeyPair.new()
    with _told():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / CLIENTS).mkdir(exist_ok=True)
    text = f'# The server\'s own key.\npublic = "{pair.public}"\nsecret = "{pair.secret}"\n'
    write_whole(path, text, 0o600)
    return pair


@contextmanager
def _told() -> Iterator[None]:
    """Raise an error of the system as ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None


def _entry(right: ClientRight) -> str:
    fields = {
        "public": right.public, "roles": right.roles, "namespaces": right.namespaces,
        "hosts": right.hosts, "share": right.share if right.share < 1 else None,
    }  # fmt: skip
    # Texts, numbers and lists of TOML are those of JSON.
    lines = (
        f"{name} = {json.dumps(one, ensure_ascii=False)}\n" for name, one in fields.items() if one
    )
    return "".join(lines)


def _say_faults(faults: Mapping[str, str]) -> None:
    for name, why in faults.items():
        say(f"nobody comes in with the key {name!a}: {why}")


def _public(path: Path) -> str:
    """The public key of a file, or "" if it is no client's."""
    try:
        return read_client(path).public
    except (OSError, ConfigError):
        return ""
