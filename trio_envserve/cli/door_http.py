"""The verb ``door http``: HTTP for a server, as a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import click

from .common import epilog_of_service
from .door import DoorOptions, Opened, door_options, run_door
from .doors import HttpOptions, http_asked, http_options, open_http


@click.command(epilog=epilog_of_service("the address is in use"))
@click.option(
    "--http", "bind", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT",
    help="Where to serve HTTP (port 0: any free one). Needs the extra http.",
)  # fmt: skip
@http_options
@door_options
def http(bind: str, **given: Any) -> int:
    """Serve HTTP for the server at --address.

    \b
    Example:
      trio-envserve door http --address tcp://10.0.0.7:5555 --http 127.0.0.1:8080

    It has the paths, limits and answers of `serve --http`. /livez says that this
    process answers, /readyz that its server has a worker ready. While the server is
    gone requests get 503, which says whether they may have run; the door finds the
    server again by itself.

    Ctrl-C or SIGTERM stops the door: answers under way are given, and the calls of
    the others are cancelled. A second signal ends it at once. The server goes on.

    \b
    With --json, standard output has one object a line:
      {"event": "serving", "http": ..., "address": ..., "pid": ...}
      {"event": "ready", ...}                 the server is there, and ready
      {"event": "stopped", ..., "exit": 0}    the last line
    """  # noqa: D301  # click wants the character itself
    return run_door("http", given, partial(_opened, http_asked(bind, given)))


@asynccontextmanager
async def _opened(asked: HttpOptions, options: DoorOptions) -> AsyncIterator[Opened]:
    opened = open_http(asked, options.address, options.transport, options.curve)
    async with opened as door:
        yield Opened(door.url, door)
