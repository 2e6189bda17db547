"""The ledger: everything broken on purpose has a row in which a check finds it."""

from __future__ import annotations

import pytest

from tests.oracles.ledger import (
    CHECKS,
    REGISTERED,
    Cells,
    Row,
    all_rows,
    compare,
    finders,
    read,
    seeds_that_show,
    tried,
    untried,
)
from trio_envserve.lab.mutants import MUTANTS

ROWS = all_rows()


def test_a_row_has_a_name_of_its_own_for_each_mutant_and_patch():
    names = [row.name for row in ROWS]
    assert len({*names}) == len(names)
    assert {*names} >= {mutant.name for mutant in MUTANTS}
    assert {*read()} == {*names}


def test_every_mutant_and_every_patch_has_a_finder():
    """For one that is new: ``python -m tests.oracles ledger --rows NAME``."""
    ledger = read()
    assert [row.name for row in ROWS if not finders(ledger.get(row.name, {}))] == []


def test_each_mutant_that_is_fuzzed_has_a_seed_that_shows_it():
    mutants = [row for row in ROWS if row.family in REGISTERED]
    shown, fuzzed = seeds_that_show(), [row.name for row in mutants if not untried(row, "fuzz")]
    assert [row.name for row in mutants if row.name in shown] == fuzzed


def test_cells_name_guarantees_that_count_for_their_row():
    ledger = read()
    for row in ROWS:
        for check, by in finders(ledger.get(row.name, {})).items():
            assert check in CHECKS
            if by.startswith("G"):
                assert row.caught_by(by), (row.name, check)


def test_a_row_is_tried_in_a_process_of_its_own(tmp_path):
    cells = tried(Row("reruns-for-ever", "simulator", ("G2",)), ["fuzz"], tmp_path)
    assert cells["fuzz"]["by"] == "G2"
    assert 0 < cells["fuzz"]["tried"] < 100


def cell(by: str, seconds: float = 1.0) -> Cells:
    return {"fuzz": {"by": by, "tried": 1, "seconds": seconds}}


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ({"a": cell("G1")}, {"a": cell("G1", 3.0)}, []),
        (
            {"a": cell("G1")},
            {"a": cell("")},
            ["a: lost its last finder; it was found by fuzz (G1)"],
        ),
        ({"a": cell("G1")}, {}, ["a: is gone; it was found by fuzz (G1)"]),
        ({"a": cell("")}, {}, []),
        ({"a": cell("G1")}, {"a": cell("G2")}, ["a: was found by fuzz (G1), and now by fuzz (G2)"]),
        ({"a": cell("test")}, {"a": cell("G2")}, []),
        ({"a": cell("G1")}, {"a": {"explore": {"by": "G1", "seconds": 1.0}}}, []),
    ],
)
def test_a_loss_is_a_row_without_a_finder_or_with_another_guarantee(old, new, lost):
    assert compare(old, new)[0] == lost


def test_a_comparison_tells_how_long_it_takes_to_find():
    _, remarks = compare({"a": cell("G1", 2.0)}, {"a": cell("G1", 3.0), "b": cell("")})
    assert remarks == [
        "before: 1 rows, 1 found; median 2.00 s by the quickest check",
        "  fuzz: found 1 of 1 tried, median 2.00 s to find",
        "now: 2 rows, 1 found; median 3.00 s by the quickest check",
        "  fuzz: found 1 of 2 tried, median 3.00 s to find",
    ]


def test_checks_that_cannot_see_a_row_say_why():
    patch = next(row for row in ROWS if row.name == "patch: D12-no-wake-up-after-a-send")
    assert untried(patch, "fuzz") == "no core is broken"
    assert untried(patch, "test") == ""
    assert untried(Row("x", "simulator"), "test") == "no test is named for it"
