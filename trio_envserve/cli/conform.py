"""The verb ``conform``: judges whether a server, or a worker, follows the protocol."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from ..core.errors import ConfigError
from ..core.limits import KeyLimits, ServerLimits
from ..host.workers import parse_command
from ..lab.conformance.cases import CASES, select
from ..lab.conformance.findings import Case, CaseResult, Finding, describe
from ..lab.conformance.run import ConformanceReport, NotServed, Options
from ..lab.conformance.run import conform as judge
from ..lab.conformance.workers import WORKER_CASES, Subject, WorkerOptions, conform_worker
from ..options import argument, option
from ..pages.tables import Table
from ..server.options import limits_by_name, pairs
from .common import AT_ONCE, NOT_STARTED, OK, CommandError, Result, StopRequest
from .render import progress, say
from .verbs import VerbOptions, verb


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conform(VerbOptions):
    """The options of ``conform``."""

    address: str | None = argument("The server to judge.", None, metavar="[ADDRESS]")
    case: tuple[str, ...] = option(
        (), "Only cases whose name matches. It is a pattern as for files.", metavar="PATTERN",
        common=True,
    )  # fmt: skip
    only_list: bool = option(
        False, "Show the cases, and judge nothing.", flag="--list", common=True
    )
    no_faults: bool = option(False, "Leave out the cases that use the fault proxy.", common=True)
    wait_s: float = option(10.0, "How long to wait until the server is ready.", above=0)
    patience_s: float = option(
        5.0, "How long a case waits for what it expects of the server, or worker.", above=0
    )
    limits: Mapping[str, Any] = option(
        dict, "A limit of the server, as given to serve, e.g. lease_s=4. Cases "
        "about a limit are skipped without it.", flag="--limit", metavar="NAME=VALUE",
        parse=pairs, common=True,
    )  # fmt: skip
    restart_command: str = option(
        "", "Kills the server and starts it anew at ADDRESS. It ends then; cases about a restart "
        "are skipped without it.", metavar="COMMAND", common=True,
    )  # fmt: skip
    worker_command: str | None = option(
        None, "Judge this worker in the place of a server. It is the command that serve would run.",
        metavar="COMMAND", common=True,
    )  # fmt: skip
    args: Mapping[str, Any] = option(
        dict, "An argument for the worker's environment, as given to serve.",
        flag="--arg", metavar="KEY=VALUE", parse=pairs,
    )  # fmt: skip
    input: str | None = option(
        None, "An input that the worker answers in a second.", metavar="JSON", common=True
    )
    long_input: str | None = option(
        None, "An input that runs until it is cancelled.", metavar="JSON"
    )
    failing_input: str | None = option(
        None, "An input with which the rollout fails.", metavar="JSON"
    )


@verb(
    Conform,
    {
        OK: "every case that could be judged has passed",
        AT_ONCE: "a case failed",
        NOT_STARTED: "there is no server, or not one that serves the environment of the cases",
    },
)
async def conform(asked: Conform, stop: StopRequest) -> Result:
    """Judge the server at ADDRESS, or a worker, by the protocol, from outside, case by case.

    The server may be of any make. The cases send messages right and wrong, late,
    doubled, lost and hostile; the last ones go through a proxy that cuts connections.
    The server must still be alive five seconds after each case. It must serve an
    environment that counts its runs:

      trio-envserve serve trio_envserve.lab.conformance.environment:Conformance --arg directory=d

    or one that does the same; docs/conformance.md says how.

    With --worker-command a worker in any language is judged: each case starts the
    command and plays the server. Cases that need another input are skipped without it.

    Examples:
      trio-envserve conform tcp://127.0.0.1:5555
      trio-envserve conform tcp://127.0.0.1:5555 --case '*cancel*' --json
      trio-envserve conform tcp://127.0.0.1:5555 --limit lease_s=4 --limit queue=64
      trio-envserve conform tcp://127.0.0.1:5555 --restart-command './restart-server'
      trio-envserve conform --worker-command 'node worker.mjs' --input '{"text": "a b"}'
      trio-envserve conform --list
    """
    worker = asked.worker_command
    among = WORKER_CASES if worker is not None else CASES
    cases = select(asked.case, faults=not asked.no_faults, among=among)
    if asked.only_list:
        rows = [(case.name, case.section, case.guarantee) for case in cases]
        table = Table(f"{len(cases)} cases", ("case", "section", "guarantee"), rows)
        return Result(OK, {"cases": [describe(case) for case in cases]}, [table])
    if worker is not None and asked.address is None:
        of_worker = WorkerOptions(_subject(worker, asked), cases, asked.patience_s)
        return await _judge(
            worker, cases, lambda told: conform_worker(dataclasses.replace(of_worker, told=told)),
            stop,
        )  # fmt: skip
    if worker is not None or asked.address is None:
        raise ConfigError("give an ADDRESS, or a --worker-command, or --list")
    limits_by_name(asked.limits, ServerLimits, KeyLimits)  # whether they exist
    restart = None
    if command := parse_command(asked.restart_command or None, "--restart-command"):
        # Standard output has findings.
        restart = functools.partial(trio.run_process, list(command), stdout=2)
    options = Options(
        asked.address, cases, wait_s=asked.wait_s, patience_s=asked.patience_s,
        limits=dict(asked.limits), restart=restart,
    )  # fmt: skip
    return await _judge(
        asked.address, cases, lambda told: judge(dataclasses.replace(options, told=told)), stop
    )


def _subject(command: str, asked: Conform) -> Subject:
    """The worker to judge.  Raises ConfigError."""
    inputs = {"input": asked.input, "long": asked.long_input, "failing": asked.failing_input}
    values: dict[str, Any] = {}
    for name, text in inputs.items():
        if text is not None:
            flag = "--input" if name == "input" else f"--{name}-input"
            try:
                values[name] = json.loads(text)
            except ValueError as error:
                raise ConfigError(f"{flag} is not JSON: {error}") from None
    if "input" not in values:
        raise ConfigError("--input is needed: an input that the worker answers in a second")
    return Subject(parse_command(command), None, dict(asked.args), values)


async def _judge(
    judged: str, cases: Sequence[Case],
    run: Callable[[Callable[[Finding], object]], Awaitable[ConformanceReport]], stop: StopRequest,
) -> Result:  # fmt: skip
    """Judge by ``run``, which tells each finding as it comes."""
    fallen: dict[Case, Finding] = {}
    began_s = trio.current_time()
    # The cases cut connections, so the library's warnings about them are not shown.
    logging.getLogger("trio_envserve").addHandler(logging.NullHandler())

    def told(finding: Finding) -> None:
        fallen[finding.case] = finding

    def how_far() -> str:
        failed = sum(each.mark is CaseResult.FAILED for each in fallen.values())
        return f"conform: {len(fallen)}/{len(cases)} cases, {failed} failed"

    def interrupted() -> Result:
        took_s = trio.current_time() - began_s
        found = _told(ConformanceReport(judged, tuple(fallen.values()), took_s))
        say(f"interrupted after {len(fallen)} of {len(cases)} cases")
        return Result(stop.interrupted_code, {**found.summary, "ok": False}, found.shown)

    stop.so_far = interrupted
    async with progress(how_far, lambda: len(fallen) / len(cases)):
        try:
            report = await run(told)
        except NotServed as error:
            raise CommandError(str(error), NOT_STARTED) from None
    return _told(report)


def _told(report: ConformanceReport) -> Result:
    """The result, of which standard error has what failed and what was skipped."""
    for finding in report.findings:
        if finding.mark is CaseResult.FAILED:
            text = f"expected {finding.expected}; seen: {finding.seen}"
            say(f"FAILED {finding.case.name}: {finding.case.line} {text}")
        elif finding.mark is CaseResult.SKIPPED:
            say(f"skipped {finding.case.name}: {finding.seen}")
    shown = [_findings(report), _figures(report)] if report.findings else []
    return Result(AT_ONCE if report.failed else OK, report.to_json(), shown)


# -- for people ---------------------------------------------------------------


def _findings(report: ConformanceReport) -> Table:
    rows = [
        (each.case.name, each.case.section, _shown(each.mark), f"{each.seconds:.2f} s")
        for each in report.findings
    ]
    return Table(report.judged, ("case", "section", "finding", "took"), rows)


def _shown(mark: CaseResult) -> str:
    return "FAILED" if mark is CaseResult.FAILED else mark.value


def _figures(report: ConformanceReport) -> Table:
    rows = [(mark.value, str(len(report.of(mark)))) for mark in CaseResult]
    rows.append(("took", f"{report.seconds:.1f} s"))
    return Table("conforms" if report.ok else "does not conform", (), rows)
