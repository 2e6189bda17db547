"""Files of results for those who only read them: which rollouts, and one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..core.errors import ConfigError
from .files import Check, nothing, placed_records, record_of_line
from .records import RolloutResult, digest, result_from
from .table import is_table, read_row, read_table

See: TypeAlias = Callable[[RolloutResult, Mapping[str, Any]], object]
"""Gets a result, and the record that it is of."""


class Entry(NamedTuple):
    """One rollout of a file."""

    place: int
    """Where it is in the file: the first byte of its line, or the number of its row."""
    result: RolloutResult
    """Without the traceback of a failure: there may be many, and they may be large."""
    input: str
    """The digest of its input."""


class Overview(NamedTuple):
    """The content of a file without inputs and values."""

    entries: list[Entry]
    """The last one of each name, in the order of their inputs."""
    about: dict[str, str]
    """``environment`` and ``model``, as the last record says."""


def records(path: str, check: Check = nothing) -> Iterator[tuple[int, dict[str, Any]]]:
    """All records of a file, each with its place.  Raises ConfigError."""
    return enumerate(read_table(path, check)) if is_table(path) else placed_records(path, check)


def overview(path: str, check: Check = nothing, see: See | None = None) -> Overview:
    """The totals of a file.  Raises ConfigError, also if it has no results.  ``see`` gets each
    record on the way."""
    found: dict[tuple[int, int], Entry] = {}
    about: dict[str, str] = {}
    for place, record in records(path, check):
        result = result_from(record)
        known = digest(record.get("input"), is_json=True)
        found[result.name] = Entry(place, _without_traceback(result), known)
        if see is not None:
            see(result, record)
        about = {name: str(record.get(name) or "") for name in ("environment", "model")}
    if not found:
        raise ConfigError(f"{path} has no results")
    return Overview([found[name] for name in sorted(found)], about)


def _without_traceback(result: RolloutResult) -> RolloutResult:
    if result.failure is None:
        return result
    return dataclasses.replace(result, failure=dataclasses.replace(result.failure, traceback=""))


def record_at(path: str, entry: Entry, check: Check = nothing) -> dict[str, Any]:
    """The record of an entry; nothing before it is read again.  Raises ConfigError."""
    try:
        found = (read_row if is_table(path) else record_of_line)(path, entry.place)
        check()
        if result_from(found).name == entry.result.name:
            return found
    except (ConfigError, IndexError) as error:
        raise _changed(path, entry) from error
    raise _changed(path, entry)


def _changed(path: str, entry: Entry) -> ConfigError:
    index, repeat = entry.result.name
    return ConfigError(f"{path} has changed: input {index}, repeat {repeat} is not where it was")


def chosen(
    entries: Iterable[Entry], *, errors: bool = False, index: int | None = None,
    below: float | None = None, above: float | None = None, worst: bool = False,
    best: bool = False, slowest: bool = False,
) -> list[Entry]:  # fmt: skip
    """Those that pass all filters, in the order that is asked for.  A rollout without a
    finite reward passes no filter of rewards, and comes last by reward."""
    found = [
        each
        for each in entries
        if (not errors or each.result.failure is not None)
        and (index is None or each.result.index == index)
        and (below is None or (each.result.score is not None and each.result.score < below))
        and (above is None or (each.result.score is not None and each.result.score > above))
    ]
    if worst or best:
        sign = 1 if worst else -1
        found.sort(key=lambda e: (e.result.score is None, sign * (e.result.score or 0.0)))
    elif slowest:
        found.sort(key=lambda each: -(each.result.duration_s or 0.0))
    return found
