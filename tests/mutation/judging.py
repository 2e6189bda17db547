"""Who catches a mutation: the tests of its module, the simulator, or the clock.

Theory of operation
-------------------
To import the package and to collect the tests takes longer than most tests.  So a *fork server*
does both once for a module, and tries each mutation in a fork of itself, in which the code
of the changed function is put in the place of the shipped one.  What survives that, and what
cannot be put in so, is judged *whole*: in a process that loads the module from the changed
source.  What a module makes as it is imported is changed only there.

A mutation that makes a test hang, or take memory without end, is caught by the clock, far
beyond what the tests take without it: by that of the processor, so that a busy machine
catches nothing, or, if the test sleeps, by that of the room.  Tests of shells that take no
processor time at all for ASLEEP_S wait for what does not come: they start nothing that could
wake them later.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TextIO, TypeAlias

from tests.mutation.modules import ALL, ROOT, SHELLS, full_name, path_of
from tests.mutation.mutate import Mutation, shipped

PROCESSOR_S, PROCESSOR_TIMES = 5, 3
SECONDS, TIMES = 60, 10
"""A mutation has so many seconds, and so many times what the tests take without it: of a
processor, and of any kind."""

ASLEEP_S = 10
"""The tests of a shell sleep for less than this."""

MEMORY_BYTES = 4 << 30
SEEDS = 40
"""How many seeds the simulator gets, in each mode."""

NO_PROCESSES = "not soak and not slow and not real"

SURVIVED, BY_TESTS, BY_SIMULATOR, BY_CLOCK, NOT_PUT_IN = range(5)
WHO = {BY_TESTS: "tests", BY_SIMULATOR: "simulator", BY_CLOCK: "clock"}


class Limits(NamedTuple):
    """What a mutation may take."""

    seconds: float
    processor_s: float


Fork: TypeAlias = Callable[[Mutation | None, Limits], int]
"""Judges a mutation, or what is shipped, in a new child of this process; its pid."""


class Sleeper:
    """Whether a process sleeps, and has done nothing else for a while."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._last: list[str] = []
        self._since_s = self._look_s = time.monotonic()

    def is_stuck(self) -> bool:
        """Looked at once a second.  Never, where the system has no such file."""
        now_s = time.monotonic()
        if now_s < self._look_s or not self._stat.exists():
            return False
        self._look_s = now_s + 1
        fields = self._stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        # One that waits for a processor is in the state R.
        seen = [fields[0], *fields[11:13]]
        if seen != self._last or fields[0] != "S":
            self._last, self._since_s = seen, now_s
        return now_s - self._since_s > ASLEEP_S


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from changed source; all others as ever."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name = name
        self.path = path
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


def judge_all(module: str, chosen: Sequence[Mutation], jobs: int) -> list[int]:
    """Who catches each; progress goes to standard error.  SystemExit if the tests fail
    without any mutation."""
    whole = partial(_fork_whole, module)
    limits = _limits_of(whole)
    if limits is None:
        raise SystemExit(f"{module}: its tests fail without any mutation")
    told = _Told(module, chosen)
    for index, code in _at_fork_server(module, chosen, jobs):
        if code in (BY_TESTS, BY_CLOCK):
            told.put(index, code)
    left = [index for index in range(len(chosen)) if index not in told.codes]
    _try_all(whole, limits, [(index, chosen[index]) for index in left], jobs, told.put,
             is_shell=module in SHELLS)  # fmt: skip
    return [told.codes[index] for index in range(len(chosen))]


class _Told:
    """What is known of the mutations so far."""

    def __init__(self, module: str, chosen: Sequence[Mutation]) -> None:
        self.codes: dict[int, int] = {}
        self._module = module
        self._chosen = chosen

    def put(self, index: int, code: int) -> None:
        self.codes[index] = code
        if code == SURVIVED:
            sys.stderr.write(f"survives: {self._chosen[index].name}\n")
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{self._module}: {len(self.codes)} of {len(self._chosen)} ")


# -- many processes --------------------------------------------------------------


def _forked(limits: Limits, judge: Callable[[], int]) -> int:
    """Judge in a child of this process, which has imported what takes long; its pid."""
    pid = os.fork()
    if pid == 0:
        code = BY_TESTS  # whatever breaks at import was seen by a test
        with contextlib.suppress(BaseException):
            os.setsid()  # a signal to its group is for nobody else
            processor_s = int(limits.processor_s)
            resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = judge()
        os._exit(code)
    return pid


def _limits_of(fork: Fork) -> Limits | None:
    """What mutations may take: the tests take a fraction of it.  None if they fail."""
    began_s = time.monotonic()
    pid = fork(None, Limits(0.0, 600.0))
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) != SURVIVED:
        return None
    used_s = usage.ru_utime + usage.ru_stime
    seconds = time.monotonic() - began_s
    return Limits(SECONDS + TIMES * seconds, PROCESSOR_S + PROCESSOR_TIMES * used_s)


def _try_all(
    fork: Fork, limits: Limits, chosen: Sequence[tuple[int, Mutation]], jobs: int,
    told: Callable[[int, int], None], *, is_shell: bool,
) -> None:  # fmt: skip
    """Tell the index of each mutation and who caught it, as that is known."""
    left = list(chosen)[::-1]
    running: dict[int, tuple[int, float, Sleeper]] = {}
    try:
        while left or running:
            while left and len(running) < jobs:
                index, mutation = left.pop()
                pid = fork(mutation, limits)
                running[pid] = index, time.monotonic() + limits.seconds, Sleeper(pid)
            time.sleep(0.01)
            for pid, (index, until_s, sleeper) in list(running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    code = os.waitstatus_to_exitcode(status)
                    told(index, code if code >= 0 else BY_CLOCK)  # its limit has killed it
                elif time.monotonic() > until_s or (is_shell and sleeper.is_stuck()):
                    _kill(pid)
                    told(index, BY_CLOCK)
                else:
                    continue
                del running[pid]
    finally:
        for pid in running:
            _kill(pid)


def _kill(pid: int) -> None:
    """End a child of this process."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _run_tests(module: str, *plugins: object) -> int:
    """In a process of its own: pytest's exit code."""
    import pytest

    os.chdir(ROOT)
    importlib.import_module(_name(module))  # now: pytest rewrites the asserts of what it finds
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    options += ["-p", "no:anyio"]  # no test needs it
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before: see run.py
    if module in SHELLS:
        options += ["-m", NO_PROCESSES]
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    return pytest.main([*options, *ALL[module]], plugins=[SearchesLast(), *plugins])


def _name(module: str) -> str:
    return f"trio_envserve.{full_name(module)}"


class SearchesLast:
    """Of the tests of a module those that try many examples run last: they take the longest,
    and most mutations are seen by others."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: getattr(item.obj, "is_hypothesis_test", False))


# -- judged whole ------------------------------------------------------------------


def _fork_whole(module: str, mutation: Mutation | None, limits: Limits) -> int:
    if mutation is None:
        mutation = shipped(path_of(module).read_text(encoding="utf-8"))
    return _forked(limits, partial(_judge_whole, module, mutation))


def _judge_whole(module: str, mutation: Mutation) -> int:
    sys.meta_path.insert(0, Changed(_name(module), path_of(module), mutation.change()))
    if _run_tests(module) != 0:
        return BY_TESTS
    if module in SHELLS:
        return SURVIVED  # the simulator runs none of them
    from trio_envserve.lab.simulation.simulator import run

    for seed in range(SEEDS):
        if any(run(seed, harsh=harsh).violations for harsh in (False, True)):
            return BY_SIMULATOR
    return SURVIVED


# -- judged by a fork server ---------------------------------------------------


def _at_fork_server(
    module: str, chosen: Sequence[Mutation], jobs: int
) -> Iterator[tuple[int, int]]:
    """The index of each mutation, and who caught it; of none if the server fails."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), os.fdopen(write, "w", buffering=1) as lines:
            os.close(read)
            _run_tests(module, ForkServer(module, chosen, jobs, lines))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        for line in lines:
            index, code = json.loads(line)
            yield index, code
    os.waitpid(pid, 0)


class ForkServer:
    """Judges mutations where pytest would run the tests."""

    def __init__(self, module: str, chosen: Sequence[Mutation], jobs: int, lines: TextIO) -> None:
        self._module = module
        self._chosen = chosen
        self._jobs = jobs
        self._lines = lines

    def pytest_runtestloop(self, session: Any) -> bool:
        def fork(mutation: Mutation | None, limits: Limits) -> int:
            return _forked(limits, partial(self._judge, session.items, mutation))

        limits = _limits_of(fork)
        if limits is not None:
            chosen = list(enumerate(self._chosen))
            is_shell = self._module in SHELLS
            _try_all(fork, limits, chosen, self._jobs, self._tell, is_shell=is_shell)
        return True

    def _tell(self, index: int, code: int) -> None:
        self._lines.write(f"{json.dumps([index, code])}\n")

    def _judge(self, items: list[Any], mutation: Mutation | None) -> int:
        if mutation is not None and not _put_in(self._module, mutation):
            return NOT_PUT_IN
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return BY_TESTS
        return SURVIVED


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
