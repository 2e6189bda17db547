"""What a rollout saves, so that a further execution goes on from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..core.errors import EnvServeError


class SaveRefused(EnvServeError):
    """Raised by ``rollout.save`` if nothing of the state is kept: it is too large, there is no room
    for it, or nothing goes on from it.  The state that was saved before stays."""

    code = "save-refused"


@dataclasses.dataclass(frozen=True, slots=True)
class SavedTurn:
    """The newest state that an earlier execution of the request, or an earlier attempt, has
    saved."""

    state: Any
    """The state, decoded; the environment's own."""
    doing: str | None = None
    """What the code was about to do when it saved, in its words.  That is in doubt: it happened, or
    it did not.  Whatever came before it is in the state."""


async def loop_saves(record: Mapping[str, Any]) -> None:
    """Take nothing from the code of a resumable class, whose loop saves: ``RuntimeError``."""
    raise RuntimeError(
        "this class is resumable, so its loop saves: return from snapshot() what is to be kept"
    )
