"""The lives of workers: start, hello, pulse, suspicion, kill, reap, replace.

Theory of operation
-------------------
A *slot* is a place in the pool; a *life* is one worker process in it.  A life
goes STARTING -> READY -> (RETIRING ->) ENDING -> gone.  A slot has at most one
life that is not ENDING; the next one starts as soon as the last one is, so a
process that takes long to die delays nobody, and a replacement never gets the
old one's work.

Silence is measured on a clock that stands still while this side sleeps, and
leads to suspicion (no new work), then to a kill.  Only :meth:`Pool.exited`,
the report that the process was reaped, leads to ``Lost``, and only after
``reap_settle_s``, so that what the process had already sent is taken in first
(G1).

Deaths soon after the start make the next pause longer; an environment that
fails to set up again and again is reported as broken, with its traceback.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from .limits import ServerLimits
from .terms import Incarnation

BROKEN_CHARACTERS = 4_000
"""How much of a traceback clients are told; the log has it whole."""


class Phase(enum.Enum):
    """Where a life stands."""

    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    ENDING = "ending"


@dataclasses.dataclass(slots=True, eq=False)
class Life:
    """One worker process, from the decision to spawn it until it is forgotten."""

    id: bytes
    slot: int
    incarnation: Incarnation
    born_s: float
    heard_s: float
    pulses: bool
    phase: Phase = Phase.STARTING
    pid: int | None = None
    ready_s: float | None = None
    ending_s: float | None = None
    reaped_s: float | None = None
    silent: bool = False
    blocked: bool = False
    memory_bytes: int = 0
    lag_s: float = 0.0
    why: str = ""
    """Why it ends, for people."""

    @property
    def name(self) -> str:
        """The worker's id as text."""
        return self.id.decode("ascii", "replace")


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


class Spawn(NamedTuple):
    """Start a worker process in this slot."""

    slot: int
    worker: bytes
    incarnation: Incarnation


class Kill(NamedTuple):
    """Kill the process and all it has started."""

    worker: bytes
    why: str


class Lost(NamedTuple):
    """The process is dead and reaped: its executions are over."""

    worker: bytes
    why: str


class Report(NamedTuple):
    """A line for the log."""

    level: str
    text: str


PoolEffect: TypeAlias = Spawn | Kill | Lost | Report


class Pool:
    """All slots.  Times are awake time; every method returns what to do."""

    def __init__(
        self, slots: int, limits: ServerLimits, new_id: Callable[[], bytes], *, pulses: bool = True
    ) -> None:
        self.limits = limits
        self.slots = [Slot(index) for index in range(slots)]
        self.lives: dict[bytes, Life] = {}
        self.stopping = False
        self.restarts = 0
        self.broken: str = ""
        """The end of the traceback of the last set-up that failed, until one
        succeeds.  It goes into each answer to a sync, so it is short."""
        self._new_id = new_id
        self._pulses = pulses

    # -- inputs ---------------------------------------------------------------

    def tick(self, now_s: float) -> list[PoolEffect]:
        """Time has passed: start, suspect, kill, declare lost."""
        effects: list[PoolEffect] = []
        for life in list(self.lives.values()):
            effects += self._check(life, now_s)
        if not self.stopping:
            for slot in self.slots:
                if slot.life is None and now_s >= slot.start_at_s:
                    effects.append(self._start(slot, now_s))
        return effects

    def spawned(self, worker: bytes, pid: int) -> None:
        """The process runs."""
        self.lives[worker].pid = pid

    def hello(self, life: Life, now_s: float) -> list[PoolEffect]:
        """The environment is set up.  Repeated hellos change nothing."""
        if life.phase is not Phase.STARTING:
            return []
        life.phase = Phase.READY
        life.ready_s = life.heard_s = now_s
        slot = self.slots[life.slot]
        slot.failed_starts = 0
        self.broken = ""
        took = now_s - life.born_s
        return [Report("info", f"worker {life.name} (pid {life.pid}) ready after {took:.1f} s")]

    def set_up_failed(self, life: Life, traceback: str) -> list[PoolEffect]:
        """The environment raised while it was set up; the process will exit."""
        self.broken = traceback[-BROKEN_CHARACTERS:]
        return [
            Report("error", f"worker {life.name}: the environment failed to set up\n{traceback}")
        ]

    def pulse(
        self, life: Life, now_s: float, lag_s: float, memory_bytes: int, where: str
    ) -> list[PoolEffect]:
        """A sign of life of the process; ``lag_s`` is how late its loop is."""
        effects: list[PoolEffect] = []
        life.heard_s = now_s
        life.lag_s = lag_s
        life.memory_bytes = memory_bytes
        if life.silent:
            life.silent = False
            effects.append(Report("info", f"worker {life.name} is heard again"))
        blocked = lag_s >= self.limits.blocked_report_s
        if blocked and not life.blocked:
            effects.append(
                Report(
                    "warning", f"worker {life.name}: event loop blocked for {lag_s:.1f} s\n{where}"
                )
            )
        elif life.blocked and not blocked:
            effects.append(Report("info", f"worker {life.name}: event loop runs again"))
        life.blocked = blocked
        return effects

    def retire(self, life: Life, why: str) -> None:
        """Give it no more work and end it when it has none."""
        if life.phase is Phase.READY:
            life.phase = Phase.RETIRING
            life.why = why

    def ending(self, life: Life, now_s: float, why: str) -> None:
        """It was asked to exit and has no work: the slot is free for the next."""
        self._leave_slot(life, now_s, why, failed=False)

    def kill(self, life: Life, now_s: float, why: str) -> list[PoolEffect]:
        """Decide that a process must die.  Its executions live until it has."""
        if life.reaped_s is not None:
            return []
        failed = life.phase is Phase.STARTING
        self._leave_slot(life, now_s, why, failed=failed)
        level = "info" if self.stopping else "warning"
        return [Kill(life.id, why), Report(level, f"worker {life.name} is killed: {why}")]

    def exited(self, worker: bytes, now_s: float, how: str) -> list[PoolEffect]:
        """The process was reaped (or could not be started)."""
        life = self.lives[worker]
        life.reaped_s = now_s
        expected = life.phase is Phase.ENDING
        quick = life.ready_s is None or now_s - life.ready_s < self.limits.restart_healthy_s
        self._leave_slot(life, now_s, how, failed=quick)
        if life.ready_s is None and not expected:
            self.broken = self.broken or f"worker {life.name} did not get ready: {how}"
        if expected or self.stopping:
            return [Report("info", f"worker {life.name} has ended: {how}")]
        who = f"worker {life.name}" + (f" (pid {life.pid})" if life.pid is not None else "")
        return [Report("warning", f"{who} died: {how}")]

    def stop(self) -> None:
        """Start no more."""
        self.stopping = True

    # -- decisions ------------------------------------------------------------

    def accepts(self, life: Life) -> bool:
        """Whether it may get new work as far as its health goes."""
        return life.phase is Phase.READY and not life.silent and not life.blocked

    def ready_count(self) -> int:
        """Workers that answered hello and were not told to exit.  One that drains
        before it is replaced still works: without it, a pool of one that is
        recycled often looked to its clients as if it never became ready."""
        return sum(life.phase in (Phase.READY, Phase.RETIRING) for life in self.lives.values())

    def is_silent(self) -> bool:
        """Whether there are workers, and none gives a sign of life: of those for new
        work, or if there are none, of those that drain (they count as ready, too)."""
        lives = self.lives.values()
        ready = [life.silent for life in lives if life.phase is Phase.READY]
        ready = ready or [life.silent for life in lives if life.phase is Phase.RETIRING]
        return bool(ready) and all(ready)

    def is_broken(self) -> bool:
        """Whether the environment keeps failing to set up and nothing is ready."""
        return self.ready_count() == 0 and any(
            slot.failed_starts >= self.limits.broken_after for slot in self.slots
        )

    def _start(self, slot: Slot, now_s: float) -> Spawn:
        slot.lives += 1
        self.restarts += slot.lives > 1
        worker = f"w{slot.index}-{slot.lives}".encode()
        life = Life(worker, slot.index, self._new_id(), now_s, now_s, self._pulses)
        slot.life = self.lives[worker] = life
        return Spawn(slot.index, worker, life.incarnation)

    def _check(self, life: Life, now_s: float) -> list[PoolEffect]:
        limits = self.limits
        if life.reaped_s is not None:
            if now_s - life.reaped_s < limits.reap_settle_s:
                return []
            del self.lives[life.id]
            return [Lost(life.id, life.why)]
        silence_s = now_s - life.heard_s if life.pulses else 0.0
        if life.phase is Phase.ENDING:
            assert life.ending_s is not None
            if now_s - life.ending_s >= limits.stop_s:
                life.ending_s = now_s
                return [Kill(life.id, "it did not exit when told to")]
            return []
        if silence_s >= limits.silence_kill_s:
            return self.kill(life, now_s, f"no sign of life for {silence_s:.0f} s")
        if life.phase is Phase.STARTING and now_s - life.born_s >= limits.start_s:
            return self.kill(life, now_s, f"no hello within {limits.start_s:.0f} s")
        if silence_s >= limits.silence_report_s and not life.silent:
            life.silent = True
            text = f"worker {life.name} (pid {life.pid}): no sign of life for {silence_s:.1f} s"
            return [Report("warning", text)]
        if limits.worker_memory_bytes and life.memory_bytes > limits.worker_memory_bytes:
            self.retire(life, f"it holds {life.memory_bytes >> 20} MiB of memory")
        return []

    def _leave_slot(self, life: Life, now_s: float, why: str, *, failed: bool) -> None:
        """The life is on its way out; its slot may start the next after a pause."""
        if life.phase is Phase.ENDING:
            life.why = life.why or why
            return
        slot = self.slots[life.slot]
        never_ready = life.ready_s is None
        life.phase = Phase.ENDING
        life.ending_s = now_s
        life.why = why
        slot.life = None
        slot.failures = slot.failures + 1 if failed else 0
        slot.failed_starts += never_ready
        pause_s = 0.0
        if slot.failures:
            limits = self.limits
            doubled_s = limits.restart_pause_s * 2 ** min(slot.failures - 1, 30)
            pause_s = min(doubled_s, limits.restart_pause_max_s)
        slot.start_at_s = now_s + pause_s
