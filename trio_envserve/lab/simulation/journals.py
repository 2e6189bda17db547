"""The journals of runs, and the faults of their disks.

Drawn apart from the rest of the plan: of the seeds with keys one in four has a journal,
and all others are what they were before there was one.
"""

from __future__ import annotations

import dataclasses
from random import Random

from .faults import PLAIN_SYNC_S, Fault, Plan
from .keyed_asks import have_keys

HAVE_JOURNALS = 3
"""Those whose number divided by 7 leaves this when it is divided by 4."""

LATE_SYNC_S = (0.01, 0.15)


def have_journal(seed: int) -> bool:
    """Whether the servers of this seed have a journal."""
    return have_keys(seed) and seed // 7 % 4 == HAVE_JOURNALS


def with_journal(plan: Plan, rng: Random) -> Plan:
    """The same with a journal; ``rng`` is read in a fixed order."""
    drawn = [fault for fault in (Fault.CRASH_AT_WRITE, Fault.SLOW_DISK) if rng.random() < 0.7]
    sync_s = rng.choice((PLAIN_SYNC_S, LATE_SYNC_S))
    if plan.harsh and rng.random() < 0.7:
        drawn.append(Fault.DAMAGED_READ)
    return dataclasses.replace(plan, faults=plan.faults | {Fault.JOURNAL, *drawn}, sync_s=sync_s)


def of_keys_only(plan: Plan) -> Plan:
    """The same with a journal and without the calls that name no key, which do not touch
    it; nor is its server killed by luck, so that who runs this says when."""
    asks = tuple(tuple(ask for ask in asks if ask.use is not None) for asks in plan.asks)
    return dataclasses.replace(
        plan, asks=asks, faults=plan.faults - {Fault.CRASH_AT_WRITE} | {Fault.JOURNAL}
    )
