"""Stored results that are scored anew, by an environment's ``rescore(rollout, value)``.

Theory of operation
-------------------
``rollout.input`` is the input of the rollout and ``value`` its result, as they were stored; no
model is asked but those that the scorer names by their roles.  The scorer returns a number, named
numbers, or a mapping with a ``reward``.  All else is no reward, and the rescoring has failed: never
is it a reward of 0.

The new reward is that of all token records (``segments``) of the result, the calls of the roles are
those of the new scorer, and fields of the mapping take the place of those of their names.  Metrics
of before are gone, since nothing says which of them the old scorer has made; a scorer that keeps
some returns them.  What else the result has stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.errors import ConfigError
from .interface import Rollout
from .loading import LoadedEnvironment
from .rewards import REWARD, reward_in, scores_of

_SCORES = ("reward", "rewards", "metrics", "no_reward")
"""Fields that a scorer has made."""


class NoScore(Exception):
    """A scorer returned what is no reward."""

    code = "scorer-failed"


def scorer_of(environment: LoadedEnvironment) -> Callable[[Rollout, Any], Any]:
    """The environment's scorer of stored results.  Raises :class:`ConfigError`, which says what to
    write, if it has none."""
    if environment.rescore is None:
        raise ConfigError(
            f"{environment.name} cannot score stored results: write a method "
            "rescore(self, rollout, value) that returns the reward, where rollout.input is the "
            "input of the rollout, and value its result"
        )
    return environment.rescore


def rescored(value: Any, given: Any, rollout: Rollout) -> Any:
    """A stored result with what its scorer has returned.  Raises :class:`NoScore`."""
    made = _changed(value, given)
    roles = rollout.usage.to_record().get("roles")
    usage = made.get("usage")
    usage = dict(usage) if isinstance(usage, Mapping) else {}
    usage.pop("roles", None)
    if roles or usage:
        made["usage"] = {**usage, "roles": roles} if roles else usage
    if isinstance(made.get("segments"), list | tuple):
        reward, _ = reward_in(made)
        made["segments"] = [
            {**each, REWARD: reward} if isinstance(each, Mapping) else each
            for each in made["segments"]
        ]
    return made


def _changed(value: Any, given: Any) -> dict[str, Any]:
    scores = scores_of(given)
    if scores is not None:
        if scores.get("rewards", {}).keys() == {REWARD}:
            del scores["rewards"]
    elif isinstance(given, Mapping) and scores_of(given.get(REWARD)) is not None:
        scores = dict(given)
    else:
        what = "None" if given is None else f"a {type(given).__name__}"
        raise NoScore(
            f"rescore() returned {what} and no reward: return a number, named numbers, or a "
            "mapping with a reward"
        )
    kept = value if isinstance(value, Mapping) else {"value": value}
    return {**{name: item for name, item in kept.items() if name not in _SCORES}, **scores}
