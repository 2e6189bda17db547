"""What a body costs whoever decodes it: memory by prices, time by bounded keys."""

from __future__ import annotations

import datetime
import random
import tracemalloc
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_envserve.core import cbor_heads, error_records, messages, values_prices, values_scan
from trio_envserve.core.errors import ErrorInfo, ProtocolError
from trio_envserve.core.limits import KIB, MIB, WireLimits
from trio_envserve.core.terms import Verdict
from trio_envserve.core.values import TAG_PADDED, DecodingError, EncodingError, decode, encode
from trio_envserve.core.values_parts import written_head as head
from trio_envserve.core.values_scan import TooMuchWork
from trio_envserve.testing.strategies import hostile_bodies, values

LIMITS = WireLimits()


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


def cost(body: bytes) -> int:
    return values_scan.cost_bytes(memoryview(body), LIMITS)


def colliding(count: int) -> bytes:
    """A map of large integers whose hashes are all the same."""
    prime = (1 << 61) - 1  # what Python's hashes of integers are taken modulo
    keys = [cbor2.dumps(prime * factor) for factor in range(count, 2 * count)]
    return head(5, count) + b"".join(key + b"\0" for key in keys)


# -- memory -------------------------------------------------------------------------

BOMBS = {
    "empty lists": b"\x80",
    "lists of one": b"\x81\0",
    "empty maps": b"\xa0",
    "maps of one": b"\xa1\0\0",
    "maps without end": b"\xbf\0\0\xff",
    "maps that say so in long": b"\xb8\1\0\0",
    "empty sets": b"\xd9\1\2\x80",
    "sets of five": b"\xd9\1\2\x85\0\1\2\3\4",
    "sets without end": b"\xd9\1\2\x9f\0\1\2\3\4\xff",
    "empty arrays": b"\xd8\x40\x40",
    "arrays without dimension": b"\xd8\x28\x82\x80\xd8\x40\x41\0",
    "negative integers": b"\x37",
    "half floats": b"\xf9\x3c\1",
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
    said = refusal(listed(item, 200_000))
    assert "more than" in said
    assert "bytes of memory" in said


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
        value = decode(body, limits=GENEROUS)
    except DecodingError:
        return -1
    else:
        now, _ = tracemalloc.get_traced_memory()
        del value
        return now
    finally:
        tracemalloc.stop()


GENEROUS = WireLimits(value_times=1_000)
OVERHEAD_BYTES = 16 * KIB
"""What tracemalloc and caches take; the values below are made many times over."""


@pytest.mark.parametrize("item", BOMBS.values(), ids=BOMBS)
def test_a_price_is_no_less_than_what_is_taken(item):
    body = listed(item, 2_000)
    taken(body)  # imports, caches
    assert 0 < taken(body) <= cost(body) + OVERHEAD_BYTES


@settings(max_examples=100)
@given(st.one_of(values().map(encode), hostile_bodies()))
def test_no_value_takes_more_than_its_price(item):
    body = listed(item, 64)
    if refusal(body, limits=GENEROUS) == "":
        assert taken(body) <= cost(body) + OVERHEAD_BYTES


@pytest.mark.parametrize("count", [1, 5, 6, 11, 22, 86, 171, 1_366, 10_923, 43_691])
@pytest.mark.parametrize("kind", ["list", "map", "set"])
def test_a_container_of_any_size_takes_no_more_than_its_price(kind, count):
    members = [f"{number:06}" for number in range(count)]
    value: Any = {"list": members, "map": dict.fromkeys(members), "set": set(members)}[kind]
    body = encode(value)
    assert taken(body) <= cost(body) + OVERHEAD_BYTES


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
    assert cost_of_whole(body) <= 8 * len(body) + MIB
    assert decode(body) == value


def cost_of_whole(body: bytes) -> int:
    """What the value costs, without padding."""
    padded = head(6, TAG_PADDED) + b"\x82"
    if not body.startswith(padded):
        return cost(body)
    _, length, start = cbor_heads.head(memoryview(body), len(padded))
    return cost(body[start + length :])


@given(values(), st.integers(0, 300))
def test_padding_means_nothing(value, length):
    body = encode(value)
    padded = head(6, TAG_PADDED) + b"\x82" + head(2, length) + bytes(length) + body
    assert encode(decode(padded)) == encode(decode(body))


def test_padding_is_no_longer_than_it_has_to_be():
    value: list[Any] = [[] for _ in range(20_000)]
    body = encode(value)
    most = values_prices.most_bytes(len(body), LIMITS)
    assert cost_of_whole(body) <= most < cost_of_whole(body) + 300
    assert len(body) > len(cbor2.dumps(value))


@pytest.mark.parametrize(
    "body",
    [
        head(6, TAG_PADDED) + b"\x82",
        head(6, TAG_PADDED) + b"\x82\x41",
        head(6, TAG_PADDED) + b"\x82\x41\0",
        head(6, TAG_PADDED) + b"\x82\x61a\0",
        head(6, TAG_PADDED) + b"\x82\x5f\xff\0",
        head(6, TAG_PADDED) + b"\x82\x5c\0",
        head(6, TAG_PADDED) + b"\x82\x40\0\0",
        head(6, TAG_PADDED) + b"\x83\x40\0\0",
        b"\x81" + head(6, TAG_PADDED) + b"\x82\x40\0",
    ],
)
def test_what_is_no_padding_is_refused(body):
    assert refusal(body)


# -- time ---------------------------------------------------------------------------


def test_a_map_of_colliding_keys_took_quadratic_time():
    # 80,000 of them, 1 MiB, blocked a worker for minutes.
    assert "more than 1000 keys" in refusal(colliding(3_000))


@pytest.mark.parametrize("wrap", ["{}", "[{}]", "[{'a': [1, {}]}]", "{} without end"])
def test_keys_are_counted_wherever_they_are(wrap):
    for count, refused in ((1_000, False), (1_001, True)):
        inner = colliding(count)
        if "without end" in wrap:
            inner = b"\xbf" + inner[len(head(5, count)) :] + b"\xff"
        if "1" in wrap:
            inner = b"\xa1\x61a\x82\1" + inner
        body = b"\x81" + inner if wrap.startswith("[") else inner
        assert bool(refusal(body)) is refused


@pytest.mark.parametrize("members", [b"\xf9\x3c\1", b"\x82\0\1", b"\xd9\1\2\x80"])
def test_members_of_sets_are_counted(members):
    def body(count: int) -> bytes:
        # They must differ; what is counted is their kind.
        each = [b"\x82" + cbor2.dumps(n) + members for n in range(count)]
        return b"\xd9\1\2" + head(4, count) + b"".join(each)

    assert not refusal(body(1_000))
    assert "more than 1000 keys" in refusal(body(1_001))
    endless = b"\xd9\1\2\x9f" + body(1_001)[6:] + b"\xff"
    assert "more than 1000 keys" in refusal(endless, limits=GENEROUS)


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
    body = b"\x82\x18\x20" + colliding(2)
    with pytest.raises(ProtocolError, match="not CBOR"):
        messages.decode(body, most_bytes=MIB)
    assert error_records.decode(colliding(2)).code == "unreadable"


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


def test_the_message_says_where_and_what_to_do():
    said = refusal(encode({"steps": [1, 2]})[:-1], root="result")
    assert said.startswith("result.steps[1]: ")
    said = refusal(b"\xa1\x61a\x82\0" + colliding(1_001))
    assert said.startswith("value.a[1]: ")
    assert "write them as text" in said
    assert refusal(listed(b"\x80", 1_000_000), root="result").startswith("result: ")


# -- work, counted ------------------------------------------------------------------


def heavy(body: bytes) -> bool:
    try:
        decode(body, limits=GENEROUS, at_once=True)
    except TooMuchWork:
        return True
    return False


@pytest.mark.parametrize("item", BOMBS.values(), ids=BOMBS)
def test_what_takes_long_is_not_done_at_once(item):
    assert heavy(listed(item, 256 * KIB // len(item)))
    assert not heavy(listed(item, 100))


def test_what_only_looks_large_is_done_at_once():
    assert not heavy(encode({"a": bytes(4 * MIB), "b": "x" * MIB}))
    assert not heavy(encode(rollout()))


def test_a_look_does_not_take_longer_than_it_may():
    with pytest.raises(TooMuchWork):
        decode(encode(bytes(40 * MIB)), at_once=True)
    with pytest.raises(TooMuchWork):
        decode(encode("x" * 40 * MIB), at_once=True)
    with pytest.raises(TooMuchWork):  # its keys may be of the kind that collide
        decode(encode({f"{n:9}": 0 for n in range(2_000)}), at_once=True)
    with pytest.raises(TooMuchWork):
        decode(colliding(2_000), at_once=True)
