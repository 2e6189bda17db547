"""Tests here start processes, as users do."""

import pytest

from tests.real.fixtures import judge, nothing_left, pyzmq_warm

__all__ = ["begins", "judge", "nothing_left", "pyzmq_warm"]


@pytest.fixture(autouse=True)
def begins(new_interpreters: None) -> None:
    """Nothing here is a fork."""
