"""Judges of a run: folds over its events, which know what happened, not what cores believe.

Theory of operation
-------------------
The actors of a world say what happens to them, as events.  A judge sees each in order and
keeps what it needs: what callers asked and were told; the log that environment code
writes as it starts and ends; stops and deaths of processes; what passes on the wires; what is on
disks.  It has no actor and no core in its hands, so the events of a run are all that it takes to
judge it again.  What sizes a core has is told by :mod:`.bounds`, as events, too.

Everything that contradicts a guarantee is a violation: a line that begins with the guarantee's
number.  A run goes on after a violation.

*Hosts.*  True time is known here, and to none of the cores.  A host's lease is counted from when
the beat was sent that its server answered, on that host's clock: no worker may live longer than
that, and the latency of its guard.  What a server takes for lost, or calls dead of an earlier one,
must be dead, or sleep with its machine: then it is judged as that wakes, once timers have fired.

*Health and time.*  No false alarms, and no all-clear from a pool that is dead or stopped.  Closing
ends within the sum of its limits, the time in which the server was stopped not counted; no work is
begun meanwhile; what was taken in is answered; and the status says so.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from ...core import messages
from ...core.closing import ClosingStage
from ...core.errors import ErrorInfo
from ...core.key_records import KeyAct
from ...core.limits import CAPACITY, WireLimits
from ...core.ranges import Ranges
from ...core.terms import Body, RequestId, Status, Verdict
from ...core.workforce import DIFFERS
from ...retrylab.judges import Event, Judge, Violation
from ..model import Clocks
from .graces import GraceJudge, key_of, label_of
from .observed import Observed, Processes
from .plan import FaultKind, KeyUse, SimulationPlan
from .resources import ResourceJudge

# -- what is known ------------------------------------------------------------------------


@dataclasses.dataclass(slots=True, eq=False)
class JudgedExecution:
    """One execution, as the environment's log has it."""

    key: str
    worker: Observed
    request: RequestId
    started_s: float
    ended_s: float | None = None
    payload: bytes = b""

    def live(self) -> bool:
        """From its start to its end, or to the death of its process."""
        return self.ended_s is None and self.worker.alive

    def runs(self) -> bool:
        """Whether it is live, and its machine does not sleep: what counts is whether it would run
        again, and as a machine wakes the timers of its guard come first."""
        return self.live() and not self.worker.asleep


@dataclasses.dataclass(slots=True, eq=False)
class JudgedCall:
    """One call: its request, and the caller's answer."""

    key: str
    client: str
    consent: bool
    most: int
    limit_s: float | None
    use: KeyUse | None = None
    """The use of a key: its executions, if any, are those of the key."""
    asked_s: float = 0.0
    cancelled_s: float | None = None
    told: str = ""
    told_s: float = 0.0
    verdict: Verdict | None = None
    received: bool = False
    """The caller has the outcome in hands."""


@dataclasses.dataclass(slots=True, eq=False)
class JudgedClaim:
    """A claim of a permit, as the environment's log has it."""

    execution: JudgedExecution
    name: str
    most: int
    per_s: float | None


class Book(Judge):
    """The facts that all parts of the judge read; none of them is what a core believes."""

    def __init__(self, plan: SimulationPlan) -> None:
        self.plan = plan
        self.now_s = 0.0
        """Time of the event that is seen."""
        self.found: list[Violation] = []
        """Violations that the event shows."""
        self.processes = Processes()
        self.calls: dict[str, JudgedCall] = {}
        self.draining: set[Observed] = set()
        """Servers that were asked to stop."""
        self.gone_clients: dict[str, float] = {}
        """Clients that were killed or closed, and when."""
        self.leaving: set[Observed] = set()
        """Workers that were told to exit, are to be killed, or were reaped."""
        self.sessions: dict[bytes, Observed] = {}
        """The server that granted each session."""
        self.first: dict[RequestId, str] = {}
        """The first body under each id that was not refused for now."""
        self.started_as: dict[RequestId, str] = {}
        """The body that was started under each id."""
        self.by_dispatch: dict[tuple[Observed, int], JudgedExecution] = {}
        self.runs: defaultdict[str, list[JudgedExecution]] = defaultdict(list)
        """Executions, by the names of their calls; of all calls for a key by its label."""
        self.claims: dict[int, JudgedClaim] = {}
        """All claims, by their numbers."""
        self.holding: dict[int, JudgedClaim] = {}
        """Claims whose code holds a permit, if it lives."""
        self._granted_s: dict[tuple[Observed, str], float] = {}
        """When each server last granted a claim of each rate."""

    def violation(self, guarantee: str, text: str, key: str = "") -> None:
        """A guarantee does not hold; for the call of this key, if it is one's."""
        self.found.append(Violation(guarantee, self.now_s, text, key))

    def runs_of(self, key: str) -> list[JudgedExecution]:
        """Executions of what the environment's log names so, those of its whole key included."""
        return self.runs[label_of(key) or key]

    def live(self) -> Iterator[JudgedExecution]:
        """Executions that live."""
        return (each for runs in self.runs.values() for each in runs if each.live())

    # -- permits --------------------------------------------------------------

    def limits_seen(self) -> None:
        """G12: all whose code holds a permit find no more company than they have stated."""
        self.holding = {n: each for n, each in self.holding.items() if each.execution.live()}
        held: dict[str, list[JudgedClaim]] = {}
        for each in self.holding.values():
            if each.execution.runs():
                held.setdefault(each.name, []).append(each)
        for name, claims in held.items():
            most = min(each.most for each in claims)
            if len(claims) > most:
                keys = ", ".join(each.execution.key for each in claims)
                text = f"{len(claims)} permits of {name!r} are held, of {most}: by {keys}"
                self.violation("G12", text, claims[-1].execution.key)

    def granted(self, server: Observed, message: messages.Granted) -> None:
        """G12: a server's grants of a rate are apart."""
        for number in Ranges.from_flat(message.claims):
            claim = self.claims.get(number)
            if claim is None or claim.per_s is None:
                continue
            last_s, at_s = self._granted_s.get((server, claim.name)), self.now_s
            at_s += message.after_s or 0.0
            self._granted_s[server, claim.name] = at_s
            if last_s is not None and at_s - last_s < 1 / claim.per_s - 1e-6:
                apart_s = at_s - last_s
                text = f"two grants of {claim.name!r} are {apart_s:.3f} s apart"
                self.violation("G12", text, claim.execution.key)


# -- wires -------------------------------------------------------------------------------


Dispatch: TypeAlias = "tuple[Observed, int, RequestId]"
"""A worker, a number, and the request that it runs."""


def dispatch_of(worker: Observed, number: int, request: RequestId, key: str) -> Dispatch:
    """A dispatch, by the name of what it runs.  The number may be used again by a server that
    takes a worker over; and the work of keys has another session in each server."""
    return worker, number, RequestId(b"", request.sequence) if label_of(key) else request


class Wires(Book):
    """The part of the judge that listens."""

    def __init__(self, plan: SimulationPlan) -> None:
        super().__init__(plan)
        self.lost: set[Observed] = set()
        """Workers whose executions their router takes for ended."""
        self._unreceived: dict[RequestId, JudgedCall] = {}
        """Under which id a call was answered, until its caller has the outcome."""
        self._given_up: set[RequestId] = set()
        """Requests that their client has asked to end, whatever came of them."""
        self._over: set[bytes] = set()
        """Sessions whose client was told that nothing of them runs any more."""
        self.dispatched: dict[Dispatch, Observed] = {}
        """The server that sent each dispatch to its worker."""

    # -- between clients and servers ------------------------------------------

    def server_heard(
        self, server: Observed, client: str, message: messages.Message, body: Body | None
    ) -> None:
        """A server has dealt with a client's message; what it says comes next."""
        session = getattr(message, "session", None)
        if session is None or self.sessions.get(session) is not server:
            return
        if isinstance(message, messages.Request) and client != "hostile":
            self.first.setdefault(RequestId(session, message.sequence), key_of(body or b""))
            return
        if client == "hostile":
            return
        finished = Ranges()
        match message:
            case messages.Finish():
                finished = Ranges.from_flat(message.finished)
            case messages.Cancel():
                finished.add(message.sequence)
                self._given_up.add(RequestId(session, message.sequence))
            case messages.Sync():
                finished = Ranges.from_flat(message.pending).gaps(message.next)
        self._acknowledged(session, finished)

    def _acknowledged(self, session: bytes, finished: Ranges) -> None:
        """G4: nothing is finished between its arrival and its caller's receiving it."""
        for request, call in list(self._unreceived.items()):
            if call.received or call.cancelled_s is not None or call.client in self.gone_clients:
                del self._unreceived[request]
            elif request.session == session and request.sequence in finished:
                del self._unreceived[request]
                if request in self._given_up:
                    continue
                text = f"{call.key} is acknowledged before its caller has the outcome"
                self.violation("G4", text, call.key)

    def server_told_client(self, server: Observed, message: messages.Message) -> None:
        """A server sends to a client."""
        match message:
            case messages.Welcome():
                self.sessions[message.session] = server
                self.status_told(server, message.server)
            case messages.Refused() if message.delay_s is not None:
                self.first.pop(RequestId(message.session, message.sequence), None)
            case messages.Unknown() if message.gone:
                self._promised_gone(message.session)
            case messages.Synced():
                self.status_told(server, message.server)
            case _:
                pass

    def status_told(self, server: Observed, status: dict[str, Any]) -> None:
        """Judge what a server tells a client of itself."""

    def _promised_gone(self, session: bytes) -> None:
        """The server says that nothing of this session runs any more."""
        for each in self.live():
            if each.request.session == session and each.runs():
                text = f"{each.key} runs, and its session is said to be gone"
                self.violation("G1", text, each.key)

    def client_heard(self, message: messages.Message, call: JudgedCall | None) -> None:
        """A client has dealt with a server's message: an outcome of this call, if it has that."""
        if isinstance(message, messages.Unknown) and message.gone:
            self._over.add(message.session)
        if call is None or not isinstance(message, messages.Outcome):
            return
        if message.session in self._over:
            return
        if not call.told and call.cancelled_s is None:
            again = message.status != Status.RESULT and not message.executions
            if not again:  # else it did not run here, and another server is asked
                self.violation("G4", f"{call.key}: its outcome was thrown away", call.key)
        elif call.told_s == self.now_s and not call.told.startswith("fail"):
            self._unreceived[RequestId(message.session, message.sequence)] = call

    # -- between servers and workers ------------------------------------------

    def server_told_worker(
        self, worker: Observed, message: messages.Message, body: Body | None
    ) -> None:
        """A server sends to a worker."""
        if isinstance(message, messages.Retire):
            self.leaving.add(worker)
        elif isinstance(message, messages.Granted):
            self.granted(worker.home, message)
        elif isinstance(message, messages.Dispatch):
            assert body is not None
            request, key = RequestId(message.session, message.sequence), key_of(body)
            dispatch = dispatch_of(worker, message.number, request, key)
            self.dispatched.setdefault(dispatch, worker.home)

    def declared_lost(self, worker: Observed) -> None:
        """The router takes the worker's executions for ended."""
        self.lost.add(worker)
        if worker.runs():
            self.violation("G1", f"{worker.name} is declared lost and lives")

    # -- hosts ----------------------------------------------------------------

    def declared_dead(self, server: Observed, epochs: Iterable[bytes]) -> None:
        """A server takes all workers of earlier ones for dead, but for those that it has."""
        dead = {each for each in self.processes.values() if each.epoch and each.epoch in epochs}
        for worker in list(self.processes.values()):
            if worker.server in dead:
                self.lost.add(worker)
                if worker.runs():
                    text = f"{worker.name} lives, and {server.name} takes its server's for dead"
                    self.violation("G1", text)

    def beat(self, machine: Observed, membership: bytes, number: int) -> None:
        """A host has read its clock, and sent a beat."""
        if membership != machine.membership:
            machine.membership, machine.beats = membership, {}
        machine.beats.setdefault(number, self.now_s)

    def beat_answered(
        self, machine: Observed, membership: bytes, number: int, fence_s: float
    ) -> None:
        """The answer to a beat has come to its host: its lease is counted from when that was
        sent, by its clock, and its guard may be late."""
        if membership == machine.membership and number in machine.beats:
            until_s = machine.beats[number] + fence_s / machine.rate + machine.guard_s
            machine.until_s = max(machine.until_s, until_s)

    def lease_seen(self, worker: Observed, what: str) -> None:
        """G1: a worker on a host is dead by the time that the lease of its host says."""
        machine = worker.machine
        if machine is not None and self.now_s > machine.until_s + 1e-6:
            for_s = self.now_s - machine.until_s
            self.violation("G1", f"{worker.name} {what} {for_s:.1f} s after its host's lease")

    def leases_seen(self) -> None:
        """The same of all that live."""
        for worker in self.processes.values():
            if worker.machine is not None and worker.runs():
                self.lease_seen(worker, "lives")

    def woke(self, worker: Observed) -> None:
        """The machine of a process has woken, and its timers have fired: it runs again."""
        self.lease_seen(worker, "wakes")
        if worker in self.lost:
            self.violation("G1", f"{worker.name} was declared lost, and runs again")
        for execution in self.by_dispatch.values():
            if execution.worker is worker and execution.runs():
                self._alone(execution)
        self.limits_seen()

    def _alone(self, execution: JudgedExecution) -> None:
        """G1: no other execution of its call, or of its key, runs."""
        for other in self.runs_of(execution.key):
            if other is not execution and other.runs():
                text = f"{execution.key} runs, and {other.key} runs since {other.started_s:.3f}"
                self.violation("G1", text, execution.key)

    def taken_back(self, worker: Observed, server: Observed) -> None:
        """A server takes over a worker on a host of an earlier one."""
        worker.server, worker.known_s, worker.told_to_stop = server, None, set()
        worker.reaped = False  # its new server does not know
        self.leaving.discard(worker)
        worker.displaced = False


# -- health ------------------------------------------------------------------------------


CATCH_UP_S = 0.5
"""For so long after it was continued, a server may tell what was true before."""

REPLACED_S = 0.9
"""A place in the pool may be empty for so long: the longest pause, and some ticks."""

SETTLE_S = 3.0
"""After it was stopped, a process may be taken for silent for a while."""


SIGN_S = 10.0
"""A sign of life of a worker on a host may be late by so much."""


UNHEARD_S = 8.0
"""For so long a server may not know that a call has ended: a lease and a little more."""


class HealthJudge(Wires):
    """The part of the judge that looks after healths."""

    def kills(self, server: Observed, worker: Observed, why: str) -> None:
        """A server kills a worker: does it have a reason that is one?"""
        if why.startswith(DIFFERS) and not worker.junk:
            self.violation("G1", f"{worker.name} is killed: {why}")
        reason = (
            worker in self.leaving
            or not worker.alive
            or worker.known_s is None
            or bool(worker.junk)
            or server in self.draining
            or bool(worker.told_to_stop)
            or worker.moved_s(self.now_s) < SETTLE_S
            or server.moved_s(self.now_s) < SETTLE_S
        )
        self.leaving.add(worker)
        if not reason:
            text = f"{worker.name} is killed for nothing: {why}"
            keys = [e.key for e in self.by_dispatch.values() if e.worker is worker and e.live()]
            self.violation("G9", text, keys[0] if keys else "")

    def server_told_worker(
        self, worker: Observed, message: messages.Message, body: Body | None
    ) -> None:
        """A server sends to a worker: what does it want to end?"""
        super().server_told_worker(worker, message, body)
        if isinstance(message, messages.RouterChanged):
            worker.known_s = self.now_s
        elif isinstance(message, messages.Stop):
            worker.told_to_stop.update(Ranges.from_flat(message.numbers))
        elif isinstance(message, messages.Dispatch):
            worker.sent += 1
            worker.unreported.add(message.number)

    def reported(self, worker: Observed, message: messages.Message) -> None:
        """A server has a message of its worker: what does it know, and what has ended?"""
        if isinstance(message, messages.WorkerHello):
            if worker.known_s is None:
                worker.known_s = self.now_s
        elif isinstance(message, messages.WorkerOutcome | messages.Announced):
            worker.told_to_stop.discard(message.number)
            worker.unreported.discard(message.number)

    def status_told(self, server: Observed, status: dict[str, Any]) -> None:
        """Judge what a server says of itself: is it ready while nobody could work?"""
        now_s = self.now_s
        if status["status"] != "ready" or server.moved_s(now_s) < CATCH_UP_S:
            return
        workers = server.workers.values()
        there = [w for w in workers if w.set_up_s is not None and not w.reaped]
        limits = self.plan.server
        silent_s = limits.silence_report_s + limits.tick_s + 0.1
        if not there:
            self.violation("G9", f"{server.name} says that it is ready, and has no worker")
        elif server.moved_s(now_s) <= silent_s:
            return  # it measures silence in its own awake time
        elif all(
            worker.quiet_s(now_s) > silent_s + (worker.machine is not None) * SIGN_S
            for worker in there
        ):
            self.violation(
                "G9", f"{server.name} says that it is ready; no worker gives a sign of life"
            )

    def pool_seen(self, server: Observed) -> None:
        """Judge that a worker that ends is replaced soon, however long its process takes to end,
        or its clients to take the outcomes that it holds."""
        now_s = self.now_s
        there = [w for w in server.workers.values() if w not in self.leaving]
        displaced = {w.slot for w in there if w.displaced}
        taken = {
            w.slot for w in there
            if not w.displaced and (w.slot in displaced or not self._is_spent(w))
        }  # fmt: skip
        idle = server in self.draining or not server.locked
        if idle or server.moved_s(now_s) < SETTLE_S:
            server.empty_since_s.clear()
            return
        since_s, least = server.empty_since_s, self.plan.workers
        for slot in range(self.plan.most_workers or least):
            if slot in taken:
                since_s.pop(slot, None)
            else:
                since_s.setdefault(slot, now_s)
        # Which slots are open the judge does not know, but how many there are at least.
        due = sum(now_s - at_s > REPLACED_S for at_s in since_s.values())
        workers = len(taken) + len(since_s) - due
        if workers < least:
            since_s.clear()
            text = f"{server.name} keeps {workers} workers of at least {least}"
            self.violation("G9", text)

    def _is_spent(self, worker: Observed) -> bool:
        """Whether a worker may start no more executions, and runs none as far as its server
        knows."""
        most = self.plan.server.recycle_executions
        return most is not None and worker.sent >= most and not worker.unreported

    def spawned(self, server: Observed, worker: Observed, slot: int) -> None:
        """There is one more worker: may there be, is there a reason, and does nothing run in its
        place?"""
        if not worker.displaced and worker not in self.leaving:
            for other in server.workers.values():
                if other.slot == slot and other not in self.leaving:
                    other.displaced = True
                    if any(e.worker is other and e.live() for e in self.by_dispatch.values()):
                        text = f"{other.name} runs code, and another worker gets its place"
                        self.violation("G8", text)
        server.workers[worker.name] = worker
        worker.slot = slot
        if not self.plan.most_workers:
            return
        workers = sum(
            each not in self.leaving and not each.displaced for each in server.workers.values()
        )
        before = max(server.most_workers, self.plan.workers)
        server.most_workers = max(before, workers)
        if workers > self.plan.most_workers:
            most = self.plan.most_workers
            self.violation("G8", f"{server.name} has {workers} workers of at most {most}")
        elif workers > before and not self._somebody_waits():
            self.violation("G8", f"{server.name} has {workers} workers, and nobody waits for one")

    def _somebody_waits(self) -> bool:
        """Whether anybody may have asked long ago for what does not run: the judge does not
        know how soon a server hears that it is not wanted any more, nor what keys hold."""
        if self.plan.has(FaultKind.KEYS) or self.plan.has(FaultKind.HOSTILE):
            return True
        now_s = self.now_s
        return any(
            call.asked_s <= now_s - self.plan.server.grow_after_s
            and (not call.told or now_s - call.told_s < UNHEARD_S)
            and not any(execution.live() for execution in self.runs_of(call.key))
            for call in self.calls.values()
        )


# -- closing -----------------------------------------------------------------------------


STAGES = [stage.value for stage in ClosingStage]


@dataclasses.dataclass(slots=True)
class _Began:
    """When a server began to close, how long it had been held up by then, and the
    latest stage that it told of."""

    at_s: float
    held_s: float
    stage: int = 0
    late: bool = False


class Closings(HealthJudge):
    """The part of the judge that watches servers close."""

    def __init__(self, plan: SimulationPlan) -> None:
        super().__init__(plan)
        self._began: dict[Observed, _Began] = {}

    def closing_began(self, server: Observed) -> None:
        """A server was told to close, for the first time or again."""
        self.draining.add(server)
        self._began.setdefault(server, _Began(self.now_s, server.held_s))

    def closing_seen(self, server: Observed) -> None:
        """A server has ticked: is it late?"""
        began = self._began.get(server)
        if began is None or began.late or not server.alive:
            return
        limits = self.plan.server
        stages_s = (limits.drain_s, limits.stop_s, limits.stop_s, limits.reap_s)
        most_s = sum(stages_s) + WireLimits().flush_s + len(STAGES) * limits.tick_s
        took_s = self.now_s - began.at_s - (server.held_s - began.held_s)
        if took_s > most_s:
            began.late = True
            text = f"{server.name} has been closing for {took_s:.1f} s, {most_s:.1f} s allowed"
            self.violation("G9", text)

    def status_told(self, server: Observed, status: dict[str, Any]) -> None:
        """A server that closes says so, and how far it is."""
        super().status_told(server, status)
        began = self._began.get(server)
        stage = status.get("closing", {}).get("stage", "")
        if (status["status"] == "stopping") != (began is not None):
            self.violation("G9", f"{server.name} says that it is {status['status']}")
        elif began is not None:
            order = STAGES.index(stage) if stage in STAGES else 0
            if order < max(began.stage, 1):
                self.violation("G9", f"{server.name} closes, and says that it is {stage!r}")
            began.stage = order


# -- the whole ---------------------------------------------------------------------------


class SimulationJudge(Closings):
    """A judge of all guarantees, end to end."""

    SEEN = frozenset({
        "heard", "said", "commanded", "reported", "arrived", "asked", "withdrawn", "told",
        "received", "gone", "began", "ended", "claims", "holds", "gives-back", "is", "ticked",
        "spawned", "kills", "reaped", "lost", "closing", "beat", "answered", "woke",
        "back", "declares", "malformed",
    })  # fmt: skip

    def __init__(self, plan: SimulationPlan) -> None:
        super().__init__(plan)
        self._at_once: dict[Observed, list[JudgedExecution]] = {}

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        self.now_s, self.found = event.at_s, []
        who, key, what = self.processes[event.actor], event.request, event.what
        match event.kind:
            # The wires.
            case "heard":
                self.server_heard(who, *what)
            case "said":
                self.server_told_client(who, what[1])
            case "commanded":
                self.server_told_worker(who, *what[1:])
            case "reported":
                self.reported(who, what[0])
            case "arrived":
                self.client_heard(what[0], self.calls.get(key))
            # Callers.
            case "asked":
                self._asked(key, who.name, *what)
            case "withdrawn":
                self.calls[key].cancelled_s = self.now_s
            case "told":
                self._call_told(self.calls[key], *what)
            case "received":
                self.calls[key].received = True
            case "gone":
                self.gone_clients.setdefault(who.name, self.now_s)
            # The environment's log.
            case "began":
                self._began_to_run(key, who, *what)
            case "ended":
                execution = self.by_dispatch[who, what[0]]
                execution.ended_s, execution.payload = self.now_s, what[2]
            # Permits.
            case "claims":
                number, claim, *stated = what
                self.claims[claim] = JudgedClaim(self.by_dispatch[who, number], *stated)
            case "holds":
                self.holding[what[0]] = self.claims[what[0]]
                self.limits_seen()
            case "gives-back":
                self.holding.pop(what[0], None)
            # Processes.
            case "is":
                self.processes.see(event)
            case "ticked":
                if self.plan.hosts is not None:
                    self.leases_seen()
                self.pool_seen(who)
                self.closing_seen(who)
            case "spawned":
                self.spawned(who, self.processes[what[0]], what[1])
            case "kills":
                self.kills(who, self.processes[what[0]], what[1])
            case "reaped":
                self.leaving.add(who)
                who.reaped = True
            case "lost":
                self.declared_lost(who)
            case "closing":
                self.closing_began(who)
            # Hosts.
            case "beat":
                self.beat(who, *what)
            case "answered":
                self.beat_answered(who, *what)
            case "woke":
                self.processes.see(event)
                self.woke(who)
            case "back":
                self.taken_back(who, self.processes[what[0]])
            case "declares":
                self.declared_dead(who, what[0])
            case "malformed":
                self.violation("CRASH", f"{who.name} is sent what it cannot read: {what[0]}")
        return self.found

    # -- callers --------------------------------------------------------------

    def _asked(
        self, key: str, client: str, consent: bool, most: int, limit_s: float | None,
        use: KeyUse | None,
    ) -> None:  # fmt: skip
        """A caller has asked."""
        self.calls[key] = JudgedCall(key, client, consent, most, limit_s, use, self.now_s)

    def _call_told(
        self, call: JudgedCall, status: Status | None, body: bytes, info: ErrorInfo | None
    ) -> None:
        """A caller was given an outcome, or its call has ended without one."""
        key = call.key
        if status is None:
            assert info is not None
            self._told(call, f"fail {info.code}", info.verdict)
            gave_up = info.code in ("no-answer", "never-started", "server-unreachable")
            if gave_up and call.limit_s is None:  # no fault lasts as long as a client waits
                self.violation("G9", f"{key} was given up: {info.code}, {info.message}", key)
            return
        if status is Status.RESULT:
            self._told(call, "result", None)
            asks = call.use is None or call.use.act in (KeyAct.ASK, KeyAct.ATTACH)
            ended = (each for each in self._executions(call) if each.ended_s is not None)
            if asks and not any(each.payload == body for each in ended):
                text = f"{key} was given a result that none of its executions gave"
                self.violation("G3", text, key)
        else:
            assert info is not None
            self._told(call, f"{status.name.lower()} {info.code}", info.verdict)
            by_router = status is Status.CANCELLED and not info.worker
            if by_router and not self._was_ended(call):
                self.violation("G7", f"{key} is cancelled, and nobody has asked for that", key)

    def _was_ended(self, call: JudgedCall) -> bool:
        """Whether somebody has asked to end the work of its key; or its caller has not asked for
        that, and is told that all others have left."""
        if call.use is None or call.use.act is not KeyAct.ASK:
            return True
        uses = (each.use for each in self.calls.values() if each.use is not None)
        ends = (KeyAct.CANCEL, KeyAct.FORGET)
        return any(use.act in ends and use.name == call.use.name for use in uses)

    def _told(self, call: JudgedCall, what: str, verdict: Verdict | None) -> None:
        if call.told:
            text = f"{call.key} was told twice: {call.told}, then {what}"
            self.violation("G9", text, call.key)
        call.told, call.told_s, call.verdict = what, self.now_s, verdict
        self._true(call)

    def _true(self, call: JudgedCall) -> None:
        """The verdict must be true, now and for ever."""
        starts = len(self._executions(call))
        if call.verdict is Verdict.DID_NOT_RUN and starts and call.use is None:
            text = f"{call.key}: {call.told} says it did not run; starts: {starts}"
            self.violation("G9", text, call.key)
        if call.verdict is Verdict.RAN_AND_FAILED and not starts:
            text = f"{call.key}: {call.told} says that it ran, and it did not"
            self.violation("G9", text, call.key)

    def _executions(self, call: JudgedCall) -> list[JudgedExecution]:
        """Executions of a call, or of its key."""
        return self.runs[call.key if call.use is None else call.use.label]

    # -- the environment's log and the processes' deaths ------------------------

    def _began_to_run(self, key: str, worker: Observed, request: RequestId, number: int) -> None:
        """Environment code begins."""
        self.lease_seen(worker, f"starts {key}")
        dispatch = dispatch_of(worker, number, request, key)
        execution = JudgedExecution(key, worker, request, self.now_s)
        call, before = self.calls.get(key), self.runs_of(key)
        self._once(execution, before)
        before.append(execution)
        if label_of(key):  # the model knows how often it may run
            if dispatch not in self.dispatched:
                self.violation("G5", f"{key} starts on a worker that was not given it", key)
        else:
            # It may have been taken over since, with what is to stop there.
            server = self.dispatched.get(dispatch, worker.home)
            if self.sessions.get(request.session) is not server:
                self.violation("G5", f"{key} starts on a worker of another epoch", key)
            self._consented(key, len(before), call)
        for names in (self.first, self.started_as):
            if names.get(request, key) != key:
                text = f"{request} starts as {key}, was {names[request]} before"
                self.violation("G6", text, key)
        self.started_as.setdefault(request, key)
        if call is not None and call.told:
            self._true(call)
        self.by_dispatch[worker, number] = execution
        at_once = self._at_once.setdefault(worker, [])
        at_once[:] = [each for each in at_once if each.live()] + [execution]
        if len(at_once) > (self.plan.server.worker_capacity or CAPACITY):
            self.violation("G8", f"{worker.name} runs {len(at_once)} executions at once", key)

    def _once(self, execution: JudgedExecution, before: list[JudgedExecution]) -> None:
        """G1 and G2: one at a time, and another only after the death of the worker before.

        Args:
            execution: The one that begins.
            before: Those of its call, or of its key.
        """
        self._alone(execution)
        for earlier in before:
            same = earlier.request == execution.request
            if same and not earlier.runs() and earlier.worker.runs():
                text = f"{execution.key} starts again, and its worker had not died"
                self.violation("G2", text, execution.key)

    def _consented(self, key: str, starts: int, call: JudgedCall | None) -> None:
        """G2: no more than were consented to; a hostile client has consented to nothing."""
        if starts > 1 and (call is None or not call.consent):
            self.violation("G2", f"{key} starts for the {starts}. time without consent", key)
        elif call is not None and starts > call.most:
            text = f"{key} starts for the {starts}. time, {call.most} allowed"
            self.violation("G2", text, key)

    # -- at the end -----------------------------------------------------------

    def rest(self, at_s: float) -> list[Violation]:
        """Violations by what has not happened by the end of the run."""
        self.now_s, self.found = at_s, []
        for call in self.calls.values():
            waits = not call.told and call.cancelled_s is None
            if waits and call.client not in self.gone_clients:
                self.violation("G9", f"{call.key} was never told anything", call.key)
        for key in dict.fromkeys(each.key for each in self.live()):
            self.violation("G7", f"{key} still runs", key)
        return self.found


class Judges(Judge):
    """The judges of a run, each of which sees the events of the kinds that it names ``SEEN``."""

    def __init__(self, plan: SimulationPlan, model: type[Clocks] = Clocks) -> None:
        journaled = plan.has(FaultKind.JOURNAL)
        self.model = model(plan.server, plan.keys, journaled=journaled)
        self.guarantees = SimulationJudge(plan)
        processes = self.guarantees.processes
        self._judges: list[Any] = [self.guarantees, GraceJudge(plan, processes)]
        self._judges += [self.model]
        self._judges += [ResourceJudge(plan, processes)] if plan.has(FaultKind.RESOURCES) else []
        self._of_kind: dict[str, list[Any]] = {}
        """Judges that see each kind of event, in their order."""

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        judges = self._of_kind.get(event.kind)
        if judges is None:
            judges = [judge for judge in self._judges if event.kind in judge.SEEN]
            self._of_kind[event.kind] = judges
            if not judges:
                raise ValueError(f"no judge knows an event of the kind {event.kind!r}")
        found: list[Violation] = []
        for judge in judges:
            found += judge.see(event) or ()
        return found

    def rest(self, at_s: float) -> list[Violation]:
        """Violations by what has not happened by the end of the run."""
        return [violation for judge in self._judges for violation in judge.rest(at_s) or ()]
