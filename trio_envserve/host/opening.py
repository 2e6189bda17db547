"""Opening a host: its options checked, its lock taken, its parts joined.

Theory of operation
-------------------
All processes of a host hold its lock, whose file lists its memberships: so the next host of
this name knows that the workers of those are dead, and says so to the router.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from socket import gethostname
from typing import Any

import trio

from ..core.errors import ConfigError, ServerStartError
from ..core.host import Host
from ..core.host_checks import check_amounts
from ..core.host_messages import ENDED_MOST
from ..core.limits import ServerLimits, WireLimits
from ..core.terms import ID_BYTES, Membership
from ..core.worker_range import WorkerRange, check_workers
from ..near import with_near_names
from ..net import (
    need_trio,
    open_background,
    open_zmtp_network,
    parse_address,
    unwrap_single,
)
from ..net.keypairs import ClientCurve
from ..net.zmtp.sockets import sealed_wire
from ..worker.config import check_args
from .interpreters import find_interpreter
from .joined import JoinedHost
from .locks import LockFile, runtime_directory
from .served import Served
from .workers import ProcessWorkers, parse_command

LOCK_S = 60.0
"""Time for which a host waits for the processes of the last host of its name to end, in seconds."""


@with_near_names
@asynccontextmanager
async def open_host(
    address: str, environment: str | None = None, *,
    args: Mapping[str, Any] | None = None,
    workers: int | WorkerRange = 1,
    name: str = "",
    offers: Mapping[str, Any] | None = None,
    worker_command: str | Sequence[str] | None = None,
    worker_python: str | os.PathLike[str] | None = None,
    worker_environ: Sequence[Mapping[str, str]] = (),
    worker_logging: Mapping[str, Any] | None = None,
    worker_otlp: Mapping[str, Any] | None = None,
    limits: ServerLimits | None = None,
    wire: WireLimits | None = None,
    curve: ClientCurve | None = None,
) -> AsyncIterator[JoinedHost]:  # fmt: skip
    """Own workers on this machine for a router, until the block ends.

    The workers run the router's environment with its arguments, its interpreter, its variables for
    each slot, and its limits.  Arguments that are given here win over the router's.

    The block begins at once, and the host goes on trying: :meth:`JoinedHost.wait_joined` waits
    for the router.  At the end of the block all workers are dead; call :meth:`JoinedHost.leave`
    before to let them finish.  Raises ConfigError, and ServerStartError if processes of another
    host of this name are still there.

    Args:
        address: Address of the router for hosts, its ``hosts_bind``.
        environment: Name or path of an environment in the place of the router's.
        args: Arguments of its factory; without an environment they are laid over the router's.
        workers: Number of worker processes, or a :class:`~trio_envserve.WorkerRange`: as many as
            the router has work for.
        name: Id of this host, which no other host of the router has; by default the machine's name.
        offers: Resources of this machine for the needs of workers, such as ``{"gpu": 8}``.
        worker_command: As for :func:`~trio_envserve.open_server`, in the place of what the router
            says.
        worker_python: Another Python for the workers, in the place of the router's.
        worker_environ: Environment variables of each worker slot, laid over the router's.
        worker_logging: Arguments of :class:`~trio_envserve.logs.LogSetup` for the worker processes.
        worker_otlp: Arguments of :class:`~trio_envserve.otlp.OtlpSetup` for the worker processes.
        limits: Limits of workers, laid over the router's.
        wire: Bounds on what is read from the router.
        curve: Keys for a router that needs some; they need the role ``work``.
    """
    need_trio("open_host")
    check_workers(workers, least=1)
    parse_address(address)
    check_amounts("offers", offers or {})
    command = parse_command(worker_command)
    if command and worker_python is not None:
        raise ConfigError("worker_python starts this package's own workers: give no worker_command")
    own = Served(
        environment=environment, args=dict(args or {}), command=command,
        python=None if worker_python is None else find_interpreter(worker_python),
        environ=worker_environ, limits=limits,
    )  # fmt: skip
    if environment is not None or command:
        own = await own.check()
    else:
        check_args(own.args)
    name = name or gethostname()
    wire = wire or WireLimits()
    if curve is not None:
        wire = sealed_wire(wire)

    async def run(served: Callable[[JoinedHost], Awaitable[None]]) -> None:
        async with AsyncExitStack() as stack:
            lock = _open_lock(name)
            stack.callback(lock.close)
            past = await _take(lock, name)

            def new_membership() -> Membership:
                membership = os.urandom(ID_BYTES)
                lock.append_id(membership)
                return membership

            def make_workers(what: Served) -> ProcessWorkers:
                return ProcessWorkers(
                    what.environment, dict(what.args), what.limits or ServerLimits(), wire, [lock],
                    address, what.environ, dict(worker_logging or {}), what.command, what.python,
                    None if worker_otlp is None else dict(worker_otlp), leased=True,
                )  # fmt: skip

            core = Host(
                name, workers, new_membership, offers=dict(offers or {}), past=past, wire=wire
            )
            network = await stack.enter_async_context(open_zmtp_network())
            host = JoinedHost(core, address, own, make_workers)
            socket = await stack.enter_async_context(
                network.open_dealer(address, limits=wire, on_event=host._on_event, curve=curve)
            )
            # Last: whoever listens to the socket has ended before that is closed.
            stack.enter_context(unwrap_single())
            nursery = await stack.enter_async_context(trio.open_nursery())
            host._start(socket, nursery)
            try:
                await served(host)
            finally:
                with trio.CancelScope(shield=True):
                    await host._close()
            nursery.cancel_scope.cancel()

    async with open_background(run) as host:
        yield host


def _open_lock(name: str) -> LockFile:
    digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return LockFile(runtime_directory() / f"{digest}.host")


async def _take(lock: LockFile, name: str) -> list[Membership]:
    """The memberships of this name before, whose workers are dead."""
    with trio.move_on_after(LOCK_S):
        while not lock.acquire_nowait():  # noqa: ASYNC110  # nothing tells when it is free
            await trio.sleep(0.1)
    if not lock.held:
        raise ServerStartError(
            f"another host of this machine has the name {name}: {lock.find_holders()}"
        )
    return lock.ids(ENDED_MOST)[-ENDED_MOST:]
