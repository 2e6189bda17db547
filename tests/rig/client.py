"""The client of all rigs: a process of its own, to be stopped and killed.

Theory of operation
-------------------
The argument is one JSON object: ``address``, ``name``, ``caller``, ``log`` (that of the run),
``seed`` and ``mix``, the module whose ``Mix`` says what is asked; if wanted ``opener``, the
``module:function`` that opens another client, and ``count_s``.  Orders come on standard input,
each with a ``number``, and one ends the one before:

- ``{"do": "load", "in_flight": n, "reach": r}``: ask what the mix draws, n at a time (``{"do":
  "reach", "reach": r}`` changes how far it reaches, and ends nothing);
- ``{"do": "all", "in_flight": n, "count": c}``: ask each of the first c of the mix, once;
- ``{"do": "rest"}``: ask for nothing new;
- ``{"do": "hold", "seconds": s}``: the loop stands still for so long, and no order is ended.

Standard output has ``ready``, ``count`` now and then, and ``done`` with the number of the order:
``all`` is done when all of it has ended, ``rest`` when nothing is pending.  The client ends with
its standard input, also while it waits for the server.

A call is in the log before it is made, and after it is answered or withdrawn, by what its caller
has in hands and nothing else.  No record of the calls is kept here: memory is measured.
"""

from __future__ import annotations

import importlib
import itertools
import math
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import trio

from tests.rig.program import given_options, obey_orders, say
from trio_envserve.client import Client, open_client
from trio_envserve.core.limits import ClientLimits
from trio_envserve.lab.demo.wiretap import LinkLogNetwork
from trio_envserve.lab.logs import EventLog, told_of
from trio_envserve.net import open_zmq_network

LIMITS = ClientLimits(reconnect_s=4.0)
"""A half-open connection is found sooner than by default: a rig has more of them."""

COUNT_S = 0.25
"""Between two counts on standard output."""


class Ask(NamedTuple):
    request: str
    """Empty: one of a measurement, which is not logged."""
    seconds: float = 0.0
    keyed: bool = False
    rerun: bool | None = None
    max_executions: int | None = None
    timeout_s: float | None = None
    withdraw_s: float = math.inf
    """After how long its caller withdraws it."""
    pad: bytes = b""
    """The padding that makes its body large."""
    give: int = 0
    """Bytes of its result."""


class Asks:
    """What a client asks: a mix is a class of its kind, named ``Mix``."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.name = name
        self.rng = random.Random(f"{seed}/{name}")

    def draw(self, reach: int) -> Ask:
        """The next call, of those that are known by now."""
        raise NotImplementedError

    def nth(self, number: int) -> Ask:
        return self.draw(0)

    def told(self, ask: Ask) -> None:
        """A call has an answer."""


@final
class Caller:
    def __init__(self, client: Client, options: dict[str, Any], log: EventLog) -> None:
        self._client = client
        self._name: str = options["name"]
        self._log = log
        self._mix: Asks = importlib.import_module(options["mix"]).Mix(options["seed"], self._name)
        self._count_s: float = options.get("count_s", COUNT_S)
        self._numbers = itertools.count()
        self._asked = self._ended = self._reach = 0
        self._order = 0
        """Number of the order that is carried out."""
        self._changed = trio.Condition()

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
        async for order in orders:
            self._reach = order.get("reach", self._reach)
            if order["do"] == "hold":
                time.sleep(order["seconds"])  # noqa: ASYNC251  # that is the fault
            elif order["do"] != "reach":
                self._order = order["number"]
                nursery.start_soon(self._carry_out, order)

    async def _carry_out(self, order: dict[str, Any]) -> None:
        right = 0

        async def work(asks: Iterator[Ask]) -> None:
            nonlocal right
            for ask in asks:
                if self._order != order["number"]:
                    return
                is_right = await self._ask(ask)
                right += is_right

        drawn = (self._mix.draw(self._reach) for _ in itertools.count())
        counted = map(self._mix.nth, range(order.get("count", 0)))
        asks = {"load": drawn, "all": counted, "rest": iter(())}[order["do"]]
        async with trio.open_nursery() as nursery:
            for _ in range(order.get("in_flight", 0)):
                nursery.start_soon(work, asks)
        async with self._changed:
            while self._asked != self._ended and order["do"] == "rest":
                await self._changed.wait()
        if self._order == order["number"]:
            say("count", asked=self._asked, ended=self._ended)
            say("done", number=order["number"], right=right)

    async def _count(self) -> None:
        """Say now and then how far it is."""
        while True:
            say("count", asked=self._asked, ended=self._ended)
            await trio.sleep(self._count_s)

    async def _ask(self, ask: Ask) -> bool:
        """One call; whether its answer was its result."""
        asked = {"request": ask.request, "seconds": ask.seconds, "pad": ask.pad, "give": ask.give}
        limits: dict[str, Any] = {
            "rerun": ask.rerun, "max_executions": ask.max_executions, "timeout_s": ask.timeout_s,
        }  # fmt: skip
        call = f"{self._name}#{next(self._numbers)}"
        about = {"call": call, "keyed": ask.keyed, **limits}
        if ask.request:
            self._log.write("asked", self._name, ask.request, **about)
            self._asked += 1
        outcome = None
        with trio.move_on_after(ask.withdraw_s):
            key = ask.request if ask.keyed else None
            outcome = await self._client.outcome(asked, key=key, **limits)
        value = None if outcome is None else outcome.value
        right = isinstance(value, dict) and value.get("request") == ask.request
        if ask.request and outcome is None:
            self._log.write("withdrawn", self._name, ask.request, call=call)
        elif ask.request and outcome is not None:
            told = {"call": call, "right": right, **told_of(outcome)}
            self._log.write("told", self._name, ask.request, **told)
        self._mix.told(ask)
        if ask.request:
            self._ended += 1
        async with self._changed:
            self._changed.notify_all()
        return right


@asynccontextmanager
async def open_tapped(options: dict[str, Any]) -> AsyncIterator[Client]:
    """A client whose connections are logged."""
    name = options["name"]
    async with open_zmq_network() as network:
        tapped = LinkLogNetwork(network, name, EventLog(Path(options["log"])))
        async with open_client(
            options["address"], name=name, caller=options["caller"], limits=LIMITS, network=tapped
        ) as client:
            yield client


async def _run(options: dict[str, Any]) -> None:
    module, _, name = options.get("opener", f"{__name__}:open_tapped").partition(":")
    opener = getattr(importlib.import_module(module), name)
    async with opener(options) as client:
        await Caller(client, options, EventLog(Path(options["log"]))).obey()
    say("ended")


if __name__ == "__main__":
    trio.run(_run, given_options())
