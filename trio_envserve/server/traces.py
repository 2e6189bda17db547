"""The server's spans: one for each rollout, and one for each of its executions.

Theory of operation
-------------------
:class:`Traces` stands between the shell and the router (or the tape of a recording), and reads the
inputs and effects that pass: the core knows nothing of spans.  A server has it only if its process
keeps traces when the server is opened.  It changes one field of some messages:

- A new request gets the traceparent of its *rollout* span instead of its caller's.  A
  retransmission changes nothing (:mod:`~trio_envserve.core.messages`).
- A dispatch gets the traceparent of its *execution* span, which is below the span of its request.
  The worker's spans are below that.

A rollout's span ends with the first transmission of its outcome, an execution's with the report of
its worker, or with the proof of that one's death.  Spans that end without any of these (after a
cancel, or a lease) are found by looking through the open spans.  There may be many rollouts: so a
tick looks at some of them, and each new request at two.  By that, spans that are over and not found
yet are never more than the open ones (G8), and no turn ends more than :data:`ENDED_AT_ONCE` (G10).

Headers are recognised in the form in which this project writes them.  A client that writes an equal
header in another form is served, but has no spans here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

from .. import tracing
from ..core import messages
from ..core.errors import ProtocolError
from ..core.router import Router
from ..core.router_effects import ClosingOver, Lost, RouterEffect, ToClient, ToWorker
from ..core.router_inputs import ClientMessage, HostMessage, RouterInput, Tick, WorkerMessage
from ..core.terms import RequestId, Status

SWEEP_S: Final = 1.0
"""Pause between two looks through all executions, whose number the workers' capacity bounds."""

LOOKED_AT: Final = 2048
"""Number of rollouts at which a tick looks."""

ENDED_AT_ONCE: Final = 256
"""Most spans of rollouts that a tick ends: each goes through processors of other authors."""

_REQUEST: Final = b"\x01"
"""The second byte of a Request."""
_WORKER_OUTCOME: Final = b"\x18\x43"


@final
class Traces:
    """The open spans of one server."""

    def __init__(
        self, router: Router, take: Callable[[RouterInput], list[RouterEffect]], environment: str
    ) -> None:
        self._router = router
        """Read only."""
        self._take = take
        self._environment = environment
        self._rollouts: dict[RequestId, tracing.Span] = {}
        self._in_turn: deque[RequestId] = deque()
        """Requests with open spans, and some whose spans have ended, in the order of the checks."""
        self._executions: dict[bytes, dict[int, tracing.Span]] = {}
        """Open spans of executions, by worker and number."""
        self._sweep_at_s = 0.0
        if router.hosts is not None:
            router.hosts.mark = self._dispatched

    def take(self, given: RouterInput) -> list[RouterEffect]:
        """Pass an input on to the router; returns the effects, with spans."""
        entering: list[tuple[RequestId, tracing.Span]] = []
        more: list[ClientMessage] = []
        if isinstance(given, ClientMessage):
            (given, *more), entering = self._entering(given)
        effects = self._take(given)
        for each in more:
            effects += self._take(each)
        for request, span in entering:
            if self._has_seen(request):
                self._rollouts[request] = span  # of a refused request the span is dropped
                self._in_turn.append(request)
                self._look_at(2, 2)
        if isinstance(given, WorkerMessage):
            self._reported(given)
        elif isinstance(given, HostMessage):
            for follows in self._router.followed:
                if isinstance(follows, WorkerMessage):
                    self._reported(follows)
        for index, effect in enumerate(effects):
            if isinstance(effect, ToWorker):
                effects[index] = self._dispatched(effect)
            elif isinstance(effect, ToClient):
                self._answered(effect.message)
            elif isinstance(effect, Lost):
                for span in self._executions.pop(effect.worker, {}).values():
                    span.end(error=f"worker lost: {effect.why}")
            elif isinstance(effect, ClosingOver):
                self.close()
        if isinstance(given, Tick):
            self._look_at(LOOKED_AT, ENDED_AT_ONCE)
            if given.now_s >= self._sweep_at_s:
                self._sweep_at_s = given.now_s + SWEEP_S
                self._sweep()
        return effects

    def close(self) -> None:
        """End all open spans: the server has ended."""
        for span in self._rollouts.values():
            span.end(error="the server has ended")
        for of_worker in self._executions.values():
            for span in of_worker.values():
                span.end(error="the server has ended")
        self._rollouts.clear()
        self._in_turn.clear()
        self._executions.clear()

    # -- rollouts ---------------------------------------------------------------

    def _entering(
        self, given: ClientMessage
    ) -> tuple[list[ClientMessage], list[tuple[RequestId, tracing.Span]]]:
        """Requests that may enter, with the traceparents of their spans.  A batch larger than this
        project's own is split into several."""
        route, frames, now_s = given
        if len(frames) != 2 or bytes(frames[0][1:2]) != _REQUEST:
            return [given], []
        try:
            rows = messages.read(frames, most_bytes=self._router.wire.header_bytes)
        except ProtocolError:  # the router reports it
            return [given], []
        entering: dict[RequestId, tracing.Span] = {}
        changed: list[messages.MessageRow] = []
        for message, body in rows:
            changed.append((self._below_span(message, entering), body))
        if not entering:
            return [given], []
        batches = messages.in_batches(changed)
        return [ClientMessage(route, each, now_s) for each in batches], list(entering.items())

    def _below_span(self, message: Any, entering: dict[RequestId, tracing.Span]) -> Any:
        """A request that may enter, with the traceparent of its own span; else unchanged."""
        if not isinstance(message, messages.Request) or message.act:  # of a key, and no ask
            return message
        request = RequestId(message.session, message.sequence)
        parent = message.traceparent
        if parent is not None and not tracing.is_sampled(parent):
            return message
        if request in entering or self._has_seen(request):
            return message
        client = self._router.sessions.known[message.session].name
        span = tracing.begin(
            "rollout", parent, "SERVER",
            {
                "envserve.request": str(request), "envserve.client": client,
                "envserve.environment": self._environment,
            },
        )  # fmt: skip
        if span is None or not span.is_kept:
            return message
        entering[request] = span
        return message._replace(traceparent=span.traceparent)

    def _has_seen(self, request: RequestId) -> bool:
        """Whether a request was entered before; True as well for an unknown session."""
        session = self._router.sessions.known.get(request.session)
        return session is None or session.has_seen(request.sequence)

    def _is_unfinished(self, request: RequestId) -> bool:
        session = self._router.sessions.known.get(request.session)
        return session is not None and request.sequence in session.tickets

    def _answered(self, outcome: Any) -> None:
        if not self._rollouts or not isinstance(outcome, messages.Outcome):
            return
        span = self._rollouts.pop(RequestId(outcome.session, outcome.sequence), None)
        if span is not None:
            _end(span, outcome.status, {"envserve.executions": outcome.executions})

    # -- executions -------------------------------------------------------------

    def _dispatched(self, effect: ToWorker) -> ToWorker:
        dispatch = effect.message
        if not isinstance(dispatch, messages.Dispatch) or dispatch.traceparent is None:
            return effect
        if not tracing.is_sampled(dispatch.traceparent):
            return effect
        span = tracing.begin(
            "execution", dispatch.traceparent,
            attributes={
                "envserve.request": str(RequestId(dispatch.session, dispatch.sequence)),
                "envserve.worker": effect.worker.decode("ascii", "replace"),
                "envserve.dispatch": dispatch.number,
            },
        )  # fmt: skip
        if span is None or not span.is_kept:
            return effect
        self._executions.setdefault(effect.worker, {})[dispatch.number] = span
        return effect._replace(message=dispatch._replace(traceparent=span.traceparent))

    def _reported(self, given: WorkerMessage) -> None:
        """End the spans of the executions that a worker's message has ended, by the router's
        state."""
        frames = given.frames
        of_worker = self._executions.get(bytes(frames[0])) if len(frames) == 5 else None
        if not of_worker or bytes(frames[3][1:3]) != _WORKER_OUTCOME:
            return
        try:
            rows = messages.read(frames[3:], most_bytes=self._router.wire.header_bytes)
        except ProtocolError:
            return
        for outcome, _ in rows:
            if not isinstance(outcome, messages.WorkerOutcome) or outcome.number not in of_worker:
                continue
            if not self._lives(bytes(frames[0]), outcome.number):  # else it was fenced
                _end(of_worker.pop(outcome.number), outcome.status)

    def _lives(self, worker: bytes, number: int) -> bool:
        known = self._router.workforce.workers.get(worker)
        return known is not None and number in known.live

    # -- spans that end without a message -----------------------------------------

    def _look_at(self, count: int, most_ended: int) -> None:
        """Look at the next of the rollouts, and end the spans of those that are over."""
        ended = 0
        for _ in range(min(count, len(self._in_turn))):
            request = self._in_turn.popleft()
            if request not in self._rollouts:
                continue  # it was answered
            if not self._is_unfinished(request):
                self._rollouts.pop(request).end({"envserve.cancelled": True})
                ended += 1
                if ended == most_ended:
                    return
            else:
                self._in_turn.append(request)

    def _sweep(self) -> None:
        for worker, of_worker in list(self._executions.items()):
            for number, span in list(of_worker.items()):
                if not self._lives(worker, number):
                    del of_worker[number]
                    span.end({"envserve.cancelled": True})


def _end(span: tracing.Span, status: int, attributes: tracing.Attributes | None = None) -> None:
    if status == Status.CANCELLED:
        span.end({**(attributes or {}), "envserve.cancelled": True})
    else:
        span.end(attributes, error=None if status == Status.RESULT else "the outcome is an error")
