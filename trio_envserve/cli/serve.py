"""The verb ``serve``: an environment behind an address, until it is told to stop.

Theory of operation
-------------------
The address is printed as soon as it is bound; then the workers get ready.  The first
signal drains the server: it takes no new work.  A second one kills the workers.
Standard error always says what the command waits for, and a service manager that has
started it is told the same (:mod:`.notify`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import click
import trio

from ..core.closing import ClosingStage
from ..core.errors import ServerStartError
from ..core.health import ServerStatus
from ..core.worker_range import WorkerRange
from ..envs.check import check_spec
from ..envs.loading import DEFAULT_ENVIRONMENT
from ..host.allocator import keep_freed_memory
from ..host.collector import collect_seldom
from ..host.orphans import is_first, reap_orphans
from ..host.processes import STARTED
from ..logs import LogSetup, set_title
from ..net import Transport
from ..otlp import OtlpSetup, asked_by_variables, finish, is_installed, try_to_configure
from ..server import Server, open_server
from ..server.curve import ServerCurve
from .authors import with_traceback
from .common import (
    AT_ONCE,
    EPILOG,
    NOT_STARTED,
    OK,
    Result,
    Stop,
    emit,
    put,
    run_verb,
    say,
    start_logging,
)
from .doors import (
    ServeDoors,
    check_keys,
    doors_asked,
    open_asked_doors,
    others_reach,
    serve_options,
)
from .hosts import hosts_asked, hosts_options
from .models import endpoints_option
from .notify import Manager, Seen
from .options import (
    arg_option,
    bind_option,
    folder_option,
    json_option,
    key_limits,
    log_options,
    pairs,
    pool_options,
    python_option,
    server_limits,
    transport_option,
    worker_environ,
    workers_option,
)
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
    "--journal",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Keep what is known of keys in DIR, so that it outlives the server: see journal.",
)
@folder_option
@hosts_options
@click.option(
    "--exit-with-parent",
    is_flag=True,
    help="Stop at once when the process that started this one has ended.",
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Send spans of rollouts to a receiver of OpenTelemetry (OTLP over HTTP), such as "
    "http://127.0.0.1:4318. Needs the extra otel.",
)
@click.option(
    "--otlp-ratio",
    type=click.FloatRange(0, 1),
    metavar="RATIO",
    help="Of the traces that begin here, keep this part. [default: all]",
)
@log_options("INFO")
@json_option
def serve(
    environment: str | None, bind: str, workers: int | WorkerRange, transport: Transport,
    worker_command: str | None, worker_python: str | None, args: tuple[str, ...],
    worker_memory: int | None, recycle: int | None, pause_after_errors: int | None,
    worker_env: tuple[str, ...],
    limits: tuple[str, ...], drain_s: float,
    keep_trying: bool, record: str | None, record_bodies: bool, journal: str | None,
    curve: str | None,
    exit_with_parent: bool, otlp: str | None, otlp_ratio: float | None,
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
      trio-envserve serve arithmetic --journal runs
      trio-envserve serve arithmetic --bind tcp://0.0.0.0:5555 --curve keys
      trio-envserve serve arithmetic --bind tcp://0.0.0.0:5555 --curve keys \\
        --hosts-bind tcp://0.0.0.0:5556 --workers 0
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
    hosts = hosts_asked(of_doors)
    here = workers or hosts.bind is None
    beyond = curve is None and others_reach(bind)
    doors = doors_asked(of_doors, beyond=beyond)

    async def main(stop: Stop) -> Result:
        named = environment
        if worker_command is None:
            named = environment or DEFAULT_ENVIRONMENT
            if worker_python is None and here:
                with with_traceback(named):
                    check_spec(named)
        check_keys(bind, needed=beyond, insecure=of_doors["insecure"])
        hosts.check_keys(curve, insecure=of_doors["insecure"])
        spans = _spans_asked(otlp, otlp_ratio)
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
                "limits": server_limits(
                limits, worker_memory_mib=worker_memory, recycle=recycle,
                pause_after_errors=pause_after_errors,
            ),
                "keys": key_limits(limits),
                "worker_environ": worker_environ(
                    worker_env, workers, hosted=hosts.bind is not None
                ),
                "worker_logging": dataclasses.asdict(logs),
                "worker_otlp": None if spans is None else dataclasses.asdict(spans),
                "record": record,
                "record_bodies": record_bodies,
                "journal": journal,
                "curve": None if curve is None else ServerCurve.from_folder(curve),
                **hosts.open,
            },
        )  # fmt: skip
        start_logging(logs, "server")
        if spans is None:
            return await _serve(options, stop)
        # Before the server is opened: it looks then whether this process keeps traces.
        await trio.to_thread.run_sync(try_to_configure, spans, "server")
        try:
            return await _serve(options, stop)
        finally:
            finish()

    return run_verb(main, as_json=as_json)


def _spans_asked(url: str | None, ratio: float | None) -> OtlpSetup | None:
    """Where spans are sent, if anybody wants them: by the option, or by the variables of
    OpenTelemetry where its extra is.  Raises UsageError."""
    if url is None and not asked_by_variables():
        if ratio is not None:
            raise click.UsageError("--otlp-ratio needs --otlp URL")
        return None
    if not is_installed():
        if url is None:
            return None
        raise click.UsageError("--otlp needs the extra otel: pip install 'trio-envserve[otel]'")
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--otlp takes http://HOST:PORT, not {url!r}")
    return OtlpSetup(endpoint=url or "", ratio=ratio)


async def _serve(options: _Options, stop: Stop) -> Result:
    keep_freed_memory()
    manager = Manager.of(os.environ)
    async with trio.open_nursery() as nursery:
        if options.parent is not None:
            nursery.start_soon(_follow_parent, options.parent, stop)
        result = await _serve_until_asked(options, stop, manager, nursery)
        nursery.cancel_scope.cancel()
    return result


async def _follow_parent(parent: int, stop: Stop) -> None:
    await wait_parent_gone(parent)
    say("the parent process has ended; stopping at once")
    await stop.end_at_once()


async def _serve_until_asked(
    options: _Options, stop: Stop, manager: Manager | None, background: trio.Nursery
) -> Result:
    began_s = trio.current_time()
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


async def _tell_ready(
    options: _Options, server: Server, stop: Stop, broken: list[str], tell: Callable[[], None]
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


async def _drain(options: _Options, server: Server, stop: Stop, tell: Callable[[], None]) -> bool:
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
