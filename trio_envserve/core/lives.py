"""The life of a worker process: the table that decides it.

Theory of operation
-------------------
A life goes ``STARTING -> READY -> (RETIRING ->) ENDING -> REAPED`` and is then
forgotten.  On its way to ENDING it leaves its slot, so that the next life can begin
there at once: a process that takes long to die delays nobody.

Every input to a life goes through :meth:`.slots.Pool.step`, which looks up
:data:`TABLE`.  A cell is one short function: it changes the life and returns what to do.

Silence leads to suspicion (no new work), then to a kill.  Silent is a process without a
heartbeat, and *mute* one whose loop is on time by its heartbeat and which says nothing all the
same: a rollout has changed what it speaks with, or the name under which it does.  Stops and
blocked loops do not count for that, since no such heartbeat comes meanwhile.

Only EXITED, the report that
the process was reaped, leads to :class:`Lost`, and only after ``reap_settle_s``, so that
what the process had already sent is taken in first (G1).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from .heartbeat import Heartbeat
from .limits import ServerLimits
from .router_effects import Kill, Lost, PoolEffect, Report
from .terms import Incarnation, worker_name

if TYPE_CHECKING:
    from .slots import Pool


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
