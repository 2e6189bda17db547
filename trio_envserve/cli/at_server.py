"""Shared parts of the commands that ask a running server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import final

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

_SCHEMES = ("tcp://", "ipc://")


@final
class AtServer(click.Command):
    """A verb that asks a server: its address may stand behind --address, or as a word of its
    own in any place.  Where --address is given, each other word is what the verb asks for, as
    a key may look like an address."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move a bare address behind its option."""
        own = args[: args.index("--")] if "--" in args else args
        if not any(word.partition("=")[0] == "--address" for word in own):
            places = [place for place, word in enumerate(own) if word.startswith(_SCHEMES)]
            if len(places) > 1:
                ctx.fail(f"two addresses: {own[places[0]]} and {own[places[1]]}")
            for place in places:
                args = ["--address", args[place], *args[:place], *args[place + 1 :]]
        # What names nothing else takes any word as its address, to say what one looks like.
        ctx.allow_extra_args = not any(isinstance(each, click.Argument) for each in self.params)
        left = super().parse_args(ctx, args)
        if left:
            ctx.params["address"], *left = left
            ctx.args[:] = left
        if left:
            ctx.fail(f"got unexpected extra argument ({left[0]})")
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage, which the address ends."""
        return [*super().collect_usage_pieces(ctx), "[ADDRESS]"]


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
    why = why or "the server is ready, but does not answer this"
    return (
        f"no answer from {address} after {wait_s:g} s: {why}. Give another address with "
        "--address, or wait longer with --wait-s"
    )


def refused(error: CallError) -> CommandError:
    """For a command that the server did not carry out."""
    return CommandError(str(error), ROLLOUT_ERRORS)
