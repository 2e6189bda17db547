"""Each line that a server may log at warning and above is explained on the page for
operators.  The lines are found in the code, so that a new one is missed there at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import trio_envserve

PACKAGE = Path(trio_envserve.__file__).parent
PAGE = PACKAGE.parent / "docs" / "operating.md"
ELSEWHERE = ("lab", "retrylab", "testing", "cli", "evals")
"""What runs in no server, no worker and no door; and the command, which speaks to people."""

LOGGED = {"warning", "error", "exception", "critical"}
REPORTED = {"Report", "report", "_report"}
"""How the pure machines log: the level as text, then the line."""

WARNED = {"warn", "_malformed"}
"""Of the dispatcher and the router: the line."""

WORKERS_LOG = "log"
"""Of :mod:`trio_envserve.worker.failures`: the level as a number, then the line."""

MAY_LOG = re.compile(rf"\b(?:{'|'.join((*LOGGED, *REPORTED, *WARNED, WORKERS_LOG))})\(")
QUIET = ("info", "debug", "INFO", "DEBUG")
PLACE = re.compile(r"%(?:[-\d.]*[a-z])")
LEAST = 6
"""A shorter piece of text says nothing."""


class Line(NamedTuple):
    place: str
    pieces: tuple[str, ...]
    """The text between the values that are put in."""


def lines() -> Iterator[Line]:
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] in ELSEWHERE:
            continue
        text = path.read_text(encoding="utf-8")
        if not MAY_LOG.search(text):
            continue
        for function in functions(ast.parse(text)):
            for call in calls_in(function):
                for pieces in texts_of(call, function):
                    yield Line(f"{inside}:{call.lineno}", pieces)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def calls_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """Calls in it, but not those in functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting.extend(ast.iter_child_nodes(node))


def texts_of(call: ast.Call, function: ast.AST) -> list[tuple[str, ...]]:
    """The lines that a call may log; none if it logs nothing, or nothing as loud."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if isinstance(call.func, ast.Name):
        name = call.func.id
    if isinstance(owner, ast.Name) and owner.id in ("_log", "logger", "log"):
        return variants(call.args[0], function) if name in LOGGED else []
    if name in WARNED and owner is not None and ast.unparse(owner) != "warnings":
        return variants(call.args[0], function)
    if (name in REPORTED and len(call.args) == 2) or (name == WORKERS_LOG and owner is None):
        level = ast.unparse(call.args[0])
        if not any(quiet in level for quiet in QUIET) or " if " in level:
            return variants(call.args[1], function)
    return []


def variants(text: ast.expr, function: ast.AST) -> list[tuple[str, ...]]:
    """The pieces of each text that an expression may be."""
    match text:
        case ast.Constant(value=str(value)):
            return [tuple(PLACE.split(value))]
        case ast.JoinedStr(values=values):
            return [tuple(str(each.value) for each in values if isinstance(each, ast.Constant))]
        case ast.IfExp(body=body, orelse=other):
            return [*variants(body, function), *variants(other, function)]
        case ast.BinOp(left=left, right=right):
            return [
                (*first, *second)
                for first in variants(left, function)
                for second in variants(right, function)
            ]
        case ast.Name(id=name):
            given = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
            ]
            if name in parameters(function):  # whoever calls it is read, too
                return []
            if given:
                return [found for value in given for found in variants(value, function)]
    return [("a text that this test cannot read",)]


def parameters(function: ast.AST) -> set[str]:
    return {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}


def test_each_line_of_the_log_is_explained() -> None:
    shown = " ".join(PAGE.read_text(encoding="utf-8").split())
    found = sorted(set(lines()))
    missing = [
        f"{line.place} logs {line.pieces}"
        for line in found
        for words in (" ".join(piece.split()) for piece in line.pieces)
        if len(words) >= LEAST and words not in shown
    ]
    assert not missing
    read = {piece.strip() for line in found for piece in line.pieces}
    for known in ("died:", ": event loop blocked for", "the HTTP door made a mistake"):
        assert known in read, "the code is not read right"
    assert len(found) > 30
