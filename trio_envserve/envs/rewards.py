"""Rewards: a number of any kind, or named numbers.

Theory of operation
-------------------
Environments compute rewards with whatever is at hand: a comparison gives a bool, numpy
a scalar or an array without dimensions, exact arithmetic a ``Fraction`` or ``Decimal``.
All of these are numbers to :func:`number_of`.  Text that looks like a number is none, and
neither is an array with dimensions: somebody forgot a step, and should be told.

Nothing heavy is imported: numpy's and torch's values are known by what they can do.
"""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Mapping
from typing import Any

from .. import foreign


class ScorerFailed(Exception):
    """A function that computes a reward has raised, so there is no reward; the cause is its
    exception."""

    code = "scorer-failed"

    def __init__(self, scorer: str, error: BaseException) -> None:
        text = foreign.text(error)
        super().__init__(f"{scorer} raised {type(error).__name__}{f': {text}' if text else ''}")


REWARD = "reward"
"""The entry of named numbers that is the reward, where there is one."""


def reward_in(result: Any) -> tuple[float | None, str]:
    """The reward of a result as it is counted, by evaluations and by trainers: a finite number; or
    None, and why there is none."""
    if not isinstance(result, Mapping):
        kind = type(result).__name__
        return None, f'the result is no mapping such as {{"reward": 1.0}}, but a {kind}'
    given = result.get(REWARD)
    if given is None:
        why = result.get("no_reward")
        return None, f"the result has no reward{f': {why}' if why else ''}"
    number = (scores_of(given) or {}).get(REWARD)
    if number is None or not math.isfinite(number):
        return None, f"the reward is no finite number: {foreign.call(repr, given).value!s:.100}"
    return number, ""


def scores_of(given: Any) -> dict[str, Any] | None:
    """The fields of a result with the reward that a scorer means: ``reward``, and with named
    numbers also ``rewards``; None if it means none.  Never raises."""
    number = number_of(given)
    if number is not None:
        return {REWARD: number}
    named = numbers_of(given)
    return None if named is None else {REWARD: reward_of_named(named), "rewards": named}


def number_of(value: Any) -> float | None:
    """``value`` as a float, or None if it is not one real number.

    Numbers are bool, int, float, ``Fraction``, ``Decimal``, and what has no dimensions
    (``shape == ()``) and says ``item()``: scalars and 0-d arrays of numpy and torch.
    NaN and the infinities are returned as they are; what is too large for a float is
    infinite.  Never raises, whatever the value's own code does.
    """
    if type(value) is float:
        return value
    found = foreign.call(_number, value)
    return None if found.error is not None else found.value


def _number(value: Any) -> float | None:
    if not isinstance(value, (numbers.Real, decimal.Decimal)):
        if getattr(value, "shape", None) != ():
            return None
        value = value.item()
        if not isinstance(value, (numbers.Real, decimal.Decimal)):
            return None
    given: Any = value
    try:
        return float(given)
    except OverflowError:
        return math.inf if given > 0 else -math.inf
    except ValueError:
        return math.nan  # a signalling NaN of Decimal


def numbers_of(value: Any) -> dict[str, float] | None:
    """Named numbers as floats, or None if ``value`` is not a mapping of names to
    numbers with at least one entry.  Never raises."""
    found = foreign.call(_numbers, value)
    return None if found.error is not None else found.value


def _numbers(value: Any) -> dict[str, float] | None:
    if not isinstance(value, Mapping) or not value:
        return None
    named = {}
    for name, item in value.items():
        number = number_of(item)
        if not isinstance(name, str) or number is None:
            return None
        named[name] = number
    return named


def reward_of_named(named: Mapping[str, float]) -> float:
    """The reward that named numbers mean: the entry ``reward``, or else their sum."""
    return named[REWARD] if REWARD in named else float(sum(named.values()))
