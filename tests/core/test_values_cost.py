"""The cost of a body for whoever decodes it: memory by its header, time by bounded keys."""

from __future__ import annotations

import datetime
import random
import tracemalloc
from decimal import Decimal
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import error_records, messages
from trio_envserve.core.errors import ErrorInfo, ProtocolError
from trio_envserve.core.limits import KIB, MIB, WireLimits
from trio_envserve.core.terms import COST_HEADER, BodyParts, Verdict, stated_cost, weight
from trio_envserve.core.values import (
    FREE_BYTES,
    LEAST_CUT_BYTES,
    TAG_CUT,
    TAG_PAIRS,
    TAG_SET,
    UNSEEN_BYTES,
    DecodingError,
    EncodingError,
    Look,
    TooCostly,
    TooMuchWork,
    decode,
    encode,
    encode_to_send,
    look,
    placeholder,
)
from trio_envserve.core.values import written_head as head
from trio_envserve.testing.strategies import hostile_bodies, values


def listed(item: bytes, count: int) -> bytes:
    """The encoding of a list of so many of that item."""
    return head(4, count) + item * count


def refusal(body: bytes, **options: Any) -> str:
    """Why a body is refused; empty if it is not."""
    try:
        decode(body, **options)
    except DecodingError as error:
        return str(error)
    return ""


def seen(body: bytes | memoryview, **bounds: Any) -> Look:
    return look(memoryview(body), pause=lambda: None, **bounds)


def cost(body: bytes) -> int:
    return 8 * len(body) + 128 * seen(body).objects


def said(body: bytes, cost: int) -> bytes:
    """The body, with a header that says this."""
    return COST_HEADER + head(0, cost) + body


def colliding(count: int) -> bytes:
    """A map, in pairs, of large integers whose hashes are all the same."""
    prime = (1 << 61) - 1  # what Python's hashes of integers are taken modulo
    keys = [cbor2.dumps(prime * factor) for factor in range(count, 2 * count)]
    return head(6, TAG_PAIRS) + head(4, 2 * count) + b"".join(key + b"\0" for key in keys)


# -- memory -------------------------------------------------------------------------

BOMBS = {
    "empty lists": b"\x80",
    "lists of one": b"\x81\0",
    "empty maps": b"\xa0",
    "maps of one": b"\xa1\x60\0",
    "maps of one longer key": b"\xa1\x62ab\0",
    "maps without end": b"\xbf\x60\0\xff",
    "maps that say so in long": b"\xb8\1\x60\0",
    "maps in pairs": head(6, TAG_PAIRS) + b"\x80",
    "maps in pairs of one": head(6, TAG_PAIRS) + b"\x82\0\0",
    "empty sets": b"\xd9\1\2\x80",
    "sets of five": b"\xd9\1\2\x85\0\1\2\3\4",
    "sets of six": b"\xd9\1\2\x86\0\1\2\3\4\5",
    "sets without end": b"\xd9\1\2\x9f\0\1\2\3\4\xff",
    "empty arrays": b"\xd8\x40\x40",
    "arrays without dimension": b"\xd8\x28\x82\x80\xd8\x40\x41\0",
    "negative integers": b"\x37",
    "short texts": b"\x62ab",
    "texts beyond the BMP": b"\x66ab" + "\U0001f600".encode(),
    "short bytes": b"\x42ab",
    "seconds since 1970": b"\xc1\0",
    "days since 1970": b"\xd8\x64\0",
    "Decimals": b"\xc4\x82\0\0",
    "simple values": b"\xf0",
}


@pytest.mark.parametrize("item", BOMBS.values(), ids=BOMBS)
def test_small_things_that_become_large_were_decoded(item):
    # 18 MiB of empty lists became 1.37 GiB, 0.6 MiB of tiny arrays took seconds.
    assert "bytes of memory that its header says" in refusal(listed(item, 300_000))


def test_a_bomb_is_refused_before_anything_of_it_is_made():
    body = listed(b"\x80", MIB)
    tracemalloc.start()
    try:
        said = refusal(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "memory" in said
    assert peak < MIB


def test_a_bomb_behind_something_large_is_refused_too():
    body = b"\x82" + cbor2.dumps(bytes(MIB)) + listed(b"\x80", 200_000)
    assert "memory" in refusal(body)


def taken(body: bytes) -> int:
    """The memory that the value of a body takes; -1 if it is refused."""
    tracemalloc.start()
    try:
        value = decode(said(body, GENEROUS))
    except DecodingError:
        return -1
    else:
        now, _ = tracemalloc.get_traced_memory()
        del value
        return now
    finally:
        tracemalloc.stop()


GENEROUS = 1 << 31
OVERHEAD_BYTES = 16 * KIB
"""What tracemalloc and caches take; the values below are made many times over."""


@given(st.one_of(values().map(encode), hostile_bodies()))
def test_any_value_takes_at_most_twice_its_cost(item):
    body = listed(item, 64)
    if refusal(said(body, GENEROUS)) == "":
        assert taken(body) <= 2 * cost(body) + OVERHEAD_BYTES


@pytest.mark.parametrize("count", [1, 5, 6, 11, 22, 86, 171, 1_366, 10_923, 43_691])
@pytest.mark.parametrize("kind", ["list", "map", "set", "numbers", "pairs"])
def test_container_of_any_size_takes_at_most_twice_its_cost(kind, count):
    members = [f"{number:06}" for number in range(count)]
    value: Any = {
        "list": members, "map": dict.fromkeys(members), "set": set(members),
        "numbers": set(range(256, 256 + count)), "pairs": dict.fromkeys(range(256, 256 + count)),
    }[kind]  # fmt: skip
    body = cbor_of(encode(value))
    assert taken(body) <= 2 * cost(body) + OVERHEAD_BYTES


def cbor_of(body: bytes) -> bytes:
    """A body without its header."""
    return body[stated_cost(body)[1] :]


def rollout(messages: int = 20, tokens: int = 4_000) -> dict[str, Any]:
    chance = random.Random(1)
    return {
        "messages": [
            {"role": "assistant", "content": "word " * chance.randrange(5, 200)}
            for _ in range(messages)
        ],
        "tokens": [chance.randrange(150_000) for _ in range(tokens)],
        "logprobs": [-chance.random() for _ in range(tokens)],
    }


HONEST = {
    "a rollout": rollout(),
    "a group": [rollout() for _ in range(16)],
    "tokens alone": rollout(0, 200_000)["tokens"],
    "a mask": [0, 1] * 500_000,
    "negative numbers": [*range(-100, 100)] * 1_000,
    "steps": [{"step": n, "reward": 0.5, "done": False} for n in range(20_000)],
    "points": [{"x": n % 5, "y": 1} for n in range(50_000)],
    "boards": [[[n % 10] * 30 for n in range(30)] for _ in range(300)],
    "nothing": [[] for _ in range(100_000)],
    "words": ["to", "be", "or"] * 50_000,
    "dates": [datetime.date(2024, 1, 1)] * 20_000,
    "counts": dict.fromkeys(range(60000), 1),
    "names": {f"{n}": 1 for n in range(60_000)},
}


@pytest.mark.parametrize("value", HONEST.values(), ids=HONEST)
def test_honest_values_come_back_whatever_they_cost(value):
    body = encode(value)
    assert decode(body) == value
    assert cost(cbor_of(body)) <= 8 * weight(body) + MIB
    assert weight(body) <= 17 * len(body)


@given(values())
def test_header_means_nothing_where_it_says_enough(value):
    body = encode(value)
    for cost in (8 * len(body) + 128 * 2 * len(body), 1 << 63):
        assert encode(decode(said(body, cost))) == encode(decode(body))


@pytest.mark.parametrize("count", [3, 8_191, 8_192, 20_000])
def test_header_that_says_too_little_was_a_lie_and_nothing_more(count):
    value: list[Any] = [[] for _ in range(count)]
    body = encode(value)
    costs = 8 * len(cbor_of(body)) + 128 * (count + 1)
    assert (stated_cost(body)[0] is not None) == (count > 8_191)
    assert decode(said(cbor_of(body), costs)) == value
    for lie in (costs - 1, 8 * len(cbor_of(body)) - 1, 0):
        assert f"costs more than the {lie} bytes" in refusal(said(cbor_of(body), lie))
    small = WireLimits(message_bytes=costs // 8 - 1)
    assert "costs more" in refusal(said(cbor_of(body), 1 << 63), limits=small)
    if count > 8_191:
        assert stated_cost(body)[0] == costs
        assert "costs more than the" in refusal(cbor_of(body))


@pytest.mark.parametrize("count", [0, 1_000, 8_180])
def test_body_that_fills_a_message_has_a_reader_whatever_it_costs_without_a_header(count):
    """It was refused where its objects took more than what was left of the message."""
    value = {"small": [[] for _ in range(count)], "large": bytes(1_500_000)}
    body = encode(value)
    assert weight(body) == len(body)
    assert decode(body, limits=WireLimits(message_bytes=len(body))) == value


@pytest.mark.parametrize("large", [b"", bytes(100_000)])
def test_body_weighs_an_eighth_of_what_its_header_says(large):
    value = {"small": [[] for _ in range(20_000)], "large": large}
    for body in (encode(value), encode_to_send(value)):
        costs, _ = stated_cost(encode(value))
        assert costs is not None
        assert weight(body) == costs // 8 > len(body)
    assert isinstance(encode_to_send(value), BodyParts) == bool(large)
    assert weight(said(bytes(100), 5)) == 100 + len(said(b"", 5))
    assert weight(b"abc") == 3


@pytest.mark.parametrize(
    "body",
    [
        COST_HEADER,
        COST_HEADER + b"\0",
        COST_HEADER + b"\x1b\0",
        COST_HEADER + b"\x20\0",
        COST_HEADER + b"\x40\0",
        COST_HEADER + b"\x1f\0",
        COST_HEADER + b"\x18\x60\0\0",
        COST_HEADER[:-1] + b"\x83\x18\x60\0\0",
        b"\x81" + COST_HEADER + b"\x18\x60\0",
        COST_HEADER + b"\x18\x60" + COST_HEADER + b"\x18\x60\0",
    ],
)
def test_what_is_no_header_is_refused(body):
    assert refusal(body)
    assert weight(body) <= 96


# -- the look -----------------------------------------------------------------------


def objects(value: Any) -> int:
    """Objects of a decoded value, the long way."""
    if isinstance(value, list):
        return 1 + sum(map(objects, value))
    if isinstance(value, dict):
        return 1 + sum(objects(key) + objects(member) for key, member in value.items())
    if isinstance(value, cbor2.CBORTag):
        doubled = value.tag in (TAG_SET, TAG_PAIRS) and isinstance(value.value, list)
        return 1 + objects(value.value) + (len(value.value) if doubled else 0)
    if isinstance(value, int) and not -(1 << 64) <= value < 1 << 64:
        return 1  # its byte string
    is_small = isinstance(value, int) and -256 <= value < -5
    return int(is_small or isinstance(value, str | bytes))


COUNTED = st.recursive(
    st.one_of(
        st.integers(), st.integers(-300, 300), st.floats(), st.none(), st.binary(max_size=40),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
        st.builds(
            cbor2.CBORTag,
            st.sampled_from([4, 24, 1 << 40, TAG_SET, TAG_PAIRS, 64]),
            st.one_of(inner, st.lists(inner)),
        ),
    ),
)  # fmt: skip


@given(COUNTED)
def test_objects_are_counted_as_the_rule_has_it(value):
    body = cbor2.dumps(value)
    assert seen(body).objects == objects(value)
    assert seen(listed(body, 300)).objects == 1 + 300 * objects(value)


@pytest.mark.parametrize(
    ("item", "count"), [(b"\x9f\0\xff", 1), (b"\x7f\x61a\x61b\xff", 3), (b"\xbf\xff", 1),
    (head(6, TAG_SET) + b"\x80", 2), (head(6, TAG_SET) + b"\0", 1), (head(6, 5) + b"\0", 1),
    (b"\xd8\4\x82\0\0", 2), (b"\xf0", 1), (b"\xf8\xff", 1), (b"\xf7\xf9\0\0", 0)],
)  # fmt: skip
def test_heads_of_other_forms_are_counted(item, count):
    assert seen(item).objects == count
    assert seen(head(6, TAG_SET) + b"\x9f\0\0\xff").objects >= 4


@given(st.binary())
def test_look_at_anything_never_fails(data):
    assert seen(data).objects <= 3 * len(data) or data


def array(data: Any) -> cbor2.CBORTag:
    return cbor2.CBORTag(64, data)


LARGE = bytes(LEAST_CUT_BYTES)


def test_large_strings_are_cut_out():
    text = "\u00e9" * len(LARGE)
    value = [
        1,
        array(LARGE),
        array(b"small"),
        {"a": [LARGE, "small"], "b": array([LARGE]), text: 1},
    ]
    found = seen(cbor2.dumps(value))
    assert found.parts == [LARGE, LARGE, LARGE, text]
    assert [type(part) for part in found.parts] == [memoryview, bytes, bytes, str]
    hole = [cbor2.CBORTag(TAG_CUT, number) for number in range(4)]
    inner = {"a": [hole[1], "small"], "b": array((hole[2],)), hole[3]: 1}
    rest = cbor2.loads(found.rest)
    assert rest[:3] == [1, array(hole[0]), array(b"small")]
    assert rest[3] == inner
    assert placeholder(3) in bytes(found.rest)


def test_chunks_are_not_cut_nor_what_comes_after_them():
    for major in (2, 3):
        chunk = head(major, len(LARGE)) + LARGE
        chunked = bytes((major << 5 | 31,)) + chunk * 2 + b"\xff"
        assert seen(b"\x82" + chunked + chunk).parts == []
        found = seen(b"\x82" + chunk + chunked)
        assert len(found.parts) == 1
        assert found.rest == b"\x82" + placeholder(0) + chunked


@pytest.mark.parametrize(
    "body",
    [
        cbor2.dumps(LARGE[1:]),
        cbor2.dumps([array(LARGE), cbor2.CBORTag(TAG_CUT, 0)]),
        cbor2.dumps(array(LARGE))[:-1],
        cbor2.dumps(["x" * len(LARGE), LARGE]).replace(b"xx", b"x\xff"),
        *(b"\x82" + cbor2.dumps(array(LARGE)) + end for end in (
            b"\x1c", b"\x1f\x1c", b"\x5a\0\0", b"\x5a\0\1\0\0", b"\x18", b"\xda\0\0", b"\xfc",
            b"\x59", head(6, TAG_SET),
        )),
    ],
)  # fmt: skip
def test_nothing_is_cut_where_something_is_odd(body):
    found = seen(body)
    assert found.parts == [] or body.endswith(head(6, TAG_SET))
    assert refusal(body) == "" or body != cbor2.dumps(LARGE[1:])


def test_look_is_bounded_and_makes_pauses():
    turns: list[None] = []
    body = cbor2.dumps([[n, str(n)] for n in range(50_000)])
    look(memoryview(body), pause=lambda: turns.append(None))
    assert len(turns) >= len(body) // (16 * KIB)
    with pytest.raises(TooCostly):
        seen(body, most_bytes=8 * len(body) + 128 * 100_000)
    assert seen(body, most_bytes=8 * len(body) + 128 * 100_001).objects == 100_001
    assert UNSEEN_BYTES * (8 + 2 * 128) <= FREE_BYTES + 8 * UNSEEN_BYTES


# -- time ---------------------------------------------------------------------------


def test_a_map_of_colliding_keys_took_quadratic_time():
    # 80,000 of them, 1 MiB, blocked a worker for minutes.
    assert "more than 1000 keys" in refusal(said(colliding(3_000), GENEROUS))


@pytest.mark.parametrize("wrap", ["{}", "[{}]", "[{'a': [1, {}]}]", "{} without end"])
def test_keys_are_counted_wherever_they_are(wrap):
    for count, refused in ((1_000, False), (1_001, True)):
        inner = colliding(count)
        if "without end" in wrap:
            start = head(6, TAG_PAIRS)
            items = inner[len(start + head(4, 2 * count)) :]
            inner = start + b"\x9f" + items + b"\xff"
        if "1" in wrap:
            inner = b"\xa1\x61a\x82\1" + inner
        body = b"\x81" + inner if wrap.startswith("[") else inner
        assert bool(refusal(said(body, GENEROUS))) is refused


@pytest.mark.parametrize("members", [b"\xf9\x3c\1", b"\x82\0\1", b"\xd9\1\2\x80"])
def test_members_of_sets_are_counted(members):
    def body(count: int) -> bytes:
        # They must differ; what is counted is their kind.
        each = [b"\x82" + cbor2.dumps(n) + members for n in range(count)]
        return b"\xd9\1\2" + head(4, count) + b"".join(each)

    assert not refusal(body(1_000))
    assert "more than 1000 keys" in refusal(body(1_001))
    endless = b"\xd9\1\2\x9f" + body(1_001)[6:] + b"\xff"
    assert "more than 1000 keys" in refusal(said(endless, GENEROUS))


def test_long_keys_that_collide_were_compared_for_seconds():
    """Each with each: tuples of equal hashes, of which only the last part differs."""
    prime = (1 << 61) - 1
    keys = [(*[0] * 300, prime * n) for n in range(300)]
    with pytest.raises(EncodingError, match="more than 1000 keys"):
        encode(dict.fromkeys(keys))
    listed_keys = b"".join(cbor2.dumps(key) for key in keys)
    assert "more than 1000 keys" in refusal(head(6, TAG_SET) + head(4, 300) + listed_keys)
    short = {(n, "name", b"bytes", None, frozenset({n})): n for n in range(400)}
    assert decode(encode(short)) == short


@pytest.mark.parametrize(
    "keys",
    [
        [*range(-65_536, 65_537)],
        [f"{n}" for n in range(5_000)],
        [f"{n}".encode() for n in range(5_000)],
        [*(1 << 40 | n for n in range(1_000)), *map(str, range(1_000)), None, True],
    ],
    ids=["small integers", "text", "bytes", "mixed"],
)
def test_keys_that_nobody_can_choose_are_not_counted(keys):
    each: tuple[Any, ...] = (dict.fromkeys(keys, 1), set(keys))
    for value in each:
        assert decode(encode(value)) == value


@pytest.mark.parametrize("kind", [dict.fromkeys, set, lambda keys: {1: dict.fromkeys(keys)}])
def test_what_no_reader_takes_is_not_written(kind):
    encode(kind(range(1 << 40, (1 << 40) + 1_000)))
    for keys in (range(1 << 40, (1 << 40) + 1_001), [(n, 0) for n in range(1_001)]):
        with pytest.raises(EncodingError, match="more than 1000 keys"):
            encode(kind(keys))


def test_a_header_of_colliding_keys_was_decoded_for_minutes():
    keyed = head(5, 2) + colliding(2)[len(head(6, TAG_PAIRS) + head(4, 4)) :]
    with pytest.raises(ProtocolError, match="not CBOR"):
        messages.decode(b"\x82\x18\x20" + keyed, most_bytes=MIB)
    assert error_records.decode(keyed).code == "unreadable"
    assert "must be a text string or byte string" in refusal(keyed)


@pytest.mark.parametrize("item", [b"\x80", b"\xa0", b"\xa1\x60\x80", b"\x61a"])
def test_a_header_of_many_containers_took_the_router_half_a_second(item):
    body = listed(item, 100_000)
    with pytest.raises(ProtocolError, match="more than 4096 items that are not numbers"):
        messages.decode(body, most_bytes=MIB)


@pytest.mark.parametrize(
    "body",
    [
        listed(b"\0", 500_000),
        b"\x82\0" + listed(b"\0", 500_000),
        b"\x9a\xff\xff\xff\xff" + bytes(100_000),  # what it claims counts, and it lies
        b"\x82\0" + b"\xba" + (60_000).to_bytes(4, "big") + b"\x18\x20\0" * 60_000,
    ],
    ids=["numbers", "nested", "claimed", "map"],
)
def test_a_header_of_a_million_numbers_took_the_router_a_tenth_of_a_second(body):
    """No client needs them: a window is stated in two edges of nine bytes for each."""
    with pytest.raises(ProtocolError, match="more than 116572 items"):
        messages.decode(body, most_bytes=MIB)


def test_a_header_that_states_the_largest_window_is_read():
    """Every second sequence, and each of its edges in nine bytes."""
    wire = WireLimits()
    window = wire.header_bytes // 20
    edges = [2**62 + 2 * n for n in range(2 * window)]
    said = messages.Sync(bytes(16), bytes(16), 2**62, 2**62, 2**63 - 1, edges)
    header = messages.encode(said)
    assert len(header) > 0.9 * wire.header_bytes
    assert messages.decode(header, most_bytes=wire.header_bytes) == said


@pytest.mark.parametrize("body", [listed(b"\x80", 100_000), listed(b"\0", 2 * MIB)])
def test_an_error_record_was_decoded_whatever_it_cost(body):
    assert error_records.decode(body).code == "unreadable"
    info = ErrorInfo(
        code="x", verdict=Verdict.RAN_AND_FAILED, message="m" * MIB, traceback="t" * MIB,
        type="y" * MIB, worker="w" * MIB, incarnation="i" * MIB,
    )  # fmt: skip
    assert error_records.decode(error_records.encode(info)).code == "x"


LONG = messages.encode(messages.Finish(bytes(16), [*range(40_000)]))


@pytest.mark.parametrize("end", [b"\xf6", b"\x61", b"\x1c", b"\x1b"])
def test_the_end_of_a_long_header_is_left_to_the_decoder(end):
    with pytest.raises(ProtocolError, match="not CBOR"):
        messages.decode(LONG + end, most_bytes=MIB)


# -- work, counted ------------------------------------------------------------------


def heavy(body: bytes) -> bool:
    try:
        decode(said(body, GENEROUS), at_once=True)
    except TooMuchWork:
        return True
    return False


@pytest.mark.parametrize("item", BOMBS.values(), ids=BOMBS)
def test_what_takes_long_is_not_done_at_once(item):
    assert heavy(listed(item, 256 * KIB // len(item)))
    assert not heavy(listed(item, 20))


def test_what_only_looks_large_is_done_at_once():
    assert not heavy(encode({"a": bytes(4 * MIB), "b": "x" * MIB}))
    assert not heavy(encode(rollout()))


def test_a_look_does_not_take_longer_than_it_may():
    with pytest.raises(TooMuchWork):
        decode(encode(bytes(40 * MIB)), at_once=True)
    with pytest.raises(TooMuchWork):
        decode(encode("x" * 40 * MIB), at_once=True)
    with pytest.raises(TooMuchWork):  # of many digits, each takes as long as a thousand numbers
        decode(encode([Decimal(5)] * 2_000), at_once=True)
    with pytest.raises(TooMuchWork):
        decode(said(listed(b"\xd8\4\x82\0\0", 2_000), GENEROUS), at_once=True)
