"""Health of a server as its client sees it, by the answers to the client's probes.

An unhealthy server has no consequence by itself: nothing is cancelled and nothing runs again.
Health tells people and programs what is known, with the reason.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from .limits import ClientLimits


class Health(enum.Enum):
    """The health of a server as its clients see it."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclasses.dataclass(frozen=True, slots=True)
class ServerHealth:
    """The health of a server as one client sees it; see :meth:`.Client.health`."""

    health: Health
    """Starting, healthy or unhealthy."""
    reason: str
    """The reason in words; may be empty for a healthy server."""


class ServerStatus(enum.Enum):
    """A server's status; each answer to a sync has it."""

    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    BROKEN = "broken"
    STOPPING = "stopping"


@dataclasses.dataclass(slots=True)
class Link:
    """A client's link to its server: what the probes and answers on it mean.

    A probe that was not answered while the client's own event loop was late proves nothing, and
    does not count.
    """

    limits: ClientLimits
    born_s: float
    connected: bool = False
    trouble: str = ""
    """The transport's last error text, such as a refused connection; empty after an answer."""
    answered_s: float | None = None
    """Moment of the server's last message; None before the first one."""
    asked_s: float | None = None
    """Moment at which the oldest unanswered probe was sent, or before that the connection was lost;
    None if the server has answered since."""
    server: dict[str, object] = dataclasses.field(default_factory=dict)
    """The server's last status record."""
    connected_s: float = dataclasses.field(init=False)
    """Moment from which on an answer may be expected on this connection."""
    unready_s: float | None = dataclasses.field(init=False)
    """Moment since which the server is not ready, as far as known; None if it is."""
    patience_s: float = dataclasses.field(init=False)
    """Time without an answer after which the connection is made anew."""

    def __post_init__(self) -> None:
        self.connected_s = self.unready_s = self.born_s
        self.patience_s = self.limits.reconnect_s

    def connect(self, now_s: float) -> None:
        """Note a new connection."""
        self.connected = True
        self.connected_s = now_s

    def disconnect(self, now_s: float, trouble: str) -> None:
        """Note that the connection was lost, or could not be made: from now on the server counts
        as asked, and so as silent until a message of it comes."""
        self.connected = False
        self.trouble = trouble
        self.asked(now_s)

    def asked(self, now_s: float) -> None:
        """Note that a probe was sent."""
        if self.asked_s is None:
            self.asked_s = now_s

    def answered(self, now_s: float) -> None:
        """Note a message of the server."""
        self.answered_s = now_s
        self.asked_s = None
        self.trouble = ""
        self.patience_s = self.limits.reconnect_s

    def was_late(self, now_s: float, late_s: float) -> None:
        """Note that the client's own loop was late by ``late_s``: every wait starts anew."""
        if self.asked_s is not None:
            self.asked_s = now_s
        self.connected_s = now_s
        if self.unready_s is not None:
            self.unready_s += late_s

    def status(self, record: dict[str, Any], now_s: float) -> None:
        """Take in a status record of the server."""
        self.server = record
        if self.server_is(ServerStatus.READY) or self.server_is(ServerStatus.SILENT):
            self.unready_s = None  # the server decides how long its workers may be silent
        elif self.unready_s is None:
            self.unready_s = now_s

    def stopping(self, now_s: float) -> None:
        """Note that the server stops."""
        self.status({**self.server, "status": ServerStatus.STOPPING.value}, now_s)

    def no_session(self, now_s: float) -> None:
        """Forget the status from the last session: the server that is here grants none yet."""
        status = {"status": ServerStatus.STARTING.value, "reason": "it grants no session yet"}
        self.status(status, now_s)

    def server_is(self, status: ServerStatus) -> bool:
        """Whether the server's last status record says this."""
        return self.server.get("status") == status._value_  # .value would cost a call

    def silent(self, now_s: float) -> bool:
        """Whether there is no connection, or a probe was not answered for ``probe_s``."""
        if not self.connected:
            return True
        return self.asked_s is not None and now_s - self.asked_s >= self.limits.probe_s

    def unready_since_s(self, now_s: float) -> float:
        """Moment since which the server is not ready or does not answer; now if it is and does."""
        if self.unready_s is not None:
            return self.unready_s
        return self.asked_s if self.asked_s is not None else now_s

    def limit_s(self, called_s: float, now_s: float, *, again: bool) -> float:
        """Time that a call of the moment ``called_s`` may take if it has no limit of its own:
        ``recovery_s`` (``start_s`` if there was no session before: ``again``) from the moment since
        which the server is not ready.  At a ready server that is now, so there is no limit."""
        limit_s = self.limits.recovery_s if again else self.limits.start_s
        return max(called_s, self.unready_since_s(now_s)) - called_s + limit_s

    def leave(self, now_s: float) -> bool:
        """Whether to make a new connection because nothing was answered on this one.

        A vanished peer or a network that drops packets reports no error.  A server that is stopped
        for long looks alike, so the time until the next new connection doubles."""
        if not self.connected or self.asked_s is None:
            return False
        if now_s - max(self.asked_s, self.connected_s) < self.patience_s:
            return False
        self.patience_s *= 2
        self.connected_s = now_s
        return True

    def health(self, now_s: float) -> tuple[Health, str]:
        """The health and its reason in words."""
        unanswered_s = 0.0 if self.asked_s is None else now_s - self.asked_s
        young = now_s - self.born_s < self.limits.unreachable_report_s
        if self.answered_s is None:
            if young:
                return Health.STARTING, self.trouble or "no answer yet"
            return Health.UNHEALTHY, self.trouble or "no answer from the server yet"
        stopped = self.server_is(ServerStatus.STOPPING) and self.trouble
        if stopped:
            return Health.UNHEALTHY, "the server has stopped, and no other is there yet"
        if unanswered_s >= self.limits.probe_s:
            why = self.trouble or "the server does not answer"
            return Health.UNHEALTHY, f"{why} (for {unanswered_s:.0f} s)"
        if not self.server and not self.trouble and young:
            return Health.STARTING, "no session yet"
        if not self.server:
            return Health.UNHEALTHY, self.trouble or "the server grants no session"
        status = self.server.get("status")
        reason = str(self.server.get("reason", ""))
        if status == ServerStatus.READY.value:
            return Health.HEALTHY, reason
        if status == ServerStatus.STARTING.value:
            return Health.STARTING, reason or "the server has no worker ready yet"
        return Health.UNHEALTHY, reason or f"the server is {status}"
