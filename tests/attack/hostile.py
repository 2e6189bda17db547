"""A hostile server: a process of its own, that is bad to whoever connects.

``python -m tests.attack.hostile '{"log": ..., "seed": ..., "address": ...}'``

Listens at ``address``, a ``tcp://`` one of loopback, prints ``{"event": "listening"}``, and
obeys ``{"do": "attack", "attacks": [...], "seconds": s, "turn_s": t, "round": n}``: each
connection that is made in that time meets the next of these attacks, for ``turn_s`` at
most; then the next one has the client.  It stops when its standard
input ends.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from trio_envserve.lab.logs import JsonLog
from trio_envserve.lab.orders import given_options, obey_orders, say

from .attacks_on_clients import ATTACKS
from .context import Connection, ConnectionEnded, seeded


def main() -> int:
    """Run until the end of standard input."""
    trio.run(_run, given_options("tests.attack"))
    return 0


async def _run(options: dict[str, Any]) -> None:
    hostile = _Hostile(JsonLog(Path(options["log"])), options["seed"])
    async with trio.open_nursery() as nursery:
        host, _, port = options["address"].removeprefix("tcp://").rpartition(":")
        await nursery.start(partial(trio.serve_tcp, hostile.serve, int(port), host=host))
        say("listening")
        await obey_orders(hostile.attack)
        nursery.cancel_scope.cancel()


@final
class _Hostile:
    def __init__(self, log: JsonLog, seed: int) -> None:
        self._log = log
        self._seed = seed
        self._round = 0
        self._turn_s = 1.0
        self._names: Iterator[str] = iter(())
        self._numbers = itertools.count()

    async def attack(self, order: dict[str, Any]) -> None:
        """Be bad for so long."""
        rng = seeded(self._seed, order["round"], "order")
        names = list(order["attacks"])
        rng.shuffle(names)
        self._round, self._turn_s = order["round"], order["turn_s"]
        self._names = itertools.cycle(names)
        await trio.sleep(order["seconds"])
        self._names = iter(())
        say("attack")

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection; outside of an attack it is closed at once."""
        name = next(self._names, None)
        if name is None:
            return
        number = next(self._numbers)
        counts: collections.Counter[str] = collections.Counter(connections=1)
        connection = Connection(stream, counts)
        self._log.write("begin", attack=name, round=self._round)
        try:
            with trio.move_on_after(self._turn_s):
                await ATTACKS[name].behave(connection, seeded(self._seed, number, name))
                counts["rounds"] += 1
        except* ConnectionEnded:
            counts["closed"] += 1
        finally:
            self._log.write("end", attack=name, round=self._round, counts=dict(counts))


if __name__ == "__main__":
    raise SystemExit(main())
