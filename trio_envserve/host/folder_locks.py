"""Two locks of a journal's folder, and the proof that they give.

They are those of an address (:mod:`.locks`), in the folder itself or beside it: a server with
the same journal may serve another address, and it must know that all processes that ran what
the journal says have ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

from ..core.errors import ServerStartError
from ..core.terms import Epoch
from .locks import LockFile

_ADVICE = (
    "a server needs it to know that no other one uses the journal. Make the folder writable "
    "for this user, or name another one"
)


@final
class FolderLocks:
    """The lock of a folder's user, and those of the workers of all earlier users."""

    def __init__(self, folder: Path, journal: Path | None = None) -> None:
        self.journal = journal or folder
        """Folder of the journal, for people: the locks may be beside it."""
        self.server = LockFile(folder / "server.lock", _ADVICE)
        try:
            self.epochs = LockFile(folder / "epochs.lock", _ADVICE)
        except BaseException:
            self.server.close()
            raise

    def take_server(self) -> None:
        """Become the one that uses the folder.  Raises ServerStartError, which names the
        other one."""
        if not self.server.acquire_nowait():
            pid, others = self.server.holder()
            if others:
                raise ServerStartError(
                    f"the process {pid} that used the journal {self.journal} has ended, but "
                    f"{others}, forked by it, still holds its lock; end it"
                )
            raise ServerStartError(
                f"the journal {self.journal} is in use by process {pid}; stop that, or name "
                "another folder"
            )
        self.server.write(f"{os.getpid()}\n")

    def try_epochs(self, epoch: Epoch) -> set[Epoch] | None:
        """The epochs that have used the folder, which are proven dead; None while one of
        them, or a worker of one, is alive."""
        return self.epochs.try_epochs(epoch)

    def wait_text(self, waited_s: float) -> str:
        """The status of a server that waits for the lock."""
        return (
            f"waiting for the workers of an earlier server with the journal {self.journal} to "
            f"end ({waited_s:.0f} s)"
        )

    def find_workers(self) -> str:
        """The processes that hold the epoch lock, or how to find them."""
        return self.epochs.find_holders()

    def close(self) -> None:
        """Release this process's part of the locks."""
        self.server.close()
        self.epochs.close()
