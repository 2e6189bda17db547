"""Lowering: from a value to what the compiled encoder takes.

Theory of operation
-------------------
:class:`Lowering` walks a value once.  It looks at the types of a container's
members in one sweep; a container is passed on itself if all its members are,
and is rebuilt with its members lowered if not.  What comes out are exact dicts,
lists, tuples, scalars, byte strings and CBOR tags: nothing on which the encoder
would have a mind of its own, and never deeper than the limit.

Byte strings and arrays that are large make their containers come out as
:class:`Pieces`: encoded parts that only have to be joined, among them the large
data itself, uncopied.

A :class:`Refusal` collects the way to what it refuses while it unwinds, so a
path costs nothing unless it is needed; a way that meets a container twice is a
cycle.
"""

from __future__ import annotations

import collections.abc
import enum
import itertools
from typing import TYPE_CHECKING, Final

import cbor2

from . import arrays as _arrays
from . import objects as _objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .limits import WireLimits

_SUPPORTED: Final = (
    "None, bool, numbers, text, bytes, lists, dicts, sets, numpy arrays, torch tensors, "
    "dates, UUIDs, Decimals, enums, paths, dataclasses, attrs classes, pydantic models"
)

PLAIN: Final = frozenset({type(None), bool, int, float, str})
"""Types that go to the encoder as they are, without a look at the value."""

_LEAST_PIECE_BYTES: Final = 32 * 1024
"""Byte strings from this size on are joined in instead of encoded."""

_LEAF_ITEMS: Final = 8
"""More items than the encoding of any tagged scalar or array has (without dimensions)."""

TAG_SET: Final = 258


class Refusal(Exception):
    """Something cannot be encoded.  Collects the way to it while it unwinds."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = _type_name(value)
        self.way: list[tuple[str, object]] = []
        """Steps from the innermost outwards, each with its container."""

    def located(self, root: str) -> tuple[str, str, str]:
        """The message, the path from ``root`` (which may be empty: then a path
        begins with the first step), and the name of the type."""
        path, type_name, reason = root, self.type_name, self.reason
        # The objects themselves are held in ``way``, so an id is not reused.
        paths: dict[int, str] = {}
        for step, container in reversed(self.way):
            if id(container) in paths:
                where = paths[id(container)]
                type_name, reason = _type_name(container), f"it contains itself (it is {where})"
                break
            paths[id(container)] = path
            path += step if path else step.removeprefix(".")
        message = f"{path}: cannot encode a value of type {type_name}: {reason}"
        return message, path, type_name


class Pieces:
    """An encoding in pieces, some of them views of large data."""

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes | memoryview) -> None:
        self.parts: list[bytes | memoryview] = list(parts)


class Lowering:
    """One walk over a value.  Methods take the depth in which the value stands
    and return what the encoder takes: the value itself wherever possible."""

    __slots__ = ("_depth", "_items", "_plain")

    def __init__(self, limits: WireLimits, *, plain: frozenset[type] = PLAIN) -> None:
        self._items = limits.items - 1  # the value itself
        self._depth = limits.depth
        self._plain = plain

    def value(self, value: object, depth: int, *, key: bool = False) -> object:
        """Any value.  ``key``: it is a key or a set's member, or part of one."""
        kind = type(value)
        if kind in self._plain:
            return value
        if kind is dict:
            return self._mapping(value, value, depth, key=key)  # type: ignore[arg-type]  # see kind
        if kind is list or kind is tuple:
            return self._sequence(value, value, depth, key=key)  # type: ignore[arg-type]  # see kind
        if kind is bytes and len(value) < _LEAST_PIECE_BYTES:  # type: ignore[arg-type]  # see kind
            return value
        if isinstance(value, enum.Enum):
            self._enter(value, depth)
            return self.value(value.value, depth + 1, key=key)
        try:
            if isinstance(value, str | bytes | bytearray | memoryview | int | float):
                return self._atom(value, key=key)
            self._items -= _LEAF_ITEMS
            if self._items < 0:
                raise _too_many(value)
            return self._other(value, depth, key=key)
        except Refusal:
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
        return data if key or len(data) < _LEAST_PIECE_BYTES else _bytes_pieces(data)

    def _other(self, value: object, depth: int, *, key: bool) -> object:
        """Everything that is not a common type.  May raise anything."""
        number = _arrays.plain_number(value)
        if number is not value:
            return self.value(number, depth, key=key)
        array = _arrays.lower_array(value)
        if array is not None:
            if key:
                raise _no_key(value)
            return _array(array)
        if isinstance(value, collections.abc.Mapping):
            return self._mapping(value, value, depth, key=key)
        if isinstance(value, collections.abc.Set):
            return self._set(value, depth)
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
        depth = self._enter(owner, depth, len(value))
        plain = self._plain
        members = value if type(value) in (list, tuple) else list(value)
        if plain.issuperset(map(type, members)):
            return members
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
            return members
        if Pieces in map(type, rebuilt):
            return _joined(_head(4, len(rebuilt)), rebuilt)
        return rebuilt

    def _mapping(
        self, value: Mapping[object, object], owner: object, depth: int, *, key: bool
    ) -> object:
        if key:
            raise _no_key(owner)
        depth = self._enter(owner, depth, 2 * len(value))
        plain = self._plain
        if type(value) is not dict or not plain.issuperset(map(type, value)):
            return self._with_keys(value, owner, depth)
        if plain.issuperset(map(type, value.values())):
            return value
        changed: dict[object, object] = {}
        for name, member in value.items():
            if type(member) not in plain:
                try:
                    lowered = self.value(member, depth)
                except Refusal as refusal:
                    refusal.way.append((_step(name), owner))
                    raise
                if lowered is not member:
                    changed[name] = lowered
        if not changed:
            return value
        rebuilt = {**value, **changed}
        if Pieces in map(type, changed.values()):
            return _joined(_head(5, len(rebuilt)), itertools.chain.from_iterable(rebuilt.items()))
        return rebuilt

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
                refusal.way.append((_step(name), owner))
                raise
        if len({name if type(name) in PLAIN else cbor2.dumps(name) for name in keys}) < len(keys):
            raise Refusal(owner, "two of its keys have the same encoding")
        pairs = zip(keys, members, strict=True)
        if PLAIN.issuperset(map(type, keys)) and Pieces not in map(type, members):
            return dict(pairs)
        return _joined(_head(5, len(keys)), itertools.chain.from_iterable(pairs))

    def _set(self, value: collections.abc.Set[object], depth: int) -> object:
        depth = self._enter(value, depth)  # a tag ...
        depth = self._enter(value, depth, len(value))  # ... and an array
        members = []
        for member in value:
            try:
                members.append(self.value(member, depth, key=True))
            except Refusal as refusal:
                refusal.way.append(("{}", value))
                raise
        return cbor2.CBORTag(TAG_SET, tuple(sorted(members, key=cbor2.dumps)))

    def _enter(self, value: object, depth: int, items: int = 0) -> int:
        """The depth inside ``value``, whose items count towards the limit."""
        if depth >= self._depth:
            raise Refusal(value, f"it is nested deeper than {self._depth} levels")
        self._items -= items
        if self._items < 0:
            raise _too_many(value)
        return depth + 1


def _no_key(value: object) -> Refusal:
    return Refusal(value, "it cannot be a key or a member of a set")


def _too_many(value: object) -> Refusal:
    return Refusal(value, "there are more items than the limit allows")


def _array(array: _arrays.Lowered) -> object:
    """An array for the encoder."""
    tag, shape, data = array
    large = len(data) >= _LEAST_PIECE_BYTES
    if not large:
        inner = cbor2.CBORTag(tag, bytes(data))
        if len(shape) == 1:
            return inner
        return cbor2.CBORTag(_arrays.TAG_ROW_MAJOR, [list(shape), inner])
    pieces = _bytes_pieces(data)
    pieces.parts.insert(0, _head(6, tag))
    if len(shape) != 1:
        dimensions = cbor2.dumps(list(shape))
        pieces.parts.insert(0, _head(6, _arrays.TAG_ROW_MAJOR) + _head(4, 2) + dimensions)
    return pieces


def _bytes_pieces(data: bytes | bytearray | memoryview) -> Pieces:
    view = memoryview(data)
    return Pieces(_head(2, view.nbytes), view)


def _joined(head: bytes, items: Iterable[object]) -> Pieces:
    """``items`` in pieces behind ``head``.  Items between two that are in
    pieces are encoded together, as a list whose head is then dropped."""
    pieces = Pieces(head)
    run: list[object] = []
    for item in items:
        if isinstance(item, Pieces):
            pieces.parts.append(cbor2.dumps(run)[len(_head(4, len(run))) :])
            pieces.parts += item.parts
            run = []
        else:
            run.append(item)
    pieces.parts.append(cbor2.dumps(run)[len(_head(4, len(run))) :])
    return pieces


def _head(major: int, argument: int) -> bytes:
    """The head of a data item: its major type, and a number or a length."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    width = (argument.bit_length() + 7) // 8
    power = (width - 1).bit_length()  # 1, 2, 4 or 8 bytes
    return bytes((major << 5 | 24 + power,)) + argument.to_bytes(1 << power, "big")


def _step(name: object) -> str:
    """The step of a path to the member called ``name``."""
    if isinstance(name, str) and name.isidentifier():
        return f".{str.__str__(name)}"
    if type(name) in PLAIN or type(name) is bytes:
        text = ascii(name[:40]) if isinstance(name, str | bytes) else _short(name)
        return f"[{text}]"
    return f"[<{_type_name(name)}>]"


def _short(number: object) -> str:
    """A number as text; Python refuses to convert huge ones."""
    return "<huge int>" if type(number) is int and number.bit_length() > 200 else repr(number)


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
