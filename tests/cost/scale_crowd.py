"""A crowd of clients: a program with thousands of them, each with a connection of its own.

``python -m tests.cost.scale_crowd '{"address": ..., "clients": 4950}'``

Theory of operation
-------------------
Each says hello, has one rollout, and stays: from then on it states that nothing of it is
pending, as often as clients do that ask nothing more.  It does so with raw sockets, since
thousands of real clients in one process would take more of the machine than the router, which
is what is measured.
When all rollouts have ended there is a line ``{"event": "served", "right": ...}``.  It ends
with its standard input.
"""

from __future__ import annotations

from typing import Any

import trio

from trio_envserve.core import messages
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.terms import Status
from trio_envserve.lab.conformance.peer import Peer
from trio_envserve.lab.conformance.raw import open_raw_peer
from trio_envserve.lab.orders import given_options, input_ends, say

AT_ONCE = 50
"""Number of clients that join at one time."""

PATIENCE_S = 60.0
"""Longest wait for a connection, a session or an outcome."""


def main() -> int:
    """Run until the end of standard input."""
    trio.run(_run, given_options("python -m tests.cost.scale"))
    return 0


async def _run(options: dict[str, Any]) -> None:
    count, right, ended = options["clients"], 0, 0
    places, all_ended = trio.Semaphore(AT_ONCE), trio.Event()

    async def live() -> None:
        nonlocal right, ended
        address = options["address"]
        async with open_raw_peer(address, patience_s=PATIENCE_S, identity=b"") as (peer, _):
            await peer.hello()
            peer.transmit(0, {})
            outcome, _ = await peer.next(messages.Outcome)
            right += outcome.status == Status.RESULT
            ended += 1
            places.release()
            if ended == count:
                all_ended.set()
            await _stay(peer)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            await places.acquire()
            nursery.start_soon(live)
        await all_ended.wait()
        say("served", right=right)
        await input_ends()
        nursery.cancel_scope.cancel()


async def _stay(peer: Peer) -> None:
    """State that nothing is pending, again and again."""
    limits = ClientLimits()
    pause_s = limits.ping_s
    while True:
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, limits.idle_ping_s)
        await peer.sync(1, [])
        peer.forget()


if __name__ == "__main__":
    raise SystemExit(main())
