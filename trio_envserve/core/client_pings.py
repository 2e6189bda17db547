"""The pings of a client: when they are due, what they say, and whether they are answered.

Theory of operation
-------------------
A ping states each session that the client has (:class:`~.messages.Sync`); while none is in
use it is a hello, too.  The syncs of one ping have one number, the probe.  Until they are
answered the next ones have the same, so that the server can tell what is lost from what is
under way.

A client that has nothing pending and nothing to acknowledge would only repeat itself: its
pauses grow, until something is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import messages
from .calls import ClientSession
from .client_sessions import Sessions
from .key_records import CallerToken
from .limits import PROTOCOL_VERSION, ClientLimits, WireLimits
from .terms import Epoch


class Pings:
    """The pings of one client."""

    def __init__(
        self, name: str, caller: CallerToken, new_id: Callable[[], bytes], now_s: float,
        sessions: Sessions, limits: ClientLimits, wire: WireLimits,
    ) -> None:  # fmt: skip
        self.name = name
        self._caller = caller
        self.connections = 0
        """How many connections there were; numbers them for the server."""
        self.probe = 0
        """The number of the last syncs."""
        self.known = True
        """The server behind this connection is known to know the session.  Until then
        nothing new is asked in it: if it is lost, nobody could tell that it never ran."""
        self.at_s = now_s
        """When the next ping is due."""
        self.pause_s = limits.ping_s
        """How long after the last one that is.  It grows with each answer to a statement of
        nothing, as long as nothing is asked."""
        self._most_pause_s = limits.idle_ping_s
        """How long it may become: less, once a server has forgotten a session meanwhile."""
        self._idle_at: int | None = None
        """The `next` of the last sync, if that had nothing pending and is not answered."""
        self._answered = True
        """Whether the last syncs are answered, or never will be."""
        self._nonce = b""
        """That of the hello that is under way, or its welcome."""
        self._nonce_of = 0
        """The connection by which that was said first."""
        self._new_id = new_id
        self._sessions = sessions
        self._limits = limits
        self._wire = wire

    # -- what is said -----------------------------------------------------------

    def next(self, now_s: float, *, idle: bool, closed: bool) -> list[messages.Message]:
        """The messages of a ping.  ``idle``: nothing is pending.  ``closed``: no further
        session is wanted."""
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
                # Before the first connection there is nobody who hears it.
                self._nonce, self._nonce_of = self._new_id(), max(1, self.connections)
            said.append(
                messages.Hello(
                    PROTOCOL_VERSION, self._nonce, self.connections, self.name,
                    self._wire.message_bytes, self._caller,
                )
            )  # fmt: skip
        return said

    def goodbyes(self) -> Iterator[messages.Goodbye]:
        """The end of each session, and of the one that a hello has asked for."""
        for session in self._sessions:
            yield messages.Goodbye(session.id)
        if self._nonce:
            yield messages.Goodbye(self._nonce)

    # -- what is heard ----------------------------------------------------------

    def connected(self) -> None:
        """There is another connection, and behind it perhaps another server."""
        self.connections += 1
        self._answered = True  # or its answer is lost with the old connection
        self.known = False

    def welcomed(self, welcome: messages.Welcome, now_s: float) -> bool:
        """A session is granted.  Whether it is the one that was asked for: it is in use now."""
        if self._sessions.current is not None or welcome.nonce != self._nonce:
            return False
        self._sessions.open(welcome)
        self._nonce = b""
        # The server behind an earlier connection may have said it, before that was lost.
        self.known = self._nonce_of == self.connections
        self.at_s = now_s + self._limits.ping_s if self.known else now_s
        return True

    def synced(self, session: ClientSession, probe: int, *, idle: bool, ready: bool) -> None:
        """The server knows the session in use, and has this sync of it.  ``idle``: nothing is
        pending.  ``ready``: the server is."""
        if probe == self.probe:  # else it is of before a sleep, or of an earlier connection
            self._answered = self.known = True
        if idle and self._answered and self._idle_at == session.next:
            self._idle_at = None  # this answer may come twice
            if ready and not self._sessions.lost:  # else there may be news
                self._rest()

    def _rest(self) -> None:
        """The server knows that nothing is pending, and nothing to acknowledge: the next
        ping would repeat this one."""
        before_s = self.pause_s
        self.pause_s = max(before_s, min(2 * before_s, self._most_pause_s))
        self.at_s += self.pause_s - self._limits.ping_s

    def hasten(self, now_s: float) -> None:
        """Something is asked: from now on something may be lost."""
        self.pause_s = self._limits.ping_s
        self.at_s = min(self.at_s, now_s + self.pause_s)

    def lost(self, session: ClientSession, epoch: Epoch) -> None:
        """A server of this epoch does not know the session that was in use."""
        self._answered = True
        if epoch == session.epoch and self.pause_s > self._limits.ping_s:
            self._most_pause_s /= 2  # its lease, which nobody tells, may be shorter
            self.pause_s = self._limits.ping_s

    def was_late(self, now_s: float) -> None:
        """The loop was late, and the session may be forgotten: hear of it first."""
        if self.known:
            self._answered = True  # what is answered yet was asked before
        self.known = self._sessions.current is None
        self.at_s = now_s
