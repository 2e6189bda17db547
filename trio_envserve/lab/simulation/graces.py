"""The judge of graces: what rollouts are told of the limits of their calls.

Theory of operation
-------------------
A caller says how much of its limits is a grace.  What ends a rollout is seen on the wires: when a
server has taken a request with a deadline, and when it has first sent a dispatch, from which an
execution may last for so long.  So each dispatch must say when its rollout is late: a grace before
the first of these ends, and not earlier; later only where its server stood still.  A worker tells
its rollout once, and not before the time that a dispatch has said.

That what a rollout gives in its grace is the one outcome is judged with all outcomes (G3, G4).
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, final

from ...core import messages
from ...core.terms import Body, RequestId
from ...retrylab.judges import Event, Judge, Violation
from .observed import Processes
from .plan import FaultKind, SimulationPlan

SLACK_S = 0.3
"""How much later a rollout may be told than it should be: some ticks of its server, and its
worker's turn."""

EPSILON_S = 1e-6

SAVING_S = 2.0
"""How long the record of a start may take to be safe: an execution is dispatched, for its limit,
before that."""


def key_of(body: Body) -> str:
    """The unique name of a call, which is the beginning of its body."""
    return bytes(body[:64]).partition(b"|")[0].decode()


def label_of(name: str) -> str:
    """The key of an input; empty for the name of a call without one."""
    label, slash, _ = name.partition("/")
    return label if slash else ""


class GraceTerms(NamedTuple):
    """What the caller of a work has said, in seconds."""

    execution_s: float | None
    grace_s: float


@dataclasses.dataclass(slots=True)
class SentDispatch:
    """One dispatch, as it was sent to its worker."""

    first_s: float
    """When it was first sent."""
    earliest_s: float = math.inf
    """The earliest moment that it has said."""
    longest_s: float = -math.inf
    """The longest time until then that it has said."""
    began_s: float | None = None
    told: bool = False
    """Whether its rollout was told."""


@final
class GraceJudge(Judge):
    """Judges when rollouts are told that they are late."""

    SEEN = frozenset({"grace", "heard", "commanded", "began", "late", "ended"})

    def __init__(self, plan: SimulationPlan, processes: Processes) -> None:
        self._processes = processes
        self._saving_s = SAVING_S if plan.has(FaultKind.JOURNAL) else EPSILON_S
        self._terms: dict[str, GraceTerms] = {}
        """By the name of a call; for work of keys by that of its input."""
        self._ends: dict[tuple[str, RequestId], tuple[float, float]] = {}
        """The deadline of each request at each server, by its first and its newest transmission:
        it counts from the one that was not refused."""
        self._sent: dict[tuple[str, int], SentDispatch] = {}

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        who, what = event.actor, event.what
        match event.kind:
            case "grace":
                self._terms[what[0]] = GraceTerms(*what[1:])
            case "heard":
                self._heard(event, what[1])
            case "commanded" if isinstance(what[1], messages.Dispatch):
                return self._commanded(event, what[1], what[2])
            case "began":
                self._sent[who, what[1]].began_s = event.at_s
            case "late":
                return self._late(event, what[0])
            case "ended":
                return self._ended(event, what[0])
        return []

    def _heard(self, event: Event, message: messages.Message) -> None:
        if isinstance(message, messages.Request) and message.deadline_s is not None:
            request = RequestId(message.session, message.sequence)
            ends_s = event.at_s + message.deadline_s
            first_s, _ = self._ends.get((event.actor, request), (ends_s, ends_s))
            self._ends[event.actor, request] = first_s, ends_s

    def _commanded(self, event: Event, message: messages.Dispatch, body: Body) -> list[Violation]:
        worker, now_s, key = event.actor, event.at_s, key_of(body)
        home = self._processes[worker].home
        sent = self._sent.setdefault((worker, message.number), SentDispatch(now_s))
        wanted = self._wanted_s(now_s, home.name, sent, message, key)
        late_s = message.late_s
        if wanted is None or late_s is None:
            if wanted is None and late_s is None:
                return []
            what = "that it is late, and has no grace" if late_s is not None else "no late moment"
            return [Violation("G9", now_s, f"the dispatch of {key} says {what}", key)]
        sent.earliest_s = min(sent.earliest_s, now_s + late_s)
        sent.longest_s = max(sent.longest_s, late_s)
        earliest_s, latest_s = wanted
        if late_s < earliest_s - self._saving_s:
            text = f"{key} is to be told {earliest_s - late_s:.3f} s early that it is late"
            return [Violation("G9", now_s, text, key)]
        if late_s > latest_s + SLACK_S and home.stood_s < sent.first_s - SLACK_S:
            text = f"{key} is to be told {late_s - latest_s:.3f} s too late that it is late"
            return [Violation("G9", now_s, text, key)]
        return []

    def _wanted_s(
        self, now_s: float, home: str, sent: SentDispatch, message: messages.Dispatch, key: str
    ) -> tuple[float, float] | None:
        """How long it is until a rollout should be late, at least and at most; None: it never
        should be."""
        terms = self._terms.get(key)
        if terms is None:
            return None
        ends = []
        if terms.execution_s is not None:
            ends.append((sent.first_s + terms.execution_s,) * 2)
        request = RequestId(message.session, message.sequence)
        if not label_of(key) and (home, request) in self._ends:
            ends.append(self._ends[home, request])
        if not ends:
            return None
        earliest_s, latest_s = (
            min(each) - terms.grace_s - now_s for each in zip(*ends, strict=True)
        )
        return max(0.0, earliest_s), max(0.0, latest_s)

    def _late(self, event: Event, number: int) -> list[Violation]:
        sent = self._sent[event.actor, number]
        key = event.request
        if sent.told:
            return [event.breaks("G9", f"{key} is told twice that it is late")]
        sent.told = True
        if event.at_s < sent.earliest_s - EPSILON_S:
            early_s = sent.earliest_s - event.at_s
            return [event.breaks("G9", f"{key} is told {early_s:.3f} s early that it is late")]
        return []

    def _ended(self, event: Event, number: int) -> list[Violation]:
        """A rollout has ended: should it have been told before?"""
        sent = self._sent[event.actor, number]
        assert sent.began_s is not None
        over_s = event.at_s - sent.began_s - sent.longest_s - SLACK_S
        if sent.told or over_s <= 0 or math.isinf(over_s):
            return []
        if self._processes[event.actor].stood_s >= sent.began_s:
            return []  # its worker stood still
        key = event.request
        return [event.breaks("G9", f"{key} ended, and was never told that it was late")]
