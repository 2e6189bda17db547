"""Loops that stand still: a client's with a thousand outcomes waiting, then a server's.

Theory of operation
-------------------
Between the two stands the fault proxy, which makes no faults here: it counts the
connections that are made.  Whoever is held does not answer for so long, by a blocking
sleep in its loop; then everything that was asked must come to its right answer, once,
and no peer may have connected again and again meanwhile.  The peers are this project's
own, or libzmq's, which send ZMTP's heartbeats and drop who does not answer them:
:mod:`.dealers` in front of a server, :mod:`.relay` in front of a client.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import trio

from trio_envserve.core.errors import ServerStartError
from trio_envserve.lab.history import CALLERS
from trio_envserve.lab.programs import Program
from trio_envserve.net import unwrap_single
from trio_envserve.testing.proxy import open_fault_proxy

from .testbed import SIZE, Testbed

CALLS = 1000
DEALERS = 4
CALL_S = 0.5
"""How long a rollout takes: all have ended long before a held loop goes on."""

WAIT_S = 60.0
"""From the end of the hold to the last answer."""
LIMIT_S = WAIT_S + 60.0
"""From the end of the hold to the word of the client; only a hang takes longer."""


class Scenario(NamedTuple):
    """The loop that is held, and its peers."""

    held: str
    libzmq: bool


SCENARIOS = {
    "held-client": Scenario("client", libzmq=False),
    "held-client-libzmq": Scenario("client", libzmq=True),
    "held-server": Scenario("server", libzmq=False),
    "held-server-libzmq": Scenario("server", libzmq=True),
}


async def hold_loops(testbed: Testbed, name: str, seconds: float) -> None:
    """One scenario; what came of it is written to the events."""
    scenario = SCENARIOS[name]
    async with AsyncExitStack() as stack:
        workers = 1 if scenario.held == "client" else 0
        server, said = await stack.enter_async_context(testbed.server(workers=workers))
        address = said["front"]
        if scenario == Scenario("client", libzmq=True):
            relay = testbed.program("relay", {"address": address}, "the relay")
            _, relaying = await stack.enter_async_context(relay)
            address = relaying["address"]
        proxy = await stack.enter_async_context(open_fault_proxy(address))
        if scenario == Scenario("server", libzmq=True):
            asking = {
                "address": proxy.address, "log": str(testbed.directory / CALLERS), "size": SIZE,
                "peers": DEALERS,
            }  # fmt: skip
            dealers = testbed.program("dealers", asking, "the dealers")
            client, _ = await stack.enter_async_context(dealers)
        else:
            client = await stack.enter_async_context(testbed.client(proxy.address))
        victims = {"server": server, "client": client}
        right = before = 0
        try:
            warm = {"do": "hold", "seconds": 0.0, "calls": 8, "duration_s": 0.0, "wait_s": WAIT_S}
            await client.ask(warm, LIMIT_S)
            before = proxy.counters.connections
            right = (await _hold(scenario.held, server, client, seconds))["right"]
        except ServerStartError as error:
            await testbed.blame(victims, scenario.held, -1, f"{name}: {error}")
        testbed.events.write(
            "held", scenario=name, seconds=seconds, calls=CALLS, right=right,
            peers=DEALERS if scenario == Scenario("server", libzmq=True) else 1,
            connections=proxy.counters.connections - before,
        )  # fmt: skip


async def _hold(held: str, server: Program, client: Program, seconds: float) -> dict[str, Any]:
    order: dict[str, Any] = {"do": "hold", "calls": CALLS, "duration_s": CALL_S, "wait_s": WAIT_S}
    if held == "client":
        return await client.ask({**order, "seconds": seconds}, seconds + LIMIT_S)
    order["wait_s"] += seconds
    found: dict[str, Any] = {}

    async def ask() -> None:
        found.update(await client.ask({**order, "seconds": 0.0}, seconds + LIMIT_S))

    with unwrap_single():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(CALL_S)
            await server.ask({"do": "hold", "seconds": seconds}, seconds + LIMIT_S)
    return found
