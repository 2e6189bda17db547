"""A file of results as a page: one file of HTML that opens without a network.

Theory of operation
-------------------
The results are read twice, record by record, since all of them may be larger than memory.
The first time :func:`survey` keeps what the tables and the charts show; the second time
:func:`write_report` writes each rollout's text into the page as it comes, in an element of its
own: no two rollouts are in memory at once.  A browser reads such an element when its rollout is
opened, or searched.  :func:`details` bounds what of a text goes into the page.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple, TextIO

from ...core.errors import ConfigError
from ...pages import assemble, data_text
from ..comparison import Comparison, as_record
from ..files import Overview, overview, records, replace_file
from ..page import Line, body, plain_value
from ..plain import cut_middle, plain_line
from ..records import Name, RolloutResult, failure_line, result_from, usage_words
from ..tally import ResultsTally

MOST_CHARS = 20_000
"""Most characters of one rollout."""

FEWEST_CHARS = 2_000
"""Fewest characters of each rollout, however many there are."""

ALL_CHARS = 64_000_000
"""Most characters of all rollouts together, as long as each has :data:`FEWEST_CHARS`."""

_PART_CHARS = 200
"""The least that is left of a part that is cut; else whole parts are left out."""

_NAMES = 100
_NAME_CHARS = 60


def most_chars(rollouts: int) -> int:
    """Most characters of each rollout on a page of this number of rollouts."""
    return max(FEWEST_CHARS, min(MOST_CHARS, ALL_CHARS // max(1, rollouts)))


def details(record: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    """A rollout in at most ``most`` characters of text, as plain data."""
    result = result_from(record)
    lines, left_out = fitted(body(record), most)
    usage = {usage_words(name): number for name, number in result.usage.items()}
    return {
        "metrics": _named(result.metrics), "usage": _named(usage), "left_out": left_out,
        "lines": [[line.style, line.names, line.text.lstrip("\n")] for line in lines],
    }  # fmt: skip


def _named(numbers: Mapping[str, float]) -> list[tuple[str, float | str]]:
    return [
        (plain_line(name, _NAME_CHARS), number_text(n)) for name, n in [*numbers.items()][:_NAMES]
    ]


def number_text(number: float | None) -> Any:
    """A number as JSON has it: what is not finite as text."""
    return str(number) if number is not None and not math.isfinite(number) else number


def fitted(lines: Sequence[Line], most: int | None) -> tuple[list[Line], int]:
    """Lines of at most ``most`` characters, notes of what was cut apart, and how many
    characters were left out.

    The longest parts are cut first, in their middle.  Only if there are too many parts for
    that, those in the middle are left out: how a rollout began and ended matters most.
    """
    total = sum(len(line.text) for line in lines)
    if most is None or total <= most:
        return list(lines), 0
    ends = max(1, most // _PART_CHARS // 2)
    first, between, last = lines, lines[:0], lines[:0]
    if len(lines) > 2 * ends:
        first, between, last = lines[:ends], lines[ends:-ends], lines[-ends:]
    longest = _share([len(line.text) for line in (*first, *last)], most)
    kept = [_cut(line, longest) for line in first]
    if between:
        kept.append(Line(f"[… {len(between):,} parts, cut here …]", "dim"))
    kept += [_cut(line, longest) for line in last]
    whole = sum(min(len(line.text), longest) for line in (*first, *last))
    return kept, total - whole


def _share(sizes: Sequence[int], most: int) -> int:
    """The size to which all larger ones are cut, so that together they are ``most``."""
    left = most
    for at, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - at)
        if size > share:
            return share
        left -= size
    return max(sizes)


def _cut(line: Line, longest: int) -> Line:
    return line._replace(text=cut_middle(line.text, longest, "cut here"))


# -- what is known of all rollouts ----------------------------------------------

_INPUT_CHARS = 120
_ERROR_CHARS = 120
_WORKER_CHARS = 40
_SEEN_CHARS = 4 * _INPUT_CHARS

_TOKENS = ("prompt_tokens", "completion_tokens")


class Survey(NamedTuple):
    """The first reading of a file."""

    path: str
    overview: Overview
    inputs: dict[Name, str]
    """The beginning of each input."""


def survey(path: str) -> Survey:
    """Read a file for the first time.  Raises ConfigError."""
    inputs: dict[Name, str] = {}

    def see(result: RolloutResult, record: Mapping[str, Any]) -> None:
        inputs[result.name] = _beginning(record.get("input"))

    return Survey(path, overview(path, see), inputs)


def _beginning(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(plain_value(value), ensure_ascii=False)
    return plain_line(text[:_SEEN_CHARS], _INPUT_CHARS)


def page_data(found: Survey, *, passed_from: float, most: int | None) -> dict[str, Any]:
    """The plain data of a page, without the rollouts' texts."""
    tally = ResultsTally(passed_from=passed_from)
    for entry in found.overview.entries:
        tally.add(entry.result)
    summary = tally.summary()
    summary["usage"] = {usage_words(name): n for name, n in summary["usage"].items()}
    return {
        "file": os.path.basename(found.path),
        "about": [plain_line(each, _INPUT_CHARS) for each in found.overview.about.values() if each],
        "notes": found.overview.notes, "cut": most, "summary": _plain(summary),
        "columns": _columns(found), "compared": None,
    }  # fmt: skip


def _columns(found: Survey) -> dict[str, Sequence[Any]]:
    """The table of rollouts, column by column."""
    results = [entry.result for entry in found.overview.entries]
    return {
        "index": [one.index for one in results],
        "repeat": [one.repeat for one in results],
        "reward": [number_text(one.reward) for one in results],
        "error": [_error(one) for one in results],
        "worker": [plain_line(one.worker, _WORKER_CHARS) for one in results],
        "seconds": [one.duration_s for one in results],
        "waited": [one.took_s for one in results],
        "ended": [one.ended_s for one in results],
        "executions": [one.executions for one in results],
        "tokens": [_tokens(one) for one in results],
        "input": [found.inputs[one.name] for one in results],
    }


def _error(one: RolloutResult) -> str:
    if one.failure is None:
        return ""
    return plain_line(failure_line(one.failure.to_record()), _ERROR_CHARS)


def _tokens(one: RolloutResult) -> float | None:
    counts = [one.usage[name] for name in _TOKENS if name in one.usage]
    return sum(counts) if counts else None


def compared_data(other: str, found: Comparison) -> dict[str, Any]:
    """The differences to another file, as plain data."""
    record = as_record(found)
    changed = [[index, first, second] for index, first, second in found.changed]
    metrics = [
        {"name": plain_line(name, _WORKER_CHARS), **each}
        for name, each in record["metrics"].items()
    ]
    shown: dict[str, Any] = _plain(
        {**record, "metrics": metrics, "changed": changed, "file": os.path.basename(other)}
    )
    return shown


def _plain(value: Any) -> Any:
    """A value with harmless text, and with numbers that JSON has."""
    if isinstance(value, dict):
        return {plain_line(str(key), _INPUT_CHARS): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return plain_line(value, _INPUT_CHARS)
    return number_text(value) if isinstance(value, float) else value


# -- the page -------------------------------------------------------------------

_FOLDER: Final = files(__package__)
_MARK: Final = "<!doctype html>\n<!-- a report by trio-envserve -->\n"
_DATA: Final = "<!--data-->\n"


class Written(NamedTuple):
    """The result of writing a page."""

    bytes: int
    cut: int
    """Rollouts of which only a part is in the page."""


def write_report(path: str, found: Survey, data: dict[str, Any], most: int | None) -> Written:
    """Write a page, whole or not at all.  Raises ConfigError if there is another file, or the
    results have changed; NotWritten."""
    _must_be_free(path)
    before, after = _template().split(_DATA)
    cut = 0

    def write(beside: str) -> None:
        nonlocal cut
        with open(beside, "w", encoding="utf-8") as file:
            file.write(before)
            cut = _write_rollouts(file, found, most)
            file.write(_element("data", data))
            file.write(after)

    replace_file(path, write)
    return Written(os.path.getsize(path), cut)


def _template() -> str:
    parts = [(_FOLDER / f"report.{kind}").read_text("utf-8") for kind in ("html", "css", "js")]
    return _MARK + assemble(parts[0], style=parts[1], script=parts[2]).text


def _must_be_free(path: str) -> None:
    """Only a report is ever overwritten."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as file:
                if file.read(len(_MARK)) == _MARK.encode():
                    return
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    raise ConfigError(f"{path} exists, and is no report; name another file with --output")


def _write_rollouts(file: TextIO, found: Survey, most: int | None) -> int:
    """Write the texts of all rollouts; of how many only a part."""
    entries = found.overview.entries
    numbers = {entry.at: number for number, entry in enumerate(entries)}
    cut = 0
    for at, record, result in records(found.path):
        number = numbers.get(at)
        if number is None:
            continue  # a later one counts, or it came meanwhile
        if result.name != entries[number].result.name:
            break
        del numbers[at]
        shown = details(record, most)
        cut += bool(shown["left_out"])
        file.write(_element(f"d{number}", shown))
    if numbers:
        raise ConfigError(f"{found.path} has changed while it was read")
    return cut


def _element(name: str, value: Any) -> str:
    return f'<script type="application/json" id="{name}">{data_text(value)}</script>\n'
