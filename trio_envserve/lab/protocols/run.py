"""One seed of a protocol, run and judged."""

from __future__ import annotations

import dataclasses
from typing import Any

from ... import foreign
from ..kit.events import Record
from ..kit.violation import Violation
from ..kit.world import MOST_EVENTS
from .interface import BrokenProtocol, History, Protocol
from .plain import plain
from .plan import Plan, draw
from .tracebacks import raised
from .world import ActorWorld, Envelope


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The result of a seed."""

    seed: int
    plan: Plan
    history: History
    violations: tuple[Violation, ...]
    events: int
    virtual_s: float
    faults: dict[str, int]
    """How often each kind struck."""
    told: dict[str, int]
    """How many of the callers were told something, and how many were not."""
    digest: str
    """The hash of the trace, recorded or not: the same for the same seed."""
    trace: tuple[Record[Envelope], ...] = ()

    def breaks(self, guarantee: str) -> bool:
        """Whether this guarantee was broken."""
        return any(violation.guarantee == guarantee for violation in self.violations)

    @property
    def log(self) -> tuple[str, ...]:
        """The trace as lines for people."""
        return tuple(record.text(_said) for record in self.trace)


def run(protocol: Protocol, seed: int, *, plan: Plan | None = None, trace: bool = False) -> Run:
    """Simulate one seed, or another plan with a seed's luck.

    An actor that raises is a violation, ``CRASH``.  BrokenProtocol if the judge raises,
    or the run does not end.
    """
    plan = plan or draw(protocol, seed)
    world = ActorWorld(protocol, seed, plan, trace=trace)
    world.run()
    if world.events.count >= MOST_EVENTS:
        raise BrokenProtocol(_endless(world))
    history = History(tuple(world.entries), world.events.now_s)
    violations = tuple(world.crashes or _judged(protocol, history, seed))
    asked, told = len(world.asked), len({e.request for e in history.entries if e.kind == "told"})
    return Run(
        seed=seed,
        plan=plan,
        history=history,
        violations=violations,
        events=world.events.count,
        virtual_s=world.events.now_s,
        faults=world.times(),
        told={"told": told, "not told": asked - told},
        digest=world.events.digest(),
        trace=tuple(world.events.trace or ()),
    )


def _said(envelope: Envelope) -> str:
    return f"{envelope.sender} to {envelope.to}: {plain(envelope.message)}"


def _judged(protocol: Protocol, history: History, seed: int) -> list[Violation]:
    """The violations that the judge found; BrokenProtocol if it returns something else."""
    ended = foreign.call(lambda: list(protocol.judge(history)))
    if ended.error is not None:
        raise BrokenProtocol(f"the judge raised (seed {seed}):\n{raised(ended.error)}")
    found: list[Any] = ended.value
    for violation in found:
        if not isinstance(violation, Violation):
            raise BrokenProtocol(f"a judge gives values of the class Violation, not {violation!r}")
    return found


def _endless(world: ActorWorld) -> str:
    """The function that a run without an end calls again and again."""
    lines = [
        f"seed {world.seed} never ends: {world.events.count:,} events in "
        f"{world.events.now_s:.3f} virtual seconds. Called most often:",
    ]
    for handler, times in world.calls.most_common(3):
        code = getattr(handler, "__code__", None)  # a partial has none
        place = f'File "{code.co_filename}", line {code.co_firstlineno}, in ' if code else ""
        lines.append(f"  {place}{getattr(handler, '__qualname__', handler)}: {times:,} times")
    return "\n".join(lines)
