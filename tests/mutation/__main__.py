"""Changes modules in every small way there is, and looks which tests see which change.

    python -m tests.mutation [MODULE ...] [--list] [--only TEXT] [--share N]
    python -m tests.mutation matrix [MODULE ...] [--tests PATH ...] [--share N]

For each module (by default those of the table of work) every mutation of :mod:`mutate` is tried
with the tests that :mod:`modules` names for it, until one sees it (:mod:`judging`).  Exit status
0 only if each mutation that survives is listed in ``survivors.toml`` with the reason why a
reader agrees that it changes nothing that matters, and each of those does survive.  With
``--share N`` only each N-th mutation is tried, the same ones each time; of the modules in SHARES
that is so without the option.  ``shells`` stands for the modules of shells whose survivors were
read (READ); the others are tried by their names until somebody has read theirs.

``matrix`` tries at most two mutations a line, and prints which tests are in no need: tests that
stay by what they are (:func:`judging.stays`), and a cover of few lines and seconds of the others,
see all that any of them sees.  What is in no need is to be read before it goes, and the modules
are to be tried again after it.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import os
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

from tests.mutation.judging import NOT_PUT_IN, Judged, function_of, judge, survives_whole
from tests.mutation.modules import ALL, READ, ROOT, SHARES, path_of, tests_of
from tests.mutation.mutate import Mutation, mutations

PER_LINE = 2
"""Mutations of a line in a matrix."""

SECOND_LINES = 20
"""Lines of a test that weigh as much as a second of it."""


# -- survivors -------------------------------------------------------------------------


def examine(module: str, options: argparse.Namespace) -> bool:
    """Try a module's mutations and say what survived; whether all is as agreed."""
    chosen = [each for each in all_of(module) if options.only in each.name]
    share = options.share or SHARES.get(module, 1)
    chosen = chosen[::share]
    began_s = time.monotonic()
    seen = judge([(module, each) for each in chosen], tests_of(module)).seen
    alive = [
        each.mutation for each in seen
        if each.by in ((), (NOT_PUT_IN,))
        and survives_whole(module, each.mutation, tests_of(module))
    ]  # fmt: skip
    table = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text(encoding="utf-8"))
    agreed: dict[str, str] = table.get(module, {})
    unknown = [mutation for mutation in alive if mutation.name not in agreed]
    tried = {mutation.name for mutation in chosen}
    if not options.only and share == 1:
        tried |= agreed.keys()  # also those that are not there any more
    stale = sorted((agreed.keys() & tried) - {mutation.name for mutation in alive})
    part = len(alive) / max(1, len(seen))
    print(
        f"{module}: {len(seen)} mutations{f' (1 of {share})' if share > 1 else ''}, "
        f"{len(alive)} survived ({part:.1%}), {len(alive) - len(unknown)} of them agreed; "
        f"{time.monotonic() - began_s:.1f} s"
    )
    for mutation in unknown:
        print(f"  survives, line {mutation.line}: {mutation.name}")
    for name in stale:
        print(f"  is caught, or is not there any more: {name}")
    return not unknown and not stale


def all_of(module: str) -> list[Mutation]:
    """All mutations of a module."""
    return [*mutations(path_of(module).read_text(encoding="utf-8"))]


# -- the matrix ------------------------------------------------------------------------


def matrix(modules: list[str], options: argparse.Namespace) -> None:
    """Print which tests are in no need for the mutations of these modules."""
    chosen = [(module, each) for module in modules for each in some_of(module, options.share or 1)]
    tests = options.tests or sorted({test for module in modules for test in tests_of(module)})
    judged = judge(chosen, tests, is_matrix=True)
    for module in modules:
        of = [each for each in judged.seen if each.module == module and each.by != (NOT_PUT_IN,)]
        count = Counter("stay" if each.stays else "others" for each in of if each.by)
        alive = [each.mutation for each in of if not each.by]
        print(
            f"{module}: {len(of)} mutations, {count['stay']} seen by tests that stay, "
            f"{count['others']} by others, {len(alive)} by none"
        )
        for mutation in alive:
            print(f"  no test sees line {mutation.line}: {mutation.name}")
    others = {function_of(name) for name in judged.seconds.keys() - judged.stays}
    idle = sorted(others - cover(judged))
    print(f"{len(others)} tests do not stay by what they are; {len(idle)} are in no need:")
    for name in idle:
        print(f"  {length(name):4} {name}")
    print(f"  {sum(map(length, idle)):4} lines")


def some_of(module: str, share: int) -> list[Mutation]:
    """Mutations of a module, at most so many of each line, of different kinds if there are."""
    lines: dict[int, list[Mutation]] = {}
    for each in all_of(module):
        lines.setdefault(each.line, []).append(each)
    found = []
    for line in lines.values():
        found += line[:: max(1, len(line) // PER_LINE)][:PER_LINE]
    return found[::share]


def cover(judged: Judged) -> set[str]:
    """Tests that see all that is seen by none of those that stay: few lines and seconds."""
    left = [each.by for each in judged.seen if each.by and not each.stays]
    needed: set[str] = set()
    while left:
        count = Counter(name for by in left for name in by)

        def worth(name: str, count: Counter[str] = count) -> float:
            return count[name] / (length(name) + SECOND_LINES * judged.seconds[name])

        best = max(sorted(count), key=worth)
        needed.add(function_of(best))
        left = [by for by in left if best not in by]
    return needed


@functools.cache
def length(name: str) -> int:
    """The lines of a test, with its decorators and the two behind it."""
    file, _, function = function_of(name).partition("::")
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return (node.end_lineno or node.lineno) - first + 3
    return 1


def main() -> int:
    words = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("modules", nargs="*", default=["work", "account"], metavar="MODULE")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("--share", type=int, default=0, metavar="N", help="each N-th mutation")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="those of a matrix")
    parser.add_argument("--list", action="store_true", help="name the mutations, try none")
    options = parser.parse_args()
    is_matrix = options.modules[:1] == ["matrix"]
    given = options.modules[is_matrix:] or ["work", "account"]
    named = [each for name in given for each in (READ if name == "shells" else [name])]
    unknown = [module for module in named if not path_of(module).is_file()]
    if unknown:
        parser.error(f"no such module: {unknown[0]}; there are shells, {', '.join(ALL)}")
    if options.share < 0:
        parser.error("--share is a number >= 1")
    if options.list:
        for module in named:
            for mutation in all_of(module):
                print(f"{module}:{mutation.line}: {mutation.name}")
        return 0
    os.environ.setdefault("HYPOTHESIS_PROFILE", "matrix" if is_matrix else "mutation")
    # What takes long to import and is not the package, once for all children.
    for name in ("pytest", "hypothesis.stateful", "trio", "numpy", "cbor2"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as compiled:
        # Each child would compile all that it imports, where no compiled files are written.
        sys.dont_write_bytecode, sys.pycache_prefix = False, compiled
        if is_matrix:
            matrix(named, options)
            return 0
        good = [examine(module, options) for module in named]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
