"""Shared parts of the commands that ask a running server about keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import trio

from ..client import Client, open_client
from ..client.options import DEFAULT_NAMESPACE
from ..core.errors import CallError
from ..net import Transport
from .common import NOT_STARTED, ROLLOUT_ERRORS, CommandError
from .options import asked_curve, client_options, decorate

DEFAULT_ADDRESS = "tcp://127.0.0.1:5555"

address_option = click.option(
    "--address", default=DEFAULT_ADDRESS, show_default=True, metavar="ADDRESS",
    help="The address of the server.",
)  # fmt: skip

wait_option = click.option(
    "--wait-s", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True,
    help="How long to wait for the server's first answer.",
)  # fmt: skip

namespace_option = click.option(
    "--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NAME",
    help="Whose keys they are.",
)  # fmt: skip

server_options = decorate([address_option, wait_option, client_options])


@asynccontextmanager
async def reached(
    address: str, transport: Transport, wait_s: float, name: str
) -> AsyncIterator[Client]:
    """A client of a server that has answered.  Raises CommandError if none does."""
    async with open_client(address, name=name, transport=transport, curve=asked_curve()) as client:
        answered = False
        with trio.move_on_after(wait_s):
            await client.stats()
            answered = True
        if not answered:
            why = client.health().reason
            raise CommandError(
                f"no answer from {address} after {wait_s:g} s: {why}. Name another server with "
                "--address, or wait longer with --wait-s", NOT_STARTED,
            )  # fmt: skip
        yield client


def refused(error: CallError) -> CommandError:
    """For a command that the server did not carry out."""
    return CommandError(str(error), ROLLOUT_ERRORS)
