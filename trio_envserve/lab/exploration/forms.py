"""The part of a machine's state that matters: from objects to plain, comparable forms.

Theory of operation
-------------------
:func:`form` walks through a machine and gives nested tuples of plain values.
Every attribute counts unless :mod:`.rules` says otherwise, so what is added to
a core counts until somebody has thought about it.  A rule either leaves an
attribute out, with the reason why it cannot change what happens later, or says
what takes its place.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import cache
from typing import Any

from ...core.ranges import Ranges
from .hosted_rules import HOST_RULES
from .leaves import Bag, Form
from .rules import RULES

_MODULES = ("trio_envserve.core.", "trio_envserve.lab.hosts.")
_PLAIN = frozenset((bool, int, float, bytes))


def form(value: Any) -> Any:
    """The form of a machine, or of a part of it."""
    kind = type(value)
    if value is None or kind in _PLAIN:
        return value
    if kind is str:
        return value.encode()
    if kind is tuple or kind is list:
        return tuple(map(form, value))
    if isinstance(value, dict):
        return tuple((form(key), form(item)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return Bag(tuple(map(form, value)))
    if isinstance(value, enum.Enum):
        return value.name
    if kind is Ranges:
        return ("ranges", *value.flat())
    if isinstance(value, tuple):
        return (kind.__name__, *map(form, value))
    if kind is memoryview:
        return bytes(value)
    if callable(value):
        return None  # a way to something that is in the form, if it has a state at all
    return _object(value, kind)


def _object(value: Any, kind: type) -> Any:
    names = getattr(kind, "__slots__", None) or tuple(vars(value))
    return (
        kind.__name__,
        *(
            form(getattr(value, name)) if make is None else make(value, getattr(value, name), form)
            for name, make in _attributes(kind, names)
        ),
    )


@cache
def _attributes(
    kind: type, names: tuple[str, ...]
) -> tuple[tuple[str, Callable[[Any, Any, Form], Any] | None], ...]:
    """The attributes that are in the form, and what stands for them."""
    if not kind.__module__.startswith(_MODULES):
        raise TypeError(f"no form for {kind.__name__}")
    rules = RULES.get(kind) or HOST_RULES.get(kind, {})
    return tuple(
        (name, rules[name].make if name in rules else None)
        for name in names
        if name not in rules or rules[name].make is not None
    )
