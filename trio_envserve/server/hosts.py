"""The hosts of a server: the shell of :class:`~trio_envserve.core.server_hosts.ServerHosts`.

Theory of operation
-------------------
Hosts connect to an address of their own.  Before the first one is answered the server
writes down, beside each lock that proves its epoch dead, how long a later one must wait
besides (:class:`EpochRecords`): the lock says nothing of the workers of other machines.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import trio

from ..core.earlier_epochs import EarlierEpochs, EpochWait
from ..core.errors import ProtocolError, ServerStartError
from ..core.executions import Worker
from ..core.host_pool import Hosts, ToHost
from ..core.lease import NO_LEASE_S, LeaseTerms
from ..core.limits import WireLimits
from ..core.router import Router
from ..core.router_effects import RouterEffect
from ..core.router_inputs import RouterInput
from ..core.server_hosts import ServerHosts
from ..core.terms import ID_BYTES, Body
from ..net import RouterSocket
from ..net.zmtp.sockets import ZmtpRouter
from .curve import Doorkeeper

_log = logging.getLogger("trio_envserve.server")

COMPLAIN_S = 1.0
"""The pause between lines about malformed messages."""

NAMES_MOST = 10_000
"""Names of hosts that are kept for a key; the one that was used longest ago goes first."""


@final
class EpochRecords:
    """The records beside each epoch lock: the epochs whose hosts may have workers, and
    how long each is to be waited for."""

    def __init__(self, locks: Sequence[Path]) -> None:
        self._paths = [path.with_suffix(".hosts") for path in locks]

    def read(self) -> list[EpochWait]:
        """Read them; all locks are held.  How long to wait from now for the hosts of each of
        those epochs."""
        found: dict[bytes, EpochWait] = {}
        for each in (wait for path in self._paths for wait in _read(path)):
            found[each.epoch] = _both(each, found.get(each.epoch, each))
        return list(found.values())

    def write(self, waits: Sequence[EpochWait]) -> None:
        """Write them anew, safely.  Raises ServerStartError."""
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
                    f"{path} cannot be written: {error.strerror}; a later server needs it to "
                    "know how long the hosts of this one may have workers"
                ) from error

    def until(self, earlier: EarlierEpochs, now_s: float) -> str:
        """When the hosts of those epochs have no workers any more, for people."""
        if earlier.longest_s < NO_LEASE_S:
            return f"{earlier.until_s - now_s:.0f} s"
        places = " and ".join(map(str, self._paths))
        return (
            "they had no lease: until each of them has come; whoever knows that they are dead "
            f"removes {places} and starts the server anew"
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
    """The records of an epoch in two files as one: it may have been written to one of them only."""
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
        raise ServerStartError(f"{path} has what is no epoch")
    return found


@final
class HostDoor:
    """The keys that may join.  One that was taken away loses its connection; its lease ends.

    A host's name belongs to the key whose file has it, else to the key that used it first, as
    long as that may join: also while no host of it is here, or another key could keep it out
    whenever it starts anew.  When that key was revoked, the name is free; who uses it next
    waits, as ever, until the host that was here is known to be dead."""

    def __init__(self, doorkeeper: Doorkeeper) -> None:
        self.admit = doorkeeper.admit_host
        self._doorkeeper = doorkeeper
        self._names: dict[bytes, OrderedDict[str, None]] = {}
        """The names that each key has used, the newest last."""
        self._here: dict[bytes, bytes] = {}
        self._socket: ZmtpRouter | None = None

    def open(self, socket: ZmtpRouter) -> None:
        """Begin."""
        self._socket = socket

    def on_peer(self, route: bytes, place: str | None) -> None:
        """A connection was opened or lost."""
        if place is None:
            self._here.pop(route, None)
        elif self._socket is not None:
            self._here[route] = self._socket.peer_key(route)

    def claim(self, route: bytes, name: str) -> str:
        """The reason why the peer behind a route may not be the host of a name, or "": then the
        name belongs to its key."""
        public = self._here.get(route)
        if public is None:
            return "its connection has ended"
        if refused := self._doorkeeper.refuse_name(public, name):
            return refused
        for other, names in list(self._names.items()):
            if self.admit(other):
                del self._names[other]  # it was taken away
            elif other != public and name in names:
                return f"the name {name} belongs to the key {self._doorkeeper.name_of(other)}"
        names = self._names.setdefault(public, OrderedDict())
        names[name] = None
        names.move_to_end(name)
        if len(names) > NAMES_MOST:
            names.popitem(last=False)
        return ""

    def look(self) -> None:
        """Close the connections of those that may not be here any more."""
        for route, public in list(self._here.items()):
            if (refused := self.admit(public)) and self._socket is not None:
                del self._here[route]
                self._socket.close_peer(route, refused)


@final
class HostDesk:
    """The hosts of one server, their socket and the record on the disk."""

    def __init__(
        self, router: Router, socket: RouterSocket, terms: LeaseTerms, wire: WireLimits,
        serves: dict[str, Any], needs: Mapping[str, float], door: HostDoor | None = None,
    ) -> None:  # fmt: skip
        self._wrong = 0
        """Messages that were none, of which nothing was logged."""
        self._complained_s = float("-inf")
        self._records: EpochRecords | None = None
        self._door = door
        self._socket = socket
        self._core = ServerHosts(
            router, terms, wire=wire, needs=dict(needs), serves=serves,
            claim=None if door is None else door.claim,
        )  # fmt: skip

    @property
    def hosts(self) -> Hosts:
        """The hosts that are here."""
        return self._core.hosts

    async def end_memberships(self, earlier: EarlierEpochs) -> None:
        """Until cancelled: tell the hosts of ``earlier`` that their memberships are over, and hear
        which have ended.  For a server that takes nothing over, before :meth:`open`; nobody is
        welcomed yet, and who asks in vain asks again."""
        self._core.earlier = earlier
        while True:
            for route, *frames in await self._socket.receive():
                try:
                    told = self._core.end_membership(
                        bytes(route), [bytes(frame) for frame in frames]
                    )
                except ProtocolError:
                    continue  # whoever it is hears that once this server welcomes hosts
                if told is not None:
                    self._socket.send_nowait(told.route, told.frames)

    def open(self, records: EpochRecords, earlier: EarlierEpochs | None) -> None:
        """Before the first host is welcomed.  ``earlier``: those whose journal this server
        has, if it has one; their hosts may come back."""
        self._records = records
        self._core.open(earlier)
        self._write(trio.current_time())

    def _write(self, now_s: float) -> None:
        """Write down what a later server must know, if it has changed.  If that cannot be,
        nothing is said to hosts that are new: they ask again."""
        record = self._core.record(now_s)
        if record is None or self._records is None:
            return
        try:
            self._records.write(record)
        except ServerStartError as error:
            if not self._core.is_recorded:  # it has only begun
                raise
            if self._core.not_written():
                _log.error("no other host can join: %s", error)
        else:
            self._core.written(record)

    def closed(self) -> None:
        """All workers of this server's hosts have ended."""
        if self._records is not None and self._core.earlier.waits:
            self._records.write(self._core.earlier.waits)
        elif self._records is not None:
            self._records.clear()

    @property
    def address(self) -> str:
        """The address that hosts connect to."""
        return self._socket.address

    def host_of(self, worker: bytes) -> str | None:
        """The name of the host that has a worker; None for one of this machine."""
        return self.hosts.host_of(worker)

    def take(self, effect: RouterEffect) -> bool:
        """Whether an effect starts or kills a worker of a host; :meth:`flush` sends it there."""
        return self.hosts.take(effect)

    def tell(self, worker: bytes, told: Sequence[tuple[Body, ...]]) -> bool:
        """Whether messages are for a worker of a host; :meth:`flush` sends them there."""
        return self.hosts.tell(worker, told)

    def flush(self) -> None:
        """Send what was taken, together."""
        self.hosts.flush()
        left = self._send()
        assert not left

    def records(self, workers: Mapping[bytes, Worker], now_s: float) -> dict[str, Any]:
        """The statistics of hosts."""
        running = {worker: len(each.live) for worker, each in workers.items()}
        return self.hosts.records(running, now_s)

    def tick(self, now_s: float) -> tuple[list[RouterEffect], list[RouterInput]]:
        """Before each tick of the router: what follows, in this order."""
        if self._door is not None:
            self._door.look()
        inputs = self._core.tick(now_s)
        self._write(now_s)
        return self._send(), inputs

    async def serve(self, give: Callable[[list[RouterEffect], list[RouterInput]], None]) -> None:
        """Take in what hosts say, until cancelled."""
        while True:
            batch = await self._socket.receive()
            now_s = trio.current_time()
            for route, *frames in batch:
                inputs: list[RouterInput] = []
                try:
                    inputs = self._core.message(
                        bytes(route), [bytes(frame) for frame in frames], now_s
                    )
                except ProtocolError as error:
                    self._complain(error, now_s)
                give(self._send(), inputs)
            self._write(now_s)  # once for all of them, and before any is welcomed
            give(self._send(), [])

    def _complain(self, error: ProtocolError, now_s: float) -> None:
        """Log it, but not each of very many."""
        self._wrong += 1
        if now_s >= self._complained_s + COMPLAIN_S:
            others = f" (and {self._wrong - 1} more)" if self._wrong > 1 else ""
            _log.warning("a host sent a malformed message: %s%s", error, others)
            self._complained_s, self._wrong = now_s, 0

    def _send(self) -> list[RouterEffect]:
        """Send what hosts are to be told now; the rest is the router's."""
        rest: list[RouterEffect] = []
        for effect in self._core.effects():
            if isinstance(effect, ToHost):
                # Not sent is no loss: the host's next beat repairs it.
                self._socket.send_nowait(effect.route, effect.frames)
            else:
                rest.append(effect)
        return rest
