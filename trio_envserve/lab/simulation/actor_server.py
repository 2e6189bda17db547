"""The simulated server process: a router, its tick, and the workers it starts.

It does for its pure core what the real shell does: hands in what arrives,
keeps time, carries out effects in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.closing import ClosingStage
from ...core.executions import Execution
from ...core.messages import encode_record
from ...core.router import Router
from ...core.router_effects import (
    Closed,
    Flush,
    Kill,
    Load,
    Lost,
    Report,
    RouterEffect,
    Save,
    Spawn,
    TellStats,
    ToClient,
    ToWorker,
)
from ...core.router_inputs import (
    AtRest,
    ClientMessage,
    CloseAsked,
    Exited,
    Flushed,
    HeartbeatFelt,
    Loaded,
    PoolOpened,
    Restored,
    Resume,
    Saved,
    Spawned,
    Tick,
    WorkerMessage,
)
from .actor_journal import SimJournal, given
from .actor_worker import SimWorker
from .bounds import at_a_bound, audit, crowded, greedy
from .coverage import count_key_pairs, count_pairs
from .network import Frames, Link, Outgoing, SimProcess, said_in
from .plan import Fault

if TYPE_CHECKING:
    from .simulator import World


class SimServer(SimProcess):
    """One life of a server: a router, its tick, and the worker processes it starts."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"server{number}")
        self.epoch = world.new_id()
        self.client_links: dict[bytes, Link] = {}
        self.worker_links: dict[bytes, Link] = {}
        self.workers: dict[bytes, SimWorker] = {}
        self.locked = False
        self.peak_live = 0
        """The most executions at once since what is kept was last below its bounds."""
        self._catching_up = False
        self._outgoing = Outgoing(world.network, grouped=world.grouped)
        self._turns = 0
        """Inputs of which it carries out the effects: a process that it spawns says at once
        that it lives."""
        self._ticks = self._refused = self._lapsed = 0
        self._numbers: dict[bytes, int] = {}
        """How many executions each worker has been given."""
        self.router = Router(
            epoch=self.epoch, slots=world.plan.slots, now_s=self.events.now_s,
            new_id=world.new_id, limits=world.plan.server, wire=world.wire,
            keys=world.plan.keys, journaled=world.disk is not None,
            resting=world.disk is not None,
        )  # fmt: skip
        self._journal = None if world.disk is None else SimJournal(self, world.disk)
        count_pairs(self.router.cache, world.pairs)
        count_key_pairs(self.router.keys, world.key_pairs)
        self.events.note(self.name, "starts")
        if world.disk is not None:
            records, at_rest = given(world.disk.records)
            self._carry_out(self.router.take(Restored(records, self.events.now_s)))
            self._carry_out(self.router.take(AtRest(at_rest, self.events.now_s)))
        self._clock()

    # -- what comes in ----------------------------------------------------------

    def take_in(self, link: Link, frames: Frames) -> None:
        """A message has arrived."""
        self.post(self._from_worker if link.worker else self._from_client, link, frames)

    def _from_client(self, link: Link, frames: Frames) -> None:
        effects = self.router.take(ClientMessage(link.route, frames, self.events.now_s))
        for message, body in said_in(frames):
            self.world.happened("heard", self.name, "", link.peer.name, message, body)
        self._carry_out(effects)
        self.world.happened("dealt", self.name)

    def _from_worker(self, link: Link, frames: Frames) -> None:
        speaker = link.peer
        if isinstance(speaker, SimWorker) and speaker.junk and speaker.server is not self:
            return  # the stream of a process is no other's, whatever it says of its name
        worker = self.world.worker_by_incarnation.get(bytes(frames[0]))
        if worker is not None and worker.server is self and len(frames) == 4:
            for message, _ in said_in(frames, 2):
                self.world.happened("reported", worker.name, "", message)
        given = WorkerMessage((link.route, *frames), self.events.now_s)
        self._carry_out(self.router.take(given))

    def heartbeat(self, worker: bytes, lag_s: float) -> None:
        """A sign of life, through the worker's own pipe."""
        given = HeartbeatFelt(worker, self.events.now_s, lag_s, 1 << 20, "somewhere")
        self._carry_out(self.router.take(given))

    def reaped(self, worker: bytes, how: str) -> None:
        """A worker's process has ended."""
        self.world.happened("reaped", self.workers[worker].name)
        self._carry_out(self.router.take(Exited(worker, self.events.now_s, how)))

    def saved(self, upto: int) -> None:
        """So many records of its journal are safe."""
        self._carry_out(self.router.take(Saved(upto, self.events.now_s)))

    def loaded(self, number: int, frames: Frames, why: str = "") -> None:
        """An outcome was read from its journal; none: it is not there any more, or this is
        why it cannot be read."""
        why = why or ("" if frames else "its rows are not there")
        self._carry_out(self.router.take(Loaded(number, frames, why, self.events.now_s)))

    # -- time -----------------------------------------------------------------

    def _clock(self) -> None:
        if not self.alive:
            return
        if not self.held:
            self._tick()
        if self.alive:
            self.events.after(self.world.plan.server.tick_s, self._clock)

    def woke(self, late_s: float) -> None:
        """Tick at once, after the input."""
        self._tick()

    def _tick(self) -> None:
        now_s = self.events.now_s
        effects: list[RouterEffect] = []
        if not self.locked and self.world.all_dead_but(self):
            self.locked = True
            self.world.happened("is", self.name, "", {"locked": True})
            effects += self.router.take(PoolOpened(self.world.dead_epochs(self), now_s))
        effects += self.router.take(Tick(now_s))
        self._carry_out(effects)
        self._count_bounds()
        self.world.happened("ticked", self.name)
        self._ticks += 1
        if self._ticks % 4 == 0:
            for wrong in audit(self.router, self.peak_live):
                self.world.breaks("G8", wrong)
        if not at_a_bound(self.router):
            self.peak_live = self.router.workforce.live_count()

    def _count_bounds(self) -> None:
        """Count the waits that tiny bounds, or workers that still start, have caused."""
        cache, plan = self.router.cache, self.world.plan
        if self.router.pool.spreads(self.router.awake_s):
            self.world.faults[Fault.SPREAD] += bool(cache.queued_count)
        refused = cache.counters.refused_for_now
        if plan.has(Fault.TINY_BOUNDS):
            paused = cache.queued_count and not cache.may_dispatch()
            self.world.faults[Fault.TINY_BOUNDS] += refused - self._refused + bool(paused)
        if plan.has(Fault.SHORT_LEASE):
            self.world.faults[Fault.SHORT_LEASE] += self._lapsed
        self._refused, self._lapsed = refused, 0

    def stop(self) -> None:
        """SIGTERM: close, with a drain or without; perhaps another signal hurries it."""
        stage = self.rng.choice([ClosingStage.DRAINING] * 3 + [ClosingStage.CANCELLING])
        self._close(stage)
        if self.rng.random() < 0.3:
            hurry = ClosingStage.KILLING
            self.events.after(self.rng.uniform(0.0, 2.0), self.post, self._close, hurry)

    def _close(self, stage: ClosingStage) -> None:
        self.world.happened("closing", self.name)
        self._carry_out(self.router.take(CloseAsked(self.events.now_s, stage)))

    def _flush(self) -> None:
        self._carry_out(self.router.take(Flushed(self.events.now_s)))

    # -- effects --------------------------------------------------------------

    def _carry_out(self, effects: list[RouterEffect]) -> None:
        world = self.world
        started = self._started()
        if started:
            for wrong in greedy(self.router, started) + crowded(self.router, started):
                world.breaks("G8", wrong)
        if self.router.pool.is_broken_for_good():
            world.happened("broken", self.name)
        self._turns += 1
        for effect in effects:
            match effect:
                case ToClient():
                    self._tell_client(effect)
                case TellStats():
                    self._tell_client(effect.told(encode_record(effect.stats)))
                case ToWorker(name, incarnation, message, body):
                    world.happened("commanded", self.workers[name].name, "", message, body)
                    link = self.worker_links.get(name)
                    self._outgoing.say(link, (message, body), (incarnation,), up=False)
                case Spawn():
                    self._spawn(effect)
                case Kill():
                    worker = self.workers[effect.worker]
                    world.happened("kills", self.name, "", worker.name, effect.why)
                    world.events.after(self.rng.uniform(0.0, 0.05), worker.die, effect.why)
                case Lost():
                    self.events.note(self.name, f"takes {effect.worker.decode()} for dead")
                    world.happened("lost", self.workers[effect.worker].name)
                case Save():
                    assert self._journal is not None
                    self._journal.save(effect)
                case Load():
                    assert self._journal is not None
                    self._journal.load(effect)
                case Flush() if self.rng.random() < 0.8:  # else a peer takes nothing
                    world.events.after(self.rng.uniform(0.0, 0.05), self.post, self._flush)
                case Closed():
                    world.happened("closed", self.name)
                    world.end_server(self, "closed", self.rng.uniform(0.0, 2.0))
                case Report():
                    self._lapsed += effect.text.endswith("lease ended")
                    if effect.text == self.router.dispatcher.elastic.why:
                        world.faults[Fault.ELASTIC] += 1
                    if effect.text.startswith("dispatching is paused"):
                        world.faults[Fault.PAUSES] += 1
                    self.events.note(self.name, effect.text)
        self._turns -= 1
        self._outgoing.leave(up=False)
        if not self._turns:
            world.happened("turned", self.name)
        self.peak_live = max(self.peak_live, self.router.workforce.live_count())
        if self.router.behind and not self._catching_up:
            self._catching_up = True
            self.events.after(0.0, self.post, self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        self._carry_out(self.router.take(Resume(self.events.now_s)))

    def _tell_client(self, effect: ToClient) -> None:
        world, link = self.world, self.client_links.get(effect.route)
        if link is None:
            world.happened("missed", self.name, "", effect.message, effect.body)
        else:
            world.happened("said", self.name, "", link.peer.name, effect.message, effect.body)
        self._outgoing.say(link, (effect.message, effect.body), (), up=False)

    def _started(self) -> list[Execution]:
        """Executions that were not there the last time."""
        started, numbers = [], self._numbers
        for worker in self.router.workforce.workers.values():
            before = numbers.get(worker.id, 0)
            if before != worker.next_number:
                started += [worker.live[number] for number in range(before, worker.next_number)]
                numbers[worker.id] = worker.next_number
        return started

    def _spawn(self, spawn: Spawn) -> None:
        worker = SimWorker(self.world, self, spawn)
        self.workers[spawn.worker] = worker
        self.world.happened("spawned", self.name, "", worker.name, spawn.slot)
        if self.world.strikes(Fault.NO_SPAWN, 0.2, self.rng):
            worker.die("it could not be started")
        else:
            self.router.take(Spawned(spawn.worker, len(self.workers)))
