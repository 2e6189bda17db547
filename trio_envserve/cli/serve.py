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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import trio

from ..core.closing import ClosingStage
from ..core.errors import ConfigError, ServerStartError
from ..core.health import Health, ServerStatus
from ..core.status import ServerStats
from ..doors.opening import listen, parse_bind
from ..doors.options import HttpDoorOptions, VerifiersDoorOptions
from ..envs.loading import DEFAULT_ENVIRONMENT
from ..extras import needs_extra
from ..host.collector import collect_seldom
from ..logs import set_title
from ..net import DEFAULT_TRANSPORT, binding, check_reach, is_loopback
from ..net.keypairs import ClientCurve
from ..options import option
from ..otlp import OtlpSetup, asked_by_variables, finish, is_installed, try_to_configure
from ..server import Server, open_server
from ..server.options import completed
from .at_server import LOOK_S, tell_health
from .common import NOT_BEGUN, NOT_STARTED, SERVICE, Result, StopRequest, check_named, nothing
from .options import DEFAULT_ADDRESS, WithEndpoints, curve_option
from .render import say
from .service import SAY_EVERY_S, ServiceOptions, ServiceState, keep_saying, open_service
from .verbs import door_options, server_options, verb


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions(ServiceOptions, WithEndpoints):
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
    keep_trying: bool = option(
        False,
        "Do not exit if the environment cannot be set up; try again.",
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
            if bind and options.get("curve") is None and not self.insecure:
                check_reach(bind, "give a folder of keys (--curve DIR), bind to 127.0.0.1", what)

    def lets_all(self, options: Mapping[str, Any]) -> bool:
        """Whether the door for HTTP lets everybody in.  ConfigError if it should and should
        not."""
        if self.http.get("token_file") is None:
            return self.insecure
        bind = options.get("bind")
        others = bind and options.get("curve") is None and not is_loopback(bind)
        if self.insecure and not (self.verifiers or others):
            raise ConfigError("--insecure lets everybody in, --token-file does not: give one")
        return False


@verb(
    ServeOptions,
    {**SERVICE, NOT_STARTED: "the address is in use, the environment is broken"},
    interrupted=NOT_BEGUN,
)
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
    serve = partial(
        serve_until_asked, asked, options, stop, doors=doors_of(asked, options),
        keep_trying=asked.keep_trying,
    )  # fmt: skip
    if spans is None:
        return await serve()
    # Before the server is opened: it looks then whether this process keeps traces.
    await trio.to_thread.run_sync(try_to_configure, spans, "server")
    try:
        return await serve()
    finally:
        finish()


# -- doors ------------------------------------------------------------------------------


class AskedDoor(NamedTuple):
    """A door that is asked for."""

    name: str
    bind: str
    """Its address, with the scheme."""
    open: Callable[..., AbstractAsyncContextManager[Any]]
    """Opens it for a server, or the address of one."""


def doors_of(asked: ServeOptions, options: Mapping[str, Any]) -> list[AskedDoor]:
    """The doors that are asked for.  Raises ConfigError for whatever is wrong in their options."""
    transport = options.get("transport", DEFAULT_TRANSPORT)
    doors = []
    try:  # each needs an extra
        if "bind" in asked.http:
            from ..doors.http.opening import guard_of, open_http_door
        if "bind" in asked.verifiers:
            from ..doors.verifiers.opening import check_options, open_verifiers_door
    except ImportError as error:
        raise ConfigError(str(error)) from None
    if "bind" in asked.http:
        given = {**asked.http, "insecure": asked.lets_all(options), "transport": transport}
        guard_of(HttpDoorOptions(**given))
        bind = f"tcp://{given['bind']}"
        doors.append(AskedDoor("http", bind, partial(open_http_door, **given)))
    if "bind" in asked.verifiers:
        given = {**asked.verifiers, "insecure": asked.insecure, "transport": transport}
        check_options(VerifiersDoorOptions(**given))
        bind = given["bind"]
        doors.append(AskedDoor("verifiers", bind, partial(open_verifiers_door, **given)))
    return doors


async def check_doors(doors: Sequence[AskedDoor]) -> None:
    """See that each address is free, before a server has begun anything.  Raises
    ServerStartError, or ConfigError if it cannot be had here."""
    for door in doors:
        bound = parse_bind(door.bind)
        if bound.scheme == "ipc":
            there = await binding.listen(bound)
            there.remove_file()
            there.sock.close()
        else:
            for listener in await listen(bound):
                await listener.aclose()


@asynccontextmanager
async def open_doors(
    doors: Sequence[AskedDoor], server: Server | str, curve: ClientCurve | None = None
) -> AsyncIterator[tuple[dict[str, str], list[Any]]]:
    """Open the doors of a server, or of the one at an address; yields where each is, and the
    doors."""
    doors_at: dict[str, str] = {}
    opened: list[Any] = []
    async with AsyncExitStack() as stack:
        for door in doors:
            opened.append(await stack.enter_async_context(door.open(server, curve=curve)))
            doors_at[door.name] = getattr(opened[-1], "url", "") or opened[-1].address
        yield doors_at, opened


async def _keep_doors(asked: ServeOptions, address: str, stop: StopRequest) -> Result:
    """Keep the doors to a server elsewhere open until the command is asked to stop."""
    doors = doors_of(asked, asked.server)
    if not doors:
        raise ConfigError("--door-only needs a door: --http HOST:PORT or --verifiers-bind ADDRESS")
    if wrong := set(asked.server) - {"transport", "config"}:
        raise ConfigError(f"--door-only starts no server, which {min(wrong)} is for")
    curve = None if asked.door_curve is None else ClientCurve.from_file(asked.door_curve)
    with trio.CancelScope() as everything:
        stop.kill = everything.cancel
        async with (
            open_service(asked, stop) as service,
            open_doors(doors, address, curve) as (doors_at, opened),
            trio.open_nursery() as nursery,
        ):
            set_title(f"trio-envserve doors of {address}")
            at, about = " and ".join(doors_at.values()), {**doors_at, "address": address}
            service.announce("serving", f"serving {address} at {at}", **about)
            nursery.start_soon(tell_health, opened[0], float("inf"))

            async def tell_ready() -> None:
                while opened[0].health().health is not Health.HEALTHY:  # noqa: ASYNC110  # no event
                    await trio.sleep(LOOK_S)
                service.announce("ready", f"ready at {at}", **about)

            nursery.start_soon(tell_ready)
            await stop.asked.wait()
            say(f"{stop.why or 'asked to stop'}: no new requests; what is under way is answered")
            nursery.cancel_scope.cancel()
    return service.stopped("", address=address)


# -- the server -------------------------------------------------------------------------


async def serve_until_asked(
    asked: ServiceOptions, options: Mapping[str, Any], stop: StopRequest, *,
    doors: Sequence[AskedDoor] = (), keep_trying: bool = False,
    beside: Callable[[Server], Awaitable[None]] | None = None,
) -> Result:  # fmt: skip
    """Open a server with these options, serve, drain, and say what came of it.  ``beside`` runs
    beside the server, and ends a little later.  Raises ServerStartError if the environment is
    broken, unless it is to be tried again."""
    served = options.get("environment") or options.get("worker_command") or ""
    drained = False
    async with open_service(asked, stop) as service:
        await check_doors(doors)
        async with open_server(**options) as server:
            stop.kill = server.kill
            about = {"environment": served, "address": server.address}
            set_title(f"trio-envserve server of {served} at {server.address}")
            service.look = partial(_seen, server)
            async with open_doors(doors, server) as (doors_at, _):
                if server.hosts_address:
                    doors_at["hosts"] = server.hosts_address
                built_in = " (built in)" if served == DEFAULT_ENVIRONMENT else ""
                at = " and ".join((server.address, *doors_at.values()))
                line = f"serving {served}{built_in} at {at}"
                service.announce("serving", line, **about, **_workers(server), **doors_at)
                if beside is not None:
                    service.background.start_soon(beside, server)
                with stop.hurry:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(collect_seldom)

                        async def tell_ready() -> None:
                            await wait_ready(server, keep_trying=keep_trying)
                            line = f"ready at {server.address}"
                            service.announce("ready", line, **about, **_workers(server))
                            service.tell()

                        nursery.start_soon(tell_ready)
                        await stop.asked.wait()
                        nursery.cancel_scope.cancel()
                    running = f"{server.stats().running} executions"
                    drained = await service.drained(
                        running, lambda: left(server.stats()), server.drain
                    )
            stats = server.stats().to_record()
    cache = stats["cache"]
    return service.stopped(
        f": {cache['entered']} requests entered, {cache['completed']} completed", **about,
        drained=drained, stats=gist(stats),
    )  # fmt: skip


def _workers(server: Server) -> dict[str, int]:
    status = server.status()
    return {"ready": status.ready, "workers": status.workers}


def gist(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics that a verb has in its last line."""
    return {name: stats[name] for name in ("cache", "worker_restarts", "sessions", "malformed")}


async def wait_ready(server: Server, *, keep_trying: bool = False) -> None:
    """Wait for a worker, and say why none is ready.  Raises ServerStartError."""

    def why() -> str:
        status = server.status()
        return "" if status.status is ServerStatus.READY else f"not ready yet: {status.reason}"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_saying, why)
        while True:
            try:
                await server.wait_ready()
                break
            except ServerStartError:
                if not keep_trying:
                    raise
                await trio.sleep(SAY_EVERY_S)
        nursery.cancel_scope.cancel()


def left(stats: ServerStats) -> str:
    """The work that a stopping server waits for."""
    closing = stats.closing
    if closing is None:
        return f"{stats.running} executions are running"
    parts = [
        f"{closing.running} executions are running",
        f"{closing.outcomes} outcomes are not fetched or not saved yet",
    ]
    if closing.resources:
        parts.append(f"{closing.resources} resources are not destroyed yet")
    text = ", ".join(parts)
    if stats.journal:
        text += f"; the journal cannot save: {stats.journal}"
    if closing.stage is ClosingStage.DRAINING:
        text += f"; {closing.left_s:.0f} s more at most"
    return text


def _seen(server: Server) -> ServiceState:
    """The state of the server for a service manager."""
    stats = server.stats()
    stopping = stats.closing is not None
    text = f"{stats.status.value}: {stats.ready} of {stats.workers} workers are ready"
    if stopping:
        text = f"{stats.reason}: {left(stats)}"
    elif stats.reason:
        text += f"; {stats.reason}"
    else:
        text += f", {stats.running} executions run, {stats.waiting} requests wait"
    return ServiceState(stats.status is ServerStatus.READY, stopping, text)
