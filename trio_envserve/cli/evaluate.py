"""The verb ``eval``: its options, and what it prints at the end.

:mod:`.evaluation` has what it does.
"""

from __future__ import annotations

from typing import Any

import click

from ..core.errors import ConfigError
from ..core.limits import ClientLimits
from ..envs.loading import check_spec
from ..evals.inputs import Slice
from .authors import with_traceback
from .common import (
    AT_ONCE,
    NOT_STARTED,
    ROLLOUT_ERRORS,
    UNWRITTEN,
    Result,
    Stop,
    epilog,
    put,
    run_verb,
    start_logging,
)
from .evaluation import DEFAULT_N, Options, evaluation
from .models import check_model, model_options
from .named_runs import check_options, own_key_limits
from .options import (
    arg_option,
    client_options,
    json_option,
    log_options,
    logs_of,
    pairs,
    pool_options,
    python_option,
    serving_args,
)
from .render import show_tables
from .results import summary_tables


@click.command(
    name="eval",
    epilog=epilog(
        {
            AT_ONCE: "stopped at once by a second signal",
            NOT_STARTED: "could not start: the environment is broken, or there is no server",
            ROLLOUT_ERRORS: "finished, but some rollouts ended in errors",
            UNWRITTEN: "results could not be written",
        },
        interrupted="interrupted (Ctrl-C, SIGTERM), with the results so far",
    ),
)
@click.argument("environment", metavar="ENV")
@click.option(
    "-n", "n", type=click.IntRange(min=1), metavar="N",
    help=f"How many inputs (default: {DEFAULT_N}; with --inputs: all of them).",
)  # fmt: skip
@click.option(
    "--repeat", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="K",
    help="Rollouts of each input. The summary has pass@k then.",
)  # fmt: skip
@click.option(
    "--group", "grouped", is_flag=True,
    help="The repeats of an input are one group, scored together by the environment.",
)  # fmt: skip
@model_options
@click.option(
    "--address", default="", metavar="ADDRESS",
    help="The address of a running server. Default: eval starts its own server.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=0), metavar="N",
    help="Worker processes of eval's own server (default: 1).",
)  # fmt: skip
@python_option
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses the inputs.")
@click.option(
    "--inputs", default="", metavar="FILE",
    help="A file of inputs instead of the environment's own: JSON lines, a JSON array, CSV "
    "(cells are text) or Parquet, by its name.",
)  # fmt: skip
@click.option(
    "--slice", "sliced", default=":", metavar="START:STOP",
    help="Only these of the inputs, counted from 0, such as 10:20. They keep their numbers.",
)  # fmt: skip
@click.option(
    "--in-flight", type=click.IntRange(min=1), default=1000, show_default=True,
    help="Most rollouts in flight at a time.",
)  # fmt: skip
@click.option(
    "--max-retries", type=click.IntRange(min=0), default=0, show_default=True,
    help="How often the worker repeats a rollout that failed.",
)  # fmt: skip
@click.option(
    "--rerun/--no-rerun", default=None,
    help="Whether a rollout may run again after its worker was proven dead "
    "(default: as the environment declares).",
)  # fmt: skip
@click.option(
    "--max-executions", type=click.IntRange(1, 100), metavar="N",
    help=f"With --rerun, how many executions at most (default: {ClientLimits().max_executions}).",
)  # fmt: skip
@click.option(
    "--state-column", "state_columns", multiple=True, metavar="NAME",
    help="A column of the state to send back. Repeatable.",
)  # fmt: skip
@click.option(
    "--sampling", "--sampling-arg", "sampling_args", multiple=True, metavar="KEY=VALUE",
    help="Passed to the model, such as temperature=0.7; VALUE as JSON, or as text. Repeatable.",
)  # fmt: skip
@click.option(
    "--pass-reward", "passed_from", type=float, default=1.0, show_default=True, metavar="REWARD",
    help="The reward from which on a rollout counts as passed, for pass@k.",
)  # fmt: skip
@click.option(
    "--limit-errors", "most_errors", type=click.IntRange(min=1), metavar="N",
    help="Stop as soon as N rollouts have ended in errors.",
)  # fmt: skip
@click.option(
    "--timeout-s", type=click.FloatRange(min=0, min_open=True),
    help="How long one rollout may take, including its waiting.",
)  # fmt: skip
@click.option(
    "--execution-s", type=click.FloatRange(min=0, min_open=True),
    help="How long one execution may last, without its waiting for a worker.",
)  # fmt: skip
@click.option(
    "--wait-s", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True,
    help="How long to wait for a server that is not there yet, or was lost.",
)  # fmt: skip
@click.option(
    "--output", "--out", default="", metavar="FILE",
    help="Write results to FILE as they come, one JSON object a line; - for standard "
    "output. FILE.parquet becomes a table at the end (extra table). A file with results of "
    "the same evaluation is continued. Without this option only the summary is printed.",
)  # fmt: skip
@click.option(
    "--resume", default="", metavar="FILE",
    help="As --output, but FILE must exist: run only what is missing in it.",
)  # fmt: skip
@click.option(
    "--retry-errors", is_flag=True,
    help="When a file is continued, also run rollouts again that ended in errors (with --run, "
    "under another key). By default only missing rollouts run.",
)  # fmt: skip
@click.option(
    "--run", "run_name", metavar="NAME",
    help="Give each rollout the key NAME/INPUT/REPEAT. Started again after whatever killed it, "
    "the same command runs what is missing, joins what runs, and takes what is there. Needs "
    "--journal, or the --address of a server with one.",
)  # fmt: skip
@click.option(
    "--journal", type=click.Path(file_okay=False), metavar="DIR",
    help="With --run: where eval's own server keeps what it knows of keys.",
)  # fmt: skip
@client_options
@arg_option
@pool_options
@log_options("WARNING")
@json_option
def evaluate(
    environment: str, n: int | None, repeat: int, grouped: bool, model: str, model_name: str,
    address: str, workers: int | None, seed: int, inputs: str, sliced: str, in_flight: int,
    max_retries: int, rerun: bool | None, max_executions: int | None,
    state_columns: tuple[str, ...], sampling_args: tuple[str, ...], passed_from: float,
    most_errors: int | None, timeout_s: float | None, execution_s: float | None, wait_s: float,
    output: str, resume: str, retry_errors: bool, run_name: str | None, journal: str | None,
    as_json: bool, **given: Any,
) -> int:  # fmt: skip
    """Run rollouts of ENV, and sum up rewards, errors, latencies and retries.

    \b
    Examples:
      trio-envserve eval arithmetic -n 200 --workers 2
      trio-envserve eval reasoning-gym:countdown -n 200 --model random --output r.jsonl
      trio-envserve eval arithmetic --model http://127.0.0.1:8000/v1 --model-name qwen3
      trio-envserve eval arithmetic -n 50 --repeat 4 --sampling temperature=0.7 --output r.jsonl
      trio-envserve eval arithmetic --address tcp://127.0.0.1:5555 --rerun
      trio-envserve eval arithmetic -n 500 --run r1 --journal runs --workers 2

    ENV is named as for `serve`. With --address ENV only makes the inputs, and must
    be the environment that the server has.

    \b
    A result line has index, repeat, input, value (what the environment returned), reward,
    metrics, usage, error (null, or class, code, verdict, fault, type, message, traceback), worker,
    duration_s, took_s, executions, ended_s (seconds since 1970), environment, model. Values that
    JSON lacks are marked: {"$bytes": base64}, {"$array": {"dtype", "shape", "data": base64}},
    {"$float": "nan"}, {"$time": ...}, {"$text": ...}.

    \b
    With --json, the last line of standard output has at least results (how many
    have a value), mean_reward (null without rewards), errors (how many), seconds.

    If results cannot be written (the disk is full), the evaluation stops; the file is whole
    to its last line, the summary has what came, and the exit code is 5.

    Ctrl-C or SIGTERM cancels all pending rollouts on the server; the summary has those
    that came before, and the exit code is 130 or 143. A second signal kills the workers
    of eval's own server. With --run, `kill -9` cancels nothing at a server elsewhere.
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        of_own = (
            "capacity", "worker_memory", "recycle", "pause_after_errors", "worker_env",
            "worker_python",
        )  # fmt: skip
        own = {
            "--workers": workers,
            **{f"--{name.replace('_', '-')}": given[name] or None for name in of_own},
            "--limit": given["limits"] or None,
            "--journal": journal,
        }
        wrong = [option for option, value in own.items() if value is not None]
        if address and wrong:
            raise ConfigError(
                f"{wrong[0]} is for eval's own server; with --address there is another one"
            )
        check_options(run_name, address, journal)
        if output and resume:
            raise ConfigError("--output and --resume both name the file of results: give one")
        file = output or resume
        if retry_errors and not file:
            raise ConfigError("--retry-errors is for a file that is continued: give --output")
        count = 1 if workers is None else workers
        server = {} if address else {
            **serving_args(given, count), "keys": own_key_limits(given["limits"], run_name),
            "journal": journal,
        }  # fmt: skip
        call = {
            "model": model, "model_name": model_name, "max_retries": max_retries, "rerun": rerun,
            "max_executions": max_executions, "state_columns": state_columns,
            "sampling_args": pairs("--sampling-arg", sampling_args), "timeout_s": timeout_s,
            "execution_s": execution_s,
        }  # fmt: skip
        options = Options(
            environment, pairs("--arg", given["args"]), n, seed, inputs, Slice.parse(sliced),
            repeat, grouped, address, server, wait_s, in_flight, call, passed_from, most_errors,
            file, bool(resume), retry_errors, given["transport"], run_name or "",
        )  # fmt: skip
        if not (address and inputs) and given["worker_python"] is None:
            with with_traceback(environment):
                check_spec(environment, options.args)
        check_model(model, address)
        start_logging(logs_of(given), "eval" if address else "server")
        result = await evaluation(options, stop)
        if not as_json:
            title = f"{result.summary['environment']}, model {model_name or model}"
            show_tables(summary_tables(result.summary, title), put)
        return result

    return run_verb(main, as_json=as_json)
