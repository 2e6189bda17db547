"""The leaves of forms, and the rules that put something else in an attribute's place.

Names stay names; numbers that only count on (probes, connections, beats) become
:class:`Counted`; what has no order becomes a :class:`Bag`.  What they mean when
states are compared is in :mod:`.canonical`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias


class Counted(NamedTuple):
    """A number that only counts on; what matters is how far it is behind its owner's
    newest of this kind."""

    kind: str
    owner: int
    number: int


class Bag(NamedTuple):
    """Things of which the order does not matter."""

    things: tuple[Any, ...]


Form: TypeAlias = Callable[[Any], Any]
"""Gives the form of a part; see :func:`.forms.form`."""


class Rule(NamedTuple):
    """The replacement of an attribute, and its reason: nothing, or the result of ``make(owner,
    value, form)``."""

    why: str
    make: Callable[[Any, Any, Form], Any] | None = None
