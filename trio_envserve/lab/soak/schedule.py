"""The faults of processes and their connections, and their times: from the seed alone.

Theory of operation
-------------------
The time is cut into rounds, and each round has the same faults in another
order, so that a short run has every kind and a long one all of them many
times.  A fault that falls on a process names it by a number in [0, 1): which
process that is depends on who is there when it is due, which no seed decides.
"""

from __future__ import annotations

import random
from typing import NamedTuple

ROUND_S = 18.0
"""About how long a round is; the run is cut into equal ones."""

_LAST = 0.8
"""The part of a round after which no fault begins, so that all can end in it."""


class Kind(NamedTuple):
    """One kind of fault."""

    often: int
    """How often in a round."""
    least_s: float = 0.0
    most_s: float = 0.0
    """How long it lasts."""
    least: float = 0.0
    most: float = 0.0
    """How strong it is, in the unit of its kind."""


KINDS: dict[str, Kind] = {
    "worker-kill": Kind(2),
    "worker-stop": Kind(2, 0.2, 2.5),
    "worker-freeze": Kind(1),  # stopped for good: the server has to kill it
    "client-kill": Kind(1),
    "client-stop": Kind(2, 0.2, 4.0),
    "server-kill": Kind(1),
    "server-stop": Kind(1, 0.2, 4.0),
    "cut": Kind(3),
    "half-open": Kind(1),
    "stall": Kind(1, 0.2, 2.5),
    "throttle": Kind(1, 1.0, 4.0, 20_000.0, 400_000.0),  # bytes a second
    "lag": Kind(1, 1.0, 4.0, 0.01, 0.2),  # seconds, at most, for each chunk
}
"""The acts, with their victims and durations.  Stops are shorter than what the soak's server
takes for the end of a worker or of a client."""

KINDS_OF_HOST: dict[str, Kind] = {"host-kill": Kind(1), "host-stop": Kind(1, 0.2, 3.0)}
"""Those that a remote host has besides."""


class Act(NamedTuple):
    """One fault that is due."""

    at_s: float
    """Counted from the beginning of the faults."""
    kind: str
    choice: float
    """Which of the processes there are: 0 is the first, almost 1 the last."""
    lasts_s: float
    amount: float


def schedule(seed: int, seconds: float, *, hosted: bool = False) -> list[Act]:
    """All faults of a run, in order.  ValueError if it has no time."""
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, not {seconds!r}")
    rng = random.Random(f"soak/{seed}")
    rounds = max(1, round(seconds / ROUND_S))
    each_s = seconds / rounds
    kinds = KINDS | (KINDS_OF_HOST if hosted else {})
    acts = [
        Act(
            each_s * (number + _LAST * rng.random()), name, rng.random(),
            rng.uniform(kind.least_s, kind.most_s), rng.uniform(kind.least, kind.most),
        )
        for number in range(rounds)
        for name, kind in kinds.items()
        for _ in range(kind.often)
    ]  # fmt: skip
    return sorted(acts)
