"""Health: of a server, for its clients, and of a client's link.

Being unhealthy decides nothing by itself: it cancels nothing and re-runs
nothing.  It tells people and programs what is known, with the reason.
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
    """Why, in words; may be empty for a server that is healthy."""


class ServerStatus(enum.Enum):
    """A server's status, as it is in each answer to a sync."""

    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    BROKEN = "broken"
    STOPPING = "stopping"


@dataclasses.dataclass(slots=True)
class Link:
    """A client's view of its server: probes, answers, and what they mean.

    A probe that went unanswered while this side's own loop was late proves
    nothing and is not counted.
    """

    limits: ClientLimits
    born_s: float
    connected: bool = False
    trouble: str = ""
    """The transport's last words, e.g. that nobody listens."""
    answered_s: float | None = None
    """When the server last answered anything."""
    asked_s: float | None = None
    """When the oldest probe that is still unanswered was sent."""
    server: dict[str, object] = dataclasses.field(default_factory=dict)
    """The server's status record, as last heard."""
    declared_rerun: bool = False
    """The environment's declaration, as far as a server has said it."""
    connected_s: float = dataclasses.field(init=False)
    """Since when the connection has had time to answer."""
    unready_s: float | None = dataclasses.field(init=False)
    """Since when the server has not been ready, as far as known."""
    patience_s: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.connected_s = self.unready_s = self.born_s
        self.patience_s = self.limits.reconnect_s

    def connect(self, now_s: float) -> None:
        """A connection was made."""
        self.connected = True
        self.connected_s = now_s

    def disconnect(self, now_s: float, trouble: str) -> None:
        """The connection is gone, or could not be made."""
        self.connected = False
        self.trouble = trouble
        self.asked(now_s)

    def asked(self, now_s: float) -> None:
        """A probe was sent."""
        if self.asked_s is None:
            self.asked_s = now_s

    def answered(self, now_s: float) -> None:
        """The server was heard."""
        self.answered_s = now_s
        self.asked_s = None
        self.trouble = ""
        self.patience_s = self.limits.reconnect_s

    def was_late(self, now_s: float, late_s: float) -> None:
        """This side's own loop was late: whatever waits starts waiting now."""
        if self.asked_s is not None:
            self.asked_s = now_s
        self.connected_s = now_s
        if self.unready_s is not None:
            self.unready_s += late_s

    def status(self, record: dict[str, Any], now_s: float) -> None:
        """The server's status record has come."""
        self.server = record
        if record.get("environment"):  # a server without workers yet knows of no declaration
            self.declared_rerun = bool(record.get("rerun"))
        if self.server_is(ServerStatus.READY) or self.server_is(ServerStatus.SILENT):
            self.unready_s = None  # how long workers may be silent is the server's to say
        elif self.unready_s is None:
            self.unready_s = now_s

    def stopping(self, now_s: float) -> None:
        """The server has shown that it stops."""
        self.status({**self.server, "status": ServerStatus.STOPPING.value}, now_s)

    def no_session(self, now_s: float) -> None:
        """What was known of the server with the last session says nothing about this one."""
        status = {"status": ServerStatus.STARTING.value, "reason": "it grants no session yet"}
        self.status(status, now_s)

    def server_is(self, status: ServerStatus) -> bool:
        """Whether this is what the server said of itself last."""
        return self.server.get("status") == status._value_  # .value takes a call

    def silent(self, now_s: float) -> bool:
        """Whether the server is gone, or has not answered for so long that it may be."""
        if not self.connected:
            return True
        return self.asked_s is not None and now_s - self.asked_s >= self.limits.probe_s

    def unready_since_s(self, now_s: float) -> float:
        """Since when the server is not ready, or does not answer; now if it does."""
        if self.unready_s is not None:
            return self.unready_s
        return self.asked_s if self.asked_s is not None else now_s

    def limit_s(self, asked_s: float, now_s: float, *, again: bool) -> float:
        """How long a call without a limit of its own may wait, counted from when it was
        asked: for a server that is not there or not ready, the client's limit.
        ``again``: whether there was a session before."""
        limit_s = self.limits.recovery_s if again else self.limits.start_s
        return max(asked_s, self.unready_since_s(now_s)) - asked_s + limit_s

    def leave(self, now_s: float) -> bool:
        """Whether to make a new connection, since nothing is answered on this one.

        A peer that vanished, or something between that swallows what passes, tells
        nobody.  A server that is held for long looks the same: the pauses grow.
        """
        if not self.connected or self.asked_s is None:
            return False
        if now_s - max(self.asked_s, self.connected_s) < self.patience_s:
            return False
        self.patience_s *= 2
        self.connected_s = now_s
        return True

    def health(self, now_s: float) -> tuple[Health, str]:
        """The health and the reason for it, in words."""
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
