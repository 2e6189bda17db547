"""What the tests of journals share: records, and folders that are opened and closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trio_envserve.core.journal import Completed, Opened, Record, Started
from trio_envserve.core.terms import Body
from trio_envserve.server.journal.opening import open_folder, unlock
from trio_envserve.server.journal.reading import JournalContents
from trio_envserve.server.journal.rows import FILE_BYTES
from trio_envserve.server.journal.store import Store

LARGE = bytes(range(256)) * (FILE_BYTES // 256) + b"more"
COMMAND_S = 600.0


def opened(number: int, body: bytes = b"input", *, allowance: int = 4) -> Opened:
    key = f"key-{number}".encode()
    return Opened(number, b"default", key, b"d" * 32, None, allowance, 0, b"c" * 16, body)


def completed(number: int, payload: Body = b"outcome") -> Completed:
    return Completed(number, (b"header", payload))


def a_run(number: int) -> list[Record]:
    return [opened(number), Started(number), completed(number)]


@contextmanager
def journal(folder: Path) -> Iterator[tuple[Store, JournalContents]]:
    """The folder, opened as a server does."""
    store, found, locks = open_folder(folder, COMMAND_S)
    try:
        yield store, found
    finally:
        store.close()
        unlock(locks)


def write(folder: Path, *groups: Sequence[Record]) -> None:
    """Commit these, each record with a row of its own."""
    with journal(folder) as (store, _):
        for group in groups:
            commit_singly(store, group)


def commit_singly(store: Store, records: Sequence[Record]) -> None:
    """Commit each with a row of its own: none is in a group with others."""
    for record in records:
        store.commit([record], 1.0)


def read(folder: Path) -> list[Record]:
    """What a server would be given."""
    with journal(folder) as (_, found):
        return list(found.records())
