"""The pool: worker processes, the slots in which they live, and how many there are.

Theory of operation
-------------------
A *slot* of the pool holds one worker; a *life* is one worker process.  A slot has at most one life
that has not left it.  After a life has left its slot and a pause has passed, the next life starts
there.  It never gets the work of the old one.

A life goes ``STARTING -> READY -> (RETIRING -> (EMPTYING ->)) ENDING -> REAPED`` and is then
forgotten.  It leaves its slot on the way to EMPTYING or ENDING: so neither a process that takes
long to die delays a successor, nor one that only holds outcomes that no client takes, or destroys
resources.

A slot has at most one EMPTYING life, since each is a process (G8); the next one to retire there
waits for it.  One client cannot hold a slot up by that: it gets no work while an outcome of its own
finds no room (:meth:`~.account.Accounts.may_run`), so it holds no second life of the slot.

Every input to a life goes through :meth:`Pool.step`, which looks up :data:`TABLE`.  A cell is
one short function: it changes the life and returns the effects.

Silence leads first to suspicion (no new work), then to a kill.  A worker is *silent* if no
heartbeat comes, and *mute* if its heartbeats show a loop on time and yet no message comes: a
rollout has changed the socket or the incarnation with which the process sends.  A stopped process
or a blocked loop is never mute, since it sends no such heartbeat.

Only EXITED, the report that the process was reaped, leads to :class:`Lost`, and only after
``reap_settle_s``: by then the ends of workers that died together with it are known, so that its
work goes to none of them (G2).  What the process had sent was taken in before its end was told.

Each death soon after a start makes the next pause longer.  The environment is *broken* if no
worker is ready and either one slot has failed ``broken_after`` times to set it up, or no worker
was ever ready and the worker of every slot reports that it cannot be loaded.  If a worker has
reported that itself, and none was ever ready, waiting calls are told at once.  Otherwise (workers
die, or cannot be started) the cause may pass, for example when memory becomes free: calls wait
until the pause between two starts has reached its longest.

Number of workers
-----------------
Where the number may change with the work, a :class:`Part` of the pool has one slot for each of its
most workers; slots that are not needed are *spare*.  With each tick of the router :class:`Elastic`
looks at the waiting and running work (:class:`Need`):

- It grows when a request that a worker could take has waited for ``grow_after_s``: more slots are
  opened, at most as many as are open, and no more than the waiting requests would fill.  It does
  not grow again before each opened slot has had a ready worker: while workers start, requests wait
  whether there are enough workers or not.  So an environment that cannot be set up gets no more
  workers.
- It shrinks when, for ``shrink_after_s``, fewer workers would have been enough for all running and
  waiting requests: as many slots as were not needed in that time become spare.

A worker in a spare slot gets no new work and ends when it has none.  If the slot is opened before
that, the worker stays: that is quicker than a start, and takes no further process.  No worker is
killed to shrink.

The slots of a host are one part.  While the host is not known to hear the router, its part does not
grow, and its starting workers hold up no growth elsewhere.

Work
----
:class:`Turnover` looks at what runs on the workers: it decides which of them get work, which are
drained, and which are killed since an execution ignores its cancel.

Times are awake time.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from . import messages, spoilt
from .executions import Worker
from .heartbeat import Heartbeat
from .limits import ServerLimits
from .router_effects import Kill, Lost, PoolEffect, Report, RouterEffect, Spawn
from .router_inputs import WorkerBack
from .terms import Incarnation, worker_name
from .worker_range import WorkerRange, most_of

BROKEN_CHARACTERS = 4_000
"""Most characters of a traceback that clients are told; the log has all of it."""

NO_SLOT = "its host has no slot for it"
"""Reason of the end of a worker that lives on at a host where another has its slot."""

NOT_NEEDED = "fewer workers are enough"
"""Reason of a retirement that :data:`LifeInput.RECALL` takes back; see :mod:`.pool`."""


class Phase(enum.Enum):
    """State of a life."""

    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    EMPTYING = "emptying"
    ENDING = "ending"
    REAPED = "reaped"

    __hash__ = object.__hash__  # looked up with each step, and Enum's own hash is slow


class LifeInput(enum.Enum):
    """An input of a life."""

    HELLO = "the environment is set up"
    HEARTBEAT = "a heartbeat"
    HELD = "its interpreter is held"
    RETIRE = "the worker is to get no more work"
    RECALL = "the worker is to get work again: there is enough for it"
    SPENT = "it runs no more code, and its slot is needed"
    DRAINED = "the worker has no more work and was told to exit"
    KILL = "the process must die"
    EXITED = "the process was reaped, or could not be started"
    TIME = "time has passed"

    __hash__ = object.__hash__


@dataclasses.dataclass(slots=True, eq=False)
class Life:
    """One worker process, from the decision to spawn it until it is forgotten."""

    id: bytes
    slot: int
    incarnation: Incarnation
    born_s: float
    seen_at: float
    heartbeats: bool
    phase: Phase = Phase.STARTING
    host: str = ""
    """Name of its host; empty for a worker of this machine."""
    pid: int | None = None
    ready_s: float | None = None
    left_s: float = 0.0
    """Moment at which it left its slot, or was last told to end or killed; from REAPED on, that of
    its reaping."""
    silent: bool = False
    blocked: bool = False
    held: bool = False
    """Whether it gets no new work because its host is not known to hold its lease."""
    under_way: bool = False
    """Whether messages to it may be under way to its host."""
    held_s: float = -math.inf
    """Last moment at which it was held: earlier silence does not count against it, since its
    host's messages may not have come through."""
    memory_bytes: int = 0
    lag_s: float = 0.0
    mute_s: float = 0.0
    """Duration for which its loop was on time, by heartbeats, and no message of its incarnation
    came."""
    where: str = ""
    """Stack of its blocked loop, for people; empty while the loop runs."""
    held_by: str = ""
    """That its interpreter is held, by whom and where, for people; empty if it is not."""
    why: str = ""
    """Reason of its end, for people."""
    told_broken: bool = False
    """Whether it has reported a broken environment: a second report is ignored."""

    @property
    def name(self) -> str:
        """The worker's id and its host as text."""
        return worker_name(self.id, self.host)

    @property
    def is_stuck(self) -> bool:
        """Whether its loop is blocked, or its interpreter is held; ``where`` says at what."""
        return self.blocked or bool(self.held_by)

    @property
    def serves(self) -> bool:
        """Whether it is set up, and has its place."""
        return self.phase in (Phase.READY, Phase.RETIRING)

    @property
    def drains(self) -> bool:
        """Whether it gets no more work, and exits once it has nothing left."""
        return self.phase in (Phase.RETIRING, Phase.EMPTYING)

    @property
    def leaving(self) -> bool:
        """Whether it was told to exit, is to be killed, or is dead."""
        return self.phase in (Phase.ENDING, Phase.REAPED)

    def counted_s(self, since_s: float, now_s: float) -> float:
        """The part of the time since a moment that counts against it."""
        return now_s - max(since_s, self.held_s)


Cell: TypeAlias = Callable[["Pool", Life, float, Any], Sequence[PoolEffect]]


# -- cells ----------------------------------------------------------------------------


def _nothing(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    return ()


def _never(pool: Pool, life: Life, now_s: float, arg: object) -> NoReturn:
    raise AssertionError(f"worker {life.name} is {life.phase.value}")


def _ready(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    life.phase, life.silent, life.blocked = Phase.READY, False, False
    life.ready_s = life.seen_at = now_s
    slot = pool.slots[life.slot]
    slot.failed_starts, slot.unloadable, slot.awaited = 0, False, False
    if not pool.was_ready:
        pool.spread_until_s = now_s + pool.limits.spread_s
    pool.broken, pool.broken_because, pool.was_ready = "", "", True
    took_s = now_s - life.born_s
    return (Report("info", f"worker {life.name} (pid {life.pid}) ready after {took_s:.1f} s"),)


def _alive(pool: Pool, life: Life, now_s: float, heartbeat: Heartbeat) -> Sequence[PoolEffect]:
    effects: list[PoolEffect] = []
    life.held_by = ""
    # Of a longer gap nobody knows whether the loop was on time.
    since_s = min(now_s - life.seen_at, 2 * pool.limits.heartbeat_s)
    life.seen_at, life.lag_s, life.memory_bytes = now_s, heartbeat.lag_s, heartbeat.memory_bytes
    if life.silent:
        life.silent = False
        effects.append(Report("info", f"worker {life.name} sends heartbeats again"))
    blocked = heartbeat.lag_s >= pool.limits.blocked_report_s
    if blocked and not life.blocked:
        text = (
            f"worker {life.name}: event loop blocked for {heartbeat.lag_s:.1f} s\n{heartbeat.where}"
        )
        effects.append(Report("warning", text))
    elif life.blocked and not blocked:
        effects.append(Report("info", f"worker {life.name}: event loop runs again"))
    life.blocked, life.where = blocked, heartbeat.where
    before_s, report_s = life.mute_s, mute_report_s(pool.limits)
    if blocked or life.ready_s is None:
        life.mute_s = 0.0
    elif heartbeat.lag_s < pool.limits.beat_s:  # else its loop had no turn in which to send
        life.mute_s += since_s
    if before_s < report_s <= life.mute_s and not life.leaving:
        text = (
            f"worker {life.name} has sent no message for {life.mute_s:.1f} s although its event "
            "loop runs"
        )
        effects.append(Report("warning", text))
    return effects


def _held(pool: Pool, life: Life, now_s: float, heartbeat: Heartbeat) -> Sequence[PoolEffect]:
    before, life.held_by, life.where = life.held_by, heartbeat.held, heartbeat.where
    if life.held_by == before:
        return ()
    return (Report("warning", f"worker {life.name}: {life.held_by}\n{heartbeat.where}"),)


def _retire(pool: Pool, life: Life, now_s: float, why: str) -> Sequence[PoolEffect]:
    life.phase = Phase.RETIRING
    life.why = why
    return ()


def _recall(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    if life.why != NOT_NEEDED:
        return ()
    life.phase, life.why = Phase.READY, ""
    return (Report("info", f"worker {life.name} is needed again: it does not retire"),)


def _empty(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    _leave(pool, life, Phase.EMPTYING, now_s, life.why, failed=False)
    pool.slots[life.slot].emptying += 1
    text = f"worker {life.name} leaves its place to the next one, and gives what it holds: "
    return (Report("info", text + life.why),)


def _end(pool: Pool, life: Life, now_s: float, why: str) -> Sequence[PoolEffect]:
    _leave(pool, life, Phase.ENDING, now_s, why, failed=False)
    return ()


def _not_ready(pool: Pool, life: Life, why: str) -> None:
    """Take a failed start for a sign of a broken environment."""
    if not pool.slots[life.slot].closed:  # else its host has gone, and may be why
        pool.broken = pool.broken or f"worker {life.name} did not get ready: {why}"


def _kill_unready(pool: Pool, life: Life, now_s: float, why: str) -> Sequence[PoolEffect]:
    _not_ready(pool, life, why)
    _leave(pool, life, Phase.ENDING, now_s, why, failed=True)
    return _killed(pool, life, why)


def _kill(pool: Pool, life: Life, now_s: float, why: str) -> Sequence[PoolEffect]:
    _leave(pool, life, Phase.ENDING, now_s, why, failed=False)
    return _killed(pool, life, why)


def _kill_ending(pool: Pool, life: Life, now_s: float, why: str) -> Sequence[PoolEffect]:
    life.why = life.why or why
    return _killed(pool, life, why)


def _died_unready(pool: Pool, life: Life, now_s: float, how: str) -> Sequence[PoolEffect]:
    _not_ready(pool, life, how)
    _leave(pool, life, Phase.REAPED, now_s, how, failed=True)
    return _died(pool, life, how)


def _died_ready(pool: Pool, life: Life, now_s: float, how: str) -> Sequence[PoolEffect]:
    assert life.ready_s is not None
    quick = now_s - life.ready_s < pool.limits.restart_healthy_s
    _leave(pool, life, Phase.REAPED, now_s, how, failed=quick)
    return _died(pool, life, how)


def _ended(pool: Pool, life: Life, now_s: float, how: str) -> Sequence[PoolEffect]:
    life.phase, life.left_s = Phase.REAPED, now_s
    life.why = life.why or how
    return (Report("info", f"worker {life.name} has ended: {how}"),)


def _time_starting(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    start_s = pool.limits.start_s
    if life.counted_s(life.born_s, now_s) >= start_s and not _is_too_silent(pool, life, now_s):
        why = f"its environment was not set up within {start_s:.0f} s"
        return _kill_unready(pool, life, now_s, why)
    return _time(pool, life, now_s, arg)


def _time(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    limits, silent_s = pool.limits, _silent_s(life, now_s)
    if _is_too_silent(pool, life, now_s):
        why = f"no heartbeat for {silent_s:.0f} s" + (life.held_by and f"; {life.held_by}")
        return pool.step(life, LifeInput.KILL, now_s, why)
    if life.mute_s >= mute_kill_s(limits):
        why = f"it sent no message for {life.mute_s:.0f} s although its event loop runs"
        return pool.step(life, LifeInput.KILL, now_s, why)
    if silent_s >= limits.silence_report_s and not life.silent:
        life.silent = True
        text = f"worker {life.name} (pid {life.pid}): no heartbeat for {silent_s:.1f} s"
        return (Report("warning", text),)
    if limits.worker_memory_bytes and life.memory_bytes > limits.worker_memory_bytes:
        why = f"it holds {life.memory_bytes >> 20} MiB of memory"
        return pool.step(life, LifeInput.RETIRE, now_s, why)
    return ()


def _time_ending(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    if life.counted_s(life.left_s, now_s) < pool.limits.stop_s:
        return ()
    life.left_s = now_s
    return (Kill(life.id, "it did not exit when told to"),)


def _time_reaped(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    if now_s - life.left_s < pool.limits.reap_settle_s:
        return ()
    del pool.lives[life.id]
    return (Lost(life.id, life.why, life.host),)


# -- functions that cells share -------------------------------------------------------


def mute_report_s(limits: ServerLimits) -> float:
    """Duration after which a mute worker gets no new work: some beats may be lost."""
    return max(limits.silence_report_s, 5 * limits.beat_s)


def mute_kill_s(limits: ServerLimits) -> float:
    """Duration after which a mute worker is killed."""
    return max(limits.silence_kill_s, 10 * limits.beat_s)


def _silent_s(life: Life, now_s: float) -> float:
    return now_s - life.seen_at if life.heartbeats else 0.0


def _is_too_silent(pool: Pool, life: Life, now_s: float) -> bool:
    most_s = pool.limits.silence_kill_s
    return _silent_s(life, now_s) >= most_s and life.counted_s(life.seen_at, now_s) >= most_s


def _leave(pool: Pool, life: Life, phase: Phase, now_s: float, why: str, *, failed: bool) -> None:
    """Let a life leave its slot, which may start the next one after a pause."""
    before, life.phase, life.left_s, life.why = life.phase, phase, now_s, why
    if before is Phase.EMPTYING:
        pool.slots[life.slot].emptying -= 1
    else:
        pool.vacate(life, now_s, failed=failed)


def _killed(pool: Pool, life: Life, why: str) -> Sequence[PoolEffect]:
    level = "info" if pool.stopping else "warning"
    return Kill(life.id, why), Report(level, f"worker {life.name} is killed: {why}")


def _died(pool: Pool, life: Life, how: str) -> Sequence[PoolEffect]:
    if pool.stopping:
        return (Report("info", f"worker {life.name} has ended: {how}"),)
    who = f"worker {life.name}" + (f" (pid {life.pid})" if life.pid is not None else "")
    return (Report("warning", f"{who} died: {how}"),)


P = Phase
TABLE: dict[LifeInput, dict[Phase, Cell]] = {
    LifeInput.HELLO: {
        P.STARTING: _ready, P.READY: _nothing, P.RETIRING: _nothing, P.EMPTYING: _nothing,
        P.ENDING: _nothing, P.REAPED: _nothing,
    },
    LifeInput.HEARTBEAT: dict.fromkeys(Phase, _alive),
    LifeInput.HELD: dict.fromkeys(Phase, _held),
    LifeInput.RETIRE: {
        P.STARTING: _nothing, P.READY: _retire, P.RETIRING: _nothing, P.EMPTYING: _nothing,
        P.ENDING: _nothing, P.REAPED: _nothing,
    },
    LifeInput.RECALL: {**dict.fromkeys(Phase, _nothing), P.RETIRING: _recall},
    LifeInput.SPENT: {**dict.fromkeys(Phase, _never), P.RETIRING: _empty},
    LifeInput.DRAINED: {**dict.fromkeys(Phase, _never), P.RETIRING: _end, P.EMPTYING: _end},
    LifeInput.KILL: {
        P.STARTING: _kill_unready, P.READY: _kill, P.RETIRING: _kill, P.EMPTYING: _kill,
        P.ENDING: _kill_ending, P.REAPED: _nothing,
    },
    LifeInput.EXITED: {
        P.STARTING: _died_unready, P.READY: _died_ready, P.RETIRING: _died_ready,
        P.EMPTYING: _died_ready, P.ENDING: _ended, P.REAPED: _nothing,
    },
    LifeInput.TIME: {
        P.STARTING: _time_starting, P.READY: _time, P.RETIRING: _time, P.EMPTYING: _time,
        P.ENDING: _time_ending, P.REAPED: _time_reaped,
    },
}  # fmt: skip
"""The step of each input in each phase of a life."""


@dataclasses.dataclass(slots=True, eq=False)
class Slot:
    """Holder of one worker at a time."""

    index: int
    life: Life | None = None
    emptying: int = 0
    """Number of lives that have left it and are EMPTYING."""
    lives: int = 0
    """Number of lives that have started in it."""
    start_at_s: float = 0.0
    """Moment before which no life starts in it."""
    failures: int = 0
    """Number of the latest lives that died soon after their start."""
    failed_starts: int = 0
    """Number of these that never became ready, though no EMPTYING one was beside them."""
    pause_s: float = 0.0
    """Length of its latest pause between two lives."""
    unloadable: bool = False
    """Whether its last worker could not load the environment, or its host was set aside because
    no worker became ready there."""
    tag: str = ""
    """Last part of its workers' names: a host may know the workers of two routers."""
    closed: bool = False
    """Whether its host has gone: no life starts in it until another host takes it."""
    host: str = ""
    """Name of its host; empty for a slot of this machine."""
    spare: bool = False
    """Whether fewer workers are enough: no life starts in it until it is opened."""
    awaited: bool = False
    """Whether it was opened to have more workers, and none has become ready in it since."""
    lives_before: int = 0
    """Number of its lives from before it was opened last."""

    @property
    def is_open(self) -> bool:
        """Whether it is to have a worker."""
        return not (self.closed or self.spare)

    def begin_anew(self) -> None:
        """Open it for other workers; the deaths of earlier ones do not count."""
        self.closed = self.spare = self.unloadable = False
        self.failures = self.failed_starts = 0
        self.pause_s = self.start_at_s = 0.0
        self.lives_before = self.lives


@dataclasses.dataclass(slots=True, eq=False)
class Part:
    """Slots of one machine, as many of them open as there is work for (:mod:`.pool`)."""

    bounds: WorkerRange
    slots: list[Slot]
    held: bool = False
    """Whether its host is not known to hear the router: more workers there would not help."""

    def open(self) -> list[Slot]:
        """The slots that are to have a worker."""
        return [slot for slot in self.slots if slot.is_open]

    def spare(self) -> list[Slot]:
        """The slots that may be opened."""
        return [slot for slot in self.slots if slot.spare and not slot.closed]


class PoolCounts(NamedTuple):
    """The figures about workers that each answer to a sync has."""

    ready: int
    is_silent: bool
    wanted: int


_RARELY_CHANGES = (LifeInput.TIME, LifeInput.HEARTBEAT)
"""Inputs that change neither a life's phase nor its silence, unless they have effects."""


class Pool:
    """All slots and lives.  Times are awake time; inputs return their effects."""

    def __init__(
        self,
        slots: int | WorkerRange,
        limits: ServerLimits,
        new_id: Callable[[], bytes],
        *,
        heartbeats: bool = True,
    ) -> None:
        self.limits = limits
        self.slots = [Slot(index) for index in range(most_of(slots))]
        self.parts: list[Part] = []
        """Groups of slots in which the number of workers changes with the work."""
        self.lives: dict[bytes, Life] = {}
        self.stopping = False
        self.restarts = 0
        self.was_ready = False
        """Whether any worker was ever ready."""
        self.spread_until_s = -math.inf
        """Moment until which workers that still start are left their share of the work."""
        self.reported = False
        """Whether a worker itself has reported that it cannot set up the environment."""
        self.broken: str = ""
        """End of the traceback of the last set-up, if that failed.  Short, since each answer to a
        sync has it."""
        self.broken_because = ""
        """Type and message of that set-up's exception, if its worker has reported it."""
        self._counts: PoolCounts | None = None
        """Cached figures; None if they may have changed.  With hundreds of hosts, counting for
        each sync would cost more than the rest of its answer."""
        self._new_id = new_id
        self._heartbeats = heartbeats
        if isinstance(slots, WorkerRange):
            self.parts.append(_part(slots, self.slots))

    # -- inputs ---------------------------------------------------------------

    def step(self, life: Life, input: LifeInput, now_s: float, arg: Any = None) -> list[PoolEffect]:
        """Give one input to one life: look up its cell, call it, return the effects.

        ``arg``: a :class:`~.heartbeat.Heartbeat` for HEARTBEAT and HELD, the reason for RETIRE,
        DRAINED and KILL, and how the process ended for EXITED.
        """
        effects = [*TABLE[input][life.phase](self, life, now_s, arg)]
        if effects or input not in _RARELY_CHANGES:
            self._counts = None
        return effects

    def tick(self, now_s: float) -> list[PoolEffect]:
        """Do what time brings: starts, suspicion, kills, and losses."""
        effects: list[PoolEffect] = []
        for life in list(self.lives.values()):
            if life.held:
                life.held_s = now_s
            effects += self.step(life, LifeInput.TIME, now_s)
        if not self.stopping:
            for slot in self.slots:
                if slot.life is None and slot.is_open and now_s >= slot.start_at_s:
                    effects.append(self._start(slot, now_s))
        return effects

    def set_up_failed(
        self, life: Life, traceback: str, because: str = "", *, unloadable: bool = False
    ) -> list[PoolEffect]:
        """Note that the environment raised while it was set up; the process will exit.

        ``because``: the exception's type and message.  ``unloadable``: whether another start would
        fail in the same way."""
        if life.phase is Phase.STARTING:  # a late report: the slot may have another life
            self.broken = traceback[-BROKEN_CHARACTERS:] or "it gave no reason"
            self.broken_because = because[:BROKEN_CHARACTERS]
            self.slots[life.slot].unloadable = unloadable
            self.reported = True
        text = f"worker {life.name}: the environment failed to set up\n{traceback}"
        return [Report("error", text)]

    def vacate(self, life: Life, now_s: float, *, failed: bool) -> None:
        """Let a life leave its slot, which may start the next one after a pause: a longer pause
        for each life in a row that ``failed`` soon after its start."""
        slot, limits = self.slots[life.slot], self.limits
        slot.life = None
        slot.failures = slot.failures + 1 if failed else 0
        # Beside a life that may have what this one needs, such as a GPU, it says nothing.
        slot.failed_starts += life.ready_s is None and not slot.emptying
        pause_s = 0.0
        if slot.failures:
            doubled_s = limits.restart_pause_s * 2 ** min(slot.failures - 1, 30)
            pause_s = min(doubled_s, limits.restart_pause_max_s)
        slot.pause_s, slot.start_at_s = pause_s, now_s + pause_s

    def open_slots(self, count: int, host: str = "", tag: str = "") -> list[Slot]:
        """Add ``count`` slots for a host that has joined; closed ones that nobody has left behind
        are used again."""
        self._counts = None
        free = [s for s in self.slots if s.closed and s.life is None and not s.emptying][:count]
        for slot in free:
            slot.begin_anew()
        fresh = [Slot(len(self.slots) + index) for index in range(count - len(free))]
        self.slots += fresh
        for slot in free + fresh:
            slot.host, slot.tag = host, tag
        return free + fresh

    def close_slots(self, slots: Iterable[Slot], failed: str = "") -> None:
        """Close the slots of a host that leaves; another host may get them.  ``failed``: why no
        worker became ready there, if that is the reason."""
        self._counts = None
        self.broken = self.broken or failed
        for slot in slots:
            slot.closed = True
            slot.unloadable = slot.unloadable or bool(failed)

    def vary(self, slots: list[Slot], least: int) -> Part:
        """Keep as many slots of a host open as there is work for, and at first ``least``."""
        self._counts = None
        part = _part(WorkerRange(least, len(slots)), slots)
        self.parts.append(part)
        return part

    def open(self, slot: Slot) -> None:
        """Let a spare slot have a worker again: the one that is still there, or another."""
        self._counts = None
        slot.spare = False
        slot.awaited = slot.life is None or slot.life.phase is Phase.STARTING
        if slot.life is None:
            slot.begin_anew()

    def spare(self, slot: Slot) -> None:
        """Make a slot spare: its worker ends once it has no work."""
        self._counts = None
        slot.spare, slot.awaited, slot.unloadable = True, False, False
        slot.failures = slot.failed_starts = 0
        slot.pause_s = 0.0

    def take_back(self, back: WorkerBack, now_s: float) -> Life:
        """Enter a worker that an earlier epoch has started and that lives on at its host.  It gets
        no work before the host is known to hold its lease."""
        self._counts = None
        life = Life(back.worker, back.slot, back.incarnation, now_s, now_s, self._heartbeats)
        life.pid, life.held = back.pid or None, True
        life.host = self.slots[back.slot].host
        slot = self.slots[back.slot]
        if not back.is_to_end:
            slot.life = life
            slot.lives += 1
        elif back.hello:
            life.phase, life.ready_s, life.left_s, life.why = Phase.EMPTYING, now_s, now_s, NO_SLOT
            slot.emptying += 1
        else:
            life.phase, life.left_s, life.why = Phase.ENDING, now_s, NO_SLOT
        self.lives[back.worker] = life
        return life

    def needs_slot(self, life: Life) -> bool:
        """Whether another life is to start in its slot as soon as it leaves, and it may."""
        slot = self.slots[life.slot]
        return slot.is_open and not slot.emptying and not self.stopping

    def stop(self) -> None:
        """Start no further lives."""
        self.stopping = True

    # -- decisions ------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """Number of workers that there are to be: the open slots."""
        return self._counted().wanted

    def accepts(self, life: Life) -> bool:
        """Whether a worker is healthy enough for new work."""
        return life.phase is Phase.READY and self.is_well(life)

    def is_well(self, life: Life) -> bool:
        """Whether nothing is known to be wrong with a worker."""
        unwell = life.silent or life.blocked or life.held
        return not unwell and life.mute_s < mute_report_s(self.limits)

    def spreads(self, now_s: float) -> bool:
        """Whether workers that still start are to be left their share of the work."""
        return now_s < self.spread_until_s and any(
            slot.life is not None and slot.life.phase is Phase.STARTING for slot in self.slots
        )

    def ready_count(self) -> int:
        """Number of workers that said hello and were not told to exit.  A draining worker counts,
        since it still works: else a pool of one worker that is often recycled would look as if it
        never became ready."""
        return self._counted().ready

    def is_silent(self) -> bool:
        """Whether there are ready workers and all of them are silent.  Draining workers are asked
        only if there are no others."""
        return self._counted().is_silent

    def _counted(self) -> PoolCounts:
        if self._counts is None:
            lives = self.lives.values()
            ready = [life.silent for life in lives if life.phase is Phase.READY]
            retiring = [life.silent for life in lives if life.phase is Phase.RETIRING]
            heeded = ready or retiring
            self._counts = PoolCounts(
                len(ready) + len(retiring), bool(heeded) and all(heeded),
                sum(slot.is_open for slot in self.slots),
            )  # fmt: skip
        return self._counts

    def is_broken(self) -> bool:
        """Whether the environment keeps failing to set up and no worker is ready."""
        if not self.broken or self.ready_count():
            return False
        # Slots whose host has gone do not count: the pool is as it was before the host came.
        told = [slot.unloadable for slot in self.slots if slot.unloadable or slot.is_open]
        if told and not self.was_ready and all(told):
            return True
        # A host on which no worker starts is set aside, and its slots are closed: they say
        # nothing of the others.
        most = self.limits.broken_after
        return any(slot.failed_starts >= most for slot in self.slots if slot.is_open)

    def is_broken_for_good(self) -> bool:
        """Whether it is broken, and no further start is likely to change that."""
        longest_s = self.limits.restart_pause_max_s
        return self.is_broken() and (
            (self.reported and not self.was_ready)
            or any(slot.pause_s >= longest_s for slot in self.slots if slot.is_open)
        )

    def _start(self, slot: Slot, now_s: float) -> Spawn:
        self._counts = None
        slot.lives += 1
        self.restarts += slot.lives > slot.lives_before + 1
        while (worker := f"w{slot.index}-{slot.lives}{slot.tag}".encode()) in self.lives:
            slot.lives += 1  # a host has come back with a worker of that name
        life = Life(worker, slot.index, self._new_id(), now_s, now_s, self._heartbeats)
        life.host = slot.host
        slot.life = self.lives[worker] = life
        return Spawn(slot.index, worker, life.incarnation)


def _part(bounds: WorkerRange, slots: list[Slot]) -> Part:
    """A part of these slots, of which the first ``bounds.least`` are open."""
    for index, slot in enumerate(slots):
        slot.spare = index >= bounds.least
        slot.awaited = not slot.spare
    return Part(bounds, list(slots))


# -- which workers get work, and which end ----------------------------------------------


class Turnover:
    """Decides which workers get work, which are drained and which are killed, by what runs on them;
    the pool carries it out."""

    def __init__(self, pool: Pool, workers: Mapping[bytes, Worker], limits: ServerLimits) -> None:
        self._pool = pool
        self._workers = workers
        self._limits = limits
        self._tally = spoilt.Tally()
        self._failing = False
        """Whether some worker has enough failures in a row to be suspect."""
        self.waits = False
        """Whether the server closes, and its workers stay for resources that are to be
        destroyed."""

    def check(self, now_s: float) -> list[RouterEffect]:
        """Drain, retire or kill the workers that are due for it."""
        return [
            effect for worker in self._workers.values() for effect in self._check(worker, now_s)
        ]

    def _check(self, worker: Worker, now_s: float) -> list[RouterEffect]:
        life = self._pool.lives[worker.id]
        limits = self._limits
        ignored_s = _ignored_s(worker, life, now_s)
        if life.leaving:
            return []
        if ignored_s >= limits.cancel_kill_s or (
            ignored_s >= limits.cancel_grace_s and worker.only_abandoned()
        ):
            why = f"an execution has ignored its cancel for {ignored_s:.0f} s"
            return list(self._pool.step(life, LifeInput.KILL, now_s, why))
        if worker.suspect:
            self._suspect(worker, now_s)
        effects: list[RouterEffect] = []
        most = limits.recycle_executions
        if most and worker.next_number >= most:
            why = f"it has run {worker.next_number} executions"
            effects += self._pool.step(life, LifeInput.RETIRE, now_s, why)
        if not life.drains:
            return effects
        if not worker.live and not self._cleans(worker):
            effects.append(worker.tell(messages.Retire()))
            effects.append(Report("info", f"worker {worker.name} retires: {life.why}"))
            effects += self._pool.step(life, LifeInput.DRAINED, now_s, life.why)
        elif life.phase is Phase.RETIRING and not worker.running and self._pool.needs_slot(life):
            worker.leave_slot()
            effects += self._pool.step(life, LifeInput.SPENT, now_s)
        return effects

    def _cleans(self, worker: Worker) -> bool:
        """Whether a worker destroys resources, or may have to, before it exits."""
        return self.waits or not all(each.is_overdue for each in worker.cleanings.values())

    def reported(self, worker: Worker, failed: bool, now_s: float) -> list[RouterEffect]:
        """Take in that an execution of a worker has failed or has a result: decide anew which
        workers are suspect, and drain the spoilt ones."""
        if not (failed or self._failing or worker.results.excess):
            self._tally.ended += 1  # by far the most frequent case, so a short way
            return []
        most = self._limits.spoilt_after
        worker.results.add(failed, self._tally, most, now_s)
        if not (failed or self._failing):
            return []
        was_failing, everyone = self._failing, self._workers.values()
        self._failing = worker.results.excess >= most or (
            was_failing and any(each.results.excess >= most for each in everyone)
        )
        if not (self._failing or was_failing):
            return []
        effects: list[RouterEffect] = []
        for each in everyone:
            self._suspect(each, now_s)
            life = self._pool.lives[each.id]
            if (
                each.suspect and life.phase is Phase.READY
                and not each.results.may_be_chance(self._tally)
            ):  # fmt: skip
                row = each.results.row
                many = "all" if row.failed == row.ended else row.failed
                why = (
                    f"{many} of its last {row.ended} executions failed, far more than on other "
                    "workers"
                )
                text = f"worker {each.name} gets no more work: {why}"
                effects += [Report("warning", text)]
                effects += self._pool.step(life, LifeInput.RETIRE, now_s, why)
                self.refresh_one(each, now_s)
        return effects

    def _suspect(self, worker: Worker, now_s: float) -> None:
        most = self._limits.spoilt_after
        worker.suspect = spoilt.is_suspect(worker, self._workers.values(), most)
        worker.resting = worker.suspect and not worker.results.may_try(self._tally, most, now_s)

    def refresh(self, now_s: float) -> None:
        """Decide anew which workers may get work.  To be called after each input that may end a
        life: a dispatch to a process that is ending would be lost."""
        for worker in self._workers.values():
            self.refresh_one(worker, now_s)

    def refresh_one(self, worker: Worker, now_s: float) -> None:
        """Decide anew whether a worker may get work."""
        life = self._pool.lives[worker.id]
        patient = _ignored_s(worker, life, now_s) < self._limits.cancel_grace_s
        worker.accepting = patient and self._pool.accepts(life)

    def retire_all(self, now_s: float) -> list[RouterEffect]:
        """Start no further workers, and end each one once it has no work."""
        self._pool.stop()
        effects: list[RouterEffect] = []
        for life in list(self._pool.lives.values()):
            if life.phase is Phase.STARTING:
                effects += self._pool.step(life, LifeInput.KILL, now_s, "the server stops")
            effects += self._pool.step(life, LifeInput.RETIRE, now_s, "the server stops")
        self.refresh(now_s)
        return effects

    def kill_all(self, now_s: float) -> list[RouterEffect]:
        """Kill every process now."""
        self._pool.stop()
        effects: list[RouterEffect] = []
        for life in list(self._pool.lives.values()):
            effects += self._pool.step(life, LifeInput.KILL, now_s, "the server stops")
        self.refresh(now_s)
        return effects


def _ignored_s(worker: Worker, life: Life, now_s: float) -> float:
    """Duration for which an execution on a worker has ignored its cancel; 0 if none does."""
    stopped_s = worker.oldest_stop_s()
    if stopped_s is None:
        return 0.0
    return life.counted_s(max(stopped_s, worker.held_up_at), now_s)


# -- the number of workers ---------------------------------------------------------------


class Need(NamedTuple):
    """The work for which there are to be workers."""

    running: int
    """Number of executions that may run code."""
    waiting: int
    """Number of requests that wait for a worker."""
    oldest_s: float
    """Longest wait, in seconds, of the requests that a worker could take; 0 while another worker
    would not help."""


class Sizing:
    """Decides how many units there should be.  A unit takes ``capacity`` executions at once: a
    worker, or a whole host."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._fewer_since_s: float | None = None
        """Moment from which on fewer units were enough; None if they are not."""
        self._most_needed = 0
        """Most units that were needed since that moment."""

    def decide(self, now_s: float, now: int, need: Need, capacity: int) -> tuple[int, str]:
        """The change of the number of units, which is ``now``, and the reason for people."""
        needed = -(-(need.running + need.waiting) // capacity)  # rounded up
        if needed >= now:
            self._fewer_since_s = None
        elif self._fewer_since_s is None:
            self._fewer_since_s, self._most_needed = now_s, needed
        self._most_needed = max(self._most_needed, needed)
        if need.oldest_s >= self._limits.grow_after_s:
            more = min(max(1, now), -(-need.waiting // capacity))
            return more, f"a request has waited for {need.oldest_s:.1f} s"
        for_s = self._limits.shrink_after_s
        if self._fewer_since_s is not None and now_s - self._fewer_since_s >= for_s:
            return self._most_needed - now, f"fewer were enough for {for_s:g} s"
        return 0, ""

    def changed(self) -> None:
        """Forget the past after a change of the number, which it was not about."""
        self._fewer_since_s = None


class Elastic:
    """Opens slots and makes slots spare, as there is work."""

    def __init__(self, pool: Pool, workers: Mapping[bytes, Worker], limits: ServerLimits) -> None:
        self._pool = pool
        self._workers = workers
        self._sizing = Sizing(limits)
        self.why = ""
        """The last change and its reason, for people; empty before the first one."""

    def tick(self, now_s: float, need: Need, capacity: int) -> list[PoolEffect]:
        """Decide anew; to be called before each tick of the pool.  ``capacity``: number of
        executions that one worker takes at once."""
        pool = self._pool
        if pool.stopping:
            return []
        effects: list[PoolEffect] = []
        before = pool.wanted
        change, why = self._sizing.decide(now_s, before, need, capacity)
        if change > 0:
            self._grow(change)
        elif change < 0:
            self._shrink(-change)
        if pool.wanted != before:
            self._sizing.changed()
            self.why = f"{before} -> {pool.wanted} workers: {why}"
            effects.append(Report("info", self.why))
        return [*effects, *self._follow(now_s)]

    def _grow(self, most: int) -> None:
        pool = self._pool
        parts = [part for part in pool.parts if not part.held]
        if any(slot.awaited for part in parts for slot in part.open()):
            return
        for _ in range(most):
            spare = [part for part in parts if part.spare()]
            if not spare:
                break
            part = min(spare, key=lambda each: len(each.open()))
            pool.open(min(part.spare(), key=_readiness))

    def _shrink(self, most: int) -> None:
        for _ in range(most):
            open_slots = [
                slot
                for part in self._pool.parts
                if len(part.open()) > part.bounds.least
                for slot in part.open()
            ]
            if not open_slots:
                break
            self._pool.spare(min(open_slots, key=self._burden))

    def _burden(self, slot: Slot) -> tuple[int, int, int]:
        """Sort key of slots; the least one becomes spare first: slots without a life, then those
        whose worker is not ready, then those with the fewest executions; of equals the last."""
        if slot.life is None:
            return 0, 0, -slot.index
        worker = self._workers.get(slot.life.id)
        if worker is None or slot.life.phase is Phase.RETIRING:
            return 1, 0, -slot.index
        return 2, len(worker.live), -slot.index

    def _follow(self, now_s: float) -> Iterator[PoolEffect]:
        """Retire the workers in slots that became spare, recall those in slots that were opened."""
        for part in self._pool.parts:
            for slot in part.slots:
                if slot.life is None:
                    continue
                if slot.spare:
                    yield from self._pool.step(slot.life, LifeInput.RETIRE, now_s, NOT_NEEDED)
                elif slot.life.why == NOT_NEEDED:
                    yield from self._pool.step(slot.life, LifeInput.RECALL, now_s)


def _readiness(slot: Slot) -> tuple[int, int]:
    """Sort key of slots; the least one is opened first: slots with a draining worker, then with a
    starting one, then without any."""
    if slot.life is None:
        return 2, slot.index
    return slot.life.phase is Phase.STARTING, slot.index
