"""``init``: an environment and a test that run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import HANG_S, run

pytestmark = pytest.mark.real


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


async def test_what_is_written_runs_as_it_is(tmp_path: Path):
    done = await run(tmp_path, "init", "my_words", "--json")
    assert done.code == 0, done.err
    assert done.last["files"] == ["my_words.py", "test_my_words.py"]
    environment = done.last["environment"]
    tested = python(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", ".")
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout
    for model, reward in (("oracle", 1.0), ("random", 0.0)):
        done = await run(tmp_path, "eval", environment, "-n", "10", "--model", model, "--json")
        assert done.code == 0, done.err
        assert done.last["results"] == done.last["usage"]["calls"] == 10
        assert (done.last["mean_reward"] == 1.0) == (reward == 1.0)
    done = await run(tmp_path, "validate", environment, "--strict", "--json")
    wrong = {each["check"] for each in done.last["checks"] if each["finding"] != "ok"}
    assert wrong <= {"event loop"}, done.last  # a machine that stands still holds it, too
    pytest.importorskip("ruff")
    for tool in (["check", "--isolated"], ["format", "--isolated", "--check", "--line-length=100"]):
        tidy = python(tmp_path, "ruff", *tool, "my_words.py", "test_my_words.py")
        assert tidy.returncode == 0, tidy.stdout
    shown = await run(tmp_path, "init", "other_words")
    assert shown.out.startswith("wrote other_words.py and test_other_words.py. Try:\n"), shown.err
