"""The archive: works whose outcomes are in the journal only, and what memory holds of each.

Theory of operation
-------------------
An archived work is a string of bytes: number, times, sizes, digest and name, packed.  Most
keys of a server with a journal are archived, so what each takes counts: some 130 bytes for
itself, and 25 for its places here, where no object is made for each, and nothing that the
garbage collector looks at.  It is found by its name (:class:`LinearHashing`), and in chunks of
neighbouring generations: by number, for who asks for a page of keys, and by time, to end its
retention.

What wakes leaves a hole in its chunk, until half of that are holes.  A chunk is looked at
when the first retention in it ends, or up to a part in :data:`GRAINS` of a retention later:
so one look serves many, and nothing is dropped early.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import NamedTuple, TypeAlias, final

from .journal import Left
from .key_records import KeyName
from .limits import KeyLimits
from .requests import OUTCOME_BYTES
from .terms import DIGEST_BYTES

PACKED = struct.Struct("<QddQIHb32sB")
WHAT_COUNTS = struct.Struct("<Qd8xQI35xB")
"""Fields of a packed key for its bounds: number, beginning of the retention, sizes of outcome and
input, length of the namespace."""
NAME = PACKED.size - 1
"""Offset of the names: length of the namespace, namespace, key."""
_RERUN = (None, False, True)

Packed: TypeAlias = bytes
"""A key at rest, packed."""


class Archived(NamedTuple):
    """The fields of a key at rest."""

    number: int
    since_s: float
    """Beginning of its retention; 0 if that was before this epoch."""
    opened_s: float
    size_bytes: int
    """Size of its outcome in bytes."""
    body_bytes: int
    executions: int
    rerun: bool | None
    digest: bytes
    name: KeyName

    @property
    def disk_bytes(self) -> int:
        """Size in the journal in bytes, about."""
        return self.size_bytes + self.body_bytes + self.name.size_bytes


def fits(namespace: bytes, digest: bytes, body_bytes: int, executions: int) -> bool:
    """Whether a key with these fields can be packed; one that cannot stays in memory."""
    return (
        len(namespace) < 1 << 8 and len(digest) == DIGEST_BYTES
        and body_bytes < 1 << 32 and executions < 1 << 16
    )  # fmt: skip


def pack(
    number: int, since_s: float, opened_s: float, size_bytes: int, body_bytes: int,
    executions: int, rerun: bool | None, digest: bytes, namespace: bytes, key: bytes,
) -> Packed | None:  # fmt: skip
    """The fields of :class:`Archived`, packed; None if they do not fit.  No object is made of them:
    a server may find millions when it starts.  Both times of a key from an earlier epoch are 0."""
    if not fits(namespace, digest, body_bytes, executions):
        return None
    packed = PACKED.pack(
        number, since_s, opened_s, size_bytes, body_bytes, executions, _RERUN.index(rerun),
        digest, len(namespace),
    )  # fmt: skip
    return b"%b%b%b" % (packed, namespace, key)


def unpack(rested: Packed) -> Archived:
    """The fields that were packed."""
    *numbers, rerun, digest, length = PACKED.unpack_from(rested)
    end = PACKED.size + length
    name = KeyName(rested[PACKED.size : end], rested[end:])
    return Archived._make((*numbers, _RERUN[rerun], digest, name))


def packed_of(left: Left) -> Packed | None:
    """A generation with an outcome, as a journal has left it; None if that does not fit."""
    opened = left.opened
    return pack(
        opened.number, 0.0, 0.0, OUTCOME_BYTES + sum(map(len, (left.frames or ())[1:])),
        len(opened.body), left.executions, opened.rerun, opened.digest, opened.namespace,
        opened.key,
    )  # fmt: skip


CHUNK = 1024
"""Numbers of generations in a chunk."""
GRAINS = 64
BUCKET = 32
"""Keys in a bucket, about."""

_MARK = 40
"""Which bits of a hash are marks: none of those that say in which bucket it is."""
_BYTES = [bytes((each,)) for each in range(256)]


@final
class LinearHashing:
    """Archived works by their names, by linear hashing: a hash table without an object for
    each, which grows by one bucket at a time, so that no turn makes all of it anew (G10).

    Each bucket has its marks, a byte of the hash of each one in it.  Most names that are
    looked for are new, and are not there: that is told by these, without a look at others,
    which lie anywhere in memory."""

    def __init__(self) -> None:
        self._buckets: list[list[Packed]] = [[]]
        self._marks: list[bytes] = [b""]
        self._level = 1
        """A power of two: so many there were when all had last been split."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Packed]:
        return chain.from_iterable(self._buckets)

    def add(self, rested: Packed) -> None:
        """Add a key whose name is not there."""
        at = hash(rested[NAME:])
        number = self._number(at)
        self._buckets[number].append(rested)
        self._marks[number] += _BYTES[at >> _MARK & 255]
        self._count += 1
        if self._count > BUCKET * len(self._buckets):
            self._split()

    def fill(self, many: Sequence[Packed]) -> None:
        """All of these, while there is none: with as many buckets as they need at once."""
        count = max(1, len(many) // BUCKET)
        buckets: list[list[Packed]] = [[] for _ in range(count)]
        marks = [bytearray() for _ in range(count)]
        self._buckets, self._count = buckets, len(many)
        self._level = 1 << (count.bit_length() - 1)
        upper, lower = 2 * self._level - 1, self._level - 1
        for rested in many:
            at = hash(rested[NAME:])
            number = at & upper
            if number >= count:
                number = at & lower
            buckets[number].append(rested)
            marks[number].append(at >> _MARK & 255)
        self._marks = list(map(bytes, marks))

    def find(self, name: bytes) -> Packed | None:
        """The one of this name, as it is packed."""
        hashed = hash(name)
        number, mark = self._number(hashed), hashed >> _MARK & 255
        marks = self._marks[number]
        at = marks.find(mark)
        while at >= 0:
            rested = self._buckets[number][at]
            if len(rested) == NAME + len(name) and rested.endswith(name):
                return rested
            at = marks.find(mark, at + 1)
        return None

    def remove(self, rested: Packed) -> None:
        """Remove a key that is there."""
        number = self._number(hash(rested[NAME:]))
        bucket, marks = self._buckets[number], self._marks[number]
        at = bucket.index(rested)
        del bucket[at]
        self._marks[number] = marks[:at] + marks[at + 1 :]
        self._count -= 1

    def has(self, rested: Packed) -> bool:
        """Whether it is this one that is there."""
        bucket = self._buckets[self._number(hash(rested[NAME:]))]
        return any(each is rested for each in bucket)

    def _number(self, at: int) -> int:
        """In which bucket is what has this hash."""
        number = at & (2 * self._level - 1)
        return number if number < len(self._buckets) else at & (self._level - 1)

    def _split(self) -> None:
        level, old = self._level, len(self._buckets) - self._level
        bucket, marks = self._buckets[old], self._marks[old]
        goes = [hash(rested[NAME:]) & level for rested in bucket]
        stays = [not each for each in goes]
        self._buckets[old] = list(compress(bucket, stays))
        self._marks[old] = bytes(compress(marks, stays))
        self._buckets.append(list(compress(bucket, goes)))
        self._marks.append(bytes(compress(marks, goes)))
        if len(self._buckets) == 2 * level:
            self._level *= 2


class _Chunk:
    """Keys with neighbouring numbers, and holes."""

    __slots__ = ("holes", "keys", "look_s")

    def __init__(self) -> None:
        self.keys: list[Packed] = []
        self.holes = 0
        self.look_s = math.inf
        """No retention in it began before."""


class ArchiveUsage:
    """The usage of keys at rest."""

    __slots__ = ("disk_bytes", "keys")

    def __init__(self) -> None:
        self.keys = self.disk_bytes = 0


@final
class Archive:
    """All keys at rest."""

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.all = ArchiveUsage()
        self.restored_s = 0.0
        """Beginning of the retention of keys from before this epoch."""
        self._of_namespace: dict[bytes, ArchiveUsage] = {}
        self._names = LinearHashing()
        self._chunks: dict[int, _Chunk] = {}
        self._looks: list[tuple[float, int]] = []
        """A heap: when to look at which chunk.  What is not said there is over."""
        self._grain_s = limits.retention_s / GRAINS

    def usage(self, namespace: bytes) -> ArchiveUsage:
        """The usage of those of a namespace; empty: of all."""
        return self._of_namespace.get(namespace, ArchiveUsage()) if namespace else self.all

    def may_open(self, namespace: bytes) -> bool:
        """Whether the journal has room for what another key will leave in it."""
        limits, share, taken = self.limits, self.limits.namespace_share, self.all
        mine = self.usage(namespace)
        most = share * (limits.journal_keys - (taken.keys - mine.keys))
        most_bytes = share * (limits.journal_bytes - (taken.disk_bytes - mine.disk_bytes))
        return mine.keys < most and mine.disk_bytes < most_bytes

    def add(self, rested: Packed) -> None:
        """Add a key."""
        number, since_s, size_bytes, body_bytes, length = WHAT_COUNTS.unpack_from(rested)
        self._names.add(rested)
        namespace = rested[PACKED.size : PACKED.size + length]
        self._count(namespace, +1, size_bytes + body_bytes + len(rested) - PACKED.size)
        number //= CHUNK
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = _Chunk()
        chunk.keys.append(rested)
        if (since_s or self.restored_s) < chunk.look_s:
            self._look_at(number, chunk, since_s or self.restored_s)

    def find(self, name: KeyName) -> Packed | None:
        """The one of this name."""
        if len(name[0]) > 255:
            return None
        return self._names.find(b"%c%b%b" % (len(name[0]), *name))

    def take(self, name: KeyName) -> Archived | None:
        """The one of this name, which rests no more."""
        rested = self.find(name)
        if rested is None:
            return None
        self._names.remove(rested)
        fields = unpack(rested)
        self._count(name.namespace, -1, -fields.disk_bytes)
        number = fields.number // CHUNK
        chunk = self._chunks[number]
        chunk.holes += 1
        if 2 * chunk.holes >= len(chunk.keys):
            chunk.keys, chunk.holes = self._there(chunk), 0
            self._drop(number, chunk)
        return self._timed(fields)

    def _drop(self, number: int, chunk: _Chunk) -> None:
        """Forget an empty chunk, unless it is to be looked at: another look would be added with
        each key that is taken and comes back."""
        if not chunk.keys and chunk.look_s == math.inf:
            del self._chunks[number]

    def due(self, now_s: float) -> list[Archived]:
        """Keys of one chunk whose retention has ended; they are to be taken and closed."""
        found: list[Archived] = []
        if self.has_due(now_s):
            look_s, number = heapq.heappop(self._looks)
            chunk = self._chunks.get(number)
            if chunk is None or chunk.look_s != look_s:
                return found
            chunk.look_s = math.inf
            for each in self._there(chunk):
                fields = self._timed(unpack(each))
                if now_s - fields.since_s >= self.limits.retention_s:
                    found.append(fields)
                else:
                    self._look_at(number, chunk, fields.since_s)
            self._drop(number, chunk)
        return found

    def has_due(self, now_s: float) -> bool:
        """Whether one may be due."""
        return bool(self._looks) and now_s - self._looks[0][0] >= self.limits.retention_s

    def following(self, first: int, most: int) -> list[Archived]:
        """At most ``most`` keys from the generation with number ``first`` on, in order."""
        found: list[Archived] = []
        for number in sorted(each for each in self._chunks if each >= first // CHUNK):
            there = map(unpack, self._there(self._chunks[number]))
            found += map(self._timed, sorted(each for each in there if each.number >= first))
            if len(found) >= most:
                break
        return found[:most]

    def __iter__(self) -> Iterator[Archived]:
        return (self._timed(unpack(each)) for each in self._names)

    def restore(self, keys: Iterable[Packed], since_s: float) -> None:
        """Add the keys that an earlier epoch has left, before any other.  Their retention begins at
        ``since_s`` at the earliest.  There may be millions, so this takes fewer steps than
        :meth:`add`."""
        self.restored_s = since_s
        many = keys if isinstance(keys, list) else list(keys)
        self._names.fill(many)
        size, all_bytes = PACKED.size, 0
        last, chunk = -1, _Chunk()
        for rested in many:
            number, _, size_bytes, body_bytes, length = WHAT_COUNTS.unpack_from(rested)
            if number // CHUNK != last:
                last = number // CHUNK
                chunk = self._restored_chunk(last)
            chunk.keys.append(rested)
            namespace = rested[size : size + length]
            mine = self._of_namespace.get(namespace)
            if mine is None:
                mine = self._of_namespace[namespace] = ArchiveUsage()
            disk_bytes = size_bytes + body_bytes + len(rested) - size
            mine.keys += 1
            mine.disk_bytes += disk_bytes
            all_bytes += disk_bytes
        self.all.keys += len(many)
        self.all.disk_bytes += all_bytes

    def _restored_chunk(self, number: int) -> _Chunk:
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = _Chunk()
            self._look_at(number, chunk, self.restored_s)
        return chunk

    def _timed(self, fields: Archived) -> Archived:
        return fields if fields.since_s else fields._replace(since_s=self.restored_s)

    def _there(self, chunk: _Chunk) -> list[Packed]:
        return [each for each in chunk.keys if self._names.has(each)]

    def _look_at(self, number: int, chunk: _Chunk, since_s: float) -> None:
        look_s = math.ceil(since_s / self._grain_s) * self._grain_s
        if look_s < chunk.look_s:
            chunk.look_s = look_s
            heapq.heappush(self._looks, (look_s, number))

    def _count(self, namespace: bytes, keys: int, disk_bytes: int) -> None:
        mine = self._of_namespace.get(namespace)
        if mine is None:
            mine = self._of_namespace[namespace] = ArchiveUsage()
        taken = self.all
        taken.keys += keys
        taken.disk_bytes += disk_bytes
        mine.keys += keys
        mine.disk_bytes += disk_bytes
        if not mine.keys:
            del self._of_namespace[namespace]
