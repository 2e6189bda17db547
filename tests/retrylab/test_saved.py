"""Saved failures: the whole schedule in a file, replayed, or refused in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from examples.kv_store import FORGETFUL, STORE
from examples.protocols import exactly_once_sink, leaders_lease
from trio_envserve.retrylab import (
    Ask,
    Failure,
    Fault,
    System,
    check,
    explore,
    load_failure,
    replay,
    save_failure,
    search,
    sweep,
)
from trio_envserve.retrylab.failure import examine, explored_failure


def found(system: System, how: str) -> Failure:
    if how == "explore":
        failure = explored_failure(system, explore(system))
    elif how == "sweep":
        broken = next(ran for ran in sweep(system, 1) if ran.violations)
        failure = examine(system, broken.seed, plan=broken.plan)
    else:
        failure = search(system)
    assert failure is not None
    return failure


@pytest.mark.parametrize("how", ["search", "explore", "sweep"])
@pytest.mark.parametrize("system", [FORGETFUL, exactly_once_sink.BROKEN])
def test_a_failure_comes_back_from_its_file_as_it_was(tmp_path: Path, system: System, how: str):
    failure = found(system, how)
    path = save_failure(failure, tmp_path / "kept", system="file.py:NAME")
    assert load_failure(system, path) == failure
    assert [v.guarantee for v in replay(system, load_failure(system, path))][:1] == [
        failure.guarantee
    ]
    assert json.loads(path.read_text())["system"] == "file.py:NAME"


def test_wrong_clocks_come_back(tmp_path: Path):
    failure = search(leaders_lease.BROKEN, seed=9)
    assert failure is not None
    assert Fault.DRIFT in failure.plan.kinds()
    path = save_failure(failure, tmp_path)
    assert load_failure(leaders_lease.BROKEN, path) == failure
    data = json.loads(path.read_text())
    clocks = data["plan"]["clocks"]
    data["plan"]["clocks"] = {actor: list(clock.values()) for actor, clock in clocks.items()}
    path.write_text(json.dumps(data))  # as earlier files of this format have them
    assert load_failure(leaders_lease.BROKEN, path) == failure


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 1}, "it is of format 1, and this version reads 2; find the failure again"),
        ({"format": None}, "it is of format None"),
        ({"plan": {}}, "missing 3 required positional arguments: 'strikes'"),
        ({"seed": "x"}, "is no saved failure"),
        ({"asks": [{"request": "c0#99", "at_s": 0.0, "what": "7"}]}, "asks for nothing now"),
    ],
)
def test_another_version_or_another_system_is_refused_in_words(
    tmp_path: Path, change: dict[str, Any], words: str
):
    path = save_failure(found(FORGETFUL, "search"), tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="is no saved failure of this system") as raised:
        load_failure(FORGETFUL, path)
    assert words in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", "\x00", "[" * 100_000], ids=range(6))
def test_a_file_that_is_none_is_refused_in_words(tmp_path: Path, text: str):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x.json is no saved failure of this system"):
        load_failure(FORGETFUL, path)


def test_asks_that_have_changed_are_refused(tmp_path: Path):
    path = save_failure(found(FORGETFUL, "search"), tmp_path)

    def asks(random: Random) -> list[Ask]:
        return [ask._replace(what=("get", "z", 0)) for ask in STORE.asks(random)]

    other = dataclasses.replace(FORGETFUL, asks=asks)
    with pytest.raises(ValueError, match=r"asked for .*, and asks for \('get', 'z', 0\) now"):
        load_failure(other, path)


def test_check_saves_what_it_finds(tmp_path: Path):
    with pytest.raises(AssertionError, match=r"Saved as .*at-most-once-seed-"):
        check(FORGETFUL, runs=20, save=tmp_path)
    (path,) = tmp_path.iterdir()
    assert replay(FORGETFUL, load_failure(FORGETFUL, path))
