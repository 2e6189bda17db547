"""The marks of :mod:`.cases`, held against what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.cost.cases import MARKS, OURS, Mark
from tests.cost.measure import column, ratios, summary

Rounds = Mapping[str, Mapping[str, "list[dict[str, Any]]"]]
"""By case and contender: the figures of each round."""


def reached(rounds: Rounds) -> list[dict[str, Any]]:
    """Each mark that could be measured: what was wanted, what was got, the finding
    by the median."""
    found = []
    for mark in MARKS:
        values = _values(mark, rounds)
        if values:
            got = summary(values)
            found.append(
                {
                    "case": mark.case,
                    "measure": mark.measure,
                    "against": mark.compared,
                    "wanted": mark.wanted,
                    "got": got,
                    "reached": mark.reached(float(got["median"])),
                }
            )
    return found


def _values(mark: Mark, rounds: Rounds) -> list[float]:
    ours = column(rounds.get(mark.case, {}).get(OURS, []), mark.measure)
    if mark.over:
        other = column(rounds.get(mark.over, {}).get(OURS, []), mark.measure)
    elif mark.against:
        other = column(rounds.get(mark.case, {}).get(mark.against, []), mark.measure)
    else:
        return [value for value in ours if value is not None]
    return ratios(ours, other) if len(ours) == len(other) else []
