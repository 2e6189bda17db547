"""The core of a client: its link to the server, its sessions and its calls.

Theory of operation
-------------------
:meth:`ClientCore.take` takes an input (:mod:`.client_inputs`) and returns effects
(:mod:`.client_effects`), which the shell carries out in order.  Nothing else changes a client.

A table (:mod:`.calls`) decides what each input does to a call.  This module knows the time,
the link and the sessions: it finds the call of a message or a timer, gives it its input, and
carries out the actions that follow.

Nothing is retransmitted on suspicion.  With every ping, and at once on reconnecting, the client
states its unfinished requests (:class:`~.messages.Sync`).  The server replays those that are
completed and names those that it has never seen, and only these are transmitted again.  So one
mechanism repairs lost requests, replies, cancels and acknowledgements.

A session that the server does not know is *lost*.  A call is issued again, in a new session, only
if the server says that nothing of the lost one runs any more; a call for the work of a key is
issued again in any case, since it may join the work.  The server decides whether it may start.

A request that the server refuses as malformed is never sent again: the server speaks another wire,
or something on the way spoils messages, and neither changes by itself.

Sessions
--------
The calls of a lost session stay in it until it is resolved: until
the server says that nothing of it runs any more, or that nothing of it ever ran, or until neither
has come for ``recovery_s``.

Pings
-----
A ping has a :class:`~.messages.Sync` for each session of the client; while no session is in use, it
has a hello, too.  The syncs of one ping have one number, the probe.  Until they are answered, the
syncs of the next ping have the same number, so that the server can tell lost requests from requests
under way.

The pings of a client that has nothing pending and nothing to acknowledge would be alike: the pauses
between them grow until the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, assert_never

from . import client_inputs as inputs
from . import messages
from .calls import (
    Call,
    CallAction,
    CallInput,
    Calls,
    ClientSession,
    Reply,
    Stage,
    info,
    never_sent,
    refused,
    too_large,
)
from .client_effects import (
    ClientEffect,
    Fail,
    PassDelta,
    PassNote,
    QueriesRefused,
    QueryAnswered,
    Reconnect,
    ToServer,
)
from .errors import ErrorInfo, ProtocolError
from .health import Link, ServerStatus
from .key_records import CallerToken
from .limits import PROTOCOL_VERSION, ClientLimits, WireLimits
from .messages import SESSION_FULL
from .ranges import Ranges
from .router_effects import Report
from .terms import ID_BYTES, Body, Epoch, SessionId, Verdict, short, weight

# -- the sessions of a client ------------------------------------------------------------


class ClientSessions:
    """All sessions in which a client has calls, or may have some."""

    def __init__(self) -> None:
        self.current: ClientSession | None = None
        self.lost: list[ClientSession] = []
        self.opened = 0

    def __iter__(self) -> Iterator[ClientSession]:
        """Lost sessions first, then the one in use."""
        yield from self.lost
        if self.current is not None:
            yield self.current

    def find(self, session_id: SessionId) -> ClientSession | None:
        """The session with this id."""
        if self.current is not None and self.current.id == session_id:
            return self.current
        return next((s for s in self.lost if s.id == session_id), None)

    def call(self, session_id: SessionId, sequence: int) -> Call | None:
        """The call with this id; None if it is gone."""
        session = self.find(session_id)
        return None if session is None else session.calls.get(sequence)

    def open(self, welcome: messages.Welcome) -> None:
        """Use the session that a server has granted."""
        self.opened += 1
        self.current = ClientSession(
            welcome.session, welcome.epoch, welcome.window, welcome.message_bytes
        )

    def lose(self, session: ClientSession, now_s: float) -> None:
        """Note that the server does not know the session in use."""
        self.current = None
        session.lost_s = now_s
        self.lost.append(session)

    def given_up(self, now_s: float, recovery_s: float) -> list[ClientSession]:
        """Lost sessions that are empty, or whose resolution has not come for ``recovery_s``."""
        return [s for s in self.lost if not s.calls or now_s - _lost_s(s) >= recovery_s]

    def was_late(self, late_s: float) -> None:
        """Note that the loop was late: the waits for resolutions get that time back."""
        for session in self.lost:
            session.lost_s = _lost_s(session) + late_s

    def syncs(self, connection: int, probe: int) -> Iterator[messages.Sync]:
        """The syncs of all sessions, which tell finished requests, too."""
        for session in self:
            yield messages.Sync(
                session.id, session.epoch, connection, probe, session.next, session.pending()
            )
            session.unflushed.clear()

    def finishes(self) -> Iterator[messages.Finish]:
        """Messages about finished requests that the server does not know of."""
        for session in self:
            if session.unflushed:
                yield messages.Finish(session.id, Ranges(session.unflushed).flat())
                session.unflushed.clear()


def _lost_s(session: ClientSession) -> float:
    assert session.lost_s is not None
    return session.lost_s


# -- the pings of a client ---------------------------------------------------------------


class Pings:
    """The pings of one client."""

    def __init__(
        self, name: str, caller: CallerToken, new_id: Callable[[], bytes], now_s: float,
        sessions: ClientSessions, limits: ClientLimits, wire: WireLimits,
    ) -> None:  # fmt: skip
        self.name = name
        self._caller = caller
        self.connections = 0
        """Number of connections so far, which numbers them for the server."""
        self.probe = 0
        """Number of the last syncs."""
        self.known = True
        """Whether the server behind this connection is known to know the session.  Until then no
        new request is sent in it: of a lost one nobody could tell that it never ran."""
        self.at_s = now_s
        """Moment of the next ping."""
        self.pause_s = limits.ping_s
        """Pause between pings, in seconds.  It grows with each answer to a sync of nothing, until
        the next call."""
        self._most_pause_s = limits.idle_ping_s
        """Longest pause, in seconds; shorter once a server has forgotten a session meanwhile."""
        self._idle_at: int | None = None
        """``next`` of the last sync, if that had nothing pending and is not answered."""
        self._answered = True
        """Whether the last syncs were answered, or never will be."""
        self._nonce = b""
        """Nonce of the hello that is under way, or whose welcome is."""
        self._nonce_of = 0
        """Number of the connection on which that hello was first sent."""
        self._new_id = new_id
        self._sessions = sessions
        self._limits = limits
        self._wire = wire

    # -- messages to the server -------------------------------------------------

    def next(self, now_s: float, *, idle: bool, closed: bool) -> list[messages.Message]:
        """The messages of a ping.  ``idle``: whether nothing is pending.  ``closed``: whether no
        further session is wanted."""
        sessions, session = self._sessions, self._sessions.current
        self.at_s = now_s + self._limits.ping_s
        self._idle_at = session.next if session is not None and idle else None
        if self._answered and (sessions.lost or session is not None):
            self.probe += 1
            self._answered = False
        said: list[messages.Message] = [*sessions.syncs(self.connections, self.probe)]
        if session is None and not closed:
            self.at_s = now_s + self._limits.hello_retry_s
            if not self._nonce:
                # Before the first connection no server receives it.
                self._nonce, self._nonce_of = self._new_id(), max(1, self.connections)
            said.append(
                messages.Hello(
                    PROTOCOL_VERSION, self._nonce, self.connections, self.name,
                    self._wire.message_bytes, self._caller,
                )
            )  # fmt: skip
        return said

    def goodbyes(self) -> Iterator[messages.Goodbye]:
        """A goodbye for each session, and for the one that a hello has asked for."""
        for session in self._sessions:
            yield messages.Goodbye(session.id)
        if self._nonce:
            yield messages.Goodbye(self._nonce)

    # -- answers of the server --------------------------------------------------

    def connected(self) -> None:
        """Note another connection, with perhaps another server behind it."""
        self.connections += 1
        self._answered = True  # or its answer is lost with the old connection
        self.known = False

    def welcomed(self, welcome: messages.Welcome, now_s: float) -> bool:
        """Take a welcome.  Returns whether it grants the session that was asked for, which is in
        use now."""
        if self._sessions.current is not None or welcome.nonce != self._nonce:
            return False
        self._sessions.open(welcome)
        self._nonce = b""
        # The server behind an earlier connection may have sent it, before that was lost.
        self.known = self._nonce_of == self.connections
        self.at_s = now_s + self._limits.ping_s if self.known else now_s
        return True

    def synced(self, session: ClientSession, probe: int, *, idle: bool, ready: bool) -> None:
        """Note that the server knows the session in use, and has this sync of it.  ``idle``:
        whether nothing is pending.  ``ready``: whether the server is."""
        if probe == self.probe:  # else it is of before a sleep, or of an earlier connection
            self._answered = self.known = True
        if idle and self._answered and self._idle_at == session.next:
            self._idle_at = None  # this answer may come twice
            if ready and not self._sessions.lost:  # else there may be news
                self._rest()

    def _rest(self) -> None:
        """Pause for longer: the server knows that nothing is pending and nothing to acknowledge, so
        the next ping would repeat this one."""
        before_s = self.pause_s
        self.pause_s = max(before_s, min(2 * before_s, self._most_pause_s))
        self.at_s += self.pause_s - self._limits.ping_s

    def hasten(self, now_s: float) -> None:
        """Ping soon: a call was submitted, so something may be lost from now on."""
        self.pause_s = self._limits.ping_s
        self.at_s = min(self.at_s, now_s + self.pause_s)

    def lost(self, session: ClientSession, epoch: Epoch) -> None:
        """Note that a server of this epoch does not know the session that was in use."""
        self._answered = True
        if epoch == session.epoch and self.pause_s > self._limits.ping_s:
            self._most_pause_s /= 2  # its lease, which nobody tells, may be shorter
            self.pause_s = self._limits.ping_s

    def was_late(self, now_s: float) -> None:
        """Note that the loop was late.  The server may have forgotten the session, so a ping comes
        first."""
        if self.known:
            self._answered = True  # what is answered yet was asked before
        self.known = self._sessions.current is None
        self.at_s = now_s


class ClientCore:
    """The core of one client."""

    def __init__(
        self, *, name: str, new_id: Callable[[], bytes], now_s: float,
        limits: ClientLimits | None = None, wire: WireLimits | None = None,
        caller: bytes = bytes(ID_BYTES),
    ) -> None:  # fmt: skip
        self.limits = limits or ClientLimits()
        self.wire = wire or WireLimits()
        self.link = Link(self.limits, now_s)
        self.sessions = ClientSessions()
        self.pings = Pings(name, caller, new_id, now_s, self.sessions, self.limits, self.wire)
        self.calls = Calls(self.limits)
        self.closed = False
        self._flush_at_s: float | None = None
        """Moment at which the server is told of finished requests at the latest; None: there are
        none."""
        self._company_s = 0.5 * self.limits.finish_flush_s
        """Time before that moment in which a request takes them along, in seconds."""
        self._scan_at_s = now_s
        self.refusal: ErrorInfo | None = None
        """Why the server grants no session, as long as it does not change; None: it may."""
        self._refused_text = ""
        self._malformed: dict[type, tuple[int, str]] = {}
        """Number of messages of each class that the server has refused as malformed, and why it
        refused the last one."""
        self._out: list[ClientEffect] = []

    def take(self, given: inputs.ClientInput) -> list[ClientEffect]:
        """Take an input; returns the effects, in order."""
        _INPUTS[type(given)](self, given)
        out = self._out
        self._out = []
        return out

    def wake_at_s(self) -> float:
        """Latest moment of the next tick."""
        at_s = min(self.pings.at_s, self._scan_at_s)
        return at_s if self._flush_at_s is None else min(at_s, self._flush_at_s)

    # -- calls ----------------------------------------------------------------

    def _submit(self, given: inputs.CallSubmitted) -> None:
        now_s = given.now_s
        call = self.calls.new(given)
        if self.closed:
            self._step(call, CallInput.CLOSED, now_s)
        elif self.refusal is not None:
            self._step(call, CallInput.REFUSED, now_s, self.refusal)
        if self.pings.pause_s > self.limits.ping_s:
            self.pings.hasten(now_s)
        self._pump(now_s)

    def _receive(self, given: inputs.OutcomeReceived) -> None:
        number, now_s = given
        self._step(self.calls.live[number], CallInput.RECEIVED, now_s)
        if self.calls.queue:
            self._pump(now_s)  # there may be room in the window again

    def _cancel(self, given: inputs.CallsCancelled) -> None:
        """End calls, and tell the server at once, by one message; its answer is not awaited."""
        numbers, now_s = given
        for number in numbers:
            self._step(self.calls.live.get(number), CallInput.CANCEL, now_s)
        self._flush_due(now_s)
        self._pump(now_s)  # calls that waited for room, and calls that are to leave

    def _close(self, given: inputs.ClientClosed) -> None:
        """End every pending call now, and tell the server."""
        self.closed = True
        for _ in range(2):  # the second time, calls that were to leave in another session
            for call in list(self.calls.live.values()):
                self._step(call, CallInput.CLOSED, given.now_s)
            self._pump(given.now_s)
        for goodbye in self.pings.goodbyes():
            self._send(goodbye)

    def _step(self, call: Call | None, input: CallInput, now_s: float, arg: Any = None) -> None:
        """Give a call an input, and carry out the actions that follow."""
        for do, what in self.calls.step(call, input, now_s, arg):
            match do:
                case CallAction.TRANSMIT:
                    what.sent_probe = self.pings.probe
                    what.refusals_before, _ = self._refusals(what)
                    if self.link.connected:
                        self._out.append(ToServer(what.request, what.body))
                case CallAction.ANSWER:
                    answered, reply = what
                    self._out.append(reply.for_caller(answered))
                case CallAction.TELL_SOON:
                    self._flush_by(now_s + self.limits.finish_flush_s)
                case CallAction.ASK:
                    self._send(messages.Cancel(what.session.id, what.sequence))
                case CallAction.FAIL:
                    failed, error = what
                    self._out.append(Fail(failed.number, error))
                case CallAction.STOPPING:
                    self.link.stopping(now_s)
                case CallAction.TELL:
                    self._flush_at_s = now_s
                case CallAction.TELL_NEXT:
                    self._flush_by(0.0)
                case _:
                    assert_never(do)

    # -- the transport --------------------------------------------------------

    def _connect(self, given: inputs.Connected) -> None:
        """Ping at once on a new connection."""
        self.link.connect(given.now_s)
        self.pings.connected()
        self._ping(given.now_s)

    def _disconnect(self, given: inputs.Disconnected) -> None:
        self.link.disconnect(*given)

    def _message(self, given: inputs.ServerMessage) -> None:
        """Take a message; a malformed one is reported and ignored."""
        frames, now_s = given
        try:
            rows = messages.read(frames, most_bytes=self.wire.header_bytes)
        except ProtocolError as error:
            self._report("warning", f"ignored a message of the server: {error}")
            return
        self.link.answered(now_s)
        message: Any = rows[0][0]
        match message:
            case messages.Outcome():
                for outcome, body in rows:
                    self._outcome(outcome, body, now_s)
            case messages.Delta():
                self._delta(message, frames[1])
            case messages.Notes():
                self._notes(message)
            case messages.Synced():
                self._synced(message, now_s)
            case messages.Welcome():
                self._welcome(message, now_s)
            case messages.Refused():
                self._refused(message, now_s)
            case messages.Unknown():
                self._unknown(message, now_s)
            case messages.Cancelled():
                self._cancelled(message, now_s)
            case messages.Error():
                self._error(message, now_s)
            case messages.QueryAnswer():
                self._out.append(QueryAnswered(message.probe, frames[1]))
            case _:
                self._report("warning", f"ignored a {type(message).__name__} of the server")
        if self.calls.queue:
            self._pump(now_s)

    def _outcome(self, outcome: Any, body: Any, now_s: float) -> None:
        reply = Reply.of(outcome, body)
        call = self.sessions.call(outcome.session, outcome.sequence)
        if reply.error is not None and reply.error.code == "stopping" and not outcome.executions:
            self._step(call, CallInput.STOPPING, now_s)
        else:
            self._step(call, CallInput.OUTCOME, now_s, reply)

    def _delta(self, delta: messages.Delta, body: Body) -> None:
        call = self.sessions.call(delta.session, delta.sequence)
        if call is not None and call.stage is Stage.SENT:
            self._out.append(PassDelta(call.number, delta.delta, body))

    def _notes(self, told: messages.Notes) -> None:
        sequences = Ranges.from_flat(told.sequences)
        if len(sequences) != len(told.notes):
            self._report("warning", f"ignored {len(told.notes)} notes of {len(sequences)} calls")
            return
        for sequence, note in zip(sequences, told.notes, strict=True):
            call = self.sessions.call(told.session, sequence)
            if call is not None and call.stage is Stage.SENT:
                self._out.append(PassNote(call.number, note))

    def _synced(self, synced: messages.Synced, now_s: float) -> None:
        session = self.sessions.current
        if session is None or synced.session != session.id:
            return
        if session.left:
            session.left = [each for each in session.left if each[0] >= synced.probe]
        self._malformed.pop(messages.Sync, None)
        self.link.status(synced.server, now_s)
        idle, ready = not self.calls.live, self.link.unready_s is None
        self.pings.synced(session, synced.probe, idle=idle, ready=ready)
        missing = Ranges.from_flat(synced.missing)
        # The loop is over pending calls, since the server may name anything.
        for sequence, call in list(session.calls.items()) if missing else ():
            if sequence in missing:
                refusals, why = self._refusals(call)
                if refusals > call.refusals_before and synced.probe > call.sent_probe:
                    error = info("malformed", Verdict.DID_NOT_RUN, _another_wire(why))
                    self._step(call, CallInput.REFUSED, now_s, error)
                else:
                    self._step(call, CallInput.MISSING, now_s, synced.probe)
        for call in list(session.leaving.values()):
            # A missing one was just sent again.
            if call.sent_probe < synced.probe and call.number not in self.calls.held:
                self._step(call, CallInput.CANCEL, now_s)  # the server has it, so it leaves

    def _welcome(self, welcome: messages.Welcome, now_s: float) -> None:
        if not self.closed and self.pings.welcomed(welcome, now_s):
            self.refusal = None
            self.link.status(welcome.server, now_s)

    def _refused(self, message: messages.Refused, now_s: float) -> None:
        call = self.sessions.call(message.session, message.sequence)
        if message.delay_s is not None:
            until_s = now_s + message.delay_s
            self._step(call, CallInput.HOLD, now_s, (until_s, message.full, message.code))
            return
        self._step(call, CallInput.REFUSED, now_s, refused(message.code, message.text))

    def _unknown(self, unknown: messages.Unknown, now_s: float) -> None:
        session = self.sessions.find(unknown.session)
        if session is None:
            return
        if session is self.sessions.current:
            self.sessions.lose(session, now_s)
            self.pings.lost(session, unknown.epoch)
            for _, call in () if self.closed else session.left:
                self.calls.leave(call)
            if not self.closed:  # else it has taken the goodbye before it was asked again
                self._report("warning", f"the server does not know session {short(session.id)}")
            self.link.no_session(now_s)
            self._ping(now_s)
        if unknown.gone:
            self._resolve(
                session, CallInput.SETTLED if unknown.settled else CallInput.PROVEN, now_s
            )

    def _resolve(self, session: ClientSession, input: CallInput, now_s: float) -> None:
        """End a lost session: the server has said what may still run of it, or never will."""
        self.sessions.lost.remove(session)
        for call in list(session.calls.values()):
            self._step(call, input, now_s)

    def _cancelled(self, cancelled: messages.Cancelled, now_s: float) -> None:
        call = self.sessions.call(cancelled.session, cancelled.sequence)
        self._step(call, CallInput.CANCELLED, now_s, cancelled.started)

    def _error(self, error: messages.Error, now_s: float) -> None:
        """Take the error of a message that the server could not take.  The error of a hello is why
        there is no session."""
        if error.text != self._refused_text:
            self._report("error", f"the server refuses: {error.text}")
        self._refused_text = self.link.trouble = error.text
        refused: Any = messages.Hello
        text = error.text
        if error.code == "malformed":
            refused, text = messages.refused_class(error.text), _another_wire(error.text)
            count, _ = self._malformed.get(refused, (0, ""))
            self._malformed[refused] = count + 1, error.text
            if refused is messages.Sync and count + 1 == SYNCS_REFUSED:
                self._cannot_state(text, now_s)
        if refused is messages.Query:
            self._out.append(QueriesRefused(text))
        is_hello = refused is messages.Hello and error.code in ("foreign-version", "malformed")
        if is_hello and self.sessions.current is None:
            self.refusal = info(error.code, Verdict.DID_NOT_RUN, text)
            for call in list(self.calls.queue.values()):
                self._step(call, CallInput.REFUSED, now_s, self.refusal)

    def _cannot_state(self, text: str, now_s: float) -> None:
        """Fail all calls: the server understands no sync, so that nothing that is lost is repaired,
        and the lease of the session ends without a word."""
        self.refusal = info("malformed", Verdict.DID_NOT_RUN, text)
        for call in list(self.calls.queue.values()):
            self._step(call, CallInput.REFUSED, now_s, self.refusal)
        unknown = info("no-answer", Verdict.MAY_HAVE_RUN, text)
        for session in self.sessions:
            for call in list(session.calls.values()):
                self._step(call, CallInput.REFUSED, now_s, unknown)

    def _refusals(self, call: Call) -> tuple[int, str]:
        return self._malformed.get(type(call.request), (0, ""))

    # -- time -----------------------------------------------------------------

    def _tick(self, given: inputs.ClientTick) -> None:
        now_s, late_s = given
        if late_s > self.limits.late_s:
            self._was_late(now_s, late_s)
        self._flush_due(now_s)
        if now_s >= self.pings.at_s:
            self._ping(now_s)
        if now_s >= self._scan_at_s:
            self._scan_at_s = now_s + self.limits.ping_s / 4
            self._scan(now_s)
        self._pump(now_s)

    def _was_late(self, now_s: float, late_s: float) -> None:
        """Note that the loop was late and could receive nothing: all waits get that time back."""
        self.link.was_late(now_s, late_s)
        self.pings.was_late(now_s)
        self.sessions.was_late(late_s)
        self.calls.was_late(late_s)

    def _ping(self, now_s: float) -> None:
        """Send the messages of a ping."""
        self.link.asked(now_s)
        for message in self.pings.next(now_s, idle=not self.calls.live, closed=self.closed):
            self._send(message)
        self.calls.probe = self.pings.probe

    def _scan(self, now_s: float) -> None:
        """Look through calls whose limit has passed, held calls that are due, and lost sessions."""
        calls = self.calls
        well = self.link.unready_s is None and not self.link.silent(now_s)
        for call in list((calls.timed if well else calls.live).values()):
            limit_s = call.limit_s
            if limit_s is None:
                limit_s = self.link.limit_s(call.asked_s, now_s, again=bool(self.sessions.opened))
            passed = now_s - call.asked_s >= limit_s
            self._step(call, CallInput.LIMIT if passed else CallInput.TIME, now_s, self._unsent)
        for call in calls.held.due(now_s):
            self._step(call, CallInput.DUE, now_s)
        if self.link.leave(now_s):
            self._report("warning", "nothing is answered on this connection; making a new one")
            self._out.append(Reconnect())
        for session in self.sessions.given_up(now_s, self.limits.recovery_s):
            self._resolve(session, CallInput.UNPROVEN, now_s)

    def _unsent(self, now_s: float) -> ErrorInfo:
        """The error of a call that was not sent within its limit and has never run."""
        return never_sent(bool(self.sessions.opened), self.link.health(now_s)[1])

    # -- sending --------------------------------------------------------------

    def _pump(self, now_s: float) -> None:
        """Transmit queued calls while there is a session with room."""
        queue, session = self.calls.queue, self.sessions.current
        if not queue or session is None or not self.link.connected:
            return
        if not self.pings.known or now_s > self._scan_at_s + self.limits.late_s:
            return  # the sync of a new connection, or the first one after a sleep, comes first
        if self.link.server_is(ServerStatus.STOPPING) or SESSION_FULL in self.calls.held.lines:
            return  # earlier requests still wait for room
        self._flush_due(now_s + self._company_s)
        while queue:
            if len(session.calls) + len(session.unflushed) >= session.window:
                self._flush()
                if len(session.calls) >= session.window:
                    return
            call = queue.first(session)
            if call is None:
                return  # enough calls wait for keys
            error = too_large(weight(call.body), self.wire.message_bytes, session)
            if error is None:
                self._step(call, CallInput.SEND, now_s, session)
            else:
                self._step(call, CallInput.REFUSED, now_s, error)

    def _flush_by(self, at_s: float) -> None:
        """Tell the server of finished requests at this moment, unless it is told before."""
        if self._flush_at_s is None:
            self._flush_at_s = at_s

    def _flush_due(self, now_s: float) -> None:
        if self._flush_at_s is not None and now_s >= self._flush_at_s:
            self._flush()

    def _flush(self) -> None:
        """Tell the server of finished requests.  If the message is lost, the next sync tells it."""
        self._flush_at_s = None
        for finish in self.sessions.finishes():
            self._send(finish)

    def _send(self, message: messages.Message) -> None:
        if self.link.connected:
            self._out.append(ToServer(message))

    def _report(self, level: str, text: str) -> None:
        self._out.append(Report(level, text))


SYNCS_REFUSED = 3
"""Number of statements in a row that the server refuses as malformed before calls end: one may
have been spoilt on the way."""


def _another_wire(why: str) -> str:
    return (
        f"the server refuses it as malformed ({why}): server and client have the versions of this "
        "package that fit together only if these are the same"
    )


_INPUTS: dict[type, Callable[..., None]] = {
    inputs.CallSubmitted: ClientCore._submit,
    inputs.OutcomeReceived: ClientCore._receive,
    inputs.CallsCancelled: ClientCore._cancel,
    inputs.ServerMessage: ClientCore._message,
    inputs.Connected: ClientCore._connect,
    inputs.Disconnected: ClientCore._disconnect,
    inputs.ClientTick: ClientCore._tick,
    inputs.ClientClosed: ClientCore._close,
}
