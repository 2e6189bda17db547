"""Loads, and how client programs carry them out.

A client program reads one JSON object a line, a :class:`Load` with ``seconds`` and ``first``,
carries it out, and answers with one line of figures.  It ends with its standard input.  Only the
standard library is imported: the peer's Python, which has nothing of this project, runs this.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, final

MB = 1_000_000
MESSAGES, TOKENS = 20, 4000
"""Of a realistic rollout."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """The work of a client program for a while."""

    in_flight: int
    request_bytes: int = 200
    response: int | Literal["lists", "arrays", "any"] = 200
    """Bytes; a realistic rollout, its token ids and logprobs as lists or arrays; or anything."""
    clients: int = 1
    """Connections, which share the requests in flight."""
    together: bool = False
    """Whether ours asks by one ``run_many``, and not by a task for each request in flight."""
    keyed: bool = False
    """Whether ours names each request by a key of its own."""
    turns: int = 0
    """Model calls of each rollout."""
    tail_s: float = 0.0
    """Time after the last answer that costs, too."""
    watchers: tuple[int, int, float] | None = None
    """Connections that read the events of the server meanwhile, those that are stuck, and the
    pause between scrapes of its metrics in seconds (0: no scrapes)."""
    least_s: float = 0.0
    """Least duration of the load."""

    @property
    def carried_bytes(self) -> int:
        """Payload of one request and its response where it is large; else 0."""
        response = self.response if isinstance(self.response, int) else 0
        size = max(self.request_bytes, response)
        return size if size >= MB else 0


def answer(record: dict[str, Any]) -> None:
    """One line of standard output, there at once."""
    print(json.dumps(record), flush=True)


def asked() -> Iterator[dict[str, Any]]:
    """The loads, until standard input ends."""
    for line in sys.stdin:
        yield json.loads(line)


@final
class Tally:
    """Numbers and times of the requests of one load."""

    def __init__(self, load: dict[str, Any], clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._first = self._next = int(load["first"])
        self._began_s = clock()
        self._until_s = self._began_s + float(load["seconds"])
        self._took_s: list[float] = []
        self._wrong = 0

    def more(self) -> bool:
        """Whether a further request is to be made."""
        return self._clock() < self._until_s

    def begin(self) -> tuple[int, float]:
        """A further request: its number, and when it was made."""
        call, self._next = self._next, self._next + 1
        return call, self._clock()

    def end(self, began_s: float, right: bool) -> None:  # twenty thousand a second
        """It is answered."""
        self._took_s.append(self._clock() - began_s)
        self._wrong += not right

    def figures(self) -> dict[str, Any]:
        """All requests are answered."""
        seconds = self._clock() - self._began_s
        took_s = sorted(self._took_s)
        return {
            "asked": self._next - self._first, "answered": len(took_s), "wrong": self._wrong,
            "seconds": seconds,
            "p50_ms": took_s[len(took_s) // 2] * 1000,
            "p99_ms": took_s[int(len(took_s) * 0.99)] * 1000,
        }  # fmt: skip


def realistic() -> tuple[list[dict[str, str]], list[int], list[float]]:
    """A rollout as they are: messages, token ids, logprobs."""
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


# -- asyncio ----------------------------------------------------------------------


async def serve(
    open_one: Callable[[], Awaitable[Any]],
    ask: Callable[[Any, int, dict[str, Any]], Awaitable[bool]],
) -> None:
    """Carry out loads until standard input ends.

    Args:
        open_one: Opens a connection, ready for calls.
        ask: Makes one call on a connection, by its number and the load, and says whether the
            answer was right.
    """
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_lines, args=(loop, lines), daemon=True).start()
    clients: list[Any] = [await open_one()]
    answer({"ready": True})
    while True:
        load = json.loads(await lines.get())
        while len(clients) < load["clients"]:
            clients.append(await open_one())
        tally = Tally(load)

        async def keep_asking(one: Any, load: dict[str, Any], tally: Tally) -> None:
            while True:
                call, began_s = tally.begin()
                tally.end(began_s, await ask(one, call, load))
                if not tally.more():
                    return

        tasks = (
            keep_asking(clients[index % load["clients"]], load, tally)
            for index in range(load["in_flight"])
        )
        await asyncio.gather(*tasks)
        answer(tally.figures())


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str]) -> None:
    """Standard input; when it ends, everything does, whatever is under way."""
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    os._exit(0)
