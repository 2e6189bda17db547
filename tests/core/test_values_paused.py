"""Decoding and encoding with pauses: the same as without, with turns for others."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
from decimal import Decimal
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import values as values_module
from trio_envserve.core.limits import KIB, MIB, WireLimits
from trio_envserve.core.values import (
    DecodingError,
    EncodingError,
    NotHere,
    TooMuchWork,
    decode,
    encode,
)
from trio_envserve.testing.strategies import hostile_bodies, plain_values, values

LIMITS = WireLimits()


class Turns:
    """Counts the turns that others get."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.count = 0
        self.most = most

    def __call__(self) -> None:
        self.count += 1
        if self.count > self.most:
            raise KeyboardInterrupt


def result(body: bytes, **how: Any) -> tuple[Any, str]:
    try:
        return decode(body, **how), ""
    except DecodingError as error:
        return None, str(error)


@given(st.one_of(hostile_bodies(), st.binary(max_size=40), values().map(encode)))
def test_what_is_decoded_with_pauses_is_what_is_decoded_without(body):
    whole, why = result(body)
    paused, why_not = result(body, pause=Turns())
    assert why == why_not
    assert sets_aside(whole) == sets_aside(paused)


def sets_aside(value: object) -> object:
    """What can be compared, whatever the order of sets is."""
    return sorted(repr(value)) if "set" in repr(value) else repr(value)


ODD = {
    "a map as key": b"\xa1\xa1\0\0\0",
    "a list as key": b"\xa1\x82\0\1\0",
    "an array as key": b"\xa1\xd8\x40\x41\0\0",
    "a number as key": b"\xa1\0\0",
    "a map as a key of a pair": b"\xda\x65\x6e\x76\x09\x82\xa0\0",
    "an array as a key of a pair": b"\xda\x65\x6e\x76\x09\x82\xd8\x40\x41\0\0",
    "a key of a pair twice": b"\xda\x65\x6e\x76\x09\x84\0\0\0\0",
    "a key without a member": b"\xda\x65\x6e\x76\x09\x81\0",
    "no pairs": b"\xda\x65\x6e\x76\x09\0",
    "no set": b"\xd9\1\2\0",
    "a set of maps": b"\xd9\1\2\x81\xa0",
    "a set of arrays": b"\xd9\1\2\x81\xd8\x40\x41\0",
    "a set of arrays in a list": b"\xd9\1\2\x81\x81\xd8\x40\x41\0",
    "a set of arrays of no numpy": b"\xd9\1\2\x81\xd8\x28\x82\x80\xd8\x40\x41\0",
    "an unknown tag": b"\xd8\x18\0",
    "more": b"\0\0",
    "nothing": b"",
    "too deep": b"\x81" * (LIMITS.depth + 5) + b"\0",
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_odd_bodies_are_refused(body):
    why, why_not = result(body)[1], result(body, pause=Turns())[1]
    assert why == why_not != ""


def test_sets_and_keys_have_tuples_and_frozensets_for_what_can_change():
    body = b"\xd9\1\2\x82\x81\xd9\1\2\x81\0\x81\1"
    assert decode(body) == {(frozenset({0}),), (1,)}
    assert decode(b"\xda\x65\x6e\x76\x09\x82\xd9\1\2\x80\x81\0") == {frozenset(): [0]}


LARGE = {
    "numbers": [*range(100_000)],
    "floats": [n / 7 for n in range(50_000)],
    "texts": [f"{n:>30}" for n in range(20_000)],
    "maps": [{"step": n, "reward": n / 3, "done": False} for n in range(20_000)],
    "one map": {f"{n}": [n, {"a": n}] for n in range(20_000)},
    "many integers as keys": {n: -n for n in range(60_000)},
    "nested": {"a": [{"b": [[*range(9_000)]] * 3, "c": "x" * 40_000}] * 4},
    "strings": ["é" * 40_000, b"b" * 100_000, {"k" * 20_000: "v"}],
    "keys of many kinds": {(n, str(n)): n for n in range(900)},
    "a set": {f"{n:>20}" for n in range(20_000)},
    "sets": [{n, "a"} for n in range(10_000)],
    "large integers": [(1 << 400) + n for n in range(3_000)],
    "one large integer": [1 << 8 * 20_000, -(1 << 8 * 20_000)],
    "a wide key": {tuple(range(10_000)): 1},
    "scalars": [datetime.date(2024, 1, 1), Decimal("1.5"), UUID(int=5), 1j, None, True] * 2_000,
    "a few large among small": [[0] * 10, [0] * 20_000] * 10,
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
def test_large_values_with_pauses(value):
    turns = Turns()
    body = encode(value, pause=turns)
    assert body == encode(value)
    assert turns.count > len(body) // (256 * KIB)
    turns = Turns()
    assert decode(body, pause=turns) == value
    assert turns.count >= len(body) // (64 * KIB)


@given(plain_values())
def test_small_values_with_pauses(value):
    body = encode(value, pause=Turns())
    assert body == encode(value)
    assert repr(decode(body, pause=Turns())) == repr(value)


def test_large_arrays_are_not_copied():
    numpy = pytest.importorskip("numpy")
    body = encode([numpy.arange(100_000, dtype="u1"), numpy.zeros((300, 300))])
    first, second = cast(Any, decode(body, pause=Turns()))
    assert numpy.shares_memory(first, numpy.frombuffer(body, dtype="u1"))
    assert second.shape == (300, 300)


def test_whoever_waits_may_give_up():
    body = encode(LARGE["maps"])
    for most in (0, 1, 5, 20):
        with pytest.raises(KeyboardInterrupt):
            decode(body, pause=Turns(most))
        with pytest.raises(KeyboardInterrupt):
            encode(LARGE["maps"], pause=Turns(most))


def test_no_more_than_a_piece_is_decoded_between_turns():
    """And of a large string as much as the decoder reads of it at once."""
    read: list[int] = []

    class Watched(values_module._Paused):
        def read(self, size: int) -> bytes:
            read.append(size)
            return super().read(size)

    for value, most in ((LARGE["maps"], 16 * KIB), (LARGE["strings"], 64 * KIB)):
        read.clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(values_module, "_Paused", Watched)
            decode(encode(value), pause=Turns())
        assert len(read) > 1
        assert max(read) <= most


# -- encoding -----------------------------------------------------------------------


def test_what_takes_long_to_encode_is_not_done_at_once():
    encode([0] * 50_000, at_once=True)
    for value in ([0] * 200_000, [[0] * 100] * 2_000, {"a": [{str(n): 1} for n in range(99_999)]}):
        with pytest.raises(TooMuchWork):
            encode(value, at_once=True)


@dataclasses.dataclass
class Record:
    number: int


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize("odd", [Record(1), Colour.RED, MappingProxyType({1: 2})])
def test_code_of_a_value_runs_where_it_comes_from(odd):
    for value in (odd, [odd], {"a": odd}, [[0] * 10_000, odd]):
        if isinstance(odd, MappingProxyType):
            assert encode(value, pause=Turns()) == encode(value)
        else:
            with pytest.raises(NotHere):
                encode(value, pause=Turns())
            assert encode([value, [0] * 200_000], at_once=True)


def test_other_containers_in_pieces():
    value = [
        collections.deque(range(10_000)),
        collections.OrderedDict.fromkeys(range(10_000)),
        range(10_000),
        collections.Counter("abc" * 5),
    ]
    assert encode(value, pause=Turns()) == encode(value)


def test_limits_hold_in_pieces():
    limits = WireLimits(items=10_000)
    with pytest.raises(EncodingError, match="more items"):
        encode([[0] * 6_000] * 2, limits=limits, pause=Turns())
    with pytest.raises(EncodingError, match=r"\[5000\]\[0\]: cannot encode a value of type object"):
        encode([*[0] * 5_000, [object()]], pause=Turns())
    assert len(encode(bytes(MIB), pause=Turns())) > MIB
