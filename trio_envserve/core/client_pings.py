"""The pings of a client: their times, their messages, and their answers.

Theory of operation
-------------------
A ping has a :class:`~.messages.Sync` for each session of the client; while no session is in use, it
has a hello, too.  The syncs of one ping have one number, the probe.  Until they are answered, the
syncs of the next ping have the same number, so that the server can tell lost requests from requests
under way.

The pings of a client that has nothing pending and nothing to acknowledge would be alike: the pauses
between them grow until the next call.
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
