"""The client's side of its link to the server.

Theory of operation
-------------------
A call is *queued* until a session is there with room in its window, then
*sent* under an id that it keeps through every transmission, then *answered*
when its outcome has come, and gone once the caller has that in hands.

Nothing is retransmitted on suspicion.  With every ping, and at once on
reconnecting, the client states what it holds (:class:`~.messages.Sync`); the
server replays what is completed and names what it has never seen, and only
that is transmitted again.  One mechanism repairs lost requests, replies,
cancels and acknowledgements.

A session the server does not know is *lost*.  Only if the server says that
nothing of it runs any more may a call with consent be issued again, in a new
session, with what is left of its allowance (:func:`~.calls.grant`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import messages
from .calls import (
    Call,
    ClientSession,
    Stage,
    after_loss,
    digest,
    grant,
    info,
    limit_passed,
    server_lost,
)
from .errors import ErrorInfo, ProtocolError
from .health import Health, Link, ServerStatus
from .limits import PROTOCOL_VERSION, ClientLimits, WireLimits
from .ranges import Ranges
from .slots import Report
from .terms import Body, SessionId, Status, Verdict, short

BURST = 64
"""Calls refused for now that are tried again at once, to begin with."""

MOST_SECONDS = 1e12
"""A limit past this is none; the wire has no infinity."""


class ToServer(NamedTuple):
    """Send these frames to the server."""

    frames: tuple[Body, ...]


class Answer(NamedTuple):
    """The outcome of a call.  Say :meth:`ClientCore.received` when the caller has it."""

    call: int
    status: Status
    body: Body
    worker: str
    duration_s: float | None
    executions: int


class Fail(NamedTuple):
    """A call ends without an outcome from the server."""

    call: int
    info: ErrorInfo


class Statistics(NamedTuple):
    """The server's answer to :class:`~.messages.AskStats`."""

    probe: int
    body: Body


class Reconnect(NamedTuple):
    """Give the connection up and make a new one: nothing is answered on it."""


ClientEffect: TypeAlias = ToServer | Answer | Fail | Statistics | Reconnect | Report


class ClientCore:
    """One client.  Feed it messages, connection events and time; take effects."""

    def __init__(
        self, *, name: str, new_id: Callable[[], bytes], now_s: float,
        limits: ClientLimits | None = None, wire: WireLimits | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.limits = limits or ClientLimits()
        self.wire = wire or WireLimits()
        self.link = Link(self.limits, now_s)
        self.session: ClientSession | None = None
        self.lost: list[ClientSession] = []
        self.calls: dict[int, Call] = {}
        self._timed: dict[int, Call] = {}
        """Those of them that may end by the clock while the server is well: with a limit
        of their own, or expired."""
        self.closed = False
        self.retransmitted = 0
        self.reissued = 0
        self.sessions = 0
        self.connections = 0
        """How many connections there were; numbers them for the server."""
        self._new_id = new_id
        self._nonce = b""
        self._queue: OrderedDict[int, Call] = OrderedDict()
        self._next_call = 0
        self._probe = 0
        """The number of the last sync; a new one only once this one is answered, so
        that the server can tell what is lost from what is under way."""
        self._probe_answered = True
        self._known = True
        """The server behind this connection is known to know the session.  Until then
        nothing new is asked in it: if it is lost, nobody could tell that it never ran."""
        self._held: dict[int, Call] = {}
        """Calls that were refused for now, in the order of their refusals."""
        self._burst = BURST
        self._refused_lately = False
        self._ping_at_s = now_s
        self._connected_s = now_s
        """Since when the connection has had time to answer."""
        self._patience_s = self.limits.reconnect_s
        self._flush_at_s: float | None = None
        """When the server is told of finished requests at the latest."""
        self._company_s = 0.5 * self.limits.finish_flush_s
        """How long before that it is told if a request goes out anyway."""
        self._scan_at_s = now_s
        self._declared_rerun = False
        """What the environment declared, as far as a server has said yet."""
        self._unready_s: float | None = now_s
        """Since when the server has not been ready, as far as known."""
        self.refusal: ErrorInfo | None = None
        """Why there will be no session, should the server never change."""
        self._refused_text = ""
        self._out: list[ClientEffect] = []

    def take(self) -> list[ClientEffect]:
        """The effects of all inputs since the last call, in order."""
        out, self._out = self._out, []
        return out

    def has_effects(self) -> bool:
        """Whether there is something to take."""
        return bool(self._out)

    def health(self, now_s: float) -> tuple[Health, str]:
        """The health of the server as seen from here, and why."""
        return self.link.health(now_s)

    # -- calls ----------------------------------------------------------------

    def submit(
        self, body: Body, now_s: float, *, rerun: bool | None = None,
        max_executions: int | None = None, limit_s: float | None = None,
    ) -> int:  # fmt: skip
        """A new call; returns its number.  ``limit_s`` is how long the caller
        waits; it travels with the request and holds on the server too."""
        allowance = self.limits.max_executions if max_executions is None else max_executions
        if limit_s is not None:
            limit_s = float(limit_s) if limit_s < MOST_SECONDS else None
        call = Call(
            self._next_call, body, digest(body, rerun, allowance, limit_s), rerun, allowance,
            allowance, limit_s, now_s,
        )  # fmt: skip
        self._next_call += 1
        self.calls[call.number] = call
        if limit_s is not None:
            self._timed[call.number] = call
        self._queue[call.number] = call
        if self.closed:
            self._fail(call, self._closing(call))
        elif self.refusal is not None:
            self._fail(call, self.refusal)
        self._pump(now_s)
        return call.number

    def received(self, number: int, now_s: float) -> None:
        """The caller has the outcome in hands: the server may forget it."""
        self._timed.pop(number, None)
        self._finish(self.calls.pop(number), now_s)
        self._pump(now_s)  # there may be room in the window again

    def error_of(self, answer: Answer) -> ErrorInfo:
        """The error of an answer that was not received yet, and what lost sessions may
        have run of its call before."""
        call, error = self.calls[answer.call], messages.decode_error(answer.body)
        return after_loss(error, call.earlier, call.most) if call.may_have_run else error

    def cancel(self, number: int, now_s: float) -> None:
        """The caller wants no outcome any more.  Told at once, never waited for."""
        self._timed.pop(number, None)
        call = self.calls.pop(number, None)
        if call is None:
            return
        if call.stage is Stage.QUEUED:
            del self._queue[call.number]
            return
        self._finish(call, now_s)
        self._flush()

    def close(self, now_s: float) -> None:
        """End every pending call now, and tell the server."""
        self.closed = True
        for call in list(self.calls.values()):
            if call.stage is not Stage.ANSWERED:
                self._fail(call, self._closing(call))
        for session in self._sessions():
            self._send(messages.Goodbye(session.id))
        if self._nonce:  # a hello is under way, or its welcome
            self._send(messages.Goodbye(self._nonce))

    def _closing(self, call: Call) -> ErrorInfo:
        if call.stage is Stage.QUEUED and not call.may_have_run:
            return info("closed", Verdict.DID_NOT_RUN, "the client was closed")
        text = "the client was closed while the request was under way; it is cancelled"
        return info("abandoned", Verdict.MAY_HAVE_RUN, text)

    # -- the transport --------------------------------------------------------

    def connected(self, now_s: float) -> None:
        """A connection was made: state at once what is held."""
        self.connections += 1
        self.link.connected = True
        self._connected_s = now_s
        self._probe_answered = True  # or its answer is lost with the old connection
        self._known = False
        self._greet(now_s)

    def disconnected(self, now_s: float, trouble: str) -> None:
        """The connection is gone, or could not be made."""
        self.link.connected = False
        self.link.trouble = trouble
        self.link.asked(now_s)

    def message(self, frames: Sequence[Body], now_s: float) -> None:
        """A message of the server.  What is malformed is reported and ignored."""
        try:
            if not frames:
                raise ProtocolError("no frames")
            message = messages.decode(frames[0], most_bytes=self.wire.header_bytes)
            with_body = isinstance(message, (messages.Outcome, messages.Stats))
            if len(frames) != 1 + with_body:
                raise ProtocolError(f"{type(message).__name__} with {len(frames)} frames")
        except ProtocolError as error:
            self._report("warning", f"ignored a message of the server: {error}")
            return
        self.link.answered(now_s)
        self._patience_s = self.limits.reconnect_s
        match message:
            case messages.Outcome():
                self._outcome(message, frames[1], now_s)
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
                self._error(message)
            case messages.Stats():
                self._out.append(Statistics(message.probe, frames[1]))
            case _:
                self._report("warning", f"ignored a {type(message).__name__} of the server")
        self._pump(now_s)

    def _outcome(self, outcome: messages.Outcome, body: Body, now_s: float) -> None:
        call = self._call(outcome.session, outcome.sequence)
        if call is None or call.stage is Stage.ANSWERED:
            return  # a reply that nobody waits for
        status = Status(outcome.status) if messages.is_status(outcome.status) else Status.ERROR
        if status is not Status.RESULT:
            error = messages.decode_error(body)
            if error.code == "stopping" and not outcome.executions:
                # It did not run, and that is final for this id; the next server gets it.
                self._server({**self.link.server, "status": ServerStatus.STOPPING.value}, now_s)
                self._requeue(call)
                return
            if call.may_have_run and error.verdict is Verdict.DID_NOT_RUN:
                self._fail(call, error)  # which tells the truth about the lost session, too
                return
        call.stage = Stage.ANSWERED
        self._held.pop(call.number, None)
        self._out.append(
            Answer(
                call.number, status, body, outcome.worker, outcome.duration_s, outcome.executions
            )
        )

    def _synced(self, synced: messages.Synced, now_s: float) -> None:
        session = self.session
        if session is None or synced.session != session.id:
            return
        self._probe_answered |= synced.probe == self._probe
        self._known = True
        self._server(synced.server, now_s)
        missing = Ranges.from_flat(synced.missing)
        # Walked by what is pending: what the server names may be anything.
        for sequence, call in list(session.calls.items()) if missing else ():
            if sequence not in missing or call.stage is not Stage.SENT:
                continue
            if call.sent_probe < synced.probe and call.number not in self._held:
                self.retransmitted += 1
                self._transmit(call)

    def _welcome(self, welcome: messages.Welcome, now_s: float) -> None:
        if self.session is not None or welcome.nonce != self._nonce or self.closed:
            return
        self.sessions += 1
        self.session = ClientSession(
            welcome.session, welcome.epoch, welcome.window, welcome.message_bytes
        )
        self._nonce = b""
        self._known = True
        self.refusal = None
        self._ping_at_s = now_s + self.limits.ping_s
        self._server(welcome.server, now_s)

    def _refused(self, refused: messages.Refused, now_s: float) -> None:
        call = self._call(refused.session, refused.sequence)
        if call is None or call.stage is Stage.ANSWERED:
            return
        if refused.delay_s is not None:
            if call.stage is Stage.SENT:
                call.held_until_s = now_s + refused.delay_s
                self._held[call.number] = call
                self._refused_lately = True
        elif refused.code == "finished":
            text = "the server has forgotten the request; it may have run"
            self._fail(call, info("server-lost", Verdict.MAY_HAVE_RUN, text))
        else:
            self._fail(call, info(refused.code, Verdict.DID_NOT_RUN, refused.text))

    def _unknown(self, unknown: messages.Unknown, now_s: float) -> None:
        session = self._find(unknown.session)
        if session is None:
            return
        if session is self.session:
            self.session = None
            session.lost_s = now_s
            self.lost.append(session)
            if not self.closed:  # else it has taken the goodbye before it was asked again
                self._report("warning", f"the server does not know session {short(session.id)}")
            # What was known of the old one says nothing about the new.
            status = {"status": ServerStatus.STARTING.value, "reason": "it grants no session yet"}
            self._server(status, now_s)
            self._probe_answered = True
            self._greet(now_s)
        if unknown.gone:
            self._resolve(session, settled=unknown.settled)

    def _cancelled(self, cancelled: messages.Cancelled, now_s: float) -> None:
        call = self._call(cancelled.session, cancelled.sequence)
        if call is None or call.stage is not Stage.EXPIRED:
            return
        self._fail(call, limit_passed(started=cancelled.started or call.may_have_run))

    def _error(self, error: messages.Error) -> None:
        """The server took a message not at all.  What it says of a hello is
        why there is no session."""
        if error.text != self._refused_text:
            self._report("error", f"the server refuses: {error.text}")
        self._refused_text = self.link.trouble = error.text
        if error.code == "foreign-version":
            self.refusal = info(error.code, Verdict.DID_NOT_RUN, error.text)
            for call in list(self._queue.values()):
                self._fail(call, self.refusal)

    # -- time -----------------------------------------------------------------

    def tick(self, now_s: float, *, late_s: float = 0.0) -> None:
        """Time has passed; ``late_s`` is how late this side's own loop was."""
        if late_s > self.limits.late_s:
            self._was_late(now_s, late_s)
        if self._flush_at_s is not None and now_s >= self._flush_at_s:
            self._flush()
        if now_s >= self._ping_at_s:
            self._greet(now_s)
        if now_s >= self._scan_at_s:
            self._scan_at_s = now_s + self.limits.ping_s / 4
            self._scan(now_s)
        self._pump(now_s)

    def _was_late(self, now_s: float, late_s: float) -> None:
        """Nobody could be heard meanwhile: what is waited for gets that time back."""
        self.link.was_late(now_s)
        self._known = self.session is None  # it may have been forgotten: hear of it first
        self._connected_s = now_s
        if self._unready_s is not None:
            self._unready_s += late_s
        for session in self.lost:
            assert session.lost_s is not None
            session.lost_s += late_s
        for call in self.calls.values():
            call.cancel_until_s += late_s

    def wake_at_s(self) -> float:
        """When the next tick is due at the latest."""
        at_s = min(self._ping_at_s, self._scan_at_s)
        return at_s if self._flush_at_s is None else min(at_s, self._flush_at_s)

    def _greet(self, now_s: float) -> None:
        """Say hello, or state what is held; this is the ping too."""
        self._ping_at_s = now_s + self.limits.ping_s
        self.link.asked(now_s)
        sessions = list(self._sessions())
        if sessions and self._probe_answered:
            self._probe += 1
            self._probe_answered = False
        for session in sessions:
            self._send(
                messages.Sync(
                    session.id,
                    session.epoch,
                    self.connections,
                    self._probe,
                    session.next,
                    session.pending(),
                )
            )
            session.unflushed.clear()
        if self.session is None and not self.closed:
            self._nonce = self._nonce or self._new_id()
            self._ping_at_s = now_s + self.limits.hello_retry_s
            self._send(
                messages.Hello(
                    PROTOCOL_VERSION,
                    self._nonce,
                    self.connections,
                    self.name,
                    self.wire.message_bytes,
                )
            )

    def _scan(self, now_s: float) -> None:
        """Calls whose limit has passed, held ones that are due, lost sessions."""
        well = self._unready_s is None and not self._silent(now_s)
        for call in list((self._timed if well else self.calls).values()):
            self._check(call, now_s)
        self._retry_held(now_s)
        self._leave_dead_connection(now_s)
        for session in list(self.lost):
            assert session.lost_s is not None
            if now_s - session.lost_s >= self.limits.recovery_s or not session.calls:
                self._resolve(session, proven=False)

    def _leave_dead_connection(self, now_s: float) -> None:
        """A peer that vanished, or something between that swallows what passes, tells
        nobody.  A server that is held for long looks the same: the pauses grow."""
        asked_s = self.link.asked_s
        if not self.link.connected or asked_s is None:
            return
        if now_s - max(asked_s, self._connected_s) < self._patience_s:
            return
        self._patience_s *= 2
        self._connected_s = now_s
        self._report("warning", "nothing is answered on this connection; making a new one")
        self._out.append(Reconnect())

    def _check(self, call: Call, now_s: float) -> None:
        if call.stage is Stage.ANSWERED:
            return
        if call.stage is Stage.EXPIRED:
            if now_s >= call.cancel_until_s:
                self._fail(call, limit_passed(started=None))
            elif now_s >= call.held_until_s:
                self._ask_if_it_ran(call, now_s)
            return
        if now_s - call.asked_s >= self._limit_s(call, now_s):
            self._expire(call, now_s)

    def _retry_held(self, now_s: float) -> None:
        """Transmit some of the calls that were refused for now and are due: twice
        as many as last time if none was refused since, else half as many."""
        self._burst = max(1, self._burst // 2) if self._refused_lately else self._burst * 2
        self._refused_lately = False
        due = [call for call in self._held.values() if call.held_until_s <= now_s]
        for call in due[: self._burst]:
            del self._held[call.number]
            self._transmit(call)
        if not self._held:
            self._burst = BURST

    def _limit_s(self, call: Call, now_s: float) -> float:
        """How long this call may wait, counted from when it was asked: its own
        limit, or, for a server that is not there or not ready, the client's."""
        if call.limit_s is not None:
            return call.limit_s
        since_s = self._unready_s
        if since_s is None:
            since_s = self.link.asked_s if self.link.asked_s is not None else now_s
        limit_s = self.limits.recovery_s if self.sessions else self.limits.start_s
        return max(call.asked_s, since_s) - call.asked_s + limit_s

    def _silent(self, now_s: float) -> bool:
        """Whether the server is gone, or has not answered for so long that it may be."""
        if not self.link.connected:
            return True
        asked_s = self.link.asked_s
        return asked_s is not None and now_s - asked_s >= self.limits.probe_s

    def _expire(self, call: Call, now_s: float) -> None:
        """The limit has passed: ask the server whether the request ever ran."""
        if call.stage is Stage.QUEUED:
            self._fail(call, self._unsent(call, now_s))
            return
        call.stage = Stage.EXPIRED
        self._timed[call.number] = call
        self._held.pop(call.number, None)
        call.cancel_until_s = now_s + self.limits.cancel_answer_s
        self._ask_if_it_ran(call, now_s)

    def _ask_if_it_ran(self, call: Call, now_s: float) -> None:
        """Again with each ping: the question or its answer may be lost.  The
        server knows it for sure only once; later it says that it may have run."""
        call.held_until_s = now_s + self.limits.ping_s
        assert call.session is not None
        self._send(messages.Cancel(call.session.id, call.sequence))

    def _unsent(self, call: Call, now_s: float) -> ErrorInfo:
        if call.may_have_run:
            text = "its server was lost, and no other took the request within the limit"
            return info("server-lost", Verdict.MAY_HAVE_RUN, text)
        _, why = self.link.health(now_s)
        if self.sessions:
            text = f"the limit passed before the request was transmitted ({why})"
            return info("never-started", Verdict.DID_NOT_RUN, text)
        return info("server-unreachable", Verdict.DID_NOT_RUN, f"no server was found: {why}")

    # -- sending --------------------------------------------------------------

    def _pump(self, now_s: float) -> None:
        """Transmit queued calls while there is a session with room."""
        if not self._queue:
            return
        session = self.session
        if session is None or not self.link.connected or self._server_is(ServerStatus.STOPPING):
            return
        if not self._known or now_s > self._ping_at_s + self.limits.late_s:
            return  # to the sync that was sent on connecting, or that is long due after a sleep
        if self._held:
            return  # the server has no room for what it was asked already
        if self._flush_at_s is not None and now_s >= self._flush_at_s - self._company_s:
            self._flush()
        while self._queue:
            if len(session.calls) + len(session.unflushed) >= session.window:
                self._flush()
                if len(session.calls) >= session.window:
                    return
            call = next(iter(self._queue.values()))
            if len(call.body) > self.wire.message_bytes:
                # The socket would not send it, and each sync would ask for it again.
                text = f"{len(call.body)} bytes; this client's message_bytes is "
                text += f"{self.wire.message_bytes}"
                self._fail(call, info("too-large", Verdict.DID_NOT_RUN, text))
                continue
            if len(call.body) > session.message_bytes:
                text = f"{len(call.body)} bytes; the server takes {session.message_bytes}"
                self._fail(call, info("too-large", Verdict.DID_NOT_RUN, text))
                continue
            del self._queue[call.number]
            self._assign(call, session)

    def _assign(self, call: Call, session: ClientSession) -> None:
        call.stage = Stage.SENT
        call.session, call.sequence = session, session.next
        call.granted = grant(call.allowance)
        session.next += 1
        session.calls[call.sequence] = call
        header = messages.encode(
            messages.Request(
                session.id, call.sequence, call.digest, call.rerun, call.granted, call.limit_s
            )
        )
        call.frames = (header, call.body)
        self._transmit(call)

    def _transmit(self, call: Call) -> None:
        call.sent_probe = self._probe
        if self.link.connected:
            self._out.append(ToServer(call.frames))

    def _finish(self, call: Call, now_s: float) -> None:
        """Its sequence is finished; the server is told soon, with others."""
        flush_at_s = self._flush_at_s
        self._leave_session(call)
        if flush_at_s is None:
            self._flush_at_s = now_s + self.limits.finish_flush_s

    def _flush(self) -> None:
        """Tell the server what is finished.  If this is lost, the next sync says it."""
        self._flush_at_s = None
        for session in self._sessions():
            if session.unflushed:
                self._send(messages.Finish(session.id, Ranges(session.unflushed).flat()))
                session.unflushed.clear()

    def _send(self, message: messages.Message) -> None:
        if self.link.connected:
            self._out.append(ToServer((messages.encode(message),)))

    # -- sessions -------------------------------------------------------------

    def _find(self, session_id: SessionId) -> ClientSession | None:
        if self.session is not None and self.session.id == session_id:
            return self.session
        return next((s for s in self.lost if s.id == session_id), None)

    def _call(self, session_id: SessionId, sequence: int) -> Call | None:
        session = self._find(session_id)
        return None if session is None else session.calls.get(sequence)

    def _sessions(self) -> Iterator[ClientSession]:
        """Lost ones first, then the one in use."""
        yield from self.lost
        if self.session is not None:
            yield self.session

    def _leave_session(self, call: Call) -> None:
        """Its sequence is finished: the next flush or sync tells the server."""
        session, call.session = call.session, None
        assert session is not None
        del session.calls[call.sequence]
        self._held.pop(call.number, None)
        session.unflushed.append(call.sequence)
        if self._flush_at_s is None:
            self._flush_at_s = 0.0

    def _resolve(
        self, session: ClientSession, *, proven: bool = True, settled: bool = False
    ) -> None:
        """Nothing of a lost session runs any more, or (``settled``) nothing that is
        pending ever ran, or nobody will ever say so."""
        self.lost.remove(session)
        for call in list(session.calls.values()):
            if call.stage is Stage.ANSWERED:
                continue
            consent = call.rerun
            if consent is None:
                consent = self._declared_rerun
            if not settled:
                call.allowance -= call.granted
                call.earlier += call.granted if consent else 1
                call.may_have_run = True
            if call.stage is Stage.EXPIRED:
                self._fail(call, limit_passed(started=call.may_have_run if settled else None))
            elif settled or (proven and consent and call.allowance > 0):
                self.reissued += 1
                self._requeue(call)
            else:
                self._fail(call, server_lost(proven, consent))

    def _requeue(self, call: Call) -> None:
        """Issue a call again, under a new id."""
        self._leave_session(call)
        if call.limit_s is None:
            self._timed.pop(call.number, None)  # it may have expired
        call.stage = Stage.QUEUED
        call.held_until_s = 0.0
        self._queue[call.number] = call

    def _fail(self, call: Call, info: ErrorInfo) -> None:
        if call.may_have_run:
            info = after_loss(info, call.earlier, call.most)
        del self.calls[call.number]
        self._timed.pop(call.number, None)
        if call.stage is Stage.QUEUED:
            del self._queue[call.number]
        else:
            self._leave_session(call)
        self._out.append(Fail(call.number, info))

    def _server(self, record: dict[str, Any], now_s: float) -> None:
        self.link.server = record
        if record.get("environment"):  # a server without workers yet knows of no declaration
            self._declared_rerun = bool(record.get("rerun"))
        if self._server_is(ServerStatus.READY) or self._server_is(ServerStatus.SILENT):
            self._unready_s = None  # how long workers may be silent is the server's to say
        elif self._unready_s is None:
            self._unready_s = now_s

    def _server_is(self, status: ServerStatus) -> bool:
        return self.link.server.get("status") == status.value

    def _report(self, level: str, text: str) -> None:
        self._out.append(Report(level, text))
