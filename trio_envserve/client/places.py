"""The places where the oldest rollouts stand, each by one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from ..core.errors import EnvServeError
from ..core.pages import RunningRollout
from ..core.places import place

if TYPE_CHECKING:
    from .shell import Client

YOUNG_S = 0.5
"""Younger rollouts are not asked about: there may be thousands of those a second."""


async def places(
    client: Client, rows: Sequence[RunningRollout], *, most: int, timeout_s: float
) -> dict[int, str]:
    """The lines of the first ``most`` of these that have run for a while, by their numbers.
    A worker that does not say it in time has none."""
    found: dict[int, str] = {}

    async def ask(number: int) -> None:
        try:
            found[number] = place(await client.stack(number, timeout_s=timeout_s) or "")
        except EnvServeError:
            pass  # a line more is not worth an error: its worker is stopped, or of another kind

    async with trio.open_nursery() as nursery:
        for row in [each for each in rows if each.age_s >= YOUNG_S][:most]:
            nursery.start_soon(ask, row.number)
    return found
