"""The keys of a server's clients: who may come in, and with which rights.

Theory of operation
-------------------
A :class:`ServerCurve` has the server's own pair and its clients, or a folder from which
both are read (:func:`ServerCurve.from_folder`; the command ``curve`` writes it).  The
folder is looked at every second: a new key may come in then, a right that has changed
counts for the next message, and a client whose key was taken away is told and its
connection ended.  A file that is no client's costs its own key only, and two files with one
key cost that one: which of them counts would be a guess.  A folder that cannot be listed
changes nothing.  Both are complained about once.

The :class:`Authenticator` is asked at each handshake, and tells the router who is behind
which route.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, final

import trio

from ..core import messages
from ..core.errors import ConfigError
from ..core.limits import PROTOCOL_VERSION
from ..core.rights import FORBIDDEN, ROLES
from ..core.router_inputs import PeerKnown
from ..net.keypairs import (
    ClientCurve,
    KeyPair,
    key_bytes,
    read_secret_file,
)
from ..net.zmtp.curve import STRANGER
from ..net.zmtp.sockets import ZmtpRouter
from ..regular_files import parse_toml, read_regular

_log = logging.getLogger("trio_envserve.server")

RELOAD_S: Final = 1.0

SERVER_FILE: Final = "server.key"
CLIENTS: Final = "clients"
REVOKED: Final = "revoked"

_ENDING: Final = ".toml"

_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Faults of this process or machine, not of a file."""

_FIELDS: Final = {"public", "roles", "namespaces", "share", "hosts"}


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ClientRight:
    """The public key of a client, and what its owner may do (the page on security)."""

    public: str
    """The public key, as 40 characters of Z85."""
    roles: tuple[str, ...] = ("submit",)
    """Roles of the client: any of ``submit``, ``work``, ``watch``, ``admin``."""
    namespaces: tuple[str, ...] = ()
    """The namespaces of its keys of requests; empty: any."""
    share: float = 1.0
    """The part of the bound on waiting requests that it may have unfinished."""
    hosts: tuple[str, ...] = ()
    """The only names that its hosts may have, which then no other key's have; empty: any."""

    def __post_init__(self) -> None:
        key_bytes(self.public, "the public key")
        for role in self.roles:
            if role not in ROLES:
                raise ConfigError(f"a role is one of {', '.join(ROLES)}, not {role!r}")
        if not self.roles:
            raise ConfigError(f"a key needs a role: {', '.join(ROLES)}")
        if any(not each or not each.isprintable() for each in self.hosts):
            raise ConfigError("a host's name is a line of printable text")
        if any(not each or not each.isprintable() for each in self.namespaces):
            raise ConfigError("a namespace is a line of printable text")
        if not 0 < self.share <= 1:
            raise ConfigError(f"a share is above 0 and at most 1, not {self.share}")


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ServerCurve:
    """The keys of a server and of its clients, by their names."""

    keys: KeyPair
    """The server's own pair."""
    clients: Mapping[str, ClientRight] = dataclasses.field(default_factory=dict)
    """The rights of its clients, by their names."""
    folder: Path | None = None
    """Folder from which both were read, and from which the clients are read again."""
    faults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The names in the folder whose files are no clients', each with the reason."""

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> ServerCurve:
        """Read a folder that ``trio-envserve curve new`` wrote.  Raises ConfigError.

        Args:
            folder: Its path.
        """
        path = Path(folder)
        if not os.path.lexists(path / SERVER_FILE):
            raise ConfigError(
                f"{path / SERVER_FILE}: No such file or directory; `trio-envserve curve new "
                f"{path} NAME` makes it"
            )
        read = read_secret_file(path / SERVER_FILE)
        keys = KeyPair.of_secret(read.get("secret", ""))
        clients, faults = read_clients(path / CLIENTS)
        return cls(keys, clients, path, faults)


def read_clients(folder: Path) -> tuple[dict[str, ClientRight], dict[str, str]]:
    """The clients of a folder, one in each file, and the reasons why other files in it are no
    client's, both by name.  Raises ConfigError if it cannot be listed."""
    found: dict[str, ClientRight] = {}
    faults: dict[str, str] = {}
    try:
        names = sorted(each for each in os.listdir(folder) if each.endswith(_ENDING))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}") from None
    for file in names:
        name = file.removesuffix(_ENDING)
        try:
            found[name] = read_client(folder / file)
        except FileNotFoundError:
            continue  # removed meanwhile, or a link to what is not there
        except OSError as error:
            if error.errno in _FULL:
                raise ConfigError(f"{folder}: {error.strerror}") from None
            faults[name] = _named(folder / file, error.strerror or str(error))
        except ConfigError as error:
            faults[name] = str(error)
    owners: dict[str, list[str]] = {}
    for name, client in found.items():
        owners.setdefault(client.public, []).append(name)
    for several in owners.values():
        if len(several) > 1:
            text = f"{folder}: {' and '.join(several)} have the same key"
            faults.update(dict.fromkeys(several, text))
    return {name: found[name] for name in found if name not in faults}, faults


def read_client(path: Path) -> ClientRight:
    """The client of a file.  Raises ConfigError, and OSError if it cannot be read."""
    try:
        if not path.stem.isprintable():
            raise ConfigError("its name is no text")
        read = parse_toml(read_regular(path)[0])
        if not _FIELDS.issuperset(read):
            raise ConfigError(f"it has {', '.join(sorted(set(read) - _FIELDS))}")
        for name in ("roles", "namespaces", "hosts"):
            listed = read.get(name, [])
            if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
                raise ConfigError(f"{name} is a list of texts")
        share = read.get("share", 1.0)
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ConfigError("share is a number")
        return ClientRight(
            read.get("public", ""), tuple(read.get("roles", ())),
            tuple(read.get("namespaces", ())), share if share > 1 else float(share),
            tuple(read.get("hosts", ())),
        )  # fmt: skip
    except (ValueError, ConfigError) as error:
        raise ConfigError(_named(path, str(error))) from None


def _named(path: Path, text: str) -> str:
    """A text about a file; its name may be made of any bytes."""
    name = ascii(str(path))[1:-1]
    return text if text.startswith(name) else f"{name}: {text}"


def _revoked(name: str) -> str:
    return f"the key {name} was revoked: ask who runs this server for a new one"


def _faulty(name: str) -> str:
    return f"the key {name} does not count: the server cannot read its file, and its log says why"


@final
class Authenticator:
    """Knows whose keys may come in, and who is there."""

    def __init__(self, curve: ServerCurve) -> None:
        self._folder = curve.folder
        self._clients: dict[bytes, tuple[str, ClientRight]] = {}
        self._gone: dict[bytes, str] = {}
        """The reasons, for their owners, why keys were taken away while this server ran."""
        own = KeyPair.new()
        self.own = ClientCurve(curve.keys.public, own)
        """The keys of the doors of this very server."""
        self._inside = "the server itself", ClientRight(own.public, ("admin",))
        self._front: ZmtpRouter | None = None
        self._here: dict[bytes, bytes] = {}
        """The keys of open connections, by route."""
        self._news: list[PeerKnown] = []
        self._complaint = ""
        self._faults: Mapping[str, str] = {}
        self._set(curve.clients, curve.faults)

    def admit(self, public: bytes) -> str:
        """See :data:`~trio_envserve.net.zmtp.curve.Admit`."""
        if public in self._clients:
            return ""
        return self._gone.get(public, STRANGER)

    def admit_host(self, public: bytes) -> str:
        """Whether a key may join as a host: the reason if not, else ""."""
        if refused := self.admit(public):
            return refused
        name, right = self._clients[public]
        may_work = {"work", "admin"} & {*right.roles}
        return "" if may_work else f"the key {name} may not work: that needs the role work"

    def name_of(self, public: bytes) -> str:
        """The name of a key that may come in."""
        return self._clients[public][0]

    def refuse_name(self, public: bytes, name: str) -> str:
        """The reason why the files of keys do not let a key have a host of this name, or ""."""
        key, right = self._clients[public]
        if right.hosts and name not in right.hosts:
            return f"the key {key} is for the hosts {', '.join(right.hosts)}, not for {name}"
        owners = [own for own, (_, each) in self._clients.items() if name in each.hosts]
        if owners and public not in owners:
            return f"the name {name} belongs to the key {self.name_of(owners[0])}"
        return ""

    def on_peer(self, route: bytes, origin: str | None) -> None:
        """A connection was opened or lost."""
        if origin is None:
            if self._here.pop(route, None) is not None:
                self._news.append(PeerKnown(route, "", "", "", 0.0))
        elif self._front is not None:
            self._here[route] = self._front.peer_key(route)
            self._news.append(self._known(route))

    def open(self, front: ZmtpRouter) -> None:
        """Begin.  From its first word on, the router lets nobody in without a right."""
        self._front = front
        self._news.append(PeerKnown(b"", "", "", "", 0.0))

    def news(self) -> list[PeerKnown]:
        """The changes that the router has not been told."""
        news, self._news = self._news, []
        return news

    async def keep(self, tell: Callable[[], None]) -> None:
        """Look at the folder again and again."""
        while True:
            await trio.sleep(RELOAD_S)
            await self.reload()
            tell()

    async def reload(self) -> None:
        """Take in what has changed in the folder."""
        if self._folder is None:
            return
        try:
            clients, faults = await trio.to_thread.run_sync(
                read_clients, self._folder / CLIENTS, abandon_on_cancel=True
            )
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.error("the keys of clients stay as they were: %s", error)
            return
        self._complaint = ""
        self._set(clients, faults)

    def _set(self, clients: Mapping[str, ClientRight], faults: Mapping[str, str]) -> None:
        for name, why in faults.items():
            if self._faults.get(name) != why:
                _log.error("nobody comes in with the key %a: %s", name, why)
        self._faults = faults
        before = self._clients
        self._clients = {
            key_bytes(right.public, name): (name, right) for name, right in clients.items()
        }
        self._clients[key_bytes(self.own.keys.public, "it")] = self._inside
        for public, (name, _) in before.items():
            if public not in self._clients:
                if name in faults:
                    self._gone[public] = _faulty(name)
                else:
                    self._gone[public] = _revoked(name)
                    _log.warning("the key %s was revoked", name)
        if before == self._clients:
            return
        for route, public in list(self._here.items()):
            if public not in self._clients:
                self._send_away(route, self._gone[public])
            elif self._clients[public] != before.get(public):
                self._news.append(self._known(route))

    def _send_away(self, route: bytes, text: str) -> None:
        assert self._front is not None
        error = messages.Error(PROTOCOL_VERSION, FORBIDDEN, text)
        self._front.send_nowait(route, (messages.encode(error),))
        self._front.close_peer(route, text)

    def _known(self, route: bytes) -> PeerKnown:
        name, right = self._clients[self._here[route]]
        spaces = "\n".join(right.namespaces)
        return PeerKnown(route, name, " ".join(right.roles), spaces, right.share)
