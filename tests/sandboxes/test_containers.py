"""Sandboxes in containers: what needs no daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_envserve.sandboxes.containers import destroy_docker
from trio_envserve.sandboxes.interface import SandboxUnavailable


@pytest.mark.real
def test_container_that_cannot_be_removed_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The end of the line stood in the log in the midst of a sentence."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Is the daemon running?' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=r"remove a container: Is the daemon running\?\Z"):
        destroy_docker("name", "name")
