"""Plain values: what may travel in a message, and how it reads.

A message is written into the digest of a run, so its text must be the same in every
process; and it must not change while it is on its way.  So it is immutable, down to
its last part.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

_ATOMS = (type(None), bool, int, float, str, bytes)

ALLOWED = (
    "None, bool, int, float, str, bytes, and Enum members, tuples, frozensets, NamedTuples "
    "and frozen dataclasses of these"
)


def plain(value: Any) -> str:
    """The value as text, the same in every process.  TypeError if it is not plain."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if type(value) in _ATOMS:
        return repr(value)
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(plain, value)))}}}"
    name, parts = _parts(value)
    return f"{name}({', '.join(map(plain, parts))})"


def short(value: Any) -> str:
    """A plain value for a diagram, in one line: ``Add c0#1 x 3``."""
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
