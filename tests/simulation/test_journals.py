"""Runs with a journal: the disk crashes as it may, and nothing that was told is lost."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from trio_envserve.core.journal import (
    Record,
    Started,
)
from trio_envserve.core.work import WorkInput, Works, WorkState
from trio_envserve.lab.model import Boundary
from trio_envserve.lab.simulation import __main__ as every_write
from trio_envserve.lab.simulation import actors
from trio_envserve.lab.simulation.actors import SimulatedDisk, World
from trio_envserve.lab.simulation.plan import (
    PLAIN_SYNC_S,
    FaultKind,
    brings,
    have_keys,
    is_harsh,
    kinds_of,
    plan_of,
)
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.lab.simulation.target import crashes, keyed_seeds

SEEDS = [seed for seed in range(240) if brings("journal", seed)]


def test_no_seed_with_a_journal_violates_a_guarantee():
    runs = [run(seed, harsh=is_harsh(seed)) for seed in SEEDS]
    bad = [each for each in runs if each.violations]
    assert not bad, "\n".join(f"seed {each.seed}: {each.violations[0]}" for each in bad)
    faults = Counter[str]()
    for each in runs:
        faults.update(each.faults)
    rare = {FaultKind.JOURNAL, FaultKind.DAMAGED_READ}
    assert min(faults[fault.value] for fault in kinds_of("journal") - rare) > 3
    assert min(each.writes for each in runs) > 3


def test_g11_a_crash_at_a_write_loses_nothing_that_was_told():
    """In short: ``python -m trio_envserve.lab.simulation 200`` is run at night."""
    runs = [each for seed in keyed_seeds(6) for each in crashes(seed, most=4)]
    assert len(runs) > 20
    bad = [each for each in runs if each.violations]
    assert not bad, [(each.seed, each.plan.crash_at_write, each.violations[0]) for each in bad]


def test_what_every_write_finds_is_said(capsys: pytest.CaptureFixture[str]):
    assert every_write.main(1) == 0
    assert "1 seeds" in capsys.readouterr().out


def test_who_asks_for_an_outcome_that_cannot_be_read_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(actors, "DAMAGED", 1.0)
    found = run(362, harsh=True)
    assert found.violations == ()
    assert found.faults[FaultKind.DAMAGED_READ.value] > 1
    assert found.told["error not-durable"] > 1


def test_g4_what_cannot_be_read_and_runs_again_for_that_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
):
    send_away = Works.TABLE[WorkInput.UNREAD][WorkState.ARCHIVED]

    def drop(works: Any, work: Any, why: str) -> None:
        send_away(works, work, why)
        works._close(work)

    monkeypatch.setattr(actors, "DAMAGED", 1.0)
    monkeypatch.setitem(Works.TABLE[WorkInput.UNREAD], WorkState.ARCHIVED, drop)
    assert [each.guarantee for each in run(219, harsh=True).violations] == ["G4"]


def test_g11_who_is_told_that_what_was_read_cannot_be_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(actors, "DAMAGED", 1.0)
    monkeypatch.setattr(Boundary, "_damaged", lambda judge, at_s, number: None)
    assert run(362, harsh=True).violations[0].guarantee == "G11"


def test_a_journal_leaves_seeds_without_one_as_they_were():
    for seed in range(60):
        plan = plan_of(seed)
        assert plan.has(FaultKind.JOURNAL) == brings("journal", seed)
        assert have_keys(seed) or not brings("journal", seed)
        assert not (plan.faults & kinds_of("journal") and not brings("journal", seed))
        without = plan.without(FaultKind.JOURNAL)
        assert not without.faults & kinds_of("journal")
        assert (without.sync_s, without.crash_at_write) == (PLAIN_SYNC_S, None)
        assert not plan.without(FaultKind.KEYS).has(FaultKind.JOURNAL)


# -- the disk -------------------------------------------------------------------------


def group(first: int, rows: int) -> tuple[Record, ...]:
    return tuple(Started(first + row) for row in range(rows))


def test_a_crash_leaves_whole_groups_and_no_gap():
    left = Counter[int]()
    for seed in range(300):
        disk = SimulatedDisk(Random(seed))
        groups = [group(0, 1), group(1, 3), group(4, 2), group(6, 1)]
        for each in groups:
            disk.write(each)
        safe = disk.sync(1)
        kept = disk.crash()
        assert disk.records == [*safe, *kept] == [Started(n) for n in range(1 + len(kept))]
        assert len(kept) in (0, 3, 5, 6)
        assert (len(disk.written), disk.writes) == (0, 4)
        left[len(kept)] += 1
    assert min(left[n] for n in (0, 3, 5, 6)) > 4


# -- the judge ------------------------------------------------------------------------


def test_g11_a_disk_that_loses_what_was_safe_is_found_out(monkeypatch: pytest.MonkeyPatch):
    """So a judge that trusts the disk sees that the disk cannot be trusted."""
    crash = SimulatedDisk.crash

    def forgetful(disk: SimulatedDisk) -> list[Record]:
        kept = crash(disk)
        del disk.records[len(disk.records) // 2 :]
        return kept

    monkeypatch.setattr(SimulatedDisk, "crash", forgetful)
    found = (violation.guarantee for seed in SEEDS for violation in world_of(seed).violations)
    assert not {"G2", "G3", "G4", "G7", "G11"}.isdisjoint(found)  # which ends at the first


def world_of(seed: int) -> World:
    world = World(seed, harsh=is_harsh(seed))
    world.run()
    return world
