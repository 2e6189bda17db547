"""The records of the judge: calls, executions, violations, and shared facts.

The facts of a run that all parts of the judge read; none of them is what a core
believes.  See :mod:`.judge`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core.ranges import Ranges
from ...core.terms import Body, RequestId, Status, Verdict
from ...retrylab.judges import Violation

if TYPE_CHECKING:
    from ...retrylab.world import Process
    from .plan import KeyUse, Plan


@dataclasses.dataclass(slots=True, eq=False)
class Execution:
    """One execution, as the environment's log has it."""

    key: str
    worker: Process
    server: Process
    request: RequestId
    number: int
    started_s: float
    ended_s: float | None = None
    status: Status | None = None
    payload: bytes = b""
    cancelled: bool = False
    delivered: bool = False
    """Its outcome has arrived at its router, before its worker was declared lost."""

    def live(self) -> bool:
        """From its start to its end, or to the death of its process."""
        return self.ended_s is None and self.worker.alive


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """One call: its request, and the caller's answer."""

    key: str
    client: str
    consent: bool
    most: int
    limit_s: float | None
    asked_s: float
    honest: bool = True
    cancelled_s: float | None = None
    told: str = ""
    told_s: float = 0.0
    verdict: Verdict | None = None
    received: bool = False
    """The caller has the outcome in hands."""
    executions: list[Execution] = dataclasses.field(default_factory=list)
    use: KeyUse | None = None
    """The use of a key: its executions, if any, are those of the key."""
    input: str = ""
    """Of such a call: how the environment's log names its input."""


@dataclasses.dataclass(slots=True)
class Hearing:
    """When a server last heard a client, and how much, and how often, the server had
    slept then."""

    at_s: float
    slept_s: float
    sleeps: int


def key_of(body: Body) -> str:
    """The unique name of a call, which is the beginning of its body."""
    return bytes(body[:64]).partition(b"|")[0].decode()


class Book:
    """The facts, and the violations found so far."""

    def __init__(
        self, clock: Callable[[], float], note: Callable[[str, str], None], plan: Plan
    ) -> None:
        self.clock = clock
        self.note = note
        self.plan = plan
        self.violations: list[Violation] = []
        self.calls: dict[str, Call] = {}
        self.draining: set[Process] = set()
        """Servers that were asked to stop."""
        self.broken: set[Process] = set()
        """Servers that answered, at some time, that their environment is broken."""
        self.gone_clients: dict[str, float] = {}
        """Clients that were killed or closed, and when."""
        self.leaving: set[Process] = set()
        """Workers that were told to exit, are to be killed, or were reaped."""
        self.sessions: dict[bytes, tuple[Process, str]] = {}
        """The server that granted each session, and its client."""
        self.first: dict[RequestId, str] = {}
        """The first body under each id that was not refused for now."""
        self.asked_in: dict[str, bytes] = {}
        """The session in which a server last took in a request of this key."""
        self.started_as: dict[RequestId, str] = {}
        """The body that was started under each id."""
        self.finished: dict[bytes, Ranges] = {}
        self.heard: dict[bytes, Hearing] = {}
        """By session: a late message of an earlier one does not count."""
        self.silent: set[bytes] = set()
        """Sessions that were once unheard for a lease."""
        self.by_dispatch: dict[tuple[Process, int], Execution] = {}

    def violation(self, guarantee: str, text: str, key: str = "") -> None:
        """A guarantee does not hold; for the call of this key, if it is one's."""
        violation = Violation(guarantee, self.clock(), text, key)
        self.violations.append(violation)
        self.note("VIOLATION", violation)

    def key_of_request(self, request: RequestId) -> str:
        """The call of this id, as far as one is known."""
        return self.started_as.get(request) or self.first.get(request, "")
