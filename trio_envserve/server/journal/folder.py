"""Whether a folder may be used as a journal, and whose it is.

A journal proves something only where its locks prove something: on one machine, since that
was last started, in the folder that they were taken in.  What was copied, or comes from
elsewhere, a person may adopt who knows that nobody else uses it.
"""

from __future__ import annotations

import errno
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ServerStartError

DATABASE, BODIES, SAFE = "journal.db", "bodies", "safe"

NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.s3fs", "fuse.sshfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3",
    "smbfs",
})  # fmt: skip
"""Locks on them may not hold, and what was synced may not be there."""


class Identity(NamedTuple):
    """Where a folder was last used."""

    host: str
    boot: str
    """Another one each time the machine is started."""
    device: int
    inode: int


def identity_of(folder: Path) -> Identity:
    """Where a folder is now."""
    found = folder.stat()
    host = _text("/etc/machine-id") or platform.node()
    boot = _text("/proc/sys/kernel/random/boot_id")
    return Identity(host, boot, found.st_dev, found.st_ino)


def check_identity(folder: Path, was: Identity, now: Identity) -> None:
    """Raises ServerStartError if the folder was used elsewhere."""
    if now.host != was.host:
        why = f"was last used on another machine ({was.host or '?'})"
    elif now.boot != was.boot:
        why = "was last used before this machine was started anew, or on another one"
    elif now != was:
        why = "was copied or moved here from another folder"
    else:
        return
    raise ServerStartError(
        f"the journal {folder} {why}: so nothing proves that what it has started has ended, or "
        "that no other server goes on with it, and the same keys could run twice. If you know "
        f"that nothing else uses it: trio-envserve journal {folder} adopt"
    )


def make_folder(folder: Path) -> None:
    """Make it if it is not there.  Raises ServerStartError if it cannot be had."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.listdir(folder)
    except OSError as error:
        raise ServerStartError(_no_folder(folder, error)) from error
    kind = file_system(folder.stat().st_dev, _text("/proc/self/mountinfo"))
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
