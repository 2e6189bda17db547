"""What the tests of workers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.fixtures import judge, nothing_left, pyzmq_warm
from trio_envserve.worker import folders

__all__ = ["judge", "nothing_left", "place", "pyzmq_warm"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for base folders."""
    made = tmp_path / "place"
    made.mkdir()
    monkeypatch.setattr(folders, "temporary", lambda: str(made))
    return made
