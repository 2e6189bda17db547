"""What the tests of the transport share: benches, one for each kind of network."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import zmq

from tests.connections import own_host
from trio_envserve.core.limits import WireLimits
from trio_envserve.net import (
    ConnectionEvent,
    Frame,
    MemoryNetwork,
    Network,
    RouterSocket,
    open_zmq_network,
    open_zmtp_network,
)


class Events:
    """A callback that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.seen: list[ConnectionEvent] = []
        self._lot = trio.lowlevel.ParkingLot()

    def __call__(self, event: ConnectionEvent) -> None:
        self.seen.append(event)
        self._lot.unpark_all()

    async def wait(self, event: ConnectionEvent, count: int = 1) -> None:
        """Until it was seen so often in all."""
        while self.seen.count(event) < count:
            await self._lot.park()


class Bench:
    """A network of some kind, and what a test needs around it."""

    limits = WireLimits(reconnect_min_s=0.01, reconnect_max_s=0.05)

    def __init__(
        self, kind: str, folder: str, dealers: Network, routers: Network | None = None
    ) -> None:
        self.kind = kind
        """memory, tcp or ipc."""
        self.dealers = dealers
        self.routers = routers or dealers
        self._folder = folder
        self._numbers = itertools.count()

    @property
    def any_address(self) -> str:
        """An address to bind to."""
        if self.kind == "tcp":
            return f"tcp://{own_host()}:0"
        if self.kind == "ipc":
            return f"ipc://{self._folder}/{next(self._numbers)}"
        return "memory:*"

    def router(self, address: str | None = None, **options):
        options.setdefault("limits", self.limits)
        return self.routers.open_router(address or self.any_address, **options)

    def dealer(self, router: RouterSocket | str, **options):
        options.setdefault("limits", self.limits)
        address = router if isinstance(router, str) else router.address
        return self.dealers.open_dealer(address, **options)

    @staticmethod
    async def take(socket, count: int) -> list[list[Frame]]:
        """So many messages; more is a failure."""
        messages: list[list[Frame]] = []
        while len(messages) < count:
            messages += await socket.receive()
        assert len(messages) == count
        return messages

    async def greet(self, router, *dealers) -> list[bytes]:
        """Let the router know each dealer.  Their routes."""
        routes: list[bytes] = []
        for dealer in dealers:
            assert dealer.send_nowait([b"hello"])
            [[route, word]] = await self.take(router, 1)
            assert word == b"hello"
            assert isinstance(route, bytes)
            routes.append(route)
        return routes

    async def send_until_stuck(self, router, route: bytes, body: bytes) -> int:
        """Send to a peer that does not read until its outbox is full and nothing
        moves, with the buffers of libzmq and the system full too.  How many
        messages were accepted."""
        accepted = 0
        stuck = False
        while True:
            if router.send_nowait(route, [accepted.to_bytes(4, "big"), body]):
                accepted += 1
                assert accepted < 100_000, "no bound"
                stuck = False
            elif stuck:
                return accepted
            else:
                with trio.move_on_after(0.1) as scope:
                    await router.flush()
                stuck = scope.cancelled_caught


HANG_S = 120.0
"""Only what hangs takes so long."""

PAIRS = [
    pytest.param(pair, marks=pytest.mark.real)
    for pair in (
        "zmtp-zmtp-tcp", "zmtp-zmtp-ipc", "zmtp-libzmq-ipc", "libzmq-zmtp-tcp", "libzmq-libzmq-ipc",
    )
]  # fmt: skip
"""Makers of the dealers and of the routers, over what: each maker with each, and over each."""


@asynccontextmanager
async def libzmq_socket(kind: int) -> AsyncIterator[zmq.Socket[bytes]]:
    """A socket of libzmq itself."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    raw = context.socket(kind)
    raw.setsockopt(zmq.LINGER, 0)
    raw.setsockopt(zmq.RCVTIMEO, 30_000)
    try:
        yield raw
    finally:
        raw.close()
        await trio.to_thread.run_sync(context.term)


@contextmanager
def forked_child() -> Iterator[None]:
    """A process that was forked by Python, and stays until the end of the block."""
    ready, go_on = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        yield
    finally:
        os.write(go_on[1], b"x")
        os.waitpid(child, 0)
        for descriptor in (*ready, *go_on):
            os.close(descriptor)


@asynccontextmanager
async def open_bench(kind: str, folder: str) -> AsyncIterator[Bench]:
    with trio.fail_after(HANG_S):
        if kind == "memory":
            yield Bench(kind, folder, MemoryNetwork())
            return
        dealers, routers, transport = kind.split("-")
        async with open_zmq_network() as libzmq, open_zmtp_network() as zmtp:
            makers: dict[str, Network] = {"libzmq": libzmq, "zmtp": zmtp}
            yield Bench(transport, folder, makers[dealers], makers[routers])


@pytest.fixture(
    params=["memory", *PAIRS],
)
def bench(request: pytest.FixtureRequest, folder: str):
    """``async with bench() as b``, for every kind of network."""
    return lambda: open_bench(request.param, folder)


@pytest.fixture
def real_bench(folder: str):
    """``async with real_bench() as b``: libzmq over TCP only."""
    return lambda: open_bench("libzmq-libzmq-tcp", folder)


@pytest.fixture
def zmtp_bench(folder: str):
    """The same of ZMTP spoken by trio."""
    return lambda: open_bench("zmtp-zmtp-tcp", folder)


@pytest.fixture
def new_events() -> Callable[[], Events]:
    return Events
