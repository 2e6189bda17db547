"""Bodies: what comes back, what is refused and where, and hostile bytes."""

from __future__ import annotations

import collections
import collections.abc
import enum
import ipaddress
import re
import subprocess
import sys
import threading
import types
from email.mime.text import MIMEText
from fractions import Fraction
from itertools import permutations
from typing import NamedTuple

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import values as values_module
from trio_envserve.core.errors import ConfigError, EnvServeError
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.terms import stated_cost
from trio_envserve.core.values import (
    LEAST_CUT_BYTES,
    DecodingError,
    EncodingError,
    Lowering,
    decode,
    encode,
)
from trio_envserve.testing.strategies import keys, normal, plain_values, same, values

SMALL = WireLimits(depth=5, items=30)


def back(value):
    return decode(encode(value))


def refused(value, **options):
    with pytest.raises(EncodingError) as caught:
        encode(value, **options)
    return caught.value


# --- round trips -----------------------------------------------------------


@given(values())
def test_a_value_comes_back_in_its_normal_form(value):
    body, expected = encode(value), normal(value)
    for data in (body, memoryview(body), memoryview(bytearray(body))):
        assert same(decode(data), expected)


@given(plain_values())
def test_a_plain_tree_is_encoded_as_cbor2_does(value):
    body = encode(value)
    _, start = stated_cost(body)
    assert body[start:] == cbor2.dumps(value)


@given(st.lists(keys(), max_size=4, unique_by=repr))
def test_sets_do_not_depend_on_their_order(members):
    encodings = {encode({"s": set(order)}) for order in permutations(members)}
    if len(set(members)) == len(members):
        # Where two are equal (1, True) the set keeps the one that came first.
        assert len(encodings) == 1


def test_sets_do_not_depend_on_the_process():
    code = (
        "from trio_envserve.core.values import encode\n"
        "print(encode({str(number) for number in range(100)}).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


class Point(NamedTuple):
    x: int
    y: int


class Name(str):
    __slots__ = ()


class Count(int):
    pass


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2, [3])), [1, [2, [3]]]),
        (Point(1, 2), [1, 2]),
        (collections.deque([1, "a"]), [1, "a"]),
        (range(3), [0, 1, 2]),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        (memoryview(b"abcd").cast("B", (2, 2)), b"abcd"),
        (bytearray(50_000), bytes(50_000)),
        (memoryview(bytes(100_000))[::2], bytes(50_000)),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(list, a=[Point(1, 2)]), {"a": [[1, 2]]}),
        (types.MappingProxyType({"a": (1, b"x")}), {"a": [1, b"x"]}),
        ({"a": 1}.keys(), {"a"}),
        (Name("n"), "n"),
        (Count(7), 7),
        (Level.LOW, 1),
        ({Level.LOW: Level.LOW}, {1: 1}),
        ({(1, (2, "a")): 1}, {(1, (2, "a")): 1}),
        ({range(2): 1}, {(0, 1): 1}),
        ({frozenset({(1,), frozenset({2})})}, {frozenset({(1,), frozenset({2})})}),
        ({(1,): bytes(40_000), "b": 2}, {(1,): bytes(40_000), "b": 2}),
        ({bytes(40_000)}, {bytes(40_000)}),
        ([1, bytes(40_000), 2, [bytes(40_000)]], [1, bytes(40_000), 2, [bytes(40_000)]]),
        ({b"k": None}, {b"k": None}),
        ({Level.LOW: bytes(40_000)}, {1: bytes(40_000)}),
        ([Name("n"), [1, (b"x",)], Count(7)], ["n", [1, [b"x"]], 7]),
        ({"a": Name("n"), "b": [None], "c": Count(7)}, {"a": "n", "b": [None], "c": 7}),
        (1 << 70, 1 << 70),
        (-(1 << 70), -(1 << 70)),
    ],
)
def test_normal_forms(value, expected):
    result = back(value)
    assert same(result, expected)


LARGE = bytes(LEAST_CUT_BYTES)


def test_large_bytes_do_not_keep_the_message():
    body = bytearray(encode([LARGE]))
    decoded = decode(memoryview(body))
    body[-1] = 1
    assert decoded == [LARGE]


def test_what_has_to_be_lowered_nowhere_is_not_rebuilt():
    value = {"a": [1, {"b": (b"x", [None])}], "c": "d"}
    assert Lowering(SMALL).value(value, 0) is value


@pytest.mark.parametrize("size", [31, 32, 33, 255, 256, 70_000])
def test_pieces_have_the_heads_of_the_encoder(size):
    # A large byte string makes every container around it come in pieces.
    value = {**dict.fromkeys(map(str, range(size)), 1), "large": [*range(size), bytes(1 << 16)]}
    body = encode(value)
    _, start = stated_cost(body)
    assert body[start:] == cbor2.dumps(value)


def test_numpy_is_not_imported():
    code = (
        "import sys\n"
        "from trio_envserve.core.values import decode, encode\n"
        "assert decode(encode({'a': [1, b'x', (2.5, None)]})) == {'a': [1, b'x', [2.5, None]]}\n"
        "unwanted = {'numpy', 'torch', 'hypothesis', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(str(unwanted) if unwanted else 0)"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=True)


# --- refusals of the encoder -----------------------------------------------


class Secret:
    pass


SECRET = f"{__name__}.Secret"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Secret(), "input"),
        ([0, Secret()], "input[1]"),
        ({"messages": [0, 1, 2, {"image": Secret()}]}, "input.messages[3].image"),
        ({"a b": Secret()}, "input['a b']"),
        ({7: (Secret(),)}, "input[7][0]"),
        ({b"x": Secret()}, "input[b'x']"),
        ({None: Secret()}, "input[None]"),
        ({1 << 999: Secret()}, "input[<huge int>]"),
        ({(1,): Secret()}, "input[<tuple>]"),
        ({"\ud800": Secret()}, "input['\\ud800']"),
        ({Secret(): 1}, f"input[<{SECRET}>]"),
        ({"x" * 50 + "\n": Secret()}, "input['" + "x" * 40 + "']"),
        ({"tags": {Secret()}}, "input.tags{}"),
        (collections.deque([Secret()]), "input[0]"),
    ],
)
def test_a_refusal_names_the_path_and_the_type(value, path):
    error = refused(value, root="input")
    assert error.path == path
    assert error.type_name == SECRET
    assert str(error).startswith(f"{path}: cannot encode a value of type {SECRET}: ")
    assert "numpy arrays" in str(error)
    assert isinstance(error, EnvServeError)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    "value",
    [
        Secret,
        object(),
        len,
        re.compile("a"),
        ipaddress.ip_address("::1"),
        MIMEText("x"),
        Fraction(1, 2),
        cbor2.CBORTag(1, 2),
        cbor2.undefined,
        (number for number in range(3)),
        sys,
    ],
)
def test_what_readers_would_refuse_is_refused_at_once(value):
    assert refused({"a": [value]}).path == "value.a[0]"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("\ud800", "value"),
        (["ok", {"a": ("b", "c\udfff")}], "value[1].a[1]"),
        ({"\ud800": 1}, "value['\\ud800']"),
        ({"a": [Name("\ud800")]}, "value.a[0]"),
        ({"a": {"\ud800", "b"}}, "value.a"),
    ],
)
def test_half_a_surrogate_pair_is_found(value, path):
    error = refused(value)
    assert error.path == path
    assert "Unicode" in str(error)


class Fickle(collections.UserList[str]):
    """Has invalid text in it the first time only."""

    seen = False

    def __iter__(self):
        text = "ok" if self.seen else "\ud800"
        self.seen = True
        return iter([text])

    def __len__(self):
        return 1


def test_a_value_that_changes_meanwhile_is_still_an_encoding_error():
    assert refused(Fickle(), root="input").path == "input"


def test_keys_that_fall_together_are_refused():
    class Color(enum.Enum):
        RED = "red"

    error = refused({"a": {Color.RED: 1, "red": 2}})
    assert error.path == "value.a"
    assert "keys" in str(error)


class Frozen(collections.abc.Mapping[str, int]):
    def __getitem__(self, key):
        return 1

    def __iter__(self):
        return iter("a")

    def __len__(self):
        return 1

    def __hash__(self):
        return 1


def test_a_mapping_is_no_key():
    assert same(back(Frozen()), {"a": 1})
    assert "key" in str(refused({Frozen(): 1}))


def test_what_the_values_own_code_raises_is_told():
    class Broken(Frozen):
        def __len__(self):
            raise RuntimeError("not today")

    error = refused([Broken()])
    assert error.path == "value[0]"
    assert "RuntimeError: not today" in str(error)
    assert isinstance(error.__cause__, RuntimeError)


def test_a_cycle_is_named_where_it_closes():
    looped: dict[str, object] = {"name": "x"}
    looped["inner"] = [1, {"again": looped}]
    error = refused({"a": looped}, root="input")
    assert error.path == "input.a.inner[1].again"
    assert error.type_name == "dict"
    assert str(error).endswith("it contains itself (it is input.a)")
    branching: list[object] = []
    branching += [branching] * 100
    assert "contains itself (it is value)" in str(refused(branching)), "at once"


def nested(depth, leaf=0):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def test_depth_is_bounded_and_exact():
    assert decode(encode(nested(5), limits=SMALL), limits=SMALL) == nested(5)
    error = refused(nested(6), limits=SMALL)
    assert error.path == "value[0][0][0][0][0]"
    assert "deeper than 5" in str(error)


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,)])
def test_a_very_deep_value_does_not_end_the_process(wrap):
    # cbor2 alone overflows the native stack here; threads have smaller ones.
    value: object = 0
    for _ in range(100_000):
        value = wrap(value)
    errors: list[EncodingError] = []
    thread = threading.Thread(target=lambda: errors.append(refused(value)))
    thread.start()
    thread.join()
    assert "deeper than 64" in str(errors[0])
    while isinstance(value, list | dict | tuple):  # undone step by step: clean-up recurses too
        value = next(iter(value.values() if isinstance(value, dict) else value))


def test_items_are_bounded_even_where_memory_is_not():
    value: list[object] = []
    for _ in range(30):
        value = [value] * 10  # 10 ** 30 lists in all
    error = refused(value, limits=WireLimits(items=10_000))
    assert "more items" in str(error)
    assert "more items" in str(refused([0] * 30, limits=SMALL))
    assert "more items" in str(refused(range(10**15)))
    assert decode(encode([0] * 29, limits=SMALL), limits=SMALL) == [0] * 29


@given(values(), st.integers(1, 6), st.integers(1, 60))
def test_what_can_be_encoded_can_be_decoded_under_the_same_limits(value, depth, items):
    limits = WireLimits(depth=depth, items=items)
    try:
        body = encode(value, limits=limits)
    except EncodingError:
        return
    assert same(decode(body, limits=limits), normal(value))


# --- hostile bytes ---------------------------------------------------------


def hostile(data, **options):
    with pytest.raises(DecodingError) as caught:
        decode(data, **options)
    return str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_decoding_error(data):
    try:
        value = decode(data)
    except DecodingError:
        return
    assert repr(value) is not None


TAG_NUMBERS = (
    *range(40), 40, 41, 52, 54, *range(64, 88), 100, 256, 258, 260, 261, 1002, 1004, 1040,
    43000, 55799, *range(1701737985, 1701737996),
)  # fmt: skip

ANYTHING = st.recursive(
    st.one_of(plain_values(), st.binary(max_size=20), st.sampled_from([cbor2.undefined])),
    lambda inner: st.one_of(
        st.builds(cbor2.CBORTag, st.sampled_from(TAG_NUMBERS), inner),
        st.lists(inner, max_size=3),
        st.dictionaries(st.integers(-9, 9), inner, max_size=3),
        st.tuples(st.lists(st.integers(-1, 4), max_size=3), inner),
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_any_tags_give_a_value_or_a_decoding_error(value):
    try:
        decode(cbor2.dumps(value))
    except DecodingError:
        return


@given(values(), st.data())
def test_a_damaged_body_gives_a_value_or_a_decoding_error(value, data):
    body = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, min(len(body) - 1, 300)))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(body))
    except DecodingError:
        return


@given(values())
def test_a_body_cut_short_or_too_long_is_refused(value):
    body = encode(value)
    hostile(body[:-1])
    hostile(body + b"\0")
    hostile(b"")


@pytest.mark.parametrize("tag", [5, 25, 28, 29, 30, 35, 36, 41, 52, 54, 76, 83, 87, 256, 260, 261])
def test_tags_with_surprises_are_refused(tag):
    for content in (0, "a", b"abcd", [1, 2]):
        assert f"tag {tag} is not accepted" in hostile(cbor2.dumps(cbor2.CBORTag(tag, content)))


def test_no_placeholder_from_outside_is_believed():
    body = cbor2.dumps(cbor2.CBORTag(85, cbor2.CBORTag(1701737991, 0)))
    assert "1701737991" in hostile(body)


@pytest.mark.parametrize(
    "data",
    [
        b"\x9b\x7f" + b"\xff" * 7,  # a list of 2 ** 63
        b"\xbb\x7f" + b"\xff" * 7,  # a map
        b"\x5b\x7f" + b"\xff" * 7,  # a byte string
        b"\x7b\x7f" + b"\xff" * 7,  # a text
        b"\x5b" + b"\xff" * 8,
        b"\x9a\x40\0\0\0" * 5,
        b"\xd8\x55\x5b\0\0\0\xff\0\0\0\0",  # an array
        b"\xd8\x28\x82\x82\x1b\x3f" + b"\xff" * 7 + b"\x02\xd8\x55\x44\0\0\0\0",
    ],
)
def test_a_claimed_length_is_not_believed(data):
    hostile(data)


def test_depth_is_bounded():
    for step in (b"\x81", b"\xa1\x61a", b"\xd9\x01\x02\x81", b"\x9f"):
        assert "depth" in hostile(step * 1000 + b"\x00")


@pytest.mark.parametrize(
    "data",
    [
        "a2616101616102",  # a key twice
        "a201010102",
        "a18001a1",  # no end
        "62c328",  # no UTF-8
        "ff",
        "8101ff",
        "1c",
        "f81f",
        "a1d840430102030a",  # an array as key
        "d9010281d84043010203",  # an array in a set
        "d9010201",  # a set of a number
        "d90102a0",
        "c001",
        "c06178",
        "c074323032302d30312d30315430303a30303a3030",  # tag 0 without an offset
        "c1fb7ff0000000000000",
        "c11bffffffffffffffff",
        "c201",
        "d8254100",
        "d82550",
    ],
)
def test_malformed_bodies(data):
    hostile(bytes.fromhex(data))


def test_malformed_large_strings():
    large = b"\x7a" + LEAST_CUT_BYTES.to_bytes(4, "big")
    assert decode(large + b"a" * LEAST_CUT_BYTES) == "a" * LEAST_CUT_BYTES
    hostile(large + b"a" * (LEAST_CUT_BYTES - 1))
    hostile(large + b"a" * (LEAST_CUT_BYTES - 1) + b"\xff")
    hostile(b"\xd8\x40" + large + b"a" * LEAST_CUT_BYTES)
    hostile(b"\xa2" + (large + b"a" * LEAST_CUT_BYTES + b"\0") * 2)
    hostile(b"\x5f" + large + b"a" * LEAST_CUT_BYTES + b"\xff")


def test_large_chunks_are_joined():
    chunk = b"\x5a" + LEAST_CUT_BYTES.to_bytes(4, "big") + LARGE
    assert decode(b"\x82\x5f" + chunk * 2 + b"\xff" + chunk) == [LARGE * 2, LARGE]


def test_a_message_is_short_whatever_the_body():
    key = cbor2.dumps("x" * 100_000)
    assert len(hostile(b"\xa2" + (key + b"\0") * 2)) <= 400


def test_what_others_may_write():
    assert decode(bytes.fromhex("9f01ff")) == [1]
    assert decode(bytes.fromhex("bf616101ff")) == {"a": 1}
    assert decode(bytes.fromhex("5f41014102ff")) == b"\1\2"
    assert decode(bytes.fromhex("f93c00")) == 1.0
    assert decode(bytes.fromhex("f7")) is cbor2.undefined


def test_a_view_of_any_shape_is_read():
    body = encode([1, 2, 3])
    doubled = bytes(byte for pair in zip(body, body, strict=True) for byte in pair)
    assert decode(memoryview(doubled)[::2]) == [1, 2, 3]
    assert decode(memoryview(encode([1, 2, 3])).cast("i")) == [1, 2, 3]


def test_an_interrupt_is_not_taken_for_a_bad_body(monkeypatch):
    def interrupted(content):
        raise KeyboardInterrupt

    values_module._accepted_tags.cache_clear()
    monkeypatch.setattr("trio_envserve.core.objects.complex_number", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            decode(encode(1j))
    finally:
        values_module._accepted_tags.cache_clear()


def test_an_unknown_kind_of_reader_is_an_error_of_the_caller():
    with pytest.raises(ConfigError, match="jax"):
        decode(b"\0", arrays="jax")  # type: ignore[arg-type]  # that is the point
