"""A host that has joined a router: the shell of :class:`~trio_envserve.core.host.Host`.

Theory of operation
-------------------
The core decides; this module moves its bytes, starts its processes (:mod:`.processes`), and keeps
its time on a clock that runs while the machine sleeps.  Effects are carried out in order and
without an await, so a deadline is set before the workers start that it allows.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import trio

from ..core.errors import ConfigError, ProtocolError, ServerNotReady
from ..core.heartbeat import Heartbeat
from ..core.host import (
    LEAVING,
    FromHost,
    Host,
    NewGuard,
    Serve,
    SetDeadline,
    TellWorker,
)
from ..core.host_messages import UNFIT, VERSION
from ..core.limits import MIB
from ..core.router_effects import AskWorker, Kill, Report, Spawn
from ..net import (
    ConnectionEvent,
    DealerSocket,
    Frame,
)
from .processes import REAP_S
from .served import Served
from .workers import ProcessWorkers

_log = logging.getLogger("trio_envserve.server")
_LEVELS = logging.getLevelNamesMapping()

BEAT_S = 1.0
"""Longest pause between two beats; a tenth of the lease if that is less."""
LEAST_BEAT_S = 0.05
"""Shortest pause between two beats, however short the lease is."""
HELLO_S = 2.0
"""Time after which an unanswered hello is repeated."""
LEAVE_S = 1.0
"""Longest time for the goodbye to the router to be sent."""

DELTAS_BACKLOG_BYTES = MIB
"""Most bytes that wait for the uplink when a delta is sent."""
_TROUBLE = {
    ConnectionEvent.DISCONNECTED: "the connection to {} was lost",
    ConnectionEvent.REFUSED: "nothing listens at {} (is the router started, with --hosts-bind?)",
    ConnectionEvent.NAME_UNKNOWN: "the name of the host in {} is not known (is it spelt right?)",
    ConnectionEvent.HANDSHAKE_FAILED: "the program that listens at {} does not speak ZeroMQ",
}
_BARRED = ("it refuses", "it does not know this key", "it wants the mechanism")
"""Beginnings of the reasons for which a peer would refuse every further attempt as well."""
_NOT_STARTED = "it was not started"


def boot_s() -> float:
    """The time of a clock that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@final
class JoinedHost:
    """A host of one router.  Made by :func:`.open_host`."""

    def __init__(
        self, core: Host, address: str, own: Served,
        make_workers: Callable[[Served], ProcessWorkers],
    ) -> None:  # fmt: skip
        self.address = address
        """Address of its router."""
        self._core = core
        self._nursery: trio.Nursery | None = None
        self._own = own
        """Settings of the environment that this host was started with, which win over the
        router's."""
        self._make_workers = make_workers
        self._closed = False
        """Whether no worker lives any more, and the router has been told."""
        self._deadline_s: float | None = None
        """Time by which all workers must be dead; None if the core has not told one."""
        self._socket: DealerSocket | None = None
        self._workers: ProcessWorkers | None = None
        """None until the router has named the environment."""
        self._prepared = trio.Event()
        """Set when the environment is known and checked, or known to be impossible here."""
        self._served: Served | None = None
        self._trouble = f"nobody has answered at {address} yet"
        """Reason for which there is no connection, for people; empty while there is one."""
        self._barred = ""
        """Reason for which the router will never admit it, for people; empty if none is known."""
        self._broken: ConfigError | None = None
        """Error by which the environment cannot run on this machine."""
        self._unwanted: set[bytes] = set()
        """Workers that are to be killed and were not started yet."""
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def name(self) -> str:
        """Name of this host."""
        return self._core.name

    @property
    def is_joined(self) -> bool:
        """Whether the router has welcomed it on the newest connection."""
        return self._core.is_joined

    @property
    def workers(self) -> int:
        """Number of workers that were started, or are to be, and have not ended."""
        return len(self._core.workers)

    @property
    def serves(self) -> str:
        """Name of its workers' environment, for people; empty until the router has named it."""
        served = self._served
        if served is None:
            return ""
        return served.environment or shlex.join(served.command)

    @property
    def holds_lease(self) -> bool:
        """Whether its lease holds, so that workers may live."""
        return self._core.lease.holds(boot_s())

    @property
    def trouble(self) -> str:
        """Reason for which it is not joined, for people; empty if it is."""
        if self.is_joined:
            return ""
        if self._core.refusal is not None:
            return f"the router refuses this host: {self._core.refusal[1]}"
        return self._trouble or "the router has not answered yet"

    def check_hopeless(self) -> None:
        """Raise ServerNotReady if the router will never admit this host (another version, a key
        without the right, too few resources for a worker), and ConfigError if the environment
        cannot run on this machine."""
        if self._broken is not None:
            raise self._broken
        if self._core.workers:
            return  # they live until the lease is over
        if self._barred:
            raise ServerNotReady(self._barred)
        if self._core.refusal is not None and self._core.refusal[0] in (UNFIT, VERSION):
            raise ServerNotReady(self.trouble)

    async def wait_joined(self) -> None:
        """Sleep until the router has answered a beat: workers may start.  Raises what
        :meth:`check_hopeless` does."""
        while not (self.holds_lease and self._workers is not None):
            self.check_hopeless()
            await self._changed.park()

    async def wait_changed(self) -> None:
        """Sleep until something has changed, a second at most."""
        with trio.move_on_after(1.0):
            await self._changed.park()

    async def leave(self) -> None:
        """Accept no further work, and sleep until all workers have ended."""
        self._core.leave()
        self._carry_out()
        while self._core.workers:
            await self._changed.park()

    def kill(self) -> None:
        """Kill all workers now, whatever they run, and start no others."""
        self._core.leave()
        self._core.out += [Kill(each, LEAVING) for each in sorted(self._core.workers)]
        self._carry_out()

    # -- tasks ----------------------------------------------------------------

    def _start(self, socket: DealerSocket, nursery: trio.Nursery) -> None:
        """Start all tasks, which run until the nursery is cancelled."""
        self._socket, self._nursery = socket, nursery
        nursery.start_soon(self._listen, socket)
        nursery.start_soon(self._beat)

    def _on_event(self, event: ConnectionEvent) -> None:
        """Take an event of the connection."""
        if event is ConnectionEvent.CONNECTED:
            self._trouble = self._barred = ""
            self._core.connect()
        else:
            self._trouble = _TROUBLE[event].format(self.address)
            why = getattr(self._socket, "why_refused", "")
            if event is ConnectionEvent.HANDSHAKE_FAILED and why:
                self._trouble = f"{self.address} answers, but the handshake failed: {why}"
                if why.startswith(_BARRED):
                    self._barred = self._trouble
            self._core.disconnect()
        self._carry_out()

    async def _listen(self, socket: DealerSocket) -> None:
        while True:
            for frames in await socket.receive():
                try:
                    self._core.message([bytes(frame) for frame in frames], boot_s())
                except ProtocolError as error:
                    self._take_wrong(error)
                self._carry_out()

    def _take_wrong(self, error: ProtocolError) -> None:
        """Report a message that no router sends to a host."""
        if self.is_joined:
            _log.warning("the router sent a malformed message: %s", error)
        else:
            # A router's address for clients answers as well, but with messages for clients.
            self._trouble = (
                f"{self.address} answers, but not as a router answers a host: is it the address "
                f"of --hosts-bind? ({error})"
            )

    async def _beat(self) -> None:
        asked_s = trio.current_time()
        while True:
            self._core.beat(boot_s(), _machine())
            if self._core.is_joined:
                asked_s = trio.current_time()
            elif trio.current_time() >= asked_s + HELLO_S:
                asked_s = trio.current_time()
                self._core.connect()
            self._carry_out()
            tenth_s = (self._core.lease.fence_s or 1.0) / 10
            await trio.sleep(min(BEAT_S, max(tenth_s, LEAST_BEAT_S)))

    async def _prepare(self, record: dict[str, Any], prepared: trio.Event) -> None:
        """Check the environment that the router has named, and make its workers possible."""
        broken: ConfigError | None = None
        try:
            named = Served.from_record(record)
            served = await named.under(self._own).check()
        except ConfigError as error:
            broken = error
        if prepared is not self._prepared:
            return  # another router has named another environment meanwhile
        if broken is not None:
            _log.error("this host cannot run its environment: %s", broken)
            self._broken = broken
        else:
            self._served = served
            self._workers = self._make_workers(served)
            self._workers.set_deadline(self._deadline_s)
            _log.info("workers of this host run the environment %s", self.serves)
        prepared.set()
        self._changed.unpark_all()

    async def _live(self, spawn: Spawn) -> None:
        """Supervise one worker, from its start until it is reaped."""
        worker = spawn.worker
        await self._prepared.wait()
        if self._workers is None or worker in self._unwanted:
            how = _NOT_STARTED if self._broken is None else f"{_NOT_STARTED}: {self._broken}"
            self._unwanted.discard(worker)
            self._core.exited(worker, how)
            self._carry_out()
            return

        def started(pid: int) -> None:
            self._core.spawned(worker, pid)
            self._carry_out()

        def on_messages(batch: list[list[Frame]]) -> None:
            for _, *frames in batch:
                self._core.worker_message(worker, [bytes(frame) for frame in frames])
            self._carry_out()

        def on_heartbeat(heartbeat: Heartbeat) -> None:
            self._core.worker_heartbeat(worker, heartbeat)
            self._carry_out()

        how = await self._workers.live(spawn, started, on_messages, on_heartbeat)
        self._core.exited(worker, how)
        self._carry_out()

    # -- effects --------------------------------------------------------------

    def _carry_out(self) -> None:
        """Carry out the core's effects in order, without an await."""
        if self._closed:
            return
        assert self._socket is not None
        assert self._nursery is not None
        self._core.flush()  # reports of one turn share messages
        while self._core.out:
            out, self._core.out = self._core.out, []
            for effect in out:
                match effect:
                    case FromHost(is_delta=True) if self._has_backlog():
                        pass  # the outcome has the whole text
                    case FromHost():
                        # A message that cannot be sent is repaired by the next beat.
                        self._socket.send_nowait(effect.frames)
                    case Spawn():
                        self._nursery.start_soon(self._live, effect)
                    case TellWorker():
                        if self._workers is not None:  # else it has not begun
                            self._workers.send_many_nowait(effect.worker, [effect.frames])
                    case Kill():
                        if self._workers is None:
                            self._unwanted.add(effect.worker)
                        else:
                            self._workers.kill(effect.worker)
                    case AskWorker():
                        if self._workers is not None:  # a heartbeat has the answer
                            self._workers.stack(effect)
                    case Serve():
                        # No worker of the last membership is left.
                        self._workers = self._broken = None
                        self._prepared = trio.Event()
                        self._nursery.start_soon(self._prepare, effect.serves, self._prepared)
                    case SetDeadline():
                        self._set_deadline(effect.deadline_s)
                    case NewGuard():
                        self._set_deadline(None)
                    case Report():
                        _log.log(_LEVELS[effect.level.upper()], "%s", effect.text)
        self._changed.unpark_all()

    def _has_backlog(self) -> bool:
        """Whether so much waits for the uplink that deltas would hold the beats up."""
        assert self._socket is not None
        return self._socket.statistics().backlog_bytes > DELTAS_BACKLOG_BYTES

    def _set_deadline(self, boot_s: float | None) -> None:
        self._deadline_s = boot_s
        if self._workers is not None:
            self._workers.set_deadline(boot_s)

    async def _close(self) -> None:
        """End all workers, and tell the router that the host has left."""
        assert self._socket is not None
        self._changed = trio.lowlevel.ParkingLot()
        self.kill()
        with trio.move_on_after(REAP_S):
            while self._core.workers:
                await self._changed.park()
            with trio.move_on_after(LEAVE_S):
                await self._socket.flush()
        self._closed = True


def _machine() -> dict[str, float]:
    """Load of this machine for each processor, and its available memory; empty if unknown."""
    try:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        (free_kib,) = (line.split()[1] for line in meminfo.splitlines() if "MemAvailable" in line)
        return {"load": round(load, 3), "memory_bytes": int(free_kib) << 10}
    except (OSError, ValueError):  # a system without these figures
        return {}
