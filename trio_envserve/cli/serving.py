"""The work of ``serve``: a server that says how it is, until it is told to stop.

Theory of operation
-------------------
The address is printed as soon as it is bound; then the workers get ready.  The first
signal drains the server: it takes no new work.  A second one kills the workers.
Standard error always says what the command waits for, and a service manager that has
started it is told the same (:mod:`.notify`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import trio

from ..core.closing import ClosingStage
from ..core.errors import ServerStartError
from ..core.health import ServerStatus
from ..host.allocator import keep_freed_memory
from ..host.collector import collect_seldom
from ..host.orphans import is_first, reap_orphans
from ..host.processes import STARTED
from ..logs import set_title
from ..server import Server, open_server
from .common import AT_ONCE, NOT_STARTED, OK, Result, Stop, emit, put, say
from .doors import ServeDoors, check_doors, open_asked_doors
from .notify import Manager, Seen
from .parent import stop_with_parent

SAY_EVERY_S = 3.0
"""The pause between lines about what the command waits for."""


class Serving(NamedTuple):
    """The server's options, parsed."""

    served: str
    """The environment's name, or the worker command."""
    as_json: bool
    drain_s: float
    keep_trying: bool
    parent: int | None
    doors: ServeDoors
    open: dict[str, Any]
    """Arguments of :func:`~trio_envserve.open_server`."""
    beside: Callable[[Server], Awaitable[None]] | None = None
    """A task that runs beside the server, and ends a little later."""


async def serve_until_asked(options: Serving, stop: Stop) -> Result:
    """Serve, drain, and say what came of it."""
    keep_freed_memory()
    manager = Manager.of(os.environ)
    async with trio.open_nursery() as nursery:
        if options.parent is not None:
            nursery.start_soon(stop_with_parent, options.parent, stop)
        result = await _until_asked(options, stop, manager, nursery)
        nursery.cancel_scope.cancel()
    return result


async def _until_asked(
    options: Serving, stop: Stop, manager: Manager | None, background: trio.Nursery
) -> Result:
    began_s = trio.current_time()
    await check_doors(options.doors)
    drained = False
    broken: list[str] = []
    async with open_server(**options.open) as server:
        stop.kill = server.kill
        address = server.address
        set_title(f"trio-envserve server of {options.served} at {address}")
        if is_first() and options.open["workers"]:  # without workers, its children are its own
            background.start_soon(reap_orphans, STARTED)
        tell = partial(_tell_manager, manager, server)
        if manager is not None:
            background.start_soon(_keep_told, manager, tell)
        async with open_asked_doors(options.doors, server, options.open["transport"]) as doors:
            at = {"hosts": server.hosts_address} if server.hosts_address else {}
            _announce(options, "serving", server, {**doors, **at})
            if options.beside is not None:
                background.start_soon(options.beside, server)
            with stop.hurry:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collect_seldom)
                    nursery.start_soon(_tell_ready, options, server, stop, broken, tell)
                    await stop.asked.wait()
                    nursery.cancel_scope.cancel()
                if not broken:
                    drained = await _drain(options, server, stop, tell)
        stats = server.stats().to_record()
    summary: dict[str, Any] = {
        "event": "stopped",
        "environment": options.served,
        "address": address,
        "pid": os.getpid(),
        "why": stop.why or ("parent ended" if stop.at_once else "environment broken"),
        "drained": drained,
        "seconds": round(trio.current_time() - began_s, 3),
        "stats": {key: stats[key] for key in ("cache", "worker_restarts", "sessions", "malformed")},
    }
    if stop.at_once:
        say("stopped at once; the workers and their executions were killed")
        return Result(AT_ONCE, summary)
    if broken:
        say(f"error: {broken[0]}")
        summary["error"] = {"type": "ServerStartError", "message": broken[0]}
        return Result(NOT_STARTED, summary)
    cache = stats["cache"]
    say(
        f"stopped after {summary['seconds']:.1f} s: {cache['entered']} requests entered, "
        f"{cache['completed']} completed"
    )
    return Result(OK, summary)


def _announce(
    options: Serving, event: str, server: Server, doors: Mapping[str, str] | None = None
) -> None:
    if options.as_json:
        status = server.status()
        emit(
            {
                "event": event, "environment": options.served, "address": server.address,
                "pid": os.getpid(), "ready": status.ready, "workers": status.workers,
                **(doors or {}),
            }
        )  # fmt: skip
    elif event == "serving":
        also = "".join(f" and {address}" for address in (doors or {}).values())
        put(f"serving {options.served} at {server.address}{also} (pid {os.getpid()})")
    else:
        say(f"ready at {server.address}")


async def _tell_ready(
    options: Serving, server: Server, stop: Stop, broken: list[str], tell: Callable[[], None]
) -> None:
    """Say when a worker is ready, and until then why none is."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_not_ready, server)
        ready = False
        while not ready and not broken:
            try:
                await server.wait_ready()
                ready = True
            except ServerStartError as error:
                if options.keep_trying:
                    await trio.sleep(SAY_EVERY_S)
                else:
                    broken.append(str(error))
                    stop.ask()
        nursery.cancel_scope.cancel()
    if ready:
        _announce(options, "ready", server)
        tell()


async def _tell_not_ready(server: Server) -> None:
    while True:
        await trio.sleep(SAY_EVERY_S)
        status = server.status()
        if status.status is not ServerStatus.READY:
            say(f"not ready yet: {status.reason}")


async def _drain(options: Serving, server: Server, stop: Stop, tell: Callable[[], None]) -> bool:
    """Let running work end, and say what the server waits for."""
    running = server.stats().running
    say(
        f"{stop.why or 'asked to stop'}: taking no new work; waiting up to {options.drain_s:g} s "
        f"for {running} executions (again to stop at once)"
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_draining, server, tell)
        drained = await server.drain(options.drain_s)
        nursery.cancel_scope.cancel()
    if not drained:
        say(f"not drained after {options.drain_s:g} s: {_left(server)}; cancelling")
    return drained


async def _tell_draining(server: Server, tell: Callable[[], None]) -> None:
    tell()
    while True:
        await trio.sleep(SAY_EVERY_S)
        say(f"waiting: {_left(server)}")


def _left(server: Server) -> str:
    stats = server.stats()
    left = f"{stats.running} executions are running, {stats.kept} outcomes are not fetched yet"
    if stats.closing is not None and stats.closing.stage is ClosingStage.DRAINING:
        left += f"; {stats.closing.left_s:.0f} s more at most"
    return left


# -- the service manager ----------------------------------------------------------------


async def _keep_told(manager: Manager, tell: Callable[[], None]) -> None:
    with contextlib.closing(manager):
        while True:
            tell()
            await trio.sleep(manager.beat_s)


def _tell_manager(manager: Manager | None, server: Server) -> None:
    if manager is None:
        return
    stats = server.stats()
    stopping = stats.closing is not None
    text = f"{stats.status.value}: {stats.ready} of {stats.workers} workers are ready"
    if stopping:
        text = f"{stats.reason}: {_left(server)}"
    elif stats.reason:
        text += f"; {stats.reason}"
    else:
        text += f", {stats.running} executions run, {stats.waiting} requests wait"
    manager.tell(Seen(stats.status is ServerStatus.READY, stopping, text))
