"""Opening of clients, which stay connected until their block ends."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import trio

from ..core.client import ClientCore
from ..core.errors import ConfigError
from ..core.limits import ClientLimits, WireLimits, check_together
from ..core.terms import ID_BYTES
from ..near import with_near_names
from ..net import (
    DEFAULT_TRANSPORT,
    DealerSocket,
    Network,
    Transport,
    need_trio,
    open_background,
    open_network,
    unwrap_single,
)
from ..net.keypairs import ClientCurve
from ..net.zmtp.sockets import sealed_wire
from .driver import Driver
from .shell import Arrays, Client


@with_near_names
@asynccontextmanager
async def open_client(
    address: str, *, name: str = "", limits: ClientLimits | None = None,
    wire: WireLimits | None = None, network: Network | None = None,
    transport: Transport = DEFAULT_TRANSPORT, arrays: Arrays = "auto", caller: str = "",
    curve: ClientCurve | None = None,
) -> AsyncGenerator[Client, None]:  # fmt: skip
    """Connect to a server, and reconnect when the connection is lost.

    Does not wait for the server: see :meth:`Client.wait_ready`.  At the end of the block pending
    calls end with an error, and the server cancels them.  Raises ConfigError for a wrong
    address, for arrays of a library that is not installed, and for limits that contradict each
    other.

    Args:
        address: Address of the server, such as ``tcp://127.0.0.1:5555``.
        name: Name for the server's logs.
        limits: Timers of the client (the page on limits).
        wire: Bounds on what is read from the server.
        network: Sockets of another kind altogether.
        transport: Implementation of ZMTP on this side: ``"zmtp"`` (trio) or ``"libzmq"``. The
            server may use either.
        arrays: Type of arrays in outcomes.
        caller: Name of the program that asks for keys; a drawn one if empty. A process that is
            started again under the same name takes its old place among those that wait for a key,
            and two that run at once need two names.
        curve: Keys for a server that needs some (the page on security).
    """
    need_trio("open_client", "open_client_asyncio, or PlainClient")
    if curve is not None and network is not None:
        raise ConfigError("curve needs the network of this package: give no network")
    wire = wire_of(wire, curve)
    core = ClientCore(
        name=_check_name(name), new_id=functools.partial(os.urandom, ID_BYTES),
        now_s=trio.current_time(), limits=limits, wire=wire, caller=_token(caller),
    )  # fmt: skip
    check_together(core.limits, wire)
    client = Client(Driver(core, address), _check_arrays(arrays), wire)
    async with connect(client, network, transport, curve) as opened:
        yield opened


def wire_of(wire: WireLimits | None, curve: ClientCurve | None) -> WireLimits:
    """The limits that hold on a client's connection.  Raises ConfigError for keys without
    the extra."""
    wire = wire or WireLimits()
    return wire if curve is None else sealed_wire(wire)


@asynccontextmanager
async def connect(
    client: Client, network: Network | None, transport: Transport = DEFAULT_TRANSPORT,
    curve: ClientCurve | None = None,
) -> AsyncGenerator[Client, None]:  # fmt: skip
    """Keep a client connected until the block ends: the part of :func:`open_client`
    after its arguments were checked."""
    driver, wire = client._driver, client._wire

    async def run(served: Callable[[Client], Awaitable[None]]) -> None:
        async with AsyncExitStack() as stack:
            dealer: AbstractAsyncContextManager[DealerSocket]
            if network is not None:
                dealer = network.open_dealer(
                    driver.address, limits=wire, on_event=driver.connection
                )
            else:
                own = await stack.enter_async_context(open_network(transport))
                dealer = own.open_dealer(
                    driver.address, limits=wire, on_event=driver.connection, curve=curve
                )
            socket = await stack.enter_async_context(dealer)
            stack.enter_context(unwrap_single())
            nursery = await stack.enter_async_context(trio.open_nursery())
            driver.start(socket, nursery)
            await served(client)
            with trio.move_on_after(wire.flush_s):
                await socket.flush()
            nursery.cancel_scope.cancel()

    async with open_background(run) as opened:
        try:
            yield opened
        finally:
            driver.close()


def _check_arrays(arrays: object) -> Arrays:
    """Checked now, and not when an outcome comes: its rollout would have run."""
    if arrays == "auto":
        return "auto"
    if arrays not in ("numpy", "torch"):
        raise ConfigError(f'arrays must be "numpy", "torch" or "auto", not {arrays!r}')
    try:
        found = importlib.util.find_spec(arrays)  # imports nothing
    except ValueError:  # it is not a module of the usual kind
        found = None
    if found is None:
        raise ConfigError(f'arrays="{arrays}": {arrays} is not installed')
    return "numpy" if arrays == "numpy" else "torch"


def _check_name(name: str) -> str:
    """The name, encodable and not empty.  Raises ConfigError."""
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ConfigError(f"name must be text, not {name!r}") from None
    return name or f"pid-{os.getpid()}"


def _token(caller: str) -> bytes:
    """The token that names a caller to the server."""
    if not isinstance(caller, str):
        raise ConfigError(f"caller must be text, not {caller!r}")
    if not caller:
        return os.urandom(ID_BYTES)
    named = caller.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=ID_BYTES).digest()
