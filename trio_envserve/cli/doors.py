"""The options of doors, those of ``serve`` and those that are processes of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import trio

from ..core.errors import ConfigError, ServerStartError
from ..net import Transport, is_loopback
from ..net.address import ANY, parse_address
from ..net.keypairs import ClientCurve
from ..server import Server
from .options import decorate, door_limits

if TYPE_CHECKING:
    from ..doors.http import HttpDoor, HttpLimits
    from ..doors.verifiers import VerifiersDoor, VerifiersLimits


class HttpOptions(NamedTuple):
    """Options of the HTTP door."""

    bind: str
    hosts: Sequence[str]
    token_file: str | None
    insecure: bool
    limits: Sequence[str]
    runs: Mapping[str, Any]
    """Options of ``POST /run``, by the names of :func:`.open_http_door`."""


class VerifiersOptions(NamedTuple):
    """Options of the door for verifiers."""

    bind: str
    redeliver: bool
    insecure: bool
    limits: Sequence[str]


class ServeDoors(NamedTuple):
    """The doors that ``serve`` was asked for."""

    http: HttpOptions | None
    verifiers: VerifiersOptions | None


_of_http = decorate(
    [
        click.option(
            "--http-host", "http_hosts", multiple=True, metavar="NAME",
            help="A further name by which callers of --http know this server. Repeatable.",
        ),
        click.option(
            "--token-file", type=click.Path(dir_okay=False), metavar="FILE",
            help="Accept only those callers of --http that send a token of FILE (one a line, "
            "chmod 600).",
        ),
        click.option(
            "--run-model", metavar="MODEL",
            help="The model of rollouts that come as POST /run: oracle, random, a name of an "
            "endpoint, or its URL. [default: oracle]",
        ),
        click.option(
            "--run-model-name", metavar="NAME", help="The name of that model at its endpoint.",
        ),
        click.option(
            "--http-limit", "http_limits", multiple=True, metavar="NAME=VALUE",
            help="Any limit of the HTTP door, e.g. body_bytes=67108864. Repeatable.",
        ),
        click.option(
            "--run-failures", type=click.Choice(["problems", "rows"]),
            help="Answer a POST /run that failed by a problem, whose status ends the collection "
            "of NeMo Gym, or by a row with 200, _ng_failure_class and mask_sample. "
            "[default: problems]",
        ),
        click.option(
            "--run-rerun/--no-run-rerun", default=None,
            help="Consent, for rows that come as POST /run, to a further execution after a "
            "worker's proven death. Without it: as the environment declares.",
        ),
        click.option(
            "--run-execution-s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
            help="How long one execution of a row that comes as POST /run may last. [default: as "
            "long as the server lets any]",
        ),
    ]
)  # fmt: skip

_of_verifiers = decorate(
    [
        click.option(
            "--redeliver", is_flag=True,
            help="Offer the outcomes that a lost connection at --verifiers-bind waited for to "
            "later connections from the same machine, whoever they are. At a loopback address "
            "that is always done.",
        ),
        click.option(
            "--verifiers-limit", "verifiers_limits", multiple=True, metavar="NAME=VALUE",
            help="Any limit of the door for verifiers, e.g. frame_bytes=268435456. Repeatable.",
        ),
    ]
)  # fmt: skip


def _insecure(where: str) -> Any:
    text = f"Accept everybody who reaches {where}, also from other machines."
    return click.option("--insecure", is_flag=True, help=text)


http_options = decorate([_of_http, _insecure("--http")])
"""Of a process that is an HTTP door, besides where it is."""

verifiers_options = decorate([_of_verifiers, _insecure("--verifiers-bind")])
"""Of a process that is a door for verifiers, besides where it is."""

serve_options = decorate(
    [
        click.option(
            "--http", metavar="HOST:PORT",
            help="Serve HTTP there, too (port 0: any free one). Needs the extra http.",
        ),
        _of_http,
        click.option(
            "--verifiers-bind", metavar="ADDRESS",
            help="Serve clients of verifiers 0.4 there, too: tcp://HOST:PORT or ipc://PATH.",
        ),
        _of_verifiers,
        _insecure(
            "--bind or --hosts-bind without --curve, --verifiers-bind, or --http without tokens"
        ),
    ]
)  # fmt: skip
"""Of ``serve``, which opens the doors that are named."""

_RUNS = ("run_model", "run_model_name", "run_failures", "run_rerun", "run_execution_s")

_HTTP, _VERIFIERS = "--http HOST:PORT", "--verifiers-bind ADDRESS"


def others_reach(bind: str) -> bool:
    """Whether other machines reach an address; what is none is told when it is bound."""
    try:
        return not is_loopback(bind)
    except ConfigError:
        return False


def check_keys(
    bind: str, *, needed: bool, insecure: bool, who: str = "run the environment"
) -> None:
    """ConfigError if other machines reach an address, ``needed``, and nothing keeps them
    out."""
    if needed and not insecure:
        raise ConfigError(
            f"{bind.removeprefix('tcp://')} may be reached from other machines: give a folder "
            f"of keys (--curve DIR), bind to 127.0.0.1, or let everybody {who} (--insecure)"
        )


def doors_asked(given: Mapping[str, Any], *, beyond: bool = False) -> ServeDoors:
    """Put the options of doors together.  Raises UsageError for those of a door that is not
    there, or that contradict each other.  ``beyond``: other machines reach the server itself
    without a key."""
    has_http, has_verifiers = given["http"] is not None, given["verifiers_bind"] is not None
    for option in ("http_hosts", "token_file", "http_limits", *_RUNS):
        _needs(given, option, _HTTP, there=has_http)
    for option in ("redeliver", "verifiers_limits"):
        _needs(given, option, _VERIFIERS, there=has_verifiers)
    others = has_verifiers or beyond
    # With tokens it is not meant for this door.
    of_http = {**given, "insecure": given["insecure"] and not (others and _tokens(given))}
    return ServeDoors(
        http_asked(given["http"], of_http) if has_http else None,
        verifiers_asked(given["verifiers_bind"], given) if has_verifiers else None,
    )


def _tokens(given: Mapping[str, Any]) -> bool:
    return given["token_file"] is not None


def _needs(given: Mapping[str, Any], option: str, doors: str, *, there: bool) -> None:
    if given[option] and not there:
        name = option.removesuffix("s")
        raise click.UsageError(f"--{name.replace('_', '-')} needs {doors}")


def http_asked(bind: str, given: Mapping[str, Any]) -> HttpOptions:
    """Put the options of an HTTP door together.  Raises UsageError if they contradict each
    other."""
    if given["insecure"] and _tokens(given):
        raise click.UsageError("--insecure lets everybody in, --token-file does not: give one")
    runs = {option: given[option] for option in _RUNS if given[option] is not None}
    return HttpOptions(
        bind, given["http_hosts"], given["token_file"], given["insecure"], given["http_limits"],
        runs,
    )  # fmt: skip


def verifiers_asked(bind: str, given: Mapping[str, Any]) -> VerifiersOptions:
    """Put the options of a door for verifiers together."""
    return VerifiersOptions(bind, given["redeliver"], given["insecure"], given["verifiers_limits"])


async def check_doors(doors: ServeDoors) -> None:
    """Find out what would keep the doors from being opened, before anything is started: a
    limit that there is not, an address in use.  Raises ConfigError and ServerStartError."""
    binds = []
    if doors.http is not None:
        _http_limits(doors.http)
        binds.append(f"tcp://{doors.http.bind}")
    if doors.verifiers is not None:
        _verifiers_limits(doors.verifiers)
        binds.append(doors.verifiers.bind)
    for bind in binds:
        if bind.startswith("tcp://"):
            try:
                place = parse_address(bind)
            except ConfigError as error:
                raise ConfigError(f"HOST:PORT expected: {error}") from None
            host = None if place.host == ANY else place.host
            try:
                listeners = await trio.open_tcp_listeners(place.port, host=host)
            except OSError as error:
                where = bind.removeprefix("tcp://")
                raise ServerStartError(
                    f"cannot listen at {where}: {error.strerror or error}; nothing was started"
                ) from error
            for listener in listeners:
                await listener.aclose()


def _http_limits(options: HttpOptions) -> HttpLimits:
    try:
        from ..doors.http import HttpLimits
    except ImportError as error:
        raise ConfigError(str(error)) from None
    return door_limits("--http-limit", options.limits, HttpLimits)


def _verifiers_limits(options: VerifiersOptions) -> VerifiersLimits:
    from ..doors.verifiers import VerifiersLimits

    return door_limits("--verifiers-limit", options.limits, VerifiersLimits)


@asynccontextmanager
async def open_asked_doors(
    doors: ServeDoors, server: Server, transport: Transport
) -> AsyncIterator[dict[str, str]]:
    """Open the doors that were asked for; yields what to announce of each."""
    addresses: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        if doors.http is not None:
            door = await stack.enter_async_context(open_http(doors.http, server, transport))
            addresses["http"] = door.url
        if doors.verifiers is not None:
            place = open_verifiers(doors.verifiers, server, transport)
            addresses["verifiers"] = (await stack.enter_async_context(place)).address
        yield addresses


def open_http(
    options: HttpOptions, server: Server | str, transport: Transport,
    curve: ClientCurve | None = None,
) -> AbstractAsyncContextManager[HttpDoor]:  # fmt: skip
    """Open the door of a server, or of the one at an address.  Raises ConfigError without
    the extra."""
    try:
        from ..doors.http import open_http_door
    except ImportError as error:
        raise ConfigError(str(error)) from None
    return open_http_door(
        server, limits=_http_limits(options), bind=options.bind, hosts=options.hosts,
        token_file=options.token_file, insecure=options.insecure, **options.runs,
        transport=transport, curve=curve,
    )  # fmt: skip


def open_verifiers(
    options: VerifiersOptions, server: Server | str, transport: Transport,
    curve: ClientCurve | None = None,
) -> AbstractAsyncContextManager[VerifiersDoor]:  # fmt: skip
    """Open the door of a server, or of the one at an address."""
    from ..doors.verifiers import open_verifiers_door

    return open_verifiers_door(
        server, limits=_verifiers_limits(options), bind=options.bind,
        redeliver=options.redeliver, insecure=options.insecure,
        transport=transport, curve=curve,
    )  # fmt: skip
