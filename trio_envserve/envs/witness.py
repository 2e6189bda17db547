"""Whether the process that ran something last is dead: proof, not suspicion.

Theory of operation
-------------------
Who runs a rollout a second time must know that the first run has ended, and
the one sure sign is the kernel's: a ``flock`` goes when the last process that
holds it goes, and never before.  Each process holds a lock on a file of its
own for as long as it lives, and each key has a file with the name of the
process that began it last.  :meth:`Witness.begin` reads that name, tries that
process's lock, and writes its own name, all under the lock of the key's file.

So "dead" is never a guess and never early, and "alive" is never left out: two
processes that begin one key at once do so one after the other, and the second
finds the first's lock held.  (A fork that does not exec shares the lock with
its parent and keeps it.)

The waiting for a key's file is for a read and a write of some bytes by another
process: microseconds, so this is called on an event loop without a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from pathlib import Path
from typing import Literal, TypeAlias, final

Predecessor: TypeAlias = Literal["none", "dead", "alive"]
"""Who began a key before: nobody, a process that is proven dead, or one that
lives (possibly this very one)."""

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@final
class Witness:
    """The records of one directory, as one process sees them.

    Makes the directory if it is not there.  Raises ``OSError``.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = f"{os.getpid()}-{secrets.token_hex(4)}"
        """The name of this process: pids are given away again, this is not."""
        self._life = os.open(_life_path(self.directory, self.process), _FLAGS, 0o644)
        # Nobody knows the name yet, so nobody can hold the lock.
        fcntl.flock(self._life, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def begin(self, key: str) -> Predecessor:
        """This process begins ``key`` now; says what has become of the process
        that began it before."""
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        descriptor = os.open(self.directory / f"key-{name}", _FLAGS, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = os.read(descriptor, 256).decode()
            found: Predecessor = "none"
            if before:
                found = "dead" if is_dead(self.directory, before) else "alive"
            os.pwrite(descriptor, self.process.encode(), 0)
            os.ftruncate(descriptor, len(self.process))
            return found
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Give up this process's lock: from now on it counts as dead.  A worker
        never calls this; it dies."""
        os.close(self._life)


def is_dead(directory: str | os.PathLike[str], process: str) -> bool:
    """Whether the process of that name has ended.  Raises ``FileNotFoundError``
    for a name that no process of this directory ever had."""
    descriptor = os.open(_life_path(Path(directory), process), os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Shared, so that two who ask at once do not take each other for the process.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _life_path(directory: Path, process: str) -> Path:
    return directory / f"process-{process}"
