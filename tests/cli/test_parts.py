"""What the verbs are made of: values as JSON, figures, names, plain tables."""

from __future__ import annotations

import datetime
import decimal
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve import ClientCounters, ConfigError, Outcome, RolloutFailed, WorkerLost
from trio_envserve.cli.common import pairs, server_limits, worker_environ
from trio_envserve.cli.render import Table, tables_text
from trio_envserve.cli.results import Tally, _percentiles, jsonable, record, summary_tables
from trio_envserve.core.arrays import RawArray
from trio_envserve.envs.check import check_spec


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        ((1, [2, "x"]), [1, [2, "x"]]),
        (b"\x00", {"$bytes": "AA=="}),
        pytest.param(memoryview(b"\x00"), {"$bytes": "AA=="}, id="view"),
        (float("-inf"), {"$float": "-inf"}),
        ({"a": {"b": float("nan")}}, {"a": {"b": {"$float": "nan"}}}),
        ({(1, 2): 3}, {"$map": [[[1, 2], 3]]}),
        ({1}, {"$set": [1]}),
        (1 + 2j, {"$complex": [1.0, 2.0]}),
        (datetime.time(1, 2), {"$time": "01:02:00"}),
        (uuid.UUID(int=1), {"$text": "00000000-0000-0000-0000-000000000001"}),
        (decimal.Decimal("1.50"), {"$text": "1.50"}),
        (
            RawArray("uint8", (2,), b"\x01\x02"),
            {"$array": {"dtype": "uint8", "shape": [2], "data": "AQI="}},
        ),
    ],
    ids=repr,
)  # fmt: skip
def test_values_as_json(value: Any, said: Any):
    assert jsonable(value) == said
    json.dumps(jsonable(value), allow_nan=False)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)  # fmt: skip
def test_what_json_has_is_left_as_it_is(value: Any):
    assert jsonable(value) == value


def test_numpy_values_as_json():
    numpy = pytest.importorskip("numpy")
    assert jsonable(numpy.float32(0.5)) == 0.5
    assert jsonable(numpy.int64(3)) == 3
    assert jsonable(numpy.array([[1.0, float("nan")]])) == {
        "$array": {"dtype": "float64", "shape": [1, 2], "data": [[1.0, {"$float": "nan"}]]}
    }


def test_the_line_of_an_error():
    line = record(3, {"q": 1}, Outcome(error=RolloutFailed("no"), worker="w0-1", executions=2))
    assert line["value"] is None
    assert line["error"]["class"] == "RolloutFailed"
    assert line["error"]["verdict"] == "it ran and failed"
    assert (line["index"], line["worker"], line["executions"]) == (3, "w0-1", 2)


def test_a_summary_counts_results_errors_and_retries():
    tally = Tally()
    for reward in (0.0, 1.0):
        tally.add(Outcome(value={"reward": reward}, executions=1, took_s=2.0, duration_s=1.0))
    tally.add(Outcome(value="no reward in it", executions=2, took_s=4.0))
    tally.add(Outcome(error=WorkerLost("gone"), took_s=1.0))
    found = tally.summary(2.0, ClientCounters(retransmitted=5, reissued=1))
    assert (found["results"], found["errors"], found["mean_reward"]) == (3, 1, 0.5)
    assert found["reward"] == {"mean": 0.5, "std": 0.5, "min": 0.0, "max": 1.0}
    assert found["errors_by"] == [{"class": "WorkerLost", "verdict": "it may have run", "count": 1}]
    assert found["retries"] == {"retransmitted": 5, "reissued": 1, "rerun": 1}
    assert found["rate"] == 2.0
    assert found["took_s"] == {"p50": 2.0, "p90": 4.0, "p99": 4.0}
    json.dumps(found, allow_nan=False)
    assert "WorkerLost" in tables_text(summary_tables(found, "title"))


def test_a_summary_of_nothing():
    found = Tally().summary(0.0, ClientCounters())
    assert (found["results"], found["errors"], found["mean_reward"]) == (0, 0, None)
    tables_text(summary_tables(found, "title"))


def test_rewards_that_are_no_numbers_have_no_mean():
    tally = Tally()
    tally.add(Outcome(value={"reward": float("nan")}))
    tally.add(Outcome(value={"reward": True}))
    found = tally.summary(1.0, ClientCounters())
    assert found["mean_reward"] is None
    json.dumps(found, allow_nan=False)


def test_plain_tables_are_aligned():
    text = tables_text([Table("t", ("name", "n"), [("a", "1"), ("long", "100")])])
    assert text == "t\n  name    n\n  a       1\n  long  100"


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


def test_the_percentiles_of_a_report_are_of_values_that_occurred():
    assert _percentiles([]) == {"p50": None, "p90": None, "p99": None}
    assert _percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0}
    hundred = [float(n) for n in range(100, 0, -1)]
    assert _percentiles(hundred) == {"p50": 51.0, "p90": 91.0, "p99": 100.0}
