"""The thread of a journal: groups, a disk that fails, and the end."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest
import trio

from tests.server.journal.folders import LARGE, a_run, completed, opened, read
from trio_envserve import ServerStartError
from trio_envserve.core.journal import Closed, Commanded, Record
from trio_envserve.server.journal import OpenJournal, open_journal, store, writer

LONG_S = 60.0


async def saved(journal: OpenJournal, upto: int) -> None:
    """Until so many are safe."""
    with trio.fail_after(LONG_S):
        while (await journal.news()).upto < upto:
            pass


async def failure(journal: OpenJournal) -> writer.CommitFailure:
    with trio.fail_after(LONG_S):
        while (found := (await journal.news()).failure) is None:
            pass
    return found


def database(journal: OpenJournal) -> sqlite3.Connection:
    return journal._store._connection


async def test_what_is_given_together_is_one_commit_for_which_the_thread_is_woken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every record woke it."""
    commits: list[str] = []
    woken: list[int] = []
    async with open_journal(tmp_path) as journal:
        notify = journal._condition.notify

        def count() -> None:
            woken.append(len(journal._waiting))
            notify()

        monkeypatch.setattr(journal._condition, "notify", count)
        database(journal).set_trace_callback(commits.append)
        with journal._condition:  # the thread has no turn meanwhile
            for number in range(writer.GROUP_RECORDS + 50):
                journal.save([opened(number)], number + 1)
        assert woken == [1, writer.GROUP_RECORDS]
        await saved(journal, writer.GROUP_RECORDS + 50)
    assert commits.count("COMMIT") == 1
    assert len(read(tmp_path)) == writer.GROUP_RECORDS + 51


async def test_records_that_come_one_after_the_other_do_not_wait_for_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each waited until 5 ms after the commit before, so a save took five times as long as the
    disk."""
    monkeypatch.setattr(writer, "GROUP_S", 10 * LONG_S)
    records: list[Record] = [opened(0), completed(0), opened(1)]
    async with open_journal(tmp_path) as journal:
        for upto, record in enumerate(records, 1):
            journal.save([record], upto)
            await saved(journal, upto)


async def test_what_comes_after_many_records_shares_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "GROUP_S", 10 * LONG_S)
    commits: list[str] = []
    many, most = writer.FEW_RECORDS + 1, writer.FEW_RECORDS + 1 + writer.GROUP_RECORDS
    async with open_journal(tmp_path) as journal:
        database(journal).set_trace_callback(commits.append)
        journal.save([*map(opened, range(many))], many)
        await saved(journal, many)
        for number in range(many, most):
            journal.save([opened(number)], number + 1)
            await trio.to_thread.run_sync(int)  # the thread has turns meanwhile
        await saved(journal, most)
    assert commits.count("COMMIT") == 2


async def test_the_order_is_kept_whatever_the_groups_are(tmp_path: Path):
    records: list[Record] = [
        record for number in range(300) for record in (opened(number), completed(number))
    ]
    async with open_journal(tmp_path) as journal:
        for upto, record in enumerate(records, 1):
            journal.save([record], upto)
            if upto % 50 == 0:
                await trio.lowlevel.checkpoint()
        await saved(journal, len(records))
    assert read(tmp_path) == [Closed(299), *records]


async def test_the_end_of_the_block_saves_what_was_given(tmp_path: Path):
    async with open_journal(tmp_path) as journal:
        journal.save([opened(0), completed(0)], 2)
    with trio.CancelScope() as scope:
        async with open_journal(tmp_path) as journal:
            assert len(journal.at_rest()) == 1
            assert list(journal.records()) == [Closed(0)]
            journal.save([opened(1)], 1)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert read(tmp_path) == [Closed(1), opened(0), completed(0), opened(1)]


async def test_a_full_disk_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    async with open_journal(tmp_path) as journal:
        journal.save(a_run(0), 3)
        await saved(journal, 3)
        database(journal).execute("PRAGMA max_page_count = 1")
        journal.save([opened(1, b"x" * 100_000)], 4)
        found = await failure(journal)
        assert found == ("database or disk is full", False)
        with trio.fail_after(LONG_S):
            await journal.settled()  # what cannot be saved now is not waited for
        journal.save([opened(2)], 5)
        database(journal).execute("PRAGMA max_page_count = 1000000")
        await saved(journal, 5)
        assert journal._failure is None
    assert read(tmp_path)[-2:] == [opened(1, b"x" * 100_000), opened(2)]


async def test_g9_what_was_safe_was_not_told_where_the_next_commit_had_failed_by_then(
    tmp_path: Path,
):
    """Whoever waited for it went on waiting until the disk took all else, or was told at the end
    that nobody knows."""
    full = writer.CommitFailure("database or disk is full", False)
    async with open_journal(tmp_path) as journal:
        journal._tell(2, None)
        journal._tell(None, full)  # before the loop had a turn
        assert [await journal.news() for _ in range(2)] == [(2, None), (2, full)]


async def test_after_an_error_of_a_sync_nothing_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fsync(fd: int) -> None:
        raise OSError(5, "Input/output error")

    async with open_journal(tmp_path) as journal:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            journal.save([opened(0, LARGE)], 1)
            assert await failure(journal) == ("Input/output error", True)
        journal.save([opened(1)], 2)
        with trio.fail_after(LONG_S):
            await journal._ended.wait()
    assert read(tmp_path) == []


async def test_a_disk_that_fails_at_the_end_holds_up_nobody(tmp_path: Path):
    with trio.fail_after(LONG_S):
        async with open_journal(tmp_path) as journal:
            database(journal).execute("PRAGMA max_page_count = 1")
            journal.save([opened(1, b"x" * 100_000)], 1)
            await failure(journal)
    assert read(tmp_path) == []


async def test_a_disk_that_is_stuck_at_the_end_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(writer, "CLOSE_S", 0.05)
    with trio.fail_after(LONG_S):
        async with open_journal(tmp_path) as journal:
            holder = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            journal.save([opened(0)], 1)
        assert "were not saved within 0.05 s" in caplog.text
        holder.close()
        await journal._ended.wait()


async def test_time_that_passes_without_records_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "UPTIME_S", 0.01)
    async with open_journal(tmp_path) as journal:
        with trio.fail_after(LONG_S):
            while not journal._store.state.uptime_s:  # noqa: ASYNC110  # a thread changes it
                await trio.sleep(0.01)


async def test_a_clock_that_jumps_by_a_day_ended_what_commands_are_kept_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said = Commanded(False, b"n", b"k", b"t" * 16, None, True)
    real, jump_s = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + jump_s)
    monkeypatch.setattr(store, "PRUNE_EVERY", 1)
    async with open_journal(tmp_path) as journal:
        journal.save([said], 1)
        await saved(journal, 1)
        jump_s = 86_400.0
        journal.save([opened(1)], 2)
        await saved(journal, 2)
        assert 0 < journal._store.state.uptime_s <= 2 * writer.UPTIME_S + LONG_S
    assert read(tmp_path) == [Closed(1), said, opened(1)]


async def test_a_folder_is_free_after_the_block_and_not_before(tmp_path: Path):
    async with open_journal(tmp_path):
        with pytest.raises(ServerStartError, match="another server"):
            async with open_journal(tmp_path):
                pass
    async with open_journal(tmp_path):
        pass
