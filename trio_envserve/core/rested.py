"""A key at rest as a string of bytes: how it is packed, and of what.

Memory holds no more of it than what must be decided; its outcome is in the journal
(:mod:`.resting`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from .key_records import KeyName
from .requests import OUTCOME_BYTES
from .restored import Left
from .terms import DIGEST_BYTES

PACKED = struct.Struct("<QddQIHb32sB")
WHAT_COUNTS = struct.Struct("<Qd8xQI35xB")
"""Of what is packed: number, since when, sizes of outcome and input, and how long the namespace
is."""
NAME = PACKED.size - 1
"""Where the names begin: how long the namespace is, that, and the key."""
_RERUN = (None, False, True)

Rested: TypeAlias = bytes
"""A key at rest, packed."""


class RestedFields(NamedTuple):
    """The fields of a key at rest."""

    number: int
    since_s: float
    """When its retention began; 0 if before this epoch."""
    opened_s: float
    size_bytes: int
    """Of its outcome."""
    body_bytes: int
    executions: int
    rerun: bool | None
    digest: bytes
    name: KeyName

    @property
    def disk_bytes(self) -> int:
        """Its size in the journal, about."""
        return self.size_bytes + self.body_bytes + self.name.size_bytes


def pack(fields: RestedFields) -> Rested | None:
    """None if it does not fit, and must stay awake."""
    return _packed(*fields[:-1], *fields.name)


def pack_left(
    number: int, size_bytes: int, body_bytes: int, executions: int, rerun: bool | None,
    digest: bytes, namespace: bytes, key: bytes,
) -> Rested | None:  # fmt: skip
    """The same of one that an earlier epoch has left, without an object for its fields: a
    server may find millions when it starts."""
    return _packed(
        number, 0.0, 0.0, size_bytes, body_bytes, executions, rerun, digest, namespace, key
    )


def _packed(
    number: int, since_s: float, opened_s: float, size_bytes: int, body_bytes: int,
    executions: int, rerun: bool | None, digest: bytes, namespace: bytes, key: bytes,
) -> Rested | None:  # fmt: skip
    if len(digest) != DIGEST_BYTES:
        return None
    try:
        packed = PACKED.pack(
            number, since_s, opened_s, size_bytes, body_bytes, executions, _RERUN.index(rerun),
            digest, len(namespace),
        )  # fmt: skip
    except struct.error:
        return None
    return b"%b%b%b" % (packed, namespace, key)


def unpack(rested: Rested) -> RestedFields:
    """The fields that were packed."""
    *numbers, rerun, digest, length = PACKED.unpack_from(rested)
    end = PACKED.size + length
    name = KeyName(rested[PACKED.size : end], rested[end:])
    return RestedFields._make((*numbers, _RERUN[rerun], digest, name))


def left_at_rest(left: Left) -> Rested | None:
    """A generation with an outcome, as a journal has left it; None if that does not fit."""
    opened = left.opened
    return pack_left(
        opened.number, OUTCOME_BYTES + sum(map(len, (left.frames or ())[1:])), len(opened.body),
        left.executions, opened.rerun, opened.digest, opened.namespace, opened.key,
    )  # fmt: skip
