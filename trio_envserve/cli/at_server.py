"""The verbs that ask a running server: their options, their client, and what it waits for."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from ..client import Client, open_client
from ..client.options import DEFAULT_NAMESPACE
from ..core.health import Health
from ..doors.opening import OpenDoor
from ..net import DEFAULT_TRANSPORT, TRANSPORTS, Transport
from ..net.keypairs import ClientCurve
from ..options import argument, option
from .common import NOT_STARTED, CommandError
from .options import ADDRESS_VARIABLE, DEFAULT_ADDRESS, curve_option, default_address
from .render import say
from .verbs import VerbOptions

LOOK_S = 0.25
AGAIN_S = 10.0
"""Least time between two log lines with one message, in seconds."""
_SHOWN = f"${ADDRESS_VARIABLE}, or {DEFAULT_ADDRESS}"
PATIENCE_S = 3.0
"""A server that is only starting is not reported before."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtServer(VerbOptions):
    """The options of verbs that ask a running server."""

    address: str = option(
        default_address, "The address of the server.", metavar="ADDRESS", common=True, shown=_SHOWN
    )
    wait_s: float = option(3.0, "How long to wait for the server's first answer.", above=0)
    transport: Transport = option(
        DEFAULT_TRANSPORT, "The implementation of ZMTP: trio's own, or libzmq.", choices=TRANSPORTS
    )
    curve: str | None = curve_option(common=True)

    @property
    def client_keys(self) -> ClientCurve | None:
        """The client's keys.  Raises ConfigError."""
        return None if self.curve is None else ClientCurve.from_file(self.curve)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfKeys(AtServer):
    """The options of verbs about the keys of a server."""

    namespace: str = option(
        DEFAULT_NAMESPACE, "The namespace of the keys.", metavar="NAME", common=True
    )


def address_argument() -> Any:
    """The address of verbs that ask about the whole server."""
    text = "The address of the server."
    return argument(text, default_address, metavar="[ADDRESS]", shown=_SHOWN)


@asynccontextmanager
async def reached(asked: AtServer, name: str) -> AsyncIterator[Client]:
    """A client of a server that has answered.  Raises CommandError, which says why, if none does;
    of the library's log only errors are printed."""
    logger = logging.getLogger("trio_envserve")
    if not logger.handlers:
        errors = logging.StreamHandler()
        errors.setLevel(logging.ERROR)
        logger.addHandler(errors)
    async with open_client(
        asked.address, name=name, transport=asked.transport, curve=asked.client_keys
    ) as client:
        with trio.move_on_after(asked.wait_s) as waiting:
            await client.stats()
        if waiting.cancelled_caught:
            why = client.health().reason or "the server is ready, but does not answer this"
            raise CommandError(
                f"no answer from {asked.address} after {asked.wait_s:g} s: {why}. Give another "
                "address, or wait longer with --wait-s", NOT_STARTED,
            )  # fmt: skip
        yield client


async def tell_health(client: Client | OpenDoor, wait_s: float) -> None:
    """Say why the server is not healthy, whenever that changes, and when it is
    back.  It runs until it is cancelled.  A missing server is reported after about 3 s.
    ``wait_s`` is how long the command waits in all; it may be ``inf``."""
    shown, shown_at = "", trio.current_time()
    since_s = trio.current_time()
    while True:
        await trio.sleep(LOOK_S)
        now_s = trio.current_time()
        seen = client.health()
        if seen.health is Health.HEALTHY:
            if shown:
                say("the server is back")
            shown, since_s = "", now_s
            continue
        if seen.health is Health.STARTING and now_s - since_s < PATIENCE_S:
            continue
        gist = seen.reason.partition(" (for ")[0]  # without the seconds
        if gist != shown or now_s - shown_at >= AGAIN_S:
            shown, shown_at = gist, now_s
            left_s = wait_s - (now_s - since_s)
            more = f", {max(0.0, left_s):.0f} s more" if left_s < math.inf else ""
            say(f"waiting for the server{more}: {gist}")
