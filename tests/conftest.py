"""Fixtures and options of all tests: signals as in a terminal, a compiled package, a place
for sockets, the Hypothesis profiles, a choice of tests, and the core's coverage.

``HYPOTHESIS_PROFILE`` chooses: ``quick`` (the default: few examples, and the same ones each
time, so that a commit is judged by what it changed), ``nightly`` (an hour of other ones),
``mutation`` (the same ones each time, for `python -m tests.mutation`), ``matrix`` (few of them).
"""

from __future__ import annotations

import compileall
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import none

from tests.cli.commands import forking
from tests.cli.forking import FORKED_HERE, fork_exec_by, fork_exec_shipped

# No deadline and no complaint about slowness: a test must not depend on the
# speed of the machine.  A failure prints the blob that replays it anywhere.
EVERY = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

settings.register_profile(
    "quick", EVERY, max_examples=30, stateful_step_count=40, derandomize=True, database=None
)
settings.register_profile("nightly", EVERY, max_examples=2_000, stateful_step_count=100)
settings.register_profile(
    "mutation", EVERY, max_examples=100, stateful_step_count=60, derandomize=True, database=None,
    phases=[Phase.explicit, Phase.generate],  # nobody reads the smallest example
)  # fmt: skip
settings.register_profile(
    "matrix", settings.get_profile("mutation"), max_examples=10, stateful_step_count=25
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


TESTS = Path(__file__).parent
CORE = TESTS / "core"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-of-each-file",
        action="store_true",
        help="run the first test of each file only: a few hundred that touch everything",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tests send signals to themselves and to what they start.  Under nohup, or in the
    background of a shell, SIGHUP and SIGINT are ignored from birth, and by children too."""
    for number, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):  # that is of pytest-xdist
        compile_package()
    if "COVERAGE_PROCESS_START" in os.environ and runs_tests:
        config.pluginmanager.register(CoreCoverage())


@pytest.hookimpl(trylast=True)  # when those that marks leave out are gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The processes of pytest-xdist must find the same tests."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"a name with the address of an object: {item.nodeid}")
    if "soak" not in config.getoption("markexpr"):  # such as `-m "not slow"`, for another reason
        leave(config, items, [each for each in items if not each.get_closest_marker("soak")])
    if config.getoption("one_of_each_file"):
        leave(config, items, [*{item.path: item for item in reversed(items)}.values()][::-1])


def leave(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    """Leave only the chosen ones of these tests."""
    config.hook.pytest_deselected(items=[*set(items) - set(chosen)])
    items[:] = chosen


def pytest_collection_finish() -> None:
    """Thirteen thousand tests are half a million objects: whoever collects garbage in a test, as
    all do that look for what is left behind, would look at each of them for a fifth of a second.

    Hypothesis, at its first property, makes a random source and asks who refers to it, which
    nobody frozen is found to do: so there is one before.
    """
    given(none())(lambda nothing: None)()
    if sys.platform == "linux":
        vars(subprocess)["_fork_exec"] = fork_exec_by(lambda: forking()[0], *FORKED_HERE)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without looking for garbage among those objects, which would take a seventh of it.

    The processes of pytest-xdist begin at different files.  In a new tree there is nothing yet of
    what Python keeps of a compiled file, pytest of its assertions and Hypothesis of its constants:
    side by side each would make all of it, for twice as long as it takes them in turn.
    """
    gc.disable()
    try:
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            import_from_own_file_on(getattr(session.config, "workerinput", None))
        return (yield)
    finally:
        gc.enable()


def import_from_own_file_on(workerinput: dict[str, Any] | None) -> None:
    """Import all files of tests, those of this process of pytest-xdist first."""
    if workerinput is None:
        return
    files = sorted(TESTS.rglob("test_*.py"))
    number, count = int(workerinput["workerid"].removeprefix("gw")), workerinput["workercount"]
    first = len(files) * number // count
    for path in files[first:] + files[:first]:
        name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # whoever collects it says so
            importlib.import_module(name)


class CoreCoverage:
    """Measures coverage, which the interpreter began, only while tests of the core run: what
    others reach of the core by accident is not tested.  Their own programs are not measured."""

    def __init__(self) -> None:
        from coverage import Coverage

        measured = Coverage.current()
        assert measured is not None, "COVERAGE_PROCESS_START, but coverage is not installed"
        self._measured = measured
        del os.environ["COVERAGE_PROCESS_START"]

    def pytest_collection_finish(self) -> None:
        self._measured.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        if not item.path.is_relative_to(CORE):
            return (yield)
        self._measured.start()
        try:
            return (yield)
        finally:
            self._measured.stop()


def compile_package() -> None:
    """Tests start more than a thousand processes that import the package from this tree.
    Where Python keeps nothing that it compiles, as images of containers have it, each would
    compile all of it anew.  A tree that cannot be written to stays as it is."""
    compileall.compile_dir(Path(__file__).parent.parent / "trio_envserve", quiet=2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whoever is done takes work from others, unless the command line says otherwise: else
    the first process gets the tests of all commands at once, and is the last by minutes."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture
def folder() -> Iterator[str]:
    """Short enough for a unix socket, whatever the test is called."""
    with tempfile.TemporaryDirectory() as name:
        yield name


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of this process begin as those of a user do, and not as forks."""
    monkeypatch.setattr(subprocess, "_fork_exec", fork_exec_shipped)
