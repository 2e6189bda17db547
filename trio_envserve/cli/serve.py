"""The verb ``serve``: an environment behind an address, until it is told to stop.

The options, and what the server is made of; :mod:`.serving` does the rest.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import click
import trio

from ..core.worker_range import WorkerRange
from ..envs.loading import DEFAULT_ENVIRONMENT, check_spec
from ..otlp import OtlpSetup, asked_by_variables, finish, is_installed, try_to_configure
from ..server.curve import ServerCurve
from .authors import with_traceback
from .common import (
    Result,
    Stop,
    epilog_of_service,
    run_verb,
    start_logging,
)
from .doors import check_keys, doors_asked, others_reach, serve_options
from .hosts import hosts_asked, hosts_options
from .models import endpoints_option
from .options import (
    arg_option,
    bind_option,
    drain_option,
    folder_option,
    json_option,
    log_options,
    logs_of,
    pairs,
    parent_option,
    pool_options,
    python_option,
    serving_args,
    transport_option,
    workers_option,
)
from .serving import Serving, serve_until_asked


@click.command(
    epilog=epilog_of_service("could not start: the address is in use, the environment is broken")
)
@click.argument("environment", metavar="[ENV]", required=False)
@bind_option("tcp://127.0.0.1:5555")
@workers_option
@click.option(
    "--worker-command", metavar="COMMAND",
    help="Run COMMAND as each worker: your own program that speaks the worker's protocol. "
    "It gets ENV (or none) and --arg as they are; the server does not look for ENV.",
)  # fmt: skip
@python_option
@transport_option
@arg_option
@pool_options
@endpoints_option
@serve_options
@drain_option
@click.option(
    "--keep-trying", is_flag=True,
    help="Do not exit if the environment cannot be set up; try again.",
)  # fmt: skip
@click.option(
    "--record", type=click.Path(dir_okay=False), metavar="FILE",
    help="Record every input of the router in FILE, FILE.1, ...: see replay.",
)  # fmt: skip
@click.option(
    "--record-bodies", is_flag=True,
    help="Record the bodies of requests and outcomes, too, not only their length.",
)  # fmt: skip
@click.option(
    "--journal", type=click.Path(file_okay=False), metavar="DIR",
    help="Keep what is known of keys in DIR, so that it outlives the server: see journal.",
)  # fmt: skip
@folder_option
@hosts_options
@parent_option
@click.option(
    "--otlp", metavar="URL",
    help="Send spans of rollouts to a receiver of OpenTelemetry (OTLP over HTTP), such as "
    "http://127.0.0.1:4318. Needs the extra otel.",
)  # fmt: skip
@click.option(
    "--otlp-ratio", type=click.FloatRange(0, 1), metavar="RATIO",
    help="Keep this part of the traces that begin here. [default: all]",
)  # fmt: skip
@log_options("INFO")
@json_option
def serve(
    environment: str | None, bind: str, workers: int | WorkerRange, worker_command: str | None,
    drain_s: float, keep_trying: bool, record: str | None, record_bodies: bool,
    journal: str | None, curve: str | None, exit_with_parent: bool, otlp: str | None,
    otlp_ratio: float | None, as_json: bool, **given: Any,
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
    hosts = hosts_asked(given)
    here = workers or hosts.bind is None
    beyond = curve is None and others_reach(bind)
    doors = doors_asked(given, beyond=beyond)

    async def main(stop: Stop) -> Result:
        named = environment
        if worker_command is None:
            named = environment or DEFAULT_ENVIRONMENT
            if given["worker_python"] is None and here:
                with with_traceback(named):
                    check_spec(named, pairs("--arg", given["args"]))
        check_keys(bind, needed=beyond, insecure=given["insecure"])
        hosts.check_keys(curve, insecure=given["insecure"])
        spans = _spans_asked(otlp, otlp_ratio)
        options = Serving(
            named or worker_command or "", as_json, drain_s, keep_trying, parent, doors,
            {
                "environment": named,
                "worker_command": worker_command,
                "bind": bind,
                **serving_args(given, workers, hosted=hosts.bind is not None),
                "worker_otlp": None if spans is None else dataclasses.asdict(spans),
                "record": record,
                "record_bodies": record_bodies,
                "journal": journal,
                "curve": None if curve is None else ServerCurve.from_folder(curve),
                **hosts.open,
            },
        )  # fmt: skip
        start_logging(logs_of(given), "server")
        if spans is None:
            return await serve_until_asked(options, stop)
        # Before the server is opened: it looks then whether this process keeps traces.
        await trio.to_thread.run_sync(try_to_configure, spans, "server")
        try:
            return await serve_until_asked(options, stop)
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
