"""Where workers live: in processes of their own, or in the server's.

Both offer the same four things (:class:`Workers`); the shell does not know
which it has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, final

import trio

from ..core.limits import ServerLimits, WireLimits, WorkerLimits
from ..core.slots import Spawn
from ..envs.loading import load
from ..net import MemoryNetwork, RouterSocket, open_zmq_network
from ..worker.config import WorkerConfig
from ..worker.pulse import Pulse
from ..worker.shell import run_worker
from .locks import AddressLocks
from .processes import WorkerProcess, start_process

Started: TypeAlias = Callable[[int], None]
Heard: TypeAlias = Callable[[Pulse], None]

_NOT_STARTED = "it was killed before it was started"


class Workers(Protocol):
    """How the shell starts and ends workers."""

    pulses: bool
    """Whether they give signs of life apart from their event loop."""

    def open_back(self) -> AbstractAsyncContextManager[RouterSocket]:
        """The socket that joins the router to them."""
        ...

    async def live(self, spawn: Spawn, started: Started, pulse: Heard) -> str:
        """Start a worker and stay until it is reaped; says how it ended."""
        ...

    def kill(self, worker: bytes) -> None:
        """End it now, or before it begins, if the router has decided both at once;
        ``live`` returns when it is dead."""
        ...


def _worker_limits(limits: ServerLimits) -> WorkerLimits:
    return WorkerLimits(
        beat_s=limits.beat_s,
        pulse_s=limits.pulse_s,
        blocked_report_s=limits.blocked_report_s,
        teardown_s=limits.teardown_s,
        threads=limits.worker_capacity,
    )


@final
class ProcessWorkers:
    """Each worker is a process, with what it starts in a group of its own."""

    pulses = True

    def __init__(
        self, environment: str, args: dict[str, Any], limits: ServerLimits, wire: WireLimits,
        locks: AddressLocks | None, address: str, environ: Sequence[Mapping[str, str]],
        worker_logging: dict[str, Any],
    ) -> None:  # fmt: skip
        self._environment = environment
        self._args = args
        self._limits = limits
        self._wire = wire
        self._locks = locks
        self._address = address
        self._environ = environ
        self._logging = worker_logging
        self._back_address = ""
        self._living: dict[bytes, WorkerProcess | None] = {}
        """None: it was killed before its process was started."""

    @asynccontextmanager
    async def open_back(self) -> AsyncIterator[RouterSocket]:
        """A socket that leaves no file behind, however this process ends."""
        # Not a unix socket, though cheaper: libzmq 4.3.5 aborts when it has no
        # descriptor left for a connection that comes in by one.
        async with (
            open_zmq_network() as network,
            network.open_router("tcp://127.0.0.1:*", limits=self._wire) as back,
        ):
            self._back_address = back.address
            yield back

    async def live(self, spawn: Spawn, started: Started, pulse: Heard) -> str:
        """One process, from its start until it is reaped."""
        if self._living.pop(spawn.worker, ...) is None:
            return _NOT_STARTED
        environ = self._environ[spawn.slot] if spawn.slot < len(self._environ) else {}
        lock = self._locks.epochs.fd if self._locks is not None else None
        try:
            process = start_process(self._config(spawn), environ=environ, lock=lock)
        except (OSError, TypeError) as error:
            return f"it could not be started: {error}"
        self._living[spawn.worker] = process
        started(process.pid)
        how = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.listen, pulse)
                how = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            try:
                await process.aclose()
            finally:
                del self._living[spawn.worker]
        return how

    def kill(self, worker: bytes) -> None:
        """SIGKILL to it and all it has started."""
        process = self._living.setdefault(worker)
        if process is not None:
            process.kill()

    def _config(self, spawn: Spawn) -> WorkerConfig:
        name = spawn.worker.decode()
        return WorkerConfig(
            address=self._back_address,
            worker=name,
            incarnation=spawn.incarnation.hex(),
            environment=self._environment,
            args=self._args,
            limits=_worker_limits(self._limits),
            wire=self._wire,
            path=[entry or os.getcwd() for entry in sys.path],
            parent=os.getpid(),
            title=f"trio-envserve worker {name} of {self._address}",
            logging=self._logging,
        )


@final
class InProcessWorkers:
    """The environment runs in this process: closures, debuggers, quick tests.

    One worker, which nobody can kill: code that ignores its cancellation holds
    its place until it ends.
    """

    pulses = False

    def __init__(
        self, environment: str | object, args: dict[str, Any], limits: ServerLimits,
        wire: WireLimits,
    ) -> None:  # fmt: skip
        self._load = partial(load, environment, args)
        self._limits = limits
        self._wire = wire
        self._network = MemoryNetwork()
        self._scopes: dict[bytes, trio.CancelScope] = {}
        self._back_address = ""

    @asynccontextmanager
    async def open_back(self) -> AsyncIterator[RouterSocket]:
        """A socket inside this process."""
        async with self._network.open_router("memory:workers", limits=self._wire) as back:
            self._back_address = back.address
            yield back

    async def live(self, spawn: Spawn, started: Started, pulse: Heard) -> str:
        """One worker as a task."""
        started(os.getpid())
        how = "it was cancelled"
        with self._scopes.setdefault(spawn.worker, trio.CancelScope()):
            ready = await run_worker(
                self._network, self._back_address, worker=spawn.worker,
                incarnation=spawn.incarnation, load=self._load,
                limits=_worker_limits(self._limits), wire=self._wire,
            )  # fmt: skip
            how = "it retired" if ready else "its environment could not be set up"
        del self._scopes[spawn.worker]
        return how

    def kill(self, worker: bytes) -> None:
        """Cancel the task; it ends when the environment's code has."""
        self._scopes.setdefault(worker, trio.CancelScope()).cancel()
