"""Means with their standard errors, pass@k, paired differences, and histograms.

Theory of operation
-------------------
The rollouts of one input resemble each other, so they are no independent samples: each
input is a cluster.  The mean of an evaluation is the mean of the means of its inputs, and
its standard error is that of those means (Miller, "Adding Error Bars to Evals: A
Statistical Approach to Language Model Evaluations", 2024, arXiv:2411.00640).  Two
evaluations of the same inputs are compared input by input, as recommended there, too: what
makes an input hard is then no noise.

pass@k is the unbiased estimator of Chen et al., "Evaluating Large Language Models Trained
on Code", 2021, arXiv:2107.03374.

Intervals use Student's t distribution, which is wider than the normal one where there are
few inputs.
"""

from __future__ import annotations

import bisect
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean over inputs, and how sure it is."""

    mean: float | None
    """Mean over the inputs; None without inputs."""
    std_error: float | None
    """Standard error; None with fewer than two inputs, or where it is too large for a float."""
    inputs: int
    low: float | None
    """The interval around the mean that has the level :data:`CONFIDENCE`."""
    high: float | None


class Paired(NamedTuple):
    """The difference between two evaluations over the inputs that both have."""

    difference: Estimate
    """The mean of second minus first, input by input."""
    better: int
    """Inputs on which the second has the higher mean."""
    worse: int
    same: int


def estimate(means: Sequence[float]) -> Estimate:
    """The mean of the means of inputs, all finite."""
    count = len(means)
    if not count:
        return Estimate(None, None, 0, None, None)
    middle = mean(means)
    if count == 1:
        return Estimate(middle, None, 1, None, None)
    # The deviation of a sample has n - 1 below the root, that of all values n.
    std_error = deviation(means) / math.sqrt(count - 1)
    half = t_quantile((1 + CONFIDENCE) / 2, count - 1) * std_error
    low, high = middle - half, middle + half
    if not (math.isfinite(low) and math.isfinite(high)):
        return Estimate(middle, None, count, None, None)
    return Estimate(middle, std_error, count, low, high)


def mean(values: Sequence[float]) -> float:
    """The mean, also of values whose sum is too large for a float."""
    try:
        return statistics.fmean(values)
    except OverflowError:
        most = max(map(abs, values))
        return statistics.fmean(each / most for each in values) * most


def input_means(numbers: Iterable[tuple[int, float | None]]) -> dict[int, float]:
    """The mean of the finite numbers of each input that has one."""
    found: dict[int, list[float]] = defaultdict(list)
    for index, number in numbers:
        if number is not None and math.isfinite(number):
            found[index].append(number)
    return {index: mean(each) for index, each in found.items()}


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of all values; infinite if it is too large for a float."""
    try:
        return statistics.pstdev(values)
    except OverflowError:
        return math.inf


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Paired:
    """Compare two evaluations by the means of their inputs."""
    differences = [_bounded(second[key] - mean) for key, mean in first.items() if key in second]
    better = sum(each > 0 for each in differences)
    worse = sum(each < 0 for each in differences)
    return Paired(estimate(differences), better, worse, len(differences) - better - worse)


def _bounded(value: float) -> float:
    """A difference that is too large for a float as the largest one."""
    return max(-sys.float_info.max, min(sys.float_info.max, value))


def pass_at(k: int, results: int, passed: int) -> float:
    """The chance that at least one of ``k`` rollouts passes, estimated without bias from
    ``results`` of them, of which ``passed`` did.  ``1 <= k <= results``."""
    if not 1 <= k <= results or not 0 <= passed <= results:
        raise ValueError(f"pass@{k} of {results} results, {passed} passed")
    return 1.0 - math.comb(results - passed, k) / math.comb(results, k)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The percentile of values in ascending order, interpolated between the two nearest ones
    (the seventh definition of R. Hyndman and Y. Fan, 1996, numpy's default)."""
    position, hundredths = divmod((len(ordered) - 1) * percent, 100)
    low, high = ordered[position], ordered[min(position + 1, len(ordered) - 1)]
    return low + (high - low) * (hundredths / 100)


# -- Student's t distribution ----------------------------------------------------


def t_quantile(level: float, degrees: int) -> float:
    """The value below which a share ``level`` (0.5 to 1) of the distribution lies."""
    if not 0.5 <= level < 1 or degrees < 1:
        raise ValueError(f"no quantile {level} of {degrees} degrees of freedom")
    if degrees > 1000:  # the same to three digits
        return statistics.NormalDist().inv_cdf(level)
    low, high = 0.0, 1.0
    while _t_below(high, degrees) < level:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def _t_below(t: float, degrees: int) -> float:
    """The share of the distribution below ``t >= 0``: the finite sums for a whole number
    of degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    cos_squared = math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for number in range(1 + odd, degrees + 1, 2):  # degrees // 2 terms
        total += term
        term *= cos_squared * number / (number + 1)
    if odd:
        between = 2 / math.pi * (angle + math.sin(angle) * total)
    else:
        between = math.sin(angle) * total
    return 0.5 + between / 2


# -- histograms of rewards and metrics, as counts and as bars of text --------------

MOST_VALUES = 8
"""Most different values that have a row of their own each; more are put into bins."""

BINS = 10
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


class Bin(NamedTuple):
    """Values from ``low`` up to ``high``: exactly one value if both are the same, else
    without ``high`` itself but for the last bin."""

    low: float
    high: float
    number: int
    """Number of values in it."""

    @property
    def label(self) -> str:
        """The bin for people."""
        if self.low == self.high:
            return f"{self.low:.4g}"
        return f"{self.low:.4g} … {self.high:.4g}"


def histogram(values: Sequence[float]) -> list[Bin]:
    """The bins of finite values, from the smallest; empty without values."""
    counts = Counter(values)
    if len(counts) <= MOST_VALUES:
        return [Bin(value, value, counts[value]) for value in sorted(counts)]
    low, high = min(counts), max(counts)
    # In halves, since the difference of both may be too large for a float.
    between = [(low / 2 + (high / 2 - low / 2) * (n / BINS)) * 2 for n in range(1, BINS)]
    edges = [low, *(min(high, max(low, each)) for each in between), high]
    found = [0] * BINS
    for value, count in counts.items():
        found[min(BINS, bisect.bisect_right(edges, value)) - 1] += count
    return [Bin(edges[i], edges[i + 1], count) for i, count in enumerate(found)]


def bar(count: float, most: float, width: int) -> str:
    """A bar of at most ``width`` characters, in eighths of one; at least a sliver for
    what is not nothing."""
    if count <= 0 or most <= 0:
        return ""
    eighths = max(1, round(min(1.0, count / most) * width * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def sparkline(counts: Sequence[int]) -> str:
    """One character for each count."""
    most = max(counts, default=0)
    if not most:
        return ""
    return "".join(
        _LEVELS[math.ceil(count / most * len(_LEVELS)) - 1] if count else " " for count in counts
    )
