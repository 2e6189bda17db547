"""What all tests share: signals as in a terminal, a place for sockets, and the
Hypothesis profiles.

``HYPOTHESIS_PROFILE`` chooses: ``quick`` (the default, for every run), ``few``
(where the tests run again, on another Python or with other libraries),
``ci`` (the pure core's tests, once per CI run), ``nightly`` (hours), ``mutation``
(the same examples each time, for `tests/mutation/run.py`).
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

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
settings.register_profile("quick", EVERY, max_examples=50, stateful_step_count=40)
settings.register_profile("ci", EVERY, max_examples=200, stateful_step_count=60)
settings.register_profile("nightly", EVERY, max_examples=20_000, stateful_step_count=150)
settings.register_profile(
    "mutation", EVERY, max_examples=100, stateful_step_count=60, derandomize=True, database=None,
    phases=[Phase.explicit, Phase.generate],  # nobody reads the smallest example
)  # fmt: skip
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


@pytest.fixture
def folder() -> Iterator[str]:
    """Short enough for a unix socket, whatever the test is called."""
    with tempfile.TemporaryDirectory() as name:
        yield name
