"""The sessions of a client: the one in use, and those that the server does not know.

A session that the server does not know is *lost*.  Its calls stay in it until it is resolved: until
the server says that nothing of it runs any more, or that nothing of it ever ran, or until neither
has come for ``recovery_s``.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import messages
from .calls import Call, ClientSession
from .ranges import Ranges
from .terms import SessionId


class Sessions:
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
