"""States that rollouts save: the newest one is there, and none that is over."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from tests.server.journal.folders import (
    LARGE,
    a_run,
    commit_singly,
    completed,
    journal,
    opened,
    read,
    write,
)
from trio_envserve.core.errors import ServerStartError
from trio_envserve.core.journal import Closed, Completed, Record, Started, StateSaved
from trio_envserve.core.terms import Body
from trio_envserve.server.journal.rows import SCHEMA, SCHEMA_WITH_STATES
from trio_envserve.server.journal.tools import check, look, mend


def state(save: int, number: int = 0, body: Body = b"state") -> StateSaved:
    return StateSaved(number, save, save, body)


def schema(folder: Path) -> int:
    with sqlite3.connect(folder / "journal.db") as connection:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(found)


def test_the_newest_state_of_each_generation_is_there(tmp_path: Path):
    write(
        tmp_path, [opened(0), Started(0), opened(1), Started(1)],
        [state(1), state(1, 1), state(2), state(2, 1), state(3)],
    )  # fmt: skip
    before: list[Record] = [opened(0), Started(0), opened(1), Started(1)]
    assert read(tmp_path) == [Closed(1), *before, state(2, 1), state(3)]
    assert check(tmp_path) == []


def test_of_several_states_in_one_group_the_newest_is_written(tmp_path: Path):
    with journal(tmp_path) as (store, _):
        store.commit([opened(0), Started(0)], 1.0)
        store.commit([state(1), opened(1), Started(0), state(2)], 1.0)
    with journal(tmp_path) as (_, found):
        assert [each for each in found.records() if isinstance(each, StateSaved)] == [state(2)]


@pytest.mark.parametrize("together", [False, True])
def test_an_outcome_ends_the_states_of_its_generation(tmp_path: Path, together: bool):
    rest: list[Record] = [state(1), Started(0), state(2), completed(0)]
    with journal(tmp_path) as (store, _):
        store.commit([opened(0), Started(0), opened(1), Started(1), state(1, 1)], 1.0)
        if together:
            store.commit(rest, 1.0)
        else:
            commit_singly(store, rest)
    with journal(tmp_path) as (_, found):
        kept = list(found.records())
    assert [each for each in kept if isinstance(each, StateSaved)] == [state(1, 1)]
    assert any(isinstance(each, Completed) for each in kept)


def test_what_is_closed_leaves_no_state(tmp_path: Path):
    write(tmp_path, [opened(0), Started(0), state(1)], [Closed(0)])
    assert read(tmp_path) == [Closed(0)]


def test_a_large_state_is_a_file_and_goes_with_the_next_one(tmp_path: Path):
    write(tmp_path, [opened(0), Started(0), state(1, body=LARGE)])
    assert len(os.listdir(tmp_path / "bodies")) == 1
    assert read(tmp_path)[-1] == state(1, body=LARGE)
    write(tmp_path, [state(2)])
    assert os.listdir(tmp_path / "bodies") == []
    assert read(tmp_path)[-1] == state(2)


def test_a_folder_without_states_is_one_that_an_earlier_version_reads(tmp_path: Path):
    write(tmp_path, a_run(0))
    assert schema(tmp_path) == SCHEMA


def test_a_folder_with_states_is_refused_by_a_version_that_knows_none(tmp_path: Path):
    write(tmp_path, [opened(0), Started(0), state(1)])
    assert schema(tmp_path) == SCHEMA_WITH_STATES
    write(tmp_path, [completed(0)])
    assert schema(tmp_path) == SCHEMA_WITH_STATES


def test_a_folder_with_graces_is_refused_by_a_version_that_knows_none(tmp_path: Path):
    write(tmp_path, [opened(0)._replace(grace_s=5.0)])
    assert schema(tmp_path) == SCHEMA_WITH_STATES


def test_a_commit_that_has_failed_changes_no_schema_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with journal(tmp_path) as (store, _):
        store.commit([opened(0), Started(0)], 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(store, "_put", lambda records, state: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.commit([state(1)], 1.0)
        assert schema(tmp_path) == SCHEMA
        store.commit([state(1)], 1.0)
    assert schema(tmp_path) == SCHEMA_WITH_STATES
    assert read(tmp_path)[-1] == state(1)


def test_a_lost_state_is_found_and_its_key_kept_as_one_that_may_have_run(tmp_path: Path):
    write(
        tmp_path, [opened(0), Started(0), state(1, body=LARGE), opened(1), Started(1), state(1, 1)]
    )
    (body,) = (tmp_path / "bodies").iterdir()
    body.write_bytes(b"changed")
    with pytest.raises(ServerStartError, match="the saved state of key 'key-0'"), journal(tmp_path):
        pass
    report = mend(tmp_path)
    assert (report.kept, report.may_have_run) == (1, ["key 'key-0' in namespace 'default'"])
    assert schema(tmp_path) == SCHEMA_WITH_STATES
    left = [each.record for each in look(tmp_path).entries]
    assert [each for each in left if isinstance(each, StateSaved)] == [state(1, 1)]
    assert left[0] == opened(0)._replace(allowance=0, earlier=4)
