"""The number of workers that a pool may have: fixed, or a range."""

from __future__ import annotations

import dataclasses
from typing import Any

from .errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerRange:
    """A range of the number of workers, which follows the work (see the page on operations).  As
    text it is ``2..64``.  Raises ConfigError."""

    least: int
    """Fewest workers."""
    most: int
    """Most workers."""

    def __post_init__(self) -> None:
        for bound in (self.least, self.most):
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise ConfigError(f"a range of workers has two whole numbers, not {bound!r}")
        if not 1 <= self.least <= self.most:
            raise ConfigError(
                f"a range of workers begins with 1 or more, and does not end before it begins: "
                f"not {self}"
            )

    def __str__(self) -> str:
        return f"{self.least}..{self.most}"

    @classmethod
    def of(cls, text: str) -> int | WorkerRange:
        """Read ``4`` or ``2..64``.  Raises ConfigError.

        Args:
            text: Number or range.
        """
        least, dots, most = text.strip().partition("..")
        if not all(part.isascii() and part.isdigit() for part in (least, most if dots else "0")):
            raise ConfigError(f"workers are a number or a range such as 2..64, not {text!r}")
        return cls(int(least), int(most)) if dots else int(least)


def most_of(workers: int | WorkerRange) -> int:
    """Most workers of a number or range."""
    return workers.most if isinstance(workers, WorkerRange) else workers


def least_of(workers: int | WorkerRange) -> int:
    """Fewest workers of a number or range."""
    return workers.least if isinstance(workers, WorkerRange) else workers


def check_workers(workers: Any, *, least: int) -> None:
    """ConfigError unless ``workers`` is a range or a number that is at least ``least``."""
    if isinstance(workers, WorkerRange):
        return
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < least:
        raise ConfigError(f"workers must be a number >= {least}, or a WorkerRange, not {workers!r}")
