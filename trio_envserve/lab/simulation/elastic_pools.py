"""Which runs have a pool whose number of workers changes, and how far.

Drawn apart from the rest of the plan: all other seeds are what they were before there
were such pools.
"""

from __future__ import annotations

import dataclasses
from random import Random

from .faults import Fault, Plan

ARE_ELASTIC = (13, 16, 20)
"""The remainders of those numbers, divided by 22."""


def is_elastic(seed: int) -> bool:
    """Whether the pools of this seed grow and shrink."""
    return seed % 22 in ARE_ELASTIC


def with_range(plan: Plan, rng: Random) -> Plan:
    """The same with a range of workers; ``rng`` is read in a fixed order."""
    least = rng.choice((1, 1, 2))
    most = least + rng.choice((1, 2, 4))
    server = dataclasses.replace(
        plan.server, worker_capacity=rng.choice((1, 1, 3)), grow_after_s=rng.choice((0.2, 0.6)),
        shrink_after_s=rng.choice((0.6, 1.5)),
    )  # fmt: skip
    return dataclasses.replace(
        plan, faults=plan.faults | {Fault.ELASTIC}, workers=least, most_workers=most,
        server=server,
    )  # fmt: skip
