"""The server's spans: one for each rollout, and one for each of its executions.

Theory of operation
-------------------
:class:`Traces` stands between the shell and the router (or the tape of a recording) and
looks at what goes by: the core knows nothing of spans.  It is there only if this process
keeps traces when the server is opened, and it changes one field of some messages:

- A request that enters gets the traceparent of its *rollout* span, in the place of its
  caller's.  Whoever sends it again changes nothing (:mod:`~trio_envserve.core.messages`).
- A dispatch gets that of its *execution* span, which is below the one that it carries.  The
  worker's spans are below that.  A dispatch that is sent again has the same one.

A rollout's span ends with the first transmission of its outcome, an execution's with the
report of its worker, or with the proof of that one's death.  What ends without any of these
(a cancelled request, a lease) is found by looking through the open spans.  Of rollouts there
may be many: so a tick looks at some of them, and each that enters at two.  Then those that
are over and were not found yet are never more than those that are open (G8), and no turn
ends more than :data:`ENDED_AT_ONCE` (G10).

Headers are peeked at in the form in which this project writes them.  A client that writes
the same header in another form is served as well, and has no span here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from .. import tracing
from ..core import messages
from ..core.errors import ProtocolError
from ..core.key_records import KeyAct
from ..core.requests import RequestState
from ..core.router import Router
from ..core.router_effects import Closed, Lost, RouterEffect, ToClient, ToWorker
from ..core.router_inputs import ClientMessage, RouterInput, Tick, WorkerMessage
from ..core.terms import Body, RequestId, Status

SWEEP_S: Final = 1.0
"""The executions are looked through so often.  Workers have places for so many only."""

LOOKED_AT: Final = 2048
"""Rollouts at which a tick looks."""

ENDED_AT_ONCE: Final = 256
"""Spans of rollouts that it ends: each goes through processors that are not ours."""

_REQUESTS: Final = b"\x01", b"\x07"
"""The second byte of a Request and of a KeyedRequest."""
_OUTCOME: Final = b"\x11"
_DISPATCH: Final = b"\x86\x18\x50"
"""How a Dispatch with a traceparent begins."""
_WORKER_OUTCOME: Final = b"\x18\x43"


@final
class Traces:
    """The open spans of one server."""

    def __init__(
        self, router: Router, take: Callable[[RouterInput], list[RouterEffect]], environment: str
    ) -> None:
        self._router = router
        """Only read here."""
        self._take = take
        self._environment = environment
        self._rollouts: dict[RequestId, tracing.Span] = {}
        self._in_turn: deque[RequestId] = deque()
        """Those, and some that have ended, in the order in which they are looked at."""
        self._executions: dict[bytes, dict[int, tracing.Span]] = {}
        """By worker and number."""
        self._sweep_at_s = 0.0

    def take(self, given: RouterInput) -> list[RouterEffect]:
        """Hand an input on; gives what the router gives, with spans."""
        entering: tuple[RequestId, tracing.Span] | None = None
        if isinstance(given, ClientMessage):
            given, entering = self._entering(given)
        effects = self._take(given)
        if entering is not None:
            request, span = entering
            if self._state(request) is not RequestState.NOT_SEEN:
                self._rollouts[request] = span  # else it was refused, and no span has been
                self._in_turn.append(request)
                self._look_at(2, 2)
        if isinstance(given, WorkerMessage):
            self._reported(given)
        for index, effect in enumerate(effects):
            if isinstance(effect, ToWorker):
                effects[index] = self._dispatched(effect)
            elif isinstance(effect, ToClient):
                self._answered(effect.frames[0])
            elif isinstance(effect, Lost):
                for span in self._executions.pop(effect.worker, {}).values():
                    span.end(error=f"worker lost: {effect.why}")
            elif isinstance(effect, Closed):
                self.close()
        if isinstance(given, Tick):
            self._look_at(LOOKED_AT, ENDED_AT_ONCE)
            if given.now_s >= self._sweep_at_s:
                self._sweep_at_s = given.now_s + SWEEP_S
                self._sweep()
        return effects

    def close(self) -> None:
        """End what is open: the server has ended."""
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
    ) -> tuple[ClientMessage, tuple[RequestId, tracing.Span] | None]:
        """A request that may enter, with the traceparent of its span."""
        route, frames, now_s = given
        if len(frames) != 2 or bytes(frames[0][1:2]) not in _REQUESTS:
            return given, None
        try:
            message = messages.decode(frames[0], most_bytes=self._router.wire.header_bytes)
        except ProtocolError:  # the router says so
            return given, None
        if not isinstance(message, messages.Request | messages.KeyedRequest):
            return given, None
        if isinstance(message, messages.KeyedRequest) and message.act != KeyAct.ASK:
            return given, None
        request = RequestId(message.session, message.sequence)
        parent = message.traceparent
        if parent is not None and not tracing.is_sampled(parent):
            return given, None
        if self._state(request) is not RequestState.NOT_SEEN:
            return given, None
        client = self._router.cache.sessions[message.session].name
        span = tracing.begin(
            "rollout", parent, "SERVER",
            {
                "envserve.request": str(request), "envserve.client": client,
                "envserve.environment": self._environment,
            },
        )  # fmt: skip
        if span is None or not span.is_kept:
            return given, None
        header = messages.encode(message._replace(traceparent=span.traceparent))
        return ClientMessage(route, (header, *frames[1:]), now_s), (request, span)

    def _state(self, request: RequestId) -> RequestState:
        """Where a request stands; FINISHED, too, in a session that is not known."""
        session = self._router.cache.sessions.get(request.session)
        return RequestState.FINISHED if session is None else session.state(request.sequence)

    def _answered(self, header: Body) -> None:
        if not self._rollouts or bytes(header[1:2]) != _OUTCOME:
            return
        outcome = messages.decode(header, most_bytes=len(header))
        assert isinstance(outcome, messages.Outcome)
        span = self._rollouts.pop(RequestId(outcome.session, outcome.sequence), None)
        if span is not None:
            _end(span, outcome.status, {"envserve.executions": outcome.executions})

    # -- executions -------------------------------------------------------------

    def _dispatched(self, effect: ToWorker) -> ToWorker:
        incarnation, header, *body = effect.frames
        if bytes(header[:3]) != _DISPATCH:
            return effect
        dispatch = messages.decode(header, most_bytes=len(header))
        assert isinstance(dispatch, messages.Dispatch)
        assert dispatch.traceparent is not None
        if not tracing.is_sampled(dispatch.traceparent):
            return effect
        of_worker = self._executions.setdefault(effect.worker, {})
        span = of_worker.get(dispatch.number)
        if span is None:
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
            of_worker[dispatch.number] = span
        header = messages.encode(dispatch._replace(traceparent=span.traceparent))
        return ToWorker(effect.worker, (incarnation, header, *body))

    def _reported(self, given: WorkerMessage) -> None:
        """A worker has said something, and the router has taken it in."""
        frames = given.frames
        of_worker = self._executions.get(bytes(frames[0])) if len(frames) == 5 else None
        if not of_worker or bytes(frames[3][1:3]) != _WORKER_OUTCOME:
            return
        try:
            outcome = messages.decode(frames[3], most_bytes=self._router.wire.header_bytes)
        except ProtocolError:
            return
        if not isinstance(outcome, messages.WorkerOutcome) or outcome.number not in of_worker:
            return
        if not self._lives(bytes(frames[0]), outcome.number):  # else the message was fenced
            _end(of_worker.pop(outcome.number), outcome.status)

    def _lives(self, worker: bytes, number: int) -> bool:
        known = self._router.workforce.workers.get(worker)
        return known is not None and number in known.live

    # -- what ends in silence -----------------------------------------------------

    def _look_at(self, count: int, most_ended: int) -> None:
        """Look at the next of the rollouts, and end the spans of those that are over."""
        ended = 0
        for _ in range(min(count, len(self._in_turn))):
            request = self._in_turn.popleft()
            if request not in self._rollouts:
                continue  # it was answered
            if self._state(request) in (RequestState.FINISHED, RequestState.NOT_SEEN):
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
