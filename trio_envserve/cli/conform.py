"""The verb ``conform``: judges whether a server, or a worker, follows the protocol."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import click
import trio

from ..core.errors import ConfigError
from ..host.workers import parse_command
from ..lab.conformance.cases import CASES, select
from ..lab.conformance.findings import Case, Finding, Mark, describe
from ..lab.conformance.run import NotServed, Options, Report
from ..lab.conformance.run import conform as judge
from ..lab.conformance.workers import WORKER_CASES, Subject, WorkerOptions, conform_worker
from .common import NOT_STARTED, CommandError, Result, Stop, exit_codes, put, run_verb, say
from .options import json_option, pairs, server_limits
from .render import Table, progress, show_tables

FAILED = 1
"""Exit code when a case failed."""

_EPILOG = exit_codes(
    "every case that could be judged has passed",
    "a case failed",
    "there is no server, or not one that serves the environment of the cases",
)


@click.command(epilog=_EPILOG)
@click.argument("address", metavar="ADDRESS", required=False)
@click.option(
    "--case", "patterns", multiple=True, metavar="PATTERN",
    help="Only cases whose name matches, with a pattern as for files. Repeatable.",
)  # fmt: skip
@click.option("--list", "only_list", is_flag=True, help="Show the cases, and judge nothing.")
@click.option("--no-faults", is_flag=True, help="Leave out the cases that use the fault proxy.")
@click.option(
    "--wait-s", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True,
    help="How long to wait until the server is ready.",
)  # fmt: skip
@click.option(
    "--patience-s", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True,
    help="How long a case waits for what it expects of the server, or worker.",
)  # fmt: skip
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=VALUE",
    help="A limit of the server, as given to serve, e.g. lease_s=4. Repeatable. "
    "Cases about a limit are skipped without it.",
)  # fmt: skip
@click.option(
    "--restart-command", metavar="COMMAND",
    help="Kills the server and starts it anew at ADDRESS, and ends then. "
    "Cases about a restart are skipped without it.",
)  # fmt: skip
@click.option(
    "--worker-command", metavar="COMMAND",
    help="Judge this worker in the place of a server: the command that serve would run.",
)  # fmt: skip
@click.option(
    "--arg", "args", multiple=True, metavar="NAME=VALUE",
    help="An argument for the worker's environment, as given to serve. Repeatable.",
)  # fmt: skip
@click.option("--input", metavar="JSON", help="An input that the worker answers in a second.")
@click.option("--long-input", metavar="JSON", help="An input that runs until it is cancelled.")
@click.option("--failing-input", metavar="JSON", help="An input with which the rollout fails.")
@json_option
def conform(
    address: str | None, patterns: tuple[str, ...], only_list: bool, no_faults: bool,
    wait_s: float, patience_s: float, limits: tuple[str, ...], restart_command: str | None,
    worker_command: str | None, args: tuple[str, ...], input: str | None, long_input: str | None,
    failing_input: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Judge the server at ADDRESS, or a worker, by the protocol, from outside, case by case.

    The server may be of any make. The cases send messages right and wrong, late,
    doubled, lost and hostile; the last ones go through a proxy that cuts connections.
    The server must still be alive five seconds after each case. It must serve an
    environment that counts its runs:

    \b
      trio-envserve serve trio_envserve.lab.conformance.environment:Conformance \\
        --arg directory=runs
    or one that does the same; docs/conformance.md says how.

    With --worker-command a worker in any language is judged: each case starts the
    command and plays the server. Cases that need another input are skipped without it.

    \b
    Examples:
      trio-envserve conform tcp://127.0.0.1:5555
      trio-envserve conform tcp://127.0.0.1:5555 --case '*cancel*' --json
      trio-envserve conform tcp://127.0.0.1:5555 --limit lease_s=4 --limit queue=64
      trio-envserve conform tcp://127.0.0.1:5555 --restart-command './restart-server'
      trio-envserve conform --worker-command 'node worker.mjs' --input '{"text": "a b"}'
      trio-envserve conform --list
    """  # noqa: D301  # click wants the character itself
    inputs = {"input": input, "long": long_input, "failing": failing_input}

    async def main(stop: Stop) -> Result:
        among = WORKER_CASES if worker_command is not None else CASES
        cases = select(patterns, faults=not no_faults, among=among)
        if only_list:
            if not as_json:
                show_tables([_listed(cases)], put)
            return Result(0, {"cases": [describe(case) for case in cases]})
        if (address is None) == (worker_command is None):
            raise ConfigError("give an ADDRESS, or a --worker-command, or --list")
        run: _Run
        if worker_command is not None:
            subject = _subject(worker_command, args, inputs)
            run = functools.partial(_run_worker, WorkerOptions(subject, cases, patience_s))
            return await _judge(worker_command, cases, run, stop, as_json=as_json)
        assert address is not None
        options = Options(
            address, cases, wait_s=wait_s, patience_s=patience_s, limits=_limits(limits),
            restart=_restart(restart_command) if restart_command else None,
        )  # fmt: skip
        run = functools.partial(_run_server, options)
        return await _judge(address, cases, run, stop, as_json=as_json)

    return run_verb(main, as_json=as_json)


_Run: TypeAlias = Callable[[Callable[[Finding], object]], Awaitable[Report]]
"""Judges, and reports each finding as it comes."""


async def _run_server(options: Options, told: Callable[[Finding], object]) -> Report:
    try:
        return await judge(dataclasses.replace(options, told=told))
    except NotServed as error:
        raise CommandError(str(error), NOT_STARTED) from None


async def _run_worker(options: WorkerOptions, told: Callable[[Finding], object]) -> Report:
    return await conform_worker(dataclasses.replace(options, told=told))


def _subject(command: str, args: Sequence[str], inputs: Mapping[str, str | None]) -> Subject:
    """The worker to judge.  Raises ConfigError."""
    values: dict[str, Any] = {}
    for name, text in inputs.items():
        if text is not None:
            option = "--input" if name == "input" else f"--{name}-input"
            try:
                values[name] = json.loads(text)
            except ValueError as error:
                raise ConfigError(f"{option} is not JSON: {error}") from None
    if "input" not in values:
        raise ConfigError("--input is needed: an input that the worker answers in a second")
    return Subject(parse_command(command), None, pairs("--arg", args), values)


def _limits(given: Sequence[str]) -> dict[str, float]:
    """The server's limits, as given.  Raises ConfigError."""
    server_limits(given)  # whether they exist
    return pairs("--limit", given)


def _restart(command: str) -> Callable[[], Awaitable[object]]:
    """Runs the command that restarts the server.  Raises ConfigError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--restart-command: {error}") from error
    return functools.partial(trio.run_process, words, stdout=2)  # standard output has findings


async def _judge(
    judged: str, cases: Sequence[Case], run: _Run, stop: Stop, *, as_json: bool
) -> Result:
    fallen: dict[Case, Finding] = {}
    report: Report | None = None
    began_s = trio.current_time()
    # The cases cut connections, so the library's warnings about them are not shown.
    logging.getLogger("trio_envserve").addHandler(logging.NullHandler())
    with trio.CancelScope() as working, progress(len(cases), "conform", sys.stderr) as advance:
        stop.on_first = working.cancel

        def told(finding: Finding) -> None:
            if finding.case not in fallen:
                advance(finding.mark is Mark.FAILED)
            fallen[finding.case] = finding

        report = await run(told)
    interrupted = report is None
    if report is None:
        report = Report(judged, tuple(fallen.values()), trio.current_time() - began_s)
    if not as_json and report.findings:
        show_tables([_findings(report), _figures(report)], put)
    for finding in report.findings:
        if finding.mark is Mark.FAILED:
            text = f"expected {finding.expected}; seen: {finding.seen}"
            say(f"FAILED {finding.case.name}: {finding.case.line} {text}")
        elif finding.mark is Mark.SKIPPED:
            say(f"skipped {finding.case.name}: {finding.seen}")
    if interrupted:
        say(f"interrupted after {len(fallen)} of {len(cases)} cases")
        return Result(stop.interrupted_code, {**report.to_json(), "ok": False})
    return Result(FAILED if report.failed else 0, report.to_json())


# -- for people ---------------------------------------------------------------


def _listed(cases: Sequence[Case]) -> Table:
    rows = [(case.name, case.section, case.guarantee) for case in cases]
    return Table(f"{len(cases)} cases", ("case", "section", "guarantee"), rows)


def _findings(report: Report) -> Table:
    rows = [
        (each.case.name, each.case.section, _shown(each.mark), f"{each.seconds:.2f} s")
        for each in report.findings
    ]
    return Table(report.judged, ("case", "section", "finding", "took"), rows)


def _shown(mark: Mark) -> str:
    return "FAILED" if mark is Mark.FAILED else mark.value


def _figures(report: Report) -> Table:
    rows = [(mark.value, str(len(report.of(mark)))) for mark in Mark]
    rows.append(("took", f"{report.seconds:.1f} s"))
    return Table("conforms" if report.ok else "does not conform", (), rows)
