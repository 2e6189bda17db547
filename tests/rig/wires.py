"""The wires between hosts and their router, which can be cut in either direction.

Theory of operation
-------------------
As root on Linux each host has a network namespace of its own, and a pair of virtual
interfaces leads to the router.  A route into nothing (``blackhole``) cuts one direction: the
packets vanish, and nobody is told.  Elsewhere there is a fault proxy for each host, which passes
nothing on while that direction is cut.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, final

import trio

from trio_envserve.net import parse_peer_address
from trio_envserve.testing.proxy import Direction, FaultProxy, open_fault_proxy

UP, DOWN = "up", "down"
"""From the host to the router, and back."""


class Wire(Protocol):
    """The way between one host and the router."""

    address: str
    """Where the host joins."""
    words: Sequence[str]
    """The words before the host's command."""

    def cut(self, direction: str) -> None:
        """Nothing passes in this direction any more."""
        ...

    def mend(self) -> None:
        """Both directions are open."""
        ...


# -- namespaces -----------------------------------------------------------------------


def may_have_namespaces() -> bool:
    """Whether this user may make them."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


@final
class Namespace:
    """A network of one host."""

    def __init__(self, number: int, port: int) -> None:
        # Several of these programs may run at once.
        self._name = f"te{os.getpid()}-{number}"
        net = f"10.{128 + os.getpid() % 100}.{number}"
        self._there, self._here = f"{net}.2", f"{net}.1"
        self._link = f"te{os.getpid() % 100000}{number}"
        self.address = f"tcp://{self._here}:{port}"
        self.words: Sequence[str] = ("ip", "netns", "exec", self._name)
        self._cuts: set[str] = set()

    def open(self) -> None:
        """Make it."""
        peer, inside = f"{self._link}p", ("-n", self._name)
        _ip("netns", "add", self._name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", peer)
        _ip("link", "set", peer, "netns", self._name)
        _ip("addr", "add", f"{self._here}/24", "dev", self._link)
        _ip("link", "set", self._link, "up")
        _ip(*inside, "addr", "add", f"{self._there}/24", "dev", peer)
        for device in (peer, "lo"):
            _ip(*inside, "link", "set", device, "up")

    def cut(self, direction: str) -> None:
        """See :class:`Wire`."""
        self._cuts.add(direction)
        self._route("add", direction)

    def mend(self) -> None:
        """See :class:`Wire`."""
        for direction in self._cuts:
            self._route("del", direction)
        self._cuts.clear()

    def _route(self, verb: str, direction: str) -> None:
        if direction == UP:
            _ip("-n", self._name, "route", verb, "blackhole", f"{self._here}/32")
        else:
            _ip("route", verb, "blackhole", f"{self._there}/32")

    def close(self) -> None:
        """Take it away."""
        self.mend()
        _ip("link", "del", self._link)
        _ip("netns", "del", self._name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


# -- relays ---------------------------------------------------------------------------


@final
class Relay:
    """A proxy between a host and the router."""

    words: Sequence[str] = ()

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self.address = proxy.address

    def cut(self, direction: str) -> None:
        """See :class:`Wire`."""
        self._proxy.stall(Direction.TO_SERVER if direction == UP else Direction.TO_CLIENT)

    def mend(self) -> None:
        """See :class:`Wire`."""
        self._proxy.resume()


@asynccontextmanager
async def open_wires(
    router: str, names: Sequence[str], *, namespaces: bool
) -> AsyncIterator[dict[str, Wire]]:
    """A wire for each host, to the router at this address of hosts; with namespaces it must
    listen at all addresses of this machine."""
    async with AsyncExitStack() as stack:
        wires: dict[str, Wire] = {}
        for number, name in enumerate(names):
            if namespaces:
                wires[name] = namespace = Namespace(number, parse_peer_address(router).port)
                stack.callback(namespace.close)
                await trio.to_thread.run_sync(namespace.open)
            else:
                wires[name] = Relay(await stack.enter_async_context(open_fault_proxy(router)))
        yield wires
