"""Writing a page while its file is read: no two rollouts are in memory at once."""

from __future__ import annotations

import os
import stat
from importlib.resources import files
from typing import Any, Final, NamedTuple, TextIO

from ...core.errors import ConfigError
from ...pages import assemble, data_text
from ..files import Check, nothing, records, replace_file
from .details import details
from .survey import Survey

_FOLDER: Final = files(__package__)
_MARK: Final = "<!doctype html>\n<!-- a report by trio-envserve -->\n"
_DATA: Final = "<!--data-->\n"


class Written(NamedTuple):
    """The result of writing a page."""

    bytes: int
    cut: int
    """Rollouts of which only a part is in the page."""


def write_report(
    path: str, found: Survey, data: dict[str, Any], most: int | None, check: Check = nothing
) -> Written:
    """Write a page, whole or not at all.  Raises ConfigError if there is another file, or the
    results have changed; NotWritten."""
    _must_be_free(path)
    before, after = _template().split(_DATA)
    cut = 0

    def write(beside: str) -> None:
        nonlocal cut
        with open(beside, "w", encoding="utf-8") as file:
            file.write(before)
            cut = _write_rollouts(file, found, most, check)
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


def _write_rollouts(file: TextIO, found: Survey, most: int | None, check: Check) -> int:
    """Write the texts of all rollouts; of how many only a part."""
    numbers = {entry.place: number for number, entry in enumerate(found.entries)}
    cut = 0
    for place, record, result in records(found.path, check):
        number = numbers.get(place)
        if number is None:
            continue  # a later one counts, or it came meanwhile
        if result.name != found.entries[number].result.name:
            break
        del numbers[place]
        shown = details(record, most)
        cut += bool(shown["left_out"])
        file.write(_element(f"d{number}", shown))
    if numbers:
        raise ConfigError(f"{found.path} has changed while it was read")
    return cut


def _element(name: str, value: Any) -> str:
    return f'<script type="application/json" id="{name}">{data_text(value)}</script>\n'
