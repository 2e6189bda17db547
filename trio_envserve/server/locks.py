"""Two locks for each bind address, and the proof they give.

Theory of operation
-------------------
The *server lock* is held by the one server at an address; it keeps a second
one out (for ``ipc`` even where the bind would succeed).

The *epoch lock* is held by a server **and, through an inherited descriptor, by
its workers**.  The kernel gives it to a new server only when every process
that had it is gone.  Whoever has it therefore knows that all epochs written in
the file are dead, workers included, and starts no worker before (G1 across
restarts).  The file's text is the list of those epochs.

The files stay, in a directory of the user's own, and hold nothing but epochs
and a process id; only those of a port that the system chose are removed when
their server closes.  Removing a file that others may be waiting for would break
the lock, so whoever gets one looks whether its path still leads to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..core.errors import ServerStartError
from ..core.terms import ID_BYTES, Epoch

EPOCHS_KEPT = 256
"""How many earlier epochs the file remembers; a client that was away longer
is told "may have run"."""


def runtime_directory() -> Path:
    """A directory of this user's own, made if it is not there."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.access(base, os.W_OK | os.X_OK):  # batch systems and su pass on another's
        base = tempfile.gettempdir()
    directory = Path(base) / f"trio_envserve-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ServerStartError(f"no directory for lock files: {error}") from error
    found = directory.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ServerStartError(
            f"{directory} must be a directory of your own with mode 0700; remove it or set "
            "XDG_RUNTIME_DIR"
        )
    return directory


class LockFile:
    """A file that is locked while a descriptor of it is open somewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = self._open()
        self.held = False

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire_nowait(self) -> bool:
        """Take the lock if nobody has it."""
        while not self.held:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self.held = self._is_at_path()
            if not self.held:  # its last holder has removed it
                os.close(self.fd)
                self.fd = self._open()
        return True

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Remove the file, if the lock is ours."""
        if self.held:
            self.path.unlink(missing_ok=True)

    def read(self) -> str:
        """The file's text, whoever holds the lock."""
        size = os.fstat(self.fd).st_size
        return os.pread(self.fd, size, 0).decode("ascii", "replace")

    def write(self, text: str) -> None:
        """Replace the text; only with the lock."""
        assert self.held
        data = text.encode("ascii")
        os.pwrite(self.fd, data, 0)
        os.ftruncate(self.fd, len(data))

    def close(self) -> None:
        """Give up this descriptor; those that workers inherited go on holding it."""
        os.close(self.fd)


class AddressLocks:
    """The two locks of one address.  Synchronous; the shell does the waiting."""

    def __init__(
        self, address: str, directory: Path | None = None, *, passing: bool = False
    ) -> None:
        self.passing = passing
        """Whether nobody will come back to the address: the files are removed."""
        directory = directory or runtime_directory()
        name = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
        self.address = address
        self.server = LockFile(directory / f"{name}.server")
        self.epochs = LockFile(directory / f"{name}.epochs")

    def take_server(self) -> None:
        """Be the one server at this address, or ServerStartError with who is."""
        if not self.server.acquire_nowait():
            who = self.server.read().strip() or "unknown"
            raise ServerStartError(
                f"another server (pid {who}) serves {self.address} on this machine; "
                f"stop it, or bind another address"
            )
        self.server.write(f"{os.getpid()}\n")

    def try_epochs(self, epoch: Epoch) -> set[Epoch] | None:
        """All earlier epochs, proven dead; or None while one of them lives."""
        if not self.epochs.acquire_nowait():
            return None
        lines = [line for line in self.epochs.read().split() if len(line) == 2 * ID_BYTES]
        kept = [*lines, epoch.hex()][-EPOCHS_KEPT:]
        self.epochs.write("\n".join(kept) + "\n")
        return {bytes.fromhex(line) for line in lines}

    def close(self) -> None:
        """Give the locks up, as far as they are this process's."""
        for lock in (self.server, self.epochs):
            if self.passing:
                lock.remove()
            lock.close()


def wait_text(address: str) -> Callable[[float], str]:
    """What a waiting server says of itself."""
    return lambda waited_s: (
        f"waiting for the workers of an earlier server at {address} to end ({waited_s:.0f} s)"
    )
