"""A failure made small, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

COLUMNS = 96
MOST_LINES = 25
"""Most lines of a schedule that are shown."""


def story(
    violation: str, *, guarantee: str, promise: str, run: str, before: tuple[int, int], tried: int,
    schedule: Iterable[str], drawing: Iterable[str], again: str,
) -> list[str]:  # fmt: skip
    """All that there is to see, in a hundred columns.

    ``promise`` is what the guarantee says, ``run`` which run it was, ``before`` how many
    requests and kinds of fault it had, ``again`` what runs it again.
    """
    what, *more = violation.split("\n")
    requests, kinds = before
    return [
        f"{guarantee}: {promise}" if promise else guarantee,
        f"  broken: {what.removeprefix(f'{guarantee} ')}",
        *(f"  {line}" for line in more),
        f"  {run}",
        "",
        f"The schedule, shrunk from {_count(requests, 'request')} and "
        f"{_count(kinds, 'kind')} of fault in {_count(tried, 'run')}:",
        *(f"  {line}" for line in schedule),
        "",
        *drawing,
        "",
        f"The whole run again: {again}",
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def timetable(moments: Iterable[tuple[float, str]]) -> list[str]:
    """The moments of a run, in order; not endlessly many."""
    shown = sorted(moments)
    lines: list[str] = []
    for at_s, what in shown[:MOST_LINES]:
        lines += wrap(f"{at_s:6.2f} s  {what}", COLUMNS, subsequent_indent=" " * 12)
    if len(shown) > MOST_LINES:
        lines.append(f"          and {len(shown) - MOST_LINES} more")
    return lines


def listed(what: str, items: Sequence[str]) -> list[str]:
    """``what: one, another``, if there are any."""
    line = f"{what}: {', '.join(items)}"
    return wrap(line, COLUMNS, subsequent_indent="  ") if items else []
