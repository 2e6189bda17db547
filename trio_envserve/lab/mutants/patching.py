"""Applying a mutant from outside, and taking it back.

The shipped code has no trace of the mutants: each sets attributes of its classes
and modules, or cells of its table, for as long as a ``with`` block lasts.  Only
this process is changed, and all of it: no two mutants at once, and no run of what
ships beside one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

from ..simulation.faults import Fault

F = TypeVar("F", bound=Callable[..., Any])


@final
class Patches:
    """The changes of a mutant, and the originals."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def attribute(self, target: Any, name: str, value: Any) -> None:
        """Set an attribute that the class or module itself has."""
        before = vars(target)[name]
        setattr(target, name, value)
        self._undo.append(lambda: setattr(target, name, before))

    def item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Set a value that the mapping has."""
        before = mapping[key]
        mapping[key] = value
        self._undo.append(lambda: mapping.__setitem__(key, before))

    def replacing(self, target: Any, name: str) -> Callable[[F], F]:
        """A decorator: the function takes the place of an attribute."""
        return _decorator(partial(self.attribute, target, name))

    def around(self, target: Any, name: str) -> Callable[[F], F]:
        """The same, and the function is given what was there before its other arguments."""
        return _decorator(partial(self.attribute, target, name), vars(target)[name])

    def cell(self, table: MutableMapping[Any, Any], key: Any) -> Callable[[F], F]:
        """A decorator: the function takes the place of a value of a table."""
        return _decorator(partial(self.item, table, key))

    def around_cell(self, table: MutableMapping[Any, Any], key: Any) -> Callable[[F], F]:
        """The same, and the function is given what was there before its other arguments."""
        return _decorator(partial(self.item, table, key), table[key])

    def undo(self) -> None:
        """Everything is as it was."""
        while self._undo:
            self._undo.pop()()


def _decorator(put: Callable[[Any], None], original: Any = None) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        def call(*args: Any, **named: Any) -> Any:
            return function(original, *args, **named)

        put(function if original is None else call)
        return function

    return decorate


Apply: TypeAlias = Callable[[Patches], None]


class Mutant(NamedTuple):
    """A variant that is broken on purpose."""

    name: str
    """Short, in kebab case: how the command line knows it."""
    prose: str
    """One line: what goes wrong."""
    guarantees: tuple[str, ...]
    """The guarantees by which it may be caught."""
    needs: frozenset[Fault]
    """Only runs with all these faults are tried: what it breaks defends against them."""
    apply: Apply

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While the block lasts, this process runs the broken variant."""
        patches = Patches()
        try:
            self.apply(patches)
            yield
        finally:
            patches.undo()

    def caught_by(self, guarantee: str) -> bool:
        """Whether a violation of this guarantee is what it must be found by."""
        return guarantee in self.guarantees


ANY = ("CRASH", *(f"G{n}" for n in range(1, 10)), "G11")
"""For what breaks so much that any guarantee may be the first to show it."""


@final
class Family:
    """The mutants of one module, in the order in which they are written there."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def mutant(self, *guarantees: str, needs: tuple[Fault, ...] = ()) -> Callable[[Apply], Apply]:
        """A decorator: the function's name and docstring are the mutant's."""

        def add(apply: Apply) -> Apply:
            name = getattr(apply, "__name__", "").replace("_", "-")
            prose = " ".join((apply.__doc__ or "").split())
            found = Mutant(name, prose, guarantees or ANY, frozenset(needs), apply)
            self.mutants.append(found)
            return apply

        return add
