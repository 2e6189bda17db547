"""Tests are found where they are looked for: a module's in the file of its name, a patch's
in the files that it names."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

import trio_envserve
from tests.regressions.run import PATCHES, TESTS, read_patch

PACKAGE = Path(trio_envserve.__file__).parent
MIRRORED = ("core", "host", "server", "worker")
"""Folders whose files are named after the modules that they test."""


@pytest.mark.parametrize("folder", MIRRORED)
def test_each_file_is_named_after_the_module_that_it_tests(folder: str) -> None:
    """Its theme may follow: ``test_work_saves.py`` is about ``work.py``."""
    modules = {path.stem for path in (PACKAGE / folder).glob("*.py")}
    for path in (TESTS / folder).glob("test_*.py"):
        words = path.stem.split("_")[1:]
        names = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
        assert names & modules, f"{path.name}: no module of {folder} has that name"


def test_each_patch_names_tests_that_exist() -> None:
    missing = []
    for patch in map(read_patch, sorted(PATCHES.glob("*.patch"))):
        for test in patch.tests:
            path, _, function = test.partition("::")
            if function.partition("[")[0] not in functions_of(TESTS / path):
                missing.append(f"{patch.path.name}: {test}")
    assert missing == []


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_each_patch_applies(tmp_path: Path) -> None:
    """One that did not was seen only where all of them are put back."""
    command = ["git", "apply", "--check", "--recount", "-C1"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    stale = [
        patch.name
        for patch in sorted(PATCHES.glob("*.patch"))
        if subprocess.run(
            [*command, patch], cwd=tmp_path, env=environ, capture_output=True
        ).returncode
    ]  # fmt: skip
    assert stale == []


@cache
def functions_of(path: Path) -> set[str]:
    """The functions of a file; none if there is no such file."""
    if not path.is_file():
        return set()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {each.name for each in body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_table_of_the_core_has_each_of_its_modules_once() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| module | decides |\n")[2].partition("\n\n")[0]
    named = [
        name for row in table.splitlines() for name in re.findall("`(.*?)`", row.split("|")[1])
    ]
    modules = {path.stem for path in (PACKAGE / "core").glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(modules)
