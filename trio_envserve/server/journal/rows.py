"""The rows of a journal: what a record looks like on disk, and what proves that it is whole."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import cbor2

from ...core.journal import (
    KINDS,
    Completed,
    OfResource,
    Opened,
    Record,
    StateSaved,
    plain_of,
    record_of,
)
from ...core.limits import KIB
from ...core.terms import Body
from .folder import Identity

FILE_BYTES = 256 * KIB
"""A body that is larger is a file of its own."""

APPLICATION = 0x7452454A
"""Marks the database as a journal of this package."""
SCHEMA = 2
"""Which tables and records it has.  A later one is not read."""
SCHEMA_WITH_STATES = 3
"""That of a journal in which saved states are, or have been."""
SCHEMA_WITH_RESOURCES = 4
"""That of a journal in which resources are, or have been."""
RESOURCES_FROM = 1 << 62
"""Number, in the rows of the first resource: no generation has one as great."""
STATES = f"substr(record, 2, 1) = x'{KINDS.index(StateSaved):02x}'"
"""Condition for the rows of saved states: a record is a short list, and begins with its kind."""

TABLES = (
    """CREATE TABLE records (
        row INTEGER PRIMARY KEY,
        number INTEGER,          -- of its generation or resource; none: it is of a command
        uptime_s REAL NOT NULL,  -- when it was saved, in time that servers were up
        record BLOB NOT NULL,    -- CBOR; a body stands as its length
        file INTEGER NOT NULL,   -- 1: the body is in a file, and the column has its digest
        body BLOB,
        sum BLOB NOT NULL        -- of all of these
    )""",
    "CREATE INDEX of_number ON records (number)",
    "CREATE TABLE state (id INTEGER PRIMARY KEY, state BLOB NOT NULL, sum BLOB NOT NULL)",
)

_NUMBERS = struct.Struct("<qqdB")
_BEGUN = blake2b(digest_size=8)
"""To begin one anew takes longer than to hash a row."""


class Row(NamedTuple):
    """A row of ``records``."""

    row: int
    number: int | None
    uptime_s: float
    record: bytes
    file: int
    body: bytes | None
    sum: bytes

    def is_whole(self) -> bool:
        """Whether it is as it was written."""
        try:
            return self.sum == sum_of(*self[:-1])
        except (TypeError, struct.error, OverflowError):  # other types than were written
            return False


class Packed(NamedTuple):
    """Rows that are to be written."""

    values: list[Any]
    """Values of all rows, one row after the other.  SQLite's module takes a byte array as it is;
    for each ``bytes`` it looks for an adapter, which takes longer than to write the row."""
    sums: int
    """The exclusive or of their sums."""
    bodies: dict[int, Body]
    """Bodies that are to be in files beside the database, by row."""


class State(NamedTuple):
    """The state of all records together."""

    records: int
    """Number of all records that were ever written."""
    all_sums: int
    """The exclusive or of the sums of those that are there."""
    next_number: int
    """Number of the generation that is opened next."""
    uptime_s: float
    """Seconds for which servers have been up with this journal."""
    adopted: int
    """Number of times that a person has taken it over from elsewhere."""
    identity: Identity


def sum_of(
    row: int, number: int | None, uptime_s: float, record: bytes, file: int, body: bytes | None
) -> bytes:
    """The proof that a row is whole."""
    numbers = _NUMBERS.pack(row, -1 if number is None else number, uptime_s, file)
    # Joined, which is quicker than one after the other: a body is no larger than FILE_BYTES.
    all_of_it = b"%b%d,%b%b" % (numbers, len(record), record, b"" if body is None else body)
    sum = _BEGUN.copy()
    sum.update(all_of_it)
    return sum.digest()


def whole_sums(rows: Iterable[Sequence[Any]]) -> int | None:
    """The exclusive or of the sums of rows, given as the values of :class:`Row`; None if one
    of them is not as it was written."""
    sums = 0
    for *values, sum in rows:
        if sum != sum_of(*values):
            return None
        sums ^= number_of(sum)
    return sums


def number_of(sum: bytes) -> int:
    """A sum as a number."""
    return int.from_bytes(sum, "little")


def digest_of(body: Body) -> bytes:
    """The proof that a file has the body that it was written with."""
    return blake2b(body, digest_size=16).digest()


def pack_rows(records: Iterable[Record], row: int, uptime_s: float) -> Packed:
    """The rows of records that come after this one."""
    values: list[Any] = []
    bodies: dict[int, Body] = {}
    sums = 0
    for record in records:
        row += 1
        number: int | None = getattr(record, "number", None)
        body: Body | None = None
        if isinstance(record, Completed):
            body = record.frames[1]
        elif isinstance(record, (Opened, StateSaved)):
            body = record.body
        elif isinstance(record, OfResource):
            number = RESOURCES_FROM + record.resource
        file, kept = 0, b""
        if body is not None and len(body) > FILE_BYTES:
            file, kept, bodies[row] = 1, digest_of(body), body
        elif body is not None:
            kept = bytes(body)
        plain = cbor2.dumps(plain_of(record, len))
        sum = sum_of(row, number, uptime_s, plain, file, kept)
        sums ^= number_of(sum)
        in_row = None if body is None else bytearray(kept)
        values += row, number, uptime_s, bytearray(plain), file, in_row, bytearray(sum)
    return Packed(values, sums, bodies)


def schema_of(records: Collection[Record]) -> int:
    """Least schema of a journal with these records."""
    if any(isinstance(record, OfResource) for record in records):
        return SCHEMA_WITH_RESOURCES
    has_more = any(
        isinstance(record, StateSaved)
        or (isinstance(record, Opened) and record.grace_s is not None)
        for record in records
    )
    return SCHEMA_WITH_STATES if has_more else SCHEMA


def read_row(row: Row, body: bytes | None) -> Record:
    """The record of a row that is whole, with its body.  A body that is None and should be
    there is as many zeros."""
    plain: list[Any] = cbor2.loads(row.record)
    if body is not None:
        plain[-1] = body
    return record_of(plain)


def pack_state(state: State) -> tuple[bytes, bytes]:
    """The state, and its sum."""
    *plain, identity = state
    packed = cbor2.dumps([*plain, list(identity)])
    return packed, blake2b(packed, digest_size=8).digest()


def unpack_state(packed: bytes, sum: bytes) -> State:
    """Raises ValueError if it is not as it was written."""
    if blake2b(packed, digest_size=8).digest() != sum:
        raise ValueError("the row of the state was changed")
    plain: list[Any] = cbor2.loads(packed)
    identity = Identity(*plain.pop())
    records, all_sums, next_number, uptime_s, adopted = plain
    return State(records, all_sums, next_number, uptime_s, adopted, identity)
