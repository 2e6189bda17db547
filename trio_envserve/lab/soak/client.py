"""A client of the soak: a process of its own, to be stopped and killed.

``python -m trio_envserve.lab.soak.client '{"address": ..., "name": ..., ...}'``

Theory of operation
-------------------
The argument is one JSON object: ``address``, ``name``, ``log`` (the callers' log),
``seed`` (of the mix) and ``size`` (how many tasks the environment has).  What it
does is said to it on standard input, a JSON object a line:

- ``{"do": "load", "in_flight": n}``: ask for the mix of :mod:`.mix`, n at a time;
- ``{"do": "rest"}``: ask for nothing new; answered when nothing is pending;
- ``{"do": "steady", "requests": n, "in_flight": m}``: ask for n short rollouts;
  answered when they are done.

Standard output has ``{"event": "ready" | "count" | "idle" | "steady", ...}``, a line
each.  It ends when its standard input does, also while it waits for the server;
what it was told meanwhile is done once that is ready.

Every call of the load is written to the log before it is made and after it is
answered or withdrawn, by what its caller has in hands and nothing else.  It keeps
no record of its calls itself: its memory is measured.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from pathlib import Path
from typing import Any, final

import trio

from ...client import Client, open_client
from ...core.limits import ClientLimits
from ...envs.arithmetic import Arithmetic
from ...net import ConnectionEvent, Message, open_zmq_network
from ..answers import is_right, noted
from ..demo.wiretap import TappedNetwork
from ..logs import JsonLog
from ..orders import given_options, obey_orders, say
from .mix import Ask, draw

LIMITS = ClientLimits(reconnect_s=4.0)
"""A half-open connection is found sooner than by default: a soak has more of them."""

_COUNT_S = 1.0
"""Between two counts on standard output."""


def main() -> int:
    """Run until the end of standard input."""
    trio.run(_run, given_options("soak"))
    return 0


async def _run(options: dict[str, Any]) -> None:
    log, name, address = JsonLog(Path(options["log"])), options["name"], options["address"]
    log.write("client", client=name, pid=os.getpid())
    async with open_zmq_network() as network:
        tapped = TappedNetwork(network, _Tap(name, log))
        async with open_client(address, name=name, limits=LIMITS, network=tapped) as client:
            await _Caller(client, options, log).obey()
    log.write("end", client=name)


@final
class _Tap:
    """Writes down when connections begin and end: so much a client can know of a
    server's death."""

    def __init__(self, name: str, log: JsonLog) -> None:
        self._name = name
        self._log = log

    def sent(self, frames: Message) -> None:
        """Nothing: what is asked is in the log already."""

    def received(self, frames: Message) -> None:
        """Nothing: what is answered is what its caller has."""

    def happened(self, event: ConnectionEvent) -> None:
        """A connection that began or ended."""
        if event in (ConnectionEvent.CONNECTED, ConnectionEvent.DISCONNECTED):
            self._log.write(event.value, client=self._name)


@final
class _Caller:
    """Makes the calls."""

    def __init__(self, client: Client, options: dict[str, Any], log: JsonLog) -> None:
        self._client = client
        self._name: str = options["name"]
        self._size: int = options["size"]
        self._tasks = Arithmetic(seed=0, size=self._size)
        self._rng = random.Random(f"{options['seed']}/{self._name}")
        self._log = log
        self._numbers = itertools.count()
        self._asked = 0
        self._ended = 0
        self._loading = False
        self._resting = False

    async def obey(self) -> None:
        """Carry out what is said on standard input, until its end."""
        said, orders = trio.open_memory_channel[dict[str, Any]](math.inf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._carry_out_all, orders, nursery)
            await obey_orders(said.send)
            nursery.cancel_scope.cancel()

    async def _carry_out_all(
        self, orders: trio.MemoryReceiveChannel[dict[str, Any]], nursery: trio.Nursery
    ) -> None:
        await self._client.wait_ready()
        say("ready")
        nursery.start_soon(self._count)
        async for command in orders:
            self._carry_out(command, nursery)

    def _carry_out(self, command: dict[str, Any], nursery: trio.Nursery) -> None:
        match command:
            case {"do": "load", "in_flight": int(in_flight)}:
                self._loading = True
                for _ in range(in_flight):
                    nursery.start_soon(self._load)
            case {"do": "rest"}:
                self._loading, self._resting = False, True
                self._say_if_idle()
            case {"do": "steady", "requests": int(requests), "in_flight": int(in_flight)}:
                nursery.start_soon(self._steady, requests, in_flight)

    async def _count(self) -> None:
        """Say now and then how far it is."""
        while True:
            say("count", asked=self._asked, ended=self._ended)
            await trio.sleep(_COUNT_S)

    # -- the load -------------------------------------------------------------

    async def _load(self) -> None:
        while self._loading:
            await self._ask(draw(self._rng))

    async def _ask(self, ask: Ask) -> None:
        number = next(self._numbers)
        key = f"{self._name}/{number}"
        self._log.write("ask", key=key, client=self._name, **ask.options)
        self._asked += 1
        asked = {
            "index": number % self._size, "key": key, "duration_s": ask.duration_s, "pad": ask.pad,
        }  # fmt: skip
        limit_s = float("inf") if ask.withdraw_s is None else ask.withdraw_s
        outcome = None
        with trio.move_on_after(limit_s):
            outcome = await self._client.outcome(asked, **ask.options)
        if outcome is None:
            self._log.write("withdrawn", key=key, client=self._name)
        else:
            right = outcome.ok and is_right(self._tasks, number, outcome.value)
            self._log.write("answer", key=key, client=self._name, right=right, **noted(outcome))
        self._ended += 1
        self._say_if_idle()

    def _say_if_idle(self) -> None:
        if self._resting and self._asked == self._ended:
            self._resting = False
            say("count", asked=self._asked, ended=self._ended)
            say("idle")

    # -- the measurement ------------------------------------------------------

    async def _steady(self, requests: int, in_flight: int) -> None:
        left = iter(range(requests))
        right = 0

        async def work() -> None:
            nonlocal right
            for number in left:
                outcome = await self._client.outcome({"index": number % self._size})
                right += outcome.ok and is_right(self._tasks, number, outcome.value)

        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(work)
        say("steady", requests=requests, right=right)


if __name__ == "__main__":
    raise SystemExit(main())
