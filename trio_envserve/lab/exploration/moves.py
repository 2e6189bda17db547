"""Actions by name, and the methods that carry out those that are more than an input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from ...core import error_records, messages
from ...core.errors import ErrorInfo
from ...core.terms import Status, Verdict
from . import names
from .actions import CLIENT, SERVER, WORKER, Kind
from .state import DEAD, WorkerPart
from .step import Step, without_first

KINDS: Final[Mapping[str, Kind]] = {
    "up": Kind(CLIENT, "server <- {me}: {up}"),
    "down": Kind(CLIENT, "{me} <- server: {down}"),
    "late": Kind(CLIENT, "late: {late}"),
    "ask": Kind(CLIENT, "{me} asks"),
    "take": Kind(CLIENT, "{me}: the caller of call {0} takes its outcome"),
    "connect": Kind(CLIENT, "{me} connects", given="connect"),
    "flush": Kind(CLIENT, "{me} acknowledges what its callers have", given="flush"),
    "scan": Kind(CLIENT, "{me} tries again what was refused for now", given="scan"),
    "ping": Kind(CLIENT, "{me} pings", "pings", "ping"),
    "idle_ping": Kind(CLIENT, "{me} pings", given="ping"),
    "again": Kind(CLIENT, "{me} asks again whether call {0} ran", given="again"),
    "cut": Kind(CLIENT, "{me} is cut off", "cuts"),
    "lose": Kind(CLIENT, "a message of {me}'s connection is lost ({0})", "losses"),
    "stray": Kind(CLIENT, "a message of {me}'s connection is left behind ({0})", "strays"),
    "cancel": Kind(CLIENT, "{me}: call {0} is cancelled", "cancels"),
    "limit": Kind(CLIENT, "{me}: the limit of call {0} passes", "limits"),
    "despair": Kind(CLIENT, "{me} gives up a lost session", "despairs", "despair"),
    "close": Kind(CLIENT, "{me} is closed", "closes"),
    "wup": Kind(WORKER, "server <- {me}: {up}"),
    "wdown": Kind(WORKER, "{me} <- server: {down}"),
    "wlate": Kind(WORKER, "late: {late}"),
    "end": Kind(WORKER, "{me}: execution {0} ends"),
    "die": Kind(WORKER, "{me} dies"),
    "crash": Kind(WORKER, "{me} crashes", "crashes"),
    "beat": Kind(WORKER, "{me} beats", "beats", "beat"),
    "idle_beat": Kind(WORKER, "{me} beats", given="beat"),
    "wcut": Kind(WORKER, "{me} is cut off, and back", "worker_cuts"),
    "wlose": Kind(WORKER, "a message of {me}'s connection is lost ({0})", "losses"),
    "wstray": Kind(WORKER, "a message of {me}'s connection is left behind ({0})", "strays"),
    "reap": Kind(WORKER, "{me} is reaped"),
    "restart": Kind(SERVER, "server is killed; another answers at its address", "restarts"),
    "open": Kind(SERVER, "server knows that all before it is dead, and may start workers"),
    "start": Kind(SERVER, "server replaces a worker", given="start"),
    "tick": Kind(SERVER, "server ticks", given="tick"),
    "settle": Kind(
        SERVER, "server has waited long enough for the last words of {where}", given="settle"
    ),
    "silence": Kind(
        SERVER, "server has not heard {where} for a long time", "kills", "silence"
    ),
    "stop": Kind(SERVER, "server sees {where} ignore a cancel for a long time", "kills", "stop"),
    "lease": Kind(SERVER, "server ends the lease of {where}", "leases"),
    "idle_lease": Kind(
        SERVER, "server ends the lease of {where}, of which nobody knows", given="lease"
    ),
    "deadline": Kind(SERVER, "server sees the deadline of {where} pass", "limits"),
    "forge": Kind(SERVER, "server <- somebody: another payload as {where}", "forgeries"),
}  # fmt: skip
"""By name."""


class Move(Step):
    """One action, from a state to the next.  A method for each that is more than an input;
    ``c`` and ``w`` are the index of a client and of a worker."""

    KINDS: ClassVar = KINDS

    # -- a client and its link ------------------------------------------------------

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

    def _cut(self, c: int, late: bool) -> None:
        self._disconnect(c, late=late)

    def _stray(self, c: int, way: str, copy: bool) -> None:
        part = self.clients[c]
        connection = self.world.clients.info[part.core].connections
        message = (part.up if way == "up" else part.down)[0]
        part = part._replace(late=(*part.late, (way, connection, message)))
        self.clients[c] = part if copy else without_first(part, way)

    def _lose(self, c: int, way: str) -> None:
        self.clients[c] = without_first(self.clients[c], way)

    def _cancel(self, c: int, call: int) -> None:
        self.judge.forget(names.request_key(c, call))
        self._client(c, "cancel", call)

    def _limit(self, c: int, call: int) -> None:
        self.judge.excuse([names.request_key(c, call)])
        self._client(c, "limit", call)

    def _close(self, c: int) -> None:
        self._excuse_client(c)
        self._client(c, "close")

    # -- a worker, its link, and the environment code on it ---------------------------

    def _wup(self, w: int) -> None:
        part = self.workers[w]
        self.workers[w] = part._replace(up=part.up[1:])
        self._server_hears_worker(part, part.up[0])

    def _wlate(self, w: int) -> None:
        """Deliver a message that was left behind to whoever has that worker's name by now."""
        part = self.workers[w]
        way, message = part.late[0]
        self.workers[w] = part._replace(late=part.late[1:])
        if way == "up":
            self._server_hears_worker(part, message)
            return
        for other, each in reversed(list(enumerate(self.workers))):
            if each.id == part.id and each.core != DEAD:
                self._worker_hears(other, message)
                return

    def _server_hears_worker(self, part: WorkerPart, number: int) -> None:
        message = self.world.mail.message[number]
        if isinstance(message, messages.WorkerOutcome) and part.life == self.life:
            result = message.status == Status.RESULT
            if result:
                payload = self.world.mail.frames[number][3]
                self.judge.reported((part.life, part.id, message.number), payload)
        self._server("worker", part.id, number)

    def _wdown(self, w: int) -> None:
        part = self.workers[w]
        self.workers[w] = part._replace(down=part.down[1:])
        self._worker_hears(w, part.down[0])

    def _worker_hears(self, w: int, number: int) -> None:
        part = self.workers[w]
        self._worker(w, "message", number)
        if self.world.mail.frames[number][0] == names.incarnation(part.life, part.id):
            begun = self.world.workers.info[self.workers[w].core].begun
            message = self.world.mail.message[number]
            self.judge.worker_heard(part.life, part.id, message, begun)

    def _end(self, w: int, number: int, result: bool) -> None:
        """Environment code ends: with a result, or, if it was told to, without."""
        run, self.workers[w] = self.workers[w].ended(number)
        part = self.workers[w]
        status = Status.RESULT if result else Status.CANCELLED
        payload = b"%b@e%d-%b-%d" % (run.key, part.life, part.id, number)
        if not result:
            info = ErrorInfo("cancelled", Verdict.RAN_AND_FAILED, payload.decode())
            payload = error_records.encode(info)
        self._worker(w, "ended", number, int(status), payload)

    def _wcut(self, w: int) -> None:
        """Its connection is made anew at once, under the same id."""
        self.workers[w] = self.workers[w]._replace(up=(), down=())

    def _wstray(self, w: int, way: str, copy: bool) -> None:
        part = self.workers[w]
        message = (part.up if way == "up" else part.down)[0]
        part = part._replace(late=(*part.late, (way, message)))
        self.workers[w] = part if copy else without_first(part, way)

    def _wlose(self, w: int, way: str) -> None:
        self.workers[w] = without_first(self.workers[w], way)

    def _crash(self, w: int, keep: bool) -> None:
        self._die(w, keep)

    def _reap(self, w: int) -> None:
        part = self.workers[w]
        self.workers[w] = part._replace(reaped=True)
        self._server("exited", part.id)

    # -- the server -------------------------------------------------------------------

    def _lease(self, session: bytes) -> None:
        self._excuse_client(names.owner(session))
        self._server("lease", session)

    def _forge(self, session: bytes, sequence: int) -> None:
        digest = names.session(0, b"forged")
        request = messages.Request(session, sequence, digest, True, 3, None)
        message = self.world.mail.number((messages.encode(request), b"forged"))
        said = self._server("client", names.route(names.owner(session), 0), message)
        if not any(isinstance(self.world.mail.message[m], messages.Refused) for m in said):
            self.judge.violation("G6", "another payload is taken for the first")

    def _deadline(self, session: bytes, sequence: int) -> None:
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
