"""Whether a folder may be used as a journal, and whose it is.

A journal proves something only where its locks prove something: on one machine, in the
folder that they were taken in.  What was copied, or comes from elsewhere, a person may adopt
who knows that nobody else uses it.

Locks are forgotten when a machine is started anew, but so is everything that had held them:
no process outlives its kernel.  So another boot id proves that what had used the folder is
dead, if the folder is the same one on the same machine.  A rule that left this to a person
would ask one after each restart, at night as well, for what the kernel knows.  The machine is
told by its machine-id, and only if that is its own: one in the image of a container is that of
many machines, of which another one may still run what this journal has started.  The folder
is told by its inode, and its disk by the id of the file system, which outlives a restart, or
else by the number of the device, which may not.  A folder that was removed and put back may
get its inode again, or be filled in place: so its locks and its count of records are beside
it as well (:func:`beside`), and whoever has fewer records than were counted is an older copy.
Whoever copies a whole disk copies all of
these: a machine that was cloned, or restored beside itself, is not told from the first one.
"""

from __future__ import annotations

import errno
import os
import platform
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ServerStartError

DATABASE, BODIES, SAFE = "journal.db", "bodies", "safe"

NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.s3fs", "fuse.sshfs", "fuse.vmhgfs-fuse", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "smb3", "smbfs", "vboxsf", "virtiofs",
})  # fmt: skip
"""Locks on them may not hold, what was synced may not be there, and other machines may use them."""

IMAGE_FILE_SYSTEMS = frozenset({"aufs", "fuse.fuse-overlayfs", "overlay"})
"""File systems whose files may come from an image."""

MACHINE_ID, BOOT_ID, MOUNTS = (
    "/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/proc/self/mountinfo",
)  # fmt: skip


class Identity(NamedTuple):
    """The machine and place of a folder, as of its last use."""

    host: str
    boot: str
    """Another one each time the machine is started."""
    device: int
    inode: int
    filesystem: int = 0
    """The id of the file system; 0 if it has none."""
    is_own: bool = False
    """Whether the host's name is that of one machine only."""


def identity_of(folder: Path) -> Identity:
    """The machine and place of a folder now."""
    found = folder.stat()
    host, boot = _text(MACHINE_ID), _text(BOOT_ID)
    is_own = bool(host) and is_own_file(os.path.realpath(MACHINE_ID), _text(MOUNTS))
    return Identity(
        host or platform.node(), boot, found.st_dev, found.st_ino, os.statvfs(folder).f_fsid, is_own
    )


def is_own_file(path: str, mounts: str) -> bool:
    """Whether a file is this machine's, and not part of an image that many machines have, by a
    text as /proc/self/mountinfo has it.  Where nobody knows on what it is, it is not."""
    longest, kind = -1, ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) <= 6 or "-" not in words:
            continue
        mounted = words[4].rstrip("/")
        # By its place, and not by the number of its device: btrfs says another one to stat.
        if (path == mounted or path.startswith(f"{mounted}/")) and len(mounted) >= longest:
            longest, kind = len(mounted), words[words.index("-") + 1]
    return bool(kind) and kind not in IMAGE_FILE_SYSTEMS


def check_identity(folder: Path, was: Identity, now: Identity) -> None:
    """Raises ServerStartError if nothing proves that what had used the folder is dead."""
    if now.host != was.host:
        why = f"was last used on another machine ({was.host or '?'})"
    elif now.boot != was.boot:
        if not (was.boot and now.boot and was.is_own and now.is_own):
            why = (
                "was last used before this machine was started anew, or on another one: there is "
                f"no {MACHINE_ID}, or it is that of an image, and cannot tell which"
            )
        elif not _is_same_disk(was, now) or now.inode != was.inode:
            why = "was copied or moved here from another folder before this machine was started"
        else:
            return  # this machine was started anew, and ended all that had used it
    elif (now.device, now.inode) != (was.device, was.inode):
        why = "was copied or moved here from another folder"
    else:
        return
    raise not_proven(folder, why)


def not_proven(folder: Path, why: str) -> ServerStartError:
    """The error about a folder of which nobody knows what else goes on with it."""
    return ServerStartError(
        f"the journal {folder} {why}: so nothing proves that what it has started has ended, or "
        "that no other server goes on with it, and the same keys could run twice. If you know "
        f"that nothing else uses it: trio-envserve journal adopt {folder}"
    )


def _is_same_disk(was: Identity, now: Identity) -> bool:
    if was.filesystem and now.filesystem:
        return was.filesystem == now.filesystem
    return was.device == now.device


def make_folder(folder: Path) -> None:
    """Make it if it is not there.  Raises ServerStartError if it cannot be had."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.listdir(folder)
    except OSError as error:
        raise ServerStartError(_no_folder(folder, error)) from error
    kind = file_system(folder.stat().st_dev, _text(MOUNTS))
    if kind in NETWORK_FILE_SYSTEMS:
        raise ServerStartError(
            f"the journal {folder} is on a network file system ({kind}), where neither locks nor "
            "what was synced can be relied on; name a folder on a disk of this machine"
        )


def _no_folder(folder: Path, error: OSError) -> str:
    advice = {
        errno.ENOENT: "make the folder above it",
        errno.EEXIST: "it is a file; name a folder",
        errno.ENOTDIR: "something above it is a file; name a folder",
        errno.EACCES: "let this user write there, or name another folder",
        errno.EROFS: "name a folder on a disk that can be written",
    }.get(error.errno or 0, "name another folder")
    return f"no journal can be in {folder}: {error.strerror or error}; {advice}"


def beside(folder: Path) -> list[Path]:
    """The folder beside a journal's, in which its locks and its count of records are once more:
    no copy of the journal brings them back.  It is made if it is missing.  None where this user
    may make none, as above the mount of a volume, or where a link or a folder of somebody else
    is in the way: whoever may write there could have made it."""
    real = folder.resolve()
    path = real.parent / f".{real.name}.journal"
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
    try:
        found = path.lstat()
        owners = {os.geteuid(), real.stat().st_uid}
    except OSError:
        return []
    return [path] if stat.S_ISDIR(found.st_mode) and found.st_uid in owners else []


def file_system(device: int, mounts: str) -> str:
    """The type of a device's file system in a text as /proc/self/mountinfo has it; empty if
    it is not there."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 6 and words[2] == number and "-" in words:
            return words[words.index("-") + 1]
    return ""


def sync_folder(folder: Path) -> None:
    """Make it safe which files are in it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""
