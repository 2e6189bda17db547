"""The calls of the clients: a mix, drawn from a seed.

Theory of operation
-------------------
Most calls are short.  Some consent to a rerun and some don't, some have a limit,
some are withdrawn by their caller, some carry a body that takes a throttled
network a while.  A few last longer than any run of the soak waits: their callers
withdraw them, and where a caller is killed instead the server has to end them
with its lease.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

ENDLESS_S = 600.0
"""A call that lasts so long ends only by being withdrawn, or with its client's lease."""

_PAD = bytes(48 * 1024)


class Ask(NamedTuple):
    """One call that a client is going to make."""

    duration_s: float
    rerun: bool | None
    max_executions: int | None
    timeout_s: float | None
    withdraw_s: float | None
    """After how long its caller withdraws it; None: never."""
    pad: bytes
    """The padding that makes its body large."""

    @property
    def options(self) -> dict[str, Any]:
        """As arguments of the call."""
        return {
            "rerun": self.rerun, "max_executions": self.max_executions, "timeout_s": self.timeout_s,
        }  # fmt: skip


def draw(rng: random.Random) -> Ask:
    """The next call."""
    kind, special = rng.random(), rng.random()
    if kind < 0.65:
        duration_s = rng.uniform(0.0, 0.4)
    elif kind < 0.92:
        duration_s = rng.uniform(0.4, 2.0)
    else:
        duration_s = rng.uniform(2.0, 6.0)
    withdraw_s = rng.uniform(0.0, 1.5) if special < 0.06 else None
    if special > 0.99:
        duration_s, withdraw_s = ENDLESS_S, rng.uniform(0.5, 6.0)
    return Ask(
        duration_s,
        rerun=rng.choice((True, True, True, False, None)),
        max_executions=rng.choice((None, None, 1, 2, 10)),
        timeout_s=rng.uniform(0.2, 6.0) if rng.random() < 0.1 else None,
        withdraw_s=withdraw_s,
        pad=_PAD if rng.random() < 0.04 else b"",
    )
