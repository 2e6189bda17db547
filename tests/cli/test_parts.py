"""What the verbs are made of: names, limits, plain tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trio_envserve import ConfigError
from trio_envserve.cli.common import key_limits, pairs, server_limits, worker_environ
from trio_envserve.cli.render import Table, tables_text
from trio_envserve.envs.check import check_spec


def test_plain_tables_are_aligned():
    text = tables_text([Table("t", ("name", "n"), [("a", "1"), ("long", "100")])])
    assert text == "t\n  name    n\n  a       1\n  long  100"


def test_a_table_acts_on_no_terminal():
    text = tables_text([Table("t\x1b[2J", (), [("a\rb", "\x9b31m"), ("two\nlines", "\u202e")])])
    assert text.split() == ["t\\x1b[2J", "a\\x0db", "\\x9b31m", "two\\nlines", "\\u202e"]


def test_pairs_are_json_or_text():
    assert pairs("--arg", ["a=1", "b=x=y", 'c={"d": null}', "e="]) == {
        "a": 1, "b": "x=y", "c": {"d": None}, "e": "",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="--arg takes key=value"):
        pairs("--arg", ["=1"])


def test_limits_by_name():
    limits = server_limits(["lease_s=5", "window=7"], worker_memory_mib=2, recycle=9)
    assert (limits.lease_s, limits.window) == (5, 7)
    assert (limits.worker_memory_bytes, limits.recycle_executions) == (2 << 20, 9)
    with pytest.raises(ConfigError, match="positive whole number"):
        server_limits(["window=many"])


def test_limits_of_keys_by_name_among_those_of_the_server():
    given = ["lease_s=5", "retention_s=60", "waiters=7"]
    assert server_limits(given).lease_s == 5
    keys = key_limits(given)
    assert (keys.retention_s, keys.waiters) == (60, 7)
    for find in (server_limits, key_limits):
        with pytest.raises(ConfigError, match="did you mean retention_s"):
            find(["retenton_s=60"])
        with pytest.raises(ConfigError, match="waiters is a whole number"):
            find(["waiters=1.5"])


def test_environment_variables_by_slot():
    assert worker_environ(["1:A=b=c", "1:B="], 2) == [{}, {"A": "b=c", "B": ""}]


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
    with pytest.raises(ConfigError, match="did you mean 'Maze'"):
        check_spec("made_late:Mase")


def test_names_of_built_in_environments():
    check_spec("arithmetic")
    with pytest.raises(ConfigError, match="did you mean 'arithmetic'"):
        check_spec("aritmetic")


def test_a_data_set_is_looked_up_without_its_library_being_imported():
    pytest.importorskip("reasoning_gym")
    check_spec("reasoning-gym:countdown")
    with pytest.raises(ConfigError, match="did you mean 'countdown'"):
        check_spec("reasoning-gym:contdown")
