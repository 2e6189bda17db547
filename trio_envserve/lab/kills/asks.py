"""The request under each key: the same whoever asks, and how often."""

from __future__ import annotations

import random
from typing import Any

MAX_EXECUTIONS = 4
"""Of a key that consents to more than one."""

_LONGEST_S = 4.0
_LARGE_EACH, _LARGE_BYTES = 25, 300_000
"""One result of so many is larger than what a journal keeps in its database."""


def key_of(number: int) -> str:
    """The key with this number."""
    return f"kills/{number}"


def consents(number: int) -> bool:
    """Whether it may run again after its worker was proven dead: half of them."""
    return number % 2 == 1


def input_of(seed: int, number: int) -> dict[str, Any]:
    """The input for the environment."""
    rng = random.Random(f"{seed}/{number}")
    large = rng.randrange(_LARGE_EACH) == 0
    return {
        "key": key_of(number), "duration_s": rng.uniform(0.0, _LONGEST_S),
        "pad": _LARGE_BYTES if large else rng.randrange(200),
    }  # fmt: skip
