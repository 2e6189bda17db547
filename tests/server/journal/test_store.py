"""What is written is there again, and what is over is not."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.journal.folders import (
    COMMAND_S,
    LARGE,
    a_run,
    completed,
    journal,
    opened,
    read,
    write,
)
from trio_envserve.core.journal import (
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Record,
    Started,
    remains_of,
)
from trio_envserve.server.journal.folder import beside
from trio_envserve.server.journal.store import PRUNE_EVERY, FileNotSynced, TakenOver, is_final


def test_every_kind_of_record_is_there_again(tmp_path: Path):
    late = Commanded(False, b"default", b"later", b"t" * 16, None, True, finished=True)
    records: list[Record] = [
        opened(0), Joined(0, b"o" * 16), Started(0), completed(0), late,
        opened(1, b""), completed(1, b""),
        Opened(2, b"\xff", b"\x00", b"d", True, 1, 3, b"", b"body"),
        Opened(3, b"n", b"k", b"d", True, 1, 3, b"", b"", execution_s=2.5, grace_s=0.5),
        Commanded(True, b"n", b"k", b"u" * 16, 7, False),
    ]  # fmt: skip
    write(tmp_path / "journal", records[:2], records[2:])
    assert read(tmp_path / "journal") == [Closed(3), *records]


def test_a_first_start_in_the_row_of_its_generation_leaves_its_limits_as_they_were(tmp_path: Path):
    first = Opened(0, b"n", b"k", b"d" * 32, True, 4, 0, b"c" * 16, b"body", execution_s=2.5)
    second = first._replace(number=1, grace_s=0.5)
    start = Started(0, b"w" * 16, 7)
    write(tmp_path, [first, start, second, start._replace(number=1)])
    left = remains_of(read(tmp_path)).generations
    assert [left[number].executions for number in (0, 1)] == [1, 1]
    assert [left[number].opened for number in (0, 1)] == [first, second]


def test_a_new_folder_has_nothing_but_its_time_and_only_its_owner_reads_it(tmp_path: Path):
    folder = tmp_path / "journal"
    assert read(folder) == []
    with journal(folder) as (store, _):
        store.commit([], 7.5)
    with journal(folder) as (store, found):
        assert store.state.uptime_s == 7.5
        assert list(found.records()) == []
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_is_closed_is_gone_and_its_number_is_not_used_again(tmp_path: Path):
    write(tmp_path, [*a_run(0), *a_run(1)], [Closed(1)], [Closed(0), opened(2), Closed(2)])
    assert read(tmp_path) == [Closed(2)]
    with journal(tmp_path) as (store, _):
        store.commit([opened(3), Started(3), Closed(3), opened(4)], 1.0)
    assert read(tmp_path) == [Closed(4), opened(4)]


def test_a_large_body_is_a_file_and_goes_with_its_row(tmp_path: Path):
    large: list[Record] = [opened(0, LARGE), Started(0), completed(0, memoryview(LARGE[1:]))]
    write(tmp_path, large)
    assert len(os.listdir(tmp_path / "bodies")) == 2
    _, first, _, last = read(tmp_path)
    assert isinstance(first, Opened)
    assert isinstance(last, Completed)
    assert (first.body, last.frames) == (LARGE, (b"header", LARGE[1:]))
    write(tmp_path, [Closed(0)])
    assert os.listdir(tmp_path / "bodies") == []


def test_a_body_whose_row_was_never_safe_is_removed(tmp_path: Path):
    write(tmp_path, [opened(0, LARGE)])
    (tmp_path / "bodies" / "17").write_bytes(b"of a commit that failed")
    (tmp_path / "bodies" / "18.new").write_bytes(b"half")
    read(tmp_path)
    assert os.listdir(tmp_path / "bodies") == ["1"]


def test_commands_are_kept_for_their_time_only(tmp_path: Path):
    def said(number: int) -> Commanded:
        return Commanded(False, b"n", b"%d" % number, b"t" * 16, None, True)

    with journal(tmp_path) as (store, _):
        store.commit([said(0)], 1.0)
        store.commit([said(1)], COMMAND_S)
        store.commit([Joined(0, b"")] * PRUNE_EVERY, COMMAND_S + 2)
    assert [r for r in read(tmp_path) if isinstance(r, Commanded)] == [said(1)]


def test_a_commit_that_fails_changes_nothing_and_may_be_made_again(tmp_path: Path):
    with journal(tmp_path) as (store, _):
        store.commit([opened(0), completed(0)], 1.0)
        store._connection.execute("PRAGMA max_page_count = 1")
        many: list[Record] = [opened(1, b"x" * 100_000), completed(0, LARGE), Closed(0)]
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="full") as failed:
                store.commit(many, 2.0)
            assert not is_final(failed.value)
        store._connection.execute("PRAGMA max_page_count = 1000000")
        store.commit(many[:2], 3.0)
    assert len(read(tmp_path)) == 5
    write(tmp_path, [Closed(0)])
    assert read(tmp_path) == [Closed(1), many[0]]


def test_after_a_sync_that_failed_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fsync(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with journal(tmp_path) as (store, _):
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(FileNotSynced) as failed:
            store.commit([opened(0, LARGE)], 1.0)
        assert is_final(failed.value)
    monkeypatch.undo()
    assert read(tmp_path) == []


def test_compacting_gives_room_back_and_loses_nothing(tmp_path: Path):
    with journal(tmp_path) as (store, _):
        store.commit([opened(number, bytes(50_000)) for number in range(50)], 1.0)
        store.commit([Closed(number) for number in range(49)], 1.0)
        before = (tmp_path / "journal.db").stat().st_size
        store.compact()
        assert (tmp_path / "journal.db").stat().st_size < before / 5
    assert read(tmp_path) == [Closed(49), opened(49, bytes(50_000))]


def test_each_row_was_a_statement_of_its_own_and_gave_up_the_lock_of_python(tmp_path: Path):
    """And what is closed was removed by two statements each."""
    statements: list[str] = []
    with journal(tmp_path) as (store, _):
        store._connection.set_trace_callback(statements.append)
        store.commit([opened(number) for number in range(100)], 1.0)
        written = sum(each.startswith("INSERT INTO records") for each in statements)
        assert written == 3  # 64 + 32 + 4
        statements.clear()
        store.commit([Closed(number) for number in range(99)], 1.0)
        assert sum("FROM records" in each for each in statements) == 2 * 4  # 64 + 32 + 2 + 1
        store._connection.set_trace_callback(None)
    assert read(tmp_path) == [Closed(99), opened(99)]


def test_each_value_of_a_row_was_looked_up_among_the_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """That took longer than to write the row."""
    adapted: list[bytes] = []

    def adapt(value: bytes) -> bytes:
        adapted.append(value)
        return value

    adapters: dict[Any, Any] = sqlite3.adapters
    monkeypatch.setitem(adapters, (bytes, sqlite3.PrepareProtocol), adapt)
    with journal(tmp_path) as (store, _):
        adapted.clear()
        store.commit([record for number in range(100) for record in a_run(number)], 1.0)
    assert len(adapted) == 2  # the row of the state


@pytest.mark.parametrize("allowance", [1, 4])
def test_a_start_in_the_group_that_opens_its_generation_is_in_that_row(
    allowance: int, tmp_path: Path
):
    first, other = opened(0, allowance=allowance), opened(1, allowance=allowance)
    starts = [Started(number, b"w" * 16, dispatch) for dispatch, number in enumerate((1, 0, 1))]
    group: list[Record] = [first, other, Joined(0, b"o" * 16), *starts]
    with journal(tmp_path) as (store, _):
        store.commit(group, 1.0)
        assert store.state.records == 4  # not six
    with journal(tmp_path) as (_, found):
        left = remains_of(found.records()).generations
    for number, each in remains_of(group).generations.items():
        assert repr(left[number]) == repr(each)
    assert left[0].callers == {b"c" * 16, b"o" * 16}


TAKEN_AWAY: dict[str, Callable[[Path], object]] = {
    "the folder is removed": shutil.rmtree,
    "the folder is moved": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "the folder is another one": lambda folder: make_anew(folder),
    "the database is removed": lambda folder: (folder / "journal.db").unlink(),
    "its log is removed": lambda folder: (folder / "journal.db-wal").unlink(),
    "its log is another one": lambda folder: replace(folder / "journal.db-wal"),
}


def make_anew(folder: Path) -> None:
    """Another one, with nothing in it."""
    shutil.rmtree(folder)
    folder.mkdir()


def replace(path: Path) -> None:
    """By another file with the same in it."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


@pytest.mark.parametrize("what", sorted(TAKEN_AWAY))
def test_g11_what_was_written_to_a_file_that_nobody_finds_was_told_as_safe(
    what: str, tmp_path: Path
):
    folder = tmp_path / "journal"
    with journal(folder) as (store, _):
        store.commit([opened(0)], 1.0)
        TAKEN_AWAY[what](folder)
        for _ in range(2):
            with pytest.raises(OSError, match="was removed, moved or replaced") as failed:
                store.commit([opened(1)], 2.0)
            assert not is_final(failed.value)


def test_what_was_moved_and_comes_back_is_gone_on_with(tmp_path: Path):
    folder, elsewhere = tmp_path / "journal", tmp_path / "elsewhere"
    with journal(folder) as (store, _):
        store.commit([opened(0)], 1.0)
        folder.rename(elsewhere)
        with pytest.raises(OSError, match="was removed, moved or replaced"):
            store.commit([opened(1)], 2.0)
        elsewhere.rename(folder)
        store.commit([opened(1)], 3.0)
    assert read(folder) == [Closed(1), opened(0), opened(1)]


def test_g11_two_servers_whose_locks_were_removed_wrote_to_one_journal(tmp_path: Path):
    with journal(tmp_path) as (store, _):
        store.commit([opened(0)], 1.0)
        for place in (tmp_path, *beside(tmp_path)):
            for lock in place.glob("*.lock"):
                lock.unlink()
        with journal(tmp_path) as (other, _):
            other.commit([opened(1)], 1.0)
            with pytest.raises(TakenOver) as failed:
                store.commit([opened(1, b"another")], 2.0)
            assert is_final(failed.value)
            other.commit([opened(2)], 2.0)
    assert read(tmp_path) == [Closed(2), opened(0), opened(1), opened(2)]


def test_the_file_beside_the_database_is_written_again_if_it_was_removed(tmp_path: Path):
    with journal(tmp_path) as (store, _):
        store.commit([opened(0)], 1.0)
        (tmp_path / "safe").unlink()
        store.commit([opened(1)], 1.0)
    assert read(tmp_path) == [Closed(1), opened(0), opened(1)]
