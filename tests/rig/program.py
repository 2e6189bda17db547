"""A program that a :class:`~trio_envserve.lab.processes.Process` runs: its side of orders."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio


async def obey_orders(obey: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Carry out the objects on standard input, one after the other, until its end."""
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while more := await stdin.receive_some(65536):
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                await obey(json.loads(line))


async def input_ends() -> None:
    """Wait for the end of standard input, on which nothing else is said."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while await stdin.receive_some(1024):
            pass


def say(event: str, **fields: Any) -> None:
    """An object on standard output, there at once."""
    print(json.dumps({"event": event, **fields}), flush=True)


def given_options() -> dict[str, Any]:
    """The one argument of a program, a JSON object."""
    if len(sys.argv) != 2:
        raise SystemExit(f"{sys.argv[0]} takes one JSON object: another program starts it")
    options: dict[str, Any] = json.loads(sys.argv[1])
    return options
