"""Whether servers close as they promise.

Closing ends within the sum of its limits, the time in which the server was stopped
not counted; no work is begun meanwhile; what was taken in is answered; and the status
says so.  The judge knows from the world when closing began, never from the router.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...core import messages
from ...core.closing import ClosingStage
from ...core.limits import WireLimits
from ...core.terms import Body, RequestId
from .judge_health import Health
from .judge_keys_work import label_of
from .judge_records import key_of
from .plan import Fault

if TYPE_CHECKING:
    from .actor_server import SimServer
    from .actor_worker import SimWorker

STAGES = [stage.value for stage in ClosingStage]


@dataclasses.dataclass(slots=True)
class _Began:
    """When a server began to close, how long it had been held up by then, and the
    latest stage that it told of."""

    at_s: float
    held_s: float
    stage: int = 0
    late: bool = False


class Closings(Health):
    """The part of the judge that watches servers close."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unsent: set[RequestId] = set()
        """Requests that were answered or refused while their client was not connected."""
        self._began: dict[SimServer, _Began] = {}

    def closing_began(self, server: SimServer) -> None:
        """A server was told to close, for the first time or again."""
        self.draining.add(server)
        self._began.setdefault(server, _Began(self.clock(), server.held_s))

    def closing_seen(self, server: SimServer) -> None:
        """A server has ticked: is it late?"""
        began = self._began.get(server)
        if began is None or began.late or not server.alive:
            return
        limits = self.plan.server
        stages_s = (limits.drain_s, limits.stop_s, limits.stop_s, limits.reap_s)
        most_s = sum(stages_s) + WireLimits().flush_s + len(STAGES) * limits.tick_s
        took_s = self.clock() - began.at_s - (server.held_s - began.held_s)
        if took_s > most_s:
            began.late = True
            text = f"{server.name} has been closing for {took_s:.1f} s, {most_s:.1f} s allowed"
            self.violation("G9", text)

    def server_told_nobody(self, message: messages.Message, body: Body | None) -> None:
        """A server answers a client that is not connected."""
        if isinstance(message, (messages.Outcome, messages.Refused)):
            self.unsent.add(RequestId(message.session, message.sequence))
        elif isinstance(message, messages.Unknown):
            self.unknown.add(message.session)
            self.keys.lost(message.session)
        if isinstance(message, messages.Outcome):
            self.keys.told(message, body)
        elif isinstance(message, messages.Refused):
            self.keys.refused(message)

    def closed(self, server: SimServer) -> None:
        """A server has closed: has everybody heard?"""
        for request, key in self.first.items():
            home, client = self.sessions.get(request.session, (None, ""))
            # Who is told that its session is unknown has heard of all that was in it.
            if home is not server or client == "hostile" or request.session in self.unknown:
                continue
            call = self.calls.get(key)
            if self.journal.on and self.plan.has(Fault.SLOW_DISK) and call and call.use:
                continue  # closing ends before a sync that takes longer than its limits
            finished = self.finished.get(request.session, ())
            told = request in self.outcomes or request in self.refused or request in self.unsent
            if not told and request.sequence not in finished and not self.unheard(request.session):
                text = f"{server.name} took {key} in, and closes without an answer"
                self.violation("G9", text, key)

    def statement_sent(
        self, worker: SimWorker, message: messages.Message, body: Body | None
    ) -> None:
        """No work is begun by a server that closes; that is sent again is no beginning."""
        if isinstance(message, messages.Dispatch):
            assert body is not None
            begun = (worker, message.number) in self.dispatched
            if self.journal.on and label_of(key_of(body)):  # it waited for the disk
                began = self._began.get(worker.server)
                begun |= began is None or self.journal.started_s(message.sequence) <= began.at_s
            if worker.server in self.draining and not begun:
                key = self.key_of_request(RequestId(message.session, message.sequence))
                self.violation("G7", f"{worker.server.name} closes, and begins {key}", key)
        super().statement_sent(worker, message, body)

    def status_told(self, server: SimServer, status: dict[str, Any]) -> None:
        """A server that closes says so, and how far it is."""
        super().status_told(server, status)
        began = self._began.get(server)
        stage = status.get("closing", {}).get("stage", "")
        if (status["status"] == "stopping") != (began is not None):
            self.violation("G9", f"{server.name} says that it is {status['status']}")
        elif began is not None:
            order = STAGES.index(stage) if stage in STAGES else 0
            if order < max(began.stage, 1):
                self.violation("G9", f"{server.name} closes, and says that it is {stage!r}")
            began.stage = order
