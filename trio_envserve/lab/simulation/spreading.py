"""Which runs have servers that leave workers which still start their share, and for how long.

Drawn apart from the rest of the plan: all other seeds are what they were before any did.
"""

from __future__ import annotations

import dataclasses
from random import Random

from .faults import Fault, Plan

ARE_SPREADING = (3, 4, 9, 14, 17)
"""The remainders of those numbers, divided by 19."""


def is_spreading(seed: int) -> bool:
    """Whether the servers of this seed spread what comes first."""
    return seed % 19 in ARE_SPREADING


def with_spread(plan: Plan, rng: Random) -> Plan:
    """Plan in which first dispatches are spread for a drawn time, over workers with room for
    several; ``rng`` is read in a fixed order."""
    server = dataclasses.replace(
        plan.server, worker_capacity=rng.choice((3, 8)), spread_s=rng.choice((0.3, 1.0, 5.0))
    )
    return dataclasses.replace(plan, faults=plan.faults | {Fault.SPREAD}, server=server)
