"""The verb ``door verifiers``: the wire of verifiers for a server, as a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import click

from .common import epilog_of_service
from .door import DoorOptions, Opened, door_options, run_door
from .doors import VerifiersOptions, open_verifiers, verifiers_asked, verifiers_options


@click.command(epilog=epilog_of_service("the address is in use"))
@click.option(
    "--verifiers-bind", "bind", default="tcp://127.0.0.1:5000", show_default=True,
    metavar="ADDRESS", help="Where to serve clients of verifiers: tcp://HOST:PORT or ipc://PATH.",
)  # fmt: skip
@verifiers_options
@door_options
def verifiers(bind: str, **given: Any) -> int:
    """Serve clients of verifiers 0.4 for the server at --address.

    \b
    Example:
      trio-envserve door verifiers --address tcp://10.0.0.7:5555

    It is the door of `serve --verifiers-bind`. While the server is gone, a client's
    probe of its health gets no answer, and its runs wait; the door finds the server
    again by itself.

    Ctrl-C or SIGTERM stops the door: its clients are told that their runs have no
    outcome, and the work of these is cancelled. The server goes on.

    \b
    With --json, standard output has one object a line:
      {"event": "serving", "verifiers": ..., "address": ..., "pid": ...}
      {"event": "ready", ...}                 the server is there, and ready
      {"event": "stopped", ..., "exit": 0}    the last line
    """  # noqa: D301  # click wants the character itself
    return run_door("verifiers", given, partial(_opened, verifiers_asked(bind, given)))


@asynccontextmanager
async def _opened(asked: VerifiersOptions, options: DoorOptions) -> AsyncIterator[Opened]:
    opened = open_verifiers(asked, options.address, options.transport, options.curve)
    async with opened as door:
        yield Opened(door.address, door)
