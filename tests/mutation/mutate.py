"""Small changes of a module's source, one at a time, by a pass over its syntax tree.

Left alone are docstrings, assertions, annotations, default values, type aliases and
whatever stands at the top of the module other than functions and classes: what a test
cannot see, or sees at import.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
}  # fmt: skip


class Mutation(NamedTuple):
    """One change: where, from what, to what, and the whole source after it."""

    function: str
    before: str
    after: str
    ordinal: int
    """Which of the same changes in this function it is, from 1."""
    line: int
    source: str

    @property
    def name(self) -> str:
        """The same as long as the code in this place is."""
        again = f" #{self.ordinal}" if self.ordinal > 1 else ""
        return f"{self.function}: {self.before} -> {self.after}{again}"


def mutations(source: str) -> Iterator[Mutation]:
    """Every mutation of a module, in the order of its lines."""
    tree = ast.parse(source)
    seen: dict[tuple[str, str, str], int] = {}
    for function, path in list(_places(tree)):
        for changed in _changes(_at(tree, path)):
            mutant = copy.deepcopy(tree)
            before = ast.unparse(_at(tree, path))
            after = "nothing" if changed is None else ast.unparse(changed)
            _put(mutant, path, changed)
            key = (function, before, after)
            seen[key] = seen.get(key, 0) + 1
            line = getattr(_at(tree, path), "lineno", 0)
            yield Mutation(
                function, before.splitlines()[0], after.splitlines()[0], seen[key], line,
                ast.unparse(ast.fix_missing_locations(mutant)),
            )  # fmt: skip


# A node is named by the way to it: fields and, in lists, indices.
Path = tuple[tuple[str, int | None], ...]


def _at(tree: ast.AST, path: Path) -> ast.AST:
    node: ast.AST = tree
    for field, index in path:
        value = getattr(node, field)
        node = value if index is None else value[index]
    return node


def _put(tree: ast.AST, path: Path, node: ast.AST | None) -> None:
    *way, (field, index) = path
    parent = _at(tree, tuple(way))
    new = ast.Pass() if node is None else node
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def _places(tree: ast.Module) -> Iterator[tuple[str, Path]]:
    """All nodes inside functions that may be changed, with their function's name."""
    for index, node in enumerate(tree.body):
        if isinstance(node, ast.FunctionDef):
            yield from _inside(node, (("body", index),), node.name)
        elif isinstance(node, ast.ClassDef):
            for inner, member in enumerate(node.body):
                if isinstance(member, ast.FunctionDef):
                    path = (("body", index), ("body", inner))
                    yield from _inside(member, path, f"{node.name}.{member.name}")


def _inside(function: ast.FunctionDef, path: Path, name: str) -> Iterator[tuple[str, Path]]:
    for index, statement in enumerate(function.body):
        if index or not _is_text(statement):
            yield from _below(statement, (*path, ("body", index)), name)


def _below(node: ast.AST, path: Path, name: str) -> Iterator[tuple[str, Path]]:
    if isinstance(node, ast.Assert | ast.Raise) or _is_text(node):
        return
    yield name, path
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "ctx"):
            continue
        if isinstance(value, ast.AST):
            yield from _below(value, (*path, (field, None)), name)
        elif isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, ast.AST):
                    yield from _below(each, (*path, (field, index)), name)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[ast.AST | None]:
    """What may stand in the place of a node; None for nothing at all."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            yield from values  # each operand alone
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield ast.BinOp(node.left, ARITHMETIC[type(op)](), node.right)
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield ast.AugAssign(node.target, ARITHMETIC[type(op)](), node.value)
            yield None
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.If() | ast.IfExp():
            for value in (True, False):
                changed = copy.copy(node)
                changed.test = ast.Constant(value)
                yield changed
        case ast.Expr() | ast.Assign() | ast.Delete() | ast.Continue() | ast.Break():
            yield None
        case ast.Return(value=ast.Tuple(elts=[_, *_] as elements)):
            yield ast.Return(ast.Tuple([], ast.Load()))
            for index in range(len(elements) if len(elements) > 1 else 0):
                left = elements[:index] + elements[index + 1 :]
                yield ast.Return(ast.Tuple(left, ast.Load()))
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield ast.Return(ast.Constant(None))
