"""Keys at rest, for tests."""

from __future__ import annotations

from trio_envserve.core.key_records import KeyName
from trio_envserve.core.rested import Rested, RestedFields, pack


def fields(number: int, *, since_s: float = 1.0, namespace: bytes = b"team") -> RestedFields:
    name = KeyName(namespace, b"key/%d" % number)
    return RestedFields(number, since_s, 0.5, 70, 20, 2, None, bytes(range(32)), name)


def rested(number: int, **how: object) -> Rested:
    made = pack(fields(number, **how))  # type: ignore[arg-type]  # by name
    assert made is not None
    return made
