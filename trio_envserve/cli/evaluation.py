"""The work of ``eval``: many rollouts, their results as they come, and a summary.

Theory of operation
-------------------
The environment, loaded here in a thread, makes the inputs while the server gets
ready.  The server is a running one, or this command's own in this process, whose
workers end with it.  Each outcome is written before it is counted
(:mod:`trio_envserve.evals.run`).  The first signal cancels all pending rollouts, on the
server too; the summary has those that came before.  A file that has results of the same
evaluation already is continued: its results are counted, and the missing ones are asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from ..client import Client, open_client
from ..core.errors import (
    ConfigError,
    EnvironmentBroken,
    ServerNotClosed,
    ServerNotReady,
    short_type,
)
from ..core.limits import ClientLimits
from ..core.status import ClientCounters
from ..envs.loading import load
from ..evals.inputs import Slice, read_inputs
from ..evals.run import Evaluation, Plan, RunKeys
from ..evals.tally import Tally, retries
from ..logs import set_title
from ..net import Transport
from ..server import Server, open_server
from ..worker.failures import describe_exception
from .authors import authors_traceback
from .common import (
    AT_ONCE,
    NOT_STARTED,
    OK,
    ROLLOUT_ERRORS,
    UNWRITTEN,
    CommandError,
    Result,
    Stop,
    say,
)
from .inputs_elsewhere import inputs_under
from .live import shown
from .models import check_reached
from .named_runs import caller_of, check_server, conflict_text
from .options import asked_curve
from .output import Output
from .waiting import tell_health

DEFAULT_N = 100


class Options(NamedTuple):
    """Options of one evaluation."""

    environment: str
    args: dict[str, Any]
    n: int | None
    seed: int
    inputs: str
    slice: Slice
    repeat: int
    grouped: bool
    address: str
    server: dict[str, Any]
    """Arguments of this command's own server; empty with an address."""
    wait_s: float
    in_flight: int
    call: dict[str, Any]
    """Options of each call."""
    passed_from: float
    most_errors: int | None
    output: str
    resume: bool
    retry_errors: bool
    transport: Transport
    run_name: str = ""
    """Each rollout has a key that begins with it; empty: none has one."""

    def run(self) -> dict[str, Any]:
        """The options that decide what the rollouts are asked, besides their inputs."""
        asked = ("model", "model_name", "sampling_args", "state_columns")
        about = {name: self.call[name] for name in asked}
        size = self.repeat if self.grouped else None
        return {**about, "environment": self.environment, "args": self.args, "group": size}


async def evaluation(options: Options, stop: Stop) -> Result:
    """Run an evaluation, and return its summary and exit code."""
    set_title(f"trio-envserve eval of {options.environment}")
    state = _State(options)
    with trio.CancelScope() as work:
        stop.on_first = work.cancel
        async with Output.opened(
            options.output, run=options.run(), must_exist=options.resume
        ) as state.output:
            try:
                await _with_server(options, stop, state)
            except* ServerNotClosed as problem:
                # It has closed as far as it can, and the results are here.
                stop.not_closed = next(_leaves(problem))
            if not stop.asked.is_set():
                await state.output.finish()
    return _result(options, stop, state)


@dataclasses.dataclass
class _State:
    """The results of an evaluation at its end, however it ends."""

    options: Options
    output: Output = dataclasses.field(default_factory=Output)
    evaluation: Evaluation | None = None
    asked: int = 0
    resumed: int = 0
    served: str = ""
    """The environment by the server's own word."""
    counters: ClientCounters = dataclasses.field(default_factory=ClientCounters)


def _leaves(group: BaseExceptionGroup[ServerNotClosed]) -> Iterator[ServerNotClosed]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one


async def _with_server(options: Options, stop: Stop, state: _State) -> None:
    if not options.address and not state.output.told():
        await check_reached(options.call["model"])
    async with _server(options, stop) as server:
        address = options.address or (server.address if server else "")
        limits = ClientLimits(start_s=options.wait_s, recovery_s=options.wait_s)
        async with open_client(
            address, name="eval", limits=limits, transport=options.transport,
            caller=caller_of(options.run_name, options.run()),
            curve=asked_curve() if options.address else None,
        ) as client:  # fmt: skip
            try:
                prepared = await _prepare(options, stop, client, server)
                await _run(options, client, prepared, state)
            finally:
                state.counters = client.counters()
                if stop.asked.is_set():
                    say(f"{stop.why}: cancelling pending rollouts (again to stop at once)")


def _result(options: Options, stop: Stop, state: _State) -> Result:
    evaluation = state.evaluation or Evaluation(Plan(()), Tally())
    tally, progress = evaluation.tally, evaluation.progress
    figures = tally.summary()
    problem = evaluation.not_written or state.output.problem
    summary = {
        **figures,
        "seconds": round(progress.seconds, 3),
        "rate": round(progress.rate, 3),
        "retries": retries(state.counters, figures["rerun"]),
        "asked": state.asked,
        "resumed": state.resumed,
        "interrupted": stop.asked.is_set(),
        "gave_up": evaluation.gave_up,
        "unwritten": evaluation.unwritten,
        "write_error": None if problem is None else str(problem),
        "environment": state.served or options.environment,
        "spec": options.environment,
        "model": options.call["model"],
        "model_name": options.call["model_name"],
        "address": options.address or None,
        "output": options.output or None,
        "run_name": options.run_name or None,
    }
    _say_what_stands_out(options, stop, state, evaluation, summary)
    if stop.asked.is_set():
        return Result(stop.interrupted_code, summary)
    if stop.not_closed is not None:
        return Result(AT_ONCE, summary)
    if problem is not None:
        return Result(UNWRITTEN, summary)
    return Result(ROLLOUT_ERRORS if tally.errors else OK, summary)


def _say_what_stands_out(
    options: Options, stop: Stop, state: _State, evaluation: Evaluation, summary: dict[str, Any]
) -> None:
    tally = evaluation.tally
    if stop.asked.is_set():
        say(_how_far(stop, state, len(tally.found)))
    if evaluation.gave_up:
        say(f"stopped by --limit-errors: {options.most_errors} rollouts ended in errors")
    if summary["write_error"]:
        say(f"{summary['write_error']}: {summary['unwritten']} results that came are not in it")
    elif summary["unwritten"]:
        say(f"{summary['unwritten']} large results that came last are not in {options.output}")
    if (stop.asked.is_set() or summary["write_error"]) and (kept := state.output.kept):
        say(f"the results are in {kept}; the same command goes on from there")
    if tally.errors:
        say(f"{tally.errors} of {state.asked} rollouts ended in errors")
        for (kind, *_), rollouts in tally.failed().items():
            failure = rollouts[0].failure
            assert failure is not None
            raised = f"{short_type(failure.type)}: " if failure.type else ""
            say(f"the first {kind}: {raised}{failure.message} ({failure.verdict})")
            traceback = tally.first_tracebacks.get(failure.kind, "")
            # Other kinds have this package's.
            if traceback and kind == "RolloutFailed":
                say(f"its traceback:\n{traceback.rstrip()}")
    left_out = summary["rewards_left_out"]
    if left_out["not_a_number"]:
        types = ", ".join(left_out["types"])
        say(f"{left_out['not_a_number']} rewards are no numbers ({types}) and count for no mean")
    for what in ("nan", "infinite"):
        if left_out[what]:
            say(f"{left_out[what]} rewards are {what} and count for no mean")
    if left_out["missing"] and left_out["missing"] == tally.results:
        say('no result has a reward: a result is a mapping such as {"reward": 1.0}')


def _how_far(stop: Stop, state: _State, found: int) -> str:
    if not state.asked:
        return f"interrupted by {stop.why} before anything was asked for: nothing ran"
    return f"interrupted by {stop.why}: {found} of {state.asked} rollouts came back"


@asynccontextmanager
async def _server(options: Options, stop: Stop) -> AsyncIterator[Server | None]:
    """This command's own server, if no address was given."""
    if options.address:
        yield None
        return
    async with open_server(options.environment, **options.server) as server:
        stop.kill = server.kill
        yield server


class _Prepared(NamedTuple):
    """The inputs, and the name of the environment that made them."""

    inputs: list[Any]
    name: str = ""


async def _prepare(
    options: Options, stop: Stop, client: Client, server: Server | None
) -> _Prepared:
    """Wait for the inputs and until the server is ready."""
    made: list[_Prepared] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_make_inputs, options, stop, made)
        async with trio.open_nursery() as waiting:
            # Our own server has no limit: it says itself if it will never be ready.
            wait_s = options.wait_s if server is None else math.inf
            waiting.start_soon(tell_health, client, wait_s)
            if server is not None:
                await server.wait_ready()
            try:
                await client.wait_ready(wait_s)
            except EnvironmentBroken:
                raise
            except ServerNotReady as error:
                how = "; nothing was asked for. --wait-s waits for longer"
                raise ServerNotReady(f"{error}{how}") from error
            waiting.cancel_scope.cancel()
    return made[0]


async def _make_inputs(options: Options, stop: Stop, made: list[_Prepared]) -> None:
    try:
        # Not waited for after a signal: importing an environment may take long.
        made.append(await trio.to_thread.run_sync(_load_inputs, options, abandon_on_cancel=True))
    except trio.Cancelled:
        stop.left_behind = True
        raise


def _load_inputs(options: Options) -> _Prepared:
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


def _ask_inputs(options: Options, n: int) -> _Prepared:
    python = options.server.get("worker_python")
    if python is not None:
        return _Prepared(*inputs_under(python, options.environment, options.args, n, options.seed))
    try:
        environment = load(options.environment, options.args)
    except ConfigError as error:
        traceback = authors_traceback(options.environment, error)
        if not traceback:
            raise
        # As the server says it, if that gets so far first.
        raise CommandError(f"{options.environment}: {error}\n{traceback}", NOT_STARTED) from None
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
    return _Prepared(inputs, environment.name)


def _check_served(options: Options, name: str, served: str) -> None:
    """CommandError if the server there runs another environment than the one that was named."""
    if name and name != served:
        raise CommandError(
            f"the server at {options.address} runs {served}, not {options.environment} ({name}): "
            f"nothing was asked for. Name what it runs, give its --address, or give inputs for it "
            f"(--inputs FILE)", NOT_STARTED,
        )  # fmt: skip
    if not name and served not in (options.environment, options.environment.rpartition(":")[2]):
        say(f"the server at {options.address} runs {served}, and gets the inputs of the file")


async def _run(options: Options, client: Client, prepared: _Prepared, state: _State) -> None:
    stats = await client.stats()
    state.served = stats.environment
    if options.address and state.served:
        _check_served(options, prepared.name, state.served)
    plan = Plan(prepared.inputs, options.slice.start, options.repeat, options.grouped)
    tally = Tally(passed_from=options.passed_from)
    keys = None
    if options.run_name:
        keys = RunKeys(options.run_name, state.output.told().__getitem__)
        check_server(options.run_name, plan, stats)
    names = state.output.missing(
        plan, tally, retry_errors=options.retry_errors,
        ask_again=bool(options.run_name) and stats.durable,
    )  # fmt: skip
    state.asked, state.resumed = plan.rollouts, len(tally.found)
    if state.resumed:
        say(f"{options.output} has {state.resumed} of {state.asked} results; the rest is run")
    model = options.call["model_name"] or options.call["model"]
    state.evaluation = evaluation = Evaluation(
        plan, tally, file=state.output.file, environment=state.served, model=model,
        run=state.output.run, most_errors=options.most_errors, keys=keys,
    )  # fmt: skip
    title = f"{state.served}, model {model}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_health, client, options.wait_s)
        async with shown(evaluation, client, title, stats):
            await evaluation.run(client, names, options.in_flight, **options.call)
        nursery.cancel_scope.cancel()
    if evaluation.conflict is not None:
        raise ConfigError(conflict_text(options.run_name, evaluation.conflict))
