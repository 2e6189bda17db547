"""The matrix of tests and mutations: which tests see which mutation, and which see none alone.

A fork server collects the tests once, runs each under coverage to learn which lines it
reaches and how long it takes, and then tries each mutation in forks of itself, with only the
tests that reach the changed line.  Tests that stay whatever the matrix says (:func:`stays`)
run first, and the first of them that fails ends the mutation: nothing else is needed for it.
Of the others all run.  A greedy cover, weighed by lines and seconds, says which of them are
needed; the rest is to be read, and perhaps deleted.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.mutation.judging import MEMORY_BYTES, _name, _put_in
from tests.mutation.modules import ROOT, path_of
from tests.mutation.mutate import Mutation, mutations
from tests.regressions.run import PATCHES, read_patch

LONG_S = 3.0
"""A test that takes longer is not tried."""

SPARE_S, TIMES = 10.0, 20
"""Seconds that a mutation may take beside what its tests take, and how many times that."""

SECOND_LINES = 20
"""Lines of a test that weigh as much as a second of it."""


class Seen(NamedTuple):
    """Which tests see a mutation."""

    module: str
    mutation: Mutation
    by: tuple[str, ...]
    """A test that stays, alone, or all others that see it."""
    is_kept: bool


def stays(item: Any) -> bool:
    """Whether a test stays: of a guarantee by its number, a table, a property, or of what
    once went wrong."""
    text = item.obj.__doc__ or ""
    return bool(
        re.match(r"test_g\d+_", item.name)
        or "[" in item.name
        or getattr(item.obj, "is_hypothesis_test", False)
        or item.cls is not None  # a machine of Hypothesis
        or "flaws" in item.path.name
        or text
        or function_of(item) in named()
    )


@functools.cache
def named() -> frozenset[str]:
    """The test functions that patches name."""
    tests = (test for path in PATCHES.glob("*.patch") for test in read_patch(path).tests)
    return frozenset(f"tests/{test.partition('[')[0]}" for test in tests)


def function_of(item: Any) -> str:
    """The name of a test without its parameters."""
    return str(item.nodeid).partition("[")[0]


def chosen_of(module: str, per_line: int, share: int) -> list[Mutation]:
    """At most so many mutations of each line, of different kinds where it has more."""
    lines: dict[int, list[Mutation]] = {}
    for each in mutations(path_of(module).read_text(encoding="utf-8")):
        lines.setdefault(each.line, []).append(each)
    found = []
    for line in lines.values():
        step = max(1, len(line) // per_line)
        found += line[::step][:per_line]
    return found[::share]


class Server:
    """Tries mutations where pytest would run the tests."""

    def __init__(
        self, chosen: Sequence[tuple[str, Mutation]], told: Callable[[Seen], None]
    ) -> None:
        self._chosen = chosen
        self._told = told
        self._hits: dict[tuple[str, str], dict[str, int]] = {}
        self.seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, set[str]]] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.kept = {item.nodeid for item in session.items if stays(item)}
        began_s = time.monotonic()
        for line in _child(self._measure, 3600.0):
            self._take(json.loads(line))
        sys.stderr.write(f"measured in {time.monotonic() - began_s:.0f} s\n")
        gc.collect()
        gc.freeze()  # pages of the tests stay shared with the children
        for module, mutation in self._chosen:
            self._told(self._try(module, mutation))
        return True

    def _measure(self, tell: Callable[[str], None]) -> None:
        import coverage

        files = sorted({str(path_of(module)) for module, _ in self._chosen})
        measuring = coverage.Coverage(data_file=None, include=files, config_file=False)
        measuring.start()
        for name, item in self.items.items():
            measuring.switch_context(name)
            began_s = time.process_time()
            failed = not _passes(item)
            seconds = time.process_time() - began_s
            tell(json.dumps(["test", name, None if failed else seconds]))
        measuring.stop()
        for file in files:
            for line, names in measuring.get_data().contexts_by_lineno(file).items():
                tell(json.dumps(["line", file, line, [name for name in names if name]]))

    def _take(self, said: list[Any]) -> None:
        match said:
            case ["test", name, None]:
                sys.stderr.write(f"fails without any mutation: {name}\n")
            case ["test", name, seconds]:
                self.seconds[name] = seconds
            case ["line", file, line, names]:
                self._lines.setdefault(file, {})[line] = set(names)

    def _reaching(self, module: str, mutation: Mutation) -> list[str]:
        """The tests that run the changed line, or that before it which is counted for it."""
        lines = self._lines.get(str(path_of(module)), {})
        line = next((n for n in range(mutation.line, 0, -1) if n in lines), 0)
        return [n for n in lines.get(line, ()) if self.seconds.get(n, LONG_S) < LONG_S]

    def _try(self, module: str, mutation: Mutation) -> Seen:
        hits = self._hits.setdefault((module, mutation.function), {})
        own = f"/test_{module.rpartition('.')[2]}"

        def rank(name: str) -> tuple[int, bool, float]:
            return -hits.get(name, 0), own not in name, self.seconds[name]

        reaching = sorted(self._reaching(module, mutation), key=rank)
        kept = [name for name in reaching if name in self.kept]
        by = self._fork(module, mutation, kept, first=True)
        if by is None:
            return Seen(module, mutation, ("not put in",), is_kept=True)
        if not by:
            by = self._fork(module, mutation, [n for n in reaching if n not in self.kept]) or []
        for name in by:
            hits[name] = hits.get(name, 0) + 1
        return Seen(module, mutation, tuple(by), is_kept=bool(set(by) & self.kept))

    def _fork(
        self, module: str, mutation: Mutation, names: list[str], *, first: bool = False
    ) -> list[str] | None:
        """Those of the tests that fail, or the first alone.  None if it cannot be put in."""
        found: list[str] = []
        while names:
            limit_s = SPARE_S + TIMES * sum(self.seconds[name] for name in names)

            def judge(tell: Callable[[str], None], names: list[str] = names) -> None:
                if not _put_in(module, mutation):
                    tell("cannot")
                    return
                for name in names:
                    tell(name)
                    if not _passes(self.items[name]):
                        tell("fails")
                        if first:
                            break
                tell("done")

            said = [*_child(judge, limit_s)]
            if said == ["cannot"]:
                return None
            found += [said[at - 1] for at, word in enumerate(said) if word == "fails"]
            if said and said[-1] == "done":
                break
            if not said or (found and said[-1] == "fails"):
                break  # its memory or the system ended it
            found.append(said[-1])  # the clock sees it in this test
            names = [] if first else names[names.index(said[-1]) + 1 :]
            if len(found) > 5:
                break
        return found


def _passes(item: Any) -> bool:
    failed = item.session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return bool(item.session.testsfailed == failed)


def _child(work: Callable[[Callable[[str], None]], None], limit_s: float) -> Iterator[str]:
    """The lines that a fork of this process tells, until it ends or its time is over."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(read)
            os.setsid()
            processor_s = int(limit_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(lambda line: (os.write(write, f"{line}\n".encode()), None)[1])
        os._exit(0)
    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(int(30 * limit_s))  # of the room, for one that sleeps
    try:
        with os.fdopen(read) as lines:
            yield from (line.rstrip("\n") for line in lines)
    finally:
        signal.alarm(0)
        os.waitpid(pid, 0)


def examine(modules: Sequence[str], tests: Sequence[str], share: int, save: str) -> None:
    """Print which of the tests are in no need."""
    chosen = [(name, each) for name in modules for each in chosen_of(name, 2, share)]
    seen: list[Seen] = []
    began_s = time.monotonic()

    def told(each: Seen) -> None:
        seen.append(each)
        if save:
            with open(save, "a", encoding="utf-8") as file:
                row = [each.module, each.mutation.line, each.mutation.name, each.is_kept, each.by]
                file.write(f"{json.dumps(row)}\n")

    server = Server(chosen, told)
    _collect(modules, tests, server)
    print(f"{len(seen)} mutations in {time.monotonic() - began_s:.0f} s")
    for module in modules:
        of = [each for each in seen if each.module == module]
        not_put = sum(each.by == ("not put in",) for each in of)
        alive = [each for each in of if not each.by]
        kept = sum(each.is_kept for each in of) - not_put
        print(
            f"{module}: {len(of) - not_put} mutations, {kept} seen by tests that stay, "
            f"{len(of) - not_put - kept - len(alive)} by others, {len(alive)} by none"
        )
        for each in alive:
            print(f"  nobody sees line {each.mutation.line}: {each.mutation.name}")
    others = {n.partition("[")[0]: n for n in server.items if n not in server.kept}
    needed = cover(server, [frozenset(each.by) for each in seen if each.by and not each.is_kept])
    idle = sorted(set(others) - needed)
    lines = {name: length(name) for name in others}
    print(f"{len(others)} tests do not stay by what they are ({sum(lines.values())} lines):")
    print(f"{len(needed)} are needed, {len(idle)} are not ({sum(lines[n] for n in idle)} lines):")
    for name in idle:
        print(f"  {lines[name]:4} {name}")


def cover(server: Server, wanted: list[frozenset[str]]) -> set[str]:
    """Tests that see all of the mutations, few lines and seconds of them."""
    needed: set[str] = set()
    left = wanted
    while left:
        count: dict[str, int] = {}
        for each in left:
            for name in each:
                count[name] = count.get(name, 0) + 1

        def worth(name: str, count: dict[str, int] = count) -> float:
            weight = length(name) + SECOND_LINES * server.seconds.get(name, 0.0)
            return count[name] / weight

        best = max(sorted(count), key=worth)
        needed.add(best)
        left = [each for each in left if best not in each]
    return {name.partition("[")[0] for name in needed}


@functools.cache
def length(name: str) -> int:
    """The lines of a test function, with those of its decorators and two between."""
    file, _, function = name.partition("[")[0].partition("::")
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return (node.end_lineno or node.lineno) - first + 3
    return 1


def _collect(modules: Sequence[str], tests: Sequence[str], server: Server) -> None:
    import pytest

    os.chdir(ROOT)
    for module in modules:
        importlib.import_module(_name(module))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    options += ["-p", "no:anyio"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    shown = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    pytest.main([*options, *tests], plugins=[server])
    os.dup2(shown, 1)
