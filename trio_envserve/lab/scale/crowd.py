"""A crowd of clients: a program with thousands of them, each with a connection of its own.

``python -m trio_envserve.lab.scale.crowd '{"address": ..., "clients": 4950}'``

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

import random
from typing import Any

import trio

from ...core import messages
from ...core.limits import ClientLimits
from ...core.terms import Status
from ..orders import given_options, input_ends, say
from ..siege import wire
from ..siege.attacks_protocol import body_of, request
from ..siege.context import AttackContext, Connection

AT_ONCE = 50
"""So many join at one time."""


def main() -> int:
    """Run until the end of standard input."""
    trio.run(_run, given_options("lab.scale"))
    return 0


async def _run(options: dict[str, Any]) -> None:
    count, right, ended = options["clients"], 0, 0
    places, all_ended = trio.Semaphore(AT_ONCE), trio.Event()
    context = AttackContext(options["address"], random.Random(0))

    async def live() -> None:
        nonlocal right, ended
        async with context.session() as (peer, welcome):
            await peer.send(request(welcome, 0, body_of({})))
            outcome = await peer.hear_first(messages.Outcome)
            right += outcome.status == Status.RESULT
            ended += 1
            places.release()
            if ended == count:
                all_ended.set()
            async with peer.drained():
                await _stay(peer, welcome)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            await places.acquire()
            nursery.start_soon(live)
        await all_ended.wait()
        say("served", right=right)
        await input_ends()
        nursery.cancel_scope.cancel()


async def _stay(peer: Connection, welcome: messages.Welcome) -> None:
    """State that nothing is pending, again and again."""
    limits = ClientLimits()
    probe, pause_s = 0, limits.ping_s
    while True:
        await trio.sleep(pause_s)
        probe, pause_s = probe + 1, min(2 * pause_s, limits.idle_ping_s)
        sync = messages.Sync(welcome.session, welcome.epoch, 1, probe, 1, [])
        await peer.send(wire.message(messages.encode(sync)))


if __name__ == "__main__":
    raise SystemExit(main())
