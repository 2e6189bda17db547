"""The whole state of a router as plain data, and back.

Theory of operation
-------------------
The state is a graph: an entry knows its execution, that its worker, that its
executions.  :func:`freeze` numbers its objects in the order in which they are
met and writes one row for each: the class and the values of all its fields, with
``[REF, number]`` for another object.  :func:`thaw` makes the objects and fills
them in.  Only the classes listed here are made, their fields must be exactly
those that the class has, and no code of theirs runs: a snapshot is data.

The same state gives the same rows, so states are compared by comparing these.
Bodies are lengths unless asked for, ids are masked, limits and callables are
not part of a state.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ...core.announced import Announcements
from ...core.clock import AwakeClock
from ...core.closing import Closing, ClosingStage
from ...core.dedup import DedupCache
from ...core.executions import Duty, Execution, Worker
from ...core.limits import ServerLimits, WireLimits
from ...core.lives import Life, Phase
from ...core.ranges import Ranges
from ...core.requests import Counters, Entry, Kept, Session, State
from ...core.router import Router
from ...core.scheduler import Scheduler
from ...core.slots import Pool, Slot
from ...core.terms import ID_BYTES, RequestId
from ...core.workforce import Workforce
from .masks import Masks

LIST, TUPLE, DICT, ORDERED, SET, REF, ENUM, REQUEST_ID, BODY, GIVEN, METHOD = range(11)

CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Router, DedupCache, Scheduler, Pool, Workforce, AwakeClock, Session, Entry, Kept,
        Counters, Execution, Worker, Slot, Life, Ranges, Closing, Announcements,
    )
}  # fmt: skip
ENUMS: dict[str, type[enum.Enum]] = {
    cls.__name__: cls for cls in (State, Phase, Duty, ClosingStage)
}

BODIES = frozenset({("Entry", "body"), ("Execution", "body")})
HEADERS = frozenset({("Execution", "header")})
FRAMES = frozenset({("Kept", "frames")})
NO_IDS = frozenset({"digest", "epoch", "dead_epochs", "route"})
"""Fields whose values may be as long as an id and are no secret."""

GIVEN_CALLABLES = frozenset({"_new_id", "shell_stats"})
"""What the shell gave to the router: a tape notes what they return."""

_SCALARS = frozenset({type(None), bool, int, float, str})


class SnapshotError(ValueError):
    """The state cannot be frozen, or was frozen by a version with other fields."""


def size(router: Router) -> int:
    """About how many objects a snapshot would have; quickly."""
    cache = router.cache
    waiting = cache.queued_count + len(router._deadlines)
    return len(cache.sessions) + waiting + cache.kept_count + router.force.live_count()


def fields(thing: Any) -> list[str]:
    """The names of all its fields, in their order.  A method that somebody has
    wrapped, to watch it, is none."""
    slots: Any = getattr(type(thing), "__slots__", None)
    if slots is not None:
        return list(slots)
    return [name for name in vars(thing) if not hasattr(type(thing), name)]


def freeze(router: Router, masks: Masks, *, bodies: bool = False) -> list[Any]:
    """``[schema, rows]``: the fields of each class that occurs, and the objects."""
    return _Freezer(masks, bodies).freeze(router)


class _Freezer:
    def __init__(self, masks: Masks, bodies: bool) -> None:
        self._masks = masks
        self._bodies = bodies
        self._found: list[Any] = []
        self._numbers: dict[int, int] = {}

    def freeze(self, router: Router) -> list[Any]:
        schema: dict[str, list[str]] = {}
        rows: list[list[Any]] = []
        self._ref(router)
        for thing in self._found:  # grows while it is gone through
            name = type(thing).__name__
            names = schema.get(name)
            if names is None:
                names = schema[name] = fields(thing)
            row: list[Any] = [name]
            for field in names:
                row.append(self._field(name, field, getattr(thing, field)))
            rows.append(row)
        return [schema, rows]

    def _ref(self, thing: Any) -> list[Any]:
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._found)
            self._found.append(thing)
        return [REF, number]

    def _field(self, owner: str, field: str, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        place = (owner, field)
        if place in BODIES:
            return self._body(value)
        if place in HEADERS:
            return self._masks.header(value)
        if place in FRAMES:
            return [self._masks.header(value[0]), *map(self._body, value[1:])]
        if kind is bytes and field in NO_IDS:
            return value
        if field in NO_IDS:
            return [SET, *sorted(value)]
        if callable(value):
            return self._callable(field, value)
        return self._value(value)

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is bytes:
            return self._masks[value] if len(value) == ID_BYTES else value
        freeze = _FREEZE.get(kind)
        if freeze is not None:
            return freeze(self, value)
        if CLASSES.get(kind.__name__) is kind:
            return self._ref(value)
        if isinstance(value, enum.Enum) and ENUMS.get(kind.__name__) is kind:
            return [ENUM, kind.__name__, value.name]
        raise SnapshotError(f"a snapshot has no place for a {kind.__name__}")

    def _callable(self, field: str, value: Any) -> list[Any]:
        """A method of another object of the state; or the shell's, which is given."""
        owner = getattr(value, "__self__", None)
        if owner is not None and CLASSES.get(type(owner).__name__) is type(owner):
            return [METHOD, *self._ref(owner), value.__name__]
        if field not in GIVEN_CALLABLES:
            raise SnapshotError(f"a snapshot has no place for the callable {field}")
        return [GIVEN, field]

    def _body(self, body: Any) -> Any:
        if body is None:
            return None
        return [BODY, len(body), bytes(body)] if self._bodies else [BODY, len(body)]

    def _pairs(self, tag: int, value: dict[Any, Any]) -> list[Any]:
        flat: list[Any] = [tag]
        for key, each in value.items():
            flat += (self._value(key), self._value(each))
        return flat


_FREEZE: dict[type, Callable[[_Freezer, Any], list[Any]]] = {
    list: lambda f, v: [LIST, *map(f._value, v)],
    tuple: lambda f, v: [TUPLE, *map(f._value, v)],
    dict: lambda f, v: f._pairs(DICT, v),
    OrderedDict: lambda f, v: f._pairs(ORDERED, v),
    RequestId: lambda f, v: [REQUEST_ID, f._value(v.session), v.sequence],
    ServerLimits: lambda f, v: [GIVEN, "limits"],
    WireLimits: lambda f, v: [GIVEN, "wire"],
}


# -- back ---------------------------------------------------------------------


def thaw(frozen: Any, fresh: Router) -> Router:
    """A router in that state.  ``fresh``: one that was just made as that one was;
    what is not part of a state (limits, callables) is taken from it.

    SnapshotError if the state has other fields than this version, or is none.
    """
    try:
        schema, rows = frozen
        for name, names in schema.items():
            _check_fields(name, names, fresh)
        things: list[Any] = [object.__new__(CLASSES[row[0]]) for row in rows]
        thaw = _Thawer(things, fresh)
        for thing, row in zip(things, rows, strict=True):
            for field, value in zip(schema[row[0]], row[1:], strict=True):
                if (row[0], field) in FRAMES:
                    value = tuple(map(thaw.value, value))
                setattr(thing, field, thaw.value(value))
        router = things[0]
        if not isinstance(router, Router):
            raise SnapshotError("the snapshot does not begin with a router")
        return router
    except SnapshotError:
        raise
    except Exception as error:  # whatever data that is no snapshot raises
        raise SnapshotError(f"not a snapshot: {type(error).__name__}: {error}") from None


def _check_fields(name: str, names: list[str], fresh: Router) -> None:
    if name not in CLASSES:
        raise SnapshotError(f"the snapshot has a {name}, which this version has not")
    known: list[str] | None = getattr(CLASSES[name], "__slots__", None)
    if known is None:
        parts = (fresh, fresh.cache, fresh.queue, fresh.announced, fresh.pool, fresh.force)
        known = fields(next(part for part in parts if type(part).__name__ == name))
    odd = sorted(set(known) ^ set(names))
    if odd:
        raise SnapshotError(
            f"the snapshot was made by another version: {name} has, or had, {', '.join(odd)}"
        )


class _Thawer:
    def __init__(self, things: list[Any], fresh: Router) -> None:
        self._things = things
        self._given = {
            "limits": fresh.limits, "wire": fresh.wire, "_new_id": fresh._new_id,
            "shell_stats": fresh.shell_stats,
        }  # fmt: skip

    def value(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        tag, *rest = value
        if tag == REF:
            return self._things[rest[0]]
        if tag == BODY:
            return rest[1] if len(rest) > 1 else bytes(rest[0])
        if tag == GIVEN:
            return self._given[rest[0]]
        if tag == METHOD:
            return _method(self._things[rest[1]], rest[2])
        if tag == ENUM:
            return ENUMS[rest[0]][rest[1]]
        made = [self.value(each) for each in rest]
        if tag in (DICT, ORDERED):
            pairs = zip(made[::2], made[1::2], strict=True)
            return dict(pairs) if tag == DICT else OrderedDict(pairs)
        return _MAKE[tag](made)


def _method(owner: Any, name: str) -> Any:
    if not callable(vars(type(owner)).get(name)) or name.startswith("__"):
        raise SnapshotError(f"{type(owner).__name__} has no method {name}")
    return getattr(owner, name)


_MAKE: dict[int, Callable[[list[Any]], Any]] = {
    LIST: list, TUPLE: tuple, SET: set, REQUEST_ID: lambda made: RequestId(*made),
}  # fmt: skip


# -- comparing ----------------------------------------------------------------


def difference(one: Any, other: Any) -> str:
    """Where two frozen states differ first, in words; empty if they are the same.
    That one has bodies and the other only their lengths makes no difference."""
    if one[0] != other[0]:
        return "they are of versions with other fields"
    schema = one[0]
    for a, b in zip(one[1], other[1], strict=False):
        if a[0] != b[0]:
            return f"a {a[0]} is where a {b[0]} is"
        for field, left, right in zip(schema[a[0]], a[1:], b[1:], strict=True):
            if left != right and _bare(left) != _bare(right):
                return f"{a[0]}.{field} is {_short(left)}, and was {_short(right)}"
    if len(one[1]) != len(other[1]):
        return f"there are {len(one[1])} objects, and there were {len(other[1])}"
    return ""


def _bare(value: Any) -> Any:
    """Without bodies, tuples as lists."""
    if not isinstance(value, list | tuple):
        return value
    if value and value[0] == BODY and type(value[0]) is int:
        return list(value[:2])
    return [_bare(each) for each in value]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
