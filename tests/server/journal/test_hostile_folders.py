"""Folders that are damaged, somebody else's, or not to be had: each is told and refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
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
from trio_envserve import ServerStartError
from trio_envserve.core.journal import Closed, Completed, Opened, Record, Started
from trio_envserve.server.journal import folder as folder_module
from trio_envserve.server.journal import opening, tools
from trio_envserve.server.journal.folder import Identity, file_system, identity_of
from trio_envserve.server.journal.repair import NUMBERS_SKIPPED, Repaired, repair
from trio_envserve.server.journal.store import Safe, read_safe, write_safe

ANOTHER = 65_534
"""A user who is not this one."""
BY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
REAL = Identity("host", "boot", 1, 2)


def refusal(folder: Path) -> str:
    """Why it is not opened; each tells what to do, and changes nothing."""
    before = contents(folder)
    with pytest.raises(ServerStartError) as refused, journal(folder):
        pass
    text = str(refused.value)
    assert str(folder) in text
    assert contents(folder) == before
    return text


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, but for empty ones, locks and what SQLite makes again."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob("**/*")
        if path.is_file() and path.suffix not in {".lock", ".db-shm"} and path.stat().st_size
    }


def repaired(folder: Path) -> Repaired:
    # it said: journal DIR check --repair, which is no command
    assert f"trio-envserve journal check {folder} --repair" in refusal(folder)
    report = repair(folder, identity_of(folder))
    read(folder)
    return report


def killed(folder: Path, *groups: list[Record]) -> Path:
    """A folder as a killed server leaves it."""
    with journal(folder / "source") as (store, _):
        for group in groups:
            commit_singly(store, group)
        copy(folder / "source", folder / "journal")
    return folder / "journal"


def test_a_killed_server_leaves_all_that_was_safe(tmp_path: Path):
    folder = killed(tmp_path, a_run(0), [opened(1)])
    assert (folder / "journal.db-wal").stat().st_size > 0
    assert read(folder) == [Closed(1), *a_run(0), opened(1)]


@pytest.mark.parametrize("part", ["journal.db", "journal.db-wal"])
def test_a_journal_that_is_cut_off_at_any_byte_is_never_taken_for_whole(part: str, tmp_path: Path):
    folder = killed(tmp_path, a_run(0), a_run(1), [Closed(0)], [opened(2)])
    whole = read_copy(folder, tmp_path / "whole")
    size = (folder / part).stat().st_size
    cuts = {0, 1, 15, 16, 31, 32, 33, 99, 100, 101, size - 1, size // 2, size // 2 + 1}
    cuts |= set(range(0, size, 1 + size // 12))
    for cut in sorted(cuts):
        at = tmp_path / f"cut-{cut}"
        copy(folder, at)
        os.truncate(at / part, cut)
        try:
            found = read(at)
        except ServerStartError as error:
            problem = str(error)
        else:
            problem = "damaged" if found == whole else f"{found} in place of {whole}"
        assert "damaged" in problem, cut
        shutil.rmtree(at)


def copy(folder: Path, to: Path) -> None:
    """A copy that is taken for the original."""
    shutil.copytree(folder, to)
    adopted.add(to.stat().st_ino)


adopted: set[int] = set()


@pytest.fixture(autouse=True)
def copies_are_taken_for_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that :func:`copy` has made."""
    real = folder_module.check_identity

    def check(folder: Path, was: Identity, now: Identity) -> None:
        if now.inode not in adopted:
            real(folder, was, now)

    adopted.clear()
    monkeypatch.setattr("trio_envserve.server.journal.opening.check_identity", check)


def read_copy(folder: Path, to: Path) -> list[Record]:
    copy(folder, to)
    return read(to)


def change_row(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "journal.db")
    connection.execute(statement)
    connection.commit()
    connection.close()


CHANGES = {
    "its record": "UPDATE records SET record = zeroblob(20) WHERE row = 2",
    "its key": "UPDATE records SET number = 1 WHERE row = 2",
    "its type": "UPDATE records SET number = 'x' WHERE row = 2",
    "its body": "UPDATE records SET body = 'other' WHERE row = 3",
    "its sum": "UPDATE records SET sum = zeroblob(8) WHERE row = 3",
    "its place": "UPDATE records SET row = 99 WHERE row = 3",
    "removed": "DELETE FROM records WHERE row = 2",
    "the state": "UPDATE state SET state = zeroblob(9)",
    "no state": "DELETE FROM state",
    "no table": "DROP TABLE records",
    "the index": "DROP INDEX of_number",
}


@pytest.mark.parametrize("change", sorted(set(CHANGES) - {"the index"}))
def test_a_row_that_was_changed_is_told(change: str, tmp_path: Path):
    write(tmp_path, a_run(0), [opened(1)])
    change_row(tmp_path, CHANGES[change])
    assert "damaged" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("journal.db", "journal.db is missing"),
        ("safe", "safe: it is missing"),
        ("bodies/4", "bodies/4: the outcome of key 'key-1' in namespace 'default' is missing"),
        ("bodies/2", "bodies/2: the input of key 'key-1'"),
    ],
)
def test_a_file_that_is_missing_is_told(part: str, told: str, tmp_path: Path):
    write(tmp_path, [opened(0), opened(1, LARGE), Started(1), completed(1, LARGE)])
    (tmp_path / part).unlink()
    assert told in refusal(tmp_path)


@pytest.mark.parametrize("left", [0, 10, 20, 21, 30, 41, 42, 50, 58])
def test_note_of_how_much_there_was_counted_although_it_was_cut(left: int, tmp_path: Path):
    """Cut within its second number or its name, it had fewer rows, or was another journal's."""
    write(tmp_path, a_run(0))
    note = (tmp_path / "safe").read_bytes()
    assert len(note) == 59
    (tmp_path / "safe").write_bytes(note[:left])
    assert "safe: it is missing or was changed" in refusal(tmp_path)


def test_a_file_that_was_changed_is_told(tmp_path: Path):
    write(tmp_path, [opened(0, LARGE)])
    (tmp_path / "bodies" / "1").write_bytes(LARGE[:-1] + b"!")
    assert "bodies/1: the input of key 'key-0'" in refusal(tmp_path)


def test_a_wal_that_was_removed_is_told_with_how_much_is_missing(tmp_path: Path):
    folder = killed(tmp_path, a_run(0), a_run(1))
    (folder / "journal.db-wal").unlink()
    assert "the last 6 of 6 records are missing" in refusal(folder)


def test_a_refused_start_leaves_the_log_in_which_one_bit_was_flipped(tmp_path: Path):
    folder = killed(tmp_path, a_run(0), a_run(1))
    log = folder / "journal.db-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    told = refusal(folder)
    assert "records are missing" in told
    assert refusal(folder) == told
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    assert read(folder) == [Closed(1), *a_run(0), *a_run(1)]


def test_an_older_copy_that_was_put_back_is_told(tmp_path: Path):
    write(tmp_path, a_run(0))
    shutil.copy(tmp_path / "journal.db", tmp_path / "old")
    write(tmp_path, a_run(1))
    shutil.move(tmp_path / "old", tmp_path / "journal.db")
    assert "the last 3 of 6 records are missing" in refusal(tmp_path)


def test_what_is_no_database_is_told(tmp_path: Path):
    write(tmp_path, a_run(0))
    (tmp_path / "journal.db").write_text("It was a dark and stormy night.\n" * 500)
    assert "not a database" in refusal(tmp_path)


def test_a_database_of_another_program_is_left_alone(tmp_path: Path):
    change_row(tmp_path, "CREATE TABLE songs (name)")
    before = (tmp_path / "journal.db").read_bytes()
    assert "of another program" in refusal(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == before


@pytest.mark.parametrize(("schema", "which"), [(1, "an earlier"), (5, "a later")])
def test_another_schema_is_refused(tmp_path: Path, schema: int, which: str):
    write(tmp_path, a_run(0))
    change_row(tmp_path, f"PRAGMA user_version = {schema}")
    before = (tmp_path / "journal.db").read_bytes()
    assert f"{which} version (its schema is {schema}" in refusal(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == before


def test_a_server_that_ended_while_it_made_the_folder_left_nothing(tmp_path: Path):
    write(tmp_path)
    (tmp_path / "safe").unlink()
    assert read(tmp_path) == []
    (tmp_path / "safe").unlink()
    for part in ("journal.db-wal", "journal.db"):
        (tmp_path / part).write_bytes(b"")
    assert read(tmp_path) == []


# -- whose it is -----------------------------------------------------------------------


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path):
    with journal(tmp_path):
        assert f"(pid {os.getpid()}) uses the journal" in refusal(tmp_path)
    read(tmp_path)


def test_a_folder_that_was_copied_is_refused(tmp_path: Path):
    write(tmp_path / "original", a_run(0))
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    assert "was copied or moved here" in refusal(tmp_path / "copy")
    shutil.move(tmp_path / "original", tmp_path / "renamed")
    assert len(read(tmp_path / "renamed")) == 4


@pytest.fixture
def every_folder_is_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is removed and made again may get its inode again."""
    for module in (opening, tools):
        monkeypatch.setattr(module, "identity_of", lambda folder: REAL)


@pytest.mark.usefixtures("every_folder_is_the_same_one")
def test_g2_an_older_copy_of_the_folder_was_taken_and_its_keys_ran_again(tmp_path: Path):
    folder, copied = tmp_path / "journal", tmp_path / "copied"
    write(folder, a_run(0))
    shutil.copytree(folder, copied)
    write(folder, a_run(1))
    shutil.rmtree(folder)
    shutil.copytree(copied, folder)
    why = refusal(folder)
    assert "is an older copy" in why
    assert "the last 3 of 6 records are not in it" in why
    assert f"trio-envserve journal adopt {folder}" in why
    tools.adopt(folder)
    assert len(read(folder)) == 4


@pytest.mark.usefixtures("every_folder_is_the_same_one")
def test_a_journal_that_was_put_back_after_another_is_refused(tmp_path: Path):
    folder, kept = tmp_path / "journal", tmp_path / "kept"
    write(folder, a_run(0), a_run(1))
    shutil.move(folder, kept)
    write(folder, a_run(0))
    shutil.rmtree(folder)
    shutil.move(kept, folder)
    assert "is not the one that was last used here" in refusal(folder)


@pytest.mark.usefixtures("every_folder_is_the_same_one")
def test_g1_a_copy_in_the_place_of_a_living_servers_journal_was_taken(tmp_path: Path):
    folder, copied = tmp_path / "journal", tmp_path / "copied"
    with journal(folder):
        shutil.copytree(folder, copied)
        shutil.rmtree(folder)
        shutil.copytree(copied, folder)
        assert f"(pid {os.getpid()}) uses the journal" in refusal(folder)


@pytest.mark.parametrize(
    "kind",
    [
        "file",
        "link",
        pytest.param("anothers", marks=BY_ROOT),
    ],
)
def test_what_stands_in_the_way_of_the_folder_beside_is_not_used(kind: str, tmp_path: Path):
    """Whoever may write there could have made it, as a link to a folder of somebody else."""
    beside, elsewhere = tmp_path / ".journal.journal", tmp_path / "elsewhere"
    elsewhere.mkdir()
    match kind:
        case "file":
            beside.write_text("in the way")
        case "link":
            beside.symlink_to(elsewhere)
        case "anothers":
            beside.mkdir()
            os.chown(beside, ANOTHER, ANOTHER)
    write(tmp_path / "journal", a_run(0))
    assert len(read(tmp_path / "journal")) == 4
    assert not [*elsewhere.iterdir()]
    assert kind == "file" or not [*beside.iterdir()]


def test_a_note_is_read_without_what_a_longer_one_has_left(tmp_path: Path):
    write_safe(tmp_path, Safe(7, 3, "0123456789abcdef"))
    write_safe(tmp_path, Safe(1, 2, ""))
    assert read_safe(tmp_path) == Safe(1, 2, "")


def test_a_killed_servers_folder_without_the_memory_of_its_log_is_read(tmp_path: Path):
    folder = killed(tmp_path, a_run(0))
    (folder / "journal.db-shm").unlink(missing_ok=True)
    assert read(folder) == [Closed(0), *a_run(0)]


# -- where none can be -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: folder / "no" / "journal", "make the folder above it"),
        (lambda folder: touched(folder / "file"), "it is a file"),
        (lambda folder: touched(folder / "file") / "journal", "something above it is a file"),
        (lambda folder: Path("/proc/self/journal"), "no journal can be in"),
        (lambda folder: Path("/proc/self/fdinfo"), "the lock file"),
    ],
)
def test_a_folder_that_cannot_be_had_is_told(
    make: Callable[[Path], Path], why: str, tmp_path: Path
):
    assert why in refusal(make(tmp_path))


def touched(path: Path) -> Path:
    path.touch()
    return path


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    device = tmp_path.stat().st_dev
    line = f"36 25 {os.major(device)}:{os.minor(device)} / /mnt rw - nfs4 server:/x rw"
    assert file_system(device, f"nonsense\n{line}\n") == "nfs4"
    assert file_system(device, "") == ""
    monkeypatch.setattr(folder_module, "_text", lambda path: line)
    assert "a network file system (nfs4)" in refusal(tmp_path)


# -- what is left ------------------------------------------------------------------------


def test_a_repair_keeps_what_is_whole_where_a_body_is_lost(tmp_path: Path):
    write(
        tmp_path, a_run(0),
        [opened(1), Started(1), completed(1, LARGE), opened(2), opened(3, LARGE)],
        [opened(4, LARGE), Started(4), completed(4)],
    )  # fmt: skip
    for name in ("6", "8", "9"):
        (tmp_path / "bodies" / name).unlink()
    listed = {each.left.opened.number: each for each in tools.kept(tools.look(tmp_path))}
    assert {number for number, each in listed.items() if each.body_is_lost} == {1, 3, 4}
    assert [listed[number].executions for number in range(5)] == [1, 1, 0, 0, 1]
    report = repaired(tmp_path)
    assert report.kept == 3
    assert report.may_have_run == [f"key 'key-{n}' in namespace 'default'" for n in (1, 3)]
    assert (report.unknown, report.may_miss_keys) == (0, False)
    _, *records = read(tmp_path)
    assert [r for r in records if isinstance(r, Completed)] == [completed(0), completed(4)]
    asked = {r.number: r for r in records if isinstance(r, Opened)}
    assert [asked[n].allowance for n in (1, 2, 3)] == [0, 4, 0]
    assert [asked[n].earlier for n in (1, 2, 3)] == [4, 0, 4]
    assert len(asked[3].body) == len(LARGE)
    assert (Path(report.aside) / "journal.db").exists()


def test_a_repair_trusts_no_start_where_anything_may_be_missing(tmp_path: Path):
    folder = killed(tmp_path, a_run(0), [opened(1)], [opened(2)])
    change_row(folder, "DELETE FROM records WHERE row = 1")
    report = repaired(folder)
    assert report.may_have_run == [f"key 'key-{n}' in namespace 'default'" for n in (1, 2)]
    assert (report.kept, report.unknown, report.may_miss_keys) == (0, 1, True)
    first, *records = read(folder)
    assert first == Closed(2 + NUMBERS_SKIPPED)
    (asked,) = (r for r in records if isinstance(r, Opened) and r.number == 1)
    assert (asked.allowance, asked.earlier) == (0, 4)


def test_a_repair_does_not_adopt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(opening, "identity_of", lambda folder: REAL)
        write(tmp_path, a_run(0))
    change_row(tmp_path, CHANGES["its record"])
    repair(tmp_path, identity_of(tmp_path))
    assert "was last used on another machine" in refusal(tmp_path)


def test_a_repair_of_nothing_readable_still_numbers_on(tmp_path: Path):
    write(tmp_path, a_run(41))
    (tmp_path / "journal.db").write_bytes(b"?" * 5000)
    report = repaired(tmp_path)
    assert (report.kept, report.may_miss_keys) == (0, True)
    assert read(tmp_path) == [Closed(41 + NUMBERS_SKIPPED)]


def test_a_server_that_ended_while_it_repaired_left_no_empty_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path, a_run(0))
    change_row(tmp_path, CHANGES["its record"])
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr("trio_envserve.server.journal.repair.create", lambda *_: 1 / 0)
        repair(tmp_path, identity_of(tmp_path))
    assert "is missing" in refusal(tmp_path)
