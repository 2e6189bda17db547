"""The simulated worker process: heartbeat, worker core, environment code.

Environment code does what the body of its request says, as
``key|behaviour|duration|padding`` (see :mod:`.faults`), and writes its log:
each start and each end goes to the judge.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ...core import error_records, messages
from ...core.errors import ErrorInfo
from ...core.router_effects import Spawn
from ...core.terms import RequestId, Status, Verdict
from ...core.worker import WorkerCore
from ...core.worker_effects import CancelRun, Exit, Park, Run, ToRouter, WorkerEffect
from ...core.worker_inputs import (
    BeatDue,
    EnvironmentReady,
    OutcomeMade,
    OutcomeParked,
    RouterMessage,
    SetUpFailed,
    WorkerInput,
)
from .junk import KINDS, spoilt
from .network import Frames, Link, Outgoing, SimProcess, said_in
from .plan import Fault

if TYPE_CHECKING:
    from .actor_server import SimServer
    from .simulator import World


INSTANT_S = 1e-7
"""Moments that are no further apart are one."""

TOGETHER_S = 0.1
"""In worlds where messages are grouped, executions end at multiples of this."""


class Execution(NamedTuple):
    """An execution, as its worker has it."""

    key: str
    request: RequestId


class SimWorker(SimProcess):
    """One worker process: heartbeat, worker core, and the environment's code."""

    def __init__(self, world: World, server: SimServer, spawn: Spawn) -> None:
        name = f"{server.name}/{spawn.worker.decode()}"
        super().__init__(world, name)
        self.server = server
        world.happened("is", name, "", {"server": server.name})
        self.id = spawn.worker
        self.slot = spawn.slot
        self.core = WorkerCore(
            spawn.incarnation, header_bytes=1 << 20,
            announce_bytes=world.plan.server.announce_bytes,
            most_held_bytes=world.plan.server.worker_held_bytes,
        )  # fmt: skip
        self.link: Link | None = None
        self._outgoing = Outgoing(world.network, grouped=world.grouped)
        self._running: dict[int, Execution] = {}
        self._ignoring: set[int] = set()
        self._huge: set[int] = set()
        self._reported: list[Execution] = []
        self._blocked_s: float | None = None
        self.set_up_s: float | None = None
        """When its environment was set up."""
        self.junk = ""
        """Way in which its messages are spoilt; empty if they are not."""
        world.worker_by_incarnation[spawn.incarnation] = self
        world.network.worker_named[spawn.worker] = self
        self._connect()
        self._heartbeat()
        self._set_up()

    def _set_up(self) -> None:
        delay_s = self.rng.uniform(0.05, 0.6)
        if self.world.strikes(Fault.SLOW_START, 0.3, self.rng):
            return
        if self.world.strikes(Fault.KILL_EARLY, 0.3, self.rng):
            self.events.after(delay_s, self.die, "killed before its hello")
        elif self.world.strikes(Fault.SET_UP_FAILS, 0.2, self.rng):
            self.events.after(delay_s, self.post, self._broken)
        else:
            self.events.after(delay_s, self.post, self._hello)

    def _broken(self) -> None:
        info = ErrorInfo("set-up", Verdict.DID_NOT_RUN, "no such data set", traceback="...")
        self._take(SetUpFailed(info))
        self.events.after(0.05, self.die, "set-up failed")

    def _hello(self) -> None:
        self.set_up_s = self.events.now_s
        self.world.happened("is", self.name, "", {"set_up_s": self.set_up_s})
        self._beat()

    def _beat(self) -> None:
        if not self.alive:
            return
        if not self.held:
            self._state()
        self.events.after(1.0, self._beat)

    def _state(self) -> None:
        if not self.junk and self.world.strikes(Fault.JUNK, 0.2, self.rng):
            self.junk = self.rng.choice(sorted(KINDS))
            self.events.note(self.name, f"sends {self.junk} from now on")
            self.world.happened("is", self.name, "", {"junk": self.junk})
        if not self.core.acknowledged:
            rerun = self.world.declares_rerun(self.rng)
            self._take(EnvironmentReady(1, "simulated", rerun))
        self._take(BeatDue({}))
        while self.world.strikes(Fault.CONFUSED_WORKER, 0.6, self.rng):
            self._send(self._confused())

    def _confused(self) -> Frames:
        """The outcome of a dispatch that there never was: for a request that it has
        reported before, one that somebody else may run, or none at all."""
        known = [execution.request for execution in self._reported]
        request = self.rng.choice(known) if known else RequestId(self.world.new_id(), 0)
        near = request.sequence + self.rng.randint(1, 6)
        sequence = self.rng.choice((request.sequence, near, near, 1 << 40))
        number = (1 << 40) + self.rng.randrange(1000)
        header = messages.encode(
            messages.WorkerOutcome(request.session, sequence, number, Status.RESULT, 0.0)
        )
        return (self.core.incarnation, b"nobody", header, b"made up")

    def woke(self, late_s: float) -> None:
        """A beat is overdue."""
        if self.set_up_s is not None:
            self._state()

    def _heartbeat(self) -> None:
        """The heartbeat thread: runs while the loop is blocked, not while stopped."""
        if not self.alive:
            return
        if "stopped" not in self._holds:
            lag_s = 0.0 if self._blocked_s is None else self.events.now_s - self._blocked_s
            self.server.post(self.server.heartbeat, self.id, lag_s)
        self.events.after(self.world.plan.server.heartbeat_s, self._heartbeat)

    # -- its link -------------------------------------------------------------

    def _connect(self) -> None:
        if not self.alive:
            return
        self.link = self.world.network.connect(self, self.id, worker=True)
        if self.link is None:
            self.events.after(self.rng.uniform(0.05, 0.3), self._connect)

    def cut_off(self) -> None:
        """The connection is gone: another is made, perhaps to another server."""
        self.link = None
        self.events.after(self.rng.uniform(0.01, 0.3), self._connect)

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""
        self.post(self._message, frames)

    def _message(self, frames: Frames) -> None:
        effects = self.core.take(RouterMessage(frames))
        if frames[0] == self.core.incarnation and len(frames) == 2:
            for message, _ in said_in(frames, 1):
                self.world.happened("arrived", self.name, "", message)
        self._do(effects)

    # -- effects and environment code -----------------------------------------

    def _take(self, given: WorkerInput) -> None:
        self._do(self.core.take(given))

    def _do(self, effects: list[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case ToRouter(incarnation, message, body, client):
                    if self.junk:
                        self._send(spoilt(effect.frames, self.junk, self.rng))
                        continue
                    before = (incarnation,) if body is None else (incarnation, client.encode())
                    self._outgoing.say(self.link, (message, body), before, up=True)
                case Run():
                    self._run(effect)
                case CancelRun():
                    self._cancel(effect.number)
                case Park():
                    copy = memoryview(bytes(effect.payload))
                    delay_s = self.rng.uniform(0.0, 0.5)
                    parked = OutcomeParked(effect.number, copy)
                    self.events.after(delay_s, self.post, self._take, parked)
                case Exit():
                    self.events.after(0.1, self.die, "retired")
        if self.world.grouped:  # what ends in the same instant is said together
            self.events.after(INSTANT_S, self.post, self._leave)

    def _leave(self) -> None:
        self._outgoing.leave(up=True)

    def _send(self, frames: Frames) -> None:
        if frames:
            self.world.network.send(self.link, frames, up=True)

    def _run(self, run: Run) -> None:
        key, behaviour, duration, _ = bytes(run.body).decode().split("|", 3)
        if self.set_up_s is None:
            self.world.breaks("G5", f"{key} starts before its environment is set up")
        self.events.note(self.name, f"runs {key} ({behaviour}) as {run.number}")
        self.world.happened("began", self.name, key, run.request, run.number)
        self._running[run.number] = Execution(key, run.request)
        duration_s = float(duration)
        if self.world.grouped:  # some end together
            now_s = self.events.now_s
            duration_s = math.ceil((now_s + duration_s) / TOGETHER_S) * TOGETHER_S - now_s
        if behaviour == "block":
            self.world.faults[Fault.BLOCK_LOOP] += 1
            self._blocked_s = self.events.now_s
            self.hold("blocked")
            self.events.after(duration_s, self._unblock, run.number)
        elif behaviour == "hang":
            self.world.faults[Fault.HANG] += 1
        elif behaviour == "kill" or (behaviour == "kill-sometimes" and self.rng.random() < 0.6):
            self.world.faults[Fault.POISON] += 1
            self.events.after(duration_s, self._killed_by, run.number)
        else:
            if behaviour == "ignore":
                self._ignoring.add(run.number)
            elif behaviour == "huge":
                self.world.faults[Fault.HUGE] += 1
                self._huge.add(run.number)
            failed = behaviour == "raise"
            self.events.after(duration_s, self.post, self._ends, run.number, failed)
            if behaviour == "last-words":
                self.world.faults[Fault.KILL_AFTER_OUTCOME] += 1
                self.events.after(duration_s + 1e-6, self.die, "killed after an outcome")

    def _unblock(self, number: int) -> None:
        self._blocked_s = None
        self.release("blocked")
        self.post(self._ends, number, False)

    def _killed_by(self, number: int) -> None:
        if number in self._running:
            self.die("killed by a rollout")

    def _cancel(self, number: int) -> None:
        execution = self._running.get(number)
        if execution is None:
            return
        self.world.happened("stops", self.name, execution.key, number)
        self.events.note(self.name, f"{execution.key} is cancelled")
        if number in self._ignoring:
            self.world.faults[Fault.IGNORE_CANCEL] += 1
            return
        delay_s = self.rng.uniform(0.0, 0.1)
        self.events.after(delay_s, self.post, self._report, number, Status.CANCELLED)

    def _ends(self, number: int, failed: bool) -> None:
        self._report(number, Status.ERROR if failed else Status.RESULT)

    def _report(self, number: int, status: Status) -> None:
        execution = self._running.pop(number, None)
        if execution is None:
            return
        payload = f"{execution.key} by {self.name} as {number}".encode()
        if number in self._huge:
            payload += bytes(self.world.plan.message_bytes)
        if status is not Status.RESULT:
            code = "rollout-failed" if status is Status.ERROR else "cancelled"
            payload = error_records.encode(
                ErrorInfo(code, Verdict.RAN_AND_FAILED, payload.decode())
            )
        self.events.note(self.name, f"{execution.key} ends: {status.name}")
        self._reported.append(execution)
        self.world.happened("ended", self.name, execution.key, number, status, payload)
        self._take(OutcomeMade(number, status, payload, 0.0))

    def die(self, how: str) -> None:
        """The process is dead; its server reaps it a moment later."""
        if not self.alive:
            return
        super().die(how)
        self.world.network.close(self.link)
        if self.server.alive:
            late = self.world.strikes(Fault.SLOW_DEATH, 0.4, self.rng)
            delay_s = self.rng.uniform(1.0, 3.0) if late else self.rng.uniform(0.0, 0.1)
            self.events.after(delay_s, self.server.post, self.server.reaped, self.id, how)
