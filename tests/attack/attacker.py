"""The attacker: a process of its own, that does what it is told to a server.

``python -m tests.attack.attacker '{"log": ..., "seed": ...}'``

Obeys ``{"do": "attack", "addresses": {...}, "attacks": [...], "seconds": s, "round": n}``:
all of these attacks at the same time, again and again for so long, each at the address of
its place (:data:`.context.Place`); answered with the processor time that it took.  What
each attack has done is in the log.  And ``{"do": "burn", "cpu_s": c, "seconds": s}``: take
so much processor time in so long, and do nothing; that is what the attack is compared
with.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import trio

from trio_envserve.lab.logs import JsonLog
from trio_envserve.lab.orders import given_options, obey_orders, say

from .attacks import ON_SERVERS
from .context import AttackContext, raise_descriptor_limit, run_attack, seeded

SLICE_S = 0.02
"""The processor time to burn is spread over slices of this length."""

SPARE_DESCRIPTORS = 500
"""For the attacks that run beside the one with the most connections."""


def main() -> int:
    """Run until the end of standard input."""
    trio.run(_run, given_options("tests.attack"))
    return 0


async def _run(options: dict[str, Any]) -> None:
    log = JsonLog(Path(options["log"]))
    connections = min(10_000, raise_descriptor_limit() - SPARE_DESCRIPTORS)
    say("ready")

    async def obey(order: dict[str, Any]) -> None:
        began_s = time.process_time()
        if order["do"] == "burn":
            await trio.to_thread.run_sync(burn, order["cpu_s"], order["seconds"])
        else:
            await _attack(order, options["seed"], connections, log)
        say(order["do"], cpu_s=time.process_time() - began_s)

    await obey_orders(obey)


async def _attack(order: dict[str, Any], seed: int, connections: int, log: JsonLog) -> None:
    async with trio.open_nursery() as nursery:
        for name in order["attacks"]:
            nursery.start_soon(_one, name, order, seed, connections, log)


async def _one(name: str, order: dict[str, Any], seed: int, connections: int, log: JsonLog) -> None:
    attack = ON_SERVERS[name]
    address = order["addresses"][attack.at]
    context = AttackContext(address, seeded(seed, order["round"], name), connections)
    log.write("begin", attack=name, round=order["round"])
    await run_attack(attack, context, order["seconds"])
    log.write("end", attack=name, round=order["round"], counts=dict(context.counts))


def burn(cpu_s: float, seconds: float) -> None:
    """Take so much of this thread's processor time, evenly, in so many seconds."""
    began_s, began_cpu_s = time.monotonic(), time.thread_time()
    while (past_s := time.monotonic() - began_s) < seconds:
        due_s = cpu_s * min(1.0, (past_s + SLICE_S) / seconds)
        while time.thread_time() - began_cpu_s < due_s and time.monotonic() - began_s < seconds:
            sum(range(1000))
        time.sleep(max(0.0, SLICE_S - (time.monotonic() - began_s - past_s)))


if __name__ == "__main__":
    raise SystemExit(main())
