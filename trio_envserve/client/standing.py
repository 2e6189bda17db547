"""Where the oldest rollouts stand, each by one line.

One that waits for its model says so in its note; of others the workers say the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from ..core.errors import EnvServeError
from ..core.stack_frames import authors_line
from ..core.status import RunningRollout

if TYPE_CHECKING:
    from .shell import Client

WAITS = "waits"
"""The field of a note that says what a rollout waits for."""

YOUNG_S = 0.5
"""Younger rollouts are not asked about: there may be thousands of those a second."""


async def standing(
    client: Client, rows: Sequence[RunningRollout], *, most: int, timeout_s: float
) -> dict[int, str]:
    """The lines of the first ``most`` of these that have run for a while, and of all that
    wait, by their numbers.  A worker that does not say it in time has none."""
    found = {row.number: f"waits {row.note[WAITS]}" for row in rows if row.note.get(WAITS)}

    async def ask(number: int) -> None:
        try:
            found[number] = authors_line(await client.stack(number, timeout_s=timeout_s) or "")
        except EnvServeError:
            pass  # a line more is not worth an error: its worker is stopped, or of another kind

    async with trio.open_nursery() as nursery:
        for row in [each for each in rows if each.age_s >= YOUNG_S][:most]:
            if row.number not in found:
                nursery.start_soon(ask, row.number)
    return found
