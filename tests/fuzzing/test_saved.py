"""Every saved failure is clean on what ships, and broken by what it was found with.

To add one: `trio-envserve fuzz ... --save tests/fuzzing/saved`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzzing.known import made_small
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.failure import Failure, load_failure, replay, save_failure

FILES = sorted(Path(__file__).parent.joinpath("saved").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_saved_failure_does_not_come_back(path: Path):
    failure = load_failure(Protocol(), path)
    assert not replay(Protocol(), failure)
    if failure.mutant:
        broken = Protocol(mutant=failure.mutant)
        with broken.applied():
            assert failure.guarantee in {each.guarantee for each in replay(broken, failure)}


def test_there_is_one():
    assert FILES


@pytest.fixture
def failure() -> Failure:
    return made_small("reruns-without-consent")


def test_what_is_saved_is_what_is_loaded(failure: Failure, tmp_path: Path):
    path = save_failure(failure, tmp_path / "new", made_by={"version": "1"})
    assert failure.mutant in path.name
    assert failure.guarantee.lower() in path.name
    assert load_failure(Protocol(), path) == failure
    assert save_failure(failure, tmp_path / "new") == path, "the same failure has the same file"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("plan"),
        lambda data: data.pop("format"),
        lambda data: data.update(format=99),
        lambda data: data["plan"].pop("loss"),
        lambda data: data["plan"].update(faults=["NO_SUCH_FAULT"]),
        lambda data: data["plan"]["server"].update(no_such_limit=1),
        lambda data: data["plan"]["asks"][0][0].pop("body"),
    ],
)
def test_a_file_of_something_else_is_refused(failure: Failure, tmp_path: Path, change):
    path = save_failure(failure, tmp_path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="no saved failure"):
        load_failure(Protocol(), path)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path):
    path = tmp_path / "x.json"
    for text in ("", "[]", "7", "{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"x\.json is no saved failure"):
            load_failure(Protocol(), path)
