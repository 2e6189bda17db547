"""The verb ``serve``: an environment behind an address, until it is told to stop.

Theory of operation
-------------------
The address is printed as soon as it is bound; then the workers get ready.  The first
signal drains the server: it takes no new work.  A second one kills the workers.
Standard error always says what the command waits for, and a service manager that has
started it is told the same (:mod:`.service`).

Doors are clients of the server.  With ``--door-only`` there is nothing but them: they are open
before the server elsewhere is there, and stay open while it is gone.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import trio

from ..core.closing import ClosingStage
from ..core.errors import ConfigError, ServerStartError
from ..core.health import Health, ServerStatus
from ..doors.opening import listen, parse_bind
from ..doors.options import HttpDoorOptions, VerifiersDoorOptions
from ..envs.loading import DEFAULT_ENVIRONMENT
from ..extras import needs_extra
from ..host.collector import collect_seldom
from ..logs import set_title
from ..net import DEFAULT_TRANSPORT, check_reach, is_loopback
from ..net.keypairs import ClientCurve
from ..options import option
from ..otlp import OtlpSetup, asked_by_variables, finish, is_installed, try_to_configure
from ..server import Server, open_server
from ..server.options import completed
from .at_server import LOOK_S, tell_health
from .common import AT_ONCE, NOT_STARTED, OK, SERVICE, Result, StopRequest, check_named, nothing
from .options import DEFAULT_ADDRESS, WithEndpoints, curve_option
from .render import emit, put, say
from .service import SAY_EVERY_S, Service, ServiceState, open_service
from .verbs import door_options, server_options, verb


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions(WithEndpoints):
    """The options of ``serve``."""

    server: Mapping[str, Any] = server_options(bind=DEFAULT_ADDRESS)
    http: Mapping[str, Any] = door_options(HttpDoorOptions, "http")
    verifiers: Mapping[str, Any] = door_options(VerifiersDoorOptions, "verifiers")
    insecure: bool = option(
        False, "Accept everybody who reaches it, also from other machines. That is for --bind or "
        "--hosts-bind without --curve, --verifiers-bind, or --http without tokens.",
        group="Who may come in",
    )  # fmt: skip
    door_only: str | None = option(
        None, "Open only doors, to the server at that address. They may be opened before it, and "
        "stay open while it is gone.", metavar="ADDRESS", group="Who may come in",
    )  # fmt: skip
    door_curve: str | None = curve_option(needs="door_only", group="Who may come in")
    drain_s: float = option(30.0, "How long a stop waits for running work.", least=0, common=True)
    keep_trying: bool = option(
        False,
        "Do not exit if the environment cannot be set up; try again.",
        group="Starting and stopping",
    )
    exit_with_parent: bool = option(
        False,
        "Stop at once when the process that started this one has ended.",
        group="Starting and stopping",
    )
    otlp: str | None = option(
        None, "Send spans of rollouts to a receiver of OpenTelemetry. It takes OTLP over HTTP, "
        "e.g. http://127.0.0.1:4318. Needs the extra otel.", metavar="URL", group="Spans",
    )  # fmt: skip
    otlp_ratio: float | None = option(
        None, "Keep this part of the traces that begin here. [default: all]", least=0, most=1,
        needs="otlp", group="Spans",
    )  # fmt: skip

    def spans(self) -> OtlpSetup | None:
        """Where spans are sent, if anybody wants them: by the option, or by the variables of
        OpenTelemetry where its extra is.  Raises ConfigError."""
        if self.otlp is None and not (asked_by_variables() and is_installed()):
            return None
        if not is_installed():
            raise ConfigError(needs_extra("--otlp", "otel"))
        if self.otlp is not None and not self.otlp.startswith(("http://", "https://")):
            raise ConfigError(f"--otlp takes http://HOST:PORT, not {self.otlp!r}")
        return OtlpSetup(endpoint=self.otlp or "", ratio=self.otlp_ratio)

    def check_reach(self, options: Mapping[str, Any]) -> None:
        """Raise ConfigError if other machines reach an address, and nothing keeps them out."""
        whom = {"bind": "run the environment", "hosts_bind": "own workers for this one"}
        for name, what in whom.items():
            bind = options.get(name)
            if bind and options.get("curve") is None and _others_reach(bind) and not self.insecure:
                check_reach(bind, "give a folder of keys (--curve DIR), bind to 127.0.0.1", what)

    def lets_all(self, options: Mapping[str, Any]) -> bool:
        """Whether the door for HTTP lets everybody in.  ConfigError if it should and should
        not."""
        if self.http.get("token_file") is None:
            return self.insecure
        others = _others_reach(options.get("bind", "")) and options.get("curve") is None
        if self.insecure and not (self.verifiers or others):
            raise ConfigError("--insecure lets everybody in, --token-file does not: give one")
        return False


def _others_reach(bind: str) -> bool:
    """Whether other machines reach an address; what is none is told when it is bound."""
    try:
        return not is_loopback(bind)
    except ConfigError:
        return False


@verb(ServeOptions, {**SERVICE, NOT_STARTED: "the address is in use, the environment is broken"},
      interrupted=None)  # fmt: skip
async def serve(asked: ServeOptions, stop: StopRequest) -> Result:
    """Serve ENV (default: arithmetic) at an address.

    ENV is a built-in name (arithmetic), reasoning-gym:NAME, the name of an entry
    point, or package.module:factory; the current folder is searched, too.

    Examples:
      trio-envserve serve arithmetic --workers 2
      trio-envserve serve my_envs:Maze --arg level=3 --bind tcp://127.0.0.1:0
      trio-envserve serve reasoning-gym:countdown --arg size=1000
      trio-envserve serve --worker-command "node worker.js" --workers 4
      trio-envserve serve arithmetic --http 127.0.0.1:8080
      trio-envserve serve arithmetic --journal runs
      trio-envserve serve --config serve.toml
      trio-envserve serve arithmetic --bind tcp://0.0.0.0:5555 --curve keys
      trio-envserve serve arithmetic --workers 0 --curve keys --hosts-bind tcp://0.0.0.0:5556
      trio-envserve serve verifiers:gsm8k --verifiers-bind tcp://127.0.0.1:5000
      trio-envserve serve --door-only tcp://10.0.0.7:5555 --http 127.0.0.1:8080

    The address is printed when it is bound. Ctrl-C or SIGTERM stops the server: it
    takes no new work, waits for running work (--drain-s), cancels the rest, and ends
    the workers. A second signal kills the workers and ends at once.

    With --json, standard output has one object a line:
      {"event": "serving", "address": ..., "pid": ...}    the address is bound
      {"event": "ready", ...}                             a worker is ready
      {"event": "stopped", ..., "stats": ..., "exit": 0}  the last line
    """
    stop.on_first = nothing
    if asked.door_only is not None:
        asked.start_logging("door")
        return await _keep_doors(asked, asked.door_only, stop)
    options = {"bind": DEFAULT_ADDRESS, **completed(**asked.server)}
    command = options.get("worker_command")
    if command is None:
        options.setdefault("environment", DEFAULT_ENVIRONMENT)
        here = options.get("workers", 1) or options.get("hosts_bind") is None
        if options.get("worker_python") is None and here:
            check_named(options["environment"], options.get("args"))
    asked.name_endpoints()
    asked.check_reach(options)
    spans = asked.spans()
    options |= asked.start_logging("server")
    options["worker_otlp"] = None if spans is None else dataclasses.asdict(spans)
    serving = Serving(
        options.get("environment") or command or "", asked.as_json, asked.drain_s,
        asked.keep_trying, asked.exit_with_parent, doors_of(asked, options), options,
    )  # fmt: skip
    if spans is None:
        return await serve_until_asked(serving, stop)
    # Before the server is opened: it looks then whether this process keeps traces.
    await trio.to_thread.run_sync(try_to_configure, spans, "server")
    try:
        return await serve_until_asked(serving, stop)
    finally:
        finish()


# -- doors ------------------------------------------------------------------------------


class AskedDoor(NamedTuple):
    """A door that is asked for."""

    name: str
    bind: str
    """Its address, which begins with a scheme."""
    open: Callable[..., AbstractAsyncContextManager[Any]]
    """Opens it for a server, or the address of one."""


def doors_of(asked: ServeOptions, options: Mapping[str, Any]) -> list[AskedDoor]:
    """The doors that are asked for.  Raises ConfigError for options that contradict each other."""
    transport = options.get("transport", DEFAULT_TRANSPORT)
    doors = []
    try:  # each needs an extra
        if "bind" in asked.http:
            from ..doors.http import open_http_door
        if "bind" in asked.verifiers:
            from ..doors.verifiers import open_verifiers_door
    except ImportError as error:
        raise ConfigError(str(error)) from None
    if "bind" in asked.http:
        insecure = asked.lets_all(options)
        http = partial(open_http_door, **asked.http, insecure=insecure, transport=transport)
        doors.append(AskedDoor("http", f"tcp://{asked.http['bind']}", http))
    if "bind" in asked.verifiers:
        verifiers = partial(
            open_verifiers_door, **asked.verifiers, insecure=asked.insecure, transport=transport
        )
        doors.append(AskedDoor("verifiers", asked.verifiers["bind"], verifiers))
    return doors


async def check_doors(doors: Sequence[AskedDoor]) -> None:
    """Find out what would keep the doors from being opened, before anything is started: an
    address in use.  Raises ConfigError and ServerStartError."""
    for door in doors:
        if door.bind.startswith("tcp://"):
            try:
                listeners = await listen(parse_bind(door.bind))
            except ServerStartError as error:
                raise ServerStartError(f"{error}; nothing was started") from error
            for listener in listeners:
                await listener.aclose()


@asynccontextmanager
async def open_doors(
    doors: Sequence[AskedDoor], server: Server | str, curve: ClientCurve | None = None
) -> AsyncIterator[tuple[dict[str, str], list[Any]]]:
    """Open the doors of a server, or of the one at an address; yields where each is, and the
    doors."""
    places: dict[str, str] = {}
    opened: list[Any] = []
    async with AsyncExitStack() as stack:
        for door in doors:
            opened.append(await stack.enter_async_context(door.open(server, curve=curve)))
            places[door.name] = getattr(opened[-1], "url", "") or opened[-1].address
        yield places, opened


async def _keep_doors(asked: ServeOptions, address: str, stop: StopRequest) -> Result:
    """Keep the doors to a server elsewhere open until the command is asked to stop."""
    began_s = trio.current_time()
    doors = doors_of(asked, asked.server)
    if not doors:
        raise ConfigError("--door-only needs a door: --http HOST:PORT or --verifiers-bind ADDRESS")
    if wrong := set(asked.server) - {"transport", "config"}:
        raise ConfigError(f"--door-only starts no server, which {min(wrong)} is for")
    curve = None if asked.door_curve is None else ClientCurve.from_file(asked.door_curve)
    with trio.CancelScope() as everything:
        stop.kill = everything.cancel
        async with (
            open_service(stop, exit_with_parent=asked.exit_with_parent),
            open_doors(doors, address, curve) as (places, opened),
            trio.open_nursery() as nursery,
        ):
            set_title(f"trio-envserve doors of {address}")
            about = {**places, "address": address, "pid": os.getpid()}
            if asked.as_json:
                emit({"event": "serving", **about})
            else:
                put(f"serving {address} at {' and '.join(places.values())} (pid {os.getpid()})")
            nursery.start_soon(tell_health, opened[0], float("inf"))

            async def tell_ready() -> None:
                while opened[0].health().health is not Health.HEALTHY:  # noqa: ASYNC110  # no event
                    await trio.sleep(LOOK_S)
                if asked.as_json:
                    emit({"event": "ready", **about})
                else:
                    say(f"ready at {' and '.join(places.values())}")

            nursery.start_soon(tell_ready)
            await stop.asked.wait()
            say(f"{stop.why or 'asked to stop'}: no new requests; what is under way is answered")
            nursery.cancel_scope.cancel()
    summary: dict[str, Any] = {
        "event": "stopped", "address": address, "pid": os.getpid(),
        "why": stop.why or "parent ended", "seconds": round(trio.current_time() - began_s, 3),
    }  # fmt: skip
    return Result(AT_ONCE if stop.at_once else OK, summary)


# -- the server -------------------------------------------------------------------------


class Serving(NamedTuple):
    """The server's options, parsed."""

    served: str
    """The environment's name, or the worker command."""
    as_json: bool
    drain_s: float
    keep_trying: bool
    exit_with_parent: bool
    doors: Sequence[AskedDoor]
    open: dict[str, Any]
    """Arguments of :func:`~trio_envserve.open_server`."""
    beside: Callable[[Server], Awaitable[None]] | None = None
    """A task that runs beside the server, and ends a little later."""


async def serve_until_asked(options: Serving, stop: StopRequest) -> Result:
    """Serve, drain, and say what came of it."""
    began_s = trio.current_time()
    async with open_service(
        stop, exit_with_parent=options.exit_with_parent
    ) as (service, background):  # fmt: skip
        await check_doors(options.doors)
        drained = False
        broken: list[str] = []
        async with open_server(**options.open) as server:
            stop.kill = server.kill
            address = server.address
            set_title(f"trio-envserve server of {options.served} at {address}")
            service.look = partial(_seen, server)
            async with open_doors(options.doors, server) as (places, _):
                at = {"hosts": server.hosts_address} if server.hosts_address else {}
                _announce(options, "serving", server, places | at)
                if options.beside is not None:
                    background.start_soon(options.beside, server)
                with stop.hurry:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(collect_seldom)
                        nursery.start_soon(_tell_ready, options, server, stop, broken, service)
                        await stop.asked.wait()
                        nursery.cancel_scope.cancel()
                    if not broken:
                        drained = await _drain(options, server, stop, service)
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
        built_in = " (built in)" if options.served == DEFAULT_ENVIRONMENT else ""
        put(f"serving {options.served}{built_in} at {server.address}{also} (pid {os.getpid()})")
    else:
        say(f"ready at {server.address}")


async def _tell_ready(
    options: Serving, server: Server, stop: StopRequest, broken: list[str], service: Service
) -> None:
    """Say when a worker is ready, and until then why none is."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_not_ready, server)
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
        service.tell()


async def tell_not_ready(server: Server) -> None:
    """Say why a server is not ready, every few seconds."""
    while True:
        await trio.sleep(SAY_EVERY_S)
        status = server.status()
        if status.status is not ServerStatus.READY:
            say(f"not ready yet: {status.reason}")


async def _drain(options: Serving, server: Server, stop: StopRequest, service: Service) -> bool:
    """Let running work end, and say what the server waits for."""
    running = server.stats().running
    say(
        f"{stop.why or 'asked to stop'}: taking no new work; waiting up to {options.drain_s:g} s "
        f"for {running} executions (again to stop at once)"
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_draining, server, service)
        drained = await server.drain(options.drain_s)
        nursery.cancel_scope.cancel()
    if not drained:
        say(f"not drained after {options.drain_s:g} s: {_left(server)}; cancelling")
    return drained


async def _tell_draining(server: Server, service: Service) -> None:
    service.tell()
    while True:
        await trio.sleep(SAY_EVERY_S)
        say(f"waiting: {_left(server)}")


def _left(server: Server) -> str:
    stats = server.stats()
    left = f"{stats.running} executions are running, {stats.kept} outcomes are not fetched yet"
    if stats.closing is not None and stats.closing.stage is ClosingStage.DRAINING:
        left += f"; {stats.closing.left_s:.0f} s more at most"
    return left


def _seen(server: Server) -> ServiceState:
    """The state of the server for a service manager."""
    stats = server.stats()
    stopping = stats.closing is not None
    text = f"{stats.status.value}: {stats.ready} of {stats.workers} workers are ready"
    if stopping:
        text = f"{stats.reason}: {_left(server)}"
    elif stats.reason:
        text += f"; {stats.reason}"
    else:
        text += f", {stats.running} executions run, {stats.waiting} requests wait"
    return ServiceState(stats.status is ServerStatus.READY, stopping, text)
