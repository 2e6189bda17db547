"""The verb ``compare``: two files of results of the same inputs."""

from __future__ import annotations

import dataclasses

import trio

from ..evals.comparison import Comparison, as_record, compare
from ..evals.files import overview
from ..evals.plain import plain_line
from ..evals.run import check
from ..evals.statistics import CONFIDENCE, Paired
from ..options import argument
from .common import OK, Result, Stop, put, say
from .render import Table, show_tables
from .results import shown
from .verbs import Asked, verb


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(Asked):
    """The options of ``compare``."""

    first: str = argument("A file of results.", metavar="A")
    second: str = argument("Another one, of the same inputs.", metavar="B")


@verb(Compare, name="compare")
async def compare_files(asked: Compare, stop: Stop) -> Result:
    """Compare two files of results, input by input: the differences are B minus A.

    Examples:
      trio-envserve compare before.jsonl after.jsonl
      trio-envserve compare before.parquet after.jsonl --json

    Rollouts of one input are taken together by their mean, and only inputs that are the same
    in both files are compared. The interval is that of the mean of the differences; if it has
    no 0 in it, the difference is more than chance would often make.
    """
    in_thread, files = trio.to_thread.run_sync, (asked.first, asked.second)
    with trio.CancelScope() as scope:
        stop.on_first = scope.cancel
        a, b = [await in_thread(overview, file, check) for file in files]
    if stop.asked.is_set():
        return Result(stop.interrupted_code, {})
    found = compare(a.entries, b.entries)
    if found.other_inputs:
        say(f"{found.other_inputs} inputs of the same number differ, and are left out")
    if not asked.as_json:
        about = (
            f"{file}: {', '.join(filter(None, one.about.values()))}"
            for file, one in zip(files, (a, b), strict=True)
        )
        show_tables(tables(found, tuple(about)), put)
    return Result(OK, {"files": [*files], **as_record(found)})


def tables(found: Comparison, names: tuple[str, ...]) -> list[Table]:
    """The comparison for people."""
    means = [
        (label, shown(one.mean), shown(one.std_error), str(one.inputs))
        for label, one in zip(names, (found.first, found.second), strict=True)
    ]
    columns = ("B - A", "mean", f"{CONFIDENCE:.0%} interval", "inputs", "better", "worse", "same")
    rows = [_row("reward", found.rewards)]
    rows += [_row(plain_line(name, 40), each) for name, each in found.metrics.items()]
    made = [
        Table("mean reward of each", ("", "mean", "standard error", "inputs"), means),
        Table("difference, input by input", columns, rows),
    ]
    if found.changed:
        changed = [(str(i), shown(a), shown(b), shown(b - a)) for i, a, b in found.changed]
        made.append(Table("inputs that changed most", ("input", "A", "B", "B - A"), changed))
    return made


def _row(name: str, one: Paired) -> tuple[str, ...]:
    found = one.difference
    interval = "-" if found.low is None else f"{shown(found.low)} to {shown(found.high)}"
    counts = map(str, (found.inputs, one.better, one.worse, one.same))
    return name, shown(found.mean), interval, *counts
