"""The verb ``report``: a file of results as one page for a browser."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import trio

from ..evals.comparison import compare
from ..evals.files import NotWritten, overview
from ..evals.report import (
    Survey,
    Written,
    compared_data,
    most_chars,
    page_data,
    survey,
    write_report,
)
from ..evals.run import check
from ..options import argument, option
from .common import OK, UNWRITTEN, CommandError, Result, Stop, put, say
from .verbs import Asked, verb


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(Asked):
    """The options of ``report``."""

    file: str = argument("A file of results.")
    output: str = option(
        "", "Where the page goes. Without it beside FILE, as its name with .html.", short="-o",
        metavar="OUT.html", common=True,
    )  # fmt: skip
    compare: str = option(
        "", "Show the differences to another file of results. It is of the same inputs; OTHER "
        "minus FILE, as `compare FILE OTHER` has them.", metavar="OTHER", common=True,
    )  # fmt: skip
    pass_reward: float = option(
        1.0, "The reward from which on a rollout counts as passed, for pass@k.", metavar="REWARD"
    )
    whole: bool = option(False, "Cut nothing: all text of every rollout.", common=True)


@verb(Report, {UNWRITTEN: "the page could not be written"})
async def report(asked: Report, stop: Stop) -> Result:
    """Make one page of FILE, which `eval --output` wrote, for a browser.

    Examples:
      trio-envserve report results.jsonl
      trio-envserve report before.jsonl --compare after.jsonl -o both.html
      trio-envserve report results.parquet --whole

    The page has the summary, the rewards, a timeline of the workers, and every rollout to
    search and read. It is one file and loads nothing, so it opens without a network. Text of a
    long rollout is cut, and says so; --whole has all of it. Only a report is ever overwritten.
    """
    file, other = asked.file, asked.compare
    path = asked.output or f"{os.path.splitext(file)[0]}.html"

    def make() -> tuple[Survey, int | None, Written]:
        found = survey(file, check)
        most = None if asked.whole else most_chars(len(found.entries))
        data = page_data(found, passed_from=asked.pass_reward, most=most)
        if other:
            compared = compare(found.entries, overview(other, check).entries, shown=None)
            data["compared"] = compared_data(other, compared)
        try:
            return found, most, write_report(path, found, data, most, check)
        except NotWritten as error:
            raise CommandError(str(error), UNWRITTEN) from error

    with trio.CancelScope() as scope:
        stop.on_first = scope.cancel
        found, most, written = await trio.to_thread.run_sync(make)
    if stop.asked.is_set():
        return Result(stop.interrupted_code, {})
    if found.is_cut_off:
        say(f"{file}: the last line is not whole, and is left out")
    if written.cut:
        say(f"{written.cut} rollouts are cut at {most:,} characters; --whole has all of them")
    if not asked.as_json:
        put(f"{path}: {len(found.entries)} rollouts, {written.bytes / 1e6:.1f} MB")
    summary: dict[str, Any] = {
        "file": file, "output": path, "rollouts": len(found.entries), "bytes": written.bytes,
        "cut_at": most, "cut": written.cut, "line_left_out": found.is_cut_off,
    }  # fmt: skip
    return Result(OK, summary)
