"""Who sees a mutation: one test, all of them, or the clock.

Theory of operation
-------------------
To import the package and to collect the tests takes longer than most tests.  So a *fork server*
does both once, runs each test under coverage to learn which lines it reaches and how long it
takes, and tries each mutation in forks of itself: the code of the changed function is put in the
place of the shipped one, and only the tests that reach the changed line run.  Tests that stay
whatever comes out (:func:`stays`) run first, those that saw other mutations of the function
before the others, and the first that fails ends the mutation.  A *matrix* goes on where none of
them fails, with all others.  What cannot be put in so, because its function is changed as it is
imported, is judged *whole*: in a process that loads the module from the changed source.

A mutation that makes a test hang, or take memory without end, is seen by that test: a child is
ended far beyond what its tests take, by the clock of the processor, so that a busy machine sees
nothing, or if it sleeps for ``ASLEEP_S``: no test waits for as long.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from tests.mutation.modules import ROOT, SHELLS, full_name, path_of
from tests.mutation.mutate import Mutation
from tests.proc import stat_of
from tests.regressions.run import PATCHES, read_patch

LONG_S = 5.0
"""Seconds of a processor that a test may take in a matrix: longer ones are not tried."""

SPARE_S, TIMES = 3.0, 20
"""Seconds of a processor for a test: so many, and so many times what it takes."""

WHOLE_S = 600.0
"""The same for all tests of a module together."""

TOGETHER_S = 4.0
"""Seconds of a processor that a matrix has for the tests that stay, and for the others, of a
mutation: a line that everything reaches is seen by the first tests, or by none."""

ASLEEP_S = 10
"""Seconds that no test of a shell sleeps for without anything else."""

MEMORY_BYTES = 4 << 30
NO_PROCESSES = "not slow and not real and not mutants"
NOT_PUT_IN = "not put in"

Tell: TypeAlias = Callable[[str], None]
"""How a child tells its parent a line."""


class Seen(NamedTuple):
    """Which tests see a mutation."""

    module: str
    mutation: Mutation
    by: tuple[str, ...]
    """The first that does, if it stays; else all of them, or the first alone."""
    stays: bool = True


def stays(item: Any) -> bool:
    """Whether a test stays whatever is seen by others: of a guarantee by its number, of a table,
    a property or a machine, or of what once went wrong."""
    return bool(
        re.match(r"test_g\d+_", item.name)
        or "[" in item.name
        or getattr(item.obj, "is_hypothesis_test", False)
        or "machine" in item.path.name
        or "flaws" in item.path.name
        or item.obj.__doc__
        or re.search("_(was|were|had|took|did)_", item.name)
        or function_of(item.nodeid) in _named()
    )


def function_of(name: str) -> str:
    """The name of a test without its parameters."""
    return name.partition("[")[0]


@functools.cache
def _named() -> frozenset[str]:
    """The test functions that patches name."""
    tests = (test for path in PATCHES.glob("*.patch") for test in read_patch(path).tests)
    return frozenset(f"tests/{function_of(test)}" for test in tests)


class Judged(NamedTuple):
    """What became of mutations, and the tests that were there."""

    seen: list[Seen]
    seconds: dict[str, float]
    """What each test takes of a processor."""
    stays: set[str]


class Server:
    """Tries mutations where pytest would run the tests."""

    def __init__(
        self, chosen: Sequence[tuple[str, Mutation]], *, is_matrix: bool, tell: Tell
    ) -> None:
        self.seconds: dict[str, float] = {}
        self.stays: set[str] = set()
        self._chosen = chosen
        self._is_matrix = is_matrix
        self._tell = tell
        self._hits: dict[tuple[str, str], dict[str, int]] = {}
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._items: dict[str, Any] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        self.stays = {item.nodeid for item in session.items if stays(item)}
        for line in _child(self._measure):
            self._take(json.loads(line))
        self._tell(json.dumps([self.seconds, [*self.stays]]))
        gc.collect()
        gc.freeze()  # so that pages of the tests stay shared with the children
        for module, mutation in self._chosen:
            self._tell(json.dumps(self._try(module, mutation)))
        return True

    # -- what the tests reach ---------------------------------------------------------

    def _measure(self, tell: Tell) -> None:
        import coverage

        files = sorted({str(path_of(module)) for module, _ in self._chosen})
        measuring = coverage.Coverage(data_file=None, include=files, config_file=False)
        measuring.start()
        for name, item in self._items.items():
            measuring.switch_context(name)
            began_s = time.process_time()
            if not _passes(item):
                raise SystemExit(f"{name} fails without any mutation")
            tell(json.dumps(["test", name, time.process_time() - began_s]))
        measuring.stop()
        for file in files:
            for line, names in measuring.get_data().contexts_by_lineno(file).items():
                tell(json.dumps(["line", file, line, [name for name in names if name]]))

    def _take(self, said: list[Any]) -> None:
        match said:
            case ["test", name, seconds]:
                self.seconds[name] = seconds
            case ["line", file, line, names]:
                self._lines.setdefault(file, {})[line] = names

    def _reaching(self, module: str, mutation: Mutation) -> list[str]:
        """The tests that run the changed line, or the one before it that counts for it."""
        lines = self._lines.get(str(path_of(module)), {})
        line = next((n for n in range(mutation.line, 0, -1) if n in lines), 0)
        long_s = LONG_S if self._is_matrix else math.inf
        return [n for n in lines.get(line, ()) if self.seconds[n] < long_s]

    # -- a mutation -------------------------------------------------------------------

    def _try(self, module: str, mutation: Mutation) -> tuple[tuple[str, ...], bool]:
        """The tests that see it, and whether they stay."""
        hits = self._hits.setdefault((module, mutation.function), {})
        own = f"/test_{module.rpartition('.')[2]}"

        def rank(name: str) -> tuple[int, bool, float]:
            return -hits.get(name, 0), own not in name, self.seconds[name]

        reaching = sorted(self._reaching(module, mutation), key=rank)
        first = [n for n in reaching if n in self.stays or not self._is_matrix]
        seen = self._fork(module, mutation, self._cut(first), only_first=True)
        others = seen == () and self._is_matrix
        if others:
            left = [name for name in reaching if name not in self.stays]
            seen = self._fork(module, mutation, self._cut(left), only_first=False)
        for name in seen:
            hits[name] = hits.get(name, 0) + 1
        return seen, not others

    def _cut(self, names: list[str]) -> list[str]:
        """The first of the tests, as many as a matrix has time for; else all."""
        sums = itertools.accumulate(self.seconds[name] for name in names)
        return [n for n, sum_s in zip(names, sums, strict=True)
                if sum_s < TOGETHER_S or not self._is_matrix]  # fmt: skip

    def _fork(
        self, module: str, mutation: Mutation, names: list[str], *, only_first: bool
    ) -> tuple[str, ...]:
        """Those of the tests that fail, or the first alone."""
        found: list[str] = []
        while names:

            def judge(tell: Tell, names: list[str] = names) -> None:
                if not _put_in(module, mutation):
                    tell(NOT_PUT_IN)
                    return
                for name in names:
                    tell(name)
                    _limit(SPARE_S + TIMES * self.seconds[name])
                    if not _passes(self._items[name]):
                        tell("fails")
                        if only_first:
                            break
                tell("done")

            said = [*_child(judge, module in SHELLS)]
            if said == [NOT_PUT_IN]:
                return (NOT_PUT_IN,)
            found += [said[at - 1] for at, word in enumerate(said) if word == "fails"]
            if not said or said[-1] == "done":
                break
            if said[-1] != "fails":
                found.append(said[-1])  # the clock has ended it in this test
            if only_first or found.count(found[-1]) > 1:
                break
            names = names[names.index(found[-1]) + 1 :]
        return tuple(found)


def _passes(item: Any) -> bool:
    failed = item.session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return bool(item.session.testsfailed == failed)


def _put_in(module: str, mutation: Mutation) -> bool:
    """Put the changed code in the place of the shipped one; whether that can be done."""
    changed: list[CodeType] = [compile(mutation.change(), path_of(module), "exec")]
    found: Any = sys.modules[_name(module)]
    for part in mutation.function.split("."):
        inner = (each for code in changed for each in code.co_consts)
        changed = [each for each in inner if isinstance(each, CodeType) and each.co_name == part]
        found = vars(found).get(part)
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        # A property, a method of the class, or what a decorator has made of a function.
        inside = [getattr(found, name, None) for name in ("fget", "__wrapped__", "__func__")]
        found = next((each for each in inside if each is not None), None)
        if found is None:
            return False
    if len(changed) != 1 or changed[0].co_freevars != found.__code__.co_freevars:
        return False
    found.__code__ = changed[0]
    return True


def _name(module: str) -> str:
    return f"trio_envserve.{full_name(module)}"


# -- children ------------------------------------------------------------------------


def _limit(seconds: float) -> None:
    """The system ends this process after so many more seconds of a processor."""
    used_s = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used_s, resource.RLIM_INFINITY))


def _child(work: Callable[[Tell], None], ends_asleep: bool = False) -> Iterator[str]:
    """The lines that a fork of this process tells, until it ends or is ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):  # whatever it is, the parent sees where it ended
            os.close(read)
            os.setsid()  # a signal to its group is for nobody else
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with os.fdopen(write, "w", buffering=1) as lines:
                work(lambda line: (lines.write(f"{line}\n"), None)[1])
        os._exit(0)
    os.close(write)
    try:
        rest, asleep = b"", 0
        used: tuple[str, ...] = ()
        while True:
            if not select.select([read], [], [], 1.0)[0]:
                now = _used(pid)
                asleep, used = (asleep + 1 if now and now == used else 0), now
                if ends_asleep and asleep > ASLEEP_S:
                    os.kill(pid, signal.SIGKILL)
            elif data := os.read(read, 1 << 16):
                *whole, rest = (rest + data).split(b"\n")
                yield from (line.decode() for line in whole)
            else:
                return
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _used(pid: int) -> tuple[str, ...]:
    """The clocks of a process that sleeps; one that waits for a processor is in the state R."""
    stat = stat_of(pid)
    return tuple(stat[11:13]) if stat[0] == "S" else ()


def judge(
    chosen: Sequence[tuple[str, Mutation]], tests: Sequence[str], *, is_matrix: bool = False
) -> Judged:
    """Try these mutations of modules with these tests, in a child: the package is not imported
    here."""

    def work(tell: Tell) -> None:
        modules = sorted({module for module, _ in chosen})
        _run_tests(modules, tests, Server(chosen, is_matrix=is_matrix, tell=tell))

    judged = Judged([], {}, set())
    for line in _child(work):
        said = json.loads(line)
        if not judged.seconds:
            judged.seconds.update(said[0])
            judged.stays.update(said[1])
            continue
        judged.seen.append(Seen(*chosen[len(judged.seen)], tuple(said[0]), said[1]))
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(judged.seen)} of {len(chosen)} ")
    if len(judged.seen) < len(chosen):
        raise SystemExit(f"{' '.join(tests)}: they fail without any mutation")
    return judged


def _run_tests(modules: Sequence[str], tests: Sequence[str], *plugins: object) -> int:
    """Pytest's exit code."""
    import pytest

    os.chdir(ROOT)
    for module in modules:
        importlib.import_module(_name(module))  # now: pytest rewrites asserts of what it finds
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    options += ["-p", "no:anyio"]  # no test needs it
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", NO_PROCESSES]
    shown = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        return int(pytest.main([*options, *tests], plugins=[*plugins]))
    finally:
        os.dup2(shown, 1)
        os.close(shown)


# -- judged whole --------------------------------------------------------------------


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from its changed tree; all others as ever."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.name = _name(module)
        self.path = path_of(module)
        self.tree = tree

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # Under its own path, by which the frames of this package are known in tracebacks.
        exec(compile(self.tree, self.path, "exec"), module.__dict__)


def survives_whole(module: str, mutation: Mutation, tests: Sequence[str]) -> bool:
    """Whether no test fails with it; the package is not imported here."""

    def work(tell: Tell) -> None:
        _limit(WHOLE_S)
        sys.meta_path.insert(0, Changed(module, mutation.change()))
        if _run_tests([module], tests) == 0:
            tell("survives")

    return "survives" in [*_child(work, module in SHELLS)]
