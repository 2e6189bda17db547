"""The wires between hosts and their router, which can be cut in either direction.

Theory of operation
-------------------
As root on Linux each host has a network namespace of its own, and a pair of virtual
interfaces leads to the router.  A route into nothing (``blackhole``) cuts one direction: the
packets vanish, and nobody is told.  Elsewhere there is a relay for each host, which takes
what is sent and does not pass it on while that direction is cut.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Protocol, final

import trio

from ...net import parse_peer_address

UP, DOWN = "up", "down"
"""From the host to the router, and back."""
_CHUNK: Final = 64 * 1024


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
    """A port that passes on to the router what is sent to it."""

    words: Sequence[str] = ()

    def __init__(self, target: str) -> None:
        self._target = parse_peer_address(target)
        self._cuts: set[str] = set()
        self._changed = trio.Event()
        self.address = ""

    def cut(self, direction: str) -> None:
        """See :class:`Wire`."""
        self._cuts.add(direction)

    def mend(self) -> None:
        """See :class:`Wire`."""
        self._cuts.clear()
        self._changed.set()
        self._changed = trio.Event()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        task_status.started()
        await trio.serve_listeners(self._pass, [listener])

    async def _pass(self, host: trio.SocketStream) -> None:
        try:
            router = await trio.open_tcp_stream(self._target.host, self._target.port)
        except OSError:
            return  # it is not there: the host tries again
        async with host, router, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, host, router, UP, nursery.cancel_scope)
            nursery.start_soon(self._pump, router, host, DOWN, nursery.cancel_scope)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, direction: str,
        scope: trio.CancelScope,
    ) -> None:  # fmt: skip
        try:
            while data := await source.receive_some(_CHUNK):
                while direction in self._cuts:
                    await self._changed.wait()
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one side has hung up
        scope.cancel()


@asynccontextmanager
async def open_wires(router: str, count: int, *, namespaces: bool) -> AsyncIterator[list[Wire]]:
    """So many wires to the router at this address of hosts; with namespaces it must listen
    at all addresses of this machine."""
    async with AsyncExitStack() as stack:
        wires: list[Wire] = []
        if namespaces:
            port = parse_peer_address(router).port
            for number in range(count):
                namespace = Namespace(number, port)
                stack.callback(namespace.close)
                await trio.to_thread.run_sync(namespace.open)
                wires.append(namespace)
            yield wires
            return
        nursery = await stack.enter_async_context(trio.open_nursery())
        for _ in range(count):
            relay = Relay(router)
            await nursery.start(relay.serve)
            wires.append(relay)
        try:
            yield wires
        finally:
            nursery.cancel_scope.cancel()
