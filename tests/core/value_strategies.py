"""Strategies for values of bodies, and the normal form that they come back in."""

from __future__ import annotations

import datetime
import decimal
import math

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

NUMBERS = st.one_of(
    st.integers(),
    st.integers(min_value=-(1 << 200), max_value=1 << 200),
    st.floats(),
)

PLAIN_SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)

ZONES = st.builds(
    lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)),
    st.integers(min_value=-1439, max_value=1439),
)

TAGGED_SCALARS = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.complex_numbers(allow_nan=False),
)

SCALARS = st.one_of(PLAIN_SCALARS, st.binary(max_size=50), TAGGED_SCALARS)

KEYS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
    ),
    max_leaves=4,
)

PLAIN_VALUES = st.recursive(
    PLAIN_SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXT, inner, max_size=5)),
    max_leaves=20,
)

VALUES = st.recursive(
    st.one_of(SCALARS, st.integers(40_000, 40_010).map(bytes)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(KEYS, inner, max_size=5),
        st.sets(KEYS, max_size=5),
    ),
    max_leaves=15,
)


def normal(value: object, *, key: bool = False) -> object:
    """What ``value`` comes back as: tuples as lists, where lists can be."""
    if isinstance(value, list | tuple):
        members = [normal(member, key=key) for member in value]
        return tuple(members) if key else members
    if isinstance(value, dict):
        return {normal(name, key=True): normal(member) for name, member in value.items()}
    if isinstance(value, set | frozenset):
        members = [normal(member, key=True) for member in value]
        return frozenset(members) if key else set(members)
    return value


def same(left: object, right: object) -> bool:
    """Equality that takes all NaNs for one and tells types and signs apart."""
    if isinstance(left, set | frozenset) and isinstance(right, set | frozenset):
        return len(left) == len(right) and all(
            any(same(member, other) for other in right) for member in left
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, complex) and isinstance(right, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, decimal.Decimal) and isinstance(right, decimal.Decimal):
        return left == right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and all(map(same, left.items(), right.items()))
    return left == right
