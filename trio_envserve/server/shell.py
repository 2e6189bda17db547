"""The server's shell: one nursery around the pure router.

Theory of operation
-------------------
:class:`~trio_envserve.core.router.Router` decides; this module moves its bytes, starts its
processes and keeps its time.  The nursery owns a task for the front, one for the clock, one
supervisor for each worker, which also reads its messages, and one that logs statistics
(:mod:`.statistics`).  Each input is given to the router synchronously, and the effects are carried
out before the next await: first those on processes, then the messages, in order and batched for
each peer.  Inputs go to the router directly, or through a recording (:mod:`.recording`).

The router also decides about closing (:mod:`~trio_envserve.core.closing`); the shell waits for it,
and the front is read until the last stage ends.  Closing needs the tasks, so all of them run in the
background of the block that opened the server (:mod:`.opening`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

import trio

from ..core.closing import ClosingStage
from ..core.errors import EnvironmentBroken, ServerNotReady, ServerStartError
from ..core.heartbeat import Heartbeat
from ..core.lease import EarlierEpochs
from ..core.limits import ServerLimits
from ..core.messages import MessageRow, in_batches
from ..core.router import Router
from ..core.router_effects import (
    AskWorker,
    ClosingOver,
    Flush,
    Kill,
    Load,
    Lost,
    RecordHosts,
    Report,
    RouterEffect,
    Save,
    Spawn,
    TellStats,
    ToClient,
    ToHost,
    ToWorker,
)
from ..core.router_inputs import (
    AtRest,
    ClientMessage,
    CloseAsked,
    Exited,
    Flushed,
    HostMessage,
    HostsBefore,
    HostsTick,
    Loaded,
    PoolOpened,
    Restored,
    Resume,
    RouterInput,
    Saved,
    SaveFailed,
    Spawned,
    StackTaken,
    Tick,
    TurnOver,
    WorkerMessage,
    inputs_of,
)
from ..core.status import ServerStats, StatusRecord
from ..core.terms import Incarnation, Route
from ..host.locks import ServerLocks
from ..host.workers import Workers
from ..net import Frame, RouterSocket
from ..net.keypairs import ClientCurve
from .curve import Authenticator
from .earlier import hosts_ended, processes_ended
from .hosts import EpochRecords, HostsShell
from .journal import OpenJournal
from .left_over import left_over
from .portions import of_worker, portions
from .statistics import Statistics

_log = logging.getLogger("trio_envserve.server")
_LEVELS = logging.getLevelNamesMapping()


@final
class Server:
    """A running server.  Made by :func:`open_server`."""

    def __init__(
        self, router: Router, take: Callable[[RouterInput], list[RouterEffect]],
        front: RouterSocket, workers: Workers, nursery: trio.Nursery, limits: ServerLimits,
        journal: OpenJournal | None = None, authenticator: Authenticator | None = None,
        hosts: HostsShell | None = None,
    ) -> None:  # fmt: skip
        self._router = router
        """Read only; every change goes through ``_take``."""
        self._take = take
        self._front = front
        self._workers = workers
        self._nursery = nursery
        self._limits = limits
        self._journal = journal
        self._authenticator = authenticator
        self._hosts = hosts
        self._left: tuple[bytes, ...] = ()
        """Names of the workers that did not end in time."""
        self._statistics = Statistics(router, front, limits.tick_s)
        self._changed = trio.lowlevel.ParkingLot()
        self._inputs = 0
        self._catching_up = False
        self._tick_due = trio.Event()
        """Set when the next tick has something to do before its time."""

    @property
    def address(self) -> str:
        """The address that clients connect to (a port 0 is resolved)."""
        return self._front.address

    @property
    def curve(self) -> ClientCurve | None:
        """Keys with every right, for clients in this process; None if the server has no keys."""
        return None if self._authenticator is None else self._authenticator.own

    @property
    def hosts_address(self) -> str:
        """The address that hosts join; empty if no hosts can join."""
        return "" if self._hosts is None else self._hosts.address

    def stats(self) -> ServerStats:
        """The statistics, as :meth:`trio_envserve.Client.stats` gets them: see the operations page
        of the documentation."""
        return ServerStats.of(self._statistics.record())

    def status(self) -> StatusRecord:
        """The status as clients see it: whether the server is ready, and the reason if not."""
        return StatusRecord.of(self._router.status())

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Sleep until a worker is ready.  Raises EnvironmentBroken with the traceback as soon as
        the environment is known to be broken, and ServerNotReady with the server's last reason
        after ``timeout_s``.

        Args:
            timeout_s: Longest wait in seconds; None: the limit ``start_s``.
        """
        limit_s = self._limits.start_s if timeout_s is None else timeout_s
        with trio.move_on_after(limit_s):
            while not self._router.pool.ready_count():
                if self._router.pool.stopping:
                    raise ServerStartError("the server is stopping")
                if self._router.pool.is_broken():
                    raise EnvironmentBroken(self._router.status()["reason"])
                await self._changed.park()
            return
        raise ServerNotReady(f"not ready after {limit_s:g} s: {self._router.status()['reason']}")

    # -- closing --------------------------------------------------------------

    async def drain(self, drain_s: float | None = None) -> bool:
        """Accept no new requests, and wait until no execution is left and every present client has
        its outcomes.  False if that took longer than ``drain_s``, or the server was killed
        meanwhile.

        Closing then goes on by itself: executions are cancelled, and workers are ended.  Clients
        are answered until the block ends.

        Args:
            drain_s: Longest wait in seconds; None: the limit ``drain_s``.
        """
        self._ask_to_close(ClosingStage.DRAINING, drain_s)
        closing = self._router.closing
        while closing.stage is ClosingStage.DRAINING:
            await self._changed.park()
        return closing.drained

    def kill(self) -> None:
        """Kill every worker process now, whatever it runs, and start no others.

        Requests that ran are answered "it may have run".  The server itself ends with its block,
        which then ends soon.
        """
        self._ask_to_close(ClosingStage.KILLING)

    async def _close(self) -> None:
        """Close without a drain, and wait for the last stage, which the router ensures."""
        self._ask_to_close(ClosingStage.CANCELLING)
        while self._router.closing.stage is not ClosingStage.CLOSED:
            await self._changed.park()
        if self._hosts is not None and not self._left:
            self._hosts.closed()

    def _ask_to_close(self, stage: ClosingStage, drain_s: float | None = None) -> None:
        """Begin to close; the next tick tells idle workers to exit."""
        self._give(CloseAsked(_now_s(), stage, drain_s))
        self._tick_due.set()

    def _left_over(self) -> str:
        """A text about the processes of this machine that did not end in time; empty if all did."""
        return left_over(self._left, self._router, self._limits.reap_s, self._workers.where)

    # -- tasks ----------------------------------------------------------------

    def _start(self, locks: Sequence[ServerLocks]) -> None:
        """Start all tasks, which run until the nursery is cancelled."""
        if self._journal is not None:
            at_rest = self._journal.at_rest()
            self._give(Restored(list(self._journal.records()), _now_s()))
            self._give(AtRest(at_rest, _now_s()))
            self._nursery.start_soon(self._keep_saved, self._journal)
            self._nursery.start_soon(self._keep_loaded, self._journal)
        if self._authenticator is not None:
            self._tell_peers()
            self._nursery.start_soon(self._authenticator.keep, self._tell_peers)
        self._nursery.start_soon(self._serve_front)
        self._nursery.start_soon(self._keep_time)
        self._nursery.start_soon(self._statistics.keep_logging, self._limits.stats_line_s)
        self._nursery.start_soon(self._open_pool, locks)

    async def _serve_front(self) -> None:
        take = self._take
        while True:
            batch = await self._front.receive()
            if self._authenticator is not None:
                self._tell_peers()
            for number, portion in enumerate(portions(batch, len(self._router.workforce.workers))):
                if number:
                    await trio.lowlevel.checkpoint()
                now_s = _now_s()
                effects: list[RouterEffect] = []
                for route, *frames in portion:
                    effects += take(ClientMessage(bytes(route), frames, now_s))
                self._carry_out(effects)

    def _tell_peers(self) -> None:
        """Tell the router which peers with keys have connected and disconnected."""
        assert self._authenticator is not None
        for given in self._authenticator.news():
            self._give(given)

    async def _keep_time(self) -> None:
        """Tick, each time after all input that has arrived was given to the router."""
        while True:
            asked_s = trio.current_time()
            self._tick_due = trio.Event()
            with trio.move_on_after(self._limits.tick_s) as scope:
                await self._tick_due.wait()
            if scope.cancelled_caught:
                self._statistics.lag.record(trio.current_time() - asked_s)
            await self._drain_input()
            if self._hosts is not None:
                self._hosts.look()
                self._give(HostsTick(_now_s()))
            self._give(Tick(_now_s()))

    async def _drain_input(self) -> None:
        """Let the other tasks take in what has arrived: much, if this process was stopped.  The
        number of turns is bounded, so that the clock goes on under any load."""
        for _ in range(200):
            before = self._inputs
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            if self._inputs == before:
                return

    async def _open_pool(self, locks: Sequence[ServerLocks]) -> None:
        """Start workers once the processes of earlier servers have ended."""
        dead = await processes_ended(locks, self._router, self._limits.lock_s, self._give)
        records = EpochRecords([each.epochs.path for each in locks])
        earlier = EarlierEpochs(records.read(), _now_s())
        hosts = self._router.hosts
        if self._hosts is None or hosts is None:
            await hosts_ended(earlier, records, self._give)
            records.clear()
        else:
            self._hosts.open(records)
            self._give(HostsBefore(earlier.waits, _now_s()))
            self._nursery.start_soon(self._serve_hosts, self._hosts)
            if self._journal is None:
                await hosts_ended(hosts.leases.earlier, records, self._give)
        self._give(PoolOpened(dead, _now_s()))
        if self._router.works.earlier_lives:
            _log.info(
                "hosts of an earlier server may still run requests with keys: these are taken "
                "over; other requests with keys start once all these hosts are back (%s)",
                records.until(earlier, _now_s()),
            )

    async def _serve_hosts(self, hosts: HostsShell) -> None:
        """Read the messages of hosts."""
        while True:
            batch = await hosts.receive()
            now_s = _now_s()
            effects: list[RouterEffect] = []
            for route, *frames in batch:
                message = [bytes(frame) for frame in frames]
                effects += self._take(HostMessage(bytes(route), message, now_s))
            self._carry_out(effects)

    async def _keep_saved(self, journal: OpenJournal) -> None:
        """Tell the router which records of the journal are safe."""
        while True:
            upto, failure = await journal.news()
            if failure is None:
                self._give(Saved(upto, _now_s()))
            else:
                self._give(SaveFailed(*failure, _now_s()))

    async def _keep_loaded(self, journal: OpenJournal) -> None:
        """Give the router the outcomes that it asked for."""
        while True:
            for outcome in await journal.loaded():
                self._give(Loaded(*outcome, _now_s()))

    async def _supervise(self, spawn: Spawn) -> None:
        """Supervise one worker, from its start until it is reaped."""
        take, give = self._take, self._give

        def started(pid: int) -> None:
            give(Spawned(spawn.worker, pid))

        def on_messages(batch: list[list[Frame]]) -> None:
            now_s = _now_s()
            for portion in portions(batch, len(self._router.sessions.known), of_worker):
                effects: list[RouterEffect] = []
                for message in portion:
                    effects += take(WorkerMessage(message, now_s))
                self._carry_out(effects)

        def on_heartbeat(heartbeat: Heartbeat) -> None:
            for each in inputs_of(spawn.worker, heartbeat, _now_s()):
                give(each)

        how = await self._workers.live(spawn, started, on_messages, on_heartbeat)
        give(Exited(spawn.worker, _now_s(), how))
        await trio.sleep(self._limits.reap_settle_s)
        self._tick_due.set()

    # -- effects --------------------------------------------------------------

    def _give(self, given: RouterInput) -> None:
        """Give the router an input, and carry out its effects."""
        self._carry_out(self._take(given))

    def _carry_out(self, effects: list[RouterEffect]) -> None:
        """Carry out effects of the router, without an await.

        A message to a worker that is killed by these effects is lost with it."""
        self._inputs += 1
        to_clients: dict[Route, list[MessageRow]] = {}
        to_workers: dict[tuple[bytes, Incarnation], list[MessageRow]] = {}
        if self._router.hosts is not None and self._router.hosts.is_due:
            effects += self._take(TurnOver())
        for effect in effects:
            match effect:
                case ToClient():
                    to_clients.setdefault(effect.route, []).append(effect[1:])
                case ToWorker():
                    to_workers.setdefault(effect[:2], []).append(effect[2:])
                case TellStats():
                    to_clients.setdefault(effect.route, []).append(self._statistics.told(effect))
                case Spawn() | Kill() | AskWorker() if not self._is_here(effect.worker):
                    pass  # its host does it
                case AskWorker():
                    text = self._workers.stack(effect)
                    if text is not None:  # else the worker's next heartbeat has the answer
                        taken = StackTaken(effect.worker, _now_s(), effect.number, text)
                        self._nursery.start_soon(self._give_later, taken)
                case Spawn():
                    self._nursery.start_soon(self._supervise, effect)
                case Kill(worker, _):
                    self._workers.kill(worker)
                case ToHost(route, frames):
                    assert self._hosts is not None
                    # A message that cannot be sent is repaired by the host's next beat.
                    self._hosts.send(route, frames)
                case RecordHosts(waits):
                    assert self._hosts is not None
                    self._nursery.start_soon(self._give_later, self._hosts.write(waits))
                case Report(level, text):
                    _log.log(_LEVELS[level.upper()], "%s", text)
                case Save(records, upto):
                    assert self._journal is not None
                    self._journal.save(records, upto)
                case Load(number):
                    assert self._journal is not None
                    self._journal.load(number)
                case Flush():
                    self._nursery.start_soon(self._flush)
                case ClosingOver():
                    self._left = effect.left
                case Lost():
                    pass  # the router has already taken it in
        for (worker, incarnation), rows in to_workers.items():
            if self._is_here(worker):
                messages = [(incarnation, *frames) for frames in in_batches(rows)]
                self._workers.send_many_nowait(worker, messages)
        for route, rows in to_clients.items():
            # A message that cannot be sent is repaired by the next sync; outcomes are kept.
            self._front.send_many_nowait(route, list(in_batches(rows)))
        if self._changed:
            self._changed.unpark_all()
        if self._router.behind and not self._catching_up:
            self._catching_up = True
            self._nursery.start_soon(self._catch_up)

    def _is_here(self, worker: bytes) -> bool:
        """Whether a worker is one of this machine."""
        life = self._router.pool.lives.get(worker)
        return life is not None and not life.host

    async def _give_later(self, given: RouterInput) -> None:
        """Give the router an input that answers one of its effects."""
        self._give(given)

    async def _catch_up(self) -> None:
        """Give the router further turns until it needs none; other tasks run between them."""
        while self._router.behind:
            await trio.lowlevel.checkpoint()
            self._give(Resume(_now_s()))
        self._catching_up = False

    async def _flush(self) -> None:
        if self._journal is not None:  # answers that wait for it are sent first
            await self._journal.settled()
            await trio.lowlevel.checkpoint()
        await self._front.flush()
        self._give(Flushed(_now_s()))


def _now_s() -> float:
    """The time of trio's clock, which may be a virtual one."""
    return trio.current_time()
