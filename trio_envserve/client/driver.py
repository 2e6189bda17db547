"""The driver of a client's core: its messages, its clock, and the callers that wait.

Theory of operation
-------------------
:class:`~trio_envserve.core.client.ClientCore` decides; the driver moves its messages
and tells its callers.  Its tasks are the receiver, the clock, and the one that carries
out the effects of calls.  It does so in the next turn of the loop, so requests of the
same turn go out together.  The request of a lone call goes out at once.

The callers of a door come and go with their connections, and come back for what they have asked
for; but the server cancels the work of a key that its last waiter leaves.  So a door *shares* its
calls with keys: one that asks the same on the same terms as one that has not ended is no further
call, but another caller of that.  A shared call ends with its outcome, not with its callers: what
nobody waits for is received unread, and the server retains it under its key.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias, final

import trio

from .. import tracing
from ..core import messages, notes
from ..core.client import (
    Answer,
    CallsCancelled,
    CallSubmitted,
    ClientClosed,
    ClientCore,
    ClientEffect,
    ClientInput,
    ClientTick,
    Connected,
    Disconnected,
    Fail,
    OutcomeReceived,
    PassDelta,
    PassNote,
    QueriesRefused,
    QueryAnswered,
    Reconnect,
    ServerMessage,
    Terms,
    ToServer,
    info,
)
from ..core.errors import NeverStarted, ServerNotReady
from ..core.health import Health, ServerHealth
from ..core.key_records import KeyAct, KeyName
from ..core.notes import Note
from ..core.router_effects import Report
from ..core.terms import Body, SentBody, Status, Verdict
from ..net import ConnectionEvent, DealerSocket

_log = logging.getLogger("trio_envserve.client")
_LEVELS = logging.getLevelNamesMapping()

_TROUBLE = {
    ConnectionEvent.DISCONNECTED: "the connection to {} was lost",
    ConnectionEvent.REFUSED: "nothing listens at {} (is the server started, is the address right?)",
    ConnectionEvent.NAME_UNKNOWN: "the name of the host in {} is not known (is it spelt right?)",
    ConnectionEvent.HANDSHAKE_FAILED: "what listens at {} does not speak ZeroMQ",
}

Ended: TypeAlias = Answer | Fail
"""The end of a call."""

OnDelta: TypeAlias = Callable[[int, Body], None]
"""Is told the number and the bytes of each delta of a call that arrives."""

OnNote: TypeAlias = Callable[[Note], object]
"""Is told the last note of a call, at most about once a second."""


@dataclasses.dataclass(slots=True, eq=False)
class _Caller:
    """A caller that waits for the end of a call."""

    ended: Callable[[Ended], None]
    on_delta: OnDelta | None
    on_note: OnNote | None
    span: tracing.Span | None


@final
class _Asked:
    """A query that was not answered yet."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.answer: Body | None = None
        self.refused = ""
        """The reason why the server takes none."""


Hold: TypeAlias = Callable[[], ExitStack]
"""Bounds of its callers that a shared call takes until it has ended; called when it is made."""

_NEVER = NeverStarted.code
_FORGOTTEN = info("cancelled", Verdict.MAY_HAVE_RUN, "its key was forgotten")
_DELETED = info(
    "key-deleted", Verdict.DID_NOT_RUN, "its key was deleted before anything was started"
)


@dataclasses.dataclass(slots=True, eq=False)
class SharedCall:
    """A call for which several callers may wait, and which goes on when none does."""

    name: KeyName
    terms: Terms
    held: ExitStack
    number: int = -1
    waiting: list[Callable[[Ended], None]] = dataclasses.field(default_factory=list)
    """Told of its end: one for each caller."""
    has_ended: bool = False


@final
class Driver:
    """The driver of a client core: its connection, and the callers of its calls."""

    def __init__(self, core: ClientCore, address: str) -> None:
        self.core = core
        self.address = address
        self._socket: DealerSocket | None = None
        self._effects: list[ClientEffect] = []
        """Effects that were not carried out yet, in order."""
        self._cancelled: list[int] = []
        """Calls of which the core does not know that they are cancelled."""
        self._next_call = 0
        self._waiting: dict[int, _Caller] = {}
        """Callers of calls that have not ended, by the number of the call."""
        self.keeps_spans = True
        """Whether calls have spans, if this process keeps traces."""
        self._shared: dict[Terms, SharedCall] = {}
        """Shared calls that have not ended, and whose key was not forgotten."""
        self._forgotten: list[SharedCall] = []
        """Shared calls that have not ended, and whose key was forgotten."""
        self._asked: dict[int, _Asked] = {}
        self._next_ask = 0
        self.changed = trio.lowlevel.ParkingLot()
        """Woken whenever something was carried out."""
        self._poke = trio.Event()
        self._wake_at_s = 0.0
        self._asked_of_core = trio.Event()
        """Set when a call has changed the core, and its effects are not carried out yet."""
        self._logged = Health.STARTING

    # -- calls ----------------------------------------------------------------

    def submit(
        self, body: SentBody, now_s: float, terms: Terms, ended: Callable[[Ended], None],
        on_delta: OnDelta | None = None, on_note: OnNote | None = None,
    ) -> int:  # fmt: skip
        """Make a call, and return its number.  ``ended`` is called once, when it has
        ended, which may be at once; not any more after :meth:`cancel`."""
        number, self._next_call = self._next_call, self._next_call + 1
        span = _begin_call(terms) if self.keeps_spans else None
        if span is not None:
            terms = terms._replace(traceparent=span.traceparent)
        self._give(CallSubmitted(number, body, now_s, terms))
        self._waiting[number] = _Caller(ended, on_delta, on_note, span)
        if len(self._waiting) > 1 and not self.core.closed:
            self._asked_of_core.set()
        else:
            self.carry_out()  # a lone call; or the task that would do it has ended
        return number

    def cancel(self, numbers: Collection[int]) -> None:
        """Cancel calls.  The server is told of all that are cancelled in one turn of the loop by
        one message."""
        for number in numbers:
            caller = self._waiting.pop(number, None)
            if caller is not None and caller.span is not None:
                caller.span.end({"envserve.cancelled": True})
        self._cancelled += numbers
        if self._waiting and not self.core.closed:
            self._asked_of_core.set()
        else:
            self.carry_out()  # as for a lone call

    # -- shared calls ---------------------------------------------------------

    def shared(self, terms: Terms) -> SharedCall | None:
        """The call on these terms.  The digest of its input is a part of them."""
        return self._shared.get(terms._replace(traceparent=None))

    def share(
        self, body: SentBody, now_s: float, terms: Terms, ended: Callable[[Ended], None],
        hold: Hold,
    ) -> SharedCall:  # fmt: skip
        """Like :meth:`submit`, for another caller of the call on these terms; it is made if there
        is none.  Whoever leaves it takes ``ended`` out of those that wait."""
        call = self.shared(terms)
        if call is not None:
            call.waiting.append(ended)
            return call
        assert terms.key is not None
        call = SharedCall(terms.key.name, terms._replace(traceparent=None), hold(), waiting=[ended])
        self._shared[call.terms] = call
        call.number = self.submit(body, now_s, terms, partial(self._end_shared, call))
        return call

    def forget(self, name: KeyName) -> list[SharedCall]:
        """The shared calls of a key that is to be forgotten, perhaps once more.  Whoever asks from
        now on makes another."""
        if name not in self.core.calls.asking:
            return []
        for call in [call for call in self._shared.values() if call.name == name]:
            self._forgotten.append(self._shared.pop(call.terms))
        return [call for call in self._forgotten if call.name == name]

    def end(self, call: SharedCall) -> None:
        """End a shared call whose key was forgotten."""
        self.cancel((call.number,))
        self._end_shared(call, Fail(call.number, _FORGOTTEN))

    def _end_shared(self, call: SharedCall, ended: Ended) -> None:
        call.has_ended = True
        call.held.close()
        if call not in self._forgotten:
            del self._shared[call.terms]
        else:
            self._forgotten.remove(call)
            if isinstance(ended, Answer) and (error := ended.error) and error.code == _NEVER:
                ended = ended._replace(error=_DELETED)
        if not call.waiting:
            self.received(ended)
        for each in call.waiting:
            each(ended)

    # -- outcomes ---------------------------------------------------------------

    def received(self, ended: Ended) -> None:
        """The caller has the outcome in hands, or nobody is left to take it.  Of several callers
        the first one counts."""
        if isinstance(ended, Fail) or ended.call not in self.core.calls.live:
            return
        self._give(OutcomeReceived(ended.call, trio.current_time()))
        if self._effects or self.core.wake_at_s() < self._wake_at_s:
            self._asked_of_core.set()

    def close(self) -> None:
        """End pending calls now, and tell the server."""
        self._give(ClientClosed(trio.current_time()))
        self.carry_out()

    # -- health and statistics ------------------------------------------------

    def health(self) -> ServerHealth:
        """Health of the server, as far as this client knows."""
        return ServerHealth(*self.core.link.health(trio.current_time()))

    async def ask(
        self, about: str, limit_s: float, *, first: int | None = None,
        namespace: bytes | None = None,
    ) -> Body:  # fmt: skip
        """The server's answer to a :class:`~.messages.Query`, encoded.  ServerNotReady without
        one, and at once if it is refused as malformed."""
        probe, self._next_ask = self._next_ask, self._next_ask + 1
        message = messages.Query(probe, about, first, namespace)
        asked = self._asked[probe] = _Asked()
        try:
            with trio.move_on_after(limit_s):
                while asked.answer is None:
                    if self.core.closed:
                        raise ServerNotReady("the client was closed")
                    if asked.refused:
                        raise ServerNotReady(asked.refused)
                    if self._socket is not None:
                        self._socket.send_nowait((messages.encode(message),))
                    with trio.move_on_after(self.core.limits.ping_s):
                        await asked.ended.wait()
        finally:
            del self._asked[probe]
        if asked.answer is None:
            raise ServerNotReady(f"no answer after {limit_s:g} s: {self.health().reason}")
        return asked.answer

    # -- tasks ----------------------------------------------------------------

    def start(self, socket: DealerSocket, nursery: trio.Nursery) -> None:
        """Run in this nursery, with this connection."""
        self._socket = socket
        nursery.start_soon(self._receive, socket)
        nursery.start_soon(self._keep_time)
        nursery.start_soon(self._serve_calls)

    async def _receive(self, socket: DealerSocket) -> None:
        while True:
            batch = await socket.receive()
            now_s = trio.current_time()
            for frames in batch:
                self._give(ServerMessage(frames, now_s))
            self.carry_out()

    async def _serve_calls(self) -> None:
        """Carry out the effects of calls, all of one turn of the loop at once."""
        while True:
            await self._asked_of_core.wait()
            if self._asked_of_core.is_set():  # else another task has done it meanwhile
                self.carry_out()

    async def _keep_time(self) -> None:
        while True:
            self._poke = trio.Event()
            self._wake_at_s = self.core.wake_at_s()
            at_s = max(self._wake_at_s, trio.current_time() + 0.001)
            with trio.move_on_at(at_s) as scope:
                await self._poke.wait()
            if scope.cancelled_caught:
                now_s = trio.current_time()
                self._give(ClientTick(now_s, now_s - at_s))
                self.carry_out()

    def connection(self, event: ConnectionEvent) -> None:
        """The connection was made, or has ended."""
        now_s = trio.current_time()
        if event is ConnectionEvent.CONNECTED:
            self._give(Connected(now_s))
        else:
            trouble = _TROUBLE[event].format(self.address)
            if event is ConnectionEvent.HANDSHAKE_FAILED:
                # A socket of another kind knows no reason.
                why = getattr(self._socket, "why_refused", "")
                trouble = (
                    f"{self.address} answers, but the handshake failed: {why}" if why else trouble
                )
            self._give(Disconnected(now_s, trouble))
        self.carry_out()

    # -- effects --------------------------------------------------------------

    def _give(self, given: ClientInput) -> None:
        """An input to the core.  What was cancelled before it comes first, so that it
        sends none of that."""
        if self._cancelled:
            self._give_cancelled()
        self._effects += self.core.take(given)

    def _give_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        self._effects += self.core.take(CallsCancelled(cancelled, trio.current_time()))

    def carry_out(self) -> None:
        """Do what the core says, in order, before anything else happens."""
        if self._asked_of_core.is_set():
            self._asked_of_core = trio.Event()
        if self._cancelled:
            self._give_cancelled()
        effects, self._effects = self._effects, []
        sent: list[messages.ToSay] = []
        for effect in effects:
            match effect:
                case ToServer():
                    sent.append(effect)
                case Answer() | Fail():
                    caller = self._waiting.pop(effect.call, None)
                    if caller is not None:
                        if caller.span is not None:
                            _end_span(caller.span, effect)
                        caller.ended(effect)
                case PassDelta(call, delta, body):
                    caller = self._waiting.get(call)
                    if caller is not None and caller.on_delta is not None:
                        caller.on_delta(delta, body)
                case PassNote(call, note):
                    self._noted(call, note)
                case QueryAnswered(probe, body):
                    asked = self._asked.get(probe)
                    if asked is not None:
                        asked.answer = body
                        asked.ended.set()
                case QueriesRefused(text):
                    for asked in self._asked.values():
                        asked.refused = text
                        asked.ended.set()
                case Reconnect():
                    if self._socket is not None:
                        self._socket.reconnect()
                case Report(level, text):
                    _log.log(_LEVELS[level.upper()], "%s: %s", self.address, text)
        if sent and self._socket is not None:
            # A message that is not sent is not lost: the next sync repairs it.
            self._socket.send_many_nowait(list(messages.in_batches(sent)))
        self._report_health()
        if self.core.wake_at_s() < self._wake_at_s:
            self._poke.set()
        if self.changed:
            self.changed.unpark_all()

    def _noted(self, call: int, note: bytes) -> None:
        caller = self._waiting.get(call)
        if caller is not None and caller.on_note is not None:
            try:
                caller.on_note(notes.decode(note))
            except Exception:  # it is the caller's code, and must not end the client of others
                caller.on_note = None
                _log.exception("on_note has failed, and hears no more of this call")

    def _report_health(self) -> None:
        health, why = self.core.link.health(trio.current_time())
        if health is not self._logged:
            self._logged = health
            if health is Health.UNHEALTHY:
                _log.warning("%s: unhealthy: %s", self.address, why)
            else:
                _log.info("%s: %s", self.address, health.value)


def _begin_call(terms: Terms) -> tracing.Span | None:
    """The span of a call that runs something, below the current one of its caller; None if
    this process keeps no traces, or the caller says where it belongs."""
    if terms.traceparent is not None or tracing.tracer() is None:
        return None
    if terms.key is not None and terms.key.act is not KeyAct.ASK:
        return None
    return tracing.begin_here("call", "CLIENT")


def _end_span(span: tracing.Span, ended: Ended) -> None:
    if isinstance(ended, Fail):
        span.end(error=ended.info.code)
        return
    failed = ended.status is not Status.RESULT
    span.end(
        {"envserve.worker": ended.worker, "envserve.executions": ended.executions},
        error="the outcome is an error" if failed else None,
    )
