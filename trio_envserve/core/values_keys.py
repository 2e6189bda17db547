"""Keys of maps and members of sets whose hashes can be chosen.

Hashes of text and bytes differ in every process, those of numbers and of tuples do
not: a peer can choose them so that all collide, and a map then takes quadratic time.
Integers of 17 bits are too few for that: of those chosen to do most harm, some 10,000,
each takes 4 µs.  A map or set may have no more than ``WireLimits.keys`` of all others,
which take 15 µs each if all collide.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_MOST_HARMLESS: Final = 1 << 16
_HARMLESS: Final = frozenset({str, bytes, bool, type(None)})


def chosen(keys: Collection[object]) -> int:
    """The number of these keys whose hashes can be chosen."""
    kinds = set(map(type, keys)) - _HARMLESS
    if not kinds:
        return 0
    return sum(
        type(key) in kinds and not (type(key) is int and -_MOST_HARMLESS <= key <= _MOST_HARMLESS)
        for key in keys
    )


def too_many(most: int) -> str:
    """The reason for which a map or set with more than ``most`` such keys is refused, and what to
    do."""
    return (
        f"it has more than {most} keys or members that are neither text, bytes nor integers "
        f"up to {_MOST_HARMLESS} (write them as text, or all of it as a list)"
    )
