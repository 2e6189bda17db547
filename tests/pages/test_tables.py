"""The tables of records in a server's statistics."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from trio_envserve.core.status import ServerStats
from trio_envserve.pages.tables import DEATHS, RECORDS, RecordsTable

OF_WORKERS = {"loop_lag_p99_s"}
"""What workers say of themselves, as they like."""


@pytest.mark.parametrize("kind", [*RECORDS, DEATHS], ids=lambda kind: kind.field)
def test_column_that_its_records_do_not_have_was_empty_without_a_word(kind: RecordsTable):
    (record,) = typing.get_args(typing.get_type_hints(ServerStats)[kind.field])[:1]
    known = {field.name for field in dataclasses.fields(record)}
    assert {*kind.columns} - OF_WORKERS <= known
    assert {*kind.left} <= {*kind.columns}
