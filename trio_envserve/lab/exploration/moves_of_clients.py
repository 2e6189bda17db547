"""The actions of a client and its link."""

from __future__ import annotations

from . import names
from .step import Step, without_first


class ClientMoves(Step):
    """One method for each action; ``c`` is the client's index."""

    def _up(self, c: int) -> None:
        part = self.clients[c]
        self.clients[c] = part._replace(up=part.up[1:])
        connection = self.world.clients.info[part.core].connections
        self._server_hears(names.route(c, connection), part.up[0])

    def _late(self, c: int) -> None:
        part = self.clients[c]
        way, connection, message = part.late[0]
        self.clients[c] = part._replace(late=part.late[1:])
        if way == "up":
            self._server_hears(names.route(c, connection), message)
        else:
            self._client(c, "message", message)

    def _down(self, c: int) -> None:
        part = self.clients[c]
        self.clients[c] = part._replace(down=part.down[1:])
        self._client(c, "message", part.down[0])

    def _ask(self, c: int) -> None:
        part = self.clients[c]
        self.clients[c] = part._replace(asked=part.asked + 1)
        self._client(c, "ask", part.asked, names.request_key(c, part.asked))

    def _take(self, c: int, call: int) -> None:
        self._client(c, "take", call)
        self.judge.forget(names.request_key(c, call))

    def _connect(self, c: int) -> None:
        self._client(c, "connect")

    def _flush(self, c: int) -> None:
        self._client(c, "flush")

    def _scan(self, c: int) -> None:
        self._client(c, "scan")

    def _again(self, c: int, call: int) -> None:
        self._client(c, "again", call)

    def _ping(self, c: int) -> None:
        self._spend("pings")
        self._client(c, "ping")

    def _idle_ping(self, c: int) -> None:
        self._client(c, "ping")

    def _cut(self, c: int, late: bool) -> None:
        self._spend("cuts")
        self._disconnect(c, late=late)

    def _stray(self, c: int, way: str, copy: bool) -> None:
        self._spend("strays")
        part = self.clients[c]
        connection = self.world.clients.info[part.core].connections
        message = (part.up if way == "up" else part.down)[0]
        part = part._replace(late=(*part.late, (way, connection, message)))
        self.clients[c] = part if copy else without_first(part, way)

    def _lose(self, c: int, way: str) -> None:
        self._spend("losses")
        self.clients[c] = without_first(self.clients[c], way)

    def _cancel(self, c: int, call: int) -> None:
        self._spend("cancels")
        self.judge.forget(names.request_key(c, call))
        self._client(c, "cancel", call)

    def _limit(self, c: int, call: int) -> None:
        self._spend("limits")
        self.judge.excuse([names.request_key(c, call)])
        self._client(c, "limit", call)

    def _despair(self, c: int, session: bytes) -> None:
        self._spend("despairs")
        self._client(c, "despair", session)

    def _close(self, c: int) -> None:
        self._spend("closes")
        self._excuse_client(c)
        self._client(c, "close")
