"""Durations in buckets: what is added is counted once, and what is read back is the same."""

from __future__ import annotations

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.durations import BOUNDS_S, MOST, NUMBER_MOST, SUM, Durations


def test_a_duration_is_in_the_first_bucket_whose_bound_it_does_not_pass():
    took = Durations()
    for duration_s in (0.0, 0.001, 0.0011, 3600.0, 3600.1):
        took.add(duration_s)
    assert took.to_record() == {
        SUM: pytest.approx(7200.1021), MOST: 3600.1, "0.001": 2, "0.005": 1, "3600": 1, "inf": 1,
    }  # fmt: skip
    assert took.count == 5


@given(st.lists(st.floats(0, 10_000)))
def test_a_record_says_all_that_was_counted(durations: list[float]):
    took, read = Durations(), Durations()
    for duration_s in durations:
        took.add(duration_s)
    read.take(took.to_record())
    assert (read.counts, read.sum_s, read.most_s) == (took.counts, took.sum_s, took.most_s)
    assert took.count == len(durations)


def test_every_bound_has_a_name_of_its_own_that_is_read_back():
    assert [float(f"{bound_s:g}") for bound_s in BOUNDS_S] == list(BOUNDS_S)


def test_a_record_with_other_bounds_is_counted_where_none_is_too_low():
    took = Durations()
    took.take({SUM: 3.0, "0.002": 3, "7200": 1})
    assert took.to_record() == {SUM: 3.0, "most_s": 3600.0, "0.005": 3, "inf": 1}


@pytest.mark.parametrize(
    "record",
    [
        {"often": 1}, {"-1": 1}, {"nan": 1}, {"0": 1}, {"1": -1}, {"1": "1"}, {"1": True},
        {"1": None}, {"1": math.nan}, {"1": math.inf}, {"1": NUMBER_MOST + 1}, {SUM: -1.0},
    ],
)  # fmt: skip
def test_what_cannot_be_in_a_record_is_left_out(record: dict[str, object]):
    took = Durations()
    took.take(record)
    assert took.to_record() == {SUM: 0.0}


@given(
    st.lists(st.floats(0, 5000), max_size=30),
    st.lists(st.floats(0, 5000), min_size=1, max_size=30),
    st.floats(0.01, 1),
)
def test_a_quantile_was_the_bound_of_its_bucket(early: list[float], late: list[float], part: float):
    """The p50 was 25 s where the longest had taken 15.5 s."""
    took, before = Durations(), Durations()
    for each in early:
        took.add(each)
        before.add(each)
    for each in late:
        took.add(each)
    read = Durations()
    read.take(took.to_record())
    found = read.quantile(part, before)
    assert found == took.quantile(part, before)
    assert found is not None
    assert 0 <= found <= max(early + late)
    # It is in the bucket of the one that is there.
    there = sorted(late)[max(0, math.ceil(part * len(late) - 1e-9) - 1)]
    bucket = bisect_left(BOUNDS_S, there)
    low_s, high_s = (0.0, *BOUNDS_S)[bucket], (*BOUNDS_S, math.inf)[bucket]
    assert low_s <= found <= high_s or found == max(early + late)


def test_quantiles_lie_evenly_in_a_bucket():
    took = Durations()
    for _ in range(4):
        took.add(15.5)
    assert took.quantile(0.5) == pytest.approx(10 + (15.5 - 10) / 2)
    assert took.quantile(1.0) == 15.5
    assert took.quantile(0.5, took) is None
    assert Durations().quantile(0.5) is None


def test_what_another_program_counted_without_its_longest_has_the_bound_of_its_bucket():
    took = Durations()
    took.take({"2.5": 4, "sum_s": 8.0})
    assert took.quantile(0.5) == 1.75
    assert took.quantile(1.0) == 2.5
