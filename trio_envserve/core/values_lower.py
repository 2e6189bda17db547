"""Lowering: from a value to what the compiled encoder takes.

Theory of operation
-------------------
:class:`Lowering` walks a value once.  It looks at the types of a container's members in one sweep;
a container is passed on itself if all its members are plain, and is rebuilt with its members
lowered if not.  The result consists of exact dicts, lists, tuples, scalars, byte strings and CBOR
tags: nothing about which the encoder would decide by itself, and never deeper than the limit.

Large byte strings and arrays are not run through the encoder, which would copy them several
times: their containers come out as :class:`Pieces`, encoded parts that only have to be joined,
among them the large data itself.

With a ``pause`` the walk calls it for each container and between the pieces of large ones, and so
does the encoder (:func:`encoded`) after each 4 KiB; and no code of the value's classes is run: the
walk may be in another thread than theirs.

*Keys.*  Hashes of text and bytes differ in every process; others can be chosen so that all
collide, and a table then takes quadratic time.  So maps have keys of text and bytes only, and the
compiled decoder takes no others.  Any other dict is written as a list of keys and values in turn,
under a tag; there, and in sets, keys whose hashes can be chosen are bounded (:func:`take_long`).
Integers of 17 bits are too few for that: of those chosen to do most harm, some 10,000, each takes
4 µs.  1,000 others, if all collide, take 4 ms.

*Order.*  A dict keeps the order in which it was filled, which is no part of what it says.  Where
equal values must have equal bytes (the input of a keyed call), the keys of each map are written
in the bytewise order of their encodings, as section 4.2.1 of RFC 8949 has it.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import heapq
import itertools
from typing import TYPE_CHECKING, Any, Final

import cbor2

from . import arrays as _arrays
from . import objects as _objects
from .limits import KIB
from .values_cost import TAG_PAIRS, TAG_SET, TooMuchWork

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from .limits import WireLimits

PLAIN: Final = frozenset({type(None), bool, int, float, str})
"""Types that go to the encoder as they are, without a look at the value."""

_FLOATS: Final = frozenset({float})
_OF_KEYS: Final = frozenset({str, bytes})
"""Types of the keys of maps."""

LEAST_PIECE_BYTES: Final = 32 * KIB
"""Byte strings from this size on are joined in instead of encoded."""

_PIECE_ITEMS: Final = 4096
"""Items that are looked at, or sorted, in one call, if there is a pause."""

_SUPPORTED: Final = (
    "None, bool, numbers, text, bytes, lists, dicts, sets, numpy arrays, torch tensors, "
    "dates, UUIDs, Decimals, enums, paths, dataclasses, attrs classes, pydantic models"
)

_LEAF_ITEMS: Final = 8
"""More items than the encoding of any tagged scalar or array has (without dimensions)."""

_LEAF_CONTAINERS: Final = 5
"""Number of containers whose encoding takes as long as that of such a scalar or array."""

_CONTAINER_WORK: Final = 5
"""Number of items whose encoding takes as long as that of a container."""

_OF_NOBODY: Final = frozenset(
    {"builtins", "collections", "datetime", "decimal", "uuid", "pathlib", "numpy", "torch", "cbor2"}
)
"""Modules whose classes run no code but their own, in any thread."""


# -- refusals, and the way to what is refused -----------------------------------------


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


def step(name: object) -> str:
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


class NotHere(Exception):
    """Only the thread that the value comes from can encode it."""


# -- small values -----------------------------------------------------------------------

_SMALL_ITEMS: Final = 256
_SMALL_DEPTH: Final = 8


def takes_small(limits: WireLimits) -> bool:
    """Whether no small value exceeds these limits."""
    return limits.items > _SMALL_ITEMS and limits.depth >= _SMALL_DEPTH


def is_small(value: object) -> bool:
    """Whether the encoder can have the value as it is: few items of plain types.  Most
    inputs and results are such, and a look costs less than a :class:`Lowering`."""
    return _items_left(value, _SMALL_ITEMS, _SMALL_DEPTH) >= 0


def _items_left(value: object, left: int, depth: int) -> int:
    """The number of ``left`` items that remain after the members of a value; negative if the value
    is not small."""
    members: Collection[Any]
    if type(value) is dict:
        left -= 2 * len(value)
        if left < 0 or depth == 0 or not _OF_KEYS.issuperset(map(type, value)):
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


_WITH_MEMBERS: Final = frozenset((dict, list, tuple))


def small_in_order(value: Any) -> object:
    """A small value, all its maps in order."""
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
    """Keys by their encodings."""
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


# -- keys and order -------------------------------------------------------------------

_MOST_HARMLESS: Final = 1 << 16
_HARMLESS: Final = frozenset({str, bytes, bool, type(None)})
_KEY_BYTES: Final = 64
"""Size of a key that takes twice as long to compare as a short one."""


def take_long(keys: Collection[object], most: int) -> bool:
    """Whether these keys would take longer to put into a table than ``most`` short ones, if all
    collide whose hashes can be chosen: each is compared with each."""
    kinds = set(map(type, keys)) - _HARMLESS
    if not kinds:
        return False
    sizes = [
        1 + _size_bytes(key) // _KEY_BYTES
        for key in keys
        if type(key) in kinds
        and not (type(key) is int and -_MOST_HARMLESS <= key <= _MOST_HARMLESS)
    ]
    return len(sizes) * sum(sizes) > most * most


def _size_bytes(key: object) -> int:
    """The size of a key, about."""
    if isinstance(key, tuple | frozenset):
        return sum(8 + _size_bytes(part) for part in key)
    if isinstance(key, str | bytes):
        return len(key)
    return key.bit_length() // 8 if isinstance(key, int) else 0


def too_many(most: int) -> str:
    """The reason for which such a map or set is refused, and what to do."""
    return (
        f"it has more than {most} keys or members that are neither text, bytes nor integers "
        f"up to {_MOST_HARMLESS}, or fewer and longer ones (write them as text, or all of it as a "
        "list)"
    )


def _in_order(
    things: Iterable[Any], encoding: Callable[[Any], bytes], pause: Callable[[], None] | None
) -> Iterable[Any]:
    """Keys, members or pairs in the order of their encodings.  If there is a ``pause``, they are
    put there in pieces."""
    if pause is None:
        return sorted(things, key=encoding)
    pieces: list[list[Any]] = []
    rest = iter(things)
    while piece := list(itertools.islice(rest, _PIECE_ITEMS)):
        pieces.append(sorted(piece, key=encoding))
        pause()
    return heapq.merge(*pieces, key=encoding)


def _encoded_key(pair: tuple[object, object]) -> bytes:
    encoded: bytes = cbor2.dumps(pair[0])
    return encoded


# -- encodings in pieces ------------------------------------------------------------------


class Pieces:
    """An encoding in pieces, some of them views of large data."""

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes | memoryview) -> None:
        self.parts: list[bytes | memoryview] = list(parts)


class _Written:
    """A file for the encoder, which writes to it after each 4 KiB."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self.pieces: list[bytes] = []
        self._pause = pause

    def writable(self) -> bool:
        return True

    def write(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self._pause()


def encoded(lowered: object, pause: Callable[[], None] | None) -> bytes:
    """The encoding of what has been lowered, and has no pieces."""
    if pause is None:
        whole: bytes = cbor2.dumps(lowered)
        return whole
    written = _Written(pause)
    cbor2.dump(lowered, written)  # type: ignore[arg-type]  # all of IO[bytes] that it calls is there
    return b"".join(written.pieces)


def _encoded_array(array: _arrays.Lowered) -> object:
    """An array for the encoder."""
    tag, shape, data = array
    large = len(data) >= LEAST_PIECE_BYTES
    if not large:
        inner = cbor2.CBORTag(tag, bytes(data))
        if len(shape) == 1:
            return inner
        return cbor2.CBORTag(_arrays.TAG_ROW_MAJOR, [list(shape), inner])
    pieces = _bytes_pieces(data)
    pieces.parts.insert(0, written_head(6, tag))
    if len(shape) != 1:
        dimensions = cbor2.dumps(list(shape))
        pieces.parts.insert(
            0, written_head(6, _arrays.TAG_ROW_MAJOR) + written_head(4, 2) + dimensions
        )
    return pieces


def _bytes_pieces(data: bytes | bytearray | memoryview) -> Pieces:
    """A byte string, not copied."""
    view = memoryview(data)
    return Pieces(written_head(2, view.nbytes), view)


def _joined(head: bytes, items: Iterable[object], pause: Callable[[], None] | None) -> Pieces:
    """``items`` in pieces behind ``head``.  Items between two that are in pieces are encoded
    together, as a list whose head is then dropped."""
    pieces = Pieces(head)
    run: list[object] = []

    def encode_run() -> None:
        pieces.parts.append(encoded(run, pause)[len(written_head(4, len(run))) :])
        run.clear()

    for item in items:
        if isinstance(item, Pieces):
            encode_run()
            pieces.parts += item.parts
        else:
            run.append(item)
    encode_run()
    return pieces


def unchanging(parts: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """The parts as pieces that nobody can change: small neighbours are joined, and large ones
    copied unless they are of ``bytes``."""
    pieces: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for part in parts:
        if len(part) < LEAST_PIECE_BYTES:
            small.append(part)
            continue
        if small:
            pieces.append(b"".join(small))
            small.clear()
        owner = part.obj if isinstance(part, memoryview) else part
        pieces.append(part if type(owner) is bytes else bytes(part))
    if small:
        pieces.append(b"".join(small))
    return pieces


def written_head(major: int, argument: int) -> bytes:
    """The head of a data item: its major type, and a number or a length."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    width = (argument.bit_length() + 7) // 8
    power = (width - 1).bit_length()  # 1, 2, 4 or 8 bytes
    return bytes((major << 5 | 24 + power,)) + argument.to_bytes(1 << power, "big")


# -- the walk -----------------------------------------------------------------------------


class Lowering:
    """One walk over a value.  Methods take the depth in which the value stands
    and return what the encoder takes: the value itself wherever possible."""

    __slots__ = (
        "_code_ran", "_container_work", "_depth", "_floats", "_items", "_keys", "_least", "_most",
        "_of_keys", "_pause", "_plain", "_sort_keys",
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
        self._floats = 0
        self._depth = limits.depth
        self._keys = limits.keys
        self._plain = plain
        self._of_keys = _OF_KEYS - PLAIN | plain & _OF_KEYS
        self._pause = pause
        self._sort_keys = sort_keys
        self._code_ran = False
        """Whether code of the value's classes may have run."""

    @property
    def items(self) -> int:
        """Number of items that the walk has met, but for lists of floats, at least: each place
        in a set or in a map that is written as a list counts once more."""
        return self._most - self._items + 1 - self._floats

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
        return data if key or len(data) < LEAST_PIECE_BYTES else _bytes_pieces(data)

    def _other(self, value: object, depth: int, *, key: bool) -> object:
        """Everything that is not a common type.  May raise anything."""
        number = _arrays.plain_number(value)
        if number is not value:
            return self.value(number, depth, key=key)
        array = _arrays.lower_array(value)
        if array is not None:
            if key:
                raise _no_key(value)
            return _encoded_array(array)
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
        if self._are(plain, members):
            if members and type(members[0]) is float and self._are(_FLOATS, members):
                self._floats += len(members)
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
            return _joined(written_head(4, len(rebuilt)), rebuilt, self._pause)
        return rebuilt

    def _mapping(
        self, value: Mapping[object, object], owner: object, depth: int, *, key: bool
    ) -> object:
        if key:
            raise _no_key(owner)
        depth = self._enter(owner, depth, 2 * len(value))
        plain = self._plain
        if type(value) is not dict or not self._are(self._of_keys, value):
            return self._with_keys(value, owner, depth)
        if self._sort_keys:
            value = dict(_in_order(value.items(), _encoded_key, self._pause))
        if self._are(plain, value.values()):
            return value
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
            return value
        rebuilt = {**value, **changed}
        if Pieces in map(type, changed.values()):
            return self._map_joined(rebuilt.items(), len(rebuilt))
        return rebuilt

    def _with_keys(self, value: Mapping[object, object], owner: object, depth: int) -> object:
        """A mapping of which not only the members may have to be lowered, ``depth``
        being that of its members."""
        items = [*value.items()]
        keys: list[object] = []
        members: list[object] = []
        for name, _ in items:
            try:
                keys.append(self.value(name, depth, key=True))
            except Refusal as refusal:
                refusal.way.append((step(name), owner))
                raise
        is_map = _OF_KEYS.issuperset(map(type, keys))
        if not is_map:
            depth = self._enter(owner, depth, 2 * len(keys))  # a tag, and the list
            self._check_keys(keys, owner)
        if len({name if type(name) in PLAIN else cbor2.dumps(name) for name in keys}) < len(keys):
            raise Refusal(owner, "two of its keys have the same encoding")
        for name, member in items:
            try:
                members.append(self.value(member, depth))
            except Refusal as refusal:
                refusal.way.append((step(name), owner))
                raise
        pairs: Iterable[tuple[object, object]] = zip(keys, members, strict=True)
        if self._sort_keys:
            pairs = _in_order(pairs, _encoded_key, self._pause)
        has_pieces = Pieces in map(type, members)
        if is_map:
            return self._map_joined(pairs, len(keys)) if has_pieces else dict(pairs)
        in_turn = [*itertools.chain.from_iterable(pairs)]
        if not has_pieces:
            return cbor2.CBORTag(TAG_PAIRS, in_turn)
        head = written_head(6, TAG_PAIRS) + written_head(4, len(in_turn))
        return _joined(head, in_turn, self._pause)

    def _map_joined(self, pairs: Iterable[tuple[object, object]], count: int) -> Pieces:
        return _joined(written_head(5, count), itertools.chain.from_iterable(pairs), self._pause)

    def _set(self, value: collections.abc.Set[object], depth: int) -> object:
        depth = self._enter(value, depth)  # a tag ...
        depth = self._enter(value, depth, 2 * len(value))  # ... and an array
        members = []
        for member in value:
            try:
                members.append(self.value(member, depth, key=True))
            except Refusal as refusal:
                refusal.way.append(("{}", value))
                raise
        self._check_keys(members, value)
        # A tuple: a tag has to be hashable in keys.
        return cbor2.CBORTag(TAG_SET, tuple(_in_order(members, cbor2.dumps, self._pause)))

    def _enter(self, value: object, depth: int, items: int = 0) -> int:
        """The depth inside ``value``, whose items count towards the limit."""
        if depth >= self._depth:
            raise Refusal(value, f"it is nested deeper than {self._depth} levels")
        self._count(value, items, 1)
        return depth + 1

    def _count(self, value: object, items: int, containers: int) -> None:
        self._items -= items
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
        if take_long(keys, self._keys):
            raise Refusal(owner, too_many(self._keys))

    def _are(self, kinds: frozenset[type], members: Collection[object]) -> bool:
        """Whether all members are of these types."""
        if self._pause is None or len(members) <= _PIECE_ITEMS:
            return kinds.issuperset(map(type, members))
        rest = iter(members)
        while piece := list(itertools.islice(rest, _PIECE_ITEMS)):
            if not kinds.issuperset(map(type, piece)):
                return False
            self._pause()
        return True


def _no_key(value: object) -> Refusal:
    return Refusal(value, "it cannot be a key or a member of a set")
