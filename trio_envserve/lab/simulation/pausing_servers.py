"""Which runs have servers that pause dispatching after failures, and how soon.

Drawn apart from the rest of the plan: all other seeds are what they were before any paused.
No simulated rollout asks a model, so what makes them pause is that workers die at work.
"""

from __future__ import annotations

import dataclasses
from random import Random

from .faults import Fault, Plan

ARE_PAUSING = (16, 18, 26)
"""The remainders of those numbers, divided by 29."""


def is_pausing(seed: int) -> bool:
    """Whether the servers of this seed pause."""
    return seed % 29 in ARE_PAUSING


def with_pauses(plan: Plan, rng: Random) -> Plan:
    """The same with pauses, and with room for several on a worker that dies; ``rng`` is read in
    a fixed order."""
    server = dataclasses.replace(
        plan.server, worker_capacity=rng.choice((3, 8)), pause_after_errors=rng.choice((1, 1, 2)),
        pause_s=rng.choice((0.3, 0.8)),
    )  # fmt: skip
    return dataclasses.replace(plan, faults=plan.faults | {Fault.PAUSES}, server=server)
