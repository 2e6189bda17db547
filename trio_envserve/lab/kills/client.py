"""A client that asks under keys for ever, and writes durably what it was told.

``python -m trio_envserve.lab.kills.client '{"address": ..., ...}'`` is told what to do on
standard input: ``{"do": "reach", "keys": N}``, up to which key it may ask, and ``{"do":
"finish"}``: ask for each of them once more, say ``{"event": "done"}`` and end (with the option
``finish`` it begins with that).  It asks for keys that it was not told yet, and again for
those that it was.  It ends when its standard input does.

A line for each call is in the log before the call is made.  What it was told is there, and
synced, before anything else is done with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any, final

import trio

from ...client import Client, Outcome, open_client
from ..logs import JsonLog
from ..orders import given_options, obey_orders, say
from .asks import MAX_EXECUTIONS, consents, input_of, key_of

IN_FLIGHT = 12
LAST_IN_FLIGHT = 50
_PAUSE_S = 1.0
"""At most so long a caller waits between two calls."""
_OWN_WORDS = "; servers that were lost"
"""So a client begins what it adds of its own to an outcome that is an error."""


def main() -> int:
    """Run until the end of standard input, or of what it is told to finish."""
    trio.run(_run, given_options("lab.kills"))
    return 0


async def _run(options: dict[str, Any]) -> None:
    log = JsonLog(Path(options["log"]))
    log.write("client", client=options["name"], pid=os.getpid())
    async with open_client(
        options["address"], name=options["name"], caller=options["caller"]
    ) as client:
        await _Caller(client, options, log).obey()


def told_of(outcome: Outcome) -> dict[str, Any]:
    """All that an outcome says, for a judge: of two that are the same it is the same."""
    error = outcome.error
    info = None if error is None else error.info
    value = outcome.value if isinstance(outcome.value, dict) else {}
    text = (info.message if info else str(error or "")).partition(_OWN_WORDS)[0]
    said = [
        repr(value), text, outcome.worker, outcome.duration_s, outcome.executions,
        None if info is None else [info.code, info.verdict.name, info.type, info.traceback],
    ]  # fmt: skip
    return {
        "ok": outcome.ok, "execution": value.get("execution"), "executions": outcome.executions,
        "code": None if error is None else info.code if info else error.code,
        "verdict": None if error is None else error.verdict.name,
        "message": None if error is None else str(error)[:300],
        "said": hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest(),
    }  # fmt: skip


@final
class _Caller:
    def __init__(self, client: Client, options: dict[str, Any], log: JsonLog) -> None:
        self._client = client
        self._name: str = options["name"]
        self._seed: int = options["seed"]
        self._reach: int = options["keys"]
        self._finish: bool = options["finish"]
        self._log = log
        self._rng = random.Random(f"{self._seed}/{self._name}")
        self._told: set[int] = set()
        self._asking: set[int] = set()

    async def obey(self) -> None:
        said, orders = trio.open_memory_channel[dict[str, Any]](math.inf)
        if self._finish:
            said.send_nowait({"do": "finish"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._carry_out, orders, nursery.cancel_scope)
            for _ in range(IN_FLIGHT):
                nursery.start_soon(self._ask_on)
            await obey_orders(said.send)
            nursery.cancel_scope.cancel()

    async def _carry_out(
        self, orders: trio.MemoryReceiveChannel[dict[str, Any]], whole: trio.CancelScope
    ) -> None:
        async for order in orders:
            self._reach = max(self._reach, order.get("keys", 0))
            if order["do"] == "finish":
                await self._ask_all()
                say("done")
                whole.cancel()

    async def _ask_on(self) -> None:
        while True:
            await self._ask(self._next())
            await trio.sleep(self._rng.uniform(0.0, _PAUSE_S))

    def _next(self) -> int:
        """Mostly one that it was not told, and that it does not ask for already."""
        new = [n for n in range(self._reach) if n not in self._told and n not in self._asking]
        if new and self._rng.random() < 0.7:
            return self._rng.choice(new)
        return self._rng.randrange(self._reach)

    async def _ask_all(self) -> None:
        numbers = iter(range(self._reach))

        async def work() -> None:
            for number in numbers:
                await self._ask(number)

        async with trio.open_nursery() as nursery:
            for _ in range(LAST_IN_FLIGHT):
                nursery.start_soon(work)

    async def _ask(self, number: int) -> None:
        key, rerun, began_s = key_of(number), consents(number), time.monotonic()
        self._asking.add(number)
        self._log.write("ask", key=key, client=self._name, rerun=rerun)
        outcome = await self._client.outcome(
            input_of(self._seed, number), key=key, rerun=rerun,
            max_executions=MAX_EXECUTIONS if rerun else None,
        )  # fmt: skip
        self._log.write("told", key=key, client=self._name, began_s=began_s, **told_of(outcome))
        self._log.sync()
        say("told")
        self._told.add(number)
        self._asking.discard(number)


if __name__ == "__main__":
    raise SystemExit(main())
