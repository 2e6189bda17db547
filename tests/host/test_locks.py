"""The locks of an address: who may serve, and which epochs are proven dead."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from trio_envserve import ServerStartError
from trio_envserve.host.locks import EPOCHS_KEPT, AddressLocks, holders_of, runtime_directory

ADDRESS = "tcp://127.0.0.1:5555"


def test_g1_a_second_server_at_an_address_is_refused_with_who_is_there(tmp_path: Path) -> None:
    first, second = AddressLocks(ADDRESS, tmp_path), AddressLocks(ADDRESS, tmp_path)
    first.take_server()
    with pytest.raises(ServerStartError, match=r"another server \(pid \d+\)"):
        second.take_server()
    first.close()
    second.take_server()
    second.close()


def test_g1_epochs_are_proven_dead_only_when_their_lock_is_free(tmp_path: Path) -> None:
    first, second = AddressLocks(ADDRESS, tmp_path), AddressLocks(ADDRESS, tmp_path)
    assert first.try_epochs(b"1" * 16) == set()
    assert second.try_epochs(b"2" * 16) is None
    first.close()
    assert second.try_epochs(b"2" * 16) == {b"1" * 16}
    second.close()


def test_the_files_of_a_passing_address_are_removed(tmp_path: Path) -> None:
    locks = AddressLocks(ADDRESS, tmp_path, passing=True)
    locks.take_server()
    assert locks.try_epochs(b"1" * 16) == set()
    locks.close()
    assert list(tmp_path.iterdir()) == []


def test_g1_a_lock_that_was_removed_while_waiting_for_it_is_not_taken_for_the_new_one(
    tmp_path: Path,
) -> None:
    passing = AddressLocks(ADDRESS, tmp_path, passing=True)
    waiting = AddressLocks(ADDRESS, tmp_path)
    descriptor = waiting.server.fd
    passing.take_server()
    passing.close()
    third = AddressLocks(ADDRESS, tmp_path)
    third.take_server()
    with pytest.raises(ServerStartError):
        waiting.take_server()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)  # that of the file that is gone
    third.close()
    waiting.take_server()
    waiting.close()


def test_a_lock_whose_file_was_removed_is_taken_with_a_file_of_its_own(tmp_path: Path) -> None:
    passing = AddressLocks(ADDRESS, tmp_path, passing=True)
    waiting = AddressLocks(ADDRESS, tmp_path)
    passing.take_server()
    passing.close()
    waiting.take_server()
    assert waiting.server.path.read_text("ascii") == f"{os.getpid()}\n"
    waiting.close()


def test_only_who_has_the_lock_removes_its_file(tmp_path: Path) -> None:
    first, second = (AddressLocks(ADDRESS, tmp_path, passing=True) for _ in range(2))
    first.take_server()
    second.close()
    assert first.server.path.exists()
    first.server.path.unlink()  # somebody has cleaned up
    first.close()
    first.close()  # twice is not too often
    assert not first.server.held


def test_servers_of_all_versions_have_the_same_files_which_are_for_their_user_alone(
    tmp_path: Path,
) -> None:
    locks = AddressLocks(ADDRESS, tmp_path)
    found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert found == {"0210063d277f67d6.server": 0o600, "0210063d277f67d6.epochs": 0o600}
    locks.close()


# -- what a lock file meets ---------------------------------------------------


def refusal(act: Callable[[], object]) -> str:
    """What a server is told that cannot start; whatever else is raised is no answer."""
    try:
        act()
    except ServerStartError as error:
        return str(error)
    except OSError as error:
        return f"not for people: {error!r}"
    return ""


@contextmanager
def a_full_disk(left_bytes: int) -> Iterator[None]:
    """No file can become larger than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def numbered(index: int) -> bytes:
    return index.to_bytes(16, "big")


def test_a_full_disk_is_explained_and_loses_no_epoch(tmp_path: Path) -> None:
    for index in (1, 2):
        locks = AddressLocks(ADDRESS, tmp_path)
        assert locks.try_epochs(numbered(index)) is not None
        locks.close()
    locks = AddressLocks(ADDRESS, tmp_path)
    with a_full_disk(80):
        said = refusal(lambda: locks.try_epochs(numbered(3)))
    locks.close()
    assert said.startswith(f"the lock file {locks.epochs.path} cannot be used: ")
    assert "XDG_RUNTIME_DIR" in said
    locks = AddressLocks(ADDRESS, tmp_path)
    assert locks.try_epochs(numbered(4)) == {numbered(1), numbered(2)}
    assert locks.try_epochs(numbered(5)) == {numbered(1), numbered(2), numbered(4)}
    locks.close()


def test_a_full_disk_is_explained_by_the_server_lock(tmp_path: Path) -> None:
    locks = AddressLocks(ADDRESS, tmp_path)
    with a_full_disk(1):
        said = refusal(locks.take_server)
    locks.close()
    assert said.startswith(f"the lock file {locks.server.path} cannot be used: ")


def test_a_directory_that_takes_no_file_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        said = refusal(lambda: AddressLocks(ADDRESS, tmp_path))
    assert "cannot be used: No space left on device" in said
    assert str(tmp_path) in said


def test_a_second_file_that_cannot_be_had_is_explained_and_the_first_one_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    real = os.open

    def full(*given: Any) -> int:
        if opened:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        opened.append(real(*given))
        return opened[0]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        said = refusal(lambda: AddressLocks(ADDRESS, tmp_path))
    assert "cannot be used: No space left on device" in said
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_a_file_system_without_locks_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    locks = AddressLocks(ADDRESS, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks)
        said = refusal(locks.take_server)
    locks.close()
    assert said.startswith(f"the lock file {locks.server.path} cannot be used: No locks available")


def test_a_lock_whose_file_cannot_be_opened_again_closes_nothing_of_others(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "locks"
    directory.mkdir()
    passing = AddressLocks(ADDRESS, directory, passing=True)
    waiting = AddressLocks(ADDRESS, directory)
    passing.take_server()
    passing.close()
    shutil.rmtree(directory)
    with suppress(ServerStartError, OSError):
        waiting.take_server()  # its file is gone, and none can be made
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]  # with the free numbers
    with suppress(OSError):
        waiting.close()
    closed = 0
    for descriptor in others:
        try:
            os.close(descriptor)
        except OSError:
            closed += 1
    assert closed == 0


def test_the_newest_epochs_are_kept(tmp_path: Path) -> None:
    count = 3 * EPOCHS_KEPT
    locks = AddressLocks(ADDRESS, tmp_path)
    for last in range(count):
        known = locks.try_epochs(numbered(last))
        kept = last if last < 2 * EPOCHS_KEPT else EPOCHS_KEPT + last % EPOCHS_KEPT
        assert known == {numbered(index) for index in range(last - kept, last)}
    locks.close()


def test_a_link_is_not_taken_for_the_users_own_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / f"trio_envserve-{os.getuid()}").symlink_to(tmp_path / "own")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert "must be a directory of your own" in refusal(runtime_directory)


def test_the_directory_of_another_user_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runtime_directory().rename(tmp_path / f"trio_envserve-{os.getuid() + 1}")
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert "must be a directory of your own" in refusal(runtime_directory)


def test_a_server_in_another_process_is_named(tmp_path: Path) -> None:
    first, second = AddressLocks(ADDRESS, tmp_path), AddressLocks(ADDRESS, tmp_path)
    first.take_server()
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[first.server.fd]
    ) as holder:
        first.server.write(f"{holder.pid}\n")
        first.close()
        said = refusal(second.take_server)
        holder.kill()
    second.close()
    assert said.startswith(f"another server (pid {holder.pid}) serves {ADDRESS} on this machine")


def test_who_holds_a_lock_and_has_not_said_its_number_is_not_known(tmp_path: Path) -> None:
    first, second = AddressLocks(ADDRESS, tmp_path), AddressLocks(ADDRESS, tmp_path)
    assert first.server.acquire_nowait()
    assert "another server (pid unknown) serves" in refusal(second.take_server)
    assert first.try_epochs(numbered(1)) == set()
    assert second.try_epochs(numbered(2)) is None
    assert second.find_workers() == f"find them with: fuser {second.epochs.path}"
    assert second.wait_text(2.6) == (
        f"waiting for the workers of an earlier server at {ADDRESS} to end (3 s)"
    )
    first.close()
    second.close()


def test_who_holds_the_lock_of_a_server_that_has_ended_is_named(tmp_path: Path) -> None:
    ended, second = AddressLocks(ADDRESS, tmp_path), AddressLocks(ADDRESS, tmp_path)
    ended.take_server()
    ended.server.write("1\n")
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[ended.server.fd]
    ) as holder:
        ended.close()
        said = refusal(second.take_server)
        holder.kill()
    second.close()
    assert f"(pid 1) has ended, but process {holder.pid}, " in said


def test_who_opens_and_closes_other_files_meanwhile_is_found(tmp_path: Path) -> None:
    held = tmp_path / "held"
    program = "import os\nprint(flush=True)\nwhile True: os.close(os.dup(0))"
    with (
        held.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            pass_fds=[file.fileno()],
        ) as holder,
    ):  # fmt: skip
        assert holder.stdout is not None
        holder.stdout.readline()
        found = [holders_of(held) for _ in range(200)]
        holder.kill()
    assert found == 200 * [[holder.pid]]


def test_who_holds_the_lock_of_an_epoch_is_named(tmp_path: Path) -> None:
    ended, second = AddressLocks(ADDRESS, tmp_path), AddressLocks(ADDRESS, tmp_path)
    assert ended.try_epochs(numbered(1)) == set()
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[ended.epochs.fd]
    ) as holder:
        ended.close()
        assert second.try_epochs(numbered(2)) is None
        said = second.find_workers()
        holder.kill()
    second.close()
    assert said == f"{second.epochs.path} is held by process {holder.pid}"


def test_a_forked_child_gives_the_locks_up_and_removes_no_file(tmp_path: Path) -> None:
    first, second = (AddressLocks(ADDRESS, tmp_path, passing=True) for _ in range(2))
    first.take_server()
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # it ends as a child would that leaves the block of its server
        first.close()
        os.write(ready[1], b"x")
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        assert first.server.path.exists()
        first.server.close()
        assert refusal(second.take_server) == ""
    finally:
        os.write(go_on[1], b"x")
        os.waitpid(child, 0)
        for descriptor in (*ready, *go_on):
            os.close(descriptor)
    first.close()
    second.close()


# -- a runtime directory of somebody else ----------------------------------------
# ``XDG_RUNTIME_DIR`` is often another user's: batch systems, su and sudo pass it on,
# and inside a container it may not exist.  The server did not start there, with a bare
# OSError.


NOBODY = 65534


def missing(directory: Path) -> Path:
    return directory / "missing"


def no_directory(directory: Path) -> Path:
    (directory / "file").touch()
    return directory / "file"


def not_writable(directory: Path) -> Path:
    directory.chmod(0o500)
    return directory


@contextlib.contextmanager
def without_privileges():
    """As another user than root, who may write everywhere."""
    if os.getuid():
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def temporary(monkeypatch):
    """Where temporary files go: a directory that every user can write to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.mark.parametrize("runtime", [missing, no_directory, not_writable])
def test_temporary_files_have_a_place(monkeypatch, temporary, runtime):
    directory = temporary / "runtime"
    directory.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime(directory)))
    with without_privileges():
        found = runtime_directory()
        owner = os.getuid()
    assert found == temporary / f"trio_envserve-{owner}"
    assert found.is_dir()


def test_the_locks_of_an_address_are_in_the_users_own_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    locks = AddressLocks(ADDRESS)
    assert locks.server.path.parent == locks.epochs.path.parent == runtime_directory()
    assert runtime_directory().parent == tmp_path
    locks.close()


def test_where_nothing_can_be_made_the_server_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ServerStartError, match=r"no directory for lock files: .*missing"):
        runtime_directory()
