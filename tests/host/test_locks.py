"""The locks of an address: who may serve, and which epochs are proven dead."""

from __future__ import annotations

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
from trio_envserve.host.locks import EPOCHS_KEPT, ServerLocks, holders_of, runtime_directory

ADDRESS = "tcp://127.0.0.1:5555"


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Callable[..., ServerLocks]]:
    """Makes locks of the address; they are closed at the end of the test."""
    made: list[ServerLocks] = []

    def make(directory: Path = tmp_path, *, passing: bool = False) -> ServerLocks:
        made.append(ServerLocks.of_address(ADDRESS, directory, passing=passing))
        return made[-1]

    yield make
    for each in made:
        each.close()


def numbered(index: int) -> bytes:
    return index.to_bytes(16, "big")


def refusal(act: Callable[[], object]) -> str:
    """What a server is told that cannot start; whatever else is raised is no answer."""
    try:
        act()
    except ServerStartError as error:
        return str(error)
    except OSError as error:
        return f"not for people: {error!r}"
    return ""


def test_g1_a_second_server_at_an_address_is_refused_with_who_is_there(locks) -> None:
    first, second = locks(), locks()
    assert first.server.acquire_nowait()
    assert "another server (pid unknown) serves" in refusal(second.take_server)
    first.take_server()
    assert f"another server (pid {os.getpid()}) serves {ADDRESS}" in refusal(second.take_server)
    first.close()
    second.take_server()


def test_g1_epochs_are_proven_dead_only_when_their_lock_is_free(locks) -> None:
    first, second = locks(), locks()
    assert first.try_epochs(numbered(1)) == set()
    assert second.try_epochs(numbered(2)) is None
    assert second.find_workers() == f"find them with: fuser {second.epochs.path}"
    assert second.wait_text(2.6).endswith(f"an earlier server at {ADDRESS} to end (3 s)")
    first.close()
    assert second.try_epochs(numbered(2)) == {numbered(1)}


def test_g1_a_lock_that_was_removed_while_waiting_for_it_is_not_taken_for_the_new_one(
    locks,
) -> None:
    passing, waiting = locks(passing=True), locks()
    descriptor = waiting.server.fd
    passing.take_server()
    passing.close()
    third = locks()
    third.take_server()
    assert "another server" in refusal(waiting.take_server)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)  # that of the file that is gone
    third.close()
    third.server.path.unlink()
    waiting.take_server()  # with a file of its own
    assert waiting.server.path.read_text("ascii") == f"{os.getpid()}\n"


def test_only_who_has_the_locks_of_a_passing_address_removes_their_files(
    locks, tmp_path: Path
) -> None:
    first, second = locks(passing=True), locks(passing=True)
    first.take_server()
    assert first.try_epochs(numbered(1)) == set()
    second.close()
    assert first.server.path.exists()
    first.server.path.unlink()  # somebody has cleaned up
    first.close()
    first.close()  # twice is not too often
    assert not first.server.held
    assert list(tmp_path.iterdir()) == []


# -- what a lock file meets ---------------------------------------------------


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


def test_a_full_disk_is_explained_and_loses_no_epoch(locks) -> None:
    for index in (1, 2):
        earlier = locks()
        assert earlier.try_epochs(numbered(index)) is not None
        earlier.close()
    full = locks()
    with a_full_disk(80):
        said = refusal(lambda: full.try_epochs(numbered(3)))
    full.close()
    assert said.startswith(f"the lock file {full.epochs.path} cannot be used: ")
    assert "XDG_RUNTIME_DIR" in said
    later = locks()
    assert later.try_epochs(numbered(4)) == {numbered(1), numbered(2)}
    assert later.try_epochs(numbered(5)) == {numbered(1), numbered(2), numbered(4)}


def test_a_full_disk_is_explained_by_the_server_lock(locks) -> None:
    full = locks()
    with a_full_disk(1):
        said = refusal(full.take_server)
    assert said.startswith(f"the lock file {full.server.path} cannot be used: ")


@pytest.mark.parametrize("files", [0, 1])
def test_a_directory_that_takes_no_more_files_is_explained_and_nothing_stays_open(
    files: int, locks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    real = os.open

    def full(*given: Any) -> int:
        if len(opened) == files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        opened.append(real(*given))
        return opened[-1]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        said = refusal(locks)
    assert said.startswith(f"the lock file {tmp_path}")
    assert "cannot be used: No space left on device" in said
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_file_system_without_locks_is_explained(locks, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    ours = locks()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    said = refusal(ours.take_server)
    assert said.startswith(f"the lock file {ours.server.path} cannot be used: No locks available")


def test_a_lock_whose_file_cannot_be_opened_again_closes_nothing_of_others(
    locks, tmp_path: Path
) -> None:
    directory = tmp_path / "locks"
    directory.mkdir()
    passing, waiting = locks(directory, passing=True), locks(directory)
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


@pytest.mark.parametrize("end", ["0102", "z" * 32, "\u00e9" * 16, "z" * 32 + "\n"])
def test_epoch_behind_a_cut_or_changed_line_was_lost(locks, end: str) -> None:
    """It ended in the cut line, so it was never proven dead; other text was a traceback."""
    first = locks()
    assert first.try_epochs(numbered(1)) == set()
    with first.epochs.path.open("a") as file:
        file.write(end)
    first.close()
    second = locks()
    assert second.try_epochs(numbered(2)) == {numbered(1)}
    second.close()
    assert locks().try_epochs(numbered(3)) == {numbered(1), numbered(2)}


def test_the_newest_epochs_are_kept(locks) -> None:
    ours = locks()
    for last in range(3 * EPOCHS_KEPT):
        known = ours.try_epochs(numbered(last))
        kept = last if last < 2 * EPOCHS_KEPT else EPOCHS_KEPT + last % EPOCHS_KEPT
        assert known == {numbered(index) for index in range(last - kept, last)}


# -- who holds a lock ---------------------------------------------------------


@contextmanager
def held_by_another(descriptor: int) -> Iterator[int]:
    """The id of a process that has inherited this file."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[descriptor]
    ) as holder:
        yield holder.pid
        holder.kill()


@pytest.mark.parametrize("lives", [True, False])
def test_who_holds_the_lock_of_a_server_that_serves_or_has_ended_is_named(locks, lives) -> None:
    first, second = locks(), locks()
    first.take_server()
    with held_by_another(first.server.fd) as pid:
        first.server.write(f"{pid}\n" if lives else "1\n")
        first.close()
        said = refusal(second.take_server)
    if lives:
        assert said.startswith(f"another server (pid {pid}) serves {ADDRESS} on this machine")
    else:
        assert f"(pid 1) has ended, but process {pid}, " in said


def test_who_holds_the_lock_of_an_epoch_is_named(locks) -> None:
    ended, second = locks(), locks()
    assert ended.try_epochs(numbered(1)) == set()
    with held_by_another(ended.epochs.fd) as pid:
        ended.close()
        assert second.try_epochs(numbered(2)) is None
        said = second.find_workers()
    assert said == f"{second.epochs.path} is held by process {pid}"


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
        found = [holders_of(held) for _ in range(15)]
        holder.kill()
    assert found == 15 * [[holder.pid]]


def test_a_forked_child_gives_the_locks_up_and_removes_no_file(locks) -> None:
    first, second = locks(passing=True), locks(passing=True)
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


@contextmanager
def without_privileges() -> Iterator[None]:
    """As another user than root, who may write everywhere."""
    if os.getuid():
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.parametrize("runtime", [missing, no_directory, not_writable])
def test_a_runtime_directory_of_somebody_else_is_replaced_by_a_temporary_one(monkeypatch, runtime):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        temporary, directory = Path(name), Path(name, "runtime")
        directory.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime(directory)))
        with without_privileges():
            found, owner = runtime_directory(), os.getuid()
        assert found == temporary / f"trio_envserve-{owner}"
        assert found.is_dir()


def test_runtime_directory_where_nothing_can_be_written_is_refused_with_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """In a container whose file system is read-only the server ended with a traceback."""

    def none_usable() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(missing(tmp_path)))
    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    with pytest.raises(ServerStartError, match=r"No usable temporary.*set XDG_RUNTIME_DIR"):
        runtime_directory()


def test_servers_of_all_versions_have_the_same_files_in_the_users_own_directory(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ServerLocks.of_address(ADDRESS).close()
    assert runtime_directory().parent == tmp_path
    found = {path.name: path.stat().st_mode & 0o777 for path in runtime_directory().iterdir()}
    assert found == {"0210063d277f67d6.server": 0o600, "0210063d277f67d6.epochs": 0o600}


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


def test_where_nothing_can_be_made_the_server_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "no directory for lock files: " in refusal(runtime_directory)
