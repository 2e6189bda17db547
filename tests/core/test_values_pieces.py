"""Decoding and encoding in pieces: the same as in one call, with turns for others."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
from decimal import Decimal
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import values as values_module
from trio_envserve.core.limits import KIB, MIB, WireLimits
from trio_envserve.core.values import DecodingError, EncodingError, decode, encode
from trio_envserve.core.values_lower import NotHere
from trio_envserve.core.values_parts import written_head as head
from trio_envserve.core.values_pieces import WINDOW_BYTES, PieceDecoder, PieceProblem
from trio_envserve.core.values_scan import TooMuchWork
from trio_envserve.testing.strategies import hostile_bodies, plain_values, values

LIMITS = WireLimits()
DEPTH = LIMITS.depth + 4


class Turns:
    """Counts the turns that others get."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.count = 0
        self.most = most

    def __call__(self) -> None:
        self.count += 1
        if self.count > self.most:
            raise KeyboardInterrupt


def in_pieces(body: bytes, window: int) -> object:
    decoder = PieceDecoder(
        memoryview(body),
        accepted=values_module._Accepted(values_module._accepted_tags("auto")),
        built_in=values_module._BUILT_IN, keys=LIMITS.keys, pause=Turns(), window=window,
    )  # fmt: skip
    return decoder.whole(DEPTH)


def in_one(body: bytes) -> object:
    accepted = values_module._accepted_tags("auto")
    return values_module._whole(memoryview(body), None, accepted, LIMITS)


def result(make: Any, *arguments: Any) -> tuple[Any, str]:
    try:
        return make(*arguments), ""
    except PieceProblem as problem:
        return None, problem.reason or "refused"


WINDOWS = st.sampled_from([0, 1, 3, 10, 30, 1000])


@given(
    st.one_of(hostile_bodies(), st.binary(max_size=40), values().map(encode)),
    WINDOWS,
)
def test_pieces_are_decoded_as_the_whole_is(body, window):
    compare(body, window)


def compare(body: bytes, window: int) -> None:
    whole, why = result(in_one, body)
    pieces, why_not = result(in_pieces, body, window)
    if "unhashable" in why_not:
        return  # cbor2 has a map that can be a key; nobody writes one
    assert bool(why) == bool(why_not), (why, why_not)
    assert sets_aside(whole) == sets_aside(pieces)


def sets_aside(value: object) -> object:
    """What can be compared, whatever the order of sets is."""
    return sorted(repr(value)) if "set" in repr(value) else repr(value)


ODD = {
    "chunks": b"\x82\x5f\x41a\x41b\xff\x7f\x61a\xff",
    "chunks of another kind": b"\x5f\x61a\xff",
    "chunks in chunks": b"\x5f\x5f\xff\xff",
    "chunks without end": b"\x5f\x41a",
    "a break": b"\xff",
    "a break in a list": b"\x82\0\xff",
    "a list without end": b"\x9f\0\1",
    "a map without value": b"\xbf\0\xff",
    "a list that ends": b"\x9f\0\1\xff",
    "a map that ends": b"\xbf\0\1\xff",
    "no text": b"\x62\xff\xff",
    "no head": b"\x1c",
    "no set": b"\xd9\1\2\0",
    "a set of lists": b"\xd9\1\2\x81\x81\xd9\1\2\x81\0",
    "a set of maps": b"\xd9\1\2\x81\xa0",
    "a map as key": b"\xa1\xa1\0\0\0",
    "an array as key": b"\xa1\xd8\x40\x41\0\0",
    "a set of arrays": b"\xd9\1\2\x81\xd8\x40\x41\0",
    "a set of arrays in a list": b"\x81\xd9\1\2\x81\xd8\x40\x41\0",
    "a list as key": b"\xa1\x82\0\1\0",
    "a set as key": b"\xa1\xd9\1\2\x81\0\0",
    "a duration as key": b"\xa1\xd9\x03\xea\xa1\1\0\0",
    "a key twice": b"\xa2\0\0\0\0",
    "an unknown tag": b"\xd8\x18\0",
    "a tag without end": b"\xd8\x40",
    "an array of text": b"\xd8\x40\x61a",
    "a date": b"\xc0\x74" + b"2013-03-21T20:04:00Z",
    "no date": b"\xc0\x61a",
    "no Decimal": b"\xc4\0",
    "more": b"\0\0",
    "nothing": b"",
    "deep": b"\x81" * 70 + b"\0",
    "as deep as may be": b"\x81" * DEPTH + b"\0",
    "empty as deep as may be": b"\x81" * DEPTH + b"\x80",
    "deep tags": b"\xd9\xd9\xf7" * 70 + b"\0",
}


@pytest.mark.parametrize("window", [0, 1, 5, 1000])
@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_odd_bodies_in_pieces(body, window):
    compare(body, window)


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
def test_large_values_in_pieces(value):
    turns = Turns()
    body = encode(value, pause=turns)
    assert body == encode(value)
    assert turns.count > len(body) // (256 * KIB)
    turns = Turns()
    assert decode(body, pause=turns) == value
    assert turns.count >= len(body) // (64 * KIB)


@given(plain_values())
def test_small_values_in_pieces(value):
    body = encode(value, pause=Turns())
    assert body == encode(value)
    assert repr(decode(body, pause=Turns())) == repr(value)


def test_large_arrays_in_pieces_are_not_copied():
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


def test_no_more_than_a_window_is_decoded_between_turns(monkeypatch):
    seen: list[int] = []
    real = cbor2.load

    def load(stream, **options):
        seen.append(len(stream.getbuffer()))
        return real(stream, **options)

    monkeypatch.setattr(cbor2, "load", load)
    turns = Turns()
    decode(encode(LARGE["maps"]), pause=turns)
    assert max(seen) <= WINDOW_BYTES + 9
    assert turns.count >= len(seen)


def test_attempts_in_vain_do_not_add_up(monkeypatch):
    # Each of the nested lists is larger than a window, and none can be tried for free.
    read: list[int] = []
    real = cbor2.load

    def load(stream, **options):
        try:
            return real(stream, **options)
        finally:
            read.append(stream.tell())

    monkeypatch.setattr(cbor2, "load", load)
    inner = head(4, 20_000) + b"\0" * 20_000
    body = b"\x90" + (b"\x81" * 60 + inner) * 16
    decode(body, pause=Turns(), limits=WireLimits(value_times=100))
    assert sum(read) < 4 * len(body)


@pytest.mark.parametrize("members", [[0] * 20_000, {"a": [0] * 20_000}])
def test_the_way_to_what_is_wrong_is_told(members):
    body = encode({"first": [1, members], "second": 2})
    inside = r"result\.first\[1\]" + (r"\.a" if isinstance(members, dict) else "")
    for at, where in ((1_000, inside + r"\[9\d\d\]: "), (19_000, inside + r"\[189\d\d\]: ")):
        broken = body[:at] + b"\x1c" + body[at + 1 :]
        for pause in (None, Turns()):
            with pytest.raises(DecodingError, match=f"^{where}"):
                decode(broken, root="result", pause=pause)


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
