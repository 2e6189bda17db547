"""The judge of a simulated run: knows what happened, not what the cores believe.

Theory of operation
-------------------
The judge reads three things: what callers asked and were told; the log that
environment code writes as it starts and ends, with the deaths of processes;
and what passes on the wires (:mod:`.judge_wires`, :mod:`.judge_health`,
:mod:`.judge_closing`).  It never
reads the cores' counters or tables; only :func:`~.bounds.audit` looks at sizes,
for the bounds.

Everything that contradicts a guarantee is a :class:`~..kit.violation.Violation`: a line that
begins with the guarantee's number.  A run goes on after a violation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core import error_records
from ...core.errors import ErrorInfo
from ...core.limits import CAPACITY
from ...core.terms import RequestId, Status, Verdict
from .judge_closing import Closings
from .judge_keys_work import label_of
from .judge_records import Call, Execution

if TYPE_CHECKING:
    from ...retrylab.world import Process
    from .plan import Plan


class Judge(Closings):
    """Collects what happened and compares it with the guarantees."""

    def __init__(
        self, clock: Callable[[], float], note: Callable[[str, str], None], plan: Plan
    ) -> None:
        super().__init__(clock, note, plan)
        self._at_once: dict[Process, list[Execution]] = {}

    # -- callers --------------------------------------------------------------

    def asked(self, call: Call) -> None:
        """A caller has asked."""
        self.calls[call.key] = call

    def cancelled(self, key: str) -> None:
        """The caller wants no outcome any more."""
        self.calls[key].cancelled_s = self.clock()

    def received(self, key: str) -> None:
        """The caller has the outcome in hands."""
        self.calls[key].received = True

    def answered(self, key: str, status: Status, body: bytes) -> None:
        """The caller was given an outcome."""
        call = self.calls[key]
        if call.use is not None:
            self.keys.runs.answered(call, status, body)
        if status is Status.RESULT:
            self._told(call, "result", None)
            own = call.use is None
            if own and not any(e.payload == body for e in call.executions if e.ended_s is not None):
                text = f"{key} was given a result that none of its executions gave"
                self.violation("G3", text, key)
        else:
            info = error_records.decode(body)
            self._told(call, f"{status.name.lower()} {info.code}", info.verdict)
        self._kept_until_received(call, body)

    def failed(self, key: str, info: ErrorInfo) -> None:
        """The call has ended without an outcome."""
        call = self.calls[key]
        self._told(call, f"fail {info.code}", info.verdict)
        gave_up = info.code in ("no-answer", "never-started", "server-unreachable")
        if gave_up and call.limit_s is None:  # no fault lasts as long as a client waits
            self.violation("G9", f"{key} was given up: {info.code}, {info.message}", key)
        if info.code == "server-lost" and call.use is None:
            self._session_kept(call)
        self._kept_until_received(call, None)

    def _told(self, call: Call, what: str, verdict: Verdict | None) -> None:
        self.note(call.client, f"{call.key} is told: {what} ({verdict and verdict.value})")
        if call.told:
            text = f"{call.key} was told twice: {call.told}, then {what}"
            self.violation("G9", text, call.key)
        call.told, call.told_s, call.verdict = what, self.clock(), verdict
        self._true(call)

    def _true(self, call: Call) -> None:
        """The verdict must be true, now and for ever."""
        if call.use is not None:
            self.keys.runs.true(call)
            return
        starts = len(call.executions)
        if call.verdict is Verdict.DID_NOT_RUN and starts:
            text = f"{call.key}: {call.told} says it did not run; starts: {starts}"
            self.violation("G9", text, call.key)
        if call.verdict is Verdict.RAN_AND_FAILED and not starts:
            text = f"{call.key}: {call.told} says that it ran, and it did not"
            self.violation("G9", text, call.key)

    def _kept_until_received(self, call: Call, body: bytes | None) -> None:
        """G4: what has ended is not forgotten, nor replaced by something else."""
        if call.use is not None:
            gone = call.cancelled_s is not None or call.client in self.gone_clients
            self.keys.kept(call, body, excused=gone or self._out_of_time(call))
            return
        if not call.executions:
            return
        last = call.executions[-1]
        if last.ended_s is None or last.cancelled or last.payload == body:
            return
        if len(last.payload) > self.plan.message_bytes:
            return  # the client could not receive it, and is told so
        if not (last.delivered or (last.worker.alive and last.server.alive)):
            return
        excused = (
            not last.server.alive
            or last.server in self.draining
            or call.cancelled_s is not None
            or self._out_of_time(call)
            or call.client in self.gone_clients
            or self.unheard(last.request.session)
        )
        if not excused:
            text = f"{call.key} had ended ({last.status!r}) and was told {call.told}"
            self.violation("G4", text, call.key)

    def _session_kept(self, call: Call) -> None:
        """G4: a session is not forgotten before its lease has ended."""
        session = self.asked_in.get(call.key, b"")
        server, _ = self.sessions.get(session, (None, ""))
        if server is None or not server.alive or server in self.draining:
            return
        excused = call.client in self.gone_clients or self._out_of_time(call)
        # A call that an earlier server may have run is told so, too, when this one cannot.
        excused = excused or server in self.broken
        if not excused and not self.unheard(session):
            text = f"{call.key}: its session was forgotten within its lease"
            self.violation("G4", text, call.key)

    def _out_of_time(self, call: Call) -> bool:
        """Whether the caller's limit has passed."""
        return call.limit_s is not None and self.clock() - call.asked_s >= call.limit_s - 0.1

    # -- the environment's log and the processes' deaths ------------------------

    def started(
        self, key: str, worker: Process, server: Process, request: RequestId, number: int
    ) -> Execution:
        """Environment code begins."""
        execution = Execution(key, worker, server, request, number, self.clock())
        call = self.calls.get(key)
        if call is None:  # a hostile client's
            call = Call(key, "hostile", False, 1, None, self.clock(), honest=False)
            self.calls[key] = call
        if label_of(key):
            self.keys.runs.started(call, execution)
            self.keys.work.started(execution)
        else:
            self._once(call, execution)
        home = self.sessions.get(request.session)
        if label_of(key):
            if (worker, number) not in self.dispatched:
                self.violation("G5", f"{key} starts on a worker that was not given it", key)
        elif home is None or home[0] is not server:
            self.violation("G5", f"{key} starts on a worker of another epoch", key)
        if (worker, number) in self.stopped:
            self.violation("G7", f"{key} starts though its worker was told not to", key)
        for names in (self.first, self.started_as):
            if names.get(request, key) != key:
                text = f"{request} starts as {key}, was {names[request]} before"
                self.violation("G6", text, key)
        self.started_as.setdefault(request, key)
        if call.told:
            self._true(call)
        self.by_dispatch[worker, number] = execution
        at_once = self._at_once.setdefault(worker, [])
        at_once[:] = [each for each in at_once if each.live()] + [execution]
        if len(at_once) > (self.plan.server.worker_capacity or CAPACITY):
            self.violation("G8", f"{worker.name} runs {len(at_once)} executions at once", key)
        return execution

    def _once(self, call: Call, execution: Execution) -> None:
        """G1 and G2: one at a time, and no more than were consented to."""
        key = call.key
        for earlier in call.executions:
            if earlier.live():
                text = f"{key} starts and is live since {earlier.started_s:.3f}"
                self.violation("G1", text, key)
            elif earlier.worker.alive and earlier.request == execution.request:
                self.violation("G2", f"{key} starts again, and its worker had not died", key)
        call.executions.append(execution)
        starts = len(call.executions)
        if starts > 1 and not call.consent:
            self.violation("G2", f"{key} starts for the {starts}. time without consent", key)
        elif starts > call.most:
            text = f"{key} starts for the {starts}. time, {call.most} allowed"
            self.violation("G2", text, key)

    def ended(self, execution: Execution, status: Status, payload: bytes) -> None:
        """Environment code is over and its worker has its outcome."""
        execution.ended_s = self.clock()
        execution.status, execution.payload = status, payload
        if label_of(execution.key):
            self.keys.runs.ended(execution)

    # -- at the end -----------------------------------------------------------

    def end(self, holdups: list[str]) -> None:
        """The run is over; ``holdups`` says what has not come to rest."""
        for call in self.calls.values():
            waits = call.honest and not call.told and call.cancelled_s is None
            if waits and call.client not in self.gone_clients:
                self.violation("G9", f"{call.key} was never told anything", call.key)
            if any(execution.live() for execution in call.executions):
                self.violation("G7", f"{call.key} still runs", call.key)
        for holdup in holdups:
            self.violation("G8", holdup)
