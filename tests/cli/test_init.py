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


def modules(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.py"))


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


async def test_what_is_written_is_as_tidy_as_what_stands_beside_it(tmp_path: Path):
    pytest.importorskip("ruff")
    await run(tmp_path, "init", "my_words")
    for tool in (["check", "--isolated"], ["format", "--isolated", "--check", "--line-length=100"]):
        tidy = python(tmp_path, "ruff", *tool, "my_words.py", "test_my_words.py")
        assert tidy.returncode == 0, tidy.stdout


@pytest.mark.parametrize("there", ["reverse.py", "test_reverse.py"])
async def test_nothing_is_overwritten_and_nothing_half_written(there: str, tmp_path: Path):
    (tmp_path / there).write_text("mine")
    done = await run(tmp_path, "init", "reverse")
    assert done.code == 2
    assert f"{there} exists" in done.err
    assert modules(tmp_path) == [there]
    assert (tmp_path / there).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("random", "a module of Python's own"), ("trio", "is a module already"),
        ("my-game", "must be like"), ("class", "must be like"), ("../x", "must be like"),
        ("Words", "must be like"), ("a.b", "must be like"), ("", "must be like"),
        ("_", "must be like"), ("wörter", "must be like"),
    ],
)  # fmt: skip
async def test_names_that_cannot_be_a_module(name: str, said: str, tmp_path: Path):
    done = await run(tmp_path, "init", name)
    assert done.code == 2
    assert said in done.err
    assert modules(tmp_path) == []


async def test_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "test_reverse.py").symlink_to("/no/such/folder/file")
    done = await run(tmp_path, "init", "reverse")
    assert done.code == 2
    done.check_no_traceback()
