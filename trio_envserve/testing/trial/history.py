"""The history of a trial, as its judges see it, and the report of what they found.

Theory of operation
-------------------
Two sources write here, and the server is neither of them: the environment's own
code, as it begins and ends (:mod:`.environment`), and the callers, as they ask and
are answered (:mod:`.run`).  The network adds a digest of each outcome that was sent.
All times are seconds of the virtual clock, which begins at 0.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from typing import Any, Literal, NamedTuple, TypeAlias, final

from ...client import Outcome
from ...core.messages import Outcome as OutcomeMessage
from ...core.messages import encode
from ...core.terms import short

How: TypeAlias = Literal["runs", "returned", "raised", "cancelled"]


class Event(NamedTuple):
    """A line of the story."""

    at_s: float
    ask: int | None
    """The ask that the line is about; None: all of them."""
    text: str

    def __str__(self) -> str:
        about = "" if self.ask is None else f"ask {self.ask}: "
        return f"{self.at_s:12.3f} s  {about}{self.text}"


@dataclasses.dataclass(slots=True, eq=False)
class Execution:
    """Environment code that ran for an ask: one rollout, or one member of a group."""

    number: int
    """Counts over the whole trial, from 0."""
    ask: int
    """The number of the ask."""
    member: int
    """Position in the group; 0 for a rollout."""
    attempt: int
    """1, then 2, ... if ``max_retries`` repeated it inside one execution."""
    life: int
    """The life of the server in which it began: 0, 1, ..."""
    began_s: float
    ended_s: float | None = None
    """None while it runs."""
    how: How = "runs"
    value: Any = None
    """Its value, the ``state`` trimmed."""
    error: BaseException | None = None
    """Its exception."""


@dataclasses.dataclass(slots=True, eq=False)
class AskRecord:
    """One ask, and what its caller got."""

    number: int
    """Position among the asks of the trial, from 0."""
    input: Any
    kind: Literal["rollout", "group"]
    options: dict[str, Any]
    client: str
    """The name of the client that asked."""
    asked_s: float = 0.0
    ended_s: float | None = None
    """When the caller had an outcome, or had been cancelled; None: never."""
    cancelled_s: float | None = None
    """When a fault cancelled its caller; None: never."""
    outcome: Outcome | None = None
    """The caller's outcome; for a group, without its value: see ``members``."""
    members: list[Outcome] = dataclasses.field(default_factory=list)
    """The outcomes of a group's members; for a rollout its one outcome."""
    came_from: list[int] = dataclasses.field(default_factory=list)
    """The executions whose values the caller got, by number."""
    foreign: list[str] = dataclasses.field(default_factory=list)
    """The parts of the caller's outcome that belong to another ask."""

    @property
    def answered(self) -> bool:
        """Whether its call ended with an outcome, a value or an error."""
        return self.outcome is not None


class Life(NamedTuple):
    """One life of the server, from a start to its end."""

    began_s: float
    ended_s: float | None
    """None: it ran to the end of the trial."""


@final
class History:
    """Everything that the judges of a trial may look at."""

    def __init__(self, *, rerun: bool, patience_s: float) -> None:
        self.rerun = rerun
        """The environment's consent to a further execution."""
        self.asks: list[AskRecord] = []
        self.executions: list[Execution] = []
        self.lives: list[Life] = []
        """The server's lives, in order."""
        self.events: list[Event] = []
        """The story, in order."""
        self.faults: Counter[str] = Counter()
        """How often each fault struck, by its name."""
        self.outcomes_sent: dict[str, set[str]] = {}
        """The digests of all outcomes that the server sent, by request id."""
        self.kills_s: list[float] = []
        """When the workers were killed."""
        self.longest_apart_s = 0.0
        """The longest time for which no message passed between client and server."""
        self.patience_s = patience_s
        """After a longer time of that, client and server may give up."""
        self.left: dict[str, int] = {}
        """The requests that the server still held when everything should have ended: ``running``,
        ``waiting``, ``kept``."""
        self.ended_s = 0.0
        """The virtual time at the end."""

    def executions_of(self, ask: int) -> list[Execution]:
        """The executions of an ask, in the order in which they began."""
        return [each for each in self.executions if each.ask == ask]

    def begin(self, at_s: float, ask: int, member: int, attempt: int) -> Execution:
        """The environment's code begins."""
        number = len(self.executions)
        execution = Execution(number, ask, member, attempt, len(self.lives) - 1, at_s)
        self.executions.append(execution)
        self.tell(at_s, ask, f"execution {number} begins{_member(execution)}")
        return execution

    def end(self, at_s: float, execution: Execution, value: Any = None,
            error: BaseException | None = None, how: How = "returned") -> None:  # fmt: skip
        """The environment's code has ended."""
        execution.ended_s, execution.how = at_s, how
        execution.value, execution.error = value, error
        why = f" {type(error).__name__}" if how == "raised" else ""
        self.tell(at_s, execution.ask, f"execution {execution.number} {how}{why}")

    def sent(self, message: OutcomeMessage, body: bytes) -> None:
        """The server sends an outcome."""
        request = f"{short(message.session)}/{message.sequence}"
        digest = hashlib.blake2b(encode(message) + body, digest_size=8).hexdigest()
        self.outcomes_sent.setdefault(request, set()).add(digest)

    def tell(self, at_s: float, ask: int | None, text: str) -> None:
        """Add a line to the story."""
        self.events.append(Event(at_s, ask, text))

    def story(self, asks: set[int] | None = None) -> str:
        """The story as text: of all asks, or of some and of what concerns them all."""
        return "\n".join(
            str(event)
            for event in self.events
            if asks is None or event.ask is None or event.ask in asks
        )


def _member(execution: Execution) -> str:
    """The execution's name among those of its ask."""
    member = f", member {execution.member}" if execution.member else ""
    return member + (f", attempt {execution.attempt}" if execution.attempt > 1 else "")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """The finding of the judges, and what they saw.  ``str()`` of it is for people."""

    seed: int
    problems: tuple[str, ...]
    """The problems, a sentence each; empty if there are none."""
    history: History
    trace: str
    """A digest of every message header and every event, with their times: the same
    seed gives the same digest on every machine."""
    counts: dict[str, int]
    """How often what happened: ``asks``, ``answered``, ``cancelled``, ``executions``,
    ``lives`` of the server, messages ``sent`` and ``lost``, requests ``retransmitted``,
    and the server's own ``coalesced``, ``replayed``, ``reruns``."""
    faults: dict[str, int]
    """How often each fault struck, by name."""
    virtual_s: float
    """The duration on the virtual clock."""

    @property
    def ok(self) -> bool:
        """Whether no judge found a problem."""
        return not self.problems

    def check(self) -> None:
        """Raise AssertionError, with everything that is known, if there is a problem."""
        if self.problems:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        faults = ", ".join(f"{name} x{count}" for name, count in sorted(self.faults.items()))
        head = (
            f"trial with seed {self.seed}: {len(self.problems)} problems in "
            f"{self.virtual_s:.0f} virtual seconds ({counts}; faults: {faults or 'none'})"
        )
        if not self.problems:
            return head
        named = {int(n) for text in self.problems for n in re.findall(r"\bask (\d+)", text)}
        story = self.history.story(named or None)
        problems = "\n".join(f"  - {text}" for text in self.problems)
        return f"{head}\n{problems}\nwhat happened to them:\n{story}"
