"""Shared parts of both peers' programs: their conversation and their loads.

Run by the Python of a peer's own virtual environment, which has nothing of this
project; so the files of this folder stand alone.  The programs read one JSON object a
line and answer with one, as :mod:`tests.cost.driver` says, and end with
their standard input.
"""

# uvloop is not installed where this is type-checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

Open = Callable[[str], Awaitable[Any]]
"""Opens a connection to an address, ready for calls."""

Ask = Callable[[Any, int, str, Any], Awaitable[bool]]
"""Makes one call on a connection (its number, its payload, the wanted response), and says
whether the answer was the right one."""

MESSAGES = 20
TOKENS = 4000


def realistic() -> tuple[list[dict[str, str]], list[int], list[float]]:
    """The same rollout as the benchmark's own environment has: messages, token ids and
    logprobs."""
    dice = random.Random(0)
    words = ["so", "the", "answer", "is", "reasoning", "because", "42", "then"]
    messages = [
        {
            "role": ("assistant", "user")[turn % 2],
            "content": " ".join(dice.choice(words) for _ in range(40)),
        }
        for turn in range(MESSAGES)
    ]
    token_ids = [dice.randrange(150_000) for _ in range(TOKENS)]
    return messages, token_ids, [-dice.expovariate(2.0) for _ in range(TOKENS)]


def free_address() -> str:
    """Where a server can listen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def announce(address: str) -> None:
    """Say where the server listens; from now on it ends with standard input, and what
    else is printed goes to standard error."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    print(json.dumps({"address": address}), flush=True)
    sys.stdout = sys.stderr


def _end_with_stdin() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def run_client(address: str, open_one: Open, ask: Ask) -> None:
    """Carry out loads until standard input ends."""
    import uvloop

    uvloop.run(_client(address, open_one, ask))


async def _client(address: str, open_one: Open, ask: Ask) -> None:
    clients = [await open_one(address)]
    print(json.dumps({"ready": True}), flush=True)
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_lines, args=(loop, lines), daemon=True).start()
    while True:
        load = json.loads(await lines.get())
        while len(clients) < load["clients"]:
            clients.append(await open_one(address))
        print(json.dumps(await _carry_out(load, clients[: load["clients"]], ask)), flush=True)


def _read_lines(loop: Any, lines: Any) -> None:
    """Standard input; when it ends, everything does, whatever is under way."""
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    os._exit(0)


async def _carry_out(load: dict[str, Any], clients: list[Any], ask: Ask) -> dict[str, Any]:
    payload, wanted = "x" * load["request_bytes"], load["response"]
    took_s: list[float] = []
    asked = wrong = 0
    began_s = time.perf_counter()
    until_s = began_s + load["seconds"]

    async def keep_asking(one: Any) -> None:
        nonlocal asked, wrong
        while True:
            asked, call, asked_s = asked + 1, asked, time.perf_counter()
            wrong += not await ask(one, call, payload, wanted)
            took_s.append(time.perf_counter() - asked_s)
            if time.perf_counter() >= until_s:
                return

    tasks = [keep_asking(clients[index % len(clients)]) for index in range(load["in_flight"])]
    await asyncio.gather(*tasks)
    seconds = time.perf_counter() - began_s
    took_s.sort()
    return {
        "asked": asked,
        "answered": len(took_s),
        "wrong": wrong,
        "seconds": seconds,
        "p50_ms": took_s[len(took_s) // 2] * 1000,
        "p99_ms": took_s[int(len(took_s) * 0.99)] * 1000,
    }
