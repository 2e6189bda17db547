"""Plain values: what may travel in a message, and how it reads.

A message is written into the digest of a run, so its text must be the same in every
process; and it must not change while it is on its way.  A message is therefore immutable,
down to its last part.

A plan is written to a file as *data*: numbers, text, lists and dicts (:func:`as_data`), and read by
the annotations of its class (:func:`from_data`).

The *form* of a state is what two states are compared by: nested tuples of plain values
(:func:`form`), in which names may be exchanged (:func:`lowered`).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import io
import pickle
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

_ATOMS = (type(None), bool, int, float, str, bytes)
_PLAIN = frozenset(_ATOMS)

ALLOWED = (
    "None, bool, int, float, str, bytes, and Enum members, tuples, frozensets, NamedTuples "
    "and frozen dataclasses of these"
)


def plain(value: Any) -> str:
    """Text of a value, the same in every process.  TypeError if it is not plain."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if type(value) in _ATOMS:
        return repr(value)
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(plain, value)))}}}"
    name, parts = _parts(value)
    return f"{name}({', '.join(map(plain, parts))})"


def short(value: Any) -> str:
    """Plain value for a diagram, in one line: ``Add c0#1 x 3``."""
    if type(value) is str:
        return " ".join(value.split())
    if isinstance(value, (enum.Enum, frozenset)) or type(value) in _ATOMS:
        return plain(value)
    name, parts = _parts(value)
    return " ".join(filter(None, [name, *map(short, parts)]))


def _parts(value: Any) -> tuple[str, list[Any]]:
    """The name of a record, empty for a tuple, and its parts."""
    kind = type(value)
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # typeshed does not know it
        return kind.__name__, [getattr(value, field.name) for field in dataclasses.fields(kind)]
    if isinstance(value, tuple):
        return kind.__name__ if hasattr(kind, "_fields") else "", list(value)
    raise TypeError(f"a {kind.__name__} is not a plain, immutable value; these are: {ALLOWED}")


# -- data of a file -------------------------------------------------------------------------


def as_data(value: Any) -> Any:
    """Plain value as data for JSON: records by the names of their fields, members of enumerations
    by their names, bytes as the ASCII text that they are."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bytes):
        return value.decode("ascii")
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: as_data(getattr(value, field.name)) for field in fields}
    if hasattr(value, "_asdict"):
        return as_data(value._asdict())
    if isinstance(value, Mapping):
        return {name: as_data(each) for name, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(as_data, value))
    return [as_data(each) for each in value] if isinstance(value, tuple) else value


def from_data(kind: Any, data: Any) -> Any:
    """Value that this data is.  KeyError, TypeError or ValueError if it is none of the kind.

    Args:
        kind: A class, or the annotation of a field.
        data: The data.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            return None
        if bytes in arguments:
            return from_data(bytes if isinstance(data, str) else Any, data)
        kinds = [each for each in arguments if each is not type(None)]
        return from_data(kinds[0] if len(kinds) == 1 else Any, data)
    if origin is tuple and arguments[-1] is not Ellipsis:
        pairs = zip(arguments, data, strict=True)
        return tuple(from_data(each, its) for each, its in pairs)
    if origin in (tuple, frozenset):
        return origin(from_data(arguments[0], each) for each in data)
    if origin is Mapping:
        return {name: from_data(arguments[1], each) for name, each in data.items()}
    if kind is bytes:
        return data.encode("ascii")
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind[data]
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        if isinstance(data, list) and hasattr(kind, "_fields"):  # clocks of earlier files
            data = dict(zip(kind._fields, data, strict=True))
        if not isinstance(data, dict):
            raise TypeError(
                f"a {kind.__name__} is written by the names of its fields, not {data!r}"
            )
        hints = _hints(kind)
        return kind(**{name: from_data(hints.get(name), each) for name, each in data.items()})
    return tuples(data)


_hints = functools.cache(typing.get_type_hints)


def tuples(data: Any) -> Any:
    """Data of a file, with tuples in the place of lists."""
    if isinstance(data, dict):
        return {name: tuples(each) for name, each in data.items()}
    return tuple(map(tuples, data)) if isinstance(data, list) else data


# -- the states of actors and judges --------------------------------------------------------


class Rule(NamedTuple):
    """Treatment of an attribute in the form of a state, and its reason."""

    why: str
    """Reason why the attribute, or the part of it that is left out, changes nothing later."""
    make: Callable[[Any, Any], Any] | None = None
    """Function of the object and the attribute's value that returns the value to compare in its
    place; None: the attribute is left out."""


Forms: TypeAlias = Mapping[type, Mapping[str, Rule] | Callable[[Any], Any]]
"""By class: rules for attributes by name, or a function that returns the value to compare in
the place of an object."""


class Counted(NamedTuple):
    """Number that only counts on, and is compared with others of its kind and owner only: two
    states are the same if all such numbers are in the same order."""

    kind: str
    """Name of what it counts."""
    owner: Any
    """Name of whoever counts; it may be exchanged."""
    number: int
    """The number."""


class Bag(NamedTuple):
    """Values whose order does not matter."""

    values: tuple[Any, ...]
    """The values."""


class Twins:
    """Copies of one object that share what cannot change: instances of frozen dataclasses, members
    of enumerations, classes and functions.  TypeError in words if there can be none."""

    def __init__(self, value: Any, whose: str) -> None:
        self._shared: list[Any] = []
        file = io.BytesIO()
        try:
            _Pickler(file, self._shared).dump(value)
        except (
            Exception
        ) as error:  # a copy runs code of the value's class, which may raise anything
            raise TypeError(
                f"{whose} keeps what cannot be copied ({type(error).__name__}: {error}); "
                "keep plain values, lists, sets and dicts"
            ) from error
        self._bytes = file.getvalue()

    def make(self) -> Any:
        """Another copy."""
        return _Unpickler(io.BytesIO(self._bytes), self._shared).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file, protocol=5)
        self._shared = shared

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) in _PLAIN or not _cannot_change(obj):
            return None
        self._shared.append(obj)
        return len(self._shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self.persistent_load = shared.__getitem__  # type: ignore[method-assign]  # is asked often


def _cannot_change(value: Any) -> bool:
    if isinstance(value, (type, types.FunctionType, enum.Enum)):
        return True
    params = vars(type(value)).get("__dataclass_params__")
    if params is None or not params.frozen:
        return False
    try:
        hash(value)  # what holds a list has no hash
    except TypeError:
        return False
    return True


def form(value: Any, forms: Forms) -> Any:
    """Form of the state of an actor or a judge: equal forms, equal states.  TypeError if a
    value has none.  Dicts keep their order, since a program can see it; bags are in order."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    made = forms.get(kind)
    if callable(made):
        return form(made(value), forms)
    if kind is Counted:
        return Counted(value.kind, form(value.owner, forms), value.number)
    if kind is Bag:
        return _bag(value.values, forms)
    if isinstance(value, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, (list, tuple, collections.deque)):
        return (kind.__name__, *_forms(value, forms))
    if isinstance(value, dict):
        items = zip(_forms(value, forms), _forms(value.values(), forms), strict=True)
        return (kind.__name__, *items)
    if isinstance(value, (set, frozenset)):
        return (kind.__name__, _bag(value, forms))
    if isinstance(value, (bytearray, memoryview)):
        return (kind.__name__, bytes(value))
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        if "<" not in value.__qualname__:
            return f"{value.__module__}.{value.__qualname__}"
    elif kind.__module__ != "builtins":
        attributes = _attributes(value, kind)
        if attributes or hasattr(value, "__dict__"):
            its = dict(ruled(value, attributes, made)) if made else attributes
            return (kind.__name__, *zip(its, _forms(its.values(), forms), strict=True))
    raise TypeError(f"{kind.__name__}: {value!r}"[:200])


def _forms(values: Iterable[Any], forms: Forms) -> list[Any]:
    return [value if type(value) in _PLAIN else form(value, forms) for value in values]


def _bag(values: Iterable[Any], forms: Forms) -> Bag:
    return Bag(tuple(sorted(_forms(values, forms), key=repr)))


def _attributes(value: Any, kind: type) -> dict[str, Any]:
    """Attributes of an object; none if it has no such."""
    if hasattr(value, "__dict__"):
        return {**vars(value)}
    slots = [name for each in reversed(kind.__mro__) for name in vars(each).get("__slots__", ())]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)}


def ruled(
    value: Any, attributes: Mapping[str, Any], rules: Mapping[str, Rule]
) -> Iterator[tuple[str, Any]]:
    """Attributes of an object as its rules say."""
    for name, its in attributes.items():
        rule = rules.get(name)
        if rule is None:
            yield name, its
        elif rule.make is not None:
            yield name, rule.make(value, its)


def counted(form: Any) -> Iterator[Counted]:
    """All counted numbers in a form."""
    if type(form) is Counted:
        yield form
    elif isinstance(form, tuple):
        for part in form:
            if isinstance(part, tuple):  # most are plain
                yield from counted(part)


Renamed: TypeAlias = Callable[[Any], Any]
"""Function that returns a text or bytes with its names exchanged."""


def lowered(form: Any, renamed: Renamed, ranks: Mapping[Counted, int]) -> Any:
    """Form with names exchanged, counted numbers replaced by their ranks, and bags in order."""
    kind = type(form)
    if kind is str or kind is bytes:
        return renamed(form)
    if kind is Counted:
        return (form.kind, lowered(form.owner, renamed, ranks), ranks[form])
    if kind is Bag:
        return (
            "Bag",
            *sorted((lowered(part, renamed, ranks) for part in form.values), key=repr),
        )
    if isinstance(form, tuple):
        return tuple([lowered(part, renamed, ranks) for part in form])
    return form
