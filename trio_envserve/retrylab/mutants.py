"""Mutants: code that is broken on purpose, from outside, for as long as a block lasts.

A check that no mutant fails is not a check.  The code itself has no trace of the mutants:
each sets attributes of its classes and modules, or cells of its tables, or exchanges a part of
the source of a function, for as long as a ``with`` block lasts.  Only this process is changed,
and all of it: no two mutants at once, and no run of what is whole beside one.
"""

from __future__ import annotations
import __future__

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

F = TypeVar("F", bound=Callable[..., Any])


@final
class Patches:
    """The changes of a mutant, and the originals."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._sources: dict[Any, str] = {}
        """Sources of the functions that run as if they had other ones."""

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

    def around(self, target: Any, name: str) -> Callable[[F], F]:
        """A decorator: the function takes the place of an attribute, and is given what was there
        before its other arguments."""
        return _decorator(partial(self.attribute, target, name), vars(target)[name])

    def around_cell(self, table: MutableMapping[Any, Any], key: Any) -> Callable[[F], F]:
        """Replace a value of a table, as :meth:`around` does an attribute."""
        return _decorator(partial(self.item, table, key), table[key])

    def source(self, function: Any, before: str, after: str) -> None:
        """Let a function run as if its source had other text in some place, wherever it is
        called from.  LookupError if it has no such text."""
        text = self._sources.get(function) or textwrap.dedent(inspect.getsource(function))
        if before not in text:
            raise LookupError(f"{function.__qualname__} has no {before!r} in it")
        self._sources[function] = text = text.replace(before, after)
        tree = ast.parse(text)
        made = tree.body[0]
        assert isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef)
        made.decorator_list.clear()
        ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
        names = {**function.__globals__}  # what its defaults are made of
        flags = __future__.annotations.compiler_flag
        exec(compile(tree, function.__code__.co_filename, "exec", flags), names)
        self.code(function, names[made.name])

    def code(self, function: Any, other: Any) -> None:
        """Let a function run the code of another one."""
        before = function.__code__
        function.__code__ = other.__code__
        self._undo.append(lambda: setattr(function, "__code__", before))

    def undo(self) -> None:
        """Everything is as it was."""
        while self._undo:
            self._undo.pop()()


def _decorator(put: Callable[[Any], None], original: Any) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        def call(*args: Any, **named: Any) -> Any:
            return function(original, *args, **named)

        put(call)
        return function

    return decorate


Apply: TypeAlias = Callable[[Patches], None]
"""Function that breaks what a mutant breaks."""


def text(function: Any, before: str, after: str) -> Apply:
    """A function has other text in some place of its source, see :meth:`Patches.source`."""
    return lambda patches: patches.source(function, before, after)


def named(target: Any, name: str, value: Any) -> Apply:
    """A class or a module has another attribute of this name."""
    return lambda patches: patches.attribute(target, name, value)


def cells(table: MutableMapping[Any, Any], keys: Iterable[Any], value: Any) -> Apply:
    """A table has another value under each of these keys."""

    def change(patches: Patches) -> None:
        for key in keys:
            patches.item(table, key, value)

    return change


class Mutant(NamedTuple):
    """A variant that is broken on purpose."""

    name: str
    """Short, in kebab case: how the command line knows it."""
    prose: str
    """Description of the fault, in one line."""
    guarantees: tuple[str, ...]
    """The guarantees by which it may be caught."""
    needs: frozenset[Any]
    """Kinds of fault without which a run is not tried: what it breaks defends against them."""
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


def find_in(mutants: Sequence[Mutant], name: str) -> Mutant:
    """The mutant of this name.  KeyError with the near names if there is none."""
    for mutant in mutants:
        if mutant.name == name:
            return mutant
    near = difflib.get_close_matches(name, [mutant.name for mutant in mutants], n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise KeyError(f"no mutant {name!r}{hint}")


@final
class Family:
    """The mutants of one module, in the order in which they are written there."""

    def __init__(self, guarantees: Sequence[str], needs: Sequence[Any] = ()) -> None:
        self.guarantees = tuple(guarantees)
        """Guarantees by which a mutant that names none may be caught: it breaks so much
        that any may be the first to show it."""
        self.needs = tuple(needs)
        """Kinds of fault that all of them need."""
        self.mutants: list[Mutant] = []

    def mutant(self, *guarantees: str, needs: tuple[Any, ...] = ()) -> Callable[[Apply], Apply]:
        """A decorator: the function's name and docstring are the mutant's."""

        def add(apply: Apply) -> Apply:
            name = getattr(apply, "__name__", "").replace("_", "-")
            self._add(name, guarantees, needs, " ".join((apply.__doc__ or "").split()), apply)
            return apply

        return add

    def table(self, *rows: tuple[Any, ...]) -> None:
        """Mutants as rows: name, guarantees in one text, needs, prose, and changes."""
        for name, guarantees, needs, prose, *changes in rows:
            self._add(name, tuple(guarantees.split()), needs, prose, partial(_change, changes))

    def _add(
        self, name: str, by: tuple[str, ...], needs: Iterable[Any], prose: str, apply: Apply
    ) -> None:
        needed = frozenset((*self.needs, *needs))
        self.mutants.append(Mutant(name, prose, by or self.guarantees, needed, apply))


def _change(changes: Sequence[Apply], patches: Patches) -> None:
    for change in changes:
        change(patches)
