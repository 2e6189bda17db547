"""Some tests here start processes."""

from pathlib import Path

import pytest

from tests.real.fixtures import judge, nothing_left, pyzmq_warm

__all__ = ["judge", "nothing_left", "pyzmq_warm"]


@pytest.fixture(autouse=True)
def locks_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a server leaves to the next one at its address is not for a server of another test
    that happens to get the same port: with hosts it would wait for their leases."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
