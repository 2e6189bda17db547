"""The example project's own nox session, and the tests on the page about testing.

Both are what users copy, so both are run as users run them; in the environment of
these tests (``--no-venv --no-install``), which has what they would install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = ROOT / "examples" / "nox_project"
PAGE = ROOT / "docs" / "testing.md"
FILES = re.compile(r"^<!-- file: (\S+) -->\n^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.real, pytest.mark.slow]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in ``folder``, which finds what is installed beside this Python."""
    environ = {name: value for name, value in os.environ.items() if "ENVSERVE" not in name}
    environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environ["PATH"]])
    environ["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )


def nox(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    here = ("--no-venv", "--no-install")
    noxfile = str(project / "noxfile.py")
    return run(project, sys.executable, "-m", "nox", "-f", noxfile, *here, *arguments)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy, so that nothing is left in the tree."""
    pytest.importorskip("nox")
    pytest.importorskip("click")
    kept = shutil.ignore_patterns(".*", "__pycache__")
    return Path(shutil.copytree(PROJECT, tmp_path / "project", ignore=kept))


def test_its_nox_session_passes(project: Path):
    done = nox(project, "--", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trio-envserve run-with spelling_env:Spelling" in done.stderr
    assert re.search(r"\b\d+ passed in", done.stdout), done.stdout
    assert "skipped" not in done.stdout
    assert "Session tests was successful" in done.stderr


def test_its_tests_fail_when_the_environment_does(project: Path):
    text = (project / "spelling_env.py").read_text()
    right = "float(answer.text == right)"
    assert right in text
    (project / "spelling_env.py").write_text(text.replace(right, "0.0"))
    done = nox(project, "--", "-k", "oracle or garbage")
    assert done.returncode != 0
    assert "1 failed, 1 passed" in done.stdout
    assert "failed with exit code 1" in done.stderr


def test_the_tests_on_the_page_pass(tmp_path: Path):
    files = dict(FILES.findall(PAGE.read_text(encoding="utf-8")))
    assert {name for name in files if name.startswith("test_")}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    pytest_ = (sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-q")
    done = run(
        tmp_path, sys.executable, "-m", "trio_envserve", "run-with", "spelling:Spelling", "--",
        *pytest_,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
