"""Telling people what a command waits for."""

from __future__ import annotations

import math
from typing import Protocol

import trio

from ..core.health import Health, ServerHealth
from .common import say

LOOK_S = 0.25
AGAIN_S = 10.0
"""The same message is repeated after so long."""
PATIENCE_S = 3.0
"""A server that is only starting is not reported before."""


class HasHealth(Protocol):
    """A client or a door, which says how its server is."""

    def health(self) -> ServerHealth:
        """As far as it knows."""


async def tell_health(client: HasHealth, wait_s: float) -> None:
    """Say why the server is not healthy, whenever that changes, and when it is
    back.  It runs until it is cancelled.  A missing server is reported after about 3 s.
    ``wait_s`` is how long the command waits in all; it may be ``inf``."""
    said, said_s = "", trio.current_time()
    since_s = trio.current_time()
    while True:
        await trio.sleep(LOOK_S)
        now_s = trio.current_time()
        seen = client.health()
        if seen.health is Health.HEALTHY:
            if said:
                say("the server is back")
            said, since_s = "", now_s
            continue
        if seen.health is Health.STARTING and now_s - since_s < PATIENCE_S:
            continue
        gist = seen.reason.partition(" (for ")[0]  # without the seconds
        if gist != said or now_s - said_s >= AGAIN_S:
            said, said_s = gist, now_s
            left_s = wait_s - (now_s - since_s)
            more = f", {max(0.0, left_s):.0f} s more" if left_s < math.inf else ""
            say(f"waiting for the server{more}: {gist}")
