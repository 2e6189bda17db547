"""The hosts of a server: the shell of :class:`~trio_envserve.core.host_pool.Hosts`.

Theory of operation
-------------------
Hosts connect to an address of their own.  Before the first one is answered the server
writes down, beside each lock that proves its epoch dead, how long a later one must wait
besides (:class:`EpochRecords`): the lock says nothing of the workers of other machines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import trio

from ..core.errors import ProtocolError, ServerStartError
from ..core.executions import Worker
from ..core.host_pool import Hosts, ToHost
from ..core.lease import EpochWait, LeaseTerms
from ..core.limits import WireLimits
from ..core.router import Router
from ..core.router_effects import RouterEffect
from ..core.router_inputs import RouterInput
from ..core.terms import ID_BYTES
from ..net import RouterSocket
from ..net.zmtp.sockets import ZmtpRouter
from .curve import Doorkeeper

_log = logging.getLogger("trio_envserve.server")


@final
class EpochRecords:
    """What is written beside each epoch lock: the epochs whose hosts may have workers, and
    how long each is to be waited for."""

    def __init__(self, locks: Sequence[Path]) -> None:
        self._paths = [path.with_suffix(".hosts") for path in locks]
        self.written = False

    def read(self) -> float:
        """Read them; all locks are held.  How long to wait from now for the hosts of those
        epochs."""
        waits: dict[bytes, float] = {}
        for path in self._paths:
            for epoch, wait_s in _read(path):
                waits[epoch] = max(wait_s, waits.get(epoch, 0.0))
        return max(waits.values(), default=0.0)

    def write(self, waits: Sequence[EpochWait]) -> None:
        """Write them anew, safely, after the earlier ones were waited for.  Raises
        ServerStartError."""
        self.written = True
        text = "".join(f"{each.epoch.hex()} {each.wait_s!r}\n" for each in waits)
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

    def clear(self) -> None:
        """What they say is over: the workers of all hosts have ended."""
        for path in self._paths:
            path.unlink(missing_ok=True)


def _read(path: Path) -> list[tuple[bytes, float]]:
    found = []
    try:
        for line in path.read_text("ascii").splitlines():
            epoch, wait_s = line.split()
            found.append((bytes.fromhex(epoch), float(wait_s)))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ServerStartError(f"{path} cannot be read: {error}") from error
    if any(len(epoch) != ID_BYTES for epoch, _ in found):
        raise ServerStartError(f"{path} has what is no epoch")
    return found


@final
class HostDoor:
    """Whose keys may join.  One that was taken away loses its connection; its lease ends."""

    def __init__(self, doorkeeper: Doorkeeper) -> None:
        self.admit = doorkeeper.admit_host
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

    def look(self) -> None:
        """Close the connections of those that may not be here any more."""
        for route, public in list(self._here.items()):
            if (refused := self.admit(public)) and self._socket is not None:
                del self._here[route]
                self._socket.close_peer(route, refused)


@final
class HostDesk:
    """The hosts of one server."""

    def __init__(
        self, router: Router, socket: RouterSocket, terms: LeaseTerms, wire: WireLimits,
        serves: dict[str, Any], needs: Mapping[str, float], door: HostDoor | None = None,
    ) -> None:  # fmt: skip
        self.hosts = Hosts(
            router.pool, terms, router.epoch, needs=dict(needs), wire=wire, serves=serves
        )
        self.wait = EpochWait(router.epoch, terms.wait_s)
        """To be written before the first host is welcomed."""
        self._socket = socket
        self._door = door

    @property
    def address(self) -> str:
        """Where hosts connect to."""
        return self._socket.address

    def host_of(self, worker: bytes) -> str | None:
        """The name of the host that has a worker; None for one of this machine."""
        return self.hosts.host_of(worker)

    def take(self, effect: RouterEffect) -> bool:
        """Whether an effect is about a worker of a host; :meth:`flush` sends it there."""
        return self.hosts.take(effect)

    def flush(self) -> None:
        """Send what was taken, together."""
        self.hosts.flush()
        left = self._send()
        assert not left

    def records(self, workers: Mapping[bytes, Worker], now_s: float) -> dict[str, Any]:
        """What statistics say of hosts."""
        running = {worker: len(each.live) for worker, each in workers.items()}
        return self.hosts.records(running, now_s)

    def tick(self, now_s: float) -> tuple[list[RouterEffect], list[RouterInput]]:
        """Before each tick of the router: what follows, in this order."""
        if self._door is not None:
            self._door.look()
        inputs = self.hosts.tick(now_s)
        return self._send(), inputs

    async def serve(self, give: Callable[[list[RouterEffect], list[RouterInput]], None]) -> None:
        """Take in what hosts say, until cancelled."""
        while True:
            for route, *frames in await self._socket.receive():
                inputs: list[RouterInput] = []
                try:
                    inputs = self.hosts.message(
                        bytes(route), [bytes(frame) for frame in frames], trio.current_time()
                    )
                except ProtocolError as error:
                    _log.warning("what is no message came from a host: %s", error)
                give(self._send(), inputs)

    def _send(self) -> list[RouterEffect]:
        """Send what is for hosts; the rest is the router's."""
        out, self.hosts.out = self.hosts.out, []
        rest: list[RouterEffect] = []
        for effect in out:
            if isinstance(effect, ToHost):
                # Not sent is no loss: the host's next beat repairs it.
                self._socket.send_nowait(effect.route, effect.frames)
            else:
                rest.append(effect)
        return rest
