"""Every saved failure is clean on what ships, and broken by what it was found with.

To add one: `trio-envserve fuzz ... --save tests/fuzzing/saved`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzzing.known import broken_by
from trio_envserve.lab.fuzzing.failure import Failure, examine
from trio_envserve.lab.fuzzing.saved import load, replay, save
from trio_envserve.lab.mutants import find
from trio_envserve.lab.simulation.plans import from_data, to_data
from trio_envserve.lab.simulation.simulator import plan_of

FILES = sorted(Path(__file__).parent.joinpath("saved").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_saved_failure_does_not_come_back(path: Path):
    failure = load(path)
    assert not replay(failure).violations
    if failure.mutant:
        with find(failure.mutant).applied():
            assert replay(failure).breaks(failure.guarantee)


def test_there_is_one():
    assert FILES


@pytest.fixture(scope="module")
def failure() -> Failure:
    seed, harsh, guarantee = broken_by("sync-off-by-one")
    with find("sync-off-by-one").applied():
        found = examine(seed, harsh=harsh, guarantee=guarantee, mutant="sync-off-by-one")
    assert found is not None
    return found


def test_what_is_saved_is_what_is_loaded(failure: Failure, tmp_path: Path):
    path = save(failure, tmp_path / "new", {"version": "1", "commit": None, "python": "3"})
    assert failure.mutant in path.name
    assert failure.guarantee.lower() in path.name
    assert load(path) == failure
    assert save(failure, tmp_path / "new", {}) == path, "the same failure has the same file"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("plan"),
        lambda data: data.pop("format"),
        lambda data: data.update(format=99),
        lambda data: data.update(surprise=1),
        lambda data: data["plan"].pop("loss"),
        lambda data: data["plan"].update(faults=["NO_SUCH_FAULT"]),
        lambda data: data["plan"]["server"].update(no_such_limit=1),
        lambda data: data["plan"]["asks"][0][0].pop("body"),
    ],
)
def test_a_file_of_something_else_is_refused(failure: Failure, tmp_path: Path, change):
    path = save(failure, tmp_path, {})
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="no saved failure"):
        load(path)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path):
    path = tmp_path / "x.json"
    for text in ("", "[]", "7", "{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"x\.json is no saved failure"):
            load(path)


@pytest.mark.parametrize("harsh", [False, True])
def test_every_plan_can_be_written_down(harsh: bool):
    for seed in range(30):
        plan = plan_of(seed, harsh=harsh)
        assert from_data(json.loads(json.dumps(to_data(plan)))) == plan
