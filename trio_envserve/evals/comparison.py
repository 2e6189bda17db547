"""Two evaluations of the same inputs, input by input."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..core.errors import ConfigError
from .files import Entry
from .statistics import CONFIDENCE, Estimate, Paired, estimate, input_means, paired

SHOWN = 5
"""Number of the most changed inputs that are named."""


class Comparison(NamedTuple):
    """The common inputs of two evaluations, and their differences."""

    first: Estimate
    """Over all inputs of the first, as in its own summary."""
    second: Estimate
    rewards: Paired
    metrics: dict[str, Paired]
    """The differences over inputs, of each metric that both have."""
    other_inputs: int
    """Inputs that both have under one number, but that are not the same."""
    only_first: int
    only_second: int
    unrewarded: int
    """Inputs that are the same in both, and have no reward in one: all failed there, say."""
    changed: list[tuple[int, float, float]]
    """Inputs that changed most: number, mean in the first, mean in the second."""


def compare(
    first: Iterable[Entry], second: Iterable[Entry], *, shown: int | None = SHOWN
) -> Comparison:
    """Compare two files.  ConfigError if they have no input with rewards in common.  Of the
    inputs that changed ``shown`` are named, or all."""
    a, b = list(first), list(second)
    inputs_a, inputs_b = map(_inputs, (a, b))
    # A file that was put together of two may have several inputs under one number.
    same = {i for i, known in inputs_a.items() if len(known) == 1 and inputs_b.get(i) == known}
    means_a, means_b = (
        input_means((e.result.index, e.result.score) for e in one) for one in (a, b)
    )

    def metric(entries: list[Entry], name: str) -> dict[int, float]:
        some = (e.result for e in entries if e.result.index in same)
        return input_means((one.index, one.metrics.get(name)) for one in some)

    common_a = {index: mean for index, mean in means_a.items() if index in same}
    common_b = {index: mean for index, mean in means_b.items() if index in same}
    if not common_a.keys() & common_b.keys():
        raise ConfigError("the files have no input in common that has a reward in both")
    names = {n for one in a for n in one.result.metrics} & {
        n for one in b for n in one.result.metrics
    }
    changed = sorted(
        ((i, common_a[i], common_b[i]) for i in common_a.keys() & common_b.keys()),
        key=lambda one: (-abs(one[2] - one[1]), one[0]),
    )
    return Comparison(
        first=estimate(list(means_a.values())), second=estimate(list(means_b.values())),
        rewards=paired(common_a, common_b),
        metrics={n: paired(metric(a, n), metric(b, n)) for n in sorted(names)[:100]},
        other_inputs=len(inputs_a.keys() & inputs_b.keys()) - len(same),
        only_first=len(inputs_a.keys() - inputs_b.keys()),
        only_second=len(inputs_b.keys() - inputs_a.keys()),
        unrewarded=len(same) - len(common_a.keys() & common_b.keys()),
        changed=[one for one in changed if one[1] != one[2]][:shown],
    )  # fmt: skip


def _inputs(entries: Iterable[Entry]) -> dict[int, set[str]]:
    """The digests of the inputs of each number."""
    found: dict[int, set[str]] = defaultdict(set)
    for each in entries:
        found[each.result.index].add(each.input)
    return found


def as_record(found: Comparison) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "confidence": CONFIDENCE, "first": found.first._asdict(), "second": found.second._asdict(),
        "rewards": _paired(found.rewards),
        "metrics": {name: _paired(each) for name, each in found.metrics.items()},
        "other_inputs": found.other_inputs, "only_first": found.only_first,
        "only_second": found.only_second, "unrewarded": found.unrewarded,
        "changed": [
            {"index": index, "first": first, "second": second}
            for index, first, second in found.changed
        ],
    }  # fmt: skip


def _paired(one: Paired) -> dict[str, Any]:
    return {
        **one.difference._asdict(), "better": one.better, "worse": one.worse, "same": one.same,
    }  # fmt: skip
