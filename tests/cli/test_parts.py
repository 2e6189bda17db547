"""What the verbs are made of: names, limits, plain tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trio_envserve import ConfigError
from trio_envserve.cli.render import Table, tables_text
from trio_envserve.envs.check import check_spec


def test_plain_tables_are_aligned():
    text = tables_text([Table("t", ("name", "n"), [("a", "1"), ("long", "100")])])
    assert text == "t\n  name    n\n  a       1\n  long  100"


def test_a_table_acts_on_no_terminal():
    text = tables_text([Table("t\x1b[2J", (), [("a\rb", "\x9b31m"), ("two\nlines", "\u202e")])])
    assert text.split() == ["t\\x1b[2J", "a\\x0db", "\\x9b31m", "two\\nlines", "\\u202e"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose import would be noticed."""
    name = f"checked_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "envs.py").write_text("class Maze:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_right_name_is_accepted_without_importing(package: str):
    check_spec(f"{package}.inner.envs:Maze")
    assert package not in sys.modules


@pytest.mark.parametrize("rest", ["inner.envs:Labyrinth", "inner.enws:Maze", "inner.envs:"])
def test_what_looks_wrong_is_imported_to_be_sure(package: str, rest: str):
    with pytest.raises(ConfigError):
        check_spec(f"{package}.{rest}")


def test_an_attribute_made_at_import_time_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "made_late.py").write_text("globals()['Ma' + 'ze'] = lambda rollout: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    check_spec("made_late:Maze")
    check_spec("arithmetic")
    with pytest.raises(ConfigError, match="did you mean 'Maze'"):
        check_spec("made_late:Mase")
