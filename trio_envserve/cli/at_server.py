"""Asking a running server, and telling people what is waited for."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from ..client import Client, open_client
from ..core.health import Health, ServerHealth
from .common import NOT_STARTED, CommandError, say
from .options import AtServer

LOOK_S = 0.25
AGAIN_S = 10.0
"""Least time between two log lines with one message, in seconds."""
PATIENCE_S = 3.0
"""A server that is only starting is not reported before."""


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


class HasHealth(Protocol):
    """A client or a door, which says how its server is."""

    def health(self) -> ServerHealth:
        """The server's health, as far as the client knows it."""


async def tell_health(client: HasHealth, wait_s: float) -> None:
    """Say why the server is not healthy, whenever that changes, and when it is
    back.  It runs until it is cancelled.  A missing server is reported after about 3 s.
    ``wait_s`` is how long the command waits in all; it may be ``inf``."""
    said, said_s = "", trio.current_time()
    since_s = trio.current_time()
    while True:
        await trio.sleep(LOOK_S)
        now_s = trio.current_time()
        seen = client.health()
        if seen.health is Health.HEALTHY:
            if said:
                say("the server is back")
            said, since_s = "", now_s
            continue
        if seen.health is Health.STARTING and now_s - since_s < PATIENCE_S:
            continue
        gist = seen.reason.partition(" (for ")[0]  # without the seconds
        if gist != said or now_s - said_s >= AGAIN_S:
            said, said_s = gist, now_s
            left_s = wait_s - (now_s - since_s)
            more = f", {max(0.0, left_s):.0f} s more" if left_s < math.inf else ""
            say(f"waiting for the server{more}: {gist}")
