"""Runs cases about a worker: each starts it anew, and plays the router to it.

::

    from trio_envserve.lab.conformance.worker_bench import Subject
    from trio_envserve.lab.conformance.worker_run import WorkerOptions, conform_worker

    subject = Subject(["node", "worker.mjs"], None, {}, {"input": {"text": "one two"}})
    report = trio.run(conform_worker, WorkerOptions(subject))
    assert report.ok, report.failed
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence

import trio

from .findings import Case, Finding
from .judging import Report, judge_case
from .worker_bench import Subject, open_worker_bench
from .worker_cases import ANNOUNCING, UNANSWERED, WORKER_CASES

ABREAST = 2
"""Cases at a time: each has a worker of its own, so none sees another."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The cases to judge, and how patiently."""

    subject: Subject
    cases: Sequence[Case] = WORKER_CASES
    patience_s: float = 10.0
    """How long to wait for anything that a case expects, the first hello too."""
    told: Callable[[Finding], object] = lambda finding: None
    """Called with each finding as it falls."""


async def conform_worker(options: WorkerOptions) -> Report:
    """Judge a worker."""
    subject = options.subject
    findings: dict[Case, Finding] = {}
    began_s = trio.current_time()
    left = iter(options.cases)

    async def run(case: Case) -> None:
        announce_bytes = 1 if case in ANNOUNCING else None
        async with open_worker_bench(
            subject, patience_s=options.patience_s, announce_bytes=announce_bytes
        ) as bench:
            if case not in UNANSWERED:
                await bench.ready()
            await case.main(bench)

    async def judge() -> None:
        for case in left:
            lacking = [f"--{each}-input" for each in case.needs if each not in subject.inputs]
            reason = f"no {' and no '.join(lacking)} was given" if lacking else ""
            findings[case] = await judge_case(case, run, reason)
            options.told(findings[case])

    async with trio.open_nursery() as nursery:
        for _ in range(ABREAST):
            nursery.start_soon(judge)
    name = shlex.join(subject.command) or "this package's own worker"
    judged = tuple(findings[case] for case in options.cases)
    return Report(name, judged, trio.current_time() - began_s)
