"""Keeps of a damaged journal what can be proven, and puts the rest aside.

Theory of operation
-------------------
An outcome whose record is whole is kept, and so is work that waits.  Of work whose outcome,
saved state or input is lost, and, where nobody knows which records are missing, of all work
without an outcome, nothing is known but that it may have run: it is kept with all of its allowance
used, so it is never run again.  A key of which no record is left cannot be kept, and that is
told: an ask under it runs.  Numbers of generations go on far behind the last that is known.
A resource is kept unless the record of its intent is lost.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ...core.journal import (
    Closed,
    Commanded,
    Completed,
    OfResource,
    Opened,
    Record,
    ResourceOpened,
    StateSaved,
)
from .folder import BODIES, DATABASE, SAFE, Identity, sync_folder
from .reading import JournalContents, JournalEntry, name_of, read_all
from .rows import RESOURCES_FROM, State, pack_rows, schema_of
from .store import connect, create, read_safe

NUMBERS_SKIPPED = 1_000_000
"""More generations than can have been lost with their records."""

_PARTS = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", BODIES)
"""The files that are put aside.  ``safe`` stays: it says to the end that something is missing."""


@dataclasses.dataclass(slots=True)
class Repaired:
    """The result of a repair."""

    kept: int = 0
    """Generations whose records are all there."""
    may_have_run: list[str] = dataclasses.field(default_factory=list)
    """Keys that are kept, and of which it is told that they may have run."""
    unknown: int = 0
    """Generations of which something is left, but not the key."""
    resources: list[str] = dataclasses.field(default_factory=list)
    """Names of resources that are kept: each is destroyed, perhaps once more."""
    unknown_resources: int = 0
    """Resources of which something is left, but not the name."""
    may_miss_keys: bool = False
    """Whether there may have been keys, and resources, of which nothing is left."""
    aside: str = ""
    """Folder of the files that were there before."""


def repair(folder: Path, identity: Identity) -> Repaired:
    """Make the folder a journal of what is left; who calls it has its lock.  It is as much
    of elsewhere as it was; ``identity``: where it is, if nobody knows where it was."""
    found = _found(folder)
    report = Repaired(may_miss_keys=not found.is_known)
    records = list(_kept(found, report))
    count, next_number, _ = read_safe(folder) or (0, 0, "")
    for entry in found.entries:
        number = entry.row.number or 0
        next_number = max(next_number, number + 1 if number < RESOURCES_FROM else 0)
    state = found.state or State(0, 0, 0, 0.0, 0, identity)
    count = max(count, state.records, len(records))
    next_number = max(next_number, state.next_number)
    if report.may_miss_keys:
        next_number += NUMBERS_SKIPPED
    packed = pack_rows(records, 0, state.uptime_s)
    aside = _put_aside(folder)
    report.aside = str(aside)
    create(
        folder,
        State(count, packed.sums, next_number, state.uptime_s, state.adopted, state.identity),
        packed,
        schema_of(records),
    )
    return report


def _found(folder: Path) -> JournalContents:
    try:
        connection = connect(folder, mode="ro")
    except sqlite3.Error:
        return JournalContents(is_known=False)
    try:
        return read_all(folder, connection)
    except (sqlite3.Error, TypeError):
        return JournalContents(is_known=False)
    finally:
        connection.close()


def _kept(found: JournalContents, report: Repaired) -> Iterator[Record]:
    of_generation: dict[int, list[JournalEntry]] = {}
    of_resource: dict[int, list[OfResource]] = {}
    for entry in found.entries:
        if isinstance(entry.record, OfResource):
            of_resource.setdefault(entry.record.resource, []).append(entry.record)
        elif entry.row.number is not None:
            of_generation.setdefault(entry.row.number, []).append(entry)
    for entries in of_generation.values():
        opened = next((e.record for e in entries if isinstance(e.record, Opened)), None)
        if opened is None:
            report.unknown += 1
            continue
        yield from _of_generation(opened, entries, report, is_known=found.is_known)
    yield from (e.record for e in found.entries if isinstance(e.record, Commanded))
    for records in of_resource.values():
        if isinstance(records[0], ResourceOpened):  # it may be gone: to destroy it again is allowed
            report.resources.append(records[0].name)
            yield from records
        else:
            report.unknown_resources += 1


def _of_generation(
    opened: Opened, entries: Iterable[JournalEntry], report: Repaired, *, is_known: bool
) -> Iterator[Record]:
    lost = [e for e in entries if e.body_is_lost and isinstance(e.record, Completed)]
    records = [entry.record for entry in entries if entry not in lost]
    whole = not any(entry.body_is_lost for entry in entries)
    if any(isinstance(record, Completed) for record in records) or (whole and is_known):
        report.kept += 1
        yield from records
        return
    report.may_have_run.append(name_of(opened))
    used = opened._replace(allowance=0, earlier=opened.earlier + opened.allowance)
    yield used
    yield from (
        record for record in records if not isinstance(record, Opened | Closed | StateSaved)
    )


def _put_aside(folder: Path) -> Path:
    number = 1
    while (folder / f"damaged-{number}").exists():
        number += 1
    aside = folder / f"damaged-{number}"
    aside.mkdir(mode=0o700)
    (folder / SAFE).touch(mode=0o600)
    for part in _PARTS:
        with suppress(FileNotFoundError):
            (folder / part).rename(aside / part)
    sync_folder(folder)
    return aside
