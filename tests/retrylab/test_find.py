"""A protocol is found by file.py:NAME or package.module:NAME, or it is said why not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_envserve.retrylab import BrokenSystem
from trio_envserve.retrylab.failure import SystemTarget, find_target

MODULE = """
from trio_envserve.retrylab import Actor, System
ECHO = System(actors={"c0": Actor}, asks=lambda random: [], judges=[])
OTHER = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where files are written; what is imported from it is forgotten."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "echo_protocol.py").write_text(MODULE)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("where", ["echo_protocol", "echo_protocol.py", "./echo_protocol.py"])
def test_a_protocol_is_found(folder: Path, where: str):
    assert isinstance(find_target(f"{where}:ECHO", {}), SystemTarget)


def test_a_file_imports_what_lies_beside_it(folder: Path):
    (folder / "sub").mkdir()
    (folder / "sub" / "beside_it.py").write_text(MODULE)
    (folder / "sub" / "main_one.py").write_text("from beside_it import ECHO as MINE")
    assert isinstance(find_target("sub/main_one.py:MINE", {}), SystemTarget)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("echo_protocol.py", "write file.py:NAME or package.module:NAME"),
        ("echo_protocol.py:", "write file.py:NAME or package.module:NAME"),
        (":ECHO", "write file.py:NAME or package.module:NAME"),
        ("echo_protocol.py:ECHOS", "echo_protocol.py has no ECHOS; did you mean ECHO?"),
        ("echo_protocol:XYZ", "echo_protocol has no XYZ; its systems: ECHO"),
        ("echo_protocol:OTHER", "is of the class int, and no object of System; its systems: ECHO"),
        ("echo_protocol:System", "is a class, and no object of System; its systems: ECHO"),
        ("nosuch.py:ECHO", "no file nosuch.py"),
        ("nosuch:ECHO", "no module 'nosuch'; a file is named with its .py: file.py:NAME"),
        ("nosuch.module:ECHO", "no module 'nosuch.module'"),
        ("json:ECHO", "json has no ECHO; it has no System at all"),
        ("..:ECHO", "importing .. failed"),
    ],
)
def test_a_wrong_name_is_said(folder: Path, spec: str, words: str):
    with pytest.raises(BrokenSystem) as raised:
        find_target(spec, {})
    assert words in str(raised.value)


@pytest.mark.parametrize("spec", ["broken_one:X", "broken_one.py:X"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import nosuchmodule", "No module named 'nosuchmodule'"),
        ("raise SystemExit(0)", "SystemExit"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_said_with_its_traceback(
    folder: Path, spec: str, text: str, words: str
):
    (folder / "broken_one.py").write_text(f"{text}\n")
    with pytest.raises(BrokenSystem) as raised:
        find_target(spec, {})
    said = str(raised.value)
    assert said.startswith(f"importing {spec.rpartition(':')[0]} failed:")
    assert words in said
    assert "broken_one.py" in said
    assert "importlib" not in said
    assert "foreign.py" not in said


def test_a_protocol_that_is_not_right_is_said_in_its_own_words(folder: Path):
    (folder / "wrong_one.py").write_text(MODULE.replace('{"c0": Actor}', "{}"))
    with pytest.raises(BrokenSystem, match=r"^a system needs actors"):
        find_target("wrong_one.py:ECHO", {})
