"""Routers by number: what can happen to a server, and what it then does."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import Any, NamedTuple

from ...core.closing import ClosingStage
from ...core.journal import plain_of, record_of
from ...core.lives import Phase
from ...core.messages import Hello
from ...core.router import Router
from ...core.router_effects import Kill, Lost, RouterEffect, Save, Spawn, ToClient, ToWorker
from ...core.router_inputs import (
    ClientMessage,
    CloseAsked,
    Exited,
    PoolOpened,
    Restored,
    Resume,
    Saved,
    Tick,
    WorkerMessage,
)
from ..simulation.bounds import audit, unfinished
from ..simulation.coverage import KeyPair, counted_keys
from . import names
from .keyed_state import Row
from .machines import LONG_AGO_S, NOT_YET_S, NOW_S, Catalogue
from .mail import Mail


class RouterInfo(NamedTuple):
    """The events of a router that need no message, and its violations."""

    empty_slots: tuple[int, ...]
    unsettled: tuple[bytes, ...]
    """Workers that were reaped and not yet declared lost."""
    watched: tuple[bytes, ...]
    """Workers that would be killed if they were silent for long."""
    ignored: tuple[bytes, ...]
    """Workers with executions that were told to stop."""
    sessions: tuple[bytes, ...]
    deadlines: tuple[tuple[bytes, int], ...]
    unwanted: bool
    """Whether there is a generation of a key for which nobody waits."""
    environment: bool
    """Whether a worker has said what its environment consents to."""
    closed: bool
    """Whether it may not start workers yet."""
    requests: tuple[tuple[bytes, int], ...]
    """Those that it knows, not finished."""
    wrong: tuple[str, ...]
    left: tuple[str, ...]
    """The contents that a router at rest should not have."""


class Routers(Catalogue):
    """Servers."""

    pairs: Counter[KeyPair]
    """How often each input came to a generation of a key in each state."""

    def __init__(
        self, mail: Mail, limits: tuple[Any, ...], slots: int, capacity: int, *,
        journaled: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(mail, limits)
        self._journaled = journaled
        self.pairs = Counter()
        self._slots = slots
        self._at_once = slots * capacity

    def new(self, life: int) -> int:
        """The first local state of a server's life: workers not started."""
        if life in self._fresh:
            return self._fresh[life]
        return self._fresh.setdefault(life, self.add(self._new(life)))

    def restored(self, life: int, rows: tuple[Row, ...]) -> int:
        """The same, with what an earlier life has left in a journal."""
        if (life, rows) not in self._fresh:
            router = self._new(life)
            router.take(Restored(tuple(map(record_of, rows)), NOW_S))
            self._fresh[life, rows] = self.add(router)
        return self._fresh[life, rows]

    def _new(self, life: int) -> Router:
        ids = names.ServerIds(life)
        return Router(
            epoch=names.epoch(life), slots=self._slots, now_s=NOW_S, new_id=ids,
            limits=self._limits["ServerLimits"], wire=self._limits["WireLimits"],
            journaled=self._journaled,
        )  # fmt: skip

    def ready(self, machine: Router) -> None:
        """Restored ids serve the restored pool."""
        ids: Any = machine._new_id
        ids.attach(machine.pool)

    def calm(self, machine: Router) -> None:
        """No lease, suspicion, settling or start is due."""
        for slot in machine.pool.slots:
            if slot.start_at_s < math.inf:  # else it is never to start
                slot.start_at_s = NOT_YET_S
        for session in machine.cache.sessions.values():
            session.heard_s = NOW_S
        for life in machine.pool.lives.values():
            life.heard_s = NOW_S
            life.left_s = NOW_S
        for worker in machine.workforce.workers.values():
            for execution in worker.live.values():
                execution.stop_s = None if execution.stop_s is None else NOW_S
        for generation in machine.keys.generations.values():
            generation.since_s = NOW_S

    def look(self, machine: Router) -> RouterInfo:
        """See :class:`RouterInfo`."""
        pool, sessions = machine.pool, machine.cache.sessions
        serving = [life for life in pool.lives.values() if not life.leaving]
        return RouterInfo(
            empty_slots=tuple(
                slot.index for slot in pool.slots
                if slot.life is None and slot.start_at_s < math.inf
                and not (pool.stopping or machine.starting)
            ),
            unsettled=tuple(e.id for e in pool.lives.values() if e.phase is Phase.REAPED),
            watched=tuple(life.id for life in serving),
            ignored=tuple(
                life.id for life in serving if life.id in machine.workforce.workers
                and machine.workforce.workers[life.id].oldest_stop_s() is not None
            ),
            sessions=tuple(s.id for s in sessions.values() if not s.ended),
            deadlines=tuple(
                (session, sequence) for _, session, sequence in machine.dispatcher.deadlines.heap
                if session in sessions and sequence in sessions[session].entries
                and sessions[session].entries[sequence].kept is None
            ),
            unwanted=bool(machine.keys.orphans or machine.keys.retained),
            environment=bool(machine.workforce.environment),
            closed=bool(machine.starting),
            requests=tuple((s.id, n) for s in sessions.values() for n in s.entries),
            wrong=tuple(audit(machine, self._at_once)),
            left=tuple(unfinished(machine)),
        )  # fmt: skip

    def run(self, machine: Router, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """``client`` and ``worker`` messages; everything else is a timer or a death."""
        with counted_keys(machine.keys, self.pairs):
            effects = self._run(machine, given)
            while machine.behind:
                effects += machine.take(Resume(NOW_S))
        return tuple(filter(None, map(self._effect, effects)))

    def _run(self, machine: Router, given: tuple[Any, ...]) -> list[RouterEffect]:
        match given:
            case ("client", route, message):
                return self._client(machine, route, message)
            case ("worker", worker, message):
                frames = (worker, *self.mail.frames[message])
                return machine.take(WorkerMessage(frames, NOW_S))
            case ("exited", worker):
                return machine.take(Exited(worker, NOW_S, "it ended"))
            case ("open", dead_epochs):
                return machine.take(PoolOpened(dead_epochs, NOW_S))
            case ("saved", records):
                upto = machine.dispatcher.journal.safe + records
                return machine.take(Saved(upto, NOW_S))
            case ("close", stage):
                return machine.take(CloseAsked(NOW_S, ClosingStage[stage]))
            case ("tick",):
                pass
            case (timer, *which):
                getattr(self, f"_due_{timer}")(machine, *which)
        return machine.take(Tick(NOW_S))

    def _client(self, machine: Router, route: bytes, message: int) -> list[RouterEffect]:
        hello = self.mail.message[message]
        ids: Any = machine._new_id
        if isinstance(hello, Hello):
            ids.session = names.session(ids.life, hello.nonce)
        effects = machine.take(ClientMessage(route, self.mail.frames[message], NOW_S))
        ids.session = None
        return effects

    def _due_start(self, machine: Router, slot: int) -> None:
        machine.pool.slots[slot].start_at_s = NOW_S

    def _due_settle(self, machine: Router, worker: bytes) -> None:
        machine.pool.lives[worker].left_s = LONG_AGO_S

    def _due_silence(self, machine: Router, worker: bytes) -> None:
        machine.pool.lives[worker].heard_s = LONG_AGO_S

    def _due_stop(self, machine: Router, worker: bytes) -> None:
        for execution in machine.workforce.workers[worker].live.values():
            if execution.stop_s is not None:
                execution.stop_s = LONG_AGO_S

    def _due_lease(self, machine: Router, session: bytes) -> None:
        machine.cache.sessions[session].heard_s = LONG_AGO_S
        machine.cache.sessions.move_to_end(session, last=False)

    def _due_deadline(self, machine: Router, session: bytes, sequence: int) -> None:
        machine.dispatcher.deadlines.heap = [
            (LONG_AGO_S if each[1:] == (session, sequence) else each[0], *each[1:])
            for each in machine.dispatcher.deadlines.heap
        ]
        heapq.heapify(machine.dispatcher.deadlines.heap)

    def _due_unwanted(self, machine: Router) -> None:
        """The orphan deadline, or the retention, of what nobody waits for."""
        for generation in (*machine.keys.orphans.values(), *machine.keys.retained.values()):
            generation.since_s = LONG_AGO_S

    def _due_command(self, machine: Router) -> None:
        """The oldest command by key need not be known any more."""
        command, (answer, _) = next(iter(machine.keys.commands.said.items()))
        machine.keys.commands.said[command] = answer, LONG_AGO_S

    def _effect(self, effect: Any) -> Any:
        match effect:
            case ToClient():
                return ("client", effect.route, self.mail.number(effect.frames))
            case ToWorker():
                return ("worker", effect.worker, self.mail.number(effect.frames))
            case Spawn():
                return ("spawn", effect.worker, effect.incarnation)
            case Kill():
                return ("kill", effect.worker)
            case Lost():
                return ("lost", effect.worker)
            case Save():
                return ("save", tuple(tuple(plain_of(each)) for each in effect.records))
        return None
