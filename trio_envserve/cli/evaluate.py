"""The verb ``eval``: runs rollouts and sums up their rewards.

Theory of operation
-------------------
The environment, in a process of its own, makes the inputs while the server gets
ready.  The server is a running one, or this command's own in this process, whose
workers end with it.  Each outcome is written before it is counted
(:mod:`trio_envserve.evals.run`).  The first signal cancels all pending rollouts, on the
server too; the summary has those that came before.  A file that has results of the same
evaluation already is continued: its results are counted, and the missing ones are asked for.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import cbor2
import trio

from .. import foreign
from ..client import Client, open_client
from ..client.standing import WAITS
from ..commands import describe_exit
from ..core import values
from ..core.errors import (
    ConfigError,
    EnvironmentBroken,
    EnvServeError,
    ServerNotClosed,
    ServerNotReady,
    short_type,
)
from ..core.limits import MIB, ClientLimits
from ..core.status import ClientCounters, ServerStats
from ..envs.specs import SCHEMES
from ..evals.inputs import Slice, read_inputs
from ..evals.output import Output
from ..evals.plain import plain_line
from ..evals.records import RolloutResult, digest, usage_words
from ..evals.run import (
    Evaluation,
    EvaluationPlan,
    RunKeys,
    check_name,
)
from ..evals.statistics import Bin, bar, histogram, sparkline
from ..evals.tally import PERCENTILES, ResultsTally, retries
from ..host.interpreters import helper
from ..logs import set_title
from ..models.endpoints import read_endpoints
from ..models.registry import check_endpoint, check_roles, open_models
from ..net import DEFAULT_TRANSPORT, TRANSPORTS, Transport
from ..net.keypairs import ClientCurve
from ..options import argument, option
from ..pages.tables import WORKERS, Table, duration, tables_of
from ..server import Server, open_server
from ..server.options import completed, pairs
from .at_server import tell_health
from .common import (
    AT_ONCE,
    NOT_STARTED,
    OK,
    ROLLOUT_ERRORS,
    UNWRITTEN,
    CommandError,
    Result,
    StopRequest,
    check_named,
)
from .options import WithEndpoints, curve_option, level_option, role_option
from .render import calls_words, number_of, progress, rollouts_table, say, tokens_words
from .verbs import options_of_verb, server_options, verb

DEFAULT_N = 100
ASKED_EVERY_S = 1.0

_WIDTH = 30
_NAME = 40
_ROLLOUT = "input", "repeat", "duration_s", "worker", "error"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationOptions(WithEndpoints):
    """The options of ``eval`` and ``rescore``."""

    server: Mapping[str, Any] = server_options("args")
    in_flight: int = option(1000, "Most rollouts in flight at a time.", least=1)
    log_level: str = level_option("WARNING")

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of the environment."""
        return dict(self.server.get("args", {}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eval(EvaluationOptions):
    """The options of ``eval``."""

    environment: str = argument("What makes the inputs.", metavar="ENV")
    n: int | None = option(
        None, "Number of inputs. By default STOP where --slice is given, which takes of these.",
        flag="-n", shown=f"{DEFAULT_N}; with --inputs: all", least=1, common=True,
    )  # fmt: skip
    model: str = option(
        "oracle", "Model: oracle, random, a URL, or a name. The oracle is always right, "
        "random always wrong; a URL is that of an endpoint, http://HOST:PORT/v1, and a name is "
        "one in the file of endpoints.", metavar="MODEL", common=True,
    )  # fmt: skip
    model_name: str = option(
        "", "The model's name at its endpoint. Default: what the file of endpoints says.",
        metavar="NAME", common=True,
    )  # fmt: skip
    output: str = option(
        "", "Write results to this file as they come. One JSON object a line; - for standard "
        "output. FILE.parquet becomes a table at the end (extra table). A file with results of "
        "the same evaluation is continued. Without this option only the summary is printed.",
        metavar="FILE", common=True,
    )  # fmt: skip
    repeat: int = option(
        1, "Rollouts of each input; with K > 1 the summary has pass@k.", metavar="K", least=1,
        most=10_000, common=True,
    )  # fmt: skip
    group: bool = option(
        False, "The repeats of an input are one group, scored together by the environment."
    )
    address: str = option(
        "", "A running server. Default: eval starts its own.", metavar="ADDRESS", common=True
    )
    server: Mapping[str, Any] = server_options(
        "workers", "args", "capacity", "limits", "worker_python", "worker_environ", "journal"
    )
    seed: int = option(0, "Chooses the inputs.")
    inputs: str = option(
        "", "A file of inputs instead of the environment's own. JSON lines, a JSON array, CSV "
        "(cells are text) or Parquet, by its name.", metavar="FILE",
    )  # fmt: skip
    slice: Slice = option(
        Slice(), "Only the inputs from START to STOP - 1, counted from 0, with these numbers in "
        "the results.", metavar="START:STOP", make=Slice.parse,
    )  # fmt: skip
    max_retries: int = option(0, "How often the worker repeats a rollout that failed.", least=0)
    rerun: bool | None = option(
        None, "Whether a rollout may run again after its worker was proven dead. Default: as the "
        "environment declares.",
    )  # fmt: skip
    max_executions: int | None = option(
        None, "With --rerun, how many executions at most.", least=1, most=100,
        shown=f"{ClientLimits().max_executions}",
    )  # fmt: skip
    state_column: tuple[str, ...] = option(
        (), "A column of the state to send back.", metavar="NAME"
    )
    sampling: Mapping[str, Any] | None = option(
        None, "Passed to the model, such as temperature=0.7; VALUE as JSON, or as text.",
        metavar="KEY=VALUE", parse=pairs,
    )  # fmt: skip
    pass_reward: float = option(
        1.0, "The reward from which on a rollout counts as passed, for pass@k.", metavar="REWARD"
    )
    roles: Mapping[str, str] | None = role_option()
    limit_errors: int | None = option(
        None, "Stop as soon as N rollouts have ended in errors.", least=1
    )
    timeout_s: float | None = option(
        None, "How long one rollout may take, including its waiting.", above=0
    )
    execution_s: float | None = option(
        None, "How long one execution may last, without its waiting for a worker.", above=0
    )
    grace_s: float | None = option(
        None,
        "How long after --timeout-s or --execution-s a late rollout may still give what it has.",
        above=0,
    )
    working_s: float | None = option(
        None, "How long one execution may last, without its waiting for the model's endpoint.",
        above=0,
    )  # fmt: skip
    wait_s: float = option(
        30.0, "How long to wait for a server that is not there yet, or was lost.", above=0
    )
    retry_errors: bool = option(
        False, "When a file is continued, run rollouts again that ended in errors, with --run "
        "under new keys. By default only those run that are missing or did not run.",
    )  # fmt: skip
    run_name: str | None = option(
        None, "Give each rollout the key NAME/INPUT/REPEAT. The same command, started again, "
        "runs missing rollouts, joins running ones, and takes the outcomes of the others. "
        "Needs --journal, or the --address of a server with one.", flag="--run", metavar="NAME",
    )  # fmt: skip
    transport: Transport = option(
        DEFAULT_TRANSPORT, "The implementation of ZMTP: trio's own, or libzmq.", choices=TRANSPORTS
    )
    curve: str | None = curve_option()

    def call(self) -> dict[str, Any]:
        """The options of each call."""
        return {
            "model": self.model, "model_name": self.model_name, "max_retries": self.max_retries,
            "rerun": self.rerun, "max_executions": self.max_executions,
            "state_columns": self.state_column, "sampling_args": dict(self.sampling or {}),
            "timeout_s": self.timeout_s, "execution_s": self.execution_s,
            "grace_s": self.grace_s, "working_s": self.working_s, "roles": self.roles,
        }  # fmt: skip

    def run(self) -> dict[str, Any]:
        """The options that decide what the rollouts are asked, besides their inputs."""
        asked = ("model", "model_name", "sampling_args", "state_columns", "roles")
        about = {name: self.call()[name] for name in asked}
        size = self.repeat if self.group else None
        if self.working_s is not None:  # a part of what is asked; runs before it had none
            about["working_s"] = self.working_s
        if self.grace_s is not None:  # what a late rollout gives depends on when it is late
            late = ("timeout_s", "execution_s", "grace_s")
            about["late"] = {name: self.call()[name] for name in late}
            about["late"]["limit_s"] = self.server.get("limits", {}).get("execution_s")
        return {**about, "environment": self.environment, "args": self.args, "group": size}

    def check(self) -> None:
        """Raise ConfigError for options that do not go together."""
        own = [name for name in self.server if name != "args"]
        if self.address and own:
            raise ConfigError(
                f"{options_of_verb(Eval)[own[0]].flags} is for eval's own server; with --address "
                "there is another one"
            )
        journal, name = self.server.get("journal"), self.run_name
        if name is not None:
            check_name(name)
        if journal is not None and name is None:
            raise ConfigError("--journal keeps what is asked under keys: give --run NAME, too")
        if name is not None and not self.address and journal is None:
            raise ConfigError(
                "eval's own server forgets --run when it ends: give --journal DIR, or the "
                "--address of a server that has a journal"
            )
        if self.retry_errors and not self.output:
            raise ConfigError("--retry-errors is for a file that is continued: give --output")
        if not self.address:
            check_endpoint(self.model)
            check_roles(self.roles or {})
        elif self.endpoints:  # the workers are another server's, which has a file of its own
            raise ConfigError(
                "--endpoints is for eval's own server; with --address give it to `serve` there"
            )

    @property
    def caller(self) -> str:
        """The caller's name: the same evaluation started again takes its old place among the
        waiting.  One that asks something else under this name by mistake must not."""
        return f"eval {self.run_name} {digest(self.run())}" if self.run_name else ""


@verb(
    Eval,
    {
        AT_ONCE: "stopped at once by a second signal",
        NOT_STARTED: "could not start: the environment cannot be made, or there is no server",
        ROLLOUT_ERRORS: "finished, but some rollouts ended in errors",
        UNWRITTEN: "results could not be written",
    },
    name="eval",
    interrupted="interrupted (Ctrl-C, SIGTERM), with the results so far",
)
async def evaluate(asked: Eval, stop: StopRequest) -> Result:
    """Run rollouts of ENV, and sum up rewards, errors, latencies and retries.

    Examples:
      trio-envserve eval arithmetic -n 200 --workers 2
      trio-envserve eval arithmetic --model http://127.0.0.1:8000/v1
      trio-envserve eval reasoning-gym:countdown -n 200 --model random --output r.jsonl
      trio-envserve eval arithmetic -n 50 --repeat 4 --sampling temperature=0.7 --output r.jsonl
      trio-envserve eval arithmetic --address tcp://127.0.0.1:5555 --rerun
      trio-envserve eval arithmetic -n 500 --run r1 --journal runs --workers 2

    ENV is named as for `serve`. With --address ENV only makes the inputs, and must
    be the environment that the server has.

    A result line has index, repeat, input, value (what the environment returned), reward,
    metrics, usage, error (null, or class, code, verdict, fault, type, message, traceback), worker,
    duration_s, took_s, executions, ended_s (seconds since 1970), environment, model. Values that
    JSON lacks are marked: {"$bytes": base64}, {"$array": {"dtype", "shape", "data": base64}},
    {"$float": "nan"}, {"$time": ...}, {"$text": ...}.

    With --json, the last line of standard output has at least results (how many
    have a value), mean_reward (null without rewards), errors (how many), seconds.

    If results cannot be written (the disk is full), the evaluation stops; the file is whole
    to its last line, the summary has what came, and the exit code is 5.

    Ctrl-C or SIGTERM cancels all pending rollouts on the server; the summary has those
    that came before, and the exit code is 130 or 143. A second signal kills the workers
    of eval's own server. With --run, `kill -9` cancels nothing at a server elsewhere.
    """
    asked.name_endpoints()
    asked.check()
    if not (asked.address and asked.inputs) and "worker_python" not in asked.server:
        check_named(asked.environment, asked.args)
    own: dict[str, Any] = {}
    if not asked.address:
        limits = {**(_OWN_LIMITS if asked.run_name else {}), **asked.server.get("limits", {})}
        own = completed(**{**asked.server, "limits": limits, "transport": asked.transport})
    own |= asked.start_logging("eval" if asked.address else "server")
    set_title(f"trio-envserve eval of {asked.environment}")
    state = WrittenResults(stop)
    stop.so_far = lambda: _result(asked, state)
    async with state.writing(asked.output, asked.run()):
        await _with_server(asked, own, stop, state)
    return _result(asked, state)


class WrittenResults:
    """The results of a verb that writes them, at its end, however it ends."""

    def __init__(self, stop: StopRequest) -> None:
        self.output = Output()
        self.evaluation = Evaluation(EvaluationPlan(()), ResultsTally())
        self.counters = ClientCounters()
        """Counters of the client that has asked."""
        self.resumed = 0
        self.served = ""
        """The environment by the server's own word."""
        self.stop = stop

    @asynccontextmanager
    async def writing(self, path: str, run: Mapping[str, Any]) -> AsyncIterator[None]:
        """Have the file of results, and finish it unless a signal came."""
        self.output = output = Output(path, digest(run))
        try:
            await trio.to_thread.run_sync(output.open)
            try:
                yield
            except* ServerNotClosed as problem:
                # It has closed as far as it can, and the results are here.
                self.stop.not_closed = next(
                    leaf for leaf in foreign.leaves(problem) if isinstance(leaf, ServerNotClosed)
                )
            if not self.stop.asked.is_set():
                await output.finish()
        finally:
            output.close()

    def summary(self, spec: str, roles: Mapping[str, str] | None, output: str) -> dict[str, Any]:
        """What every such verb says at its end."""
        problem = self.evaluation.not_written or self.output.problem
        return {
            "seconds": round(self.evaluation.progress.seconds, 3),
            "resumed": self.resumed,
            "interrupted": self.stop.asked.is_set(),
            "unwritten": self.evaluation.unwritten,
            "write_error": None if problem is None else str(problem),
            "environment": self.served or spec,
            "spec": spec,
            "roles": dict(roles or {}),
            "output": output or None,
        }

    def say_unwritten(self, summary: Mapping[str, Any]) -> None:
        """Say what is not in the file, and where the rest is."""
        if summary["write_error"]:
            say(f"{summary['write_error']}: {summary['unwritten']} results that came are not in it")
        elif summary["unwritten"]:
            last = f"{summary['unwritten']} large results that came last"
            say(f"{last} are not in {summary['output']}")
        if (self.stop.asked.is_set() or summary["write_error"]) and (kept := self.output.kept):
            say(f"the results are in {kept}; the same command goes on from there")

    def say_first(self, one: RolloutResult) -> None:
        """Say the first failure of a kind."""
        failure = one.failure
        assert failure is not None
        raised = f"{short_type(failure.type)}: " if failure.type else ""
        say(f"the first {failure.kind}: {raised}{failure.message} ({failure.verdict})")
        traceback = self.evaluation.tally.traceback_of(one)
        # Other kinds have this package's.
        if traceback and failure.kind == "RolloutFailed":
            say(f"its traceback:\n{traceback.rstrip()}")

    def exit_code(self, summary: Mapping[str, Any]) -> int:
        """The exit code."""
        if self.stop.asked.is_set():
            return self.stop.interrupted_code
        if self.stop.not_closed is not None:
            return AT_ONCE
        if summary["write_error"]:
            return UNWRITTEN
        return ROLLOUT_ERRORS if summary["errors"] else OK


async def _with_server(
    options: Eval, own: dict[str, Any], stop: StopRequest, state: WrittenResults
) -> None:
    if not options.address and not state.output.told():
        await check_reached(options.model, *(options.roles or {}).values())
    async with _server(options, own, stop) as server:
        address = options.address or (server.address if server else "")
        keys = options.curve if options.address else None
        curve = None if keys is None else ClientCurve.from_file(keys)
        limits = ClientLimits(start_s=options.wait_s, recovery_s=options.wait_s)
        async with open_client(
            address, name="eval", limits=limits, transport=options.transport,
            caller=options.caller,
            curve=curve,
        ) as client:  # fmt: skip
            try:
                prepared = await _prepare(options, stop, client, server)
                await _run(options, client, prepared, state)
            finally:
                state.counters = client.counters()
                if stop.asked.is_set():
                    say(f"{stop.why}: cancelling pending rollouts (again to stop at once)")


def _result(options: Eval, state: WrittenResults) -> Result:
    evaluation = state.evaluation
    figures = evaluation.tally.summary()
    summary = {
        **figures,
        **state.summary(options.environment, options.roles, options.output),
        "rate": evaluation.progress.rate,
        "retries": retries(state.counters, figures["rerun"]),
        "asked": evaluation.plan.rollouts,
        "gave_up": evaluation.gave_up,
        "model": options.model,
        "model_name": options.model_name,
        "address": options.address or None,
        "run_name": options.run_name or None,
    }
    _say_what_stands_out(options, state, summary)
    title = f"{summary['environment']}, model {options.model_name or options.model}"
    return Result(state.exit_code(summary), summary, summary_tables(summary, title))


def _say_what_stands_out(options: Eval, state: WrittenResults, summary: dict[str, Any]) -> None:
    tally, asked = state.evaluation.tally, summary["asked"]
    if state.stop.asked.is_set():
        came = f": {len(tally.found)} of {asked} rollouts came back"
        nothing = " before anything was asked for: nothing ran"
        say(f"interrupted by {state.stop.why}{came if asked else nothing}")
    if state.evaluation.gave_up:
        say(f"stopped by --limit-errors: {options.limit_errors} rollouts ended in errors")
    state.say_unwritten(summary)
    if state.stop.asked.is_set() and options.run_name and not options.output:
        say(f"the server keeps results under --run {options.run_name} as long as it keeps keys; "
            "the same command goes on from there")  # fmt: skip
    if tally.errors:
        say(f"{tally.errors} of {asked} rollouts ended in errors")
        for rollouts in tally.failed().values():
            state.say_first(rollouts[0])
    left_out = summary["rewards_left_out"]
    say_left_out(left_out)
    if summary["metrics_left_out"]:
        say(f"{summary['metrics_left_out']} metrics are left out: there are too many names")
    if left_out["missing"] and left_out["missing"] == tally.results:
        why = state.evaluation.unrewarded or 'a result is a mapping such as {"reward": 1.0}'
        say(f"no result has a reward: {why}")


def say_left_out(left_out: Mapping[str, Any]) -> None:
    """Say how many rewards count for no mean."""
    if left_out["not_a_number"]:
        types = ", ".join(left_out["types"])
        say(f"{left_out['not_a_number']} rewards are no numbers ({types}) and count for no mean")
    for what in ("nan", "infinite"):
        if left_out[what]:
            say(f"{left_out[what]} rewards are {what} and count for no mean")


@asynccontextmanager
async def _server(
    options: Eval, own: dict[str, Any], stop: StopRequest
) -> AsyncIterator[Server | None]:
    """This command's own server, if no address was given."""
    if options.address:
        yield None
        return
    async with open_server(options.environment, **own) as server:
        stop.kill = server.kill
        yield server


class _Prepared(NamedTuple):
    """The inputs, and the name of the environment that made them."""

    inputs: list[Any]
    name: str = ""


async def _prepare(
    options: Eval, stop: StopRequest, client: Client, server: Server | None
) -> _Prepared:
    """Wait for the inputs and until the server is ready."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_wait_ready, options, client, server)
        prepared = await stop.leave_behind(_load_inputs, options)
    return prepared


async def _wait_ready(options: Eval, client: Client, server: Server | None) -> None:
    # Our own server has no limit: it says itself if it will never be ready.
    wait_s = options.wait_s if server is None else math.inf
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_health, client, wait_s)
        if server is not None:
            await server.wait_ready()
        try:
            await client.wait_ready(wait_s)
        except EnvironmentBroken:
            raise
        except ServerNotReady as error:
            how = "; nothing was asked for. --wait-s waits for longer"
            raise ServerNotReady(f"{error}{how}") from error
        nursery.cancel_scope.cancel()


def _load_inputs(options: Eval) -> _Prepared:
    """The inputs to ask for.  Runs in a thread.  Raises ConfigError."""
    start, stop = options.slice
    if options.inputs:
        prepared = _Prepared(read_inputs(options.inputs)[: options.n])
    else:
        n = options.n or (DEFAULT_N if stop is None else stop)
        prepared = _ask_inputs(options, n)
        given = len(prepared.inputs)
        if given != n:
            what = f"the first {n} are used" if given > n else "there are no more"
            say(f"{options.environment}: inputs({n}, {options.seed}) gave {given} inputs; {what}")
        prepared = prepared._replace(inputs=prepared.inputs[:n])
    inputs = prepared.inputs[start:stop]
    if not inputs:
        raise ConfigError(f"--slice: there are only {len(prepared.inputs)} inputs")
    return prepared._replace(inputs=inputs)


def _ask_inputs(options: Eval, n: int) -> _Prepared:
    """The inputs that the environment makes.  Raises ConfigError or CommandError."""
    roles = options.roles or {}
    answer = ask_environment(options, options.environment, roles, n=n, seed=options.seed)
    if not options.address:
        check_roles(roles, answer["roles"])
    inputs: Any = values.decode(answer["inputs"], root="inputs")
    return _Prepared(inputs, answer["name"])


def ask_environment(
    options: EvaluationOptions, spec: str, roles: Mapping[str, str], **wanted: Any
) -> dict[str, Any]:
    """The answer of a process that loads the environment: no code of it runs here.  Raises
    ConfigError or CommandError, with the author's traceback."""
    words, path = helper(options.server.get("worker_python"), "trio_envserve.worker.inputs")
    wanted |= {
        "environment": spec, "args": options.args, "roles": dict(roles), "path": path,
        "parent": os.getpid(),
    }  # fmt: skip
    done = subprocess.run(
        words, input=json.dumps(wanted).encode(), stdout=subprocess.PIPE, check=False,
        process_group=0,  # Ctrl-C is for this one
    )  # fmt: skip
    if not done.stdout:
        how = describe_exit(done.returncode)
        raise CommandError(f"{spec}: the process that loads it: {how}", NOT_STARTED)
    answer: dict[str, Any] = cbor2.loads(done.stdout)
    if "error" not in answer:
        return answer
    # As the server says it, if that gets so far first.
    if answer["traceback"] and spec.partition(":")[0] not in SCHEMES:
        raise CommandError(f"{spec}: {answer['error']}\n{answer['traceback']}", NOT_STARTED)
    if answer["broken"]:
        raise CommandError(answer["error"], NOT_STARTED)
    raise ConfigError(answer["error"])


def _check_served(options: Eval, name: str, served: str) -> None:
    """CommandError if the server there runs another environment than the one that was named."""
    if name and name != served:
        raise CommandError(
            f"the server at {options.address} runs {served}, not {options.environment} ({name}): "
            f"nothing was asked for. Name what it runs, give its --address, or give inputs for it "
            f"(--inputs FILE)", NOT_STARTED,
        )  # fmt: skip
    if not name and served not in (options.environment, options.environment.rpartition(":")[2]):
        say(f"the server at {options.address} runs {served}, and gets the inputs of the file")


async def _run(options: Eval, client: Client, prepared: _Prepared, state: WrittenResults) -> None:
    stats = await client.stats()
    state.served = stats.environment
    if options.address and state.served:
        _check_served(options, prepared.name, state.served)
    plan = EvaluationPlan(prepared.inputs, options.slice.start, options.repeat, options.group)
    tally = ResultsTally(passed_from=options.pass_reward)
    keys = None
    if options.run_name:
        keys = RunKeys(options.run_name, state.output.told().__getitem__)
        check_server(options.run_name, plan, stats)
    names = state.output.missing(
        plan, tally, retry_errors=options.retry_errors,
        ask_again=bool(options.run_name) and stats.durable,
    )  # fmt: skip
    state.resumed = len(tally.found)
    if state.resumed:
        say(f"{options.output} has {state.resumed} of {plan.rollouts} results; the rest is run")
    model = options.model_name or options.model
    state.evaluation = evaluation = Evaluation(
        plan, tally, file=state.output.file, environment=state.served, model=model,
        run=state.output.run, most_errors=options.limit_errors, keys=keys,
    )  # fmt: skip
    title = f"{state.served}, model {model}"
    async with watched(evaluation, client, stats, title, options.wait_s):
        await evaluation.run(client, names, options.in_flight, **options.call())
    if evaluation.conflict is not None:
        raise ConfigError(
            f"under the name {options.run_name!r} the server knows another evaluation (another "
            "input, model, argument or option, such as --rerun): give what it was begun with, or "
            f"another --run ({evaluation.conflict})"
        )


# -- its model --------------------------------------------------------------------------


async def check_reached(*endpoints: str) -> None:
    """Raise :class:`CommandError` if nothing is there to answer for a model, from here."""
    named = read_endpoints()
    over_http = [
        each for each in endpoints if each.startswith(("http://", "https://")) or each in named
    ]
    if not over_http:
        return
    from ..models.http import HttpModel

    async with open_models() as models:
        for endpoint in over_http:
            client = models.get(endpoint)
            why = await client.unreachable() if isinstance(client, HttpModel) else ""
            if why:
                raise CommandError(
                    f"{why}; nothing was asked for. Start the model, or give its address by "
                    "--model, or by --role for another one", NOT_STARTED,
                )  # fmt: skip


# -- under a name -----------------------------------------------------------------------


_OWN_LIMITS = {
    # It is time in which servers had the journal; an evaluation may take days.
    "retention_s": 30 * 86_400.0,
    # Nobody else asks eval's own server.
    "namespace_share": 1.0,
    "generations": 1_000_000,
    "retained_bytes": 1024 * MIB,
}
"""At a bound new keys wait until the retention of others has ended; so these are wide."""


def check_server(run_name: str, plan: EvaluationPlan, stats: ServerStats) -> None:
    """Say what a server cannot keep of an evaluation.  What it can do it does all the same."""
    if stats.journal:
        say(f"the server's journal saves nothing for now: {stats.journal}")
    elif not stats.durable:
        say(
            f"the server has no journal: when it ends, what it knows of the run {run_name!r} ends, "
            "and what is asked again runs again (serve --journal DIR)"
        )
    requests = len(plan.inputs) if plan.grouped else plan.rollouts
    most = stats.bounds.get("keys")
    if most is not None and requests > most:
        say(
            f"the server keeps {most:,.0f} keys at most, and this run has {requests:,}: the last "
            "ones wait until the retention of others ends (serve --limit generations=N)"
        )


# -- its progress ----------------------------------------------------------------------


@dataclasses.dataclass
class Seen:
    """The server's last status."""

    before: Mapping[str, float]
    """The totals of its model calls when the evaluation began."""
    stats: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Its statistics; empty while nothing is known."""
    usage: dict[str, float] = dataclasses.field(default_factory=dict)
    """The totals of its model calls since then."""
    waits: str = ""
    """Text on the thing for which the oldest waiting rollout waits."""

    def take(self, stats: ServerStats) -> None:
        """Take what it says now."""
        self.stats = stats.to_record()
        usage = stats.model_usage
        # A server that was started anew counts anew.
        self.usage = {n: max(count - self.before.get(n, 0), 0) for n, count in usage.items()}


@asynccontextmanager
async def watched(
    evaluation: Evaluation, client: Client, stats: ServerStats, title: str, wait_s: float,
    verb: str = "eval",
) -> AsyncIterator[None]:  # fmt: skip
    """While the block runs an evaluation: how far it is, and how its server is."""
    seen = Seen(stats.model_usage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_health, client, wait_s)
        nursery.start_soon(_keep_asking, client, seen)
        async with progress(
            lambda: progress_line(evaluation, seen.waits, verb),
            tables=lambda: progress_tables(evaluation, seen, title),
        ):
            yield
        nursery.cancel_scope.cancel()
    say(progress_line(evaluation, verb=verb))


async def _keep_asking(client: Client, seen: Seen) -> None:
    while True:
        try:
            seen.take(await client.stats(ASKED_EVERY_S))
            seen.waits = await _waits(client)
        except EnvServeError:
            seen.stats, seen.waits = {}, ""  # it does not answer
        await trio.sleep(ASKED_EVERY_S)


async def _waits(client: Client) -> str:
    """Text on the thing for which the oldest waiting rollout waits; empty if none is known."""
    try:
        page = await client.list_running(timeout_s=ASKED_EVERY_S)
    except EnvServeError:
        return ""  # the server does not answer
    return next((f"{row.note[WAITS]}" for row in page.running if row.note.get(WAITS)), "")


def progress_line(evaluation: Evaluation, waits: str = "", verb: str = "eval") -> str:
    """How far it is, and what its oldest rollout waits for, on one line."""
    how_far, tally = evaluation.progress, evaluation.tally
    reward = f", mean reward {tally.reward_mean:.4g}" if tally.reward_count else ""
    left = "" if how_far.ended_s or not how_far.left_s else f", {duration(how_far.left_s)} left"
    return (
        f"{verb}: {how_far.done}/{how_far.total} done, {tally.errors} errors{reward}, "
        f"{how_far.rate:.1f}/s, {how_far.seconds:.1f} s{left}"
        f"{plain_line(f'; waits {waits}') if waits else ''}"
    )


def progress_tables(evaluation: Evaluation, seen: Seen, title: str) -> list[Table]:
    """How far it is, for people."""
    progress, tally = evaluation.progress, evaluation.tally
    left = "…" if progress.left_s is None else duration(progress.left_s)
    done = bar(progress.done, max(progress.total, 1), _WIDTH).ljust(_WIDTH)
    rows = [
        ("rollouts", f"{done} {progress.done} of {progress.total}"),
        ("rate", f"{progress.rate:.1f}/s, {left} left"),
        ("reward", _rewards(evaluation)),
    ]
    if seen.usage.get("calls") or seen.usage.get("failed"):
        rows.append(("model calls", calls_words(seen.usage)))
    if seen.usage.get("prompt_tokens") or seen.usage.get("completion_tokens"):
        rows.append(("tokens", tokens_words(seen.usage, progress.seconds)))
    if seen.waits:
        rows.append(("waits", seen.waits))
    if tally.errors:
        faults = ", ".join(f"{fault} {n}" for fault, n in tally.by_fault.most_common() if n)
        rows.append(("errors", f"{tally.errors}: {faults}"))
    return [Table(title, (), rows, left=(0, 1)), *tables_of(seen.stats, WORKERS)]


def _rewards(evaluation: Evaluation) -> str:
    tally = evaluation.tally
    if not tally.reward_count:
        return "none yet"
    shape = sparkline([each.number for each in histogram(tally.rewards()[-2000:])])
    return f"mean {tally.reward_mean:.4g} of {tally.reward_count}  {shape}"


# -- its summary -----------------------------------------------------------------------


def summary_tables(summary: Mapping[str, Any], title: str) -> list[Table]:
    """The figures as tables."""
    tables = [
        Table(title, (), _figures(summary)),
        *_histograms(summary),
        _latencies(summary),
    ]
    if summary["errors_by"]:
        errors = [
            (e["class"], e["code"], e["verdict"], e["fault"], str(e["count"]))
            for e in summary["errors_by"]
        ]
        columns = ("class", "code", "what is known", "fault", "count")
        tables.append(Table("errors", columns, errors, left=(0, 1, 2, 3)))
        tables.append(rollouts_table("failed rollouts", summary["failed"], *_ROLLOUT))
    if summary["slowest"]:
        tables.append(rollouts_table("slowest rollouts", summary["slowest"], *_ROLLOUT))
    return tables


def _figures(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    reward, retries = summary["reward"], summary["retries"]
    rows = [
        ("results", str(summary["results"])),
        ("errors", _errors(summary)),
        ("mean reward", number_of(summary["mean_reward"])),
    ]
    if summary["left_out_of_gradient"]:
        rows.insert(2, ("left out of the gradient", str(summary["left_out_of_gradient"])))
    if reward["std_error"] is not None:
        percent = f"{reward['confidence']:.0%} interval"
        rows += [
            (f"standard error, over {reward['inputs']} inputs", number_of(reward["std_error"])),
            (percent, f"{number_of(reward['low'])} to {number_of(reward['high'])}"),
        ]
    if len(reward["pass_at"]) > 1:
        for k, each in reward["pass_at"].items():
            rows.append((f"pass@{k}, over {each['inputs']} inputs", number_of(each["mean"])))
    rows += left_out_rows(summary["rewards_left_out"])
    rows += [(usage_words(name), f"{n:,}") for name, n in summary["usage"].items() if n]
    if summary.get("resumed"):
        rows.append(("results that were there before", str(summary["resumed"])))
    rows += [
        ("seconds", f"{summary['seconds']:.2f}"),
        ("rollouts per second", f"{summary['rate']:.1f}"),
    ]
    again = {
        "retransmitted": "retransmitted", "reissued": "issued again after a lost server",
        "rerun": "executed more than once, by consent",
    }  # fmt: skip
    rows += [(words, str(retries[name])) for name, words in again.items() if retries[name]]
    return [(plain_line(name, _NAME), value) for name, value in rows]


def left_out_rows(left_out: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The row on rewards that count for no mean, if there are any."""
    found = {name: n for name, n in left_out.items() if name != "types" and n}
    words = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in found.items())
    return [("rewards left out", words)] if found else []


def _errors(summary: Mapping[str, Any]) -> str:
    faults = ", ".join(f"{n} {fault}" for fault, n in summary["errors_by_fault"].items() if n)
    return f"{summary['errors']} ({faults})" if faults else str(summary["errors"])


def _histograms(summary: Mapping[str, Any]) -> list[Table]:
    reward = summary["reward"]["histogram"]
    named = [("rewards", reward)] if reward else []
    named += [(name, each["histogram"]) for name, each in summary["metrics"].items()]
    return [
        Table(plain_line(name, _NAME), (), _bars(bins), left=(0, 1)) for name, bins in named if bins
    ]  # fmt: skip


def _bars(bins: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    most = max(each["number"] for each in bins)
    rows: list[tuple[str, ...]] = []
    for each in bins:
        line = bar(each["number"], most, _WIDTH).ljust(_WIDTH)
        rows.append((Bin(**each).label, line, f"{each['number']:.0f}"))
    return rows


def _latencies(summary: Mapping[str, Any]) -> Table:
    names = tuple(f"p{p}" for p in PERCENTILES)
    rows = [
        (what, *(number_of(summary[key][name]) for name in names))
        for what, key in (("caller's wait", "took_s"), ("execution", "duration_s"))
    ]
    return Table("latency in seconds", ("", *names), rows)
