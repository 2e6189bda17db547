"""The actions of the server."""

from __future__ import annotations

from ...core import messages
from . import names
from .state import DEAD
from .step import Step


class ServerMoves(Step):
    """One method for each action."""

    def _tick(self) -> None:
        self._server("tick")

    def _settle(self, worker: bytes) -> None:
        self._server("settle", worker)

    def _start(self, slot: int) -> None:
        self._server("start", slot)

    def _silence(self, worker: bytes) -> None:
        self._spend("kills")
        self._server("silence", worker)

    def _stop(self, worker: bytes) -> None:
        self._spend("kills")
        self._server("stop", worker)

    def _lease(self, session: bytes) -> None:
        self._spend("leases")
        self._excuse_client(names.owner(session))
        self._server("lease", session)

    def _idle_lease(self, session: bytes) -> None:
        """Nobody knows this session any more: it is not heard of again."""
        self._server("lease", session)

    def _forge(self, session: bytes, sequence: int) -> None:
        self._spend("forgeries")
        digest = names.session(0, b"forged")
        request = messages.Request(session, sequence, digest, True, 3, None)
        message = self.world.mail.number((messages.encode(request), b"forged"))
        said = self._server("client", names.route(names.owner(session), 0), message)
        if not any(isinstance(self.world.mail.message[m], messages.Refused) for m in said):
            self.judge.violation("G6", "another payload is taken for the first")

    def _deadline(self, session: bytes, sequence: int) -> None:
        self._spend("limits")
        key = self._key_of((session, sequence))
        if key is not None:
            self.judge.excuse([key])
        self._server("deadline", session, sequence)

    def _open(self) -> None:
        dead = tuple(names.epoch(life) for life in range(self.life))
        self._server("open", dead)

    def _restart(self) -> None:
        """The server is killed and another one answers at its address at once.

        Its idle workers die with it; busy ones live on for a while, and connect to
        the new server, which takes them for strangers."""
        self._spend("restarts")
        self.life += 1
        self.judge.server_died()
        self.workers = [
            part._replace(up=(), down=(), doomed=False, core=part.core if part.runs else DEAD)
            for part in self.workers
        ]
        self.router = self.world.routers.new(self.life)
        for c, part in enumerate(self.clients):
            self.clients[c] = part._replace(late=())
            if self.world.clients.info[part.core].connected:
                self._disconnect(c, late=False)
