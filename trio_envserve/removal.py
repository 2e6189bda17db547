"""The removal of folders in which code has worked that may have wished to keep them.

Theory of operation
-------------------
Removing goes one directory after the other, without recursion.  A subdirectory is moved up into the
*base folder*, which is trusted, before it is emptied: however deep a tree is, no path is long, and
a mount point, which cannot be moved, is never entered.  Links are removed, not followed.  Rights
that an owner has taken away are given back.  What cannot be removed stays in the base folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Remove a trusted folder with all that is in it.  Raises OSError if something stays."""
    with opened(path) as folder:
        if folder is not None:
            for name in os.listdir(folder):
                remove_entry(folder, name)
    os.rmdir(path)


def remove_entry(base: int, name: str) -> list[str]:
    """Remove a folder in an open base folder, or whatever has its name, as far as possible.
    Returns the names of the directories that stay there."""
    left: list[str] = []
    staying: list[str] = []
    _take(base, name, base, left)
    while left:
        each = left.pop()
        with opened(each, base) as folder:
            # What comes while a directory is read may be missed.
            while folder is not None and _empty(folder, base, left):
                pass
        try:
            os.rmdir(each, dir_fd=base)
        except OSError:  # something in it cannot be removed, or no descriptor was left to read it
            staying.append(each)
    return staying


def _empty(folder: int, base: int, left: list[str]) -> bool:
    """Remove all that an open directory has; subdirectories are moved into the base folder, and
    added to ``left``.  Whether anything was removed."""
    found = False
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found |= _take(folder, entry.name, base, left)
    return found


def _take(folder: int, name: str, base: int, left: list[str]) -> bool:
    """Remove what is no directory, or move a directory into the base folder."""
    try:
        os.unlink(name, dir_fd=folder)
        return True
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):  # EPERM: as POSIX has it
            return False
    moved = f"gone-{os.urandom(8).hex()}"
    with contextlib.suppress(OSError):
        try:
            os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=base)
        except PermissionError:  # its owner moves it only if it may write there
            if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                os.chmod(name, stat.S_IRWXU, dir_fd=folder)
            os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=base)
        left.append(moved)
        return True
    return False


@contextlib.contextmanager
def opened(name: str | os.PathLike[str], base: int | None = None) -> Iterator[int | None]:
    """A directory, open, which its owner may read and change from now on; None if it is none."""
    number = None
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(name, dir_fd=base).st_mode):
            os.chmod(name, stat.S_IRWXU, dir_fd=base)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            number = os.open(name, flags, dir_fd=base)
    try:
        yield number
    finally:
        if number is not None:
            os.close(number)
