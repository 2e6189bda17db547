"""What counts as a reward."""

import decimal
import enum
import fractions
import math

import pytest

from trio_envserve.envs.rewards import number_of, numbers_of, reward_of_named


class Level(enum.IntEnum):
    HIGH = 3


class Raises:
    @property
    def shape(self):
        raise SystemExit(3)


class RaisesLater:
    shape = ()

    def item(self):
        raise SystemExit(4)


class NotANumberInside:
    shape = ()

    def item(self):
        return "1"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0), (False, 0.0), (0, 0.0), (-3, -3.0), (0.5, 0.5), (Level.HIGH, 3.0),
        (fractions.Fraction(1, 4), 0.25), (decimal.Decimal("0.1"), 0.1), (math.inf, math.inf),
        (10**400, math.inf), (-(10**400), -math.inf), (fractions.Fraction(10**400), math.inf),
        (decimal.Decimal("1e999"), math.inf), (math.nan, math.nan),
        (decimal.Decimal("NaN"), math.nan), (decimal.Decimal("sNaN"), math.nan),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_numbers_of_any_kind_count(value, number):
    found = number_of(value)
    assert type(found) is float
    assert found == number or (math.isnan(found) and math.isnan(number))


def test_scalars_and_arrays_without_dimensions_count():
    numpy = pytest.importorskip("numpy")
    for value in (numpy.float32(0.5), numpy.array(0.5), numpy.array([1.0])[0] / 2):
        assert number_of(value) == 0.5
    assert number_of(numpy.bool_(True)) == 1.0
    assert number_of(numpy.array(True)) == 1.0
    assert number_of(numpy.int8(-3)) == -3.0
    assert number_of(numpy.array([0.5])) is None
    assert number_of(numpy.array("0.5")) is None
    assert number_of(numpy.array(1j)) is None


@pytest.mark.parametrize(
    "value",
    [
        None, "1", "1.0", b"1", 1j, [1.0], (1,), {"reward": 1}, object(), int, float, Raises(),
        RaisesLater(), NotANumberInside(), Level,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_the_rest_does_not(value):
    assert number_of(value) is None


def test_named_numbers():
    assert numbers_of({"format": True, "right": fractions.Fraction(1, 2)}) == {
        "format": 1.0,
        "right": 0.5,
    }
    for value in ({}, {"right": "1"}, {1: 1.0}, [("right", 1.0)], None, 1.0):
        assert numbers_of(value) is None


def test_the_reward_of_named_numbers_is_the_one_of_that_name_or_their_sum():
    assert reward_of_named({"format": 0.25, "right": 1.0}) == 1.25
    assert reward_of_named({"format": 0.25, "right": 1.0, "reward": 0.5}) == 0.5
