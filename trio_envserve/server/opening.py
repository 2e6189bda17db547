"""Opening a server: its arguments, its address, its lock, its workers.

Theory of operation
-------------------
Everything that can be wrong with the arguments is said before anything is opened.  What
is opened is owned by one exit stack inside the background of the block
(:func:`~trio_envserve.net.open_background`): a block that is cancelled from outside
closes like any other, in stages.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Unpack

import trio

from .. import tracing
from ..core.errors import (
    ConfigError,
    ServerNotClosed,
)
from ..core.host_said import check_amounts
from ..core.lease import FENCE_S, NO_LEASE_S, LeaseTerms
from ..core.limit_rules import check_together
from ..core.limits import KeyLimits, ServerLimits, WireLimits
from ..core.messages import encode_record
from ..core.router import Router
from ..core.terms import short
from ..core.worker_range import WorkerRange, check_workers
from ..envs.check import check_spec
from ..envs.loading import DEFAULT_ENVIRONMENT
from ..host.folder_locks import FolderLocks
from ..host.interpreters import check_interpreter, find_interpreter
from ..host.locks import AddressLocks, LockFile
from ..host.served import Served
from ..host.workers import InProcessWorkers, ProcessWorkers, Workers, parse_command
from ..net import (
    DEFAULT_TRANSPORT,
    Network,
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
from ..net.zmtp.sides import RouterCurve, sealed_wire
from ..net.zmtp.sockets import ZmtpRouter
from ..worker.config import check_args
from .curve import Doorkeeper, ServerCurve
from .hosts import HostDesk, HostDoor
from .journal import Journal, open_journal
from .options import ServerOptions
from .recording import Recorder, open_recorder
from .setup import Setup
from .shell import Server
from .traces import Traces

_log = logging.getLogger("trio_envserve.server")


@asynccontextmanager
async def open_server(
    environment: str | object | None = None, *,
    args: Mapping[str, Any] | None = None,
    bind: str = "tcp://127.0.0.1:0",
    workers: int | WorkerRange = 1,
    worker_command: str | Sequence[str] | None = None,
    worker_python: str | os.PathLike[str] | None = None,
    limits: ServerLimits | None = None,
    wire: WireLimits | None = None,
    keys: KeyLimits | None = None,
    network: Network | None = None,
    transport: Transport = DEFAULT_TRANSPORT,
    worker_environ: Sequence[Mapping[str, str]] = (),
    worker_logging: Mapping[str, Any] | None = None,
    worker_otlp: Mapping[str, Any] | None = None,
    record: str | os.PathLike[str] | None = None,
    record_bodies: bool = False,
    journal: str | os.PathLike[str] | None = None,
    curve: ServerCurve | None = None,
    hosts_bind: str | None = None,
    fence_s: float | None = FENCE_S,
    needs: Mapping[str, float] | None = None,
) -> AsyncIterator[Server]:  # fmt: skip
    """Serve an environment at ``bind`` until the block ends.

    The block begins when the address is bound; :meth:`Server.wait_ready` waits for a worker.
    An environment whose name is wrong is a ConfigError at once; one that cannot be set up ends
    the calls of clients with EnvironmentBroken, and the server goes on trying.  At its end what
    runs is cancelled, workers are ended and reaped; call :meth:`Server.drain` before to let work
    finish.

    Raises ConfigError for wrong arguments and for limits that contradict each other,
    ServerStartError if the address or the journal cannot be had, and at the block's end
    ServerNotClosed if something could not be ended within the limits (with ``workers=0``, code
    that ignores its cancellation: it goes on, and ``trio.run`` waits for it).

    Args:
        environment: Name or path, as for the command: ``"arithmetic"`` (the default),
            ``"package.module:factory"``, ``"reasoning-gym:countdown"``. With ``workers=0`` it may
            also be an object, a class or a closure. It may be left out with ``worker_command``.
        args: Arguments of its factory.
        bind: Address for clients; port 0 is replaced by a free one.
        workers: Number of worker processes, or a :class:`~trio_envserve.WorkerRange`: as many as
            there is work for. 0: the environment runs inside this very process, and what it breaks
            it breaks here; with ``hosts_bind``, there are no workers on this machine.
        worker_command: Program to run as each worker in the place of this package's own, ``"node
            worker.js"`` or a list of words; it speaks the worker's protocol (the page on the
            protocol). The environment's name and ``args`` are told to it as they are, and nothing
            is looked for here.
        worker_python: Another Python for the workers, which has the environment, and of this
            package the same version. Nothing is looked for here then, either. For hosts it is a
            path of theirs.
        limits: Bounds and timers (the page on limits).
        wire: Bounds on what is read from a peer.
        keys: Bounds and timers of keys.
        network: Sockets of another kind altogether, for clients and hosts.
        transport: Implementation of ZMTP for the clients: ``"zmtp"`` (trio) or ``"libzmq"``.
        worker_environ: Environment variables of each worker slot (on hosts too), on top of those of
            this process: for example one GPU each.
        worker_logging: Arguments of :class:`~trio_envserve.logs.LogSetup` for the worker processes.
        worker_otlp: Arguments of :class:`~trio_envserve.otlp.OtlpSetup` for the worker processes
            (the page on traces).
        record: File for every input of the router, from which it can be replayed (the page on the
            recorder).
        record_bodies: Whether that file has the bodies; by default only their lengths.
        journal: Folder in which keys outlive the server (the page on the journal). It is made if
            it is not there, and one server has it at a time.
        curve: The server's own keys and those of its clients; nobody else is let in (the page on
            security).
        hosts_bind: Address at which hosts of other machines join (the page on hosts). They are
            told what to run: the environment or ``worker_command``, ``args``, ``worker_python`` and
            ``worker_environ``.
        fence_s: Lease of a host in seconds: without an answer for that long it has no workers any
            more. None: there is no lease.
        needs: What each worker of a host needs of what the host offers, such as ``{"gpu": 1}``.
    """
    need_trio("open_server")
    check_workers(workers, least=0)
    command = parse_command(worker_command)
    hosted = hosts_bind is not None
    check_amounts("needs", needs or {})
    if hosted and record is not None:
        raise ConfigError("a server with hosts cannot record: give record or hosts_bind, not both")
    if command and not workers and not hosted:
        raise ConfigError("worker_command starts processes: give workers=1 or more")
    # With no workers here it is a path on the hosts.
    python = None if worker_python is None else os.fspath(worker_python)
    if worker_python is not None and workers:
        python = find_interpreter(worker_python)
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
    limits, wire, keys = limits or ServerLimits(), wire or WireLimits(), keys or KeyLimits()
    if curve is not None:
        if network is not None or transport != "zmtp":
            raise ConfigError('curve needs transport="zmtp", and no network of your own')
        wire = sealed_wire(wire)
    check_together(limits, wire, keys)
    if python is not None and workers:
        await check_interpreter(python)
    setup = Setup(
        environment=environment, name=name, args=dict(args or {}), bind=bind, workers=workers,
        command=command, python=python, limits=limits, wire=wire, keys=keys,
        network=network, transport=transport, worker_environ=worker_environ,
        worker_logging=dict(worker_logging or {}),
        worker_otlp=None if worker_otlp is None else dict(worker_otlp),
        record=record, record_bodies=record_bodies, journal=journal,
        curve=curve, hosts_bind=hosts_bind,
        lease=LeaseTerms(NO_LEASE_S if fence_s is None else fence_s),
        needs=dict(needs or {}),
    )  # fmt: skip
    async with open_setup(setup) as server:
        yield server


@asynccontextmanager
async def open_setup(setup: Setup) -> AsyncIterator[Server]:
    """:func:`open_server`, whose arguments have been checked."""
    name, limits, wire, new_id = setup.name, setup.limits, setup.wire, setup.new_id

    async def run(served: Callable[[Server], Awaitable[None]]) -> None:
        async with AsyncExitStack() as stack:
            locks = _lock(setup.bind, stack)
            doorkeeper: Doorkeeper | None = None
            front: RouterSocket
            if setup.curve is not None:
                doorkeeper = Doorkeeper(setup.curve)
                front = await stack.enter_async_context(open_sealed(setup, doorkeeper))
            else:
                sockets = setup.network
                if sockets is None:
                    sockets = await stack.enter_async_context(open_network(setup.transport))
                opened = sockets.open_router(setup.bind, limits=wire)
                front = await stack.enter_async_context(opened)
            if locks is None:
                locks = _lock(front.address, stack, passing=True)
            if doorkeeper is None:
                _warn_if_reachable(front.address)
            journal: Journal | None = None
            if setup.journal is not None:
                journal = await stack.enter_async_context(
                    open_journal(setup.journal, command_s=setup.keys.command_s)
                )
            held: list[AddressLocks | FolderLocks] = [locks] if locks else []
            held += journal.locks if journal else ()
            host = _host(setup, [each.epochs for each in held], front.address)
            # Without workers this process is one, unless hosts bring theirs.
            slots = setup.workers or int(setup.hosts_bind is None)
            now_s = trio.current_time()
            make = partial(
                Router, epoch=new_id(), slots=slots, now_s=now_s, limits=limits, wire=wire,
                keys=setup.keys, heartbeats=host.heartbeats, journaled=journal is not None,
                resting=journal is not None,
            )  # fmt: skip
            recorder: Recorder | None = None
            if setup.record is not None:
                recording = open_recorder(
                    setup.record, make, new_id=new_id, now_s=now_s, slots=slots,
                    heartbeats=host.heartbeats, bodies=setup.record_bodies, environment=name,
                    address=front.address,
                )  # fmt: skip
                recorder = await stack.enter_async_context(recording)
            router = make(new_id=new_id) if recorder is None else recorder.tape.router
            desk: HostDesk | None = None
            if setup.hosts_bind is not None:
                desk = await _open_desk(setup, router, doorkeeper, stack)
            # Last: whoever listens to a socket has ended before that is closed.
            stack.enter_context(unwrap_single())
            nursery = await stack.enter_async_context(trio.open_nursery())
            take = router.take if recorder is None else recorder.tape.take
            if tracing.tracer() is not None:
                take = Traces(router, take, name).take
            server = Server(router, take, front, host, nursery, limits, journal, doorkeeper, desk)
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


@asynccontextmanager
async def open_sealed(setup: Setup, doorkeeper: Doorkeeper) -> AsyncIterator[ZmtpRouter]:
    """The front of a server whose clients have keys."""
    assert setup.curve is not None
    side = RouterCurve(setup.curve.keys, doorkeeper.admit)
    async with (
        open_zmtp_network() as sockets,
        sockets.open_router(
            setup.bind, limits=setup.wire, on_peer=doorkeeper.on_peer, curve=side
        ) as front,
    ):
        doorkeeper.open(front)
        yield front


def _host(setup: Setup, locks: Sequence[LockFile], address: str) -> Workers:
    """The owner of the workers: of processes, or of tasks in this one."""
    if not setup.workers and setup.hosts_bind is None:
        return InProcessWorkers(setup.environment, dict(setup.args), setup.limits, setup.wire)
    return ProcessWorkers(
        None if setup.environment is None else str(setup.environment), dict(setup.args),
        setup.limits, setup.wire, locks, address, setup.worker_environ,
        dict(setup.worker_logging), setup.command, setup.python, setup.worker_otlp,
    )  # fmt: skip


def _serves(setup: Setup) -> dict[str, Any]:
    """The environment that hosts are told to run.  ConfigError if no welcome can hold it."""
    environment = setup.environment
    record = Served(
        environment=None if environment is None else str(environment), args=setup.args,
        command=setup.command, python=setup.python, environ=setup.worker_environ,
        limits=setup.limits,
    ).to_record()  # fmt: skip
    size_bytes, most_bytes = len(encode_record(record)), setup.wire.header_bytes // 2
    if size_bytes > most_bytes:
        raise ConfigError(
            f"args and worker_environ take {size_bytes} bytes, and hosts can be told {most_bytes}"
        )
    return record


async def _open_desk(
    setup: Setup, router: Router, doorkeeper: Doorkeeper | None, stack: AsyncExitStack
) -> HostDesk:
    assert setup.hosts_bind is not None
    serves = _serves(setup)
    if doorkeeper is None:
        sockets = setup.network
        if sockets is None:
            sockets = await stack.enter_async_context(open_zmtp_network())
        opened = sockets.open_router(setup.hosts_bind, limits=setup.wire)
        socket = await stack.enter_async_context(opened)
        _warn_if_reachable(socket.address)
        return HostDesk(router, socket, setup.lease, setup.wire, serves, setup.needs)
    assert setup.curve is not None
    network = await stack.enter_async_context(open_zmtp_network())
    door = HostDoor(doorkeeper)
    side = RouterCurve(setup.curve.keys, door.admit)
    sealed = network.open_router(
        setup.hosts_bind, limits=setup.wire, on_peer=door.on_peer, curve=side
    )
    guarded = await stack.enter_async_context(sealed)
    door.open(guarded)
    return HostDesk(router, guarded, setup.lease, setup.wire, serves, setup.needs, door)


def _warn_if_reachable(address: str) -> None:
    if not is_loopback(address):
        _log.warning(
            "%s is reachable from other machines, and whoever reaches it can use it: "
            "there is no authentication",
            address,
        )


async def serve(
    environment: str | object | None = None, *,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ServerOptions],
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


def _lock(address: str, stack: AsyncExitStack, *, passing: bool = False) -> AddressLocks | None:
    """The locks of an address, if it is one that is known already."""
    parsed = parse_address(address)
    if parsed.scheme == "memory" or (parsed.scheme == "tcp" and not parsed.port):
        return None
    locks = AddressLocks(address, passing=passing)
    stack.callback(locks.close)
    locks.take_server()
    return locks
