"""The page of one rollout when it is opened, and the bounds of its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..page import Line, body
from ..plain import plain_line
from ..records import result_from, usage_words

MOST_CHARS = 20_000
"""Most characters of one rollout."""

FEWEST_CHARS = 2_000
"""So many of each, however many rollouts there are."""

ALL_CHARS = 64_000_000
"""Of all rollouts together, as long as each has :data:`FEWEST_CHARS`."""

_PART_CHARS = 200
"""The least that is left of a part that is cut; else whole parts are left out."""

_NAMES = 100
_NAME_CHARS = 60


def most_chars(rollouts: int) -> int:
    """How many characters of each rollout go into a page of so many."""
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
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return max(sizes)


def _cut(line: Line, longest: int) -> Line:
    if len(line.text) <= longest:
        return line
    head, tail = longest - longest // 2, longest // 2
    left_out = len(line.text) - longest
    end = line.text[-tail:] if tail else ""
    return line._replace(text=f"{line.text[:head]}\n[… {left_out:,} characters, cut here …]\n{end}")
