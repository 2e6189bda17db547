"""Figures against what is known of them from elsewhere, or by hand."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_envserve.evals.statistics import (
    BINS,
    MOST_VALUES,
    bar,
    estimate,
    histogram,
    paired,
    pass_at,
    percentile,
    sparkline,
    t_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # From the tables of textbooks, two-sided 95 %.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (30, 2.042),
     (99, 1.984), (120, 1.980), (100_000, 1.960)],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float):
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=5e-4)


def test_the_mean_is_over_inputs_and_its_error_is_of_their_means():
    means = [0.0, 0.5, 1.0, 1.0]
    found = estimate(means)
    assert found.mean == 0.625
    assert found.std_error == pytest.approx(statistics.stdev(means) / 2)
    assert found.low is not None
    assert found.high is not None
    assert found.std_error is not None
    assert found.high - 0.625 == pytest.approx(3.182 * found.std_error, rel=1e-3)
    assert found.low == pytest.approx(1.25 - found.high)
    assert estimate([0.5]) == (0.5, None, 1, None, None)
    assert estimate([]) == (None, None, 0, None, None)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = random.Random(7)
    held = 0
    for _ in range(1000):
        found = estimate([rng.gauss(3.0, 2.0) for _ in range(8)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 3.0 <= found.high
    assert 930 <= held <= 970


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_with_one_that_passed(results: int, data):
    passed = data.draw(st.integers(0, results))
    k = data.draw(st.integers(1, results))
    marks = [number < passed for number in range(results)]
    choices = list(itertools.combinations(marks, k))
    assert pass_at(k, results, passed) == pytest.approx(sum(map(any, choices)) / len(choices))
    with pytest.raises(ValueError, match="pass@"):
        pass_at(results + 1, results, passed)


def test_a_comparison_is_input_by_input_and_of_those_that_both_have():
    first = {0: 0.0, 1: 0.5, 2: 1.0, 3: 1.0}
    second = {1: 1.0, 2: 1.0, 3: 0.5, 4: 0.0}
    found = paired(first, second)
    assert found.difference.mean == 0.0
    assert found.difference.inputs == 3
    assert (found.better, found.worse, found.same) == (1, 1, 1)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
@example([sys.float_info.max] * 3)
@example([sys.float_info.max, -sys.float_info.max])
@example([sys.float_info.max * (n / 8) for n in range(-8, 9)])
@example([sys.float_info.min * sys.float_info.epsilon * n for n in range(6, 15)])
@example([n / 10 for n in range(11)])
def test_each_value_is_in_one_bin_also_the_largest_floats(values: list[float]):
    found = histogram(values)
    assert sum(each.number for each in found) == len(values)
    assert len(found) <= BINS
    for number, (low, high, count) in enumerate(found):
        assert all(map(math.isfinite, (low, high)))
        is_last = number == len(found) - 1
        inside = [each for each in values if low <= each < high or (is_last and each == high)]
        assert count == (values.count(low) if len(set(values)) <= MOST_VALUES else len(inside))
    opposite = {index: -value for index, value in enumerate(values)}
    for each in (estimate(values), paired(dict(enumerate(values)), opposite).difference):
        figures = (each.mean, each.std_error, each.low, each.high)
        assert all(one is None or math.isfinite(one) for one in figures)


def test_few_values_have_a_row_of_their_own_and_many_have_bins():
    assert histogram([1.0, 0.0, 1.0]) == [(0.0, 0.0, 1), (1.0, 1.0, 2)]
    found = histogram([float(n) for n in range(100)])
    assert [each.number for each in found] == [10] * 10
    assert found[0].label == "0 … 9.9"


def test_a_bar_is_never_longer_than_its_room_and_shows_what_is_little():
    assert bar(5, 5, 10) == "█" * 10
    assert bar(1, 1000, 10) == "▏"
    assert bar(0, 5, 10) == ""
    assert sparkline([0, 1, 8]) == " ▁█"
    assert sparkline([]) == ""


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50).map(sorted), st.integers(1, 99))
def test_percentile_is_that_of_the_standard_library(ordered: list[float], percent: int):
    expected = statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1]
    assert percentile(ordered, percent) == pytest.approx(expected)
    assert ordered[0] <= percentile(ordered, percent) <= ordered[-1]
