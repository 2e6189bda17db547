"""The verb ``serve``: an environment behind an address, until it is told to stop.

Theory of operation
-------------------
The address is printed as soon as it is bound; then the workers get ready.  The first
signal drains the server: it takes no new work.  A second one kills the workers.
Standard error always says what the command waits for.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
import trio

from ..core.errors import ServerStartError
from ..core.health import ServerStatus
from ..envs.check import check_spec
from ..envs.loading import DEFAULT_ENVIRONMENT
from ..host.allocator import keep_freed_memory
from ..host.collector import collect_seldom
from ..logs import LogSetup, set_title
from ..net import Transport
from ..server import Server, open_server
from .common import (
    AT_ONCE,
    EPILOG,
    NOT_STARTED,
    OK,
    Result,
    Stop,
    arg_option,
    bind_option,
    emit,
    json_option,
    key_limits,
    log_options,
    pairs,
    pool_options,
    put,
    python_option,
    run_verb,
    say,
    server_limits,
    start_logging,
    transport_option,
    worker_environ,
    workers_option,
)
from .doors import ServeDoors, doors_asked, open_asked_doors, serve_options
from .models import endpoints_option
from .parent import wait_parent_gone

SAY_EVERY_S = 3.0
"""The pause between lines about what the command waits for."""


class _Options(NamedTuple):
    served: str
    """The environment's name, or the worker command."""
    as_json: bool
    drain_s: float
    keep_trying: bool
    parent: int | None
    doors: ServeDoors
    open: dict[str, Any]
    """Arguments of :func:`~trio_envserve.open_server`."""


@click.command(epilog=EPILOG)
@click.argument("environment", metavar="[ENV]", required=False)
@bind_option("tcp://127.0.0.1:5555")
@workers_option
@click.option(
    "--worker-command",
    metavar="COMMAND",
    help="Run COMMAND as each worker: your own program that speaks the worker's protocol. "
    "It gets ENV (or none) and --arg as they are; the server does not look for ENV.",
)
@python_option
@transport_option
@arg_option
@pool_options
@endpoints_option
@serve_options
@click.option(
    "--drain-s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long a stop waits for running work.",
)
@click.option(
    "--keep-trying",
    is_flag=True,
    help="Do not exit if the environment cannot be set up; try again.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Record every input of the router in FILE, FILE.1, ...: see replay.",
)
@click.option(
    "--record-bodies",
    is_flag=True,
    help="Record the bodies of requests and outcomes, too, not only their length.",
)
@click.option(
    "--exit-with-parent",
    is_flag=True,
    help="Stop at once when the process that started this one has ended.",
)
@log_options("INFO")
@json_option
def serve(
    environment: str | None, bind: str, workers: int, transport: Transport,
    worker_command: str | None, worker_python: str | None, args: tuple[str, ...],
    worker_memory: int | None, recycle: int | None, worker_env: tuple[str, ...],
    limits: tuple[str, ...], drain_s: float,
    keep_trying: bool, record: str | None, record_bodies: bool, exit_with_parent: bool,
    log_level: str, log_json: bool, log_dir: str, as_json: bool, **of_doors: Any,
) -> int:  # fmt: skip
    """Serve ENV (default: arithmetic) at an address.

    \b
    ENV is a built-in name (arithmetic), reasoning-gym:NAME, the name of an entry
    point, or package.module:factory; the current folder is searched, too.

    \b
    Examples:
      trio-envserve serve arithmetic --workers 2
      trio-envserve serve reasoning-gym:countdown --arg size=1000
      trio-envserve serve my_envs:Maze --arg level=3 --bind tcp://127.0.0.1:0
      trio-envserve serve --worker-command "node worker.js" --workers 4
      trio-envserve serve arithmetic --http 127.0.0.1:8080
      trio-envserve serve verifiers:gsm8k --verifiers-bind tcp://127.0.0.1:5000

    The address is printed when it is bound. Ctrl-C or SIGTERM stops the server: it
    takes no new work, waits for running work (--drain-s), cancels the rest, and ends
    the workers. A second signal kills the workers and ends at once.

    \b
    With --json, standard output has one object a line:
      {"event": "serving", "address": ..., "pid": ...}    the address is bound
      {"event": "ready", ...}                             a worker is ready
      {"event": "stopped", ..., "stats": ..., "exit": 0}  the last line
    """  # noqa: D301  # click wants the character itself
    parent = os.getppid() if exit_with_parent else None
    if record_bodies and record is None:
        raise click.UsageError("--record-bodies needs --record FILE")
    doors = doors_asked(of_doors)

    async def main(stop: Stop) -> Result:
        named = environment
        if worker_command is None:
            named = environment or DEFAULT_ENVIRONMENT
            if worker_python is None:
                check_spec(named)
        logs = LogSetup(level=log_level.upper(), json=log_json, directory=log_dir)
        options = _Options(
            named or worker_command or "", as_json, drain_s, keep_trying, parent, doors,
            {
                "environment": named,
                "worker_command": worker_command,
                "worker_python": worker_python,
                "args": pairs("--arg", args),
                "bind": bind,
                "workers": workers,
                "transport": transport,
                "limits": server_limits(limits, worker_memory_mib=worker_memory, recycle=recycle),
                "keys": key_limits(limits),
                "worker_environ": worker_environ(worker_env, workers),
                "worker_logging": dataclasses.asdict(logs),
                "record": record,
                "record_bodies": record_bodies,
            },
        )  # fmt: skip
        start_logging(logs, "server")
        return await _serve(options, stop)

    return run_verb(main, as_json=as_json)


async def _serve(options: _Options, stop: Stop) -> Result:
    keep_freed_memory()
    async with trio.open_nursery() as nursery:
        if options.parent is not None:
            nursery.start_soon(_follow_parent, options.parent, stop)
        result = await _serve_until_asked(options, stop)
        nursery.cancel_scope.cancel()
    return result


async def _follow_parent(parent: int, stop: Stop) -> None:
    await wait_parent_gone(parent)
    say("the parent process has ended; stopping at once")
    await stop.end_at_once()


async def _serve_until_asked(options: _Options, stop: Stop) -> Result:
    began_s = trio.current_time()
    drained = False
    broken: list[str] = []
    async with open_server(**options.open) as server:
        stop.kill = server.kill
        address = server.address
        set_title(f"trio-envserve server of {options.served} at {address}")
        async with open_asked_doors(options.doors, server, options.open["transport"]) as doors:
            _announce(options, "serving", server, doors)
            with stop.hurry:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collect_seldom)
                    nursery.start_soon(_tell_ready, options, server, stop, broken)
                    await stop.asked.wait()
                    nursery.cancel_scope.cancel()
                if not broken:
                    drained = await _drain(options, server, stop)
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
        f"stopped after {summary['seconds']:.1f} s: {cache['completed']} of "
        f"{cache['entered']} requests were answered"
    )
    return Result(OK, summary)


def _announce(
    options: _Options, event: str, server: Server, doors: Mapping[str, str] | None = None
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


async def _tell_ready(options: _Options, server: Server, stop: Stop, broken: list[str]) -> None:
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


async def _tell_not_ready(server: Server) -> None:
    while True:
        await trio.sleep(SAY_EVERY_S)
        status = server.status()
        if status.status is not ServerStatus.READY:
            say(f"not ready yet: {status.reason}")


async def _drain(options: _Options, server: Server, stop: Stop) -> bool:
    """Let running work end, and say what the server waits for."""
    running = server.stats().running
    say(
        f"{stop.why or 'asked to stop'}: taking no new work; waiting up to {options.drain_s:g} s "
        f"for {running} executions (again to stop at once)"
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_draining, server)
        drained = await server.drain(options.drain_s)
        nursery.cancel_scope.cancel()
    if not drained:
        say(f"not drained after {options.drain_s:g} s: {_left(server)}; cancelling")
    return drained


async def _tell_draining(server: Server) -> None:
    while True:
        await trio.sleep(SAY_EVERY_S)
        say(f"waiting: {_left(server)}")


def _left(server: Server) -> str:
    stats = server.stats()
    return f"{stats.running} executions are running, {stats.kept} outcomes are not fetched yet"
