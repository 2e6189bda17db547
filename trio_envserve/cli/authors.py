"""The message for the author of an environment that cannot be loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import ConfigError
from ..envs.specs import SCHEMES
from .common import say


def authors_traceback(environment: str, error: ConfigError) -> str:
    """Where the author's code is wrong that made loading the environment fail; empty if it
    is not, or if the environment is made by a library."""
    # Imported here: no verb that goes well needs it.
    from ..worker.failures import described_cause

    return "" if environment.partition(":")[0] in SCHEMES else described_cause(error).rstrip()


@contextmanager
def with_traceback(environment: str) -> Iterator[None]:
    """Show the author's traceback if the environment cannot be loaded in the block."""
    try:
        yield
    except ConfigError as error:
        traceback = authors_traceback(environment, error)
        if traceback:
            say(f"{environment} cannot be loaded:\n{traceback}")
        raise
