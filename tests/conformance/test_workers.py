"""This project's own worker conforms, its mutants do not; nor does what is no worker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.conformance.caught import WORKERS_CAUGHT
from trio_envserve.lab.conformance.cases import select
from trio_envserve.lab.conformance.findings import CaseResult
from trio_envserve.lab.conformance.run import ConformanceReport
from trio_envserve.lab.conformance.workers import (
    WORKER_CASES,
    Subject,
    WorkerOptions,
    conform_worker,
)

INPUTS = {"input": {"any": "value"}, "long": "wait", "failing": "fail"}
OWN = "tests.conformance.worker_env:answer"
PATIENCE_S = 60.0
"""For a right worker on a busy machine."""


async def judged(
    subject: Subject, *patterns: str, patience_s: float = PATIENCE_S
) -> ConformanceReport:
    cases = select(patterns, among=WORKER_CASES)
    with trio.fail_after(600):
        return await conform_worker(WorkerOptions(subject, cases, patience_s))


def failures(report: ConformanceReport) -> list[tuple[str, str, str]]:
    return [(each.case.name, each.expected, each.seen) for each in report.failed]


@pytest.mark.real
@pytest.mark.slow
async def test_the_projects_own_worker_passes_every_case():
    report = await judged(Subject([], OWN, {}, INPUTS))
    assert failures(report) == []
    assert report.of(CaseResult.SKIPPED) == []
    assert report.judged == "this package's own worker"


@pytest.mark.real
async def test_the_raw_worker_passes_every_case_for_which_it_has_inputs():
    program = Path(__file__).parent.parent / "protocol" / "raw_worker.py"
    subject = Subject([sys.executable, str(program)], None, {}, {"input": [1, 2]})
    report = await judged(subject)
    assert failures(report) == []
    assert len(report.of(CaseResult.SKIPPED)) == 5


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("mutant", "case"), WORKERS_CAUGHT.items())
async def test_a_mutant_of_the_worker_does_not_conform(mutant: str, case: str):
    environment = "tests.conformance.worker_env:mutant"
    subject = Subject([], environment, {"name": mutant}, INPUTS)
    report = await judged(subject, case, patience_s=5.0)
    assert [each.case.name for each in report.failed] == [case]
    assert report.failed[0].expected != "a case that ends"  # it is the worker that failed


@pytest.mark.real
@pytest.mark.parametrize(
    ("program", "seen"),
    [
        ("raise SystemExit(5)", "it exited with status 5; it said nothing"),
        (
            "import os, socket, time\n"
            "link = socket.socket(fileno=int(os.environ['TRIO_ENVSERVE_LINK_FD']))\n"
            "link.send(b'no frame at all')\n"
            "time.sleep(100)",
            "a frame with the flags",
        ),
        (
            "import os, socket, time\n"
            "link = socket.socket(fileno=int(os.environ['TRIO_ENVSERVE_LINK_FD']))\n"
            "link.send(b'\\1\\1i' b'\\0\\1h')\n"
            "time.sleep(100)",
            "69",
        ),
    ],
)
async def test_what_is_no_worker_fails_and_is_told_why(program: str, seen: str):
    subject = Subject([sys.executable, "-c", program], None, {}, INPUTS)
    report = await judged(subject, "a-dispatch-gets*")
    (finding,) = report.failed
    assert seen in finding.seen


@pytest.mark.real
async def test_cases_without_their_input_are_skipped():
    inputs: dict[str, Any] = {"input": 1}
    report = await judged(Subject([], OWN, {}, inputs), "a-stop-ends*", "a-failed*", "*exits*")
    marks = {each.case.name: (each.mark, each.seen) for each in report.findings}
    assert marks["a-stop-ends-what-runs"] == (CaseResult.SKIPPED, "no --long-input was given")
    assert marks["a-failed-rollout-is-an-error-record"][1] == "no --failing-input was given"
    assert marks["retired-it-exits-with-status-0"][0] is CaseResult.PASSED
