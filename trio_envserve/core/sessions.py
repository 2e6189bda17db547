"""Sessions of clients: who is there, under which connection, and for how long.

A session holds one :class:`~.work.Ticket` for each sequence that was seen and is not
finished; the finished ones are spans.  So *never seen*, *finished* and *forgotten* are three
different things, and nothing has to time out for correctness.

The client is heard with each message, and its lease starts anew.  A session without a ticket
is idle: at the bound the one that was idle for longest makes room for a new one.  It loses
nothing, since its client hears that all of it was settled and says hello again.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar, final

from .account import Account, Accounts
from .limits import ServerLimits
from .ranges import Ranges
from .requests import Owner
from .status import CacheStats
from .terms import Route, SessionId


class Standing(Protocol):
    """The record of an unfinished request in its session (:class:`~.work.Ticket`)."""

    sent_probe: int

    @property
    def standing(self) -> str:
        """State of the request, in a word."""


_Ticket = TypeVar("_Ticket", bound=Standing)


@dataclasses.dataclass(slots=True, eq=False)
class Session(Generic[_Ticket]):
    """The server's memory of one client."""

    account: Account
    caller: bytes
    """Caller of the session (:data:`~.key_records.CallerToken`)."""
    nonce: bytes
    route: Route
    connection: int
    seen_at: float
    """The awake time at which the client was last heard."""
    opener: Route
    """The connection on which it was opened, and among whose sessions it counts."""
    number: int
    """Number of sessions that were opened before it in this epoch."""
    owner: Owner | None = None
    """The key to which it belongs, where clients have keys."""
    tickets: dict[int, _Ticket] = dataclasses.field(default_factory=dict)
    finished: Ranges = dataclasses.field(default_factory=Ranges)
    owes: bool = False
    """Whether its client may not know that what it has cancelled ran."""
    ended: bool = False
    """Whether its lease has ended or its goodbye has come; it is forgotten when nothing of it
    runs."""
    probe: int = 0
    """The newest probe that was answered."""

    @property
    def id(self) -> SessionId:
        """Id of the session."""
        return self.account.id

    @property
    def name(self) -> str:
        """The client's name, for people."""
        return self.account.name

    def standing(self, sequence: int) -> str:
        """State of a request of this session, in a word or two."""
        ticket = self.tickets.get(sequence)
        if ticket is not None:
            return ticket.standing
        return "finished" if self.has_finished(sequence) else "not seen"

    def has_seen(self, sequence: int) -> bool:
        """Whether a request with this sequence was let in."""
        return sequence in self.tickets or self.has_finished(sequence)

    def has_finished(self, sequence: int) -> bool:
        """Whether a sequence without a ticket had one."""
        return self.ended or sequence in self.finished


@final
class Sessions(Generic[_Ticket]):
    """All sessions of one epoch."""

    def __init__(self, limits: ServerLimits, accounts: Accounts, counters: CacheStats) -> None:
        self.limits = limits
        self.counters = counters
        self._accounts = accounts
        self.known: OrderedDict[SessionId, Session[_Ticket]] = OrderedDict()
        """The session heard longest ago comes first."""
        self._idle: OrderedDict[SessionId, Session[_Ticket]] = OrderedDict()
        """The sessions without tickets, in the same order."""
        self._unsettled: dict[SessionId, None] = {}
        """Sessions whose lease ended while something was unfinished."""
        self._remembers = True
        """Whether ``_unsettled`` is complete: it never had more than the bound on sessions."""
        self._by_nonce: dict[bytes, Session[_Ticket]] = {}
        self._opened: dict[Route, int] = {}
        """Number of sessions that were opened on each connection."""
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        """Nonces whose clients have said goodbye, so that a late hello opens no session; as many
        as there may be sessions."""

    def open(
        self, session_id: SessionId, caller: bytes, nonce: bytes, name: str, route: Route,
        connection: int, now_s: float,
    ) -> Session[_Ticket] | None:  # fmt: skip
        """The session of a hello: the nonce's own, or a new one named ``session_id``.
        None if :meth:`refusal` has a reason."""
        known = self._by_nonce.get(nonce)
        if known is not None and not known.ended:
            self.moved(known, route, connection)
            self.seen(known, now_s)
            return known
        if self.refusal(nonce, route):
            self.counters.sessions_refused += 1
            return None
        if len(self.known) >= self.limits.sessions:
            idle = self._longest_idle()
            assert idle is not None
            self.end(idle)
            self.forget(idle)
        account = self._accounts.of_session(session_id, name)
        number = self.counters.sessions_opened
        session = Session[_Ticket](account, caller, nonce, route, connection, now_s, route, number)
        self.known[session_id] = self._idle[session_id] = session
        self._by_nonce[nonce] = session
        self._opened[route] = self._opened.get(route, 0) + 1
        self.counters.sessions_opened += 1
        return session

    def refusal(self, nonce: bytes, route: Route) -> str:
        """Why a new session cannot be opened for this nonce on this connection; empty if it
        can."""
        if nonce in self._by_nonce or nonce in self._ended:
            return "the session of this nonce has ended; say hello with a fresh nonce"
        if self._opened.get(route, 0) >= self.limits.connection_sessions:
            most = self.limits.connection_sessions
            return f"{most} sessions were opened on this connection, and more may not be"
        if len(self.known) >= self.limits.sessions and self._longest_idle() is None:
            return f"{len(self.known)} sessions are at work, and more may not be"
        return ""

    def of_nonce(self, nonce: bytes) -> Session[_Ticket] | None:
        """The session of this nonce, if there is one."""
        return self._by_nonce.get(nonce)

    def _longest_idle(self) -> Session[_Ticket] | None:
        return next((s for s in self._idle.values() if not s.account.live_executions), None)

    def settled(self, session_id: SessionId) -> bool:
        """Whether a session of this epoch, which is not known any more, was forgotten with
        nothing unfinished: what its client still has pending never ran."""
        return self._remembers and session_id not in self._unsettled

    def goodbye(self, identifier: SessionId | bytes) -> Session[_Ticket] | None:
        """A client leaves for good, and names its session, or its nonce if no welcome has come.
        Returns the session, which is then to be ended, if it has one."""
        session = self.known.get(identifier) or self._by_nonce.get(identifier)
        nonce = identifier if session is None else session.nonce
        self._ended[nonce] = None
        self._ended.move_to_end(nonce)
        if len(self._ended) > self.limits.sessions:
            self._ended.popitem(last=False)
        return session

    def seen(self, session: Session[_Ticket], now_s: float) -> None:
        """The client was heard: its lease starts anew."""
        session.seen_at = now_s
        self.known.move_to_end(session.id)
        if session.id in self._idle:
            self._idle.move_to_end(session.id)

    def moved(self, session: Session[_Ticket], route: Route, connection: int) -> None:
        """Answers go to the client's newest connection by its own count, not to the newest
        arrival."""
        if connection <= session.connection:
            return
        session.connection = connection
        session.route = route
        for ticket in session.tickets.values():
            ticket.sent_probe = -1  # whatever the old one still carried is lost

    def lapsed(self, now_s: float) -> Iterator[Session[_Ticket]]:
        """Sessions whose lease has ended by now, not yet ended."""
        for session in list(self.known.values()):
            if now_s - session.seen_at <= self.limits.lease_s:
                break
            if not session.ended:
                yield session

    def busy(self, session: Session[_Ticket]) -> None:
        """Note that a session has a first ticket."""
        self._idle.pop(session.id, None)

    def idle(self, session: Session[_Ticket]) -> None:
        """Note that a session has no ticket any more."""
        if not session.ended:
            self._idle[session.id] = session

    def end(self, session: Session[_Ticket]) -> None:
        """End a session whose lease has ended, or whose goodbye has come.  Its tickets are to be
        dropped then, and :meth:`forget` is due when nothing of it runs any more."""
        unfinished = session.tickets or session.owes
        if unfinished and session.nonce not in self._ended:  # a goodbye finishes all
            self._remembers = self._remembers and len(self._unsettled) < self.limits.sessions
            if self._remembers:
                self._unsettled[session.id] = None
        session.ended = True
        self._idle.pop(session.id, None)
        self.counters.sessions_ended += 1

    def forget(self, session: Session[_Ticket]) -> bool:
        """Drop an ended session if none of its executions lives.

        A worker's death ends several executions at once, so it may be gone by now."""
        if not session.ended or session.account.live_executions or session.id not in self.known:
            return False
        del self.known[session.id]
        del self._by_nonce[session.nonce]
        self._opened[session.opener] -= 1
        if not self._opened[session.opener]:
            del self._opened[session.opener]
        return True
