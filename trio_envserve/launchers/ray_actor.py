"""The code of an actor of Ray: one host.  It knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from ..host.opening import open_host


class HostActor:
    """A host, in a thread of the actor's process; another one tells it to leave.

    The process is Ray's: when it is killed, the guard of the host ends the workers.  It has
    no coroutine among its methods: Ray would run all of them in one loop of asyncio, and
    none while the host is there.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.is_leaving = False
        self.wake: Callable[[], object] = lambda: None
        """Called from another thread: look whether it is to leave."""

    def run(self) -> str:
        """Join, and stay until it is told to leave and nothing runs any more."""
        trio.run(_host, self)
        return "it has left"

    def leave(self) -> None:
        """Take no more work; :meth:`run` returns when nothing runs."""
        self.is_leaving = True
        self.wake()


async def _host(actor: HostActor) -> None:
    asked, token = trio.Event(), trio.lowlevel.current_trio_token()
    actor.wake = partial(token.run_sync_soon, asked.set)
    if actor.is_leaving:  # asked after that was set, so it is never missed
        return
    async with open_host(**actor.options) as host:
        await asked.wait()
        await host.leave()
