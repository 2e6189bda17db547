"""The judge of a simulated run: knows what happened, not what the cores believe.

Theory of operation
-------------------
The judge reads three things: what callers asked and were told; the log that
environment code writes as it starts and ends, with the deaths of processes;
and what passes on the wires.  It never reads the cores' counters or tables;
only :func:`audit` looks at sizes, for the bounds.

Everything that contradicts a guarantee is a violation: a line that begins
with the guarantee's number.  A run goes on after a violation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...core import messages
from ...core.errors import ErrorInfo, ProtocolError
from ...core.ranges import Ranges
from ...core.terms import Body, RequestId, Status, Verdict

if TYPE_CHECKING:
    from .network import Process


@dataclasses.dataclass(slots=True, eq=False)
class Execution:
    """What the environment's log says of one execution."""

    key: str
    worker: Process
    server: Process
    request: RequestId
    number: int
    started_s: float
    ended_s: float | None = None
    status: Status | None = None
    payload: bytes = b""
    halted: bool = False
    delivered: bool = False
    """Its outcome has arrived at its router, before its worker was declared lost."""

    def live(self) -> bool:
        """From its start to its end, or to the death of its process."""
        return self.ended_s is None and self.worker.alive


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """What a caller asked, and was told."""

    key: str
    client: str
    consent: bool
    most: int
    limit_s: float | None
    asked_s: float
    honest: bool = True
    cancelled_s: float | None = None
    told: str = ""
    told_s: float = 0.0
    verdict: Verdict | None = None
    executions: list[Execution] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class _Hearing:
    """When a server last heard a client, and how much the server had slept then."""

    at_s: float
    slept_s: float


def _key(body: Body) -> str:
    """The unique name of a call, which is the beginning of its body."""
    return bytes(body).partition(b"|")[0].decode()


class Judge:
    """Collects what happened and compares it with the guarantees."""

    def __init__(self, clock: Callable[[], float], note: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._note = note
        self.violations: list[str] = []
        self.calls: dict[str, Call] = {}
        self.lease_s = 0.0
        self.draining: set[Process] = set()
        """Servers that were asked to stop."""
        self.gone_clients: dict[str, float] = {}
        """Clients that were killed or closed, and when."""
        self._sessions: dict[bytes, tuple[Process, str]] = {}
        self._first: dict[RequestId, str] = {}
        """The first body under each id that was not refused for now."""
        self._asked_in: dict[str, bytes] = {}
        """The session in which a server last took in a request of this key."""
        self._payloads: dict[RequestId, str] = {}
        """The body that was started under each id."""
        self._outcomes: dict[RequestId, tuple[bytes, ...]] = {}
        self._finished: dict[bytes, Ranges] = {}
        self._heard: dict[bytes, _Hearing] = {}
        """By session: a late message of an earlier one does not count."""
        self._silent: set[bytes] = set()
        """Sessions that were once unheard for a lease."""
        self._stopped: set[tuple[Process, int]] = set()
        self._lost: set[Process] = set()
        self._dispatched: set[tuple[Process, int]] = set()
        self.leaving: set[Process] = set()
        """Workers that were told to exit, are to be killed, or were reaped."""
        self._by_dispatch: dict[tuple[Process, int], Execution] = {}

    def violation(self, guarantee: str, text: str) -> None:
        """A guarantee does not hold."""
        line = f"{guarantee} at {self._clock():.3f} s: {text}"
        self.violations.append(line)
        self._note("VIOLATION", line)

    # -- callers --------------------------------------------------------------

    def asked(self, call: Call) -> None:
        """A caller has asked."""
        self.calls[call.key] = call

    def cancelled(self, key: str) -> None:
        """The caller wants no outcome any more."""
        self.calls[key].cancelled_s = self._clock()

    def answered(self, key: str, status: Status, body: bytes) -> None:
        """The caller was given an outcome."""
        call = self.calls[key]
        if status is Status.RESULT:
            self._told(call, "result", None)
            if not any(e.payload == body for e in call.executions if e.ended_s is not None):
                self.violation("G3", f"{key} was given a result that none of its executions gave")
        else:
            info = messages.decode_error(body)
            self._told(call, f"{status.name.lower()} {info.code}", info.verdict)
        self._kept_until_received(call, body)

    def failed(self, key: str, info: ErrorInfo) -> None:
        """The call has ended without an outcome."""
        call = self.calls[key]
        self._told(call, f"fail {info.code}", info.verdict)
        gave_up = info.code in ("no-answer", "never-started", "server-unreachable")
        if gave_up and call.limit_s is None:  # no fault lasts as long as a client waits
            self.violation("G9", f"{key} was given up: {info.code}, {info.message}")
        if info.code == "server-lost":
            self._session_kept(call)
        self._kept_until_received(call, None)

    def _told(self, call: Call, what: str, verdict: Verdict | None) -> None:
        self._note(call.client, f"{call.key} is told: {what} ({verdict and verdict.value})")
        if call.told:
            self.violation("G9", f"{call.key} was told twice: {call.told}, then {what}")
        call.told, call.told_s, call.verdict = what, self._clock(), verdict
        self._true(call)

    def _true(self, call: Call) -> None:
        """The verdict must be true, now and for ever."""
        starts = len(call.executions)
        if call.verdict is Verdict.DID_NOT_RUN and starts:
            self.violation("G9", f"{call.key}: {call.told} says it did not run; starts: {starts}")
        if call.verdict is Verdict.RAN_AND_FAILED and not starts:
            self.violation("G9", f"{call.key}: {call.told} says that it ran, and it did not")

    def _kept_until_received(self, call: Call, body: bytes | None) -> None:
        """G4: what has ended is not forgotten, nor replaced by something else."""
        if not call.executions:
            return
        last = call.executions[-1]
        if last.ended_s is None or last.halted or last.payload == body:
            return
        if not (last.delivered or (last.worker.alive and last.server.alive)):
            return
        excused = (
            not last.server.alive
            or last.server in self.draining
            or call.cancelled_s is not None
            or self._out_of_time(call)
            or call.client in self.gone_clients
            or self._unheard(last.request.session)
        )
        if not excused:
            self.violation("G4", f"{call.key} had ended ({last.status!r}) and was told {call.told}")

    def _session_kept(self, call: Call) -> None:
        """G4: a session is not forgotten before its lease has ended."""
        session = self._asked_in.get(call.key, b"")
        server, _ = self._sessions.get(session, (None, ""))
        if server is None or not server.alive or server in self.draining:
            return
        excused = call.client in self.gone_clients or self._out_of_time(call)
        if not excused and not self._unheard(session):
            self.violation("G4", f"{call.key}: its session was forgotten within its lease")

    def _out_of_time(self, call: Call) -> bool:
        """Whether the caller's limit has passed."""
        return call.limit_s is not None and self._clock() - call.asked_s >= call.limit_s - 0.1

    def _unheard(self, session: bytes) -> bool:
        """Whether the session's lease may have ended: then it is over for all its calls."""
        self._compare(session)
        return session in self._silent

    # -- the environment's log and the processes' deaths ------------------------

    def started(
        self, key: str, worker: Process, server: Process, request: RequestId, number: int
    ) -> Execution:
        """Environment code begins."""
        execution = Execution(key, worker, server, request, number, self._clock())
        call = self.calls.get(key)
        if call is None:  # a hostile client's
            call = Call(key, "hostile", False, 1, None, self._clock(), honest=False)
            self.calls[key] = call
        for earlier in call.executions:
            if earlier.live():
                self.violation("G1", f"{key} starts and is live since {earlier.started_s:.3f}")
            elif earlier.worker.alive and earlier.request == request:
                self.violation("G2", f"{key} starts again, and its worker had not died")
        call.executions.append(execution)
        starts = len(call.executions)
        if starts > 1 and not call.consent:
            self.violation("G2", f"{key} starts for the {starts}. time without consent")
        elif starts > call.most:
            self.violation("G2", f"{key} starts for the {starts}. time, {call.most} allowed")
        home = self._sessions.get(request.session)
        if home is None or home[0] is not server:
            self.violation("G5", f"{key} starts on a worker of another epoch")
        if (worker, number) in self._stopped:
            self.violation("G7", f"{key} starts though its worker was told not to")
        if self._first.get(request, key) != key:
            self.violation("G6", f"{request} starts as {key}, was {self._first[request]} before")
        if self._payloads.setdefault(request, key) != key:
            self.violation("G6", f"{request} starts as {key} and as {self._payloads[request]}")
        if call.told:
            self._true(call)
        self._by_dispatch[worker, number] = execution
        return execution

    def ended(self, execution: Execution, status: Status, payload: bytes) -> None:
        """Environment code is over and its worker has its outcome."""
        execution.ended_s = self._clock()
        execution.status, execution.payload = status, payload

    # -- the wires ------------------------------------------------------------

    def server_heard(self, server: Process, client: str, frames: Sequence[Body]) -> None:
        """A server has dealt with a client's message."""
        try:
            message = messages.decode(frames[0] if frames else b"", most_bytes=1 << 20)
        except ProtocolError:
            return
        session = getattr(message, "session", None)
        if session is None or self._sessions.get(session, (None, ""))[0] is not server:
            return
        self._compare(session)
        self._heard[session] = _Hearing(self._clock(), server.held_s)
        if isinstance(message, messages.Request):
            request = RequestId(message.session, message.sequence)
            key = self._first.setdefault(request, _key(frames[1]))
            self._asked_in[key] = session
            return
        if client == "hostile":
            return  # a server may ignore what it states; what it is promised counts
        finished = self._finished.setdefault(session, Ranges())
        match message:
            case messages.Finish():
                finished.update(Ranges.from_flat(message.finished))
            case messages.Cancel():
                finished.add(message.sequence)
            case messages.Sync():
                for span in Ranges.from_flat(message.pending).gaps(message.next):
                    finished.add_span(*span)
            case messages.Goodbye():
                finished.add_span(0, 1 << 40)

    def _compare(self, session: bytes) -> None:
        """Remember a silence that may have ended the session's lease."""
        last = self._heard.get(session)
        if last is None:
            return
        slept_s = self._sessions[session][0].held_s - last.slept_s
        silence_s = self._clock() - last.at_s - slept_s
        if silence_s >= self.lease_s - (1.6 if slept_s else 0.6):
            self._silent.add(session)

    def server_told_client(self, server: Process, client: str, frames: Sequence[Body]) -> None:
        """A server sends to a client."""
        message = messages.decode(frames[0], most_bytes=1 << 20)
        if isinstance(message, messages.Welcome):
            self._sessions[message.session] = (server, client)
            self._heard.setdefault(message.session, _Hearing(self._clock(), server.held_s))
        elif isinstance(message, messages.Outcome):
            request = RequestId(message.session, message.sequence)
            sent = tuple(map(bytes, frames))
            if self._outcomes.setdefault(request, sent) != sent:
                self.violation("G3", f"{request}: two outcomes that differ")
            self._from_the_last(request, sent)
        elif isinstance(message, messages.Refused) and message.delay_s is not None:
            self._first.pop(RequestId(message.session, message.sequence), None)
        elif isinstance(message, messages.Unknown) and message.gone:
            self._promised_gone(message.session)
        elif isinstance(message, messages.Cancelled) and not message.started:
            self._promised_not_to_run(RequestId(message.session, message.sequence))

    def _promised_not_to_run(self, request: RequestId) -> None:
        """The server says that it never ran and never will."""
        self._finished.setdefault(request.session, Ranges()).add(request.sequence)
        if request in self._payloads:
            self.violation("G9", f"{request} is said not to have started, and it had")

    def _promised_gone(self, session: bytes) -> None:
        """The server says that nothing of this session runs any more."""
        for call in self.calls.values():
            if any(e.request.session == session and e.live() for e in call.executions):
                self.violation("G1", f"{call.key} runs, and its session is said to be gone")

    def _from_the_last(self, request: RequestId, sent: tuple[bytes, ...]) -> None:
        """G5: a result is never that of an execution that was proven over before."""
        call = self.calls.get(self._payloads.get(request, ""))
        if call is None or not call.executions:
            return
        *earlier, last = call.executions
        if any(e.payload == sent[1] for e in earlier) and last.request == request:
            self.violation("G5", f"{call.key}: the outcome is of an execution before the last")

    def server_told_worker(self, worker: Process, frames: Sequence[Body]) -> None:
        """A server sends to a worker."""
        dispatch = messages.decode(frames[1], most_bytes=1 << 20)
        if isinstance(dispatch, messages.Retire):
            self.leaving.add(worker)
        if not isinstance(dispatch, messages.Dispatch):
            return
        if worker in self.leaving and (worker, dispatch.number) not in self._dispatched:
            self.violation("G2", f"an execution is spent on {worker.name}, which is to end")
        self._dispatched.add((worker, dispatch.number))
        if dispatch.sequence in self._finished.get(dispatch.session, ()):
            request = RequestId(dispatch.session, dispatch.sequence)
            self.violation("G7", f"{request} is dispatched after it was finished")

    def worker_heard(self, worker: Process, frames: Sequence[Body]) -> None:
        """A worker has dealt with a message of its router."""
        if len(frames) == 2:
            message = messages.decode(frames[1], most_bytes=1 << 20)
            if isinstance(message, messages.Stop):
                self._stopped.update((worker, n) for n in Ranges.from_flat(message.numbers))

    def outcome_arrived(self, worker: Process, frames: Sequence[Body]) -> None:
        """An outcome has arrived at the worker's own router."""
        if len(frames) != 4 or worker in self._lost:
            return
        message = messages.decode(frames[2], most_bytes=1 << 20)
        if isinstance(message, messages.WorkerOutcome):
            execution = self._by_dispatch.get((worker, message.number))
            if execution is not None:
                execution.delivered = True

    def declared_lost(self, worker: Process) -> None:
        """The router takes the worker's executions for ended."""
        self._lost.add(worker)
        if worker.alive:
            self.violation("G1", f"{worker.name} is declared lost and lives")

    # -- at the end -----------------------------------------------------------

    def end(self, holdups: list[str]) -> None:
        """The run is over; ``holdups`` says what has not come to rest."""
        for call in self.calls.values():
            waits = call.honest and not call.told and call.cancelled_s is None
            if waits and call.client not in self.gone_clients:
                self.violation("G9", f"{call.key} was never told anything")
            if any(execution.live() for execution in call.executions):
                self.violation("G7", f"{call.key} still runs")
        for holdup in holdups:
            self.violation("G8", holdup)
