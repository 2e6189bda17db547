"""The enemy: a process that attacks servers, or is a hostile server to the clients that come.

The argument is one JSON object: ``log`` and ``seed``, and ``listen``, the ``tcp://`` address of
a hostile server.  Orders on standard input, each answered by a line with ``cpu_s``, the
processor time that it took:

- ``{"do": "attack", "attacks": [...], "addresses": {...}, "seconds": s, "round": n}``: all of
  these attacks at once, again and again for so long, each at the address of its place.  A
  hostile server gives each connection the next of them, for :data:`TURN_S` at most;
- ``{"do": "burn", "cpu_s": c, "seconds": s}``: take so much processor time in so long, and do
  nothing: the attack is compared with that.
"""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from tests.rig.program import given_options, obey_orders, say
from trio_envserve.lab.logs import EventLog

from .attacks import ATTACKS
from .wires import Attacker, be_hostile, repeat, seeded

SLICE_S = 0.02
"""The processor time to burn is spread over slices of this length."""

SPARE_DESCRIPTORS = 500
"""For the attacks that run beside the one with the most connections."""

TURN_S = 1.5
"""Longest time that one attack has a connection of a client."""


@final
class Enemy:
    def __init__(self, log: EventLog, seed: int) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._most_connections = min(10_000, most - SPARE_DESCRIPTORS)
        self._log = log
        self._seed = seed
        self._round = 0
        self._numbers = itertools.count()
        self._next: Iterator[str] = iter(())
        """The attacks of the connections that come."""

    async def obey(self, order: dict[str, Any]) -> None:
        began_s = time.process_time()
        if order["do"] == "burn":
            await trio.to_thread.run_sync(burn, order["cpu_s"], order["seconds"])
        elif "addresses" in order:
            async with trio.open_nursery() as nursery:
                for name in order["attacks"]:
                    nursery.start_soon(self._attack, name, order)
        else:
            names = list(order["attacks"])
            seeded(self._seed, order["round"]).shuffle(names)
            self._round, self._next = order["round"], itertools.cycle(names)
            await trio.sleep(order["seconds"])
            self._next = iter(())
        say("done", cpu_s=time.process_time() - began_s)

    async def _attack(self, name: str, order: dict[str, Any]) -> None:
        attack, number = ATTACKS[name], order["round"]
        rng = seeded(self._seed, number, name)
        attacker = Attacker(order["addresses"][attack.at], rng, self._most_connections)
        self._log.write("did", name, round=number)
        await repeat(attack, attacker, order["seconds"])
        self._log.write("did", name, round=number, counts=dict(attacker.counts))

    async def serve(self, stream: trio.SocketStream) -> None:
        """Be hostile to one connection; outside of an attack it is closed at once."""
        name = next(self._next, None)
        if name is None:
            return
        attacker = Attacker("", seeded(self._seed, next(self._numbers), name))
        self._log.write("did", name, round=self._round)
        try:
            with trio.move_on_after(TURN_S):
                await be_hostile(ATTACKS[name], attacker, stream)
        finally:
            self._log.write("did", name, round=self._round, counts=dict(attacker.counts))


def burn(cpu_s: float, seconds: float) -> None:
    """Take so much of this thread's processor time, evenly, in so many seconds."""
    began_s, began_cpu_s = time.monotonic(), time.thread_time()
    while (past_s := time.monotonic() - began_s) < seconds:
        due_s = cpu_s * min(1.0, (past_s + SLICE_S) / seconds)
        while time.thread_time() - began_cpu_s < due_s and time.monotonic() - began_s < seconds:
            sum(range(1000))
        time.sleep(max(0.0, SLICE_S - (time.monotonic() - began_s - past_s)))


async def main(options: dict[str, Any]) -> None:
    enemy = Enemy(EventLog(Path(options["log"])), options["seed"])
    async with trio.open_nursery() as nursery:
        if "listen" in options:
            host, _, port = options["listen"].removeprefix("tcp://").rpartition(":")
            await nursery.start(partial(trio.serve_tcp, enemy.serve, int(port), host=host))
        say("ready")
        await obey_orders(enemy.obey)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, given_options())
