"""The verb ``conform``: whether a server does what the protocol document says."""

from __future__ import annotations

import dataclasses
import functools
import logging
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence

import click
import trio

from ..core.errors import ConfigError
from ..lab.conformance.cases import select
from ..lab.conformance.run import NotServed, Options, Report
from ..lab.conformance.run import conform as judge
from ..lab.conformance.verdicts import Case, Mark, Verdict, describe
from .common import (
    NOT_STARTED,
    CommandError,
    Result,
    Stop,
    json_option,
    pairs,
    put,
    run_verb,
    say,
    server_limits,
)
from .render import Table, progress, show_tables

FAILED = 1
"""Exit code when a case failed."""

_EPILOG = """\b
Exit codes:
  0  every case that could be judged has passed
  1  a case failed
  2  wrong usage
  3  no server there, or not one that serves the environment of the cases
  130, 143  interrupted (Ctrl-C, SIGTERM)
"""


@click.command(epilog=_EPILOG)
@click.argument("address", metavar="ADDRESS", required=False)
@click.option(
    "--case",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only cases whose name matches, as of file names. Repeatable.",
)
@click.option("--list", "only_list", is_flag=True, help="Show the cases, and judge nothing.")
@click.option("--no-faults", is_flag=True, help="Leave out the cases through the fault proxy.")
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="How long to wait for a server that is ready.",
)
@click.option(
    "--patience-s",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="How long a case waits for what it expects of the server.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="A limit of the server, as given to serve, e.g. lease_s=4. Repeatable. "
    "Cases about a limit are skipped without it.",
)
@click.option(
    "--restart-command",
    metavar="COMMAND",
    help="Kills the server and starts it anew at ADDRESS, and ends then. "
    "Cases about a restart are skipped without it.",
)
@json_option
def conform(
    address: str | None, patterns: tuple[str, ...], only_list: bool, no_faults: bool,
    wait_s: float, patience_s: float, limits: tuple[str, ...], restart_command: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Judge the server at ADDRESS by the protocol, from outside, case by case.

    Any server that speaks the wire: its clients' side is tried with messages right
    and wrong, late, doubled, lost and hostile, the last cases through a proxy that
    cuts connections. After each case the server must be alive five seconds later, too.
    It must serve an environment that counts its runs:

    \b
      trio-envserve serve trio_envserve.lab.conformance.environment:Conformance \\
        --arg directory=runs
    or one that does the same; docs/conformance.md says what that is.

    \b
    Examples:
      trio-envserve conform tcp://127.0.0.1:5555
      trio-envserve conform tcp://127.0.0.1:5555 --case '*cancel*' --json
      trio-envserve conform tcp://127.0.0.1:5555 --limit lease_s=4 --limit queue=64
      trio-envserve conform tcp://127.0.0.1:5555 --restart-command './restart-server'
      trio-envserve conform --list
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        cases = select(patterns, faults=not no_faults)
        if only_list:
            if not as_json:
                show_tables([_listed(cases)], put)
            return Result(0, {"cases": [describe(case) for case in cases]})
        if address is None:
            raise ConfigError("an ADDRESS is needed, or --list")
        options = Options(
            address, cases, wait_s=wait_s, patience_s=patience_s, limits=_limits(limits),
            restart=_restart(restart_command) if restart_command else None,
        )  # fmt: skip
        return await _judge(options, stop, as_json=as_json)

    return run_verb(main, as_json=as_json)


def _limits(given: Sequence[str]) -> dict[str, float]:
    """What is said of the server's limits.  Raises ConfigError."""
    server_limits(given)  # whether there are such
    return pairs("--limit", given)


def _restart(command: str) -> Callable[[], Awaitable[object]]:
    """Runs the command that restarts the server.  Raises ConfigError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--restart-command: {error}") from error
    return functools.partial(trio.run_process, words, stdout=2)  # the other is for verdicts


async def _judge(options: Options, stop: Stop, *, as_json: bool) -> Result:
    address, cases = options.address, options.cases
    fallen: dict[Case, Verdict] = {}
    report: Report | None = None
    began_s = trio.current_time()
    # What the library says of lost connections is what this is about, and no news.
    logging.getLogger("trio_envserve").addHandler(logging.NullHandler())
    with trio.CancelScope() as working, progress(len(cases), "conform", sys.stderr) as advance:
        stop.on_first = working.cancel

        def told(verdict: Verdict) -> None:
            if verdict.case not in fallen:
                advance(verdict.mark is Mark.FAILED)
            fallen[verdict.case] = verdict

        try:
            report = await judge(dataclasses.replace(options, told=told))
        except NotServed as error:
            raise CommandError(str(error), NOT_STARTED) from None
    interrupted = report is None
    if report is None:
        report = Report(address, tuple(fallen.values()), trio.current_time() - began_s)
    if not as_json and report.verdicts:
        show_tables([_verdicts(report), _figures(report)], put)
    for verdict in report.verdicts:
        if verdict.mark is Mark.FAILED:
            text = f"expected {verdict.expected}; seen: {verdict.seen}"
            say(f"FAILED {verdict.case.name}: {verdict.case.line} {text}")
        elif verdict.mark is Mark.SKIPPED:
            say(f"skipped {verdict.case.name}: {verdict.seen}")
    if interrupted:
        say(f"interrupted after {len(fallen)} of {len(cases)} cases")
        return Result(stop.interrupted_code, {**report.to_json(), "ok": False})
    return Result(FAILED if report.failed else 0, report.to_json())


# -- for people ---------------------------------------------------------------


def _listed(cases: Sequence[Case]) -> Table:
    rows = [(case.name, case.section, case.guarantee) for case in cases]
    return Table(f"{len(cases)} cases", ("case", "section", "guarantee"), rows)


def _verdicts(report: Report) -> Table:
    rows = [
        (each.case.name, each.case.section, _shown(each.mark), f"{each.seconds:.2f} s")
        for each in report.verdicts
    ]
    return Table(report.address, ("case", "section", "verdict", "took"), rows)


def _shown(mark: Mark) -> str:
    return "FAILED" if mark is Mark.FAILED else mark.value


def _figures(report: Report) -> Table:
    rows = [(mark.value, str(len(report.of(mark)))) for mark in Mark]
    rows.append(("took", f"{report.seconds:.1f} s"))
    return Table("conforms" if report.ok else "does not conform", (), rows)
