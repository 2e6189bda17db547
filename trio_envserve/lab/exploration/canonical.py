"""The canonical form of a state: the least digest over all exchanges of names.

Theory of operation
-------------------
A form (:mod:`.forms`) is lowered under an exchange of client and worker names:
names are exchanged, counted numbers become distances to their owner's newest,
bags are sorted.  Two states are the same if one exchange makes them so; of all
the exchanges of a configuration's clients and slots the least digest stands
for the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from itertools import permutations
from typing import Any, NamedTuple

from ...retrylab.values import Bag, Counted
from .names import Renaming


class Newest(NamedTuple):
    """The numbers with which counted numbers are compared."""

    numbers: Mapping[tuple[str, Any], int]
    """The newest of each kind and owner; where there is none, none matters."""
    most: Mapping[str, int]
    """How far behind all are the same, for the kinds of which that can be said."""


def lower(form: Any, renaming: Renaming, newest: Newest) -> Any:
    """The form under an exchange of names, without counted numbers and bags."""
    kind = type(form)
    if kind is bytes:
        return renaming.of(form)
    if kind is str:
        return renaming.of(form.encode())
    if kind is tuple:
        return tuple([lower(part, renaming, newest) for part in form])
    if kind is Counted:
        last = newest.numbers.get((form.kind, form.owner))
        behind = None if last is None else min(last - form.number, newest.most[form.kind])
        return (form.kind, behind)
    if kind is Bag:
        return ("bag", *sorted((lower(part, renaming, newest) for part in form.values), key=repr))
    return form


def digest(form: Any) -> bytes:
    """16 bytes that stand for a lowered form."""
    return blake2b(repr(form).encode(), digest_size=16).digest()


def renamings(clients: int, slots: int) -> list[Renaming]:
    """All exchanges; the first changes nothing."""
    return [
        Renaming(of_clients, of_slots)
        for of_clients in permutations(range(clients))
        for of_slots in permutations(range(slots))
    ]
