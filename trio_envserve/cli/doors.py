"""The HTTP door, of ``serve`` and as a process of its own: its options, and how it is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from ..core.errors import ConfigError
from ..net import Transport
from ..server import Server
from .common import decorate

if TYPE_CHECKING:
    from ..doors.http import HttpDoor


class HttpOptions(NamedTuple):
    """What the command was told of its HTTP door."""

    bind: str
    hosts: Sequence[str]
    token_file: str | None
    insecure: bool
    run_model: tuple[str, str]


guard_options = decorate(
    [
        click.option(
            "--http-host", "http_hosts", multiple=True, metavar="NAME",
            help="A further name by which callers of --http know this server. Repeatable.",
        ),
        click.option(
            "--token-file", type=click.Path(dir_okay=False), metavar="FILE",
            help="Let in by --http only who shows a token of FILE (one a line, chmod 600).",
        ),
        click.option(
            "--insecure", is_flag=True,
            help="Let everybody in who reaches --http, also from other machines.",
        ),
        click.option(
            "--run-model", metavar="MODEL",
            help="The model of rollouts that come as POST /run: oracle, random, a name of an "
            "endpoint, or its URL. [default: oracle]",
        ),
        click.option(
            "--run-model-name", metavar="NAME", help="The name of that model at its endpoint.",
        ),
    ]
)  # fmt: skip

http_options = decorate(
    [
        click.option(
            "--http", metavar="HOST:PORT",
            help="Serve HTTP there, too (port 0: any free one). Needs the extra http.",
        ),
        guard_options,
    ]
)  # fmt: skip


def http_asked(
    http: str | None, hosts: Sequence[str], token_file: str | None, insecure: bool,
    run_model: str | None, run_model_name: str | None,
) -> HttpOptions | None:  # fmt: skip
    """The options together, or None without a door.  Raises UsageError for options of a
    door that is not there, or that contradict each other."""
    if http is None:
        for name, given in (
            ("--http-host", hosts), ("--token-file", token_file), ("--insecure", insecure),
            ("--run-model", run_model), ("--run-model-name", run_model_name),
        ):  # fmt: skip
            if given:
                raise click.UsageError(f"{name} needs --http HOST:PORT")
        return None
    if insecure and token_file is not None:
        raise click.UsageError("--insecure lets everybody in, --token-file does not: give one")
    model = (run_model or "oracle", run_model_name or "")
    return HttpOptions(http, hosts, token_file, insecure, model)


@asynccontextmanager
async def open_asked_door(
    options: HttpOptions | None, server: Server, transport: Transport
) -> AsyncIterator[dict[str, str]]:
    """Open the door, if one was asked for; yields what to announce of it."""
    if options is None:
        yield {}
        return
    async with open_asked(options, server, transport) as door:
        yield {"http": door.url}


@asynccontextmanager
async def open_asked(
    options: HttpOptions, server: Server | str, transport: Transport
) -> AsyncIterator[HttpDoor]:
    """Open the door of a server, or of the one at an address.  Raises ConfigError without
    the extra."""
    try:
        from ..doors.http import open_http_door
    except ImportError as error:
        raise ConfigError(str(error)) from None
    async with open_http_door(
        server, bind=options.bind, hosts=options.hosts, token_file=options.token_file,
        insecure=options.insecure, run_model=options.run_model[0],
        run_model_name=options.run_model[1], transport=transport,
    ) as door:  # fmt: skip
        yield door
