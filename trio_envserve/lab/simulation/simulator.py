"""Whole systems of the shipped pure machines, on a virtual network and clock.

Theory of operation
-------------------
``run(seed)`` builds a world of clients, a server with its workers, and links
between them, all around the very classes that ship (``Router``,
``ClientCore``, ``WorkerCore``); lets callers ask and faults strike for some
virtual seconds; then calms down and waits until everything has come to rest.
A judge (:mod:`.judges`) compares what happened with the guarantees.

One integer decides everything: the same seed gives the same trace, whose hash
is part of the result.  It decides twice: first the *plan* (:mod:`.plan`), which
may also be given, and then the *luck*: which message is how late, whom a fault
strikes.  ``trio-envserve fuzz`` runs many seeds, or shows one.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter

from ...retrylab.target import BaseRun
from .actors import World
from .coverage import name_of
from .network import Frames, describe
from .plan import SimulationPlan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun(BaseRun[SimulationPlan]):
    """The result of a seed."""

    pairs: dict[str, int]
    """How often each (state, input) of the table of work occurred."""
    writes: int
    """How many groups were written to the journal."""
    asked: int
    executions: int

    def describe(self, message: Frames) -> str:
        """Message of the trace in words."""
        return describe(message)


def run(
    seed: int, *, harsh: bool = False, trace: bool = False, plan: SimulationPlan | None = None,
    until: str = "",
) -> SimulationRun:  # fmt: skip
    """Simulate one seed, harsh or not, or another plan with a seed's luck.

    An exception of a core is a violation of its own.  ``until``: stop at the first
    violation of this guarantee.
    """
    world = World(seed, harsh=harsh, trace=trace, plan=plan)
    judge = world.judge

    def broken() -> bool:
        return bool(world.violations) and world.violations[-1].guarantee == until

    try:
        world.run(broken if until else None)
    except Exception as error:  # whatever a core raises is what is looked for
        text = "".join(traceback.format_exception(error, limit=-4))
        world.breaks("CRASH", text.rstrip())
    calls = judge.calls.values()
    return SimulationRun(
        seed=seed,
        plan=world.plan,
        events=world.events.count,
        virtual_s=world.events.now_s,
        faults=world.times(),
        pairs={name_of(pair): n for pair, n in world.pairs.items()},
        writes=0 if world.disk is None else world.disk.writes,
        asked=len(calls),
        told=dict(Counter(c.told or ("cancelled" if c.cancelled_s else "-") for c in calls)),
        executions=sum(map(len, judge.runs.values())),
        violations=tuple(world.violations),
        digest=world.events.digest(),
        trace=tuple(world.events.trace or ()),
    )
