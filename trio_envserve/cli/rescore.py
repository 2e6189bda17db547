"""The verb ``rescore``: scores the rollouts in a file of results anew.

Theory of operation
-------------------
This is an evaluation whose inputs are stored rollouts: a server of this command's own runs the
environment's scorer on each in its workers, at most once, and results are written as they come
(:mod:`trio_envserve.evals.run`).  A rollout that failed has nothing to be scored, and stays as it
is.  The file that is read is never written to; the one that is written is continued like any file
of results.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import trio

from ..client import open_client
from ..core.errors import ConfigError
from ..core.limits import ClientLimits
from ..evals.files import is_table, lines_of, overview
from ..evals.records import Name, RolloutResult, stored_digest, usage_words
from ..evals.run import Evaluation, StoredPlan
from ..evals.tally import ResultsTally
from ..logs import set_title
from ..models.registry import check_roles
from ..options import argument, option
from ..pages.tables import Table
from ..server import open_server
from ..server.options import completed
from .common import (
    AT_ONCE,
    NOT_STARTED,
    ROLLOUT_ERRORS,
    UNWRITTEN,
    CommandError,
    Result,
    StopRequest,
    check_named,
)
from .evaluate import (
    EvaluationOptions,
    WrittenResults,
    ask_environment,
    check_reached,
    left_out_rows,
    say_left_out,
    watched,
)
from .options import role_option
from .render import number_of, say, say_notes
from .verbs import server_options, verb


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rescore(EvaluationOptions):
    """The options of ``rescore``."""

    file: str = argument("A file of results.")
    environment: str = argument("What scores them.", metavar="ENV")
    output: str = option(
        "", "Write results to this file as they come. It is as of `eval`, with the old reward "
        "beside the new one, and is continued if it is there. Without this option only the "
        "summary is printed.", metavar="FILE2", common=True,
    )  # fmt: skip
    roles: Mapping[str, str] | None = role_option(common=True)
    server: Mapping[str, Any] = server_options(
        "workers", "args", "capacity", "limits", "worker_python", "worker_environ"
    )
    retry_errors: bool = option(
        False, "When a file is continued, score rollouts again whose scorer failed.", common=True
    )
    max_retries: int = option(0, "How often the worker repeats a scorer that failed.", least=0)
    execution_s: float | None = option(None, "How long one scorer may run.", above=0)

    def run(self) -> dict[str, Any]:
        """The options that decide how rollouts are scored."""
        return {"rescored_by": self.environment, "args": self.args, "roles": dict(self.roles or {})}

    def check(self) -> None:
        """Raise ConfigError for options that do not go together."""
        if not os.path.exists(self.file):
            raise ConfigError(f"{self.file}: there is no such file of results")
        if self.retry_errors and not self.output:
            raise ConfigError("--retry-errors is for a file that is continued: give --output")
        written = [self.output, lines_of(self.output)] if is_table(self.output) else [self.output]
        for path in written:
            if path and path != "-" and os.path.exists(path) and os.path.samefile(path, self.file):
                raise ConfigError(
                    f"--output {self.output} would write to the file that is read: name another one"
                )


@verb(
    Rescore,
    {
        AT_ONCE: "stopped at once by a second signal",
        NOT_STARTED: "could not start: the environment cannot be made, or has another name",
        ROLLOUT_ERRORS: "finished, but some rollouts could not be scored",
        UNWRITTEN: "results could not be written",
    },
    interrupted="interrupted (Ctrl-C, SIGTERM), with the results so far",
)
async def rescore(asked: Rescore, stop: StopRequest) -> Result:
    """Score the rollouts in FILE, which `eval --output` wrote, anew by the scorer of ENV.

    Examples:
      trio-envserve rescore results.jsonl essays.py:Essay --output better.jsonl
      trio-envserve rescore results.jsonl essays.py:Essay --role judge=big --json

    ENV is named as for `serve`, and has a method rescore(rollout, value): it gets the input of a
    rollout as rollout.input and its result as value, and returns a reward. The model that was
    measured is not asked; a scorer may ask others in their roles. Rollouts that ended in errors
    stay as they are. A scorer that fails is an error of its rollout, never a reward of 0.

    FILE stays as it is. FILE2 has for each rollout what FILE has, the new reward, and the old one
    as rescored_from. After Ctrl-C the same command scores what is missing.

    With --json, the last line of standard output has at least rescored (how many), mean_before,
    mean_reward (over the same rollouts), changed, errors, failed_before.
    """
    asked.check()
    asked.name_endpoints()
    if "worker_python" not in asked.server:
        check_named(asked.environment, asked.args)
    check_roles(asked.roles or {})
    own = {**completed(**asked.server), **asked.start_logging("server")}
    set_title(f"trio-envserve rescore of {asked.file}")
    plan = await trio.to_thread.run_sync(_read, asked.file)
    await stop.leave_behind(_check_scorer, asked)
    state = WrittenResults(stop)
    stop.so_far = lambda: _result(asked, plan, state)
    async with state.writing(asked.output, asked.run()):
        await check_reached(*(asked.roles or {}).values())
        await _run(asked, own, plan, state)
    return _result(asked, plan, state)


def _read(path: str) -> StoredPlan:
    """Read a file for the first time.  Runs in a thread.  Raises ConfigError."""
    stored: dict[Name, str] = {}

    def see(result: RolloutResult, record: Mapping[str, Any]) -> None:
        stored[result.name] = stored_digest(record)

    found = overview(path, see)
    say_notes(path, found)
    return StoredPlan(path, found.entries, stored)


def _check_scorer(asked: Rescore) -> None:
    """Raise ConfigError if the environment has no scorer, or none for these roles; CommandError if
    it is broken.  Runs in a thread."""
    roles = asked.roles or {}
    check_roles(roles, ask_environment(asked, asked.environment, roles)["roles"])


async def _run(
    asked: Rescore, own: dict[str, Any], plan: StoredPlan, state: WrittenResults
) -> None:
    tally = ResultsTally()
    async with open_server(asked.environment, **own) as server:
        state.stop.kill = server.kill
        async with open_client(server.address, name="rescore") as client:
            await server.wait_ready()
            stats = await client.stats()
            state.served = stats.environment
            _check_environment(asked, plan, state.served)
            names = state.output.missing(plan, tally, retry_errors=asked.retry_errors)
            state.resumed = len(tally.found)
            if state.resumed:
                say(f"{asked.output} has {state.resumed} of {plan.rollouts} results; "
                    "the rest is scored")  # fmt: skip
            if state.output.outdated:
                say(f"{asked.output} has {state.output.outdated} results that do not say they are "
                    f"of the rollouts in {asked.file}: these are scored anew")  # fmt: skip
            state.evaluation = evaluation = Evaluation(
                plan, tally, file=state.output.file, environment=state.served, run=state.output.run
            )
            title, wait_s = f"{asked.file}, by {state.served}", ClientLimits().recovery_s
            async with watched(evaluation, client, stats, title, wait_s, "rescore"):
                await evaluation.run(
                    client, names, asked.in_flight, roles=asked.roles,
                    max_retries=asked.max_retries, execution_s=asked.execution_s,
                )  # fmt: skip


def _check_environment(asked: Rescore, plan: StoredPlan, served: str) -> None:
    """CommandError if rollouts of another environment are in the file."""
    others = {plan.result(name).environment for name in plan.names()} - {"", served}
    if others:
        raise CommandError(
            f"{asked.file} has rollouts of {', '.join(sorted(others))}, and {asked.environment} is "
            f"{served}: nothing was scored. Name the environment that made them; if this one "
            f"is to score them, give it the name: name = {min(others)!r}", NOT_STARTED,
        )  # fmt: skip


# -- its summary -------------------------------------------------------------------------


def _result(asked: Rescore, plan: StoredPlan, state: WrittenResults) -> Result:
    found = list(state.evaluation.tally.found.values())
    now = [one for one in found if plan.may_run(one.name)]
    summary = {
        **_compared(plan, [one for one in now if one.failure is None]),
        "rollouts": plan.rollouts,
        "failed_before": len(found) - len(now),
        "errors": sum(one.failure is not None for one in now),
        **state.summary(asked.environment, asked.roles, asked.output),
        "file": asked.file,
    }
    _say_what_stands_out(asked, state, now, summary)
    return Result(state.exit_code(summary), summary, [_table(summary)])


def _compared(plan: StoredPlan, scored: list[RolloutResult]) -> dict[str, Any]:
    """Rewards before and now, of the rollouts that were scored.  The means are of those that have a
    finite reward in both, unless none has."""
    before, now, now_in_both = ResultsTally(), ResultsTally(), ResultsTally()
    higher = lower = others = 0
    both = [one for one in scored if None not in (one.score, plan.result(one.name).score)]
    for one in both or scored:
        before.add(plan.result(one.name))
        now_in_both.add(one)
    for one in scored:
        old = plan.result(one.name)
        now.add(one)
        if one.score is None or old.score is None:
            others += one.score is not old.score
        else:
            higher += one.score > old.score
            lower += one.score < old.score
    figures = now.summary()
    return {
        "rescored": len(scored),
        "mean_before": before.summary()["mean_reward"],
        "mean_reward": now_in_both.summary()["mean_reward"],
        "changed": higher + lower + others,
        "higher": higher,
        "lower": lower,
        "rewards_left_out": figures["rewards_left_out"],
        "usage": {name: n for name, n in figures["usage"].items() if "." in name},
    }


def _say_what_stands_out(
    asked: Rescore, state: WrittenResults, now: list[RolloutResult], summary: Mapping[str, Any]
) -> None:
    total = summary["rollouts"]
    if state.stop.asked.is_set():
        say(f"interrupted by {state.stop.why}: {len(now) + summary['failed_before']} of {total} "
            "rollouts are done")  # fmt: skip
    state.say_unwritten(summary)
    if summary["failed_before"]:
        say(f"{summary['failed_before']} of {total} rollouts ended in errors before, and stay so")
    say_left_out(summary["rewards_left_out"])
    failed = [one for one in now if one.failure is not None]
    if failed:
        say(f"{len(failed)} of {total} rollouts could not be scored")
        state.say_first(failed[0])
        if asked.output:
            say("--retry-errors with the same command scores them again")


def _table(summary: Mapping[str, Any]) -> Table:
    rows = [
        ("rollouts", str(summary["rollouts"])),
        ("scored anew", str(summary["rescored"])),
        ("could not be scored", str(summary["errors"])),
        ("ended in errors before", str(summary["failed_before"])),
        ("mean reward before", number_of(summary["mean_before"])),
        ("mean reward", number_of(summary["mean_reward"])),
        ("rewards that changed", f"{summary['changed']} ({summary['higher']} higher, "
         f"{summary['lower']} lower)"),
        *left_out_rows(summary["rewards_left_out"]),
        *((usage_words(name), f"{n:,}") for name, n in summary["usage"].items() if n),
        ("seconds", f"{summary['seconds']:.2f}"),
    ]  # fmt: skip
    return Table(f"{summary['file']}, scored anew by {summary['environment']}", (), rows)
