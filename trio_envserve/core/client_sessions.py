"""The sessions of a client: the one in use, and those that the server does not know.

A session the server does not know is *lost*.  Its calls stay in it until it is
resolved: the server says that nothing of it runs any more, or that nothing of it
ever ran, or nobody says either for long.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import messages
from .calls import Call, ClientSession
from .ranges import Ranges
from .terms import SessionId


class Sessions:
    """All sessions in which a client has calls, or may have."""

    def __init__(self) -> None:
        self.current: ClientSession | None = None
        self.lost: list[ClientSession] = []
        self.opened = 0

    def __iter__(self) -> Iterator[ClientSession]:
        """Lost ones first, then the one in use."""
        yield from self.lost
        if self.current is not None:
            yield self.current

    def find(self, session_id: SessionId) -> ClientSession | None:
        """The session of this id."""
        if self.current is not None and self.current.id == session_id:
            return self.current
        return next((s for s in self.lost if s.id == session_id), None)

    def call(self, session_id: SessionId, sequence: int) -> Call | None:
        """The call of this id; None if it is gone."""
        session = self.find(session_id)
        return None if session is None else session.calls.get(sequence)

    def open(self, welcome: messages.Welcome) -> None:
        """The server grants a session."""
        self.opened += 1
        self.current = ClientSession(
            welcome.session, welcome.epoch, welcome.window, welcome.message_bytes
        )

    def lose(self, session: ClientSession, now_s: float) -> None:
        """The server does not know the session in use."""
        self.current = None
        session.lost_s = now_s
        self.lost.append(session)

    def given_up(self, now_s: float, recovery_s: float) -> list[ClientSession]:
        """Lost ones of which the server has said nothing for long, or that are empty."""
        return [s for s in self.lost if not s.calls or now_s - _lost_s(s) >= recovery_s]

    def was_late(self, late_s: float) -> None:
        """The loop was late: what is waited for gets that time back."""
        for session in self.lost:
            session.lost_s = _lost_s(session) + late_s

    def syncs(self, connection: int, probe: int) -> Iterator[messages.Sync]:
        """The client's statements, which say what is finished, too."""
        for session in self:
            yield messages.Sync(
                session.id, session.epoch, connection, probe, session.next, session.pending()
            )
            session.unflushed.clear()

    def finishes(self) -> Iterator[messages.Finish]:
        """The finished requests that the server was not told of."""
        for session in self:
            if session.unflushed:
                yield messages.Finish(session.id, Ranges(session.unflushed).flat())
                session.unflushed.clear()


def _lost_s(session: ClientSession) -> float:
    assert session.lost_s is not None
    return session.lost_s
