"""Ranges against Python's own sets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.ranges import Ranges, is_flat

NUMBERS = st.integers(0, 40)
MEMBERS = st.lists(NUMBERS, max_size=30)
MANY = st.binary(min_size=38, max_size=38).map(
    lambda bits: [n for n in range(300) if bits[n // 8] >> n % 8 & 1]
)
SPANS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12)


def holds(ranges: Ranges, model: set[int]) -> None:
    """The set is the model's, in its one form."""
    assert list(ranges) == sorted(model)
    assert len(ranges) == len(model)
    assert bool(ranges) == bool(model)
    assert all((n in ranges) == (n in model) for n in range(-1, 45))
    flat = ranges.flat()
    assert all(a < b for a, b in pairwise(flat))
    assert ranges.span_count() * 2 == len(flat)
    assert ranges == Ranges(model)


@given(MEMBERS)
def test_adding_numbers_in_any_order_makes_the_same_set(members):
    ranges, model = Ranges(), set[int]()
    for member in members:
        assert ranges.add(member) is (member not in model)
        model.add(member)
        holds(ranges, model)


@given(SPANS)
def test_adding_spans_joins_what_overlaps_or_touches(spans):
    ranges, model = Ranges(), set[int]()
    for start, stop in spans:
        ranges.add_span(start, stop)
        model |= set(range(start, stop))
        holds(ranges, model)


@given(MEMBERS, MEMBERS)
def test_update_is_the_union_and_leaves_the_other_alone(one, two):
    ranges, other = Ranges(one), Ranges(two)
    ranges.update(other)
    holds(ranges, {*one, *two})
    holds(other, {*two})


@given(MANY, MANY)
def test_update_with_many_spans_is_the_union(one, two):
    ranges, other = Ranges(one), Ranges(two)
    ranges.update(other)
    assert list(ranges) == sorted({*one, *two})
    assert ranges == Ranges([*one, *two])


@given(MEMBERS, NUMBERS)
def test_gaps_are_what_is_missing_below_the_stop(members, stop):
    holds(Ranges(members).gaps(stop), set(range(stop)) - {*members})


@given(MEMBERS)
def test_the_wire_form_comes_back_the_same(members):
    ranges = Ranges(members)
    assert Ranges.from_flat(ranges.flat()) == ranges
    assert [n for a, b in ranges.spans() for n in range(a, b)] == sorted({*members})


@pytest.mark.parametrize("flat", [[1], [1, 2, 3], [2, 1], [1, 1], [0, 2, 2, 3], [-1, 2]])
def test_a_wire_form_is_strictly_increasing_pairs(flat):
    assert not is_flat(flat)
    assert is_flat([])
    assert is_flat([0, 2, 3, 4])


def test_a_copy_and_a_wire_form_are_independent():
    ranges = Ranges([1, 2])
    ranges.copy().add(7)
    ranges.flat().append(9)
    assert ranges.flat() == [1, 3]


def test_equality_is_by_content_and_only_with_its_kind():
    assert Ranges([1, 2]) == Ranges([2, 1])
    assert Ranges([1]) != [1]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ranges())


def test_repr_shows_the_spans_as_people_count():
    assert repr(Ranges([1, 2, 5])) == "Ranges(1..2, 5..5)"


def test_g8_the_cost_is_by_spans_even_for_all_numbers_of_the_wire():
    ranges = Ranges.from_flat([0, 2**63 - 1])
    assert ranges.span_count() == 1
    assert len(ranges) == 2**63 - 1
