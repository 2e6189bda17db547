"""A host that has joined a router: the shell of :class:`~trio_envserve.core.host.Host`.

Theory of operation
-------------------
The pure part decides; here its bytes are moved, its processes started through the guard
(:mod:`.guarded`), and its time is kept, on a clock that runs while the machine sleeps.  Its
effects are carried out in order and at once, so the guard hears of a deadline before it
hears of the workers that may start for it.

All processes of a host hold its lock, whose file lists its tenures: so the next host of
this name knows that the workers of those are dead, and says so to the router.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from socket import gethostname
from typing import Any, final

import trio

from ..core.errors import ConfigError, ProtocolError, ServerStartError
from ..core.heartbeat import Heartbeat
from ..core.host import (
    Host,
    KillWorker,
    NewGuard,
    Say,
    SetDeadline,
    StartWorker,
    TellWorker,
    ToRouter,
)
from ..core.lease import Tenure
from ..core.limits import ServerLimits, WireLimits
from ..core.router_effects import Spawn
from ..core.terms import ID_BYTES
from ..envs.check import check_spec
from ..net import (
    ConnectionEvent,
    DealerSocket,
    Frame,
    need_trio,
    open_background,
    open_zmtp_network,
    unwrap_single,
)
from ..net.keypairs import ClientCurve
from ..net.zmtp.sides import sealed_wire
from ..worker.config import check_args
from .guarded import Guard, start_guard
from .locks import LockFile, runtime_directory
from .processes import REAP_S, WorkerProcess
from .workers import ProcessWorkers

_log = logging.getLogger("trio_envserve.server")
_LEVELS = logging.getLevelNamesMapping()

BEAT_S = 1.0
"""The longest pause between two beats; a tenth of the lease if that is less."""
HELLO_S = 2.0
"""A router that has not answered a hello by then is asked again."""
LOCK_S = 60.0
"""So long a host waits for the processes of the last one of its name to end."""
LEAVE_S = 1.0
"""So long it tries to tell the router at the end that it goes."""


def boot_s() -> float:
    """A clock that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@final
class JoinedHost:
    """A host of one router.  Made by :func:`open_host`."""

    def __init__(self, core: Host, lock: LockFile, nursery: trio.Nursery) -> None:
        self._core = core
        self._lock = lock
        self._nursery = nursery
        self._guard: Guard | None = None
        self._socket: DealerSocket | None = None
        self._workers: ProcessWorkers | None = None
        self._slots: dict[bytes, int] = {}
        """Which of its own slots each worker has."""
        self._changed = trio.lowlevel.ParkingLot()

    def _start_process(self, **options: Any) -> WorkerProcess:
        """Start a process as the guard's child."""
        assert self._guard is not None
        return self._guard.start(**options)

    @property
    def is_joined(self) -> bool:
        """Whether the router has welcomed it on the newest connection."""
        return self._core.is_joined

    async def wait_joined(self) -> None:
        """Sleep until the router has answered a beat: workers may start."""
        while not self._core.lease.holds(boot_s()):
            await self._changed.park()

    async def leave(self) -> None:
        """Take no more work, and sleep until all workers have ended."""
        self._core.leave()
        self._carry_out()
        while self._core.workers:
            await self._changed.park()

    # -- tasks ----------------------------------------------------------------

    def _start(self, socket: DealerSocket, workers: ProcessWorkers) -> None:
        """All tasks, until the nursery is cancelled."""
        self._socket, self._workers = socket, workers
        self._new_guard()
        self._nursery.start_soon(self._listen, socket)
        self._nursery.start_soon(self._beat)

    def _heard_of(self, event: ConnectionEvent) -> None:
        """What happened to the connection."""
        if event is ConnectionEvent.CONNECTED:
            self._core.connect()
            self._carry_out()

    async def _listen(self, socket: DealerSocket) -> None:
        while True:
            for frames in await socket.receive():
                try:
                    self._core.message([bytes(frame) for frame in frames], boot_s())
                except ProtocolError as error:
                    _log.warning("the router sent what is no message: %s", error)
                self._carry_out()

    async def _beat(self) -> None:
        asked_s = trio.current_time()
        while True:
            self._core.beat(boot_s())
            if self._core.is_joined:
                asked_s = trio.current_time()
            elif trio.current_time() >= asked_s + HELLO_S:
                asked_s = trio.current_time()
                self._core.connect()
            self._carry_out()
            await trio.sleep(min(BEAT_S, (self._core.lease.fence_s or 1.0) / 10))

    async def _live(self, worker: bytes, incarnation: bytes) -> None:
        """One life of a worker: from its start until it is reaped."""
        assert self._workers is not None
        slot = next(n for n in range(len(self._slots) + 1) if n not in self._slots.values())
        self._slots[worker] = slot

        def started(pid: int) -> None:
            self._core.spawned(worker, pid)
            self._carry_out()

        def heard(batch: list[list[Frame]]) -> None:
            for _, *frames in batch:
                self._core.said(worker, [bytes(frame) for frame in frames])
            self._carry_out()

        def felt(heartbeat: Heartbeat) -> None:
            self._core.felt(worker, heartbeat)
            self._carry_out()

        how = await self._workers.live(Spawn(slot, worker, incarnation), started, heard, felt)
        del self._slots[worker]
        self._core.exited(worker, how)
        self._carry_out()

    # -- effects --------------------------------------------------------------

    def _carry_out(self) -> None:
        """Carry out what the pure part wants, in order; nothing comes in between."""
        if self._guard is None:
            return  # it has closed: no worker lives, and its router has been told
        assert self._socket is not None
        assert self._workers is not None
        while self._core.out:
            out, self._core.out = self._core.out, []
            for effect in out:
                match effect:
                    case ToRouter():
                        # Not sent is no loss: the next beat repairs it.
                        self._socket.send_nowait(effect.frames)
                    case StartWorker():
                        self._nursery.start_soon(self._live, *effect)
                    case TellWorker():
                        self._workers.send_many_nowait(effect.worker, [effect.frames])
                    case KillWorker():
                        self._workers.kill(effect.worker)
                    case SetDeadline():
                        self._guard.set_deadline(effect.deadline_s)
                    case NewGuard():
                        self._new_guard()
                    case Say():
                        _log.log(_LEVELS[effect.level.upper()], "%s", effect.text)
        self._changed.unpark_all()

    def _new_guard(self) -> None:
        if self._guard is not None:
            self._guard.hang_up()
        self._guard = start_guard([self._lock.fd])
        self._nursery.start_soon(self._keep_guard, self._guard)

    async def _keep_guard(self, guard: Guard) -> None:
        await guard.run()
        guard.forget()
        if guard is self._guard:
            # It died, by the deadline or by somebody's hand.
            self._new_guard()
            deadline_s = self._core.lease.deadline_s
            if deadline_s is not None and self._core.lease.holds(boot_s()):
                self._guard.set_deadline(deadline_s)

    async def _close(self) -> None:
        """End all workers, and say so to the router."""
        assert self._guard is not None
        assert self._socket is not None
        guard, self._changed = self._guard, trio.lowlevel.ParkingLot()
        self._core.leave()
        for worker in list(self._core.workers):
            self._core.out.append(KillWorker(worker, "its host leaves"))
        self._carry_out()
        with trio.move_on_after(REAP_S):
            while self._core.workers:
                await self._changed.park()
            with trio.move_on_after(LEAVE_S):
                await self._socket.flush()
        self._guard = None
        guard.hang_up()
        with trio.move_on_after(REAP_S):
            await guard.ended.wait()


@asynccontextmanager
async def open_host(
    address: str, environment: str, *,
    args: Mapping[str, Any] | None = None,
    workers: int = 1,
    name: str = "",
    offers: Mapping[str, Any] | None = None,
    worker_command: Sequence[str] = (),
    worker_python: str | None = None,
    worker_environ: Sequence[Mapping[str, str]] = (),
    limits: ServerLimits | None = None,
    wire: WireLimits | None = None,
    curve: ClientCurve | None = None,
) -> AsyncIterator[JoinedHost]:  # fmt: skip
    """Own workers on this machine for the router at ``address``, until the block ends.

    ``name``: the id of this host, which no other host of the router has (default: that of the
    machine).  ``offers``: what there is of it for the needs of workers.  The rest is as for
    a server; ``curve``: the keys for a router that needs some, with the role ``work``.  At
    the end of the block all workers are dead; call :meth:`JoinedHost.leave`
    before to let them finish.  Raises ConfigError, and ServerStartError if processes of
    another host of this name are still there."""
    need_trio("open_host")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"workers must be a number >= 1, not {workers!r}")
    if not worker_command and worker_python is None:
        check_spec(environment)
    check_args(dict(args or {}))
    name = name or gethostname()
    limits, wire = limits or ServerLimits(), wire or WireLimits()
    if curve is not None:
        wire = sealed_wire(wire)

    async def run(served: Callable[[JoinedHost], Awaitable[None]]) -> None:
        async with AsyncExitStack() as stack:
            lock = _open_lock(name)
            stack.callback(lock.close)
            past = await _take(lock, name)

            def new_tenure() -> Tenure:
                tenure = os.urandom(ID_BYTES)
                lock.append(f"{tenure.hex()}\n")
                return tenure

            core = Host(name, workers, new_tenure, offers=dict(offers or {}), past=past, wire=wire)
            network = await stack.enter_async_context(open_zmtp_network())
            stack.enter_context(unwrap_single())
            nursery = await stack.enter_async_context(trio.open_nursery())
            host = JoinedHost(core, lock, nursery)
            socket = await stack.enter_async_context(
                network.open_dealer(address, limits=wire, on_event=host._heard_of, curve=curve)
            )
            owned = ProcessWorkers(
                environment, dict(args or {}), limits, wire, [lock], address, worker_environ, {},
                worker_command, worker_python, start=host._start_process,
            )  # fmt: skip
            host._start(socket, owned)
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


async def _take(lock: LockFile, name: str) -> list[Tenure]:
    """The tenures of this name before, whose workers are dead."""
    with trio.move_on_after(LOCK_S):
        while not lock.acquire_nowait():  # noqa: ASYNC110  # nothing tells when it is free
            await trio.sleep(0.1)
    if not lock.held:
        raise ServerStartError(f"another host is here as {name}: {lock.find_holders()}")
    lines = [line for line in lock.read().split() if len(line) == 2 * ID_BYTES][-16:]
    lock.write("".join(f"{line}\n" for line in lines))
    return [bytes.fromhex(line) for line in lines]
