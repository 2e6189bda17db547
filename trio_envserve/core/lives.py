"""The lives of worker processes, and the pool of slots in which they live.

Theory of operation
-------------------
A *slot* is a place in the pool; a *life* is one worker process in it.  A slot has at most one
life that has not left it; the next one starts as soon as the last one has left, after a pause,
and never gets the old one's work.

A life goes ``STARTING -> READY -> (RETIRING ->) ENDING -> REAPED`` and is then forgotten.  On
its way to ENDING it leaves its slot, so that the next life can begin there at once: a process
that takes long to die delays nobody.

Every input to a life goes through :meth:`Pool.step`, which looks up :data:`TABLE`.  A cell is
one short function: it changes the life and returns what to do.

Silence leads to suspicion (no new work), then to a kill.  Silent is a process without a
heartbeat, and *mute* one whose loop is on time by its heartbeat and which says nothing all the
same: a rollout has changed what it speaks with, or the name under which it does.  Stops and
blocked loops do not count for that, since no such heartbeat comes meanwhile.

Only EXITED, the report that the process was reaped, leads to :class:`Lost`, and only after
``reap_settle_s``, so that what the process had already sent is taken in first (G1).

Deaths soon after the start make the next pause longer.  The environment is *broken* if
nothing is ready and one slot has failed ``broken_after`` times to set it up, or, as long
as no worker was ever ready, every slot's worker says that it cannot be loaded.  Calls
that wait are then told so, if a worker has said so itself.  Once one was ready, or if
workers only die, or cannot be started, they go on waiting, because that may pass (memory
that is not free yet, say), until the pause between two starts is as long as it gets.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from .heartbeat import Heartbeat
from .limits import ServerLimits
from .router_effects import Kill, Lost, PoolEffect, Report, Spawn
from .router_inputs import WorkerBack
from .terms import Incarnation, worker_name
from .worker_range import WorkerRange, most_of

BROKEN_CHARACTERS = 4_000
"""How much of a traceback clients are told; the log has it whole."""

NOT_NEEDED = "fewer workers are enough"
"""Why a worker retires that may be recalled; see :mod:`.elastic`."""


class Phase(enum.Enum):
    """Where a life stands."""

    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    ENDING = "ending"
    REAPED = "reaped"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


class LifeInput(enum.Enum):
    """An input of a life."""

    HELLO = "the environment is set up"
    HEARTBEAT = "a sign of life"
    RETIRE = "it is to get no more work"
    RECALL = "it is to get work again: there is enough for it"
    DRAINED = "it has no more work and was told to exit"
    KILL = "it must die"
    EXITED = "its process was reaped, or could not be started"
    TIME = "time has passed"

    __hash__ = object.__hash__


@dataclasses.dataclass(slots=True, eq=False)
class Life:
    """One worker process, from the decision to spawn it until it is forgotten."""

    id: bytes
    slot: int
    incarnation: Incarnation
    born_s: float
    heard_s: float
    heartbeats: bool
    phase: Phase = Phase.STARTING
    host: str = ""
    """The name of its host; empty for one of this machine."""
    pid: int | None = None
    ready_s: float | None = None
    left_s: float = 0.0
    """When it was last told to end; once it is reaped, when that was."""
    silent: bool = False
    blocked: bool = False
    held: bool = False
    """Whether it gets no new work, since its host is not known to hold its lease."""
    held_s: float = -math.inf
    """When that was last so: only the time since then counts against it, since no message
    may have come through before."""
    memory_bytes: int = 0
    lag_s: float = 0.0
    mute_s: float = 0.0
    """For how long it has said nothing under its incarnation, by heartbeats of a loop on time."""
    where: str = ""
    """Where its loop is blocked, for people; empty while it is not."""
    why: str = ""
    """Why it ends, for people."""
    told_broken: bool = False
    """Whether it has said that its environment cannot be set up: once is enough."""

    @property
    def name(self) -> str:
        """The worker's id as text, and where it is."""
        return worker_name(self.id, self.host)

    @property
    def leaving(self) -> bool:
        """Whether its slot is free for the next life."""
        return self.phase in (Phase.ENDING, Phase.REAPED)

    def counted_s(self, since_s: float, now_s: float) -> float:
        """The time since then that counts against it."""
        return now_s - max(since_s, self.held_s)


Cell: TypeAlias = Callable[["Pool", Life, float, Any], Sequence[PoolEffect]]


# -- cells ----------------------------------------------------------------------------


def _nothing(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    return ()


def _never(pool: Pool, life: Life, now_s: float, arg: object) -> NoReturn:
    raise AssertionError(f"worker {life.name} is {life.phase.value}")


def _ready(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    life.phase, life.silent, life.blocked = Phase.READY, False, False
    life.ready_s = life.heard_s = now_s
    slot = pool.slots[life.slot]
    slot.failed_starts, slot.unloadable, slot.awaited = 0, False, False
    if not pool.was_ready:
        pool.spread_until_s = now_s + pool.limits.spread_s
    pool.broken, pool.broken_because, pool.was_ready = "", "", True
    took_s = now_s - life.born_s
    return (Report("info", f"worker {life.name} (pid {life.pid}) ready after {took_s:.1f} s"),)


def _heard(pool: Pool, life: Life, now_s: float, heartbeat: Heartbeat) -> Sequence[PoolEffect]:
    effects: list[PoolEffect] = []
    since_s = min(now_s - life.heard_s, 2 * pool.limits.heartbeat_s)  # a gap says nothing
    life.heard_s, life.lag_s, life.memory_bytes = now_s, heartbeat.lag_s, heartbeat.memory_bytes
    if life.silent:
        life.silent = False
        effects.append(Report("info", f"worker {life.name} is heard again"))
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
    elif heartbeat.lag_s < pool.limits.beat_s:  # else its loop had no turn to say anything
        life.mute_s += since_s
    if before_s < report_s <= life.mute_s and not life.leaving:
        text = f"worker {life.name} says nothing for {life.mute_s:.1f} s, and its loop is on time"
        effects.append(Report("warning", text))
    return effects


def _retire(pool: Pool, life: Life, now_s: float, why: str) -> Sequence[PoolEffect]:
    life.phase = Phase.RETIRING
    life.why = why
    return ()


def _recall(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    if life.why != NOT_NEEDED:
        return ()
    life.phase, life.why = Phase.READY, ""
    return (Report("info", f"worker {life.name} is needed again, and goes on"),)


def _end(pool: Pool, life: Life, now_s: float, why: str) -> Sequence[PoolEffect]:
    _leave(pool, life, Phase.ENDING, now_s, why, failed=False)
    return ()


def _not_ready(pool: Pool, life: Life, why: str) -> None:
    """A start that came to nothing says something of the environment, unless the host has
    left, or is gone."""
    if not pool.slots[life.slot].closed:
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
        return _kill_unready(pool, life, now_s, f"no hello within {start_s:.0f} s")
    return _time(pool, life, now_s, arg)


def _time(pool: Pool, life: Life, now_s: float, arg: None) -> Sequence[PoolEffect]:
    limits, silent_s = pool.limits, _silent_s(life, now_s)
    if _is_too_silent(pool, life, now_s):
        return pool.step(life, LifeInput.KILL, now_s, f"no sign of life for {silent_s:.0f} s")
    if life.mute_s >= mute_kill_s(limits):
        why = f"it has said nothing for {life.mute_s:.0f} s, and its loop is on time"
        return pool.step(life, LifeInput.KILL, now_s, why)
    if silent_s >= limits.silence_report_s and not life.silent:
        life.silent = True
        text = f"worker {life.name} (pid {life.pid}): no sign of life for {silent_s:.1f} s"
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


# -- what cells share -----------------------------------------------------------------


def mute_report_s(limits: ServerLimits) -> float:
    """For how long a worker says nothing before it gets no new work: some beats may be lost."""
    return max(limits.silence_report_s, 5 * limits.beat_s)


def mute_kill_s(limits: ServerLimits) -> float:
    """For how long a worker says nothing before it is killed."""
    return max(limits.silence_kill_s, 10 * limits.beat_s)


def _silent_s(life: Life, now_s: float) -> float:
    return now_s - life.heard_s if life.heartbeats else 0.0


def _is_too_silent(pool: Pool, life: Life, now_s: float) -> bool:
    most_s = pool.limits.silence_kill_s
    return _silent_s(life, now_s) >= most_s and life.counted_s(life.heard_s, now_s) >= most_s


def _leave(pool: Pool, life: Life, phase: Phase, now_s: float, why: str, *, failed: bool) -> None:
    """The life is on its way out; its slot may start the next after a pause."""
    life.phase, life.left_s, life.why = phase, now_s, why
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
        P.STARTING: _ready, P.READY: _nothing, P.RETIRING: _nothing, P.ENDING: _nothing,
        P.REAPED: _nothing,
    },
    LifeInput.HEARTBEAT: dict.fromkeys(Phase, _heard),
    LifeInput.RETIRE: {
        P.STARTING: _nothing, P.READY: _retire, P.RETIRING: _nothing, P.ENDING: _nothing,
        P.REAPED: _nothing,
    },
    LifeInput.RECALL: {**dict.fromkeys(Phase, _nothing), P.RETIRING: _recall},
    LifeInput.DRAINED: {
        P.STARTING: _never, P.READY: _never, P.RETIRING: _end, P.ENDING: _never, P.REAPED: _never,
    },
    LifeInput.KILL: {
        P.STARTING: _kill_unready, P.READY: _kill, P.RETIRING: _kill, P.ENDING: _kill_ending,
        P.REAPED: _nothing,
    },
    LifeInput.EXITED: {
        P.STARTING: _died_unready, P.READY: _died_ready, P.RETIRING: _died_ready,
        P.ENDING: _ended, P.REAPED: _nothing,
    },
    LifeInput.TIME: {
        P.STARTING: _time_starting, P.READY: _time, P.RETIRING: _time, P.ENDING: _time_ending,
        P.REAPED: _time_reaped,
    },
}  # fmt: skip
"""The step of each input in each phase of a life."""


@dataclasses.dataclass(slots=True, eq=False)
class Slot:
    """A place in the pool."""

    index: int
    life: Life | None = None
    lives: int = 0
    start_at_s: float = 0.0
    failures: int = 0
    """Deaths in a row that came soon after the start."""
    failed_starts: int = 0
    """Of these, how many never became ready."""
    pause_s: float = 0.0
    """How long it waited, or waits, for its next life."""
    unloadable: bool = False
    """Whether its last worker could not even load the environment, or its host was set aside
    because none got ready there."""
    tag: str = ""
    """The end of its workers' names: a host may know those of two routers."""
    closed: bool = False
    """Whether its host has gone: no life begins in it, until another host takes it."""
    host: str = ""
    """The name of the host that has it; empty for one of this machine."""
    spare: bool = False
    """Whether fewer workers are enough: no life begins in it, until it is opened."""
    awaited: bool = False
    """Whether it was opened for more workers, and none was ready in it since."""
    lives_before: int = 0
    """Those from before it was opened last."""

    @property
    def is_open(self) -> bool:
        """Whether there is to be a worker in it."""
        return not (self.closed or self.spare)

    def begin_anew(self) -> None:
        """Open it for others; its past does not count."""
        self.closed = self.spare = self.unloadable = False
        self.failures = self.failed_starts = 0
        self.pause_s = self.start_at_s = 0.0
        self.lives_before = self.lives


@dataclasses.dataclass(slots=True, eq=False)
class Part:
    """Slots of which as many are open as there is work for (:mod:`.elastic`)."""

    bounds: WorkerRange
    slots: list[Slot]
    held: bool = False
    """Whether its host is not known to hear the router: more workers there would not help."""

    def open(self) -> list[Slot]:
        """Those in which there is to be a worker."""
        return [slot for slot in self.slots if slot.is_open]

    def spare(self) -> list[Slot]:
        """Those that may be opened."""
        return [slot for slot in self.slots if slot.spare and not slot.closed]


class Tally(NamedTuple):
    """The part of each answer to a sync that is about the workers."""

    ready: int
    is_silent: bool
    wanted: int


_RARELY_CHANGES = (LifeInput.TIME, LifeInput.HEARTBEAT)
"""Inputs that change no phase, and not whether a life is silent, unless something follows."""


class Pool:
    """All slots.  Times are awake time; every method returns what to do."""

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
        """The range in which the number of workers may change."""
        self.lives: dict[bytes, Life] = {}
        self.stopping = False
        self.restarts = 0
        self.was_ready = False
        """Whether any worker was ever ready."""
        self.spread_until_s = -math.inf
        """Until then who still starts is left its share of the work."""
        self.reported = False
        """Whether a worker itself has said that it cannot set up the environment."""
        self.broken: str = ""
        """The end of the traceback of the last set-up that failed, until one
        succeeds.  It goes into each answer to a sync, so it is short."""
        self.broken_because = ""
        """The exception of that set-up, type and message, if its worker has said it."""
        self._tally: Tally | None = None
        """None if it may have changed.  With hundreds of hosts making it for each sync would
        cost more than all else that is done for that."""
        self._new_id = new_id
        self._heartbeats = heartbeats
        if isinstance(slots, WorkerRange):
            self.parts.append(_part(slots, self.slots))

    # -- inputs ---------------------------------------------------------------

    def step(self, life: Life, input: LifeInput, now_s: float, arg: Any = None) -> list[PoolEffect]:
        """One input to one life: look up the cell, do it, say what follows.

        ``arg``: a :class:`~.heartbeat.Heartbeat` for HEARTBEAT, the reason for RETIRE, DRAINED and
        KILL, and how the process ended for EXITED.
        """
        effects = [*TABLE[input][life.phase](self, life, now_s, arg)]
        if effects or input not in _RARELY_CHANGES:
            self._tally = None
        return effects

    def tick(self, now_s: float) -> list[PoolEffect]:
        """Time has passed: start, suspect, kill, declare lost."""
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
        """The environment raised while it was set up; the process will exit.
        ``because``: the exception's type and message.  ``unloadable``: another start would do no
        better."""
        if life.phase is Phase.STARTING:  # else it is late, and its slot may be another's
            self.broken = traceback[-BROKEN_CHARACTERS:] or "it gave no reason"
            self.broken_because = because[:BROKEN_CHARACTERS]
            self.slots[life.slot].unloadable = unloadable
            self.reported = True
        text = f"worker {life.name}: the environment failed to set up\n{traceback}"
        return [Report("error", text)]

    def vacate(self, life: Life, now_s: float, *, failed: bool) -> None:
        """The life leaves its slot, which may start the next after a pause: a longer
        one for each in a row that ``failed`` soon after its start."""
        slot, limits = self.slots[life.slot], self.limits
        slot.life = None
        slot.failures = slot.failures + 1 if failed else 0
        slot.failed_starts += life.ready_s is None
        pause_s = 0.0
        if slot.failures:
            doubled_s = limits.restart_pause_s * 2 ** min(slot.failures - 1, 30)
            pause_s = min(doubled_s, limits.restart_pause_max_s)
        slot.pause_s, slot.start_at_s = pause_s, now_s + pause_s

    def open_slots(self, count: int, host: str = "", tag: str = "") -> list[Slot]:
        """So many places more, for a host that has joined; those that are closed and empty
        are taken again."""
        self._tally = None
        free = [slot for slot in self.slots if slot.closed and slot.life is None][:count]
        for slot in free:
            slot.begin_anew()
        fresh = [Slot(len(self.slots) + index) for index in range(count - len(free))]
        self.slots += fresh
        for slot in free + fresh:
            slot.host, slot.tag = host, tag
        return free + fresh

    def close_slots(self, slots: Iterable[Slot], failed: str = "") -> None:
        """There is to be no worker in them any more; others may get them.  ``failed``: why none
        got ready there, if that is the reason."""
        self._tally = None
        self.broken = self.broken or failed
        for slot in slots:
            slot.closed = True
            slot.unloadable = slot.unloadable or bool(failed)

    def vary(self, slots: list[Slot], least: int) -> Part:
        """Of these places of a host as many are open as there is work for, at first
        ``least``."""
        self._tally = None
        part = _part(WorkerRange(least, len(slots)), slots)
        self.parts.append(part)
        return part

    def open(self, slot: Slot) -> None:
        """There is to be a worker in it again: the one that is still there, or another."""
        self._tally = None
        slot.spare = False
        slot.awaited = slot.life is None or slot.life.phase is Phase.STARTING
        if slot.life is None:
            slot.begin_anew()

    def spare(self, slot: Slot) -> None:
        """There is to be none, once who is there has no work any more."""
        self._tally = None
        slot.spare, slot.awaited, slot.unloadable = True, False, False
        slot.failures = slot.failed_starts = 0
        slot.pause_s = 0.0

    def take_back(self, back: WorkerBack, now_s: float) -> Life:
        """A worker that an earlier epoch has started lives on at its host.  It gets no work
        before that is known to hold its lease."""
        self._tally = None
        life = Life(back.worker, back.slot, back.incarnation, now_s, now_s, self._heartbeats)
        life.pid, life.held = back.pid or None, True
        life.host = self.slots[back.slot].host
        if back.is_to_end:
            life.phase, life.left_s, life.why = Phase.ENDING, now_s, "there is no place for it"
        else:
            self.slots[back.slot].life = life
            self.slots[back.slot].lives += 1
        self.lives[back.worker] = life
        return life

    def stop(self) -> None:
        """Start no more."""
        self.stopping = True

    # -- decisions ------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """How many workers there are to be."""
        return self._counted().wanted

    def accepts(self, life: Life) -> bool:
        """Whether it may get new work as far as its health goes."""
        unwell = life.silent or life.blocked or life.held
        return life.phase is Phase.READY and not unwell and life.mute_s < mute_report_s(self.limits)

    def spreads(self, now_s: float) -> bool:
        """Whether who still starts is to be left its share of the work."""
        return now_s < self.spread_until_s and any(
            slot.life is not None and slot.life.phase is Phase.STARTING for slot in self.slots
        )

    def ready_count(self) -> int:
        """Workers that answered hello and were not told to exit.  One that drains
        before it is replaced still works: without it, a pool of one that is
        recycled often looked to its clients as if it never became ready."""
        return self._counted().ready

    def is_silent(self) -> bool:
        """Whether there are workers, and none gives a sign of life: of those for new
        work, or if there are none, of those that drain (they count as ready, too)."""
        return self._counted().is_silent

    def _counted(self) -> Tally:
        if self._tally is None:
            lives = self.lives.values()
            ready = [life.silent for life in lives if life.phase is Phase.READY]
            retiring = [life.silent for life in lives if life.phase is Phase.RETIRING]
            heeded = ready or retiring
            self._tally = Tally(
                len(ready) + len(retiring), bool(heeded) and all(heeded),
                sum(slot.is_open for slot in self.slots),
            )  # fmt: skip
        return self._tally

    def is_broken(self) -> bool:
        """Whether the environment keeps failing to set up and nothing is ready."""
        if not self.broken or self.ready_count():
            return False
        # Those whose host has gone say nothing: without them it is as before they came.
        told = [slot.unloadable for slot in self.slots if slot.unloadable or slot.is_open]
        if told and not self.was_ready and all(told):
            return True
        # One host whose workers do not start is not all of them.
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
        self._tally = None
        slot.lives += 1
        self.restarts += slot.lives > slot.lives_before + 1
        while (worker := f"w{slot.index}-{slot.lives}{slot.tag}".encode()) in self.lives:
            slot.lives += 1  # a host has come back with one of that name
        life = Life(worker, slot.index, self._new_id(), now_s, now_s, self._heartbeats)
        life.host = slot.host
        slot.life = self.lives[worker] = life
        return Spawn(slot.index, worker, life.incarnation)


def _part(bounds: WorkerRange, slots: list[Slot]) -> Part:
    """These slots, of which the first ones are open."""
    for place, slot in enumerate(slots):
        slot.spare = place >= bounds.least
        slot.awaited = not slot.spare
    return Part(bounds, list(slots))
