"""The folders of rollouts: whatever is in one, it is removed, and nothing else is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_envserve.worker.folders import PREFIX, STAYING_MOST, Folders, sweep

DEEP = 1100
"""Deeper than the stack of Python, and than a path may be long."""


def fill(folder: Path, deep: int = 5) -> None:
    """With what is hard to remove."""
    for number in range(200):
        (folder / str(number)).touch()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe")).touch()
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to(folder)
    locked = folder / "locked" / "below"
    locked.mkdir(parents=True)
    (locked / "file").touch()
    locked.chmod(0)
    locked.parent.chmod(0o500)
    at = os.open(folder, os.O_RDONLY)
    for _ in range(deep):
        os.mkdir("deep", dir_fd=at)
        below = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    folder.chmod(0)


@contextlib.contextmanager
def few_descriptors(held: int, more: int) -> Iterator[None]:
    """So many are left, beside those that are open; ``held`` is one of these."""
    lowest, limits = os.dup(held), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_folder_is_for_this_user_only_whatever_the_umask_is(place):
    before = os.umask(0o277)
    try:
        made = Folders()
        folder = made.make()
        assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700] * 2
        made.close()
    finally:
        os.umask(before)


def test_folder_is_removed_with_all_that_is_in_it_and_its_neighbour_stays(place):
    made = Folders()
    folder, other = made.make(), made.make()
    fill(folder, deep=DEEP)
    made.remove(folder)
    assert sorted(each.name for each in folder.parent.iterdir()) == [other.name, "lock"]
    fill(other)
    made.close()
    assert not list(place.iterdir())


@pytest.mark.parametrize("more", [0, 1, 2])
def test_folder_that_stays_for_want_of_descriptors_is_removed_with_the_next_one(place, more):
    """It stayed until its worker ended."""
    made = Folders()
    folder, other = made.make(), made.make()
    fill(folder)
    with few_descriptors(made.lock, more):
        made.remove(folder)
    assert len(list(other.parent.iterdir())) == 3
    made.remove(other)
    assert [each.name for each in other.parent.iterdir()] == ["lock"]
    made.close()


def test_removal_of_a_folder_tried_all_that_had_ever_stayed(place):
    """Each one took longer than the last where files of another owner stay."""
    made = Folders()
    folders = [made.make() for _ in range(STAYING_MOST + 5)]
    with few_descriptors(made.lock, 0):
        for folder in folders:
            made.remove(folder)
    last = made.make()
    made.remove(last)
    assert {each.name for each in last.parent.iterdir()} == {"lock", *"01234"}
    made.close()
    assert not list(place.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_folder_that_its_owner_may_not_read_is_removed():
    place = Path(tempfile.mkdtemp())  # pytest keeps its own to root
    place.chmod(0o777)
    program = (
        "import os\n"
        "from tests.worker.test_folders import Folders, fill\n"
        "from trio_envserve.worker import folders\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"folders.temporary = lambda: {str(place)!r}\n"
        "made = Folders(); folder = made.make(); fill(folder); made.remove(folder)\n"
        "assert os.listdir(folder.parent) == ['lock'], os.listdir(folder.parent)\n"
        "made.close()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    place.rmdir()


def test_link_is_removed_and_not_followed(place, tmp_path_factory):
    kept = tmp_path_factory.mktemp("kept")
    kept.chmod(0o755)
    (kept / "file").touch()
    made = Folders()
    folder, link = made.make(), made.make()
    (folder / "link").symlink_to(kept)
    link.rmdir()
    link.symlink_to(kept)
    for each in (folder, link):
        made.remove(each)
        assert not os.path.lexists(each)
    made.close()
    assert (kept / "file").exists()
    assert kept.stat().st_mode & 0o777 == 0o755


def test_mount_point_is_not_entered_and_holds_up_nothing_else(place, tmp_path_factory):
    kept = tmp_path_factory.mktemp("kept")
    (kept / "file").touch()
    made = Folders()
    folder = made.make()
    at = folder / "a" / "mounted"
    at.mkdir(parents=True)
    (folder / "other").touch()
    mounted = subprocess.run(["mount", "--bind", str(kept), str(at)], capture_output=True)
    if mounted.returncode:
        made.close()
        pytest.skip("this user may not mount")
    try:
        made.remove(folder)
        assert (kept / "file").exists()
        [left] = [each for each in folder.parent.iterdir() if each.name != "lock"]
        assert [each.name for each in left.rglob("*")] == ["mounted", "file"]
    finally:
        moved = next(place.rglob("mounted"))
        subprocess.run(["umount", str(moved)], check=True)
    made.close()
    assert not list(place.iterdir())


def test_folder_that_is_gone_or_is_a_file_is_no_trouble(place):
    made = Folders()
    gone, file = made.make(), made.make()
    gone.rmdir()
    file.rmdir()
    file.touch()
    for each in (gone, file):
        made.remove(each)
        assert not each.exists()
    made.close()


def test_sweep_removes_what_nobody_holds_and_nothing_else(place):
    held, left = Folders(), Folders()
    held_folder, left_folder = held.make(), left.make()
    fill(left_folder)
    os.close(left.lock)  # as at its worker's end
    half_made = place / f"{PREFIX}{'0' * 16}"
    half_made.mkdir()
    others = [place / f"{PREFIX}notes", place / "file", place / f"{PREFIX}{'1' * 16}"]
    others[0].mkdir()
    others[1].touch()
    others[2].symlink_to(others[0])
    sweep()
    assert held_folder.exists()
    assert sorted(place.iterdir()) == sorted([*others, held_folder.parent])
    held.close()


@pytest.mark.parametrize("step", ["chmod", "open", "flock"])
def test_base_folder_that_a_sweep_takes_while_it_is_made_is_made_again(place, monkeypatch, step):
    """Before it has its mode, before it has a locked file, and before that is locked."""
    module = fcntl if step == "flock" else os
    real = getattr(module, step)
    taken: list[Path] = []

    def late(*args, **options):
        if not taken:
            taken.extend(place.iterdir())
            sweep()
        return real(*args, **options)

    monkeypatch.setattr(module, step, late)
    made = Folders()
    folder = made.make()
    assert folder.exists()
    assert [folder.parent] != taken
    sweep()
    assert folder.exists()
    made.close()
    assert not list(place.iterdir())


def test_folder_of_a_worker_lives_as_long_as_a_process_that_it_has_forked(place):
    made = Folders()
    folder = made.make()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    os.close(made.lock)
    sweep()
    assert folder.exists()
    os.close(writing)
    os.waitpid(child, 0)
    sweep()
    assert not list(place.iterdir())


def test_folder_of_a_living_worker_is_not_swept_if_a_cleaner_has_removed_its_lock(place):
    made = Folders()
    folder = made.make()
    (folder.parent / "lock").unlink()  # as systemd-tmpfiles does with a file of ten days
    sweep()
    assert folder.is_dir()
    made.remove(folder)
    made.close()
    assert not list(place.iterdir())


def test_base_folder_without_lock_and_without_folders_is_swept(place):
    (place / (PREFIX + "0" * 16)).mkdir()
    sweep()
    assert not list(place.iterdir())


def test_folder_is_made_after_a_cleaner_has_removed_the_base_folder(place):
    made = Folders()
    before = made.make()
    made.remove(before)
    (before.parent / "lock").unlink()
    before.parent.rmdir()
    after, other = made.make(), made.make()
    made.remove(after)
    assert [each.name for each in after.parent.iterdir() if each.name != "lock"] == [other.name]
    made.close()
    assert not list(place.iterdir())
