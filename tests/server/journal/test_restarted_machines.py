"""A machine is started anew: whatever had used the journal is dead, and nobody need say so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.server.journal.folders import COMMAND_S, a_run, commit_singly, opened
from trio_envserve import ServerStartError
from trio_envserve.core.journal import Started
from trio_envserve.server.journal.folder import Identity, identity_of, is_own_file
from trio_envserve.server.journal.opening import open_folder, unlock

CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"host": "other"}, "on another machine"),
    ({"inode": 1}, "was copied or moved here"),
    ({"filesystem": 9}, "was copied or moved here"),
    ({"is_own": False}, "is that of an image"),
    ({"boot": ""}, "is that of an image"),
]


def marks(folder: Path, **changes: Any) -> Identity:
    """Where the folder is, on a machine with an id of its own, but for these."""
    folder.mkdir(exist_ok=True)
    found = identity_of(folder)._replace(host="m", boot="first", filesystem=7, is_own=True)
    return found._replace(**changes)


def use(folder: Path, now: Identity, *, commit: bool = True) -> int:
    """Open it as a server does that is there; how many records it has."""
    store, found, locks = open_folder(folder, COMMAND_S, now)
    try:
        if commit:
            commit_singly(store, [opened(1), Started(1)] if not found.entries else a_run(2))
        return len(found.entries)
    finally:
        store.close()
        unlock(locks)


def test_a_machine_that_was_started_anew_wanted_a_person(tmp_path: Path):
    use(tmp_path, marks(tmp_path))
    assert use(tmp_path, marks(tmp_path, boot="second")) == 2
    # From now on its marks are those of this boot, and not of both.
    with pytest.raises(ServerStartError, match="was copied or moved here"):
        use(tmp_path, marks(tmp_path, boot="second", device=1))
    assert use(tmp_path, marks(tmp_path, boot="second")) == 5


def test_it_may_be_started_anew_again_before_anything_was_written(tmp_path: Path):
    use(tmp_path, marks(tmp_path))
    for boot in ("second", "second", "third"):
        assert use(tmp_path, marks(tmp_path, boot=boot), commit=False) == 2


@pytest.mark.parametrize(("changes", "why"), CHANGED, ids=str)
def test_another_boot_alone_proves_nothing(changes: dict[str, Any], why: str, tmp_path: Path):
    use(tmp_path, marks(tmp_path))
    with pytest.raises(ServerStartError, match=why) as refused:
        use(tmp_path, marks(tmp_path, **{"boot": "second", **changes}))
    assert f"trio-envserve journal adopt {tmp_path}" in str(refused.value)


@pytest.mark.parametrize("changes", [{"is_own": False}, {"boot": ""}], ids=str)
def test_marks_that_could_not_tell_then_prove_nothing_now(changes: dict[str, Any], tmp_path: Path):
    use(tmp_path, marks(tmp_path, **changes))
    with pytest.raises(ServerStartError, match="is that of an image"):
        use(tmp_path, marks(tmp_path, boot="second"))


def test_a_disk_has_another_number_after_a_restart(tmp_path: Path):
    use(tmp_path, marks(tmp_path))
    assert use(tmp_path, marks(tmp_path, boot="second", device=1)) == 2


@pytest.mark.parametrize(("device", "is_refused"), [(None, False), (1, True)])
def test_a_disk_without_an_id_is_told_by_its_number(
    device: int | None, is_refused: bool, tmp_path: Path
):
    first = marks(tmp_path, filesystem=0)
    use(tmp_path, first)
    now = first._replace(boot="second", device=first.device if device is None else device)
    if is_refused:
        with pytest.raises(ServerStartError, match="was copied or moved here"):
            use(tmp_path, now)
    else:
        assert use(tmp_path, now) == 2


def test_a_folder_that_was_copied_before_a_restart_is_refused(tmp_path: Path):
    use(tmp_path / "original", marks(tmp_path / "original"))
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    with pytest.raises(ServerStartError, match="was copied or moved here"):
        use(tmp_path / "copy", marks(tmp_path / "copy", boot="second"))


ROOT, PROC = "22 1 0:50 / / rw - {} disk rw", "23 22 0:51 / /proc rw - proc proc rw"
HOSTS = "24 22 254:0 /etc/machine-id /etc/machine-id ro - ext4 /dev/vda rw"


@pytest.mark.parametrize(
    ("mounts", "is_own"),
    [
        ([ROOT.format("ext4"), PROC], True),
        ([ROOT.format("btrfs")], True),
        ([ROOT.format("overlay"), PROC], False),
        ([ROOT.format("overlay"), HOSTS], True),
        ([ROOT.format("ext4"), ROOT.format("overlay")], False),  # it is mounted over the first
        ([HOSTS.replace("machine-id", "machine"), PROC, "nonsense"], False),
    ],
)
def test_a_machine_id_in_an_image_is_that_of_many_machines(mounts: list[str], is_own: bool):
    assert is_own_file("/etc/machine-id", "\n".join(mounts)) is is_own


def test_marks_are_written_and_read_whole(tmp_path: Path):
    now = identity_of(tmp_path)
    store, _, locks = open_folder(tmp_path, COMMAND_S)
    try:
        assert store.state.identity == now
        assert now.inode == tmp_path.stat().st_ino
        assert now.filesystem == os.statvfs(tmp_path).f_fsid
    finally:
        store.close()
        unlock(locks)
