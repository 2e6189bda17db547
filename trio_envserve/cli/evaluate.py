"""The verb ``eval``: many rollouts, their results as they come, and a summary.

Theory of operation
-------------------
The environment, loaded here in a thread, makes the inputs while the server gets
ready.  The server is a running one, or this command's own in this process, whose
workers end with it.  Each outcome is written and flushed before it is counted.  The
first signal cancels all pending rollouts, on the server too; the summary has those
that came before.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, NamedTuple, TextIO, TypeAlias

import click
import trio

from ..client import Client, open_client
from ..core.errors import ConfigError
from ..core.limits import ClientLimits
from ..core.status import ClientCounters
from ..envs.check import check_spec
from ..envs.loading import load
from ..logs import LogSetup, set_title
from ..net import Transport
from ..server import Server, open_server
from ..worker.failures import describe_exception
from .common import (
    EPILOG,
    NOT_STARTED,
    OK,
    ROLLOUT_ERRORS,
    CommandError,
    Result,
    Stop,
    arg_option,
    json_option,
    log_options,
    pairs,
    pool_options,
    put,
    run_verb,
    say,
    server_limits,
    start_logging,
    transport_option,
    worker_environ,
)
from .render import progress, show_tables
from .results import Tally, record, summary_tables
from .waiting import tell_health

DEFAULT_N = 100


class _Options(NamedTuple):
    environment: str
    args: dict[str, Any]
    n: int | None
    seed: int
    inputs: str
    address: str
    server: dict[str, Any]
    """Arguments of this command's own server; empty with an address."""
    wait_s: float
    in_flight: int
    call: dict[str, Any]
    """Options of each call."""
    output: str
    transport: Transport


@click.command(name="eval", epilog=EPILOG)
@click.argument("environment", metavar="ENV")
@click.option(
    "-n",
    "n",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"How many rollouts (default: {DEFAULT_N}; with --inputs: all of them).",
)
@click.option(
    "--model",
    default="oracle",
    show_default=True,
    help="The model's endpoint: oracle (always right), random (always wrong).",
)
@click.option("--model-name", default="", help="The model's name at its endpoint.")
@click.option(
    "--address",
    default="",
    metavar="ADDRESS",
    help="The address of a running server. Default: eval starts its own server.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Worker processes of eval's own server (default: 1).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses the inputs.")
@click.option(
    "--inputs",
    default="",
    metavar="FILE",
    help="A file of inputs as JSON lines, instead of the environment's own inputs.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Most rollouts in flight at a time.",
)
@click.option(
    "--max-retries",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often the worker repeats a rollout that failed.",
)
@click.option(
    "--rerun/--no-rerun",
    default=None,
    help="Whether a rollout may run again after its worker was proven dead "
    "(default: as the environment declares).",
)
@click.option(
    "--max-executions",
    type=click.IntRange(1, 100),
    metavar="N",
    help="With --rerun, how many executions at most (default: 3).",
)
@click.option(
    "--state-column",
    "state_columns",
    multiple=True,
    metavar="NAME",
    help="A column of the state to send back. Repeatable.",
)
@click.option(
    "--sampling-arg",
    "sampling_args",
    multiple=True,
    metavar="KEY=VALUE",
    help="Passed to the model; VALUE as JSON, or as text. Repeatable.",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0, min_open=True),
    help="How long one rollout may take, including its waiting.",
)
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="How long to wait for a server that is not there yet, or was lost.",
)
@click.option(
    "--output",
    default="",
    metavar="FILE",
    help="Write results to FILE as they come, one JSON object a line; - for standard "
    "output. The file must not exist. Without this option there is only the summary.",
)
@transport_option
@arg_option
@pool_options
@log_options("WARNING")
@json_option
def evaluate(
    environment: str, n: int | None, model: str, model_name: str, address: str,
    workers: int | None, seed: int, inputs: str, in_flight: int, max_retries: int,
    rerun: bool | None, max_executions: int | None, state_columns: tuple[str, ...],
    sampling_args: tuple[str, ...], timeout_s: float | None, wait_s: float, output: str,
    transport: Transport, args: tuple[str, ...], worker_memory: int | None, recycle: int | None,
    worker_env: tuple[str, ...], limits: tuple[str, ...], log_level: str, log_json: bool,
    log_dir: str, as_json: bool,
) -> int:  # fmt: skip
    """Run rollouts of ENV, and sum up rewards, errors, latencies and retries.

    \b
    Examples:
      trio-envserve eval arithmetic -n 200 --workers 2
      trio-envserve eval reasoning-gym:countdown -n 200 --model random --output r.jsonl
      trio-envserve eval arithmetic --address tcp://127.0.0.1:5555 --rerun

    ENV is named as for `serve`. With --address ENV only makes the inputs, and must
    be the environment that the server has.

    \b
    A result line has index, input, value (what the environment returned), error
    (null, or class, verdict, type, message, traceback), worker, duration_s, took_s,
    executions. Values that JSON lacks are marked: {"$bytes": base64}, {"$array": {...}},
    {"$float": "nan"}, {"$time": ...}, {"$text": ...}.

    \b
    With --json, the last line of standard output has at least results (how many
    have a value), mean_reward (null without rewards), errors (how many), seconds.

    Ctrl-C or SIGTERM cancels all pending rollouts on the server; the summary has those
    that came before, and the exit code is 130 or 143. A second signal kills the workers
    of eval's own server.
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        own = {"--workers": workers, "--worker-memory": worker_memory, "--recycle": recycle,
               "--worker-env": worker_env or None, "--limit": limits or None}  # fmt: skip
        given = [option for option, value in own.items() if value is not None]
        if address and given:
            raise ConfigError(
                f"{given[0]} is for eval's own server; with --address there is another one"
            )
        logs = LogSetup(level=log_level.upper(), json=log_json, directory=log_dir)
        count = 1 if workers is None else workers
        server = {} if address else {
            "args": pairs("--arg", args),
            "workers": count,
            "transport": transport,
            "limits": server_limits(limits, worker_memory_mib=worker_memory, recycle=recycle),
            "worker_environ": worker_environ(worker_env, count),
            "worker_logging": dataclasses.asdict(logs),
        }  # fmt: skip
        call = {
            "model": model, "model_name": model_name, "max_retries": max_retries, "rerun": rerun,
            "max_executions": max_executions, "state_columns": state_columns,
            "sampling_args": pairs("--sampling-arg", sampling_args), "timeout_s": timeout_s,
        }  # fmt: skip
        options = _Options(
            environment, pairs("--arg", args), n, seed, inputs, address, server, wait_s, in_flight,
            call, output, transport,
        )  # fmt: skip
        if not (address and inputs):
            check_spec(environment)
        start_logging(logs, "eval" if address else "server")
        result = await _evaluate(options, stop)
        if not as_json:
            title = f"{environment}, model {model}"
            show_tables(summary_tables(result.summary, title), put)
        return result

    return run_verb(main, as_json=as_json)


async def _evaluate(options: _Options, stop: Stop) -> Result:
    set_title(f"trio-envserve eval of {options.environment}")
    tally = Tally()
    counters = ClientCounters()
    asked = 0
    began_s = trio.current_time()
    with _writer(options.output) as write, trio.CancelScope() as work:
        stop.on_first = work.cancel
        async with _server(options, stop) as server:
            address = options.address or (server.address if server else "")
            limits = ClientLimits(start_s=options.wait_s, recovery_s=options.wait_s)
            async with open_client(
                address, name="eval", limits=limits, transport=options.transport
            ) as client:
                try:
                    inputs = await _prepare(options, stop, client, server)
                    asked = len(inputs)
                    began_s = trio.current_time()
                    await _run(options, client, inputs, tally, write)
                finally:
                    counters = client.counters()
                    if stop.asked.is_set():
                        say(f"{stop.why}: cancelling pending rollouts (again to stop at once)")
    seconds = trio.current_time() - began_s
    summary = {
        **tally.summary(seconds, counters),
        "asked": asked,
        "interrupted": stop.asked.is_set(),
        "environment": options.environment,
        "model": options.call["model"],
        "address": options.address or None,
        "output": options.output or None,
    }
    if stop.asked.is_set():
        done = tally.results + tally.error_count
        say(f"interrupted by {stop.why}: {done} of {asked} rollouts came back")
        return Result(stop.interrupted_code, summary)
    if tally.error_count:
        say(f"{tally.error_count} of {asked} rollouts ended in errors")
        for (kind, _), text in tally.first_errors.items():
            say(f"the first {kind}: {text}")
    return Result(ROLLOUT_ERRORS if tally.error_count else OK, summary)


@asynccontextmanager
async def _server(options: _Options, stop: Stop) -> AsyncIterator[Server | None]:
    """This command's own server, if no address was given."""
    if options.address:
        yield None
        return
    async with open_server(options.environment, **options.server) as server:
        stop.kill = server.kill
        yield server


async def _prepare(
    options: _Options, stop: Stop, client: Client, server: Server | None
) -> list[Any]:
    """Wait for the inputs and until the server is ready; returns the inputs."""
    inputs: list[Any] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_make_inputs, options, stop, inputs)
        async with trio.open_nursery() as waiting:
            # Our own server has no limit: it says itself if it will never be ready.
            wait_s = options.wait_s if server is None else math.inf
            waiting.start_soon(tell_health, client, wait_s)
            if server is not None:
                await server.wait_ready()
            await client.wait_ready(wait_s)
            waiting.cancel_scope.cancel()
    return inputs


async def _make_inputs(options: _Options, stop: Stop, inputs: list[Any]) -> None:
    try:
        # Not waited for after a signal: importing an environment may take long.
        inputs += await trio.to_thread.run_sync(_load_inputs, options, abandon_on_cancel=True)
    except trio.Cancelled:
        stop.left_behind = True
        raise


def _load_inputs(options: _Options) -> list[Any]:
    """The inputs to ask for.  Runs in a thread.  Raises ConfigError."""
    if options.inputs:
        return _read_inputs(options.inputs)[: options.n]
    environment = load(options.environment, options.args)
    n = DEFAULT_N if options.n is None else options.n
    try:
        inputs = environment.inputs(n, options.seed)
    except ConfigError as error:
        raise ConfigError(f"{error} (--inputs FILE)") from error
    except Exception as error:
        # Environment code may raise anything; the traceback is for its author.
        about = describe_exception(error)
        raise CommandError(
            f"{options.environment}: inputs({n}, {options.seed}) failed\n{about.traceback}",
            NOT_STARTED,
        ) from None
    if not inputs:
        raise ConfigError(f"{options.environment}: inputs({n}, {options.seed}) returned none")
    return inputs


def _read_inputs(file: str) -> list[Any]:
    try:
        with open(file, encoding="utf-8") as lines:
            numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--inputs {file}: {error}") from error
    inputs = []
    for number, line in numbered:
        try:
            inputs.append(json.loads(line))
        except ValueError as error:
            raise ConfigError(f"--inputs {file}, line {number} is not JSON: {error}") from None
    if not inputs:
        raise ConfigError(f"--inputs {file} is empty")
    return inputs


async def _run(
    options: _Options, client: Client, inputs: list[Any], tally: Tally, write: Writer
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_health, client, options.wait_s)
        with progress(len(inputs), "eval", sys.stderr) as advance:
            async with client.run_many(
                inputs, in_flight=options.in_flight, **options.call
            ) as outcomes:
                async for index, outcome in outcomes:
                    write(record(index, inputs[index], outcome))
                    tally.add(outcome)
                    advance(outcome.error is not None)
        nursery.cancel_scope.cancel()


# -- the file of results ------------------------------------------------------

Writer: TypeAlias = Callable[[Mapping[str, Any]], object]


@contextmanager
def _writer(file: str) -> Iterator[Writer]:
    """Writes result lines, each whole and flushed.  Raises ConfigError if the file
    cannot be opened."""
    if file == "-":
        yield lambda line: put(json.dumps(line))
        return
    try:
        opened = open(file, "x", encoding="utf-8") if file else nullcontext()  # noqa: SIM115
    except FileExistsError:
        raise ConfigError(f"--output {file} exists; move it away or name another file") from None
    except OSError as error:
        raise ConfigError(f"--output {file}: {error.strerror}") from error
    with opened as stream:
        yield _line_writer(file, stream)


def _line_writer(file: str, stream: TextIO | None) -> Writer:
    def write(line: Mapping[str, Any]) -> None:
        if stream is None:
            return
        try:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
        except OSError as error:
            raise CommandError(f"--output {file}: {error.strerror}", NOT_STARTED) from error

    return write
