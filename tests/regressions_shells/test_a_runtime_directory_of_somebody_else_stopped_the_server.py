"""``XDG_RUNTIME_DIR`` is often another user's: batch systems, su and sudo pass it on,
and inside a container it may not exist.  The server did not start there, with a bare
OSError.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest

from trio_envserve import ServerStartError
from trio_envserve.host.locks import runtime_directory

NOBODY = 65534


def missing(directory: Path) -> Path:
    return directory / "missing"


def no_directory(directory: Path) -> Path:
    (directory / "file").touch()
    return directory / "file"


def not_writable(directory: Path) -> Path:
    directory.chmod(0o500)
    return directory


@contextlib.contextmanager
def without_privileges():
    """As another user than root, who may write everywhere."""
    if os.getuid():
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def temporary(monkeypatch):
    """Where temporary files go: a directory that every user can write to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.mark.parametrize("runtime", [missing, no_directory, not_writable])
def test_temporary_files_have_a_place(monkeypatch, temporary, runtime):
    directory = temporary / "runtime"
    directory.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime(directory)))
    with without_privileges():
        found = runtime_directory()
        owner = os.getuid()
    assert found == temporary / f"trio_envserve-{owner}"
    assert found.is_dir()


def test_where_nothing_can_be_made_the_server_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ServerStartError, match=r"no directory for lock files: .*missing"):
        runtime_directory()
