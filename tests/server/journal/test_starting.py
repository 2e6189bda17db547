"""What a server is given of a journal, of which most stays on the disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.server.journal.folders import COMMAND_S, LARGE, a_run, completed, opened, write
from trio_envserve import ServerStartError
from trio_envserve.core.archive import unpack
from trio_envserve.core.journal import Closed, Commanded, Joined, Opened, Record, Started
from trio_envserve.core.key_records import KeyName
from trio_envserve.server.journal import reading
from trio_envserve.server.journal.folder import DATABASE
from trio_envserve.server.journal.opening import open_folder, unlock
from trio_envserve.server.journal.reading import read_outcomes


def started(folder: Path) -> tuple[list[Record], list[bytes]]:
    """What a server is given."""
    store, found, locks = open_folder(folder, COMMAND_S, at_rest=True)
    store.close()
    unlock(locks)
    return list(found.records()), found.at_rest


def change(folder: Path, text: str) -> None:
    connection = sqlite3.connect(folder / DATABASE)
    connection.execute(text)
    connection.commit()
    connection.close()


def test_what_has_its_outcome_rests_and_the_rest_is_given_as_it_was(tmp_path: Path):
    said = Commanded(False, b"default", b"later", b"t" * 16, None, True)
    open_: list[Record] = [opened(1, LARGE), Joined(1, b"o" * 16), Started(1)]
    write(tmp_path, [opened(0), open_[0], Started(0), said, open_[1]], [completed(0), open_[2]])
    records, at_rest = started(tmp_path)
    assert records == [Closed(1), open_[0], said, *open_[1:]]
    (one,) = map(unpack, at_rest)
    assert (one.number, one.name) == (0, KeyName(b"default", b"key-0"))
    assert (one.body_bytes, one.size_bytes, one.executions) == (5, 13, 1)
    assert (one.digest, one.rerun) == (b"d" * 32, None)


@pytest.mark.parametrize(
    ("earlier", "limit_s", "grace_s", "counted"),
    [
        (3, None, None, [2, 1]),  # those that may have been started before this journal: no count
        (0, 5.0, None, [2, 1]),  # a limit of an execution is no start
        (0, 5.0, 2.0, [2, 1]),  # nor is a grace
        (0, None, 2.0, [2, 1]),
    ],
)
def test_executions_of_all_epochs_are_counted(
    earlier: int, limit_s: float | None, grace_s: float | None, counted: list[int], tmp_path: Path
):
    first = Opened(
        0, b"n", b"k", b"d" * 32, True, 9, earlier, b"c" * 16, b"", execution_s=limit_s,
        grace_s=grace_s,
    )  # fmt: skip
    start = Started(0, b"w" * 16, 7)
    write(
        tmp_path,
        [first, start, start, completed(0)],
        [first._replace(number=1)],
        [start._replace(number=1), completed(1)],
    )
    _, at_rest = started(tmp_path)
    assert [unpack(one).executions for one in at_rest] == counted


def test_what_cannot_rest_is_given_whole(tmp_path: Path):
    odd = Opened(0, b"n", b"k", b"d", True, 9, 0, b"c" * 16, b"body")
    write(tmp_path, [odd, Started(0), completed(0)])
    assert started(tmp_path) == ([Closed(0), odd, Started(0), completed(0)], [])


@pytest.mark.parametrize("text", [
    "UPDATE records SET body = 'other' WHERE row = 3",
    "UPDATE records SET uptime_s = 7 WHERE row = 2",
    "DELETE FROM records WHERE row = 2",
    "DELETE FROM records WHERE row = 1",
    "UPDATE state SET sum = x'00'",
])  # fmt: skip
def test_what_was_changed_is_told_at_the_start(text: str, tmp_path: Path):
    write(tmp_path, a_run(0))
    change(tmp_path, text)
    with pytest.raises(ServerStartError, match="is damaged"):
        started(tmp_path)


def test_an_outcome_in_a_file_that_is_missing_is_told_at_the_start(tmp_path: Path):
    write(tmp_path, [opened(0), Started(0), completed(0, LARGE)])
    (tmp_path / "bodies" / "3").unlink()
    with pytest.raises(ServerStartError, match="the outcome of key 'key-0'"):
        started(tmp_path)


def test_outcomes_are_read_byte_for_byte(tmp_path: Path):
    write(tmp_path, [*a_run(0), opened(1), Started(1), completed(1, LARGE)])
    started(tmp_path)  # files of what rests stay
    one, other = read_outcomes(tmp_path, [1, 0])
    assert (one.number, one.frames, one.why) == (1, (b"header", LARGE), "")
    assert (other.number, other.frames) == (0, (b"header", b"outcome"))


def test_what_was_changed_while_the_server_ran_is_told_when_it_is_read(tmp_path: Path):
    write(tmp_path, [*a_run(0), opened(1), Started(1), completed(1, LARGE)])
    (tmp_path / "bodies" / "6").write_bytes(LARGE[:-1] + b"!")
    assert len(started(tmp_path)[1]) == 2
    (large,) = read_outcomes(tmp_path, [1])
    assert (large.frames, large.why) == ((), "bodies/6 is missing or was changed")
    change(tmp_path, "UPDATE records SET body = x'00' WHERE row = 3")
    assert read_outcomes(tmp_path, [0])[0].why == "journal.db: row 3 was changed"
    change(tmp_path, "DELETE FROM records WHERE row = 3")
    assert "the row of its outcome is not there" in read_outcomes(tmp_path, [0])[0].why
    assert "its rows are not there" in read_outcomes(tmp_path, [7])[0].why
    change(tmp_path, "DROP TABLE records")
    assert "no such table" in read_outcomes(tmp_path, [0])[0].why
    assert [each.frames for each in read_outcomes(tmp_path / "none", [1, 2])] == [(), ()]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_rows_of_a_generation_may_be_in_several_portions(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "AT_ONCE", at_once)
    write(tmp_path, a_run(0), [opened(1), *a_run(2), Started(1)])
    records, at_rest = started(tmp_path)
    assert records == [Closed(2), opened(1), Started(1)]
    assert [unpack(one).number for one in at_rest] == [0, 2]
