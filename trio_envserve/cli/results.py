"""The verbs ``show``, ``compare`` and ``report``: files of results of ``eval --output``."""

from __future__ import annotations

import base64
import dataclasses
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
import trio

from ..core.errors import ConfigError
from ..evals.comparison import Comparison, as_record, compare
from ..evals.files import Entry, NotWritten, Overview, chosen, overview, record_at
from ..evals.page import Line, page
from ..evals.plain import plain_line
from ..evals.report import (
    Survey,
    Written,
    compared_data,
    most_chars,
    page_data,
    survey,
    write_report,
)
from ..evals.statistics import CONFIDENCE, Paired
from ..evals.tally import shown
from ..options import argument, option
from ..pages.tables import Table
from .common import OK, UNWRITTEN, CommandError, Result, StopRequest
from .render import is_terminal, number_of, rollouts_table, say, say_notes
from .verbs import VerbOptions, verb

STYLES = {
    "title": "bold", "name": "bold cyan", "error": "red", "dim": "dim", "system": "magenta",
    "user": "green", "assistant": "blue", "tool": "yellow",
}  # fmt: skip
LISTED = 1000
"""Most rollouts in a list for people."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Show(VerbOptions):
    """The options of ``show``."""

    file: str = argument("A file of results.")
    errors: bool = option(False, "Only rollouts that ended in errors.", common=True)
    worst: bool = option(False, "The lowest rewards first.", common=True)
    best: bool = option(False, "The highest rewards first.", common=True)
    slowest: bool = option(False, "The longest executions first.", common=True)
    index: int | None = option(None, "Only of input N.", flag="--input", least=0, common=True)
    below: float | None = option(None, "Only rewards below this one.", metavar="REWARD")
    above: float | None = option(None, "Only rewards above this one.", metavar="REWARD")
    number: int | None = option(
        None, "Print the N-th of these rollouts, from 1, and end.", least=1, common=True
    )
    as_list: bool = option(False, "Print a line for each, and end.", flag="--list", common=True)
    full: bool = option(False, "Shorten nothing.", common=True)


@verb(Show)
async def show(asked: Show, stop: StopRequest) -> Result:
    """Page through the rollouts in FILE, which `eval --output` wrote.

    Examples:
      trio-envserve show results.jsonl
      trio-envserve show results.jsonl --errors --list
      trio-envserve show results.jsonl --worst --number 1
      trio-envserve show results.parquet --input 3 --json

    On a terminal all of them are in the pager (PAGER, or less). Elsewhere there is a list, or
    with --number one page. With --json the last line has the list as
    `rollouts`, or with --number the whole record as `rollout`.
    """
    if asked.worst + asked.best + asked.slowest > 1:
        raise ConfigError("--worst, --best and --slowest are three orders: give one")
    file, number = asked.file, asked.number

    def choose() -> tuple[Overview, list[Entry]]:
        found = overview(file)
        return found, chosen(
            found.entries, errors=asked.errors, worst=asked.worst, best=asked.best,
            slowest=asked.slowest, index=asked.index, below=asked.below, above=asked.above,
        )  # fmt: skip

    found, entries = await trio.to_thread.run_sync(choose)
    say_notes(file, found)
    if number is not None:
        return await _one(asked, number, entries)
    is_seen = is_terminal(sys.stdin, sys.stdout)
    if asked.as_json or asked.as_list or not entries or not is_seen:
        rollouts = [_listed(n, each) for n, each in enumerate(entries, 1)]
        summary = {"file": file, "count": len(entries), "rollouts": rollouts}
        about = ", ".join(filter(None, found.about.values()))
        title = f"{file}: {len(entries)} of {len(found.entries)} rollouts ({about})"
        columns = ("number", "input", "repeat", "reward", "duration_s", "error")
        return Result(OK, summary, [rollouts_table(title, rollouts[:LISTED], *columns)])

    def pages() -> Iterator[str]:
        for n, each in enumerate(entries, 1):
            lines = page(record_at(file, each), which=f"{n} of {len(entries)}", full=asked.full)
            yield f"{page_text(lines)}\n\n"

    # Ctrl-C is the pager's, however often.  It is not ignored, which the pager would inherit.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        await trio.to_thread.run_sync(click.echo_via_pager, pages())
    finally:
        signal.signal(signal.SIGINT, before)
    return Result(OK, {})


async def _one(asked: Show, number: int, entries: Sequence[Entry]) -> Result:
    if number > len(entries):
        raise ConfigError(f"--number {number}: there are {len(entries)} such rollouts")
    record = await trio.to_thread.run_sync(record_at, asked.file, entries[number - 1])
    summary = {"file": asked.file, "number": number, "rollout": _plain(record)}
    lines = page(record, which=f"{number} of {len(entries)}", full=asked.full)
    return Result(OK, summary, [page_text(lines)])


def page_text(lines: Sequence[Line]) -> str:
    """A page, with colours for a terminal."""
    if not is_terminal(sys.stdout):
        return "\n".join(line.text for line in lines)
    from rich.console import Console

    console = Console(force_terminal=True)
    with console.capture() as shown:
        console.print(rich_page(lines))
    return shown.get().rstrip("\n")


def rich_page(lines: Sequence[Line]) -> Any:
    """A page as rich prints it."""
    from rich.text import Text

    return Text("\n").join(Text(line.text, STYLES.get(line.style, "")) for line in lines)


def _listed(number: int, entry: Entry) -> dict[str, Any]:
    result = entry.result
    return {
        "number": number, **shown(result), "reward": result.score,
        "metrics": _plain({**result.metrics}),
    }  # fmt: skip


def _plain(record: Any) -> Any:
    """A record as JSON: one out of a table has bytes, and may have NaN."""
    if isinstance(record, bytes):
        return base64.b64encode(record).decode("ascii")
    if isinstance(record, dict):
        return {key: _plain(item) for key, item in record.items()}
    if isinstance(record, list):
        return [_plain(item) for item in record]
    if isinstance(record, float) and not math.isfinite(record):
        return {"$float": str(record)}
    return record


# -- compare ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(VerbOptions):
    """The options of ``compare``."""

    first: str = argument("A file of results.", metavar="A")
    second: str = argument("Another one, of the same inputs.", metavar="B")


@verb(Compare, name="compare")
def compare_files(asked: Compare) -> Result:
    """Compare two files of results, input by input: the differences are B minus A.

    Examples:
      trio-envserve compare before.jsonl after.jsonl
      trio-envserve compare before.parquet after.jsonl --json

    Rollouts of one input are taken together by their mean, and only inputs that are the same
    in both files are compared. The interval is that of the mean of the differences; if it has
    no 0 in it, the difference is more than chance would often make.
    """
    files = asked.first, asked.second
    a, b = (overview(file) for file in files)
    for file, one in zip(files, (a, b), strict=True):
        say_notes(file, one)
    found = compare(a.entries, b.entries)
    for count, what in (
        (found.other_inputs, "inputs of the same number differ, and are left out"),
        (found.only_first, f"inputs are only in {asked.first}, and are left out"),
        (found.only_second, f"inputs are only in {asked.second}, and are left out"),
        (found.unrewarded, "inputs have no reward in one of the files, and are left out"),
    ):
        if count:
            say(f"{count} {what}")
    about = tuple(
        f"{file}: {', '.join(filter(None, one.about.values()))}"
        for file, one in zip(files, (a, b), strict=True)
    )
    return Result(OK, {"files": [*files], **as_record(found)}, compared_tables(found, about))


def compared_tables(found: Comparison, names: tuple[str, ...]) -> list[Table]:
    """The comparison for people."""
    means = [
        (label, number_of(one.mean), number_of(one.std_error), str(one.inputs))
        for label, one in zip(names, (found.first, found.second), strict=True)
    ]
    columns = ("B - A", "mean", f"{CONFIDENCE:.0%} interval", "inputs", "better", "worse", "same")
    rows = [_compared("reward", found.rewards)]
    rows += [_compared(plain_line(name, 40), each) for name, each in found.metrics.items()]
    made = [
        Table("mean reward of each", ("", "mean", "standard error", "inputs"), means),
        Table("difference, input by input", columns, rows),
    ]
    if found.changed:
        changed = [
            (str(i), number_of(a), number_of(b), number_of(b - a)) for i, a, b in found.changed
        ]
        made.append(Table("inputs that changed most", ("input", "A", "B", "B - A"), changed))
    return made


def _compared(name: str, one: Paired) -> tuple[str, ...]:
    found = one.difference
    interval = "-" if found.low is None else f"{number_of(found.low)} to {number_of(found.high)}"
    counts = map(str, (found.inputs, one.better, one.worse, one.same))
    return name, number_of(found.mean), interval, *counts


# -- report -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(VerbOptions):
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


@verb(ReportOptions, {UNWRITTEN: "the page could not be written"})
async def report(asked: ReportOptions, stop: StopRequest) -> Result:
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
        found = survey(file)
        say_notes(file, found.overview)
        most = None if asked.whole else most_chars(len(found.overview.entries))
        data = page_data(found, passed_from=asked.pass_reward, most=most)
        if other:
            others = overview(other)
            say_notes(other, others)
            compared = compare(found.overview.entries, others.entries, shown=None)
            data["compared"] = compared_data(other, compared)
        try:
            return found, most, write_report(path, found, data, most)
        except NotWritten as error:
            raise CommandError(str(error), UNWRITTEN) from error

    found, most, written = await trio.to_thread.run_sync(make)
    if written.cut:
        say(f"{written.cut} rollouts are cut at {most:,} characters; --whole has all of them")
    rollouts = len(found.overview.entries)
    line = f"{path}: {rollouts} rollouts, {written.bytes / 1e6:.1f} MB"
    summary: dict[str, Any] = {
        "file": file, "output": path, "rollouts": rollouts, "bytes": written.bytes,
        "cut_at": most, "cut": written.cut, "line_left_out": found.overview.is_cut_off,
    }  # fmt: skip
    return Result(OK, summary, [line])
