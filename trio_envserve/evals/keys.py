"""The keys of an evaluation that has a name: what it asked for once, it never asks to run
again.

Theory of operation
-------------------
A rollout has the key ``NAME/INDEX/REPEAT``, and a group ``NAME/INDEX/group``.  So an
evaluation that was killed and is started again joins what runs, and takes what there is
from the server.

An error is an outcome, too, and its key is answered with it for ever.  What is to run again
after one therefore gets another key: ``NAME/INDEX/REPEAT/again-1``.  Its number is how often
the file of results was told an outcome; so it stays the same until that of this key is in
the file, whenever the evaluation is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ..core.errors import ConfigError, NoAnswer, NotDurable, ServerLost, UnknownKey
from .records import Name, RolloutResult

MOST_NAME_BYTES = 200
"""Of 256 that a key may have; the rest is for the numbers."""

_NOT_TOLD = frozenset(
    error.__name__ for error in (NoAnswer, ServerLost, NotDurable, UnknownKey)
)  # fmt: skip


def check_name(name: str) -> str:
    """The name of an evaluation.  Raises ConfigError."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"--run: a name that cannot be encoded: {error}") from None
    if not 0 < size_bytes <= MOST_NAME_BYTES:
        raise ConfigError(f"--run: a name has 1 to {MOST_NAME_BYTES} bytes, this one {size_bytes}")
    return name


def is_told(result: RolloutResult) -> bool:
    """Whether a result is what became of its key.  Otherwise the server did not say, and may
    be asked again: with a journal it knows.  What never ran has no outcome."""
    failure = result.failure
    return failure is None or not (result.did_not_run or failure.kind in _NOT_TOLD)


@final
class RunKeys:
    """The keys of an evaluation.  ``told``: how often the file has an outcome of a rollout."""

    def __init__(self, name: str, told: Callable[[Name], int] = lambda name: 0) -> None:
        self.name = name
        self._told = told

    def rollout(self, name: Name) -> str:
        """The part of a rollout's key behind the evaluation's name."""
        index, repeat = name
        return _again(f"{index}/{repeat}", self._told(name))

    def group(self, index: int, repeat: int) -> str:
        """That of a group of so many repeats.  It is told when each member is."""
        told = min(self._told((index, member)) for member in range(repeat))
        return _again(f"{index}/group", told)


def _again(part: str, told: int) -> str:
    return f"{part}/again-{told}" if told else part
