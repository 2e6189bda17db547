"""The verb ``door``: the wires of others, each as a process of its own.

Theory of operation
-------------------
A door is a client of a server.  It is open before the server is there, and stays open
while the server is gone: its client finds the server again by itself.  The table below has
a line for each door; :func:`run_door` is what they have in common.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import click
import trio

from ..core.health import Health
from ..logs import LogSetup, set_title
from ..net import Transport
from ..net.keypairs import ClientCurve
from .at_server import address_option
from .common import AT_ONCE, OK, Result, Stop, emit, put, run_verb, say, start_logging
from .group import LazyGroup, Verb
from .options import (
    asked_curve,
    client_options,
    decorate,
    json_option,
    log_options,
    logs_of,
    parent_option,
)
from .parent import stop_with_parent
from .waiting import LOOK_S, HasHealth, tell_health

DOORS = {
    "http": Verb("door_http", "http", "A door for HTTP, as `serve --http` opens it."),
    "verifiers": Verb(
        "door_verifiers", "verifiers", "A door for clients of verifiers, as `serve` opens it."
    ),
}


@click.group(cls=LazyGroup, verbs=DOORS)
def door() -> None:
    """Open a door to a server, as a process of its own.

    A door speaks the wire of others and asks the server for them. `serve` opens doors
    in its own process. A door apart may be on another machine; it may be started
    before its server, and stays open while the server is gone.
    """


class DoorOptions(NamedTuple):
    """Options of every door."""

    kind: str
    address: str
    transport: Transport
    curve: ClientCurve | None
    as_json: bool
    parent: int | None
    logs: LogSetup


class Opened(NamedTuple):
    """A door that is open."""

    place: str
    door: HasHealth


door_options = decorate(
    [
        address_option, client_options,
        parent_option,
        log_options("INFO", "NAME-door.log"), json_option,
    ]
)  # fmt: skip
"""Options that every door has, for :func:`run_door`."""


def run_door(
    kind: str, given: Mapping[str, Any],
    opened: Callable[[DoorOptions], AbstractAsyncContextManager[Opened]],
) -> int:  # fmt: skip
    """The verb of a door of this kind: keep what ``opened`` opens until asked to stop."""
    # At once: a parent that ends meanwhile would be taken for another.
    parent = os.getppid() if given["exit_with_parent"] else None

    async def main(stop: Stop) -> Result:
        options = _told(kind, given, parent)
        return await _keep_open(opened(options), options, stop)

    return run_verb(main, as_json=given["as_json"])


def _told(kind: str, given: Mapping[str, Any], parent: int | None) -> DoorOptions:
    """The options together.  Raises ConfigError."""
    place = given["address"], given["transport"], asked_curve()
    return DoorOptions(kind, *place, given["as_json"], parent, logs_of(given))


async def _keep_open(
    opened: AbstractAsyncContextManager[Opened], options: DoorOptions, stop: Stop
) -> Result:
    """Keep a door open until the command is asked to stop, and say how its server is."""
    start_logging(options.logs, f"{options.kind}-door")
    began_s = trio.current_time()
    with trio.CancelScope() as everything:
        stop.kill = everything.cancel
        async with opened as there, trio.open_nursery() as nursery:
            set_title(f"trio-envserve {options.kind} door of {options.address}")
            _announce(options, "serving", there.place)
            nursery.start_soon(tell_health, there.door, float("inf"))
            nursery.start_soon(_tell_ready, options, there)
            if options.parent is not None:
                nursery.start_soon(stop_with_parent, options.parent, stop)
            await stop.asked.wait()
            say(f"{stop.why or 'asked to stop'}: no new requests; what is under way is answered")
            nursery.cancel_scope.cancel()
    summary: dict[str, Any] = {
        "event": "stopped", "door": options.kind, "address": options.address,
        "pid": os.getpid(), "why": stop.why or "parent ended",
        "seconds": round(trio.current_time() - began_s, 3),
    }  # fmt: skip
    return Result(AT_ONCE if stop.at_once else OK, summary)


def _announce(options: DoorOptions, event: str, place: str) -> None:
    if options.as_json:
        emit(
            {
                "event": event, "door": options.kind, options.kind: place,
                "address": options.address, "pid": os.getpid(),
            }
        )  # fmt: skip
    elif event == "serving":
        put(f"serving {options.address} at {place} (pid {os.getpid()})")
    else:
        say(f"ready at {place}")


async def _tell_ready(options: DoorOptions, there: Opened) -> None:
    while there.door.health().health is not Health.HEALTHY:  # noqa: ASYNC110  # it sets no event
        await trio.sleep(LOOK_S)
    _announce(options, "ready", there.place)
