"""The judge: it reads the files of the environment, and what the callers were told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ...core.terms import Verdict
from .environment import read_runs


class Told(NamedTuple):
    """The answer to the caller of a key."""

    verdict: Verdict | None
    """None: it has the value."""
    text: str
    rerun: bool
    """Whether it had consented to further executions."""


class Judged(NamedTuple):
    """The findings of the judge."""

    problems: list[str]
    values: int
    may_have_run: int
    starts: int
    again: int
    """Executions beyond the first of a key."""


def judge(directory: Path, told: Mapping[str, Told], asked: int, *, lost: set[str]) -> Judged:
    """``lost``: the hosts that were lost at some time: only their work may have run."""
    problems = [] if len(told) == asked else [f"{asked} were asked, {len(told)} were answered"]
    starts = again = 0
    for key, answer in told.items():
        runs = [run for run in read_runs(directory / f"{key}.runs") if "began" in run]
        starts += len(runs)
        again += max(0, len(runs) - 1)
        problems += [f"{key}: two live executions: {run}" for run in runs if run["live"]]
        if len(runs) > 1 and not answer.rerun:
            problems.append(f"{key}: ran {len(runs)} times without consent")
        if answer.verdict is None and not runs:
            problems.append(f"{key}: it has a value and never ran")
        if answer.verdict is Verdict.DID_NOT_RUN and runs:
            problems.append(f"{key}: it ran, and its caller was told that it did not")
        if answer.verdict is Verdict.RAN_AND_FAILED:
            problems.append(f"{key}: no code of it fails: {answer.text}")
        if answer.verdict is Verdict.MAY_HAVE_RUN and not any(
            f"@{name}" in answer.text for name in lost
        ):
            problems.append(f"{key}: it may have run, and no lost host had it: {answer.text}")
    verdicts = [answer.verdict for answer in told.values()]
    return Judged(
        problems, verdicts.count(None), verdicts.count(Verdict.MAY_HAVE_RUN), starts, again
    )
