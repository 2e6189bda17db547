"""The verb ``report``: a file of results as one page for a browser."""

from __future__ import annotations

import os
from typing import Any

import click
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
from .common import OK, UNWRITTEN, CommandError, Result, Stop, epilog, put, run_verb, say
from .options import json_option


@click.command(epilog=epilog({UNWRITTEN: "the page could not be written"}))
@click.argument("file")
@click.option(
    "-o", "--output", default="", metavar="OUT.html",
    help="Where the page goes; without it beside FILE, as its name with .html.",
)  # fmt: skip
@click.option(
    "--compare", "other", default="", metavar="OTHER",
    help="Show the differences to another file of results of the same inputs: OTHER minus FILE, as "
    "`compare FILE OTHER` has them.",
)  # fmt: skip
@click.option(
    "--pass-reward", "passed_from", type=float, default=1.0, show_default=True, metavar="REWARD",
    help="The reward from which on a rollout counts as passed, for pass@k.",
)  # fmt: skip
@click.option("--whole", is_flag=True, help="Cut nothing: all text of every rollout.")
@json_option
def report(
    file: str, output: str, other: str, passed_from: float, whole: bool, as_json: bool
) -> int:
    """Make one page of FILE, which `eval --output` wrote, for a browser.

    \b
    Examples:
      trio-envserve report results.jsonl
      trio-envserve report before.jsonl --compare after.jsonl -o both.html
      trio-envserve report results.parquet --whole

    The page has the summary, the rewards, a timeline of the workers, and every rollout to
    search and read. It is one file and loads nothing, so it opens without a network. Text of a
    long rollout is cut, and says so; --whole has all of it. Only a report is ever overwritten.
    """  # noqa: D301  # click wants the character itself
    path = output or f"{os.path.splitext(file)[0]}.html"

    def make() -> tuple[Survey, int | None, Written]:
        found = survey(file, check)
        most = None if whole else most_chars(len(found.entries))
        data = page_data(found, passed_from=passed_from, most=most)
        if other:
            compared = compare(found.entries, overview(other, check).entries, shown=None)
            data["compared"] = compared_data(other, compared)
        try:
            return found, most, write_report(path, found, data, most, check)
        except NotWritten as error:
            raise CommandError(str(error), UNWRITTEN) from error

    async def main(stop: Stop) -> Result:
        with trio.CancelScope() as scope:
            stop.on_first = scope.cancel
            found, most, written = await trio.to_thread.run_sync(make)
        if stop.asked.is_set():
            return Result(stop.interrupted_code, {})
        if found.is_cut_off:
            say(f"{file}: the last line is not whole, and is left out")
        if written.cut:
            say(f"{written.cut} rollouts are cut at {most:,} characters; --whole has all of them")
        if not as_json:
            put(f"{path}: {len(found.entries)} rollouts, {written.bytes / 1e6:.1f} MB")
        summary: dict[str, Any] = {
            "file": file, "output": path, "rollouts": len(found.entries), "bytes": written.bytes,
            "cut_at": most, "cut": written.cut, "line_left_out": found.is_cut_off,
        }  # fmt: skip
        return Result(OK, summary)

    return run_verb(main, as_json=as_json)
