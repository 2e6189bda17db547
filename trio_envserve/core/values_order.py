"""The order of keys, where bodies are compared.

A dict keeps the order in which it was filled, which is no part of what it says.  Where
equal values must have equal bytes (the input of a keyed call), the keys of each map are
written in the bytewise order of their encodings, as section 4.2.1 of RFC 8949 has it.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import cbor2

from .values_parts import PIECE_ITEMS

Pair: TypeAlias = "tuple[object, object]"
_WITH_MEMBERS = frozenset((dict, list, tuple))


def in_order(pairs: Iterable[Pair], count: int, pause: Callable[[], None] | None) -> Iterable[Pair]:
    """``count`` pairs of a map, whose keys have been lowered, in order.  If there is a
    ``pause``, they are put there in pieces."""
    if pause is None or count <= PIECE_ITEMS:
        return sorted(pairs, key=_encoded_key)
    pieces: list[list[Pair]] = []
    rest = iter(pairs)
    while piece := list(itertools.islice(rest, PIECE_ITEMS)):
        pieces.append(sorted(piece, key=_encoded_key))
        pause()
    return heapq.merge(*pieces, key=_encoded_key)


def small_in_order(value: Any) -> object:
    """A value of plain types (:func:`~.values_lower.is_small`), all its maps in order."""
    if type(value) is dict:
        names = _names_in_order(value) if len(value) > 1 else value
        return {
            name: small_in_order(member)
            if type(member := value[name]) in _WITH_MEMBERS and member
            else member
            for name in names
        }
    if type(value) in _WITH_MEMBERS:
        return [small_in_order(member) for member in value]
    return value


def _names_in_order(names: Iterable[Any]) -> Iterable[Any]:
    """Plain keys by their encodings."""
    try:
        return _texts_in_order(tuple(names))
    except TypeError:  # they are not all text
        return sorted(names, key=cbor2.dumps)


@functools.lru_cache(256)  # most calls have the same names
def _texts_in_order(names: tuple[str, ...]) -> Iterable[str]:
    """The texts in the order of their encodings.  ASCII texts, which most are, need not be encoded
    for that: the shorter text comes first, then alphabetical order counts."""
    is_ascii = "".join(names).isascii()
    return sorted(sorted(names), key=len) if is_ascii else sorted(names, key=cbor2.dumps)


def _encoded_key(pair: Pair) -> bytes:
    encoded: bytes = cbor2.dumps(pair[0])
    return encoded
