"""What options and names of environments say, as values."""

import re
import sys
from pathlib import Path

import click
import pytest

from trio_envserve import ConfigError, WorkerRange
from trio_envserve.cli.options import (
    key_limits,
    pairs,
    server_limits,
    worker_environ,
    workers_of,
)
from trio_envserve.envs.loading import check_spec


def test_pairs_are_json_or_text():
    assert pairs("--arg", ["a=1", "b=x=y", 'c={"d": null}', "e="]) == {
        "a": 1, "b": "x=y", "c": {"d": None}, "e": "",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="--arg takes key=value"):
        pairs("--arg", ["=1"])


def test_limits_by_name():
    limits = server_limits(["lease_s=5", "window=7"], capacity=3, worker_memory_mib=2, recycle=9)
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
        with pytest.raises(ConfigError, match=r"did you mean retention_s[^(]*\?$"):
            find(["retenton_s=60"])
        with pytest.raises(ConfigError, match=r"no limit 'xyz' \(known: announce_bytes, "):
            find(["xyz=60"])
        with pytest.raises(ConfigError, match="waiters is a whole number"):
            find(["waiters=1.5"])


def test_workers_are_a_number_or_a_range():
    assert workers_of(1) == workers_of("1") == 1
    assert workers_of("2..64") == WorkerRange(2, 64)
    for wrong in ("-1", "4..2", "0..2", "many"):
        with pytest.raises(click.BadParameter, match=re.escape(wrong)):
            workers_of(wrong)


def test_environment_variables_by_slot():
    assert worker_environ(["1:A=b=c", "1:B="], 2) == [{}, {"A": "b=c", "B": ""}]
    # Slots are named up to the most of a range.
    assert worker_environ(["3:A=1"], WorkerRange(1, 4)) == [{}, {}, {}, {"A": "1"}]
    with pytest.raises(ConfigError, match="the slots of 4 workers are numbered from 0"):
        worker_environ(["4:A=1"], WorkerRange(1, 4))


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
