"""The hosts of a server, less what :class:`~trio_envserve.core.host_pool.Hosts` decides.

Theory of operation
-------------------
Hosts connect to an address of their own.  The locks of a server prove to a later server that the
processes of this machine are dead, but nothing about other machines.  So before the first host is
answered, the server writes beside each lock how long a later server must wait for the hosts
(:class:`EpochRecords`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import final

from ..core.errors import ServerStartError
from ..core.lease import NO_LEASE_S, EarlierEpochs, EpochWait
from ..core.router import Router
from ..core.router_inputs import HostsRecorded
from ..core.terms import ID_BYTES
from ..net import RouterSocket
from ..net.zmtp.sockets import ZmtpRouter
from .curve import Authenticator

NAMES_MOST = 10_000
"""Most names of hosts that are kept for a key; the least recently used one is dropped."""


@final
class EpochRecords:
    """The files beside the epoch locks: the epochs whose hosts may have workers, and how long a
    later server must wait for each."""

    def __init__(self, locks: Sequence[Path]) -> None:
        self._paths = [path.with_suffix(".hosts") for path in locks]

    def read(self) -> list[EpochWait]:
        """Read the epochs, each with the wait from now; all locks must be held."""
        found: dict[bytes, EpochWait] = {}
        for each in (wait for path in self._paths for wait in _read(path)):
            found[each.epoch] = _both(each, found.get(each.epoch, each))
        return list(found.values())

    def write(self, waits: Sequence[EpochWait]) -> None:
        """Replace the records durably.  Raises ServerStartError."""
        text = "".join(map(_line, waits))
        for path in self._paths:
            draft = path.with_suffix(".hosts-new")
            try:
                with open(draft, "w", encoding="ascii") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                draft.rename(path)
                folder = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            except OSError as error:
                raise ServerStartError(
                    f"{path} cannot be written: {error.strerror}; without it a later server "
                    "could not know how long the hosts of this one may have workers"
                ) from error

    def until(self, earlier: EarlierEpochs, now_s: float) -> str:
        """The time at which the hosts of earlier epochs have no workers left, for people."""
        if earlier.longest_s < NO_LEASE_S:
            return f"{earlier.until_s - now_s:.0f} s"
        files = " and ".join(map(str, self._paths))
        return (
            "they had no lease, so until each of them has joined; if you know that they are dead, "
            f"remove {files} and start the server again"
        )

    def clear(self) -> None:
        """Remove the records: the workers of all hosts have ended."""
        for path in self._paths:
            path.unlink(missing_ok=True)


def _line(wait: EpochWait) -> str:
    words = [wait.epoch.hex(), repr(wait.wait_s)]
    if wait.memberships is not None:
        words += ["hosts", *sorted(each.hex() for each in wait.memberships)]
    return " ".join(words) + "\n"


def _wait(line: str) -> EpochWait:
    epoch, wait_s, *words = line.split()
    memberships = frozenset(map(bytes.fromhex, words[1:])) if words[:1] == ["hosts"] else None
    return EpochWait(bytes.fromhex(epoch), float(wait_s), memberships)


def _both(one: EpochWait, other: EpochWait) -> EpochWait:
    """The record of an epoch that two files have, of which one may be older."""
    known = one.memberships is not None and other.memberships is not None
    memberships = (one.memberships or frozenset()) | (other.memberships or frozenset())
    wait_s = max(one.wait_s, other.wait_s)
    return EpochWait(one.epoch, wait_s, memberships if known else None)


def _read(path: Path) -> list[EpochWait]:
    try:
        found = [_wait(line) for line in path.read_text("ascii").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ServerStartError(f"{path} cannot be read: {error}") from error
    if any(len(each.epoch) != ID_BYTES for each in found):
        raise ServerStartError(f"{path} is damaged: a line does not begin with an epoch")
    return found


@final
class HostAuthenticator:
    """Decides which keys may join as hosts, and under which names.

    A revoked key loses its connections; then its lease runs out.

    A host's name belongs to the key whose file has it, else to the key that used it first, as long
    as that key may join.  It does so also while the host is away: otherwise another key could take
    the name while the host restarts.  The name of a revoked key is free; its next user waits, like
    any other, until the old host is known to be dead."""

    def __init__(self, authenticator: Authenticator) -> None:
        self.admit = authenticator.admit_host
        self._authenticator = authenticator
        self._names: dict[bytes, OrderedDict[str, None]] = {}
        """Names that each key has used, the newest last."""
        self._here: dict[bytes, bytes] = {}
        """Public key of each connected peer, by route."""
        self._socket: ZmtpRouter | None = None

    def open(self, socket: ZmtpRouter) -> None:
        """Begin with this socket."""
        self._socket = socket

    def on_peer(self, route: bytes, origin: str | None) -> None:
        """Note that a connection was opened, or lost if ``origin`` is None."""
        if origin is None:
            self._here.pop(route, None)
        elif self._socket is not None:
            self._here[route] = self._socket.peer_key(route)

    def claim(self, route: bytes, name: str) -> str:
        """Give a name to the key of the peer behind a route; returns why it may not have it, or
        ""."""
        public = self._here.get(route)
        if public is None:
            return "its connection has ended"
        if refused := self._authenticator.refuse_name(public, name):
            return refused
        for other, names in list(self._names.items()):
            if self.admit(other):
                del self._names[other]  # that key was revoked
            elif other != public and name in names:
                return f"the name {name} belongs to the key {self._authenticator.name_of(other)}"
        names = self._names.setdefault(public, OrderedDict())
        names[name] = None
        names.move_to_end(name)
        if len(names) > NAMES_MOST:
            names.popitem(last=False)
        return ""

    def look(self) -> None:
        """Close the connections of keys that may not join any more."""
        for route, public in list(self._here.items()):
            if (refused := self.admit(public)) and self._socket is not None:
                del self._here[route]
                self._socket.close_peer(route, refused)


@final
class HostsShell:
    """The shell of a server's hosts: their socket, and the records on the disk."""

    def __init__(
        self, router: Router, socket: RouterSocket, authenticator: HostAuthenticator | None = None
    ) -> None:
        self.send = socket.send_nowait
        self.receive = socket.receive
        self._address = socket.address
        self._authenticator = authenticator
        self._router = router
        """Read only."""
        self._records: EpochRecords | None = None

    @property
    def address(self) -> str:
        """The address that hosts connect to."""
        return self._address

    def look(self) -> None:
        """Close the connections of keys that may not join any more."""
        if self._authenticator is not None:
            self._authenticator.look()

    def open(self, records: EpochRecords) -> None:
        """Begin with these records."""
        self._records = records

    def write(self, waits: Sequence[EpochWait]) -> HostsRecorded:
        """Write the record for later servers."""
        assert self._records is not None
        hosts = self._router.hosts
        try:
            self._records.write(waits)
        except ServerStartError as error:
            if hosts is not None and not hosts.is_recorded:  # it has only begun
                raise
            return HostsRecorded(str(error))
        return HostsRecorded("")

    def closed(self) -> None:
        """Remove this server from the records: all workers of its hosts have ended."""
        if self._records is None:
            return
        hosts = self._router.hosts
        if hosts is not None and (waits := hosts.leases.earlier.waits):
            self._records.write(waits)
        else:
            self._records.clear()
