"""Lowering: from a value to what the compiled encoder takes.

Theory of operation
-------------------
:class:`Lowering` walks a value once.  It looks at the types of a container's members in one sweep;
a container is passed on itself if all its members are, and is rebuilt with its members lowered if
not.  The result consists of exact dicts, lists, tuples, scalars, byte strings and CBOR tags:
nothing about which the encoder would decide by itself, and never deeper than the limit.

Byte strings and arrays that are large make their containers come out as
:class:`Pieces`: encoded parts that only have to be joined, among them the large
data itself, uncopied.

With a ``pause`` the walk works in pieces of at most ``PIECE_ITEMS`` items, so that no
call into compiled code takes long, and runs no code of the value's classes: it may be
in another thread than theirs.
"""

from __future__ import annotations

import collections.abc
import enum
import itertools
from typing import TYPE_CHECKING, Any, Final

import cbor2

from . import arrays as _arrays
from . import objects as _objects
from .values_keys import chosen, too_many
from .values_order import in_order
from .values_parts import (
    LEAST_PIECE_BYTES,
    PIECE_ITEMS,
    PLAIN,
    Pieces,
    bytes_pieces,
    encoded_array,
    joined,
    map_joined,
    written_head,
)
from .values_paths import Refusal, step
from .values_prices import TAG_SET
from .values_scan import TooMuchWork

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from .limits import WireLimits

_SUPPORTED: Final = (
    "None, bool, numbers, text, bytes, lists, dicts, sets, numpy arrays, torch tensors, "
    "dates, UUIDs, Decimals, enums, paths, dataclasses, attrs classes, pydantic models"
)

_LEAF_ITEMS: Final = 8
"""More items than the encoding of any tagged scalar or array has (without dimensions)."""

_LEAF_CONTAINERS: Final = 5
"""Containers that, with ``_LEAF_ITEMS`` items, cost at least as much as such an encoding."""
_ITEM_COST_BYTES: Final = 130
_CONTAINER_COST_BYTES: Final = 512

_CONTAINER_WORK: Final = 5
"""Number of items whose encoding takes as long as that of a container, with its reader's bound."""

_OF_NOBODY: Final = frozenset(
    {"builtins", "collections", "datetime", "decimal", "uuid", "pathlib", "numpy", "torch", "cbor2"}
)
"""Modules whose classes run no code but their own, in any thread."""


SMALL_ITEMS: Final = 256
SMALL_DEPTH: Final = 8
SMALL_COST_BYTES: Final = SMALL_ITEMS * (_ITEM_COST_BYTES + _CONTAINER_COST_BYTES)
"""The cost of a small value for its reader at most, besides four times its body's length."""


def takes_small(limits: WireLimits) -> bool:
    """Whether no small value exceeds these limits."""
    return (
        limits.items > SMALL_ITEMS
        and limits.keys > SMALL_ITEMS
        and limits.depth >= SMALL_DEPTH
        and limits.value_bytes >= SMALL_COST_BYTES
        and limits.value_times >= 4
    )


def is_small(value: object) -> bool:
    """Whether the encoder can have the value as it is: few items of plain types.  Most
    inputs and results are such, and a look costs less than a :class:`Lowering`."""
    return _items_left(value, SMALL_ITEMS, SMALL_DEPTH) >= 0


def _items_left(value: object, left: int, depth: int) -> int:
    """The number of ``left`` items that remain after the members of a value; negative if the value
    is not small."""
    members: Collection[Any]
    if type(value) is dict:
        left -= 2 * len(value)
        if left < 0 or depth == 0 or not PLAIN.issuperset(map(type, value)):
            return -1
        members = value.values()
    elif type(value) is list or type(value) is tuple:
        left -= len(value)
        if left < 0 or depth == 0:
            return -1
        members = value
    elif type(value) is bytes:
        return left if len(value) < LEAST_PIECE_BYTES else -1
    else:
        return left if type(value) in PLAIN else -1
    if not PLAIN.issuperset(map(type, members)):
        for member in members:
            kind = type(member)
            if kind in PLAIN or (kind is bytes and len(member) < LEAST_PIECE_BYTES):
                continue
            left = _items_left(member, left, depth - 1)
            if left < 0:
                return -1
    return left


class NotHere(Exception):
    """Only the thread that the value comes from can encode it."""


class Lowering:
    """One walk over a value.  Methods take the depth in which the value stands
    and return what the encoder takes: the value itself wherever possible."""

    __slots__ = (
        "_code_ran", "_container_work", "_containers", "_depth", "_items", "_keys", "_least",
        "_most", "_pause", "_plain", "_sort_keys",
    )  # fmt: skip

    def __init__(
        self, limits: WireLimits, *, plain: frozenset[type] = PLAIN,
        items_at_once: int | None = None, pause: Callable[[], None] | None = None,
        sort_keys: bool = False,
    ) -> None:  # fmt: skip
        self._items = self._most = limits.items - 1  # the value itself
        self._least = 0 if items_at_once is None else max(0, self._most - items_at_once)
        """How low ``_items`` may fall before somebody has to decide."""
        self._container_work = 0 if items_at_once is None else _CONTAINER_WORK
        self._containers = 0
        self._depth = limits.depth
        self._keys = limits.keys
        self._plain = plain
        self._pause = pause
        self._sort_keys = sort_keys
        self._code_ran = False
        """Whether code of the value's classes may have run."""

    def cost_bytes(self, length: int) -> int:
        """More than the value costs its reader (:mod:`values_prices`), if its
        encoding has ``length`` bytes."""
        items = self._most - self._items + 1
        return items * _ITEM_COST_BYTES + self._containers * _CONTAINER_COST_BYTES + 4 * length

    def value(self, value: object, depth: int, *, key: bool = False) -> object:
        """Any value.  ``key``: it is a key or a set's member, or part of one."""
        kind = type(value)
        if kind in self._plain:
            return value
        if kind is dict:
            return self._mapping(value, value, depth, key=key)  # type: ignore[arg-type]  # see kind
        if kind is list or kind is tuple:
            return self._sequence(value, value, depth, key=key)  # type: ignore[arg-type]  # see kind
        if kind is bytes and len(value) < LEAST_PIECE_BYTES:  # type: ignore[arg-type]  # see kind
            return value
        if kind.__module__ not in _OF_NOBODY:
            if self._pause is not None:
                raise NotHere
            self._code_ran = True
        if isinstance(value, enum.Enum):
            self._enter(value, depth)
            return self.value(value.value, depth + 1, key=key)
        try:
            if isinstance(value, str | bytes | bytearray | memoryview | int | float):
                return self._atom(value, key=key)
            self._count(value, _LEAF_ITEMS, _LEAF_CONTAINERS)
            return self._other(value, depth, key=key)
        except (Refusal, TooMuchWork, NotHere):
            raise
        except (_arrays.ArrayProblem, _objects.ObjectProblem) as problem:
            raise Refusal(value, str(problem)) from problem
        except Exception as error:
            # Code of the value's class ran (properties, serializers, time
            # zones, iterators) and may have raised anything.
            raise Refusal(value, f"{type(error).__name__}: {error}") from error

    def _atom(
        self, value: str | bytes | bytearray | memoryview | int | float, *, key: bool
    ) -> object:
        """A byte string, or a plain scalar's subclass as the plain scalar."""
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise Refusal(value, f"it is no valid Unicode ({error})") from error
            return str.__str__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, int):
            return int.__int__(value)
        data = bytes(value) if isinstance(value, memoryview) else value
        return data if key or len(data) < LEAST_PIECE_BYTES else bytes_pieces(data)

    def _other(self, value: object, depth: int, *, key: bool) -> object:
        """Everything that is not a common type.  May raise anything."""
        number = _arrays.plain_number(value)
        if number is not value:
            return self.value(number, depth, key=key)
        array = _arrays.lower_array(value)
        if array is not None:
            if key:
                raise _no_key(value)
            return encoded_array(array)
        if isinstance(value, collections.abc.Mapping):
            return self._mapping(value, value, depth, key=key)
        if isinstance(value, collections.abc.Set):
            return self._set(value, depth, key=key)
        if isinstance(value, collections.abc.Sequence):
            return self._sequence(value, value, depth, key=key)
        scalar = _objects.lower_scalar(value)
        if scalar is not None:
            return self.value(scalar, depth) if type(scalar) is str else scalar
        fields = _objects.fields_of(value)
        if fields is None:
            raise Refusal(value, f"it has no encoding (supported: {_SUPPORTED})")
        if key:
            raise _no_key(value)
        if type(fields) is dict:
            return self._mapping(fields, value, depth, key=key)
        self._enter(value, depth)
        return self.value(fields, depth + 1)

    def _sequence(
        self, value: collections.abc.Sequence[object], owner: object, depth: int, *, key: bool
    ) -> object:
        before = self._items
        depth = self._enter(owner, depth, len(value))
        plain = self._plain
        members = value if type(value) in (list, tuple) else list(value)
        if self._all_plain(members):
            return self._in_pieces(members, before, key=key)
        rebuilt: list[object] | None = None
        for index, member in enumerate(members):
            if type(member) not in plain:
                try:
                    lowered = self.value(member, depth, key=key)
                except Refusal as refusal:
                    refusal.way.append((f"[{index}]", owner))
                    raise
                if lowered is not member:
                    rebuilt = list(members) if rebuilt is None else rebuilt
                    rebuilt[index] = lowered
        if rebuilt is None:
            return self._in_pieces(members, before, key=key)
        if Pieces in map(type, rebuilt):
            return joined(written_head(4, len(rebuilt)), rebuilt, self._pause)
        return self._in_pieces(rebuilt, before, key=key)

    def _mapping(
        self, value: Mapping[object, object], owner: object, depth: int, *, key: bool
    ) -> object:
        if key:
            raise _no_key(owner)
        before = self._items
        depth = self._enter(owner, depth, 2 * len(value))
        plain = self._plain
        if type(value) is not dict or not self._all_plain(value):
            return self._with_keys(value, owner, depth)
        self._check_keys(value, owner)
        if self._sort_keys:
            value = dict(in_order(value.items(), len(value), self._pause))
        if self._all_plain(value.values()):
            return self._in_pieces(value, before)
        changed: dict[object, object] = {}
        for name, member in value.items():
            if type(member) not in plain:
                try:
                    lowered = self.value(member, depth)
                except Refusal as refusal:
                    refusal.way.append((step(name), owner))
                    raise
                if lowered is not member:
                    changed[name] = lowered
        if not changed:
            return self._in_pieces(value, before)
        rebuilt = {**value, **changed}
        if Pieces in map(type, changed.values()):
            return map_joined(rebuilt.items(), len(rebuilt), self._pause)
        return self._in_pieces(rebuilt, before)

    def _with_keys(self, value: Mapping[object, object], owner: object, depth: int) -> object:
        """A mapping of which not only the members may have to be lowered, ``depth``
        being that of its members."""
        keys: list[object] = []
        members: list[object] = []
        for name, member in value.items():
            try:
                keys.append(self.value(name, depth, key=True))
                members.append(self.value(member, depth))
            except Refusal as refusal:
                refusal.way.append((step(name), owner))
                raise
        if len({name if type(name) in PLAIN else cbor2.dumps(name) for name in keys}) < len(keys):
            raise Refusal(owner, "two of its keys have the same encoding")
        self._check_keys(keys, owner)
        pairs: Iterable[tuple[object, object]] = zip(keys, members, strict=True)
        if self._sort_keys:
            pairs = in_order(pairs, len(keys), self._pause)
        whole = self._pause is None and PLAIN.issuperset(map(type, keys))
        if whole and Pieces not in map(type, members):
            return dict(pairs)
        return map_joined(pairs, len(keys), self._pause)

    def _set(self, value: collections.abc.Set[object], depth: int, *, key: bool) -> object:
        before = self._items
        depth = self._enter(value, depth)  # a tag ...
        depth = self._enter(value, depth, len(value))  # ... and an array
        self._containers += len(value)  # a set's table is large
        members = []
        for member in value:
            try:
                members.append(self.value(member, depth, key=True))
            except Refusal as refusal:
                refusal.way.append(("{}", value))
                raise
        self._check_keys(members, value)
        lowered = self._in_pieces(sorted(members, key=cbor2.dumps), before, key=key)
        if isinstance(lowered, Pieces):
            lowered.parts.insert(0, written_head(6, TAG_SET))
            return lowered
        return cbor2.CBORTag(TAG_SET, tuple(lowered))  # a tag has to be hashable in keys

    def _enter(self, value: object, depth: int, items: int = 0) -> int:
        """The depth inside ``value``, whose items count towards the limit."""
        if depth >= self._depth:
            raise Refusal(value, f"it is nested deeper than {self._depth} levels")
        self._count(value, items, 1)
        return depth + 1

    def _count(self, value: object, items: int, containers: int) -> None:
        self._items -= items
        self._containers += containers
        self._least += containers * self._container_work
        if self._items < self._least:
            if self._items < 0:
                raise Refusal(value, "there are more items than the limit allows")
            if not self._code_ran:
                raise TooMuchWork
            self._least = 0  # what its code has begun is not done twice
        if self._pause is not None:
            self._pause()

    def _check_keys(self, keys: Collection[object], owner: object) -> None:
        if len(keys) > self._keys and chosen(keys) > self._keys:
            raise Refusal(owner, too_many(self._keys))

    def _all_plain(self, members: Collection[object]) -> bool:
        if self._pause is None or len(members) <= PIECE_ITEMS:
            return self._plain.issuperset(map(type, members))
        rest = iter(members)
        while piece := list(itertools.islice(rest, PIECE_ITEMS)):
            if not self._plain.issuperset(map(type, piece)):
                return False
            self._pause()
        return True

    def _in_pieces(self, lowered: Any, before: int, *, key: bool = False) -> Any:
        """A container, in pieces if it has to be and is large: its items and those
        inside have been counted since there were ``before`` left."""
        if self._pause is None or key or before - self._items <= PIECE_ITEMS:
            return lowered
        if isinstance(lowered, dict):
            return map_joined(lowered.items(), len(lowered), self._pause)
        return joined(written_head(4, len(lowered)), lowered, self._pause)


def _no_key(value: object) -> Refusal:
    return Refusal(value, "it cannot be a key or a member of a set")
