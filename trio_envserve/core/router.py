"""The router: makes effects of inputs.

Theory of operation
-------------------
:meth:`Router.take` is given an input (:mod:`.router_inputs`) and gives the effects
(:mod:`.router_effects`), in order; the shell carries them out.  Nothing else changes a
router.  Nothing here awaits, reads a clock or draws a random number, so what the
simulator runs is what ships.

Each input ends with :meth:`.Dispatcher.schedule`, so nothing that could run ever waits
for a tick.  Two clocks: deadlines are on the monotonic clock (``now_s``);
leases and suspicion on awake time, which stands still while this process does.

A router that is :attr:`Router.behind` with its answers (:mod:`.deadlines`) is given
:class:`~.router_inputs.Resume` until it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from . import client_handlers
from .clock import AwakeClock
from .closing import Closing
from .deadlines import ANSWERS_AT_ONCE
from .dedup import DedupCache
from .dispatcher import Dispatcher
from .errors import ProtocolError
from .heard import ExecutionEnded, Noted, Said, Stray
from .heartbeat import Heartbeat
from .journal import Journal
from .key_pages import KeyPages
from .keyed_at_rest import RestingRequests
from .limits import KeyLimits, ServerLimits, WireLimits
from .lives import LifeInput
from .requests import Session
from .rights import Rights
from .router_effects import RouterEffect, Save
from .router_inputs import (
    AtRest,
    ClientMessage,
    CloseAsked,
    Exited,
    Flushed,
    HeartbeatFelt,
    HostsDead,
    HostsLive,
    Loaded,
    PeerKnown,
    PoolOpened,
    PoolWaits,
    Restored,
    Resume,
    RouterInput,
    Saved,
    SaveFailed,
    Spawned,
    StackTaken,
    Tick,
    WorkerBack,
    WorkerMessage,
)
from .running import RunningPages
from .slots import Pool
from .stacks import Stacks
from .stages import Stages
from .stats import describe, status
from .terms import Epoch, short
from .worker_range import WorkerRange


class Router:
    """The whole server, less its sockets, processes and clock."""

    def __init__(
        self, *, epoch: Epoch, slots: int | WorkerRange, now_s: float, new_id: Callable[[], bytes],
        limits: ServerLimits | None = None, wire: WireLimits | None = None,
        keys: KeyLimits | None = None, heartbeats: bool = True, journaled: bool = False,
        resting: bool = False,
    ) -> None:  # fmt: skip
        self.epoch = epoch
        self.limits = limits = limits or ServerLimits()
        self.wire = wire or WireLimits()
        self.pool = Pool(slots, limits, new_id, heartbeats=heartbeats)
        self.cache = DedupCache(epoch, limits)
        self.closing = Closing(limits, self.wire.flush_s)
        self._clock = AwakeClock(limits.awake_step_s, now_s)
        self.dispatcher = Dispatcher(
            self.cache, self.pool, self.closing, self._clock, limits, self.wire,
            keys or KeyLimits(), new_id, Journal(on=journaled, reads=resting),
        )  # fmt: skip
        self.stages = Stages(self.closing, self.dispatcher, limits.client_gone_s)
        self.keys = self.dispatcher.keyed.keys
        keyed = self.dispatcher.keyed
        self.resting = keyed.resting if isinstance(keyed, RestingRequests) else None
        """Keys whose outcomes are in the journal only, if its shell reads them from there."""
        self._key_pages = KeyPages(self.keys, self.resting)
        self._running = RunningPages(self.dispatcher.workforce, self.keys)
        self._stacks = Stacks()
        self.queue = self.dispatcher.queue
        self.workforce = self.dispatcher.workforce
        self.announced = self.dispatcher.announced
        self.dead_epochs: Collection[Epoch] = ()
        self.starting = "waiting for the workers of an earlier server to end"
        """Why no worker is started yet; empty once they are."""
        self.malformed = 0
        self.rights = Rights()
        self._new_id = new_id
        self._told: tuple[float, dict[str, Any]] = (-1.0, {})
        """When statistics were last made for somebody who asked, and what they were."""

    @property
    def behind(self) -> bool:
        """Whether it has more to do than it may in one turn: then give it a Resume."""
        return self.dispatcher.behind

    @property
    def awake_s(self) -> float:
        """The time in which it was awake."""
        return self._clock.awake_s

    # -- inputs ---------------------------------------------------------------

    def take(self, given: RouterInput) -> list[RouterEffect]:
        """Take one input in; what must be done, in order."""
        _INPUTS[type(given)](self, given)
        out = self.dispatcher.out
        self.dispatcher.out = []
        journal = self.dispatcher.journal
        if journal.unsaved:
            out.append(Save(journal.take(), journal.appended))
        return out

    def _saved(self, given: Saved) -> None:
        upto, now_s = given
        self._clock.read(now_s)
        journal = self.dispatcher.journal
        failed = journal.failed
        journal.saved(upto)
        if failed and not journal.failed:
            self.dispatcher.report("info", "the journal saves again")
        self.dispatcher.saved()
        self.dispatcher.schedule()

    def _save_failed(self, given: SaveFailed) -> None:
        why, final, now_s = given
        self._clock.read(now_s)
        journal = self.dispatcher.journal
        was = journal.failed, journal.lost
        journal.fail(why, final=final)
        if (journal.failed, journal.lost) != was:
            then = "for good; start the server anew" if final else "it tries again"
            self.dispatcher.report("error", f"the journal cannot save: {why} ({then})")
        if final:
            self.dispatcher.begin_turn()
            self.dispatcher.keyed.give_up()
        self.dispatcher.schedule()

    def _restored(self, given: Restored) -> None:
        records, now_s = given
        self._clock.read(now_s)
        self.dispatcher.keyed.restore(records)

    def _at_rest(self, given: AtRest) -> None:
        keys, now_s = given
        self._clock.read(now_s)
        self._resting().restore_at_rest(keys)

    def _loaded(self, given: Loaded) -> None:
        number, frames, why, now_s = given
        self._clock.read(now_s)
        self.dispatcher.begin_turn()
        self._resting().loaded(number, frames, why)
        self.dispatcher.schedule()

    def _resting(self) -> RestingRequests:
        keyed = self.dispatcher.keyed
        assert isinstance(keyed, RestingRequests)
        return keyed

    def _pool_waits(self, given: PoolWaits) -> None:
        self.starting = given.why

    def _pool_opened(self, given: PoolOpened) -> None:
        self.dead_epochs, now_s = given
        if not self.dispatcher.earlier_lives:
            self.keys.started_as.clear()
        self.starting = ""
        self.dispatcher.is_starting = False
        self._time(now_s)

    def _worker_back(self, given: WorkerBack) -> None:
        awake_s = self._clock.read(given.now_s)
        life = self.pool.take_back(given, awake_s)
        self.dispatcher.take_back(life, given)
        self.dispatcher.schedule()

    def _hosts_live(self, given: HostsLive) -> None:
        self._clock.read(given.now_s)
        self.dispatcher.earlier_lives = True

    def _hosts_dead(self, given: HostsDead) -> None:
        dead_epochs, now_s = given
        self.dead_epochs = {*self.dead_epochs, *dead_epochs}
        self.dispatcher.earlier_lives = False
        self.keys.started_as.clear()
        self._time(now_s)

    def _worker_message(self, given: WorkerMessage) -> None:
        frames, now_s = given
        if now_s > self._clock.last_s:
            self._clock.read(now_s)
        try:
            heard = self.workforce.message(frames, self._clock.awake_s)
        except ProtocolError as error:
            self.count_malformed(f"worker {bytes(frames[0][:16])!r}: {error}")
            self.dispatcher.take_from_workforce()
            return
        self.cache.declared_rerun = self.keys.declared_rerun = self.workforce.rerun
        for each in heard:
            if isinstance(each, ExecutionEnded):
                self.dispatcher.ended(each)
            elif isinstance(each, Stray):
                self.dispatcher.stray(each)
            elif isinstance(each, Said):
                self.dispatcher.said(each)
            elif isinstance(each, Noted):
                self.dispatcher.noted(each)
            else:
                self.count_malformed(f"worker {bytes(frames[0][:16])!r}: {each.text}")
        self.dispatcher.schedule()

    def _heartbeat_felt(self, given: HeartbeatFelt) -> None:
        life = self.pool.lives.get(given.worker)
        if life is not None:
            awake_s = self._clock.read(given.now_s)
            heartbeat = Heartbeat(given.lag_s, given.memory_bytes, given.where)
            self.dispatcher.out += self.pool.step(life, LifeInput.HEARTBEAT, awake_s, heartbeat)

    def _stack_taken(self, given: StackTaken) -> None:
        self.dispatcher.out += self._stacks.taken(given.worker, given.number, given.text)

    def _spawned(self, given: Spawned) -> None:
        self.pool.lives[given.worker].pid = given.pid

    def _exited(self, given: Exited) -> None:
        worker, now_s, how = given
        awake_s = self._clock.read(now_s)
        self.dispatcher.out += self.pool.step(
            self.pool.lives[worker], LifeInput.EXITED, awake_s, how
        )
        self.workforce.refresh(awake_s)
        self.dispatcher.schedule()  # what was left for it while it started

    def _tick(self, given: Tick) -> None:
        self._time(given.now_s)

    def _time(self, now_s: float) -> None:
        """Do all that is due by now."""
        awake_s = self._clock.read(now_s)
        self.dispatcher.begin_turn()
        self.dispatcher.deadlines.go_on(now_s)
        self.dispatcher.deadlines.drop()
        self._lapse_some(awake_s)
        self.dispatcher.keyed.tick()
        if not self.starting:
            self.dispatcher.resize()
            for ended in self.workforce.tick(awake_s):
                self.dispatcher.ended(ended)
        self.stages.go_on(now_s)
        self.dispatcher.schedule()

    def _resume(self, given: Resume) -> None:
        self._clock.read(given.now_s)
        self.dispatcher.begin_turn()
        self.dispatcher.deadlines.go_on(given.now_s)
        self.dispatcher.keyed.tick()
        self.stages.go_on(given.now_s)
        self.dispatcher.schedule()

    def _lapse_some(self, awake_s: float) -> None:
        """End the sessions whose leases have ended.  Of those that hold much the next tick
        ends some more: many end at once where a network is cut (G10)."""
        left = ANSWERS_AT_ONCE
        for session in self.cache.lapsed(awake_s):
            left -= 0 if session.own else len(session.entries)
            self._lapse(session, awake_s)
            if left <= 0:
                return

    def _lapse(self, session: Session, awake_s: float) -> None:
        """A session's lease has ended; one of the server's own has none while it works."""
        if session.own and (session.entries or session.live_executions):
            self.cache.heard(session, awake_s)
            return
        text = f"session {short(session.id)} ({session.name}): lease ended"
        self.dispatcher.report("info", text)
        self.dispatcher.end(session, lost=True)

    def _close_asked(self, given: CloseAsked) -> None:
        now_s, stage, drain_s = given
        self._clock.read(now_s)
        self.dispatcher.begin_turn()
        for each in self.closing.until(stage):
            self.stages.enter(each, now_s)
        if drain_s is not None:
            self.closing.limit_drain(now_s + drain_s)
        self.stages.go_on(now_s)
        self.dispatcher.schedule()

    def _flushed(self, given: Flushed) -> None:
        self._clock.read(given.now_s)
        self.dispatcher.begin_turn()
        self.closing.flushed = True
        self.stages.go_on(given.now_s)

    def _peer_known(self, given: PeerKnown) -> None:
        self.rights.know(*given)

    # -- what it says of itself -----------------------------------------------

    def status(self) -> dict[str, Any]:
        """The status record of welcomes and syncs."""
        return status(self)

    def stats(self) -> dict[str, Any]:
        """Everything countable, aggregated here and nowhere else."""
        return describe(self)

    def count_malformed(self, text: str) -> None:
        """A message that is ignored, and said in the log."""
        self.malformed += 1
        self.dispatcher.warn(text)


_INPUTS: dict[type, Callable[..., None]] = {
    ClientMessage: client_handlers.take,
    WorkerMessage: Router._worker_message,
    HeartbeatFelt: Router._heartbeat_felt,
    Spawned: Router._spawned,
    Exited: Router._exited,
    Tick: Router._tick,
    PoolWaits: Router._pool_waits,
    PoolOpened: Router._pool_opened,
    CloseAsked: Router._close_asked,
    Flushed: Router._flushed,
    Resume: Router._resume,
    Saved: Router._saved,
    AtRest: Router._at_rest,
    Loaded: Router._loaded,
    Restored: Router._restored,
    StackTaken: Router._stack_taken,
    SaveFailed: Router._save_failed,
    PeerKnown: Router._peer_known,
    WorkerBack: Router._worker_back,
    HostsLive: Router._hosts_live,
    HostsDead: Router._hosts_dead,
}
