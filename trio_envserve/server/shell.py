"""The server's shell: one nursery around the pure router.

Theory of operation
-------------------
:class:`~trio_envserve.core.router.Router` decides; this module moves its bytes,
starts its processes and keeps its time.  The nursery owns the task of
the front, the clock, one supervisor for each worker life, which also listens to it,
and the line of statistics.  Every input is handed to the router synchronously, and its effects
are carried out before the next await: first what concerns processes, then the
messages, for each peer in order and together.  Inputs go to the router itself,
or through the tape of a recording (:mod:`.recording`), which offers the same.

Closing is decided by the router, too (:mod:`~trio_envserve.core.closing`); here it
is only waited for, and the front listens to the end of its last stage.  It needs
the tasks, so all of them run in the background of the block
(:func:`~trio_envserve.net.open_background`): a block that is cancelled from outside
closes like any other.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Unpack, final

import trio

from ..core.closing import Closed, ClosingStage, Flush
from ..core.errors import ConfigError, ServerNotClosed, ServerNotReady, ServerStartError
from ..core.lag import LagMeter
from ..core.limit_rules import check_together
from ..core.limits import KIB, ServerLimits, WireLimits
from ..core.lives import Kill, Lost, Report, Spawn
from ..core.pulse import Pulse
from ..core.router import Router, ToClient
from ..core.stats import line
from ..core.status import ServerStats, StatusRecord
from ..core.terms import RequestId, Route, short
from ..core.workforce import ToWorker
from ..envs.loading import DEFAULT_ENVIRONMENT
from ..host.locks import AddressLocks, wait_text
from ..host.workers import InProcessWorkers, ProcessWorkers, Workers, parse_command
from ..net import (
    BUNDLE_MESSAGES,
    DEFAULT_TRANSPORT,
    Frame,
    Message,
    Network,
    RouterSocket,
    Transport,
    is_loopback,
    open_background,
    open_network,
    parse_address,
    unwrap_single,
)
from ..worker.config import check_args
from .options import ServerOptions
from .recording import Inputs, Recorder, open_recorder
from .setup import Setup

_log = logging.getLogger("trio_envserve.server")
_LEVELS = logging.getLevelNamesMapping()

PORTION_HEADER_BYTES = 16 * KIB
"""Headers of a portion.  The router takes 2 ms for so much of a statement with gaps, and
others have a turn after each portion."""


@final
class Server:
    """A running server.  Made by :func:`open_server`."""

    def __init__(
        self, router: Router, into: Inputs, front: RouterSocket, workers: Workers,
        nursery: trio.Nursery, limits: ServerLimits,
    ) -> None:  # fmt: skip
        self._router = router
        """To look at.  What changes it goes through ``_into``."""
        self._into = into
        self._front = front
        self._workers = workers
        self._nursery = nursery
        self._limits = limits
        self._left: tuple[bytes, ...] = ()
        """The workers that did not end in time."""
        self._lag = LagMeter(limits.tick_s)
        self._changed = trio.lowlevel.ParkingLot()
        self._inputs = 0
        into.shell_stats = self._own_stats

    @property
    def address(self) -> str:
        """Where clients connect to (a port 0 is resolved)."""
        return self._front.address

    def stats(self) -> ServerStats:
        """Everything countable: see the operations page of the documentation.
        :meth:`trio_envserve.Client.stats` gets the same."""
        return ServerStats.of(self._router.stats())

    def _own_stats(self) -> dict[str, Any]:
        front = self._front.statistics()
        return {
            **self._lag.summary("router"),
            "address": self.address,
            "undelivered": front.undelivered,
            "backlog_bytes": front.backlog_bytes,
        }

    def status(self) -> StatusRecord:
        """Whether it is ready, and the reason if not; as clients see it."""
        return StatusRecord.of(self._router.status())

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Sleep until a worker is ready.  ServerStartError with the traceback
        as soon as the environment is known to be broken, and ServerNotReady,
        with what is known, after ``timeout_s`` (default: the limit ``start_s``)."""
        limit_s = self._limits.start_s if timeout_s is None else timeout_s
        with trio.move_on_after(limit_s):
            while not self._router.pool.ready_count():
                if self._router.pool.stopping:
                    raise ServerStartError("the server is stopping")
                if self._router.pool.is_broken():
                    raise ServerStartError(self._router.status()["reason"])
                await self._changed.park()
            return
        raise ServerNotReady(f"not ready after {limit_s:g} s: {self._router.status()['reason']}")

    async def drain(self, drain_s: float | None = None) -> bool:
        """Take no more in and wait until nothing runs and every client that is
        still there has its outcomes.  False if that took longer than ``drain_s``
        (default: the limit of that name), or if the server was killed meanwhile.

        Closing goes on by itself then: what still runs is cancelled, and the workers
        are ended.  Clients are answered until the block ends.
        """
        self._into.close(_now_s(), ClosingStage.DRAINING, drain_s)
        self._carry_out()
        closing = self._router.closing
        while closing.stage is ClosingStage.DRAINING:
            await self._changed.park()
        return closing.drained

    def kill(self) -> None:
        """End every worker process now, whatever it runs, and start no more.

        What they ran is answered "may have run".  The server itself ends with its
        block, which then has little left to wait for.
        """
        self._into.close(_now_s(), ClosingStage.KILLING)
        self._carry_out()

    # -- tasks ----------------------------------------------------------------

    def _start(self, locks: AddressLocks | None) -> None:
        """All tasks, until the nursery is cancelled."""
        self._nursery.start_soon(self._serve_front)
        self._nursery.start_soon(self._keep_time)
        self._nursery.start_soon(self._log_stats)
        self._nursery.start_soon(self._open_pool, locks)

    async def _serve_front(self) -> None:
        take_in = self._into.client_message
        while True:
            batch = await self._front.receive()
            for number, portion in enumerate(_portions(batch, len(self._router.force.workers))):
                if number:
                    await trio.lowlevel.checkpoint()
                now_s = _now_s()
                for route, *frames in portion:
                    take_in(bytes(route), frames, now_s)
                self._carry_out()

    async def _keep_time(self) -> None:
        """Tick, with all input that was there before taken in before."""
        while True:
            asked_s = trio.current_time()
            await trio.sleep(self._limits.tick_s)
            self._lag.record(trio.current_time() - asked_s)
            await self._drain_input()
            self._into.tick(_now_s())
            self._carry_out()

    async def _drain_input(self) -> None:
        """Let the other tasks take in what has arrived.  After a long sleep
        (this process was stopped) that is much; endless it must not be."""
        for _ in range(200):
            before = self._inputs
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            if self._inputs == before:
                return

    async def _log_stats(self) -> None:
        while True:
            await trio.sleep(self._limits.stats_line_s)
            _log.info("%s", line(self._router.stats()))

    async def _open_pool(self, locks: AddressLocks | None) -> None:
        """Start workers once no process of an earlier epoch is left."""
        dead: set[bytes] | None = set()
        if locks is not None:
            began_s = trio.current_time()
            text = wait_text(self.address)
            while (dead := locks.try_epochs(self._router.epoch)) is None:
                waited_s = trio.current_time() - began_s
                self._into.starting = text(waited_s)
                if waited_s >= self._limits.lock_s:
                    raise ServerStartError(f"{self._router.starting}; {locks.find_workers()}")
                await trio.sleep(min(0.01 + waited_s / 10, 0.5))
        self._into.open_pool(dead or set(), _now_s())
        self._carry_out()

    async def _supervise(self, spawn: Spawn) -> None:
        """One life of a worker: from its start until it is reaped."""
        into = self._into

        def started(pid: int) -> None:
            into.spawned(spawn.worker, pid)

        def heard(batch: list[list[Frame]]) -> None:
            now_s = _now_s()
            for portion in _portions(batch, len(self._router.cache.sessions)):
                for message in portion:
                    into.worker_message(message, now_s)
                self._carry_out()

        def felt(pulse: Pulse) -> None:
            into.pulse(spawn.worker, _now_s(), *pulse)
            self._carry_out()

        how = await self._workers.live(spawn, started, heard, felt)
        into.exited(spawn.worker, _now_s(), how)
        self._carry_out()

    # -- effects --------------------------------------------------------------

    def _carry_out(self) -> None:
        """Do what the router says.  Synchronous: nothing comes in between.

        A message to a worker that is killed or retired here is lost with it, as it
        could be anyway."""
        self._inputs += 1
        to_clients: dict[Route, list[Message]] = {}
        to_workers: dict[bytes, list[Message]] = {}
        for effect in self._into.take():
            match effect:
                case ToClient():
                    to_clients.setdefault(effect.route, []).append(effect.frames)
                case ToWorker():
                    to_workers.setdefault(effect.worker, []).append(effect.frames)
                case Spawn():
                    self._nursery.start_soon(self._supervise, effect)
                case Kill(worker, _):
                    self._workers.kill(worker)
                case Report(level, text):
                    _log.log(_LEVELS[level.upper()], "%s", text)
                case Flush():
                    self._nursery.start_soon(self._flush)
                case Closed():
                    self._left = effect.left
                case Lost():
                    pass  # the router has already taken it in
        for worker, messages in to_workers.items():
            # Not sent is no loss: the answer to the next beat repairs it.
            self._workers.send_many_nowait(worker, messages)
        for route, messages in to_clients.items():
            # Not sent is no loss: the outcome is kept, and the next sync asks for it.
            self._front.send_many_nowait(route, messages)
        if self._changed:
            self._changed.unpark_all()

    async def _flush(self) -> None:
        await self._front.flush()
        self._into.flushed(_now_s())
        self._carry_out()

    async def _close(self) -> None:
        """Close, less the drain, and wait for it.  The router sees to its end."""
        self._into.close(_now_s(), ClosingStage.CANCELLING)
        self._carry_out()
        while self._router.closing.stage is not ClosingStage.CLOSED:
            await self._changed.park()

    def _left_behind(self) -> str:
        """What did not end in time, in words; empty if all did."""
        text = "".join(map(self._about_left, self._left))
        if text:
            _log.error("the server has closed, but not all of it has ended: %s", text)
        return text

    def _about_left(self, worker_id: bytes) -> str:
        life = self._router.pool.lives[worker_id]
        worker = self._router.force.workers.get(worker_id)
        live = worker.live.values() if worker is not None else ()
        runs = ", ".join(
            f"request {RequestId(each.session.id, each.sequence)} of {each.session.name}"
            for each in live
        )
        return (
            f"worker {life.name} (pid {life.pid}) was killed and has not ended in "
            f"{self._limits.reap_s:g} s; it runs {runs or 'nothing that is known'}\n"
            f"{self._workers.where(worker_id)}"
        )


@asynccontextmanager
async def open_server(
    environment: str | object | None = None, *,
    args: Mapping[str, Any] | None = None,
    bind: str = "tcp://127.0.0.1:0",
    workers: int = 1,
    worker_command: str | Sequence[str] | None = None,
    limits: ServerLimits | None = None,
    wire: WireLimits | None = None,
    network: Network | None = None,
    transport: Transport = DEFAULT_TRANSPORT,
    worker_environ: Sequence[Mapping[str, str]] = (),
    worker_logging: Mapping[str, Any] | None = None,
    record: str | os.PathLike[str] | None = None,
    record_bodies: bool = False,
) -> AsyncIterator[Server]:  # fmt: skip
    """Serve an environment at ``bind`` until the block ends.

    ``environment``: a name or path as for the command (``"arithmetic"``, which is the
    default, ``"package.module:factory"``, ``"reasoning-gym:countdown"``), with ``args``
    for its factory.  With ``workers=0`` it runs inside this very process: then
    it may also be an object, a class or a closure, and what it breaks it breaks
    here.  ``worker_command``: what to run as each worker in the place of this package's
    own, ``"node worker.js"`` or a list of words; it speaks the worker's protocol (the
    page on the protocol).  ``environment`` may then be left out; given, its name and
    ``args`` are told to the command as they are, and nothing is looked for here.
    ``worker_environ[i]``: environment variables of slot ``i`` on top of
    this process's (for example one GPU each).  ``worker_logging``: arguments of
    :class:`~trio_envserve.logs.LogSetup` for the worker processes.  ``record``: a
    file for every input of the router, from which it can be replayed (the page on
    the recorder); bodies only by their length, unless ``record_bodies``.
    ``transport``: who speaks ZMTP to the clients, ``"zmtp"`` (trio) or ``"libzmq"``;
    ``network``: sockets of another kind altogether.

    The block begins when the address is bound; :meth:`Server.wait_ready` waits
    for a worker.  At its end what runs is cancelled, workers are ended and
    reaped; call :meth:`Server.drain` before to let work finish.  Raises
    ConfigError for wrong arguments and for limits that contradict each other,
    ServerStartError if the address cannot be had, and at the block's end
    ServerNotClosed if something could not be ended within the limits (with
    ``workers=0``, code that ignores its cancellation: it goes on, and ``trio.run``
    waits for it).
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ConfigError(f"workers must be a number >= 0, not {workers!r}")
    command = parse_command(worker_command)
    if command and not workers:
        raise ConfigError("worker_command starts processes: give workers=1 or more")
    if environment is None and not command:
        environment = DEFAULT_ENVIRONMENT
    name = str(environment if environment is not None else shlex.join(command))
    if workers and not isinstance(environment, str) and not (command and environment is None):
        raise ConfigError(
            "worker processes load their environment by name: give a string such as "
            "'package.module:factory', or workers=0 to run an object in this process"
        )
    if workers:
        check_args(args or {})
    limits, wire = limits or ServerLimits(), wire or WireLimits()
    check_together(limits, wire)
    setup = Setup(
        environment=environment, name=name, args=dict(args or {}), bind=bind, workers=workers,
        command=command, limits=limits, wire=wire, network=network, transport=transport,
        worker_environ=worker_environ, worker_logging=dict(worker_logging or {}), record=record,
        record_bodies=record_bodies,
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
            sockets = setup.network
            if sockets is None:
                sockets = await stack.enter_async_context(open_network(setup.transport))
            front = await stack.enter_async_context(sockets.open_router(setup.bind, limits=wire))
            if locks is None and parse_address(setup.bind).scheme != "memory":
                locks = _lock(front.address, stack, passing=True)
            _warn_if_reachable(front.address)
            host = _host(setup, locks, front.address)
            slots, now_s = max(setup.workers, 1), _now_s()
            make = partial(
                Router, epoch=new_id(), slots=slots, now_s=now_s, limits=limits, wire=wire,
                pulses=host.pulses,
            )  # fmt: skip
            recorder: Recorder | None = None
            if setup.record is not None:
                opened = open_recorder(
                    setup.record, make, new_id=new_id, now_s=now_s, slots=slots, pulses=host.pulses,
                    bodies=setup.record_bodies, environment=name, address=front.address,
                )  # fmt: skip
                recorder = await stack.enter_async_context(opened)
            router = make(new_id=new_id) if recorder is None else recorder.tape.router
            stack.enter_context(unwrap_single())
            nursery = await stack.enter_async_context(trio.open_nursery())
            into = router if recorder is None else recorder.tape
            server = Server(router, into, front, host, nursery, limits)
            server._start(locks)
            if recorder is not None:
                nursery.start_soon(recorder.keep_writing)
            _log.info("serving %s at %s, epoch %s", name, front.address, short(router.epoch))
            await served(server)
            await server._close()
            left = server._left_behind()
            nursery.cancel_scope.cancel()
        if left:
            raise ServerNotClosed(left)

    async with open_background(run) as server:
        yield server


def _host(setup: Setup, locks: AddressLocks | None, address: str) -> Workers:
    """Who owns the workers: processes, or this one."""
    if not setup.workers:
        return InProcessWorkers(setup.environment, dict(setup.args), setup.limits, setup.wire)
    return ProcessWorkers(
        None if setup.environment is None else str(setup.environment), dict(setup.args),
        setup.limits, setup.wire, locks, address, setup.worker_environ,
        dict(setup.worker_logging), setup.command,
    )  # fmt: skip


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


def _now_s() -> float:
    """The monotonic clock: trio's own, so that a virtual one is followed."""
    return trio.current_time()


def _portions(batch: list[list[Frame]], peers: int) -> Iterator[list[list[Frame]]]:
    """What was read at once, in parts: the peers that it is passed on to, so many, get
    a bundle each of a part, and are at work on that while the next one is dealt with.
    Behind routes stand headers: of those a part has few bytes, or one message."""
    size = BUNDLE_MESSAGES * max(peers, 1)
    start = header_bytes = 0
    for end, message in enumerate(batch, 1):
        header_bytes += len(message[1]) if len(message) > 1 else 0
        if end - start == size or end == len(batch) or header_bytes > PORTION_HEADER_BYTES:
            yield batch[start:end]
            start, header_bytes = end, 0
