"""Shared parts of the commands that ask a running server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ..client import Client, open_client
from .common import NOT_STARTED, CommandError
from .options import AtServer


def leave_out_warnings() -> None:
    """Print only errors of the library's log: the verb itself says why no server answers."""
    logger = logging.getLogger("trio_envserve")
    if not logger.handlers:
        errors = logging.StreamHandler()
        errors.setLevel(logging.ERROR)
        logger.addHandler(errors)


@asynccontextmanager
async def reached(asked: AtServer, name: str) -> AsyncIterator[Client]:
    """A client of a server that has answered.  Raises CommandError if none does."""
    leave_out_warnings()
    async with open_client(
        asked.address, name=name, transport=asked.transport, curve=asked.client_keys
    ) as client:
        with trio.move_on_after(asked.wait_s) as waiting:
            await client.stats()
        if waiting.cancelled_caught:
            raise no_answer(asked, client)
        yield client


def no_answer(asked: AtServer, client: Client) -> CommandError:
    """The error about a server that has not answered."""
    why = client.health().reason or "the server is ready, but does not answer this"
    return CommandError(
        f"no answer from {asked.address} after {asked.wait_s:g} s: {why}. Give another address "
        "with --address, or wait longer with --wait-s",
        NOT_STARTED,
    )
