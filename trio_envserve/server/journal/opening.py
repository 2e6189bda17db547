"""Opening a folder, in words where that cannot be.  Synchronous: a thread calls it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ServerStartError
from ...host.locks import ServerLocks
from .folder import (
    BODIES,
    DATABASE,
    Identity,
    beside,
    check_identity,
    identity_of,
    make_folder,
    not_proven,
)
from .reading import (
    JournalContents,
    check_kind,
    is_new,
    read_all,
    read_start,
    read_state,
    told,
)
from .rows import State
from .store import Store, connect, create, read_safe


class OpenFolder(NamedTuple):
    """A folder that this process has to itself."""

    store: Store
    found: JournalContents
    locks: tuple[ServerLocks, ...]


def open_folder(
    folder: Path, command_s: float, now: Identity | None = None, *, at_rest: bool = False
) -> OpenFolder:
    """Have a folder, and all that it has; or, if what has an outcome may rest, the rest of
    it.  ``now``: where it is, if that is known better than this machine says.  Raises
    ServerStartError."""
    make_folder(folder)
    locks = lock(folder)
    try:
        store, found = _open_locked(folder, command_s, now or identity_of(folder), at_rest)
    except BaseException:
        unlock(locks)
        raise
    return OpenFolder(store, found, locks)


def lock(folder: Path) -> tuple[ServerLocks, ...]:
    """Be the one that uses it: those in it prove it for whoever finds the folder by another
    path, those beside it for whoever finds another folder by this path.  Raises
    ServerStartError."""
    taken: list[ServerLocks] = []
    try:
        for path in (folder, *beside(folder)):
            taken.append(ServerLocks.of_folder(path, folder))
            taken[-1].take_server()
    except BaseException:
        unlock(taken)
        raise
    return tuple(taken)


def unlock(locks: Iterable[ServerLocks]) -> None:
    """Release this process's part of the locks."""
    for each in locks:
        each.close()


def _open_locked(
    folder: Path, command_s: float, now: Identity, at_rest: bool
) -> tuple[Store, JournalContents]:
    with words(folder):
        if is_new(folder):
            state = State(0, 0, 0, 0.0, 0, now)
            for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
                (folder / name).unlink(missing_ok=True)
            create(folder, state)
            store = Store(folder, connect(folder, mode="rw"), state, command_s)
            store.note()  # over that of another journal, which is gone
            return store, JournalContents(state)
        # Read-only until all is right: the last that closes a database which it may write
        # puts what it can read of the log into it, and removes the log, damaged or not.
        with closing(connect(folder, mode="ro")) as connection:
            check_kind(folder, connection)
            _check_identity(folder, connection, now)
            found = read_start(folder, connection) if at_rest else None
            found = found or read_all(folder, connection)
            if found.problems or found.state is None:
                raise ServerStartError(damaged(folder, found.problems))
            _check_beside(folder, found.state)
            connection = connect(folder, mode="rw")
    _remove_unnamed(folder, found.files)
    # From the first commit on its marks are those of now.  If none comes, the old ones prove
    # as much once more: that asks for no room on a disk that may be full.
    state = found.state._replace(identity=now)
    store = Store(folder, connection, state, command_s)
    store.note()  # beside the folder, too, if it was moved here
    return store, found


def _check_beside(folder: Path, state: State) -> None:
    """Raises ServerStartError if there were more records, or another journal, at this path."""
    here = read_safe(folder)
    for noted in filter(None, map(read_safe, beside(folder))):
        missing = noted.records - state.records
        if here is not None and noted.journal != here.journal:
            raise not_proven(folder, "is not the one that was last used here, but was put back")
        if missing > 0:
            was = f"the last {missing} of {noted.records} records are not in it"
            raise not_proven(folder, f"is an older copy of the one that was last used here ({was})")


def _check_identity(folder: Path, connection: sqlite3.Connection, now: Identity) -> None:
    try:
        state = read_state(connection)
    except (sqlite3.Error, ValueError):
        return  # it is damaged, which is told with all else
    check_identity(folder, state.identity, now)


def damaged(folder: Path, problems: list[str]) -> str:
    """The message about a journal that is not whole."""
    return (
        f"the journal {folder} is damaged: {told(problems)}. Put back what is missing, if you "
        f"can; or keep what can be proven, and be told what cannot: trio-envserve journal check "
        f"{folder} --repair"
    )


@contextmanager
def words(folder: Path) -> Iterator[None]:
    """Put errors of a disk or a database in words.  Raises ServerStartError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "") or ""
        if code.startswith(("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")):
            if code == "SQLITE_CANTOPEN" and not (folder / DATABASE).exists():
                raise ServerStartError(damaged(folder, [f"{DATABASE} is missing"])) from error
            raise ServerStartError(
                f"the journal {folder} cannot be used: {error}; make room, or let this user write "
                "there, or name another folder"
            ) from error
        raise ServerStartError(damaged(folder, [f"{DATABASE}: {error}"])) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "make room" if full else "let this user write there"
        raise ServerStartError(
            f"the journal {folder} cannot be used: {error.strerror or error}; {advice}, or name "
            "another folder"
        ) from error


def _remove_unnamed(folder: Path, named: set[str]) -> None:
    """Remove bodies whose rows were never safe, or are gone."""
    bodies = folder / BODIES
    with suppress(OSError):
        for name in set(os.listdir(bodies)) - named:
            with suppress(OSError):
                (bodies / name).unlink()
