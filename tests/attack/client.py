"""A client of the siege: the honest one beside an attack, or the one attacked.

``python -m tests.attack.client '{"address": ..., "name": ..., ...}'``

The argument is one JSON object: ``address``, ``name``, ``log`` (the callers' log),
``loop`` (the log of its loop's turns), ``size`` (how many tasks there are), ``doors`` (the
addresses of the server's doors, by name), and ``limits`` and ``wire`` of
:func:`~trio_envserve.client.open_client`, ``transport``.  What
it does is said on standard input, a JSON object a line; each is answered by one:

- ``{"do": "ask", "seconds": s, "in_flight": n}``: ask for so long, n at a time and some at
  each door, wait for what is pending, and say how much was answered rightly in that time,
  at the server's front and at ``doors``; with
  ``newcomer`` also how long another client, new to the server, waited for its first
  answer meanwhile; with ``least`` the time goes on until so many have come;
- ``{"do": "hold", "seconds": s, "calls": n, "duration_s": d, "wait_s": w}``: make n calls
  that end while the loop stands still for so long, and wait for them so long at most;
- ``{"do": "load", "clients": n, "in_flight": m}``: ask, by n further clients too, until
  told to do something else; whatever comes is taken for an answer.

Each call is written to the log before it is made and after it is answered.
"""

from __future__ import annotations

import collections
import itertools
import os
import time
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from trio_envserve.client import Client, open_client
from trio_envserve.core.limits import ClientLimits, WireLimits
from trio_envserve.envs.arithmetic import Arithmetic
from trio_envserve.lab.answers import is_right, noted
from trio_envserve.lab.logs import JsonLog
from trio_envserve.lab.orders import given_options, obey_orders, say

from .door_callers import DoorCaller, open_door_caller
from .meter import watch_loop

PENDING_S = 20.0
"""How long calls that are pending when the time is over may take."""

AT_DOORS = 3
"""Callers at each door, each with one call at a time."""

NEWCOMER_S = 10.0
"""How long a client that comes during a siege may wait for its first answer."""

FLUSH_S = 0.3
"""How long the calls of a held loop have to leave before it is held."""


def main() -> int:
    """Run until the end of standard input."""
    trio.run(_run, given_options("tests.attack"))
    return 0


async def _run(options: dict[str, Any]) -> None:
    async with _open(options) as client:
        watch_loop(options["loop"], f"client {options['name']}")
        say("ready", pid=os.getpid())
        caller = _Caller(client, options)
        async with trio.open_nursery() as nursery:
            await obey_orders(partial(caller.obey, nursery))
            nursery.cancel_scope.cancel()


def _open(options: dict[str, Any]) -> AbstractAsyncContextManager[Client]:
    return open_client(
        options["address"],
        name=options["name"],
        limits=ClientLimits(**options.get("limits", {})),
        wire=WireLimits(**options.get("wire", {})),
        transport=options.get("transport", "zmtp"),
    )


@final
class _Caller:
    def __init__(self, client: Client, options: dict[str, Any]) -> None:
        self._client = client
        self._options = options
        self._name: str = options["name"]
        self._tasks = Arithmetic(size=options["size"])
        self._log = JsonLog(Path(options["log"]))
        self._numbers = itertools.count()
        self._loading = trio.CancelScope()

    async def obey(self, nursery: trio.Nursery, order: dict[str, Any]) -> None:
        """Carry out one order, and answer it."""
        self._loading.cancel()
        match order:
            case {"do": "ask"}:
                say("asked", **await self._ask_for(**_fields(order)))
            case {"do": "hold"}:
                say("held", **await self._hold(**_fields(order)))
            case {"do": "load", "clients": int(clients), "in_flight": int(in_flight)}:
                self._loading = trio.CancelScope()
                nursery.start_soon(self._load, clients, in_flight)
                say("loading")
            case _:
                raise ValueError(f"unknown order {order!r}")

    async def _ask(
        self, client: Client, fields: dict[str, Any] | None = None, newcomer: bool = False
    ) -> bool:
        """One call; whether its answer was right."""
        number, asked = self._begin(self._name, newcomer=newcomer)
        outcome = await client.outcome(asked | (fields or {}))
        right = outcome.ok and is_right(self._tasks, number, outcome.value)
        self._end(self._name, asked["key"], right=right, **noted(outcome))
        return right

    async def _ask_at(self, caller: DoorCaller, door: str) -> bool:
        """One call at a door; whether its answer was right."""
        who = f"{self._name} {door}"
        number, asked = self._begin(who, door=door)
        value, error = await caller.ask(asked["key"], asked)
        right = value is not None and is_right(self._tasks, number, value)
        found = {"ok": error is None, "executions": 1, "error": error, "message": error}
        self._end(who, asked["key"], right=right, verdict=None, **found)
        return right

    def _begin(self, who: str, **about: Any) -> tuple[int, dict[str, Any]]:
        """Log a call; its number, and what to ask."""
        number = next(self._numbers)
        key = f"{self._name}/{number}"
        self._log.write("ask", key=key, client=who, rerun=None, **about)
        return number, {"index": number % self._tasks.size, "key": key}

    def _end(self, who: str, key: str, **found: Any) -> None:
        self._log.write("answer", key=key, client=who, **found)

    async def _ask_for(
        self, seconds: float, in_flight: int, newcomer: bool = False, least: int = 0
    ) -> dict[str, Any]:
        ends_s = trio.current_time() + seconds
        answered = 0
        at_doors: collections.Counter[str] = collections.Counter()
        newcomer_s: float | None = None

        async def work() -> None:
            nonlocal answered
            while trio.current_time() < ends_s or answered < least:
                good = await self._ask(self._client)
                answered += good and (trio.current_time() < ends_s or answered < least)

        async def work_at(door: str, address: str) -> None:
            async with open_door_caller(door, address) as caller:
                while trio.current_time() < ends_s:
                    good = await self._ask_at(caller, door)
                    at_doors[door] += good and trio.current_time() < ends_s

        async def come() -> None:
            nonlocal newcomer_s
            await trio.sleep(seconds / 2)
            newcomer_s = await self._newcomer()

        with trio.move_on_at(ends_s + PENDING_S):
            async with trio.open_nursery() as nursery:
                for _ in range(in_flight):
                    nursery.start_soon(work)
                for door, address in self._options.get("doors", {}).items():
                    for _ in range(AT_DOORS):
                        nursery.start_soon(work_at, door, address)
                if newcomer:
                    nursery.start_soon(come)
        return {
            "answered": answered, "seconds": seconds, "newcomer_s": newcomer_s, "doors": at_doors
        }  # fmt: skip

    async def _newcomer(self) -> float | None:
        began_s = trio.current_time()
        with trio.move_on_after(NEWCOMER_S):
            async with _open({**self._options, "name": f"{self._name}-new"}) as client:
                await self._ask(client, newcomer=True)
                return trio.current_time() - began_s
        return None

    async def _hold(
        self, seconds: float, calls: int, duration_s: float, wait_s: float
    ) -> dict[str, Any]:
        """Make the calls, and hold the loop while their outcomes come."""
        right = 0

        async def work() -> None:
            nonlocal right
            good = await self._ask(self._client, {"duration_s": duration_s})
            right += good

        with trio.move_on_after(FLUSH_S + seconds + wait_s):
            async with trio.open_nursery() as nursery:
                for _ in range(calls):
                    nursery.start_soon(work)
                await trio.sleep(FLUSH_S)
                if seconds:
                    time.sleep(seconds)  # noqa: ASYNC251  # that is the fault
        return {"calls": calls, "right": right}

    async def _load(self, clients: int, in_flight: int) -> None:
        async def work(client: Client) -> None:
            while True:
                await client.outcome({"index": 0}, timeout_s=2.0)
                await trio.sleep(0.01)

        async def load(client: Client) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(in_flight):
                    nursery.start_soon(work, client)

        async def further(number: int) -> None:
            name = f"{self._name}-{number}"
            async with _open({**self._options, "name": name}) as client:
                await load(client)

        with self._loading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load, self._client)
                for number in range(clients):
                    nursery.start_soon(further, number)


def _fields(order: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in order.items() if name != "do"}


if __name__ == "__main__":
    raise SystemExit(main())
