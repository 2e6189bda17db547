"""Objects in bodies: tagged scalars and records."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from typing import Any

import attrs
import cbor2
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.values import DecodingError, EncodingError, decode, encode
from trio_envserve.testing.strategies import same, scalars


def back(value):
    return decode(encode(value))


@given(scalars())
def test_tagged_scalars_come_back(value):
    assert same(back(value), value)


UTC = datetime.UTC
CET = datetime.timezone(datetime.timedelta(hours=1))


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (datetime.datetime(2013, 3, 21, 20, 4, tzinfo=CET), "c07819"),
        (datetime.date(1940, 10, 9), "d903ec6a313934302d31302d3039"),
        (uuid.UUID(int=1), "d82550" + "00" * 15 + "01"),
        (decimal.Decimal("273.15"), "c48221196ab3"),
        (datetime.timedelta(seconds=-1, microseconds=5), "da656e760a822005"),
        (1 + 2j, "d9a7f882fb3ff0000000000000fb4000000000000000"),
    ],
)
def test_vectors(value, data):
    assert encode(value).hex().startswith(data)
    assert back(value) == value


class Odd(datetime.tzinfo):
    """Neither aware nor plainly naive."""

    def utcoffset(self, when):
        return None

    dst = tzname = utcoffset


class Stamp(datetime.datetime):
    pass


class NotATime(datetime.datetime):
    def isoformat(self, *args, **options):
        return "NaT"


def test_offsets_are_kept_naive_stays_naive_and_subclasses_are_plain():
    assert back(datetime.datetime(2020, 1, 1, tzinfo=CET)).utcoffset() == CET.utcoffset(None)
    assert back(datetime.datetime(2020, 1, 1)).tzinfo is None  # noqa: DTZ001  # the point
    odd = datetime.datetime(2020, 1, 1, tzinfo=Odd())
    assert back(odd) == odd.replace(tzinfo=None)
    stamp = Stamp(2020, 1, 1, tzinfo=UTC)
    assert back(stamp) == stamp
    assert type(back(stamp)) is datetime.datetime
    with pytest.raises(EncodingError, match=r"value\[0\].*NaT"):
        encode([NotATime(2020, 1, 1, tzinfo=UTC)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("-0", "0"), ("1E+5", "1E+5"), ("9" * 4300, "9" * 4300), ("1E-999999", "1E-999999")],
)
def test_decimals(text, expected):
    result = back(decimal.Decimal(text))
    assert str(result) == expected


def test_decimals_that_are_no_numbers_are_floats():
    for text in ("NaN", "sNaN", "Infinity", "-Infinity"):
        quiet = text.replace("sNaN", "NaN")
        assert same(back(decimal.Decimal(text)), float(quiet))


@pytest.mark.parametrize("text", ["1E+1000000", "1E-1000000", "1" * 4301])
def test_a_decimal_that_would_stop_its_reader_is_refused(text):
    with pytest.raises(EncodingError, match="Decimal"):
        encode(decimal.Decimal(text))


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, b"x")
    WHEN = datetime.date(2020, 1, 1)


def test_members_of_enums_are_their_values():
    assert back([Color.RED, Color.PAIR, Color.WHEN]) == ["red", [1, b"x"], Color.WHEN.value]
    assert back({Color.RED: 1}) == {"red": 1}
    with pytest.raises(EncodingError, match="deeper"):

        class Endless(enum.Enum):
            A = 1

            @property
            def value(self):
                return self

        encode(Endless.A)


def test_paths_are_text():
    assert back([pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("a\\b")]) == [
        "/a/b",
        "a\\b",
    ]
    with pytest.raises(EncodingError, match=r"value\.p: .*Unicode"):
        encode({"p": pathlib.PurePosixPath("a\udcff")})


@dataclasses.dataclass
class Message:
    role: str
    parts: list[object] = dataclasses.field(default_factory=list)


@attrs.frozen
class Step:
    action: str
    reward: float


class Model(pydantic.BaseModel):
    name: str
    when: datetime.date
    inner: Message | None = None


class Roots(pydantic.RootModel[list[int]]):
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    a: int


def test_records_come_back_as_dicts():
    day = datetime.date(2020, 1, 1)
    value = [
        Message("user", [Step("left", 1.0), Message("x")]),
        Model(name="m", when=day, inner=Message("y")),
        Roots([1, 2]),
    ]
    assert back(value) == [
        {
            "role": "user",
            "parts": [{"action": "left", "reward": 1.0}, {"role": "x", "parts": []}],
        },
        {"name": "m", "when": day, "inner": {"role": "y", "parts": []}},
        [1, 2],
    ]


def test_paths_lead_through_records():
    with pytest.raises(EncodingError) as caught:
        encode({"m": Message("user", [Step("a", object())])}, root="input")  # type: ignore[arg-type]  # on purpose
    assert caught.value.path == "input.m.parts[0].reward"
    assert caught.value.type_name == "object"


def test_a_record_that_contains_itself():
    message = Message("user")
    message.parts.append({"up": message})
    with pytest.raises(EncodingError, match="contains itself") as caught:
        encode(message)
    assert caught.value.path == "value.parts[0].up"
    assert caught.value.type_name.endswith("Message")


def test_records_are_no_keys_and_their_classes_no_records():
    for value in ({Key(1): 1}, {(Key(1),)}):
        with pytest.raises(EncodingError, match="cannot be a key"):
            encode(value)
    for kind in (Message, Step, Model, Color):
        with pytest.raises(EncodingError, match="no encoding"):
            encode(kind)


def test_what_a_record_raises_is_told():
    class Lazy(pydantic.BaseModel):
        @pydantic.model_serializer
        def dump(self):
            raise OSError("gone")

    half = Message.__new__(Message)
    for value in (Lazy(), half):
        with pytest.raises(EncodingError) as caught:
            encode({"x": [value]})
        assert caught.value.path == "value.x[0]"
        assert caught.value.__cause__ is not None


NAIVE, TIME, DURATION = 1701737989, 1701737990, 1701737994


MALFORMED: dict[int, list[Any]] = {
    4: [1, [1], [1.0, 1], [1, "1"], [True, 1], [1_000_000, 1], [0, 1 << 20_000], [1 << 70, 1]],
    DURATION: [1, [1], [1.5, 0], [1, "x"], [True, 1], [1 << 80, 0]],
    43000: [1, [1, 2, 3], [1, "2"], ["1", 2], [1, 1 << 5000]],
    NAIVE: [5, "now", "2020-01-01T00:00:00Z"],
    TIME: [b"12:00", "noon"],
    0: [5], 1: ["5"], 37: ["0" * 16], 1004: ["2020"], 100: [1 << 40],
}  # fmt: skip
"""By tag."""


@pytest.mark.parametrize("tag", MALFORMED)
def test_malformed_scalars_are_refused(tag: int):
    for content in MALFORMED[tag]:
        with pytest.raises(DecodingError):
            decode(cbor2.dumps(cbor2.CBORTag(tag, content)))


def test_what_others_may_write():
    assert decode(bytes.fromhex("c11a514b67b0")) == datetime.datetime(
        2013, 3, 21, 20, 4, tzinfo=UTC
    )
    assert decode(bytes.fromhex("d86400")) == datetime.date(1970, 1, 1)


@given(st.timedeltas(), st.times())
def test_scalars_can_be_keys(duration, time):
    assert back({duration: {time}}) == {duration: {time}}
