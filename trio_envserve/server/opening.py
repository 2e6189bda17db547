"""Opening a server: its arguments, its address, its lock, its workers.

Theory of operation
-------------------
All arguments are checked before anything is opened.  One exit stack, inside the background of the
block (:func:`~trio_envserve.net.open_background`), owns all that is opened: so a block that is
cancelled from outside closes in stages, like any other.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import trio

from .. import tracing
from ..core.errors import (
    ConfigError,
    ServerNotClosed,
)
from ..core.host_checks import check_amounts
from ..core.lease import NO_LEASE_S, LeaseTerms
from ..core.limits import KeyLimits, ServerLimits, WireLimits, check_together
from ..core.messages import encode_record
from ..core.router import Router
from ..core.terms import short
from ..core.worker_range import check_workers
from ..envs.loading import DEFAULT_ENVIRONMENT, check_spec
from ..host.interpreters import check_interpreter, find_interpreter
from ..host.locks import LockFile, ServerLocks
from ..host.served import Served
from ..host.workers import InProcessWorkers, ProcessWorkers, Workers, parse_command
from ..net import (
    RouterSocket,
    Transport,
    is_loopback,
    need_trio,
    open_background,
    open_network,
    open_zmtp_network,
    parse_address,
    unwrap_single,
)
from ..net.zmtp.sockets import RouterCurve, sealed_wire
from ..options import taken_by, with_options_of
from ..worker.config import check_args
from .curve import Authenticator
from .hosts import HostAuthenticator, HostsShell
from .journal import OpenJournal, open_journal
from .options import ServerOptions, Setup, check_slots, completed
from .recording import Recorder, open_recorder
from .shell import Server
from .traces import Traces

_log = logging.getLogger("trio_envserve.server")


@taken_by(ServerOptions, completed)
@asynccontextmanager
async def open_server(options: ServerOptions) -> AsyncIterator[Server]:
    """Serve an environment at ``bind`` until the block ends.

    The block begins when the address is bound; :meth:`Server.wait_ready` waits for a worker.
    A wrong name of an environment is a ConfigError at once.  If the environment cannot be set up,
    calls of clients end with EnvironmentBroken, and the server goes on trying.  At the end of the
    block executions are cancelled, and workers are ended and reaped; call :meth:`Server.drain`
    before to let work finish.

    Raises ConfigError for wrong arguments and for limits that contradict each other,
    ServerStartError if the address or the journal cannot be had, and at the block's end
    ServerNotClosed if something could not be ended within the limits (with ``workers=0``, code
    that ignores its cancellation: it goes on, and ``trio.run`` waits for it).
    """
    need_trio("open_server")
    environment, args, workers = options.environment, options.args, options.workers
    check_workers(workers, least=0)
    command = parse_command(options.worker_command)
    hosted = options.hosts_bind is not None
    if not hosted:
        check_slots(options.worker_environ, workers)
    check_amounts("needs", options.needs or {})
    if command and not workers and not hosted:
        raise ConfigError("worker_command starts processes: give workers=1 or more")
    # Without workers on this machine it is a path on the hosts.
    python = None if options.worker_python is None else os.fspath(options.worker_python)
    if python is not None and workers:
        python = find_interpreter(python)
    if python is not None and (command or not (workers or hosted)):
        raise ConfigError(
            "worker_python starts this package's own workers: give workers=1 or more, and no "
            "worker_command"
        )
    if environment is None and not command:
        environment = DEFAULT_ENVIRONMENT
    name = str(environment if environment is not None else shlex.join(command))
    if (workers or hosted) and environment is not None and not isinstance(environment, str):
        raise ConfigError(
            "worker processes load their environment by name: give a string such as "
            "'package.module:factory', or workers=0 to run an object in this process"
        )
    if isinstance(environment, str) and not command and python is None and (workers or not hosted):
        check_spec(environment, args)
    if workers or hosted:
        check_args(args or {})
    limits, wire = options.limits or ServerLimits(), options.wire or WireLimits()
    keys = options.keys or KeyLimits()
    if options.capacity is not None:
        limits = dataclasses.replace(limits, worker_capacity=options.capacity)
    if options.curve is not None:
        if options.network is not None or options.transport != "zmtp":
            raise ConfigError('curve needs transport="zmtp", and no network of your own')
        wire = sealed_wire(wire)
    check_together(limits, wire, keys)
    if python is not None and workers:
        await check_interpreter(python)
    setup = Setup(
        options=dataclasses.replace(options, environment=environment), name=name, command=command,
        python=python, limits=limits, wire=wire, keys=keys,
        lease=LeaseTerms(NO_LEASE_S if options.fence_s is None else options.fence_s),
    )  # fmt: skip
    async with open_setup(setup) as server:
        yield server


@asynccontextmanager
async def open_setup(setup: Setup) -> AsyncIterator[Server]:
    """:func:`open_server` with checked arguments."""
    name, limits, wire, new_id = setup.name, setup.limits, setup.wire, setup.new_id
    options = setup.options

    async def run(served: Callable[[Server], Awaitable[None]]) -> None:
        async with AsyncExitStack() as stack:
            locks = _lock(options.bind, stack)
            curve = options.curve
            authenticator = None if curve is None else Authenticator(curve)
            front = await _open_router(setup, options.bind, options.transport, authenticator, stack)
            if locks is None:
                locks = _lock(front.address, stack, passing=True)
            journal: OpenJournal | None = None
            if options.journal is not None:
                journal = await stack.enter_async_context(
                    open_journal(options.journal, command_s=setup.keys.command_s)
                )
            held: list[ServerLocks] = [locks] if locks else []
            held += journal.locks if journal else ()
            host = _host(setup, [each.epochs for each in held], front.address)
            # Without worker processes this process has a worker task, unless hosts bring theirs.
            slots = options.workers or int(options.hosts_bind is None)
            now_s = trio.current_time()
            make = partial(
                Router, epoch=new_id(), slots=slots, now_s=now_s, limits=limits, wire=wire,
                keys=setup.keys, heartbeats=host.heartbeats, journaled=journal is not None,
                resting=journal is not None,
            )  # fmt: skip
            hosts_socket: RouterSocket | None = None
            host_keys = None if authenticator is None else HostAuthenticator(authenticator)
            if options.hosts_bind is not None:
                hosts_socket = await _open_router(
                    setup, options.hosts_bind, "zmtp", host_keys, stack
                )
                make = partial(
                    make, lease=setup.lease, needs=options.needs, serves=_serves(setup),
                    claim=None if host_keys is None else host_keys.claim,
                )  # fmt: skip
            recorder: Recorder | None = None
            if options.record is not None:
                recording = open_recorder(
                    options.record, make, new_id=new_id, now_s=now_s, slots=slots,
                    heartbeats=host.heartbeats, bodies=options.record_bodies, environment=name,
                    address=front.address,
                )  # fmt: skip
                recorder = await stack.enter_async_context(recording)
            router = make(new_id=new_id) if recorder is None else recorder.tape.router
            hosts = None if hosts_socket is None else HostsShell(router, hosts_socket, host_keys)
            # Entered last, so that the tasks have ended before their sockets close.
            stack.enter_context(unwrap_single())
            nursery = await stack.enter_async_context(trio.open_nursery())
            take = router.take if recorder is None else recorder.tape.take
            if tracing.tracer() is not None:
                take = Traces(router, take, name).take
            server = Server(
                router, take, front, host, nursery, limits, journal, authenticator, hosts
            )
            server._start(held)
            if recorder is not None:
                nursery.start_soon(recorder.keep_writing)
            _log.info("serving %s at %s, epoch %s", name, front.address, short(router.epoch))
            await served(server)
            await server._close()
            left = server._left_over()
            nursery.cancel_scope.cancel()
        if left:
            raise ServerNotClosed(left)

    async with open_background(run) as server:
        yield server


def _host(setup: Setup, locks: Sequence[LockFile], address: str) -> Workers:
    """The owner of the workers: of processes, or of a task in this process."""
    options, args = setup.options, dict(setup.options.args or {})
    if not options.workers and options.hosts_bind is None:
        return InProcessWorkers(options.environment, args, setup.limits, setup.wire)
    otlp = None if options.worker_otlp is None else dict(options.worker_otlp)
    return ProcessWorkers(
        None if options.environment is None else str(options.environment), args, setup.limits,
        setup.wire, locks, address, options.worker_environ, dict(options.worker_logging or {}),
        setup.command, setup.python, otlp,
    )  # fmt: skip


def _serves(setup: Setup) -> dict[str, Any]:
    """The environment that hosts are told to run.  ConfigError if it is too large for a welcome."""
    options, environment = setup.options, setup.options.environment
    record = Served(
        environment=None if environment is None else str(environment), args=options.args or {},
        command=setup.command, python=setup.python, environ=options.worker_environ,
        limits=setup.limits,
    ).to_record()  # fmt: skip
    size_bytes, most_bytes = len(encode_record(record)), setup.wire.header_bytes // 2
    if size_bytes > most_bytes:
        raise ConfigError(
            f"args and worker_environ take {size_bytes} bytes together; hosts can be sent "
            f"{most_bytes}"
        )
    return record


async def _open_router(
    setup: Setup, bind: str, transport: Transport, keys: Authenticator | HostAuthenticator | None,
    stack: AsyncExitStack,
) -> RouterSocket:  # fmt: skip
    """Bind an address for clients or hosts, whose keys decide who comes in."""
    options = setup.options
    if options.curve is not None and keys is not None:
        zmtp = await stack.enter_async_context(open_zmtp_network())
        side = RouterCurve(options.curve.keys, keys.admit)
        sealed = await stack.enter_async_context(
            zmtp.open_router(bind, limits=setup.wire, on_peer=keys.on_peer, curve=side)
        )
        keys.open(sealed)
        return sealed
    sockets = options.network
    if sockets is None:
        sockets = await stack.enter_async_context(open_network(transport))
    opened = await stack.enter_async_context(sockets.open_router(bind, limits=setup.wire))
    if not is_loopback(opened.address):
        _log.warning(
            "%s is reachable from other machines, and everybody who reaches it can use it: "
            "there is no authentication (see --curve)", opened.address,
        )  # fmt: skip
    return opened


@with_options_of(open_server)
async def serve(
    environment: str | object | None = None, *,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED, **options: Any,
) -> None:  # fmt: skip
    """:func:`open_server` as a task: ``server = await nursery.start(serve, ...)``.

    Reports the :class:`Server` once its address is bound; runs until cancelled.

    Args:
        environment: As for :func:`open_server`.
        task_status: Given by ``nursery.start``.
        **options: Those of :func:`open_server`.
    """
    async with open_server(environment, **options) as server:
        task_status.started(server)
        await trio.sleep_forever()


def _lock(address: str, stack: AsyncExitStack, *, passing: bool = False) -> ServerLocks | None:
    """The locks of an address; None for one that is not known before it is bound."""
    parsed = parse_address(address)
    if parsed.scheme == "memory" or (parsed.scheme == "tcp" and not parsed.port):
        return None
    locks = ServerLocks.of_address(address, passing=passing)
    stack.callback(locks.close)
    locks.take_server()
    return locks
