"""Variants of the core that are broken on purpose: each must be caught.

A check that no mutant fails is not a check.  Each mutant is applied from outside
(:mod:`trio_envserve.retrylab.mutants`) and names the guarantees by which it may be found, and the
kinds of fault without which it does nothing.  Most are one place of the source that reads
otherwise: a row of a table, with name, guarantees, needs and one line of prose.  A mutant that
has to remember something is a function.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

from ..core import client, executions, lease, messages, outcomes, pool, router
from ..core import client as call_table
from ..core.account import Accounts
from ..core.client import (
    CallInput,
    CallsCancelled,
    ClientCore,
    ClientSessions,
    Pings,
    Stage,
    limit_passed,
)
from ..core.clock import AwakeClock
from ..core.closing import Closing
from ..core.executions import Announcements, Dispatches
from ..core.health import Health
from ..core.host import Host
from ..core.host_link import Outbox
from ..core.host_pool import Hosts
from ..core.lease import EarlierEpochs, HostLease, Leases, LeaseTerms
from ..core.permits import OpenClaims, Permits
from ..core.pool import Elastic, Life, LifeInput, Phase, Pool, Turnover
from ..core.ranges import Ranges
from ..core.router import Router
from ..core.router_effects import Lost, ToClient
from ..core.router_inputs import ClientMessage, Tick, WorkerBack
from ..core.scheduler import Scheduler
from ..core.scope import OpenResources, Resources
from ..core.sessions import Session, Sessions
from ..core.work import WorkInput, Works, WorkState
from ..core.worker import WorkerCore
from ..core.workforce import ExecutionEnded, Workforce
from ..retrylab.mutants import Family, Mutant, Patches, cells, find_in, named, text
from ..worker import guard
from .simulation.plan import ANY, FaultKind

__all__ = ["MUTANTS", "NOT_BY_CHANCE", "Mutant", "Patches", "find", "find_in"]

NOT_BY_CHANCE: Mapping[str, str] = {
    "a-worker-takes-any-incarnation": (
        "nothing but the process that started it reaches a worker: the conformance of workers "
        "shows it"
    ),
    "an-outcome-overtakes-the-end-of-a-resource": (
        "the outcome comes behind that, unless a host had to drop what it kept for a next router"
    ),
    "any-router-answers-a-beat": (
        "a host says hello before it beats: several hellos must be lost, and an old one be late"
    ),
    **dict.fromkeys(
        ("a-host-that-hears-nothing-is-answered-for-ever", "the-guard-is-told-for-how-long"),
        "what must come together is rare: systems with one host, and little else, show it",
    ),
}
"""Mutants that random runs do not show, each with its reason: a search of every order does, or a
test of the core."""

TABLE = Works.TABLE
WITHOUT_OUTCOME = (WorkState.HELD, WorkState.WAITING, WorkState.RUNNING)
OPEN = (*WITHOUT_OUTCOME, WorkState.COMPLETED)
_S, _L = Stage, LifeInput


def without(finished: Any, sequence: int) -> Any:
    """Finished sequences, but for one."""
    kept = type(finished)()
    for start, stop in finished.spans():
        kept.add_span(start, min(stop, sequence) if start <= sequence < stop else stop)
        if start <= sequence < stop:
            kept.add_span(sequence + 1, stop)
    return kept


# -- requests, sessions, and their bounds ------------------------------------------------------

WORKS = Family(ANY)


@WORKS.mutant("G1")
def duplicates_run_again(patch: Patches) -> None:
    """A duplicate of a running request is queued, and runs as well."""

    @patch.around(Works, "request")
    def again(request: Any, self: Any, session: Any, ask: Any, body: Any, *rest: Any) -> Any:
        ticket = session.tickets.get(ask.sequence)
        work = None if ticket is None else ticket.work
        if work is not None and work.name is None and work.state is WorkState.RUNNING:
            if work.body is None:
                work.body = body
                self.accounts.hold(work.account, work.body_bytes)
            self.accounts.run(work.account, -1)
            self.accounts.wait(work.account, +1)
            work.state = WorkState.WAITING
            self._queue(work)
        return request(self, session, ask, body, *rest)


@WORKS.mutant("G7", "G8")
def finish_frees_a_running_request(patch: Patches) -> None:
    """A request that is finished while it runs is taken for ended: nobody stops it."""

    @patch.around_cell(TABLE[WorkInput.LEAVE], WorkState.RUNNING)
    def finish(leave: Any, self: Any, work: Any, ticket: Any) -> None:
        execution = work.execution
        leave(self, work, ticket)
        if work.name is None:
            self._stopping.remove(execution)
            if execution.number in execution.worker.live:
                execution.worker.end(execution)
            execution.worker.accepting = True


@WORKS.mutant("G7", "G8")
def cancelled_is_kept(patch: Patches) -> None:
    """A request cancelled while it runs keeps "cancelled" as the outcome for a retry."""

    @patch.around_cell(TABLE[WorkInput.LEAVE], WorkState.RUNNING)
    def finish(leave: Any, self: Any, work: Any, ticket: Any) -> None:
        if work.name is not None:
            leave(self, work, ticket)
            return
        ticket.session.tickets[ticket.sequence] = ticket
        self.sessions.busy(ticket.session)
        self.answer(work, outcomes.stopped)


@WORKS.mutant("G4", "G9")
def kept_outcomes_are_evicted(patch: Patches) -> None:
    """A new outcome throws away those that its session has not fetched yet."""

    @patch.around_cell(TABLE[WorkInput.REPORT], WorkState.RUNNING)
    def evict(complete: Any, self: Any, work: Any, brought: Any) -> None:
        session = self.sessions.known.get(work.account.id)
        others = [] if session is None else list(session.tickets.values())
        for other in others:
            if other.kept is not None and other.key is None:
                session.finished.add(other.sequence)
                self._forget(other)
        complete(self, work, brought)


WORKS.table(
    ("finished-looks-unseen", "G2 G7 G9", (),
     "A finished request is forgotten, and then looks like never seen.",
     named(Session, "has_finished", lambda self, sequence: False)),
    ("reruns-without-consent", "G2", (),
     "A dead worker's requests run again, whether or not anybody has consented.",
     text(Works.may_rerun, "self.environment.consents(work.rerun) and ", "")),
    ("reruns-for-ever", "G2", (FaultKind.POISON,),
     "Consent to a rerun is consent to any number: what kills its workers never ends.",
     text(Works.may_rerun, " and work.executions < work.allowance", "")),
    ("sync-off-by-one", "G2 G4 G7 G8 G9", (),
     "A statement finishes all up to its next sequence, that one included.",
     text(Works.sync, "missing = Ranges()", "missing = Ranges(); next_sequence += 1")),
    ("sync-names-nothing-missing", "G9", (),
     "The server never says which requests it has not seen.",
     text(Works.sync, "missing.add(sequence)", "pass")),
    ("sync-replays-nothing", "G9", (),
     "An outcome that was lost on its way is not sent again.",
     text(Works.sync, "ticket.sent_probe < sent_before", "False")),
    ("cancel-is-forgotten", "G7 G9", (FaultKind.MANGLE,),
     "A cancel that overtakes its request leaves nothing behind: the request runs.",
     text(Works.cancel, "or None\n        session.finished.add(sequence)", "or None")),
    ("deadline-stops-nothing", "G7 G8", (),
     "A deadline answers the request, and its execution goes on.",
     text(Works._abort, "self._stopping.append(execution)",
          "execution.is_wanted = False")),
    ("replay-has-a-new-header", "G3", (),
     "An outcome sent a second time is encoded anew, and differs.",
     text(Works.request, "self.counters.replayed += 1",
          "ticket.kept.outcome = ticket.kept.outcome._replace(duration_s=1.5)")),
    ("digest-is-not-compared", "G6", (FaultKind.HOSTILE,),
     "A request is known by its id alone: another payload gets the first one's outcome.",
     text(Works.request, "not (same and ticket.key == key)", "False")),
    ("cancel-says-it-never-ran", "G9", (),
     "The answer to every cancel is that the request did not run.",
     text(Works._cancel, "return started", "return started and ticket.key is not None")),
    ("kept-outcomes-have-no-bound", "G8", (FaultKind.TINY_BOUNDS,),
     "At the bound of kept outcomes dispatching goes on.",
     named(Accounts, "may_run", lambda self, account: True)),
    ("a-connection-opens-any-number-of-sessions", "G8", (FaultKind.HOSTILE,),
     "Sessions are bounded in all, and not for each connection.",
     text(Sessions.refusal, ">= self.limits.connection_sessions", "< 0")),
    ("a-session-at-work-makes-room", "G4 G3 G9 CRASH", (FaultKind.HOSTILE,),
     "At the bound of sessions whichever was unheard for longest makes room.",
     named(Sessions, "_longest_idle", lambda self: next(iter(self.known.values()), None))),
    ("every-lost-session-was-settled", "G9 G1 G2", (FaultKind.SHORT_LEASE, FaultKind.STOP_CLIENT),
     "The server says of each session that it has forgotten that nothing was unfinished.",
     named(Sessions, "settled", lambda self, session_id: True)),
    ("a-cancelled-call-is-settled", "G9", (FaultKind.SHORT_LEASE, FaultKind.CUT_LONG),
     "What was cancelled and may have run does not count as unfinished.",
     text(Works.cancel, "session.owes |= started", "pass")),
    ("an-ended-nonce-is-forgotten", "G8", (FaultKind.HOSTILE,),
     "A hello that comes after the goodbye to its session opens another one.",
     text(Sessions.goodbye, "self._ended[nonce] = None", "return session")),
    ("kept-bytes-are-not-counted", "G8", (FaultKind.TINY_BOUNDS, FaultKind.CUT_LONG),
     "Kept outcomes are bounded in number, and not in bytes.",
     text(Accounts.may_run, "taken.kept_bytes", "0"),
     text(Accounts.may_run, "account.kept_bytes", "0")),
    ("sessions-have-no-share-of-their-own", "G8", (FaultKind.TINY_BOUNDS,),
     "At the bound, whoever holds most stops all the others.",
     text(Accounts.may_run, "if not mine:",
          "if True:\n        return (ran < limits.kept_outcomes and taken.announced_bytes "
          "< limits.announced_bytes and taken.kept_bytes + taken.announced_bytes "
          "< limits.kept_bytes)\n    if not mine:")),
    ("window-is-not-kept", "G8", (FaultKind.TINY_BOUNDS, FaultKind.HOSTILE),
     "A session may have any number of unfinished requests.",
     text(Works.request, "len(session.tickets) >= self.limits.window", "False")),
    ("bytes-are-not-given-back", "G8", (),
     "The bytes of a request's body count as held after it is dropped.",
     text(Works._drop_body, "self.accounts.hold(work.account, -work.weight)", "pass")),
    ("spans-one-too-long", "", (),
     "A span that a statement finishes has one more at its end.",
     text(Ranges.gaps, "return ranges", "made = Ranges(); "
          "[made.add_span(start, end + 1) for start, end in ranges.spans()]; return made")),
    ("lease-ends-and-work-goes-on", "G7 G8", (FaultKind.SHORT_LEASE, FaultKind.KILL_CLIENT),
     "Requests that a client left running when its lease ended are not cancelled.",
     text(Works._lose, "self._leave(work, ticket)", "run = work.execution; "
          "self._leave(work, ticket)\n    if run is not None and work.name is None: "
          "self._stopping.remove(run); run.is_wanted = False")),
    ("conflict-replaces-the-first", "G6 G1 G2 CRASH", (FaultKind.HOSTILE,),
     "Another payload under the same id takes the place of the one that waits.",
     text(Works.request, "same = ", "work = ticket.work\n        if work is not None and "
          "work.name is None and work.state is _W.WAITING: work.body = body; return None"
          "\n        same = ")),
)  # fmt: skip


# -- the router, and what it says --------------------------------------------------------------

ROUTER = Family(ANY)

EXPIRE_S = 1.0
"""Time in seconds after which :func:`kept_outcomes_expire` forgets: sooner than any retry."""


@ROUTER.mutant("G2", "G4", "G9")
def kept_outcomes_expire(patch: Patches) -> None:
    """An outcome is kept for a second, and then forgotten as if never asked for."""

    @patch.around_cell(router._INPUTS, Tick)
    def expire(tick: Any, self: Any, given: Tick) -> None:
        tick(self, given)
        now_s = given.now_s
        for session in self.sessions.known.values():
            for sequence, ticket in list(session.tickets.items()):
                if ticket.kept is not None:
                    since_s = self.__dict__.setdefault("since_s", {}).setdefault(ticket.id, now_s)
                    if now_s - since_s > EXPIRE_S:
                        self.works.finish(session, Ranges((sequence,)))
                        session.finished = without(session.finished, sequence)


@ROUTER.mutant("G3", "G7", "G8")
def a_second_answer_is_forwarded(patch: Patches) -> None:
    """An outcome from an execution that had already ended is kept and sent on."""

    @patch.around(Router, "_stray")
    def forward(stray: Any, self: Any, late: Any) -> None:
        stray(self, late)
        session = self.sessions.known.get(late.session)
        if session is not None:
            outcome = messages.Outcome(late.session, late.sequence, 0, "late", 0.0, 1)
            self.works.out.append(ToClient(session.route, outcome, b"late"))
            self.accounts.all.kept_count += 1


ROUTER.table(
    ("every-lost-session-is-gone", "G1",
     (FaultKind.STOP_CLIENT, FaultKind.SHORT_LEASE, FaultKind.IGNORE_CANCEL),
     "The server says of each session that it does not know that nothing of it runs.",
     text(Router._session, "Unknown(session_id, gone,", "Unknown(session_id, True,")),
    ("what-was-sent-is-finished", "G4 G9", (),
     "An outcome that was handed to the socket counts as received.",
     text(Works.send, "kept.payload))",
          "kept.payload)); self.finish(session, Ranges((ticket.sequence,)))")),
    ("answers-go-to-the-first-connection", "G9", (FaultKind.NEW_ROUTE,),
     "A client that has reconnected is answered where it was before.",
     named(Sessions, "moved", lambda *args: None)),
    ("leases-run-while-it-is-stopped", "G4", (FaultKind.SUSPEND, FaultKind.SHORT_LEASE),
     "A server that was stopped takes its clients for silent meanwhile.",
     text(AwakeClock.read, "min(passed_s, self.step_s)", "passed_s")),
    ("a-dead-pool-is-ready", "G9", (),
     "Every process counts as a ready worker, whatever has become of it.",
     named(Pool, "ready_count", lambda self: len(self.lives))),
    ("a-stopped-pool-is-ready", "G9", (FaultKind.STOP_WORKER,),
     "Workers that give no sign of life count as ready until they are dead.",
     named(Pool, "is_silent", lambda self: False)),
    ("a-stopping-server-starts-workers", "G7 G8 G9", (FaultKind.DRAIN_SERVER,),
     "A server that drains replaces its workers for ever, and never ends.",
     named(Pool, "stop", lambda self: None)),
    ("a-stage-of-closing-has-no-end", "G9", (FaultKind.DRAIN_SERVER, FaultKind.HANG),
     "A server that drains waits for what runs as long as that takes.",
     text(Closing.following, "now_s < self._until_s",
          "(self.stage is ClosingStage.DRAINING or now_s < self._until_s)")),
    ("work-begins-while-closing", "G7", (FaultKind.DRAIN_SERVER,),
     "A server that drains takes work in as ever.",
     named(Router, "_never_starts", lambda self: None),
     named(Turnover, "retire_all", lambda self, now_s: self._pool.stop() or [])),
    ("what-closing-cancels-did-not-run", "G9", (FaultKind.DRAIN_SERVER, FaultKind.HANG),
     'Requests that still run when a server closes are answered with "did not run".',
     text(outcomes.stopped, '"server-stopped", Verdict.MAY_HAVE_RUN',
          '"stopping", Verdict.DID_NOT_RUN')),
    ("any-server-answers-a-ping", "G9", (),
     "A ping is answered whether the session is known or not: a restart goes unseen.",
     text(Router._sync, "session = self._session(", "if sync.session not in self.sessions.known: "
          "self.send(route, messages.Synced(sync.session, sync.probe, [], self.status())); return"
          "\n    session = self._session(")),
)  # fmt: skip


# -- workers, their side of the link and the router's, and their processes ---------------------

WORKERS = Family(ANY)


@WORKERS.mutant("G1")
def silence_is_death(patch: Patches) -> None:
    """A worker that gives no sign of life is declared dead, and lives."""
    time = pool.TABLE[LifeInput.TIME]
    cells = {phase: cell for phase, cell in time.items() if phase is not Phase.REAPED}

    def no_proof(pool: Any, life: Any, now_s: float, arg: Any) -> Any:
        if not (life.heartbeats and now_s - life.seen_at >= pool.limits.silence_kill_s):
            return cells[life.phase](pool, life, now_s, arg)
        if not life.leaving:
            pool.vacate(life, now_s, failed=False)
        life.phase, life.left_s = Phase.REAPED, now_s - 1.0
        return pool.step(life, LifeInput.TIME, now_s)

    for phase in cells:
        patch.item(time, phase, no_proof)


@WORKERS.mutant("G1")
def lost_when_killed(patch: Patches) -> None:
    """Work is declared lost when the kill is sent, not when the process is reaped."""

    @patch.around(Pool, "step")
    def note(
        step: Any, self: Any, life: Any, input: LifeInput, now_s: float, arg: Any = None
    ) -> Any:
        effects = step(self, life, input, now_s, arg)
        if input is LifeInput.KILL and effects:
            self.__dict__.setdefault("killed", []).append(Lost(life.id, arg))
        return effects

    @patch.around(Pool, "tick")
    def declare(tick: Any, self: Any, now_s: float) -> Any:
        effects = tick(self, now_s)
        lost, self.__dict__["killed"] = self.__dict__.get("killed", []), []
        return [*effects, *lost]


WORKERS.table(
    ("a-worker-takes-any-incarnation", "G5", (),
     "A worker runs any dispatch that reaches it, whichever incarnation it was meant for.",
     text(WorkerCore._message, "frames[0] != self.incarnation", "False")),
    ("a-blocked-loop-is-silence", "G9", (FaultKind.BLOCK_LOOP,),
     "Only the heartbeat of an event loop that is on time counts as a sign of life.",
     text(pool.TABLE[_L.HEARTBEAT][Phase.READY], "memory_bytes = now_s,",
          "memory_bytes = "
          "life.seen_at if heartbeat.lag_s >= pool.limits.blocked_report_s else now_s,")),
    ("a-start-may-take-for-ever", "G8 G9", (FaultKind.SLOW_START,),
     "A worker that never says hello is waited for.",
     cells(pool.TABLE[_L.TIME], (Phase.STARTING,), pool.TABLE[_L.TIME][Phase.READY])),
    ("work-goes-to-who-retires", "G2", (),
     "A worker that was told to exit still gets executions, which are lost with it.",
     named(executions.Worker, "open", lambda self: len(self.live) < self.capacity)),
    ("capacity-is-not-kept", "G8", (),
     "A worker gets one execution more than it can take at once.",
     text(executions.Worker.open, "self.capacity)", "self.capacity + 1)")),
    ("last-words-are-thrown-away", "G4", (FaultKind.KILL_AFTER_OUTCOME,),
     "The messages that a worker had sent before it died are not taken in.",
     text(Workforce.message, "life is None", "life is None or life.phase is Phase.REAPED")),
    ("a-replacement-is-never-started", "G9", (), "A slot whose worker has died stays empty.",
     text(Pool.vacate, "now_s + pause_s", "float('inf')")),
    ("a-replacement-waits-for-the-dead", "G9", (FaultKind.SLOW_DEATH,),
     "A place in the pool stays empty until the old process has ended.",
     text(Pool.tick, "slot.life is None", "slot.life is None and "
          "slot.index not in {life.slot for life in self.lives.values()}")),
    ("a-fetched-outcome-counts-twice", "G8", (),
     "The room for an outcome under way is counted again when it has arrived.",
     text(Announcements.remove,
          "self._accounts.reserve(execution.session, -_size_bytes(execution))", "pass")),
    ("room-dies-with-a-worker", "G8", (),
     "Room for what a worker was to send is not given back when it dies.",
     text(Workforce._lost, "self.dispatches.end(execution)", "execution.fetched and "
          "self.announced._accounts.reserve(execution.session, execution.size_bytes); "
          "self.dispatches.end(execution)")),
    ("announced-outcomes-need-no-room", "G8", (FaultKind.TINY_BOUNDS,),
     "Every announced outcome is asked for at once.",
     named(Accounts, "may_keep", lambda self, session, size_bytes: True)),
    ("a-worker-that-is-not-needed-is-killed", "G9", (FaultKind.ELASTIC,),
     "A pool shrinks by killing workers, whatever they run.",
     text(Pool.spare, "slot.pause_s = 0.0",
          "slot.pause_s = 0.0; slot.life and setattr(slot.life, 'seen_at', float('-inf'))")),
    ("a-pool-grows-without-need", "G8", (FaultKind.ELASTIC,),
     "A pool grows, though nobody waits for a worker.",
     text(Elastic.tick, "before, need,", "before, need._replace(waiting=1, oldest_s=1e9),")),
    ("a-pool-shrinks-below-its-least", "G9", (FaultKind.ELASTIC,),
     "A pool in which nothing runs keeps no worker.",
     text(Elastic._shrink, "part.bounds.least", "0")),
    ("a-group-outlives-its-turn", "G2 G9", (FaultKind.PAUSES, FaultKind.KILL_WORKER),
     "What a pause has left of a group of suspects goes where the first of them went.",
     text(Scheduler.resume, "self._group = None", "pass")),
    ("a-pool-grows-beyond-its-most", "G8", (FaultKind.ELASTIC,),
     "A worker that drains does not count, and another one begins beside it.",
     text(Pool.spare, "slot.pause_s = 0.0", "slot.pause_s, slot.life = 0.0, None")),
    ("a-worker-keeps-its-place-for-what-it-holds", "G9", (FaultKind.TINY_BOUNDS,),
     "A drained worker is replaced once its clients have taken all that it holds.",
     text(Turnover._check, "self._pool.needs_slot(life)", "False")),
    ("a-worker-that-runs-code-leaves-its-place", "G8", (),
     "A worker that drains is replaced before it has run what it runs.",
     text(Turnover._check, "not worker.running", "True")),
    ("a-malformed-worker-is-kept", "G7 G8 G9", (FaultKind.JUNK,),
     "Malformed messages of a worker are counted and ignored, and it goes on getting work.",
     named(Workforce, "_distrust", lambda self, life, why, now_s: None)),
    ("a-mute-worker-is-kept", "G7 G8 G9", (FaultKind.JUNK,),
     "A worker whose messages are all fenced, or that sends none, is waited for.",
     named(pool, "mute_kill_s", lambda limits: float("inf"))),
    ("the-first-worker-takes-everything", "G8", (FaultKind.SPREAD,),
     "Workers that still start are left nothing.",
     named(Router, "_most_at_once", lambda self: float("inf"))),
    ("what-is-left-to-others-waits-for-ever", "G8 G9", (FaultKind.SPREAD,),
     "A worker that never gets ready is left its share all the same.",
     text(Pool.spreads, "now_s < self.spread_until_s", "self.was_ready")),
    ("cancel-stays-at-the-router", "G7 G8", (),
     "The worker is never told that an execution is to stop.",
     text(Dispatches.stop, "if execution.size_bytes is not None", "execution.is_wanted = False; "
          "continue\n        if execution.size_bytes is not None")),
)  # fmt: skip


# -- the client: its calls, its sessions, what it tells its callers ----------------------------

CLIENT = Family(ANY)


@CLIENT.mutant("G4")
def an_unhealthy_server_is_not_heard(patch: Patches) -> None:
    """While its server counts as unhealthy, a client takes outcomes for stale."""

    @patch.around(ClientCore, "_outcome")
    def stale(outcome: Any, self: Any, message: Any, body: Any, now_s: float) -> None:
        if self.link.health(now_s)[0] is not Health.UNHEALTHY:
            outcome(self, message, body, now_s)


@CLIENT.mutant("G7", "G8", "G9")
def a_cancel_is_not_told(patch: Patches) -> None:
    """A cancelled call is dropped, and its server never hears of it."""

    def silent(calls: Any, call: Any, now_s: float, arg: Any) -> call_table.Effects:
        del calls.live[call.number]
        calls.timed.pop(call.number, None)
        return ()

    for stage in (Stage.SENT, Stage.EXPIRED, Stage.ANSWERED):
        patch.item(call_table.TABLE[CallInput.CANCEL], stage, silent)


CLIENT.table(
    ("a-new-session-resets-the-allowance", "G2", (FaultKind.POISON,),
     "Executions that a lost session may have started are not taken off a call's allowance.",
     text(call_table._lose_proven, "if left > 0:", "if False:")),
    ("every-welcome-is-taken", "", (FaultKind.MANGLE,),
     "A second welcome to the same hello replaces the session.",
     text(Pings.welcomed, "if self._sessions.current is not None or welcome.nonce != self._nonce",
          "self._sessions.current = None\n    if False")),
    ("a-passed-limit-means-it-never-ran", "G9", (),
     "A caller whose limit has passed is told that nothing ran.",
     named(call_table, "limit_passed", lambda started: limit_passed(started=False))),
    ("a-lost-session-is-not-heard", "G4 G9", (FaultKind.MANGLE,),
     "An outcome of a session that was lost meanwhile is thrown away.",
     text(ClientSessions.call, "self.find(session_id)",
          "self.current if self.current and self.current.id == session_id else None")),
    ("acknowledged-on-arrival", "G4", (),
     "An outcome is acknowledged when its message comes, not when its caller has it.",
     text(ClientCore._outcome, "OUTCOME, now_s, answer)", "OUTCOME, now_s, answer); span = "
          "[outcome.sequence, outcome.sequence + 1]; "
          "self._send(messages.Finish(outcome.session, span))")),
    ("a-lost-request-is-not-repeated", "G9", (),
     "A client hears that a request never arrived, and does not send it again.",
     cells(call_table.TABLE[CallInput.MISSING], (_S.SENT,), call_table._ignore)),
    ("a-retransmission-has-a-new-id", "G1 G2", (FaultKind.MANGLE,),
     "A request that seems lost is issued again under another id.",
     cells(call_table.TABLE[CallInput.MISSING], (_S.SENT,),
           lambda calls, call, now_s, probe: call_table._requeue(calls, call))),
)  # fmt: skip


# -- batches: each row must get what is its own ------------------------------------------------

BATCHES = Family(ANY)
"""A message names many requests, as spans, or is a batch of them, as columns.  A client cancels
many calls with one input.  Of requests that arrive together some are refused.  A worker that dies
takes with it what it has not reported yet.  All of this must come to the same as if it were done
to one after the other; each mutant treats many as one."""


@BATCHES.mutant("G7", "G8", needs=(FaultKind.CANCEL_STORM,))
def a_span_ends_as_its_first(patch: Patches) -> None:
    """If the first request of a finished span does not run, nothing of the span is stopped."""

    @patch.around(Works, "finish")
    def as_the_first(finish: Any, self: Any, session: Any, spans: Ranges) -> None:
        for start, stop in spans.spans():
            one, before = Ranges(), len(self._stopping)
            one.add_span(start, stop)
            first = min((n for n in session.tickets if start <= n < stop), default=None)
            work = None if first is None else session.tickets[first].work
            runs = work is not None and work.state is WorkState.RUNNING
            finish(self, session, one)
            if not runs:
                del self._stopping[before:]


@BATCHES.mutant("G7", "G8", "G9", needs=(FaultKind.CANCEL_STORM,))
def calls_cancelled_together_are_as_one(patch: Patches) -> None:
    """If one of the calls cancelled together was never sent, the server hears of none."""

    @patch.around_cell(client._INPUTS, CallsCancelled)
    def as_one(cancel: Any, self: Any, given: CallsCancelled) -> None:
        calls = [call for n in given.calls if (call := self.calls.live.get(n)) is not None]
        if all(call.stage is not Stage.QUEUED for call in calls):
            cancel(self, given)
            return
        for call in calls:
            self.calls.held.drop(call)
            for records in (self.calls.live, self.calls.queue, self.calls.timed):
                records.pop(call.number, None)


@BATCHES.mutant("G1", "G2", needs=(FaultKind.TINY_BOUNDS,))
def a_refusal_is_of_all_that_was_sent(patch: Patches) -> None:
    """If one request is refused for now, all that are under way are asked for anew."""

    @patch.around_cell(call_table.TABLE[CallInput.HOLD], Stage.SENT)
    def all_anew(hold: Any, calls: Any, call: Any, now_s: float, arg: Any) -> call_table.Effects:
        effects = [*hold(calls, call, now_s, arg)]
        for each in list(call.session.calls.values()):
            if each.stage is Stage.SENT and each.number not in calls.held:
                effects += call_table._requeue(calls, each)
        return effects


@BATCHES.mutant("G2", "G3", "G4", needs=(FaultKind.KILL_AFTER_OUTCOME,))
def work_half_done_is_lost(patch: Patches) -> None:
    """When a worker dies at work, what it had reported is lost with the rest."""

    @patch.around(Workforce, "_outcome")
    def note(outcome: Any, self: Any, worker: Any, message: Any, payload: Any, now_s: float) -> Any:
        execution = worker.live.get(message.number)
        if execution is not None and execution.is_wanted:
            reported = self.__dict__.setdefault("reported", {}).setdefault(worker.id, [])
            work = execution.work
            reported.append((execution, work, work.body, work.tickets))
        return outcome(self, worker, message, payload, now_s)

    @patch.around(Workforce, "_lost")
    def lose(lost: Any, self: Any, lost_: Any) -> Any:
        ended = lost(self, lost_)
        if not ended:
            return ended
        for execution, work, body, tickets in self.__dict__.get("reported", {}).pop(
            lost_.worker, ()
        ):
            if work.name is None and any(_is_kept(ticket) for ticket in tickets):
                _unkeep(self.announced._accounts, execution, work, body, tickets[0])
                ended.append(ExecutionEnded(execution, None, lost_.why, ended[0].suspicion))
        return ended


def _is_kept(ticket: Any) -> bool:
    known = ticket.session.tickets.get(ticket.sequence)
    return known is ticket and ticket.kept is not None


def _unkeep(accounts: Any, execution: Any, work: Any, body: Any, ticket: Any) -> None:
    """As if its outcome had never come."""
    accounts.keep(work.account, -1, -ticket.kept.size_bytes, ran=True)
    accounts.run(work.account, +1)
    if body is not None:
        accounts.hold(work.account, work.body_bytes)
    work.state, work.execution, work.body = WorkState.RUNNING, execution, body
    work.tickets, ticket.work = (ticket,), work
    ticket.kept, ticket.ran = None, False


@BATCHES.mutant("G2", "G3", "G5", "G6", "G9")
def rows_are_shifted_by_one(patch: Patches) -> None:
    """Each row of a batch gets the body of the next one."""

    @patch.around(messages, "_rows")
    def shifted(rows: Any, *args: Any) -> Any:
        said = rows(*args)
        bodies = [body for _, body in said]
        return list(zip((message for message, _ in said), bodies[1:] + bodies[:1], strict=True))


@BATCHES.mutant("G9", needs=(FaultKind.TINY_BOUNDS,))
def a_refused_row_drops_the_rest(patch: Patches) -> None:
    """Behind a request that is refused, the rest of its batch counts as finished."""

    @patch.around(Router, "_request")
    def taken(request: Any, router: Any, route: Any, asked: Any, body: Any, now_s: float) -> None:
        session = router.sessions.known.get(asked.session)
        if session is not None and session in router.__dict__.get("refused", ()):
            session.finished.add(asked.sequence)
            return
        request(router, route, asked, body, now_s)
        if session is not None and asked.sequence not in session.tickets:
            router.__dict__.setdefault("refused", []).append(session)

    @patch.around_cell(router._INPUTS, ClientMessage)
    def all_of(message: Any, router: Any, given: Any) -> None:
        message(router, given)
        router.__dict__.pop("refused", None)


@BATCHES.mutant("G3", "G4", "G5", "G9", "CRASH")
def a_batch_is_freed_with_its_first(patch: Patches) -> None:
    """Outcomes that came together share memory, and that ends with the first of them."""
    together = 4  # batches: one alone is too rarely kept in part
    arena: list[bytearray] = []

    @patch.around(messages, "_rows")
    def shared(rows: Any, cls: Any, checks: Any, fields: Any, sizes: Any, blob: Any) -> Any:
        said = rows(cls, checks, fields, sizes, blob)
        whole, at, views = bytearray(blob), 0, []
        arena.append(whole)
        del arena[:-together]
        for size in sizes:
            views.append(memoryview(whole)[at : at + size])
            at += size
        return list(zip((message for message, _ in said), views, strict=True))

    @patch.around(Works, "_forget")
    def freed(forget: Any, self: Any, ticket: Any) -> None:
        payload = None if ticket.kept is None else ticket.kept.payload
        if isinstance(payload, memoryview) and any(payload.obj is whole for whole in arena):
            for whole in arena:
                whole[:] = bytes(len(whole))
        forget(self, ticket)


@BATCHES.mutant("G2")
def a_lost_batch_was_never_dispatched(patch: Patches) -> None:
    """Requests dispatched together, and lost with their worker, do not count as dispatched."""

    @patch.around(Workforce, "_lost")
    def uncounted(lost: Any, self: Any, lost_: Any) -> Any:
        ended = lost(self, lost_)
        at_once: dict[float, int] = {}
        for each in ended:
            at_s = each.execution.dispatched_s
            at_once[at_s] = at_once.get(at_s, 0) + 1
        for each in ended:
            if each.execution.is_wanted and at_once[each.execution.dispatched_s] > 1:
                each.execution.work.executions -= 1
        return ended


BATCHES.table(
    ("what-is-refused-for-now-is-spent", "G4 G9", (FaultKind.TINY_BOUNDS,),
     "A request that is refused for now counts as taken, as those accepted before it do.",
     text(Works.request, "refused_for_now += 1", "refused_for_now += 1; "
          "key is None and session.finished.add(sequence)")),
    ("work-half-done-is-done", "G8 G9", (),
     "When a worker that has reported something dies, nothing of it counts as lost.",
     text(Workforce._lost, "suspicion) for execution in executions",
          "suspicion) for execution in executions if not (worker.done and execution.is_wanted)")),
)  # fmt: skip


# -- keys --------------------------------------------------------------------------------------

KEYS = Family(ANY, needs=(FaultKind.KEYS,))

_LEAVE: Any = Works._leave


@KEYS.mutant("G7", "G9")
def who_is_cancelled_by_key_is_told_that_it_never_ran(patch: Patches) -> None:
    """The waiters of a key that is cancelled or forgotten hear that nothing started."""

    def end(self: Any, work: Any, arg: Any) -> None:
        tell = self._tell

        def never_ran(work: Any, answer: Any) -> None:
            tell(work, answer._replace(outcome=outcomes.key_cancelled(started=False)))

        self._tell = never_ran
        Works._close(self, work)
        del self._tell

    for input in (WorkInput.CANCEL, WorkInput.FORGET):
        patch.item(TABLE[input], WorkState.RUNNING, end)


KEYS.table(
    ("a-key-joins-another-input", "G6", (),
     "A caller with another input under a key waits for what was asked first.",
     cells(TABLE[WorkInput.CLASH], WITHOUT_OUTCOME, Works._join),
     cells(TABLE[WorkInput.CLASH], (WorkState.COMPLETED,), Works._replay)),
    ("a-generation-starts-beside-the-last", "G1", (),
     "A new generation of a key does not wait for the execution of the one before.",
     text(Works._open, "name in self.ending", "False"),
     text(Works._remove, "del self.ending[work.name],", "self.ending.pop(work.name, None); del")),
    ("nothing-is-retained", "G4", (),
     "The outcome of a key is dropped when the last who waited has it.",
     text(Works._who_waits, "elif work.outcome is not None", "elif False")),
    ("who-leaves-is-told-that-it-never-ran", "G7", (),
     "A cancel says that nothing started, whatever became of the key's work.",
     text(Works._cancel, "return started", "return started and ticket.key is None")),
    ("a-command-hits-any-generation", "G7", (),
     "A cancel or forget that names a generation ends whichever is open.",
     text(Works._command, "work.number != tag", "False")),
    ("orphans-are-never-given-up", "G8", (),
     "Work goes on counting for callers that never come back.",
     text(Works._timed, "now_s - work.since_s < most_s",
          "input is _I.ORPHANED or now_s - work.since_s < most_s")),
    ("what-is-issued-again-starts-anew", "G2", (),
     "After a lost session work starts again without consent.",
     text(Works._why_not_again, "self.environment.consents(ask.rerun)", "True")),
    ("a-lost-waiter-counts-no-more", "G7", (),
     "A waiter of a key whose lease ends is taken for one that leaves.",
     cells(TABLE[WorkInput.LOSE], OPEN, Works._leave)),
    ("a-cancel-drops-an-outcome", "G4", (),
     "A cancel by key that comes after the outcome drops that.",
     cells(TABLE[WorkInput.CANCEL], (WorkState.COMPLETED,), Works._close)),
    ("a-doubled-command-hits-the-next-generation", "G7", (),
     "A cancel or forget that comes again ends whatever is open by then.",
     text(Works._command, "elif command in self.commands", "elif False")),
    ("a-passed-deadline-cancels-the-work-of-a-key", "G7 G11", (),
     "Who waits for a key for a limited time takes its work along.",
     text(Works.expire, "_I.LOSE", "_I.LEAVE")),
    ("who-is-back-counts-twice", "G7 G8", (),
     "A caller that asks in a new session counts there, and in the old one as before.",
     text(Works._join, "work.lost -= {ticket.caller}", "pass"),
     text(Works._join, "self._replace(work, ticket)", "pass")),
    ("who-leaves-by-name-goes-on-counting", "G7 G11", (),
     "A caller that gives up what it asked in a lost session is told so, and counts on.",
     text(Works._quit, "work.lost -= {ticket.caller}", "pass")),
    ("who-leaves-by-name-is-taken-for-all", "G7", (),
     "When one caller leaves by name, the work of the key is cancelled for all.",
     text(Works._quit, "self._who_waits(work)",
          "work.outcome is None and self._close(work)")),
    ("attaching-counts-as-waiting", "G7 G8", (),
     "Work goes on for those who only attached, though nobody is left who asked for it.",
     text(Works._watch, "self._admit(arg[0])",
          "arg[0].counts = True; self._admit(arg[0])"),
     text(Works._watch, "self._seat(work, arg[0])",
          "self._seat(work, arg[0]); self._who_waits(work)")),
    ("what-was-answered-is-never-given-back", "G8", (),
     "A caller that has received the outcome of a key goes on being counted as holding it.",
     text(Works._forget, "self._let_go(kept.shared)", "pass")),
    ("a-waiter-is-counted-twice", "G7 G8", (),
     "A caller that joins work under way counts for two, and leaves once.",
     cells(TABLE[WorkInput.LEAVE], OPEN, lambda self, work, ticket:
           [each for each in work.tickets if each.counts][1:] == [ticket]
           or _LEAVE(self, work, ticket))),
    ("the-first-who-leaves-cancels", "G7", (),
     "The work of a key is cancelled by the first of two waiters that leaves.",
     cells(TABLE[WorkInput.LEAVE], WITHOUT_OUTCOME, lambda self, work, ticket:
           (_LEAVE(self, work, ticket), ticket.counts
            and work.state is not WorkState.CLOSED and self._close(work)))),
    ("retention-forgets-what-runs", "G4 G7", (),
     "The retention of a key begins when its work does.",
     text(Works._run, "work.live = True", "work.live = True; "
          "work.name is not None and work.wait_in(self.retained, self.clock.awake_s)"),
     cells(TABLE[WorkInput.OUTDATED], (WorkState.WAITING, WorkState.RUNNING), Works._close)),
    ("the-limit-of-one-ends-the-work-of-all", "G7", (),
     "When the deadline of one who waits for a key passes, the work is cancelled.",
     text(Works.expire, "work = ticket.work", "work = ticket.work; work is not None and "
          "work.name is not None and work.outcome is None and self._close(work)")),
)  # fmt: skip


# -- the journal: what is done before it is safe, and what a crash forgets ---------------------

JOURNAL = Family(ANY, needs=(FaultKind.JOURNAL,))


JOURNAL.table(
    ("dispatch-before-safe", "G11 G2", (),
     "An execution is sent to its worker before the record of its start is safe.",
     text(Works.dispatched, "return not is_durable", "return True")),
    ("tell-before-safe", "G11 G3", (),
     "The outcome of a key is told before its record is safe.",
     text(Works.tell, "if self.journal.on", "if not isinstance(answer, Told) and self.journal.on")),
    ("drop-before-safe", "G11 G7", (),
     "A key that is cancelled or forgotten is said to be gone before that is safe.",
     text(Works.tell, "if self.journal.on", "if isinstance(answer, Told) and self.journal.on"),
     text(Works.confirm, "waits and not self.gate.is_safe()", "False")),
    ("allowance-forgotten", "G2 G11", (),
     "A key may be run after a crash as often as was allowed at first.",
     text(Works._restore, "rerun, allowance, body,", "rerun, allowance + left.executions, body,")),
    ("executions-forgotten", "G11", (),
     "Executions of before a crash are taken off the allowance, and not counted.",
     text(Works._restore, "rerun, allowance, body,", "rerun, allowance - left.executions, body,"),
     text(Works._restore, "executions=left.executions", "executions=0"),
     text(Works._restore, "earlier=earlier", "earlier=left.executions")),
    ("answer-before-read", "G11 G3", (),
     "A caller is answered before the outcome is read from the disk.",
     text(Works._read, "self.out.append(Load(work.number))",
          "self.out.append(Load(work.number)); self.loaded(work.number, (messages.encode("
          "Outcome(bytes(ID_BYTES), 0, Status.RESULT, '', None, 1)), b''), '')")),
    ("rest-before-safe", "G11", (), "An outcome leaves memory before it is safe on the disk.",
     text(Works._may_rest, "and self.journal.is_safe(outcome.shared.after)", "")),
)  # fmt: skip


# -- saved states ------------------------------------------------------------------------------

SAVES = Family(("G4", "G5", "G8", "G9", "G11", "CRASH"), needs=(FaultKind.SAVES,))


@SAVES.mutant("G4", "G8", "G11")
def states_belong_to_names(patch: Patches) -> None:
    """A work begins with the state that an earlier one of its name has saved."""

    @patch.around(Works, "_save")
    def save(save: Any, self: Any, execution: Any, body: Any) -> Any:
        refused = save(self, execution, body)
        if not refused:
            self.__dict__.setdefault("states", {})[execution.work.name] = body
        return refused

    @patch.around(Works, "enter")
    def enter(enter: Any, self: Any, work: Any) -> None:
        state = self.__dict__.get("states", {}).get(work.name)
        if state is not None and work.name is not None and work.saved is None:
            work.save(state)
            work.weight += len(state)
        enter(self, work)


SAVES.table(
    ("a-worker-is-told-before-its-state-is-safe", "G11", (FaultKind.JOURNAL,),
     "A save is answered as soon as it has arrived.",
     text(Works.save, "self.journal.appended > appended", "False")),
    ("a-state-is-not-recorded", "G11", (FaultKind.JOURNAL,),
     "States are in memory only, whatever the journal is for.",
     text(Works._save, "if is_durable:\n", "if False:\n")),
    ("the-first-state-stays", "G4 G11", (),
     "A further save is answered, and the first one is kept.",
     text(Works._save, "work.save(body)", "work.save(work.saved or body)")),
    ("states-of-what-is-stopped-are-kept", "G11 G8 CRASH", (FaultKind.JOURNAL,),
     "What nobody waits for any more saves a state nevertheless.",
     text(Works._save, " or work.execution is not execution", "")),
    ("a-state-may-have-any-size", "G8", (),
     "The largest state is a matter of the worker.",
     text(Works._save, "size_bytes > most_bytes", "False")),
    ("a-state-counts-for-ever", "G8", (),
     "The bytes of a state count as held after it is dropped.",
     text(Works._save, "work.weight += more_bytes", "pass")),
)  # fmt: skip


# -- hosts and their leases --------------------------------------------------------------------

GRACES = Family(("G9",), needs=(FaultKind.GRACE,))
GRACES.table(
    ("late-is-never-told", "", (), "No dispatch says when its rollout is late.",
     text(Dispatches.send, "if execution.late_at is not None", "if False")),
    ("a-worker-keeps-it-to-itself", "", (), "No rollout is told that it is late.",
     text(WorkerCore._dispatch, "dispatch.late_s", "None")),
    ("late-is-told-at-the-end-of-the-grace", "", (),
     "A rollout is told when its limit ends it, and has no grace.",
     text(Router._late_at, "most_s - grace_s", "most_s")),
    ("a-rollout-is-told-too-early", "", (), "A rollout is told twice its grace before the end.",
     text(Router._late_at, "- grace_s", "- 2 * grace_s")),
    ("a-grace-is-of-executions-only", "", (),
     "The deadline of a request makes no rollout late.",
     text(Router._late_at, "if work.ends_at is not None", "if False")),
    ("waiting-makes-nobody-late", "", (),
     "The time until a deadline counts from the dispatch.",
     text(Router._late_at, "work.ends_at - self.clock.last_s",
          "work.ends_at - self.clock.last_s + (self.awake_s - work.queued_s)")),
    ("a-grace-is-forgotten-by-the-next-server", "", (FaultKind.JOURNAL,),
     "What a journal has left goes on with its limit, and without the grace of that.",
     text(Works._restore, "left.opened.grace_s", "None")),
)  # fmt: skip

LEASES = Family(("CRASH", "G1", "G2", "G9"), needs=(FaultKind.HOSTS,))
"""One mutant for each rule of hosts, and for what a router makes of them."""

_TAKE_BACK = router._INPUTS[WorkerBack]


@LEASES.mutant(needs=(FaultKind.JOURNAL, FaultKind.KILL_SERVER))
def a_successor_waits_by_its_own_limits(patch: Patches) -> None:
    """An earlier epoch is dead after what this router would wait."""

    @patch.around(Hosts, "found")
    def found(original: Any, self: Any, waits: Any, now_s: float) -> None:
        original(self, waits, now_s)
        earlier = self.leases.earlier
        earlier.until_s += self.leases.terms.wait_s - earlier.longest_s


@LEASES.mutant(needs=(FaultKind.JOURNAL, FaultKind.KILL_SERVER))
def a_successor_waits_for_each_epoch_by_its_own_words(patch: Patches) -> None:
    """Workers that one router took over from another die when the first says so."""

    def take_dead(self: Any, now_s: float) -> Any:
        since_s = self.until_s - self.longest_s
        dead = [e for e in self.waits if not e.memberships or now_s >= since_s + e.wait_s]
        self.waits = tuple(each for each in self.waits if each not in dead)
        return [each.epoch for each in dead]

    patch.attribute(EarlierEpochs, "take_dead", take_dead)


LEASES.table(
    ("counted-from-receipt", "", (),
     "An answer renews from when it has come, not from when its beat was read.",
     text(Host._answered, "before_s =", "answer.beat in self.lease._read and "
          "self.lease._read.update({answer.beat: boot_s}); before_s =")),
    ("numbers-used-again-after-a-reconnect", "", (),
     "The beats of each connection are numbered from one.",
     text(HostLease.hello, "self.hellos += 1",
          "self.hellos, self.beats, self.answered, self._read = self.hellos + 1, 0, 0, {}")),
    ("any-router-answers-a-beat", "", (FaultKind.JOURNAL, FaultKind.MANGLE),
     "A router that knows the membership, if only by a late hello, answers its beats.",
     text(Leases.beat, "(holding.membership, self.epoch) != (membership, beat.epoch)",
          "holding.membership != membership"),
     named(EarlierEpochs, "knows", lambda *_: False)),
    ("margin-fixed", "", (FaultKind.CUT_HOST,),
     "The margin is the guard's latency, however long the clocks may drift apart.",
     named(lease, "least_margin_s", lambda fence_s, drift, guard_s: guard_s)),
    ("no-margin", "", (FaultKind.CUT_HOST,), "The router waits for as long as the host.",
     named(LeaseTerms, "wait_s", property(lambda self: self.fence_s))),
    ("a-host-is-lost-before-its-lease-is-over", "", (FaultKind.CUT_HOST,),
     "The router waits for half as long as the host.",
     named(LeaseTerms, "wait_s", property(lambda self: self.fence_s / 2))),
    ("counted-from-what-was-confirmed", "", (FaultKind.CUT_HOST_UP,),
     "The router counts from the last beat whose answer is known to have arrived.",
     text(Leases.beat, "holding.received_s = holding.received[beat.number] = now_s",
          "holding.received[beat.number], holding.received_s = now_s, holding.confirmed_s")),
    ("a-host-that-hears-nothing-is-answered-for-ever", "", (FaultKind.CUT_HOST_DOWN,),
     "Where only the router's direction is cut, the host is never lost.",
     text(Leases.beat, "now_s - answered_s >= self.terms.wait_s", "False")),
    ("two-hosts-with-one-id", "", (FaultKind.COPY_HOST,),
     "A hello of another membership proves that the one before has ended.",
     text(Leases.hello, "holding.membership not in ended", "False")),
    ("a-late-hello-says-that-nothing-runs", "", (FaultKind.JOURNAL, FaultKind.MANGLE),
     "A hello that names no router proves that its membership has no workers.",
     text(Leases.hello, "accounted_for(continues)", "accounted_for([*continues, membership])"),
     named(EarlierEpochs, "knows", lambda *_: False)),
    ("what-a-lost-host-ran-is-forgotten", "G9 G8 G1", (FaultKind.CUT_HOST,),
     "Its workers are not said to have ended.",
     text(Hosts._gone, "for worker in sorted(host.workers)", "for worker in ()")),
    ("the-silence-of-a-host-is-that-of-its-workers", "G9", (FaultKind.NO_LEASE, FaultKind.CUT_HOST),
     "All time counts against a worker, also that in which nothing of it could come.",
     named(Life, "counted_s", lambda self, since_s, now_s: now_s - since_s)),
    ("a-clock-that-stands-still-in-sleep", "", (FaultKind.SLEEP_HOST,),
     "Beats and the guard's timer are on CLOCK_MONOTONIC.",
     named(guard, "TIMER_CLOCK", time.CLOCK_MONOTONIC)),
    ("the-guard-looks-at-the-clock-itself", "", (FaultKind.STOP_MACHINE,),
     "The timer's signal is one that the guard acts on: a stopped guard misses it.",
     named(guard, "TIMER_SIGNAL", signal.SIGTERM)),
    ("the-guard-is-told-for-how-long", "", (FaultKind.STOP_GUARD, FaultKind.CUT_HOST),
     "The guard is told how much time is left: a stopped one counts it from when it reads.",
     named(guard, "TIMER_FLAGS", 0)),
    ("a-worker-starts-before-the-first-answer", "", (),
     "A host that is welcome gets work, and starts it.",
     named(Leases, "is_fresh", lambda *_: True),
     text(HostLease.holds, "self.deadline_s is not None and boot_s < self.deadline_s",
          "(self.deadline_s is None or boot_s < self.deadline_s)"),
     named(guard, "may_start", lambda armed: True)),
    ("an-end-is-said-before-it-has-come", "", (),
     "A host that tells a worker anything says that it has ended.",
     text(Host._item, "self.out.append(TellWorker(worker, item.frames))",
          "self.exited(worker, 'it ends soon')")),
    ("nothing-is-sent-again", "G9", (FaultKind.RECONNECT_HOST,),
     "What a cut between a host and its router has taken is gone.",
     named(Outbox, "again", lambda self: None)),
    ("a-membership-is-kept-with-another-router", "", (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "The next router renews what runs under the one before.",
     text(Leases.hello, "self.earlier.accounted_for(ended)",
          "with_epoch, continues, to = b'', (), b''; self.earlier.accounted_for(ended)"),
     text(HostLease.welcomed, 'self.epoch not in (b"", epoch)', "False")),
    ("a-successor-writes-down-itself-alone", "", (FaultKind.KILL_SERVER,),
     "Of two routers before, only the last one is known.",
     named(EarlierEpochs, "record", lambda self, own, now_s: (own,))),
    ("a-router-begins-while-the-hosts-of-the-one-before-live", "", (FaultKind.KILL_SERVER,),
     "It has the lock of its machine, and waits for nobody else.",
     text(EarlierEpochs.have_ended, "are_over or now_s >= self.until_s", "True")),
    ("a-host-is-welcomed-before-it-is-written-down", "", (FaultKind.KILL_SERVER,),
     "A successor knows of no host, and so waits for none.",
     text(Leases.own, "in self.holdings.values()", "in ()")),
    ("what-goes-on-is-counted-by-the-limits-of-the-new-router-alone", "",
     (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "A host that was taken over is dead when its new router would have it so.",
     text(Leases._dead_at_s, "max(holding.seen_at + wait_s, holding.not_before_s)",
          "holding.seen_at + wait_s")),
    ("unknown-work-is-not-stopped", "", (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "Work that a host has brought, and the journal does not know, is not heard of.",
     cells(router._INPUTS, (WorkerBack,),
           lambda self, back: _TAKE_BACK(self, back._replace(running=[])))),
    ("what-is-not-known-runs-on", "", (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "Nobody stops it, and the router before is taken for dead.",
     named(Dispatches, "stop_unknown", lambda self, worker, numbers, now_s: None)),
    ("work-of-keys-begins-before-all-hosts-are-back", "",
     (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "It begins though an earlier generation may run on one of them.",
     text(Router._pool_opened, "self.works.earlier_lives = bool(live)",
          "self.works.earlier_lives = False")),
    ("a-router-is-written-off-while-its-work-is-stopped", "",
     (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "All of its hosts are back: so the next router is told nothing of it.",
     text(EarlierEpochs.record, "(*self.waits, own)",
          "(*(each for each in self.waits if each.memberships), own)")),
    ("renewed-by-anything-heard", "", (),
     "A host holds its lease for as long as it hears the router.",
     text(Host.message, "self._boot_s = boot_s", "self._boot_s, lease = boot_s, self.lease\n    "
          "if lease.epoch and lease.holds(boot_s): lease.deadline_s = boot_s + lease.fence_s; "
          "self.out.append(SetDeadline(lease.deadline_s))")),
    ("silence-is-proof-without-a-lease", "G1", (FaultKind.NO_LEASE, FaultKind.CUT_HOST),
     "A host silent for three seconds is taken for dead, though it promised nothing.",
     text(vars(LeaseTerms)["wait_s"].fget, "if self.margin_s is not None",
          "if not self.proves: return 3.0\n    if self.margin_s is not None")),
    ("the-next-membership-begins-over-living-workers", "", (FaultKind.KILL_SERVER,),
     "A host joins another router before its workers have ended.",
     text(Host._go_on, "lease = self.lease", "lives = dict(self._lives)\n    if self.lease.over: "
          "self._ending = ''; self._begin(); self._lives |= lives; self.connect()"
          "\n    lease = self.lease")),
    ("what-runs-is-said-before-the-membership-begins", "CRASH G1 G2",
     (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "A host leaves out what its router had sent last when it says what runs.",
     text(Host._go_over, "life.seen.flat(),", "Ranges([*life.seen][:-1]).flat(),"),
     text(Host._go_over, "sorted(life.running)", "sorted({*life.running} - {*[*life.seen][-1:]})")),
)  # fmt: skip


# -- permits -----------------------------------------------------------------------------------

PERMITS = Family(("G12", "G8", "G9"), needs=(FaultKind.PERMITS,))
"""One mutant for each rule of permits."""

_OVER = FaultKind.HOSTS, FaultKind.JOURNAL, FaultKind.KILL_SERVER

PERMITS.table(
    ("one-more-permit-than-the-limit-is-granted", "G12", (),
     "A permit is granted while as many are held as may be.",
     text(Permits._of_limit, "line.held < line.limits[0]", "line.held <= line.limits[0]")),
    ("the-largest-limit-counts", "G12", (),
     "Where limits of a name differ, whoever has stated less finds more company.",
     text(Permits._of_limit, "line.limits[0]", "line.limits[-1]")),
    ("a-permit-comes-back-at-the-stop", "G12 G8", (FaultKind.IGNORE_CANCEL,),
     "An execution that is told to stop gives its permits back, and goes on.",
     text(Dispatches.stop, "execution.worker.abandon(execution, now_s)",
          "execution.worker.abandon(execution, now_s); self.permits.end(execution)")),
    ("a-dead-worker-keeps-its-permits", "G8 G9", (FaultKind.KILL_WORKER,),
     "What a dead worker has held is never held by anybody else.",
     text(Dispatches.end, "if execution.claims is not None:", "if False:")),
    ("a-dead-claim-is-granted", "G8 G9 CRASH", (FaultKind.KILL_WORKER,),
     "A claim whose worker is dead stays in its line, and gets the next permit.",
     text(Permits._drop, "del line.waiting[claim]", "pass")),
    ("a-silent-worker-has-no-permits", "G12", (FaultKind.STOP_WORKER,),
     "What a worker holds that is to be killed is granted to others at once.",
     text(Workforce.refresh, "self.turnover.refresh(now_s)",
          "self.turnover.refresh(now_s)\n    for worker in self.workers.values():\n        "
          "if self.pool.lives[worker.id].leaving:\n            for execution in "
          "worker.live.values(): self.dispatches.permits.end(execution)")),
    ("held-permits-are-forgotten-at-the-takeover", "G12", _OVER,
     "A router grants permits before the workers that it takes over say what they hold.",
     text(Permits.grant, "if paused or self.unstated", "if paused")),
    ("a-held-permit-waits-again-at-the-takeover", "G12", _OVER,
     "A worker that a router takes over claims anew what it holds.",
     text(Permits.claim, "self._hold(made)", "pass")),
    ("claims-are-not-made-again-at-the-takeover", "G12 G8 G9", _OVER,
     "A worker does not tell another router of its claims.",
     named(OpenClaims, "again", lambda self: [])),
    ("permits-are-granted-before-all-hosts-are-back", "G12", _OVER,
     "A router grants permits that a host may hold of which it does not know.",
     text(Router._schedule, "paused=works.earlier_lives", "paused=False")),
    ("grants-of-a-rate-come-together", "G12", (),
     "A rate is a limit of nothing.",
     text(Permits._of_rate, "1 / line.limits[0]", "1e-6")),
    ("a-rate-that-waits-is-not-looked-at", "G8 G9", (),
     "Claims of a rate that are not due when they are made wait for the next one.",
     named(Permits, "_look", lambda self, line, at_s: None)),
)  # fmt: skip


# -- resources ---------------------------------------------------------------------------------

RESOURCES = Family(("G13", "G8", "G9"), needs=(FaultKind.RESOURCES,))
"""One mutant for each rule of resources."""

RESOURCES.table(
    ("a-stopped-execution-loses-its-resources", "G13", (),
     "The resources of an execution that is told to stop are destroyed while it goes on.",
     text(Dispatches.stop, "execution.worker.abandon(execution, now_s)",
          "execution.worker.abandon(execution, now_s); self.resources.end(execution, now_s)")),
    ("what-an-execution-leaves-is-left", "G13 G8", (),
     "Nobody destroys the resources that an execution has at its end.",
     text(Dispatches.give_back, "self.resources.end(execution, self._clock.awake_s)", "pass")),
    ("the-cleanings-of-a-dead-worker-die-with-it", "G13 G8", (FaultKind.KILL_WORKER,),
     "The cleanings of a dead worker are given to nobody else.",
     text(Dispatches.lost, "self.resources.lost(worker, self._clock.awake_s)", "pass")),
    ("a-cleaning-that-hangs-is-given-to-another", "G13", (),
     "A slow destroy counts as ended.",
     text(Resources.overdue, "resource.is_overdue = True",
          "self._release(resource, now_s); continue")),
    ("an-outcome-overtakes-the-end-of-a-resource", "G13", (FaultKind.LOSE,),
     "A worker sends an outcome before the router knows the end of its resources.",
     named(OpenResources, "waits", lambda self, execution: False)),
    ("what-is-open-is-not-said-again-at-the-takeover", "G13 G8 G9", _OVER,
     "A worker does not tell another router what that before has not answered.",
     named(OpenResources, "again", lambda self: ())),
    ("a-cleaning-runs-as-often-as-it-arrives", "G13", _OVER,
     "A worker begins a destroy that it is doing already.",
     named(OpenResources, "clean", lambda self, clean: True)),
    ("a-name-is-told-before-it-is-safe", "G13", (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "A resource is created before its record is on the disk.",
     text(Resources._answer, "self._journal.is_safe(after)", "True")),
    ("what-is-given-is-not-written-down", "G13 G8", _OVER,
     "A router that takes workers over does not know their cleanings.",
     text(Resources._give, "self._journal.append(", "(lambda *record: None)(")),
    ("resources-are-given-before-the-proof", "G13", _OVER,
     "A router destroys the resources of executions that live on.",
     text(Resources.restore, "if each.incarnation:", "if False:")),
    ("a-journal-forgets-resources", "G13", (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "The next server does not read the resources that the last one has left.",
     text(Router._restored, "self.resources.restore(", "(lambda left, now_s: None)(")),
    ("what-the-dead-held-stays-theirs", "G13 G8", (FaultKind.JOURNAL, FaultKind.KILL_SERVER),
     "Resources of dead workers of an earlier server are given to nobody.",
     text(Router._earlier_dead, "self.resources.earlier_dead(self.awake_s)", "pass")),
    ("what-is-stuck-is-dropped", "G13", (),
     "A resource that cannot be destroyed counts as gone.",
     text(Resources._fail, "self.stuck[resource] = None", "self._remove(resource); return")),
    ("a-resource-of-a-host-is-given-to-any", "G13", (FaultKind.HOSTS, FaultKind.KILL_WORKER),
     "A worker of another machine is to destroy what it cannot find.",
     text(Resources.give, "if host in (None, each.host)", "")),
    ("one-more-resource-than-may-be", "G8", (),
     "A resource is created when the bound is already reached.",
     text(Resources._refusal, "count >= most", "count > most")),
)  # fmt: skip


# -- what a router and its worker know ---------------------------------------------------------

DIFFERENCES = Family(("G1",))
"""One mutant for each way in which a router and its worker may disagree: a beat shows it."""

DIFFERENCES.table(
    ("a-worker-loses-a-dispatch", "", (), "A worker overlooks every third dispatch.",
     text(WorkerCore._dispatch, "number = dispatch.number",
          "number = dispatch.number\n    if number % 3 == 2: return []")),
    ("a-worker-names-what-it-was-not-told", "", (),
     "A worker names each third dispatch by another number.",
     text(WorkerCore._beat, "*self._held]", "*self._held, "
          "*(n + (1 << 20) for n in self.running if n % 3 == 2)]")),
    ("a-worker-names-what-is-over", "", (), "A worker takes what has ended for live.",
     text(WorkerCore._outcome_made, "self.running.pop(number)", "self.running[number]")),
    ("a-worker-drops-an-outcome", "", (), "A worker forgets to send each third outcome.",
     text(WorkerCore._outcome_made, "return [message]",
          "return [message] if number % 3 < 2 else []")),
    ("an-announcement-does-not-leave-its-worker", "", (),
     "What a worker says of an outcome that it holds is lost.",
     text(WorkerCore.take, "return effects", "return [each for each in effects if "
          "type(getattr(each, 'message', None)) is not messages.Announced]")),
    ("an-announced-outcome-is-dropped", "", (),
     "A worker announces an outcome, and has it no more when it is asked for.",
     text(WorkerCore._outcome_made, "self._held[number] =", "dropped =")),
    ("a-fetched-outcome-is-held-on", "", (), "A worker holds what it has sent.",
     text(WorkerCore._fetch, "self._held.pop(number)", "self._held[number]")),
    ("an-unwanted-outcome-is-held-on", "", (),
     "A worker does not drop the outcomes that its router does not want.",
     text(WorkerCore._fetch, "elif number not in unwanted:", "else:")),
    ("nobody-says-what-is-unwanted", "", (),
     "The router forgets an announced outcome, and its worker holds it for ever.",
     named(Dispatches, "unwanted", lambda self, worker, number: None)),
    ("a-worker-counts-a-message-twice", "", (), "A worker counts more messages than it was told.",
     text(WorkerCore._message, "self.received += len(rows)", "self.received += 2 * len(rows)")),
    ("the-router-loses-a-dispatch", "", (), "The router numbers a dispatch, and never sends it.",
     text(Dispatches.send, "self.out.append(worker.tell(dispatch, body))",
          "told = worker.tell(dispatch, body)\n"
          "    if execution.number % 3 < 2: self.out.append(told)")),
    ("the-router-does-not-count", "", (), "The router does not know how much it has told.",
     text(executions.Worker.tell, "self.sent += 1", "pass")),
    ("what-is-stopped-counts-as-over", "G1 G7 G8 G2", (),
     "The router forgets an execution that it has told to stop.",
     text(Dispatches.stop, "execution.worker.abandon(execution, now_s)",
          "execution.is_wanted = False; self.end(execution)")),
    ("the-count-goes-on-at-the-takeover", "", _OVER,
     "A worker counts the messages of both routers together.",
     text(WorkerCore._go_over, "self.epoch, self.received, self.sent = epoch, 0, 0",
          "self.epoch, self.sent = epoch, 0")),
    ("what-goes-on-is-not-known-at-the-takeover", "", _OVER,
     "A router does not take in what runs on a worker that it takes over.",
     text(Router._worker_back, "execution.sent_at = 0", "execution.sent_at = 1 << 60")),
)  # fmt: skip


FAMILIES = (
    WORKS, ROUTER, WORKERS, CLIENT, BATCHES, KEYS, JOURNAL, SAVES, GRACES, LEASES, PERMITS,
    RESOURCES, DIFFERENCES,
)  # fmt: skip

MUTANTS: tuple[Mutant, ...] = tuple(mutant for family in FAMILIES for mutant in family.mutants)
"""All of them; their names are unique."""


def find(name: str) -> Mutant:
    """The mutant of this name.  KeyError with the near names if there is none."""
    return find_in(MUTANTS, name)
