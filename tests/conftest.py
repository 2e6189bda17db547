"""What all tests share: signals as in a terminal, a compiled package, a place for
sockets, and the Hypothesis profiles.

``HYPOTHESIS_PROFILE`` chooses: ``quick`` (the default, for every run), ``few``
(where the tests run again, on another Python or with other libraries),
``ci`` (the pure core's tests, once per CI run), ``nightly`` (hours), ``mutation``
(the same examples each time, for `python -m tests.mutation`), ``matrix`` (few of them).
"""

from __future__ import annotations

import compileall
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# No deadline and no complaint about slowness: a test must not depend on the
# speed of the machine.  A failure prints the blob that replays it anywhere.
EVERY = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

settings.register_profile("few", EVERY, max_examples=10, stateful_step_count=20)
settings.register_profile("quick", EVERY, max_examples=30, stateful_step_count=40)
settings.register_profile("ci", EVERY, max_examples=100, stateful_step_count=60)
settings.register_profile("nightly", EVERY, max_examples=20_000, stateful_step_count=150)
settings.register_profile(
    "mutation", EVERY, max_examples=100, stateful_step_count=60, derandomize=True, database=None,
    phases=[Phase.explicit, Phase.generate],  # nobody reads the smallest example
)  # fmt: skip
settings.register_profile(
    "matrix", settings.get_profile("mutation"), max_examples=10, stateful_step_count=25
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure(config: pytest.Config) -> None:
    """Tests send signals to themselves and to what they start.  Under nohup, or in the
    background of a shell, SIGHUP and SIGINT are ignored from birth, and by children too."""
    for number, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):  # that is of pytest-xdist
        compile_package()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The processes of pytest-xdist must find the same tests."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"a name with the address of an object: {item.nodeid}")


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
