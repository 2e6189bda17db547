"""Lock files, which prove that earlier servers are dead: two of an address, two of a journal.

Theory of operation
-------------------
The server at an address holds the *server lock*, which keeps a second server out (for ``ipc`` even
if the bind would succeed).  The server with a journal holds one of the journal's folder: it may
serve another address than the server before.

A server **and, through an inherited descriptor, its workers** hold the *epoch lock*.  The kernel
gives that lock to a new server only when every process that held it is gone.  So its holder knows
that all epochs in the file are dead with their workers, and a server starts no worker before it
holds the lock (G1 across restarts).  The file's text is the list of these epochs.

The files of an address lie in a directory of the user's own, those of a journal in or beside its
folder.  They contain only epochs or a process id, and stay there.
Only the files of a port that the system chose are removed when their server closes.  Removing a
file for which another server waits would break the lock; so a server that gets a lock checks that
the path still leads to the locked file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import final

from ..core.errors import ServerStartError
from ..core.terms import ID_BYTES, Epoch
from ..net.forks import forget_in_children

EPOCHS_KEPT = 256
"""Fewest earlier epochs that the file keeps; a client that was away for more is told "may have
run"."""

_ID = re.compile(f"[0-9a-f]{{{2 * ID_BYTES}}}")

_ADVICE = (
    "a server needs it to know that no other one serves the address. Repair it, or set "
    "XDG_RUNTIME_DIR to another directory of your own"
)
_FOLDER_ADVICE = (
    "a server needs it to know that no other one uses the journal. Make the folder writable "
    "for this user, or name another one"
)


def runtime_directory() -> Path:
    """The directory for lock files, which belongs to this user; made if it does not exist."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        if not os.access(base, os.W_OK | os.X_OK):  # batch systems and su pass on another's
            base = tempfile.gettempdir()
        directory = Path(base) / f"trio_envserve-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ServerStartError(
            f"no directory for lock files: {error}; set XDG_RUNTIME_DIR or TMPDIR to one that "
            "this user can write"
        ) from error
    found = directory.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ServerStartError(
            f"{directory} must be a directory of your own with mode 0700; remove it or set "
            "XDG_RUNTIME_DIR"
        )
    return directory


@final
class LockFile:
    """A file whose lock is held as long as any process has the locked descriptor open.

    Raises ServerStartError if it cannot be opened, or written later.
    """

    def __init__(self, path: Path, advice: str = _ADVICE) -> None:
        self.path = path
        self.held = False
        self._advice = advice
        self.fd = self._open()
        """The open descriptor; -1 if it is closed."""
        forget_in_children(self)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ServerStartError:
        return ServerStartError(
            f"the lock file {self.path} cannot be used: {error.strerror}; {self._advice}"
        )

    def acquire_nowait(self) -> bool:
        """Take the lock if it is free."""
        while not self.held:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError as error:  # no memory for it, or a file system without locks
                raise self._unusable(error) from error
            self.held = self._is_at_path()
            if not self.held:  # the last holder has removed the file
                opened = self._open()
                os.close(self.fd)
                self.fd = opened
        return True

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Remove the file if this process has the lock."""
        if self.held:
            self.path.unlink(missing_ok=True)

    def read(self) -> str:
        """The file's text, whoever holds the lock."""
        size = os.fstat(self.fd).st_size
        return os.pread(self.fd, size, 0).decode("ascii", "replace")

    def write(self, text: str) -> None:
        """Replace the text by one that is not longer, or that may be lost; only with the
        lock."""
        assert self.held
        self._put(text.encode("ascii"), 0)

    def append(self, text: str) -> None:
        """Append to the text: everything or nothing.  Only with the lock."""
        assert self.held
        self._put(text.encode("ascii"), os.fstat(self.fd).st_size)

    def _put(self, data: bytes, at: int) -> None:
        size = os.fstat(self.fd).st_size
        try:
            if os.pwrite(self.fd, data, at) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(self.fd, at + len(data))
        except OSError as error:
            os.ftruncate(self.fd, size)  # making it shorter always works
            raise self._unusable(error) from error

    def holder(self) -> tuple[str, str]:
        """The process id in the lock's file, and, if that process does not hold the lock, its
        holders in words."""
        pid = self.read().strip() or "unknown"
        holders = holders_of(self.path)
        return pid, _named(holders) if holders and pid not in map(str, holders) else ""

    def try_epochs(self, epoch: Epoch) -> set[Epoch] | None:
        """Add an epoch to a lock whose file lists epochs; returns the earlier ones, which are
        proven dead with their workers.  None while a process of theirs is alive."""
        if not self.acquire_nowait():
            return None
        earlier = self.ids(EPOCHS_KEPT)
        self.append_id(epoch)
        return set(earlier)

    def ids(self, most: int) -> list[bytes]:
        """The ids in a file that has one a line; damaged lines prove nothing.  Of twice as many as
        ``most`` the last ``most`` are kept.  Only with the lock."""
        lines = [line for line in self.read().split() if _ID.fullmatch(line)]
        if len(lines) >= 2 * most:
            lines = lines[-most:]
            self.write("".join(f"{line}\n" for line in lines))
        # Otherwise nothing is written again: a full disk would lose it.
        return [bytes.fromhex(line) for line in lines]

    def append_id(self, id: bytes) -> None:
        """Append an id, on a line of its own also behind one that was cut.  Only with the lock."""
        text = self.read()
        is_cut = bool(text) and not text.endswith("\n")
        self.append("\n" * is_cut + f"{id.hex()}\n")

    def find_holders(self) -> str:
        """The other processes that hold it, or how to find them."""
        if holders := holders_of(self.path):
            return f"{self.path} is held by {_named(holders)}"
        return f"find them with: fuser {self.path}"

    def close(self) -> None:
        """Close this descriptor; those that workers inherited still hold the lock."""
        if self.fd != -1:
            os.close(self.fd)
            self.fd, self.held = -1, False

    forget = close


@final
class ServerLocks:
    """The server lock and the epoch lock of an address or of a journal.  Synchronous; the shell
    does the waiting.  Made by :meth:`of_address` or :meth:`of_folder`."""

    def __init__(
        self, server: Path, epochs: Path, *, serves: str, where: str, instead: str,
        advice: str = _ADVICE, passing: bool = False,
    ) -> None:  # fmt: skip
        self.passing = passing
        """Whether nobody will use the address again, so that the files are removed."""
        self._serves = serves
        self._where = where
        self._instead = instead
        self.server = LockFile(server, advice)
        try:
            self.epochs = LockFile(epochs, advice)
        except BaseException:
            self.server.close()
            raise

    @classmethod
    def of_address(
        cls, address: str, directory: Path | None = None, *, passing: bool = False
    ) -> ServerLocks:
        """The locks of an address, in the directory for lock files if no other is given."""
        directory = directory or runtime_directory()
        name = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
        return cls(
            directory / f"{name}.server", directory / f"{name}.epochs",
            serves=f"serves {address}", where=f"at {address}", instead="bind another address",
            passing=passing,
        )  # fmt: skip

    @classmethod
    def of_folder(cls, folder: Path, journal: Path | None = None) -> ServerLocks:
        """The locks in a folder, of the journal there or, beside it, of another one."""
        journal = journal or folder
        return cls(
            folder / "server.lock", folder / "epochs.lock", serves=f"uses the journal {journal}",
            where=f"with the journal {journal}", instead="name another folder",
            advice=_FOLDER_ADVICE,
        )  # fmt: skip

    def take_server(self) -> None:
        """Become the one server of these locks.  Raises ServerStartError, which names the other
        server."""
        if not self.server.acquire_nowait():
            raise ServerStartError(self._who_serves())
        self.server.write(f"{os.getpid()}\n")

    def _who_serves(self) -> str:
        pid, others = self.server.holder()
        if others:
            return (
                f"the server {self._where} (pid {pid}) has ended, but {others}, forked by its "
                f"program, still holds its lock; end it, or {self._instead}"
            )
        return (
            f"another server (pid {pid}) {self._serves} on this machine; "
            f"stop it, or {self._instead}"
        )

    def try_epochs(self, epoch: Epoch) -> set[Epoch] | None:
        """All earlier epochs, which are proven dead; None while one of them is alive."""
        return self.epochs.try_epochs(epoch)

    def wait_text(self, waited_s: float) -> str:
        """The status of a server that waits for the lock."""
        return (
            f"waiting for the workers of an earlier server {self._where} to end ({waited_s:.0f} s)"
        )

    def find_workers(self) -> str:
        """The processes that hold the epoch lock, or how to find them."""
        return self.epochs.find_holders()

    def close(self) -> None:
        """Release this process's part of the locks."""
        for lock in (self.server, self.epochs):
            if self.passing:
                lock.remove()
            lock.close()


def holders_of(path: Path) -> list[int]:
    """The other processes that have a file open, as far as the system tells (on Linux,
    processes of this user)."""
    found, wanted = [], os.path.realpath(path)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if int(process.name) != os.getpid() and any(
                _target_of(entry) == wanted for entry in (process / "fd").iterdir()
            ):
                found.append(int(process.name))
    return sorted(found)


def _target_of(entry: Path) -> str:
    """The target of a descriptor; nothing if it was closed meanwhile."""
    try:
        return os.readlink(entry)
    except OSError:
        return ""


def _named(pids: list[int]) -> str:
    return f"process {' and '.join(map(str, pids))}"
