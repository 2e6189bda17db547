"""The archive: works as bytes, found by name, by number and by time."""

from __future__ import annotations

import sys

import pytest

from trio_envserve.core.archive import (
    CHUNK,
    Archive,
    Archived,
    LinearHashing,
    Packed,
    fits,
    pack,
    packed_of,
    unpack,
)
from trio_envserve.core.journal import Left, Opened
from trio_envserve.core.key_records import KeyName
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.requests import OUTCOME_BYTES


def fields(number: int, *, since_s: float = 1.0, namespace: bytes = b"team") -> Archived:
    name = KeyName(namespace, b"key/%d" % number)
    return Archived(number, since_s, 0.5, 70, 20, 2, None, bytes(range(32)), name)


def packed_from(one: Archived) -> Packed | None:
    return pack(*one[:-1], *one.name)


def rested(number: int, **how: object) -> Packed:
    made = packed_from(fields(number, **how))  # type: ignore[arg-type]  # by name
    assert made is not None
    return made


@pytest.mark.parametrize("rerun", [None, False, True])
def test_all_of_it_comes_back(rerun):
    one = fields(2**40)._replace(rerun=rerun)
    packed = packed_from(one)
    assert packed is not None
    assert unpack(packed) == one
    assert sys.getsizeof(packed) <= 128


@pytest.mark.parametrize(
    "change",
    [
        {"body_bytes": 2**32}, {"executions": 2**16}, {"digest": b"d"},
        {"name": KeyName(bytes(256), b"key")},
    ],
)  # fmt: skip
def test_what_does_not_fit_stays_awake(change):
    one = fields(0)._replace(**change)
    assert not fits(one.name.namespace, one.digest, one.body_bytes, one.executions)
    assert packed_from(one) is None


def test_what_a_journal_has_left_of_one():
    opened = Opened(7, b"team", b"k", bytes(32), True, 4, 1, bytes(16), b"body")
    left = packed_of(Left(opened, set(), 2, (b"head", b"payload")))
    assert left is not None
    found = unpack(left)
    assert (found.number, found.executions) == (7, 2)  # one that may have been is not counted
    assert (found.size_bytes, found.body_bytes) == (OUTCOME_BYTES + 7, 4)
    assert (found.rerun, found.name) == (True, KeyName(b"team", b"k"))


LIMITS = KeyLimits(retention_s=64.0, journal_keys=8, journal_bytes=1000)


def test_one_is_found_by_its_namespace_and_its_name_once():
    resting = Archive(LIMITS)
    resting.add(rested(1))
    for other in ((b"team", b"other"), (b"teamk", b"ey/1"), (b"x" * 256, b"key/1")):
        assert resting.take(KeyName(*other)) is None
    assert resting.take(KeyName(b"team", b"key/1")) == fields(1)
    assert resting.take(KeyName(b"team", b"key/1")) is None
    assert (resting.all.keys, resting.all.disk_bytes) == (0, 0)


def test_names_grow_by_one_bucket_at_a_time_and_lose_nothing():
    names = LinearHashing()
    made = [rested(number) for number in range(500)]
    for each in made:
        before = len(names._buckets)
        names.add(each)
        assert len(names._buckets) <= before + 1
    assert max(map(len, names._buckets)) < 100
    assert sorted(names) == sorted(made)
    for number, each in enumerate(made):
        assert names.find(b"\x04teamkey/%d" % number) is each
        if number % 2:
            names.remove(each)
    assert len(names) == 250
    assert [names.has(each) for each in made] == [True, False] * 250


def test_what_wakes_leaves_nothing_behind():
    resting = Archive(LIMITS)
    for number in range(3 * CHUNK):
        resting.add(rested(number))
    for number in range(3 * CHUNK):
        resting.take(fields(number).name)
    assert not list(resting)
    assert ended(resting, 100.0) == []
    assert not resting._chunks
    assert not resting._looks


def test_an_empty_chunk_got_another_look_each_time_that_a_key_came_back():
    """The looks grew without bound, until the retention of the first of them ended."""
    resting = Archive(LIMITS)
    for _ in range(1000):
        resting.add(rested(0))
        resting.take(fields(0).name)
    assert len(resting._looks) == 1


def test_one_that_wakes_and_rests_again_and_again_takes_no_more():
    resting = Archive(LIMITS)
    resting.add(rested(1))
    for turn in range(1000):
        resting.take(fields(0).name)
        resting.add(rested(0, since_s=float(turn)))
    (chunk,) = resting._chunks.values()
    assert len(chunk.keys) <= 4
    assert len(resting._looks) < 100
    assert [each.number for each in resting.following(0, 10)] == [0, 1]


def test_pages_go_on_from_a_number_over_chunks():
    resting = Archive(LIMITS)
    numbers = [5, 3, CHUNK + 2, 5 * CHUNK, CHUNK - 1]
    for number in numbers:
        resting.add(rested(number))
    resting.take(fields(3).name)
    found = [each.number for each in resting.following(4, 3)]
    assert found == [5, CHUNK - 1, CHUNK + 2]
    assert [each.number for each in resting.following(CHUNK + 3, 3)] == [5 * CHUNK]


def ended(resting: Archive, now_s: float) -> list[int]:
    """What is due by now, and is taken."""
    found = []
    while resting.has_due(now_s):
        for each in resting.due(now_s):
            resting.take(each.name)
            found.append(each.number)
    return sorted(found)


def test_retention_ends_in_time_and_never_early():
    resting = Archive(LIMITS)
    for number in range(20):
        resting.add(rested(number, since_s=10.25 + number))
    assert ended(resting, 74.2) == []
    found: list[int] = []
    for number in range(20):
        now_s = 75.3 + number
        found += ended(resting, now_s)
        assert number in found
        assert all(10.25 + each + 64.0 <= now_s for each in found)
    assert not resting._looks


def test_what_an_earlier_epoch_has_left_is_kept_as_long_from_a_later_time():
    resting = Archive(LIMITS)
    resting.restore([rested(1, since_s=0.0)], 100.0)
    resting.add(rested(2, since_s=50.0))
    assert next(iter(resting)).since_s == 100.0
    assert resting.usage(b"team").disk_bytes == 2 * fields(1).disk_bytes
    assert ended(resting, 163.0) == [2]
    assert ended(resting, 165.0) == [1]


def test_what_an_earlier_epoch_has_left_need_not_come_in_order():
    resting = Archive(LIMITS)
    numbers = (CHUNK, 1, CHUNK + 1)
    resting.restore([rested(number, since_s=0.0) for number in numbers], 100.0)
    assert [each.number for each in resting.following(0, 9)] == [1, CHUNK, CHUNK + 1]


def test_g8_the_journal_has_bounds_and_a_namespace_its_share():
    resting = Archive(LIMITS)
    for number in range(4):
        assert resting.may_open(b"team")
        resting.add(rested(number))
    assert not resting.may_open(b"team")
    assert resting.may_open(b"other")
    assert resting.usage(b"team").keys == resting.usage(b"").keys == 4
    large = Archive(LIMITS)
    packed = packed_from(fields(0)._replace(size_bytes=500))
    assert packed is not None
    large.add(packed)
    assert not large.may_open(b"team")
    assert large.may_open(b"other")
