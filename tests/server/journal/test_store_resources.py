"""Resources in the journal's folder: what is not gone is there, for versions that know it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.journal.folders import a_run, journal, opened, read, write
from tests.server.journal.test_store_saves import schema
from trio_envserve.core.errors import ServerStartError
from trio_envserve.core.journal import (
    Closed,
    OfResource,
    Record,
    ResourceCreated,
    ResourceGiven,
    ResourceGone,
    ResourceOpened,
    remains_of,
)
from trio_envserve.server.journal import tools
from trio_envserve.server.journal.folder import Identity, identity_of
from trio_envserve.server.journal.rows import SCHEMA, SCHEMA_WITH_RESOURCES
from trio_envserve.server.journal.tools import check, look, mend

LIFE = b"i" * 16


def intended(resource: int, host: str | None = None) -> ResourceOpened:
    return ResourceOpened(
        resource, f"ab-{resource}", "box", "f|m", b"a" * 16, 7, LIFE, 3, resource, host
    )


HELD: list[Record] = [
    intended(0), ResourceCreated(0, b"handle"), intended(1), ResourceGiven(1, b"j" * 16, 2),
]  # fmt: skip


def of_resources(records: list[Record]) -> list[Record]:
    return [each for each in records if isinstance(each, OfResource)]


def test_resources_that_are_not_gone_are_there_with_their_holders(tmp_path: Path):
    write(
        tmp_path, a_run(0), HELD, [intended(2), ResourceGone(2)], [intended(3)], [ResourceGone(3)]
    )
    found = read(tmp_path)
    assert of_resources(found) == HELD
    left = remains_of(found).resources
    assert [(each.incarnation, each.turn, each.handle) for each in left.values()] == [
        (LIFE, 0, b"handle"), (b"j" * 16, 2, None),
    ]  # fmt: skip
    assert check(tmp_path) == []


def test_numbers_of_generations_do_not_follow_those_of_resources(tmp_path: Path):
    write(tmp_path, [opened(0), *HELD], [Closed(0)])
    assert read(tmp_path)[0] == Closed(0)
    with journal(tmp_path) as (store, _):
        assert store.state.next_number == 1
        store.commit([ResourceGone(0), ResourceGone(1), opened(1)], 2.0)
    assert of_resources(read(tmp_path)) == []
    assert remains_of(read(tmp_path)).next_number == 2


def test_folder_with_resources_is_refused_by_versions_that_know_none(tmp_path: Path):
    write(tmp_path, a_run(0))
    assert schema(tmp_path) == SCHEMA
    write(tmp_path, HELD)
    assert schema(tmp_path) == SCHEMA_WITH_RESOURCES
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_WITH_RESOURCES + 1}")
    with pytest.raises(ServerStartError, match="written by a later version"):
        look(tmp_path)


def test_g13_resource_of_the_first_machine_was_destroyed_on_the_one_that_adopts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was not there, and was taken for destroyed."""
    other = Identity("other", "boot", 1, 2)
    hosts = "", "gpu1", None
    write(tmp_path, [intended(0, ""), intended(1, "gpu1"), intended(2), *a_run(0)])

    def adopted() -> list[str | None]:
        assert tools.adopt(tmp_path)
        assert check(tmp_path) == []
        left = remains_of(look(tmp_path).records()).resources.values()
        return [each.opened.host for each in left]

    assert adopted() == [*hosts], "the machine is the same"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(tools, "identity_of", lambda folder: other)
        first = identity_of(tmp_path).host
        assert adopted() == adopted() == [first, "gpu1", None]
    assert adopted() == [*hosts], "it is back"


def test_damaged_journal_keeps_the_resources_whose_intent_is_there(tmp_path: Path):
    write(tmp_path, [opened(0)], HELD)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection, connection:
        connection.execute("DELETE FROM records WHERE row = 4")  # the intent of the second one
    report = mend(tmp_path)
    assert (report.resources, report.unknown_resources) == (["ab-0"], 1)
    assert of_resources(read(tmp_path)) == HELD[:2]
    assert schema(tmp_path) == SCHEMA_WITH_RESOURCES
    with journal(tmp_path) as (store, _):
        assert store.state.next_number < 1 << 40
