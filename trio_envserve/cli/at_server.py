"""Shared parts of the commands that ask a running server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import trio
from click.core import ParameterSource

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

address_argument = click.argument("address", metavar="[ADDRESS]", default=DEFAULT_ADDRESS)
"""The same for verbs that name nothing else."""

wait_option = click.option(
    "--wait-s", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True,
    help="How long to wait for the server's first answer.",
)  # fmt: skip

namespace_option = click.option(
    "--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NAME",
    help="The namespace of the keys.",
)  # fmt: skip

server_options = decorate([address_option, wait_option, client_options])


def leave_out_warnings() -> None:
    """Print only errors of the library's log: the verb itself says why no server answers."""
    logger = logging.getLogger("trio_envserve")
    if not logger.handlers:
        errors = logging.StreamHandler()
        errors.setLevel(logging.ERROR)
        logger.addHandler(errors)


def refuse_addresses(*keys: str) -> None:
    """Refuse an address in the place of a key.  Raises UsageError.

    ``status`` and ``top`` take the address there, and a command that took it for a key
    would be carried out at another server, the one at the default address.
    """
    source = click.get_current_context().get_parameter_source("address")
    if source is not ParameterSource.DEFAULT:
        return
    for key in keys:
        if key.startswith(("tcp://", "ipc://")):
            raise click.UsageError(f"{key} is an address, not a key: give it as --address {key}")


@asynccontextmanager
async def reached(
    address: str, transport: Transport, wait_s: float, name: str
) -> AsyncIterator[Client]:
    """A client of a server that has answered.  Raises CommandError if none does."""
    leave_out_warnings()
    async with open_client(address, name=name, transport=transport, curve=asked_curve()) as client:
        answered = False
        with trio.move_on_after(wait_s):
            await client.stats()
            answered = True
        if not answered:
            why = client.health().reason
            raise CommandError(no_answer(address, wait_s, why), NOT_STARTED)
        yield client


def no_answer(address: str, wait_s: float, why: str) -> str:
    """The message about a server that has not answered."""
    params = click.get_current_context().command.params
    by_option = any(p.name == "address" and isinstance(p, click.Option) for p in params)
    how = "with --address" if by_option else "as ADDRESS"
    why = why or "the server is ready, but does not answer this"
    return (
        f"no answer from {address} after {wait_s:g} s: {why}. Give another address {how}, or wait "
        "longer with --wait-s"
    )


def refused(error: CallError) -> CommandError:
    """For a command that the server did not carry out."""
    return CommandError(str(error), ROLLOUT_ERRORS)
