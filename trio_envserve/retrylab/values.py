"""Plain values: what may travel in a message, and how it reads.

A message is written into the digest of a run, so its text must be the same in every
process; and it must not change while it is on its way.  A message is therefore immutable,
down to its last part.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import types
from typing import Any

_ATOMS = (type(None), bool, int, float, str, bytes)

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


# -- the states of actors and judges --------------------------------------------------------


def copied(value: Any, whose: str) -> Any:
    """Copy of the state of an actor or a judge.  TypeError in words if there can be none."""
    try:
        return copy.deepcopy(value)
    except Exception as error:  # a copy runs code of the value's class, which may raise anything
        raise TypeError(
            f"{whose} keeps what cannot be copied ({type(error).__name__}: {error}); "
            "keep plain values, lists, sets and dicts"
        ) from error


def state_text(value: Any) -> str:
    """State of an actor or a judge as text: equal texts, equal states.  TypeError if a value
    has no such text.  Dicts keep their order, since a program can see it."""
    kind = type(value)
    if kind in _ATOMS:
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, (list, tuple, collections.deque)):
        return f"{kind.__name__}[{','.join(map(state_text, value))}]"
    if isinstance(value, dict):
        items = (f"{state_text(name)}:{state_text(each)}" for name, each in value.items())
        return f"{kind.__name__}{{{','.join(items)}}}"
    if isinstance(value, (set, frozenset)):
        return f"{kind.__name__}{{{','.join(sorted(map(state_text, value)))}}}"
    if dataclasses.is_dataclass(kind):
        return f"{kind.__name__}({','.join(state_text(part) for part in _fields(value))})"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        if "<" not in value.__qualname__:
            return f"{value.__module__}.{value.__qualname__}"
    elif kind.__module__ != "builtins" and hasattr(value, "__dict__"):
        return f"{kind.__name__}{state_text(vars(value))}"
    raise TypeError(f"{kind.__name__}: {value!r}"[:200])


def _fields(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in dataclasses.fields(value)]
