"""Small changes of a module's source, one at a time, by a pass over its syntax tree.

Besides operators, conditions, statements and numbers, what goes wrong in shells is tried:
an ``await`` dropped (like any statement), or exchanged with the bookkeeping beside it; a
``finally`` that is run only if nothing was raised; a handler that passes on what it should
catch, or catches what it should pass on; a block without its ``with``; a shield taken away
(like any flag); a time limit that is over at once, or never.

Left alone are docstrings, assertions, annotations, default values, type aliases, lines of
the log, and whatever stands at the top of the module other than functions and classes: what
a test cannot see, or sees at import.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
}  # fmt: skip
TIME_LIMITS = frozenset(
    ("fail_after", "fail_at", "move_on_after", "move_on_at", "sleep", "sleep_until")
)
"""The calls whose first argument says when something is over."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Mutation(NamedTuple):
    """One change: where, from what, to what, and the whole source after it."""

    function: str
    before: str
    after: str
    ordinal: int
    """Which of the same changes in this function it is, from 1."""
    line: int
    change: Callable[[], ast.Module]
    """Makes the whole tree after it."""

    @property
    def name(self) -> str:
        """The same as long as the code in this place is."""
        again = f" #{self.ordinal}" if self.ordinal > 1 else ""
        return f"{self.function}: {self.before} -> {self.after}{again}"


def mutations(source: str) -> Iterator[Mutation]:
    """Every mutation of a module, in the order of its lines."""
    tree = ast.parse(source)
    seen: dict[tuple[str, str, str], int] = {}

    def mutation(
        function: str, path: Path, texts: tuple[str, str], change: Callable[[ast.Module], None]
    ) -> Mutation:
        key = (function, *texts)
        seen[key] = seen.get(key, 0) + 1
        before, after = (text.splitlines()[0] for text in texts)
        line = getattr(_at(tree, path), "lineno", 0)
        return Mutation(function, before, after, seen[key], line, partial(_changed, tree, change))

    for function, path in list(_places(tree)):
        node = _at(tree, path)
        for changed in _changes(node):
            texts = _text(node), _text(changed)
            yield mutation(function, path, texts, partial(_put, path=path, node=changed))
        if (following := _following(tree, path)) is not None and _exchanges(node, following):
            first, second = (_text(each).splitlines()[0] for each in (node, following))
            texts = f"{first}; {second}", f"{second}; {first}"
            yield mutation(function, path, texts, partial(_exchange, path=path))


def _changed(tree: ast.Module, change: Callable[[ast.Module], None]) -> ast.Module:
    mutant = copy.deepcopy(tree)
    change(mutant)
    return ast.fix_missing_locations(mutant)


def _text(node: ast.AST | None) -> str:
    """A node in the name of a mutation; of a long one, its first line tells."""
    match node:
        case None:
            return "nothing"
        case ast.Try(finalbody=[*_, last]):
            return f"finally: {ast.unparse(last)}"
        case ast.Try(orelse=[*_, last]):
            return f"else: {ast.unparse(last)}"
        case ast.ExceptHandler(type=caught, body=[first, *_]):
            what = "" if caught is None else f" {ast.unparse(caught)}"
            return f"except{what}: {ast.unparse(first)}"
    return ast.unparse(node)


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


def _following(tree: ast.AST, path: Path) -> ast.AST | None:
    """The statement after a statement."""
    field, index = path[-1]
    if index is None or not isinstance(_at(tree, path), ast.stmt):
        return None
    siblings = getattr(_at(tree, path[:-1]), field)
    return siblings[index + 1] if index + 1 < len(siblings) else None


def _exchange(tree: ast.AST, path: Path) -> None:
    """Put a statement behind the one that follows."""
    field, index = path[-1]
    assert index is not None
    siblings = getattr(_at(tree, path[:-1]), field)
    siblings[index : index + 2] = siblings[index : index + 2][::-1]


def _exchanges(first: ast.AST, second: ast.AST) -> bool:
    """Whether one of two statements awaits, and the other keeps the books."""
    one, other = (second, first) if _awaits(second) else (first, second)
    return _awaits(one) and _keeps_books(other)


def _awaits(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Await)


def _keeps_books(node: ast.AST) -> bool:
    """Whether a statement changes more than a local name, and does not await."""
    match node:
        case ast.Expr(value=ast.Call()):
            return not _is_log(node)
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
            return not (_awaits(node) or isinstance(target, ast.Name | ast.Tuple))
    return isinstance(node, ast.Delete)


def _places(tree: ast.Module) -> Iterator[tuple[str, Path]]:
    """All nodes inside functions that may be changed, with their function's name."""
    for index, node in enumerate(tree.body):
        if isinstance(node, Function):
            yield from _inside(node, (("body", index),), node.name)
        elif isinstance(node, ast.ClassDef):
            for inner, member in enumerate(node.body):
                if isinstance(member, Function):
                    path = (("body", index), ("body", inner))
                    yield from _inside(member, path, f"{node.name}.{member.name}")


def _inside(function: Function, path: Path, name: str) -> Iterator[tuple[str, Path]]:
    for index, statement in enumerate(function.body):
        if index or not _is_text(statement):
            yield from _below(statement, (*path, ("body", index)), name)


def _below(node: ast.AST, path: Path, name: str) -> Iterator[tuple[str, Path]]:
    if isinstance(node, ast.Assert) or _is_text(node) or _is_log(node):
        return
    if isinstance(node, ast.Raise) and node.exc is not None:
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


def _is_log(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=called)):
            return ast.unparse(called).split(".")[0] in ("log", "_log", "logger")
    return False


def _passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler does nothing but raise again what it has caught."""
    match [each for each in handler.body if not _is_log(each)]:
        case [ast.Raise(exc=None)]:
            return True
    return False


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
        case ast.Expr() | ast.Assign() | ast.Delete() | ast.Continue() | ast.Break() | ast.Raise():
            yield None
        case ast.Call(args=[_, *others]) if _name(node.func) in TIME_LIMITS:
            for limit in (ast.Constant(0), ast.parse("float('inf')", mode="eval").body):
                yield ast.Call(node.func, [limit, *others], node.keywords)
        case ast.With() | ast.AsyncWith() if not any(each.optional_vars for each in node.items):
            yield ast.If(ast.Constant(True), node.body, [])
        case ast.ExceptHandler() if not _passes_on(node):
            yield ast.ExceptHandler(node.type, node.name, [ast.Raise()])
        case ast.Try(finalbody=[_, *_]):
            passed_on = ast.ExceptHandler(ast.Name("BaseException"), None, [ast.Raise()])
            handlers = [*node.handlers, passed_on]
            yield ast.Try(node.body, handlers, node.orelse + node.finalbody, [])
        case ast.Return(value=ast.Tuple(elts=[_, *_] as elements)):
            yield ast.Return(ast.Tuple([], ast.Load()))
            for index in range(len(elements) if len(elements) > 1 else 0):
                left = elements[:index] + elements[index + 1 :]
                yield ast.Return(ast.Tuple(left, ast.Load()))
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield ast.Return(ast.Constant(None))


def _name(called: ast.expr) -> str:
    return ast.unparse(called).split(".")[-1]
