"""Tests here start processes, each of them, and leave none behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.fixtures import judge, nothing_left, pyzmq_warm

__all__ = ["each_leaves_nothing", "judge", "nothing_left", "pyzmq_warm"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):  # `parents` would take a second for all tests
            item.add_marker(pytest.mark.real)


@pytest.fixture(autouse=True)
def each_leaves_nothing(nothing_left: None) -> None:
    """Also those without a judge."""
