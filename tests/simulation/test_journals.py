"""Runs with a journal: the disk crashes as it may, and nothing that was told is lost."""

from __future__ import annotations

import dataclasses
from collections import Counter
from random import Random
from typing import Any

import pytest

from trio_envserve.core.journal import (
    Record,
    Started,
)
from trio_envserve.core.key_records import KeyAct
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.work import WorkInput, Works, WorkState
from trio_envserve.lab.model import Boundary
from trio_envserve.lab.simulation import __main__ as every_write
from trio_envserve.lab.simulation import actors
from trio_envserve.lab.simulation.actors import SimulatedDisk, World
from trio_envserve.lab.simulation.plan import (
    PLAIN_BOUNDS,
    PLAIN_SYNC_S,
    FaultKind,
    KeyUse,
    body_of,
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


def test_server_that_closes_as_the_orphan_deadline_passes_was_judged_to_end_what_it_answers():
    """What a journal has left, and waits for the workers of the server before, is told that it did
    not run."""
    plan = plan_of(2)
    keyed = dataclasses.replace(
        plan.asks[0][0], key="c0:key", at_s=0.3, behaviour="return", duration_s=1.0, rerun=None,
        max_executions=4, limit_s=None, cancel_after_s=None, body=body_of("a.k/x", "return", 1.0),
        use=KeyUse(KeyAct.ASK, "a", "k"),
    )  # fmt: skip
    busy = dataclasses.replace(
        keyed, key="c1:0", at_s=0.05, body=body_of("c1:0", "return", 3.0), use=None
    )
    attached = [
        dataclasses.replace(
            keyed, key=f"c1:{n}", at_s=1.2 + n / 20, body=b"", use=KeyUse(KeyAct.ATTACH, "a", "k")
        )
        for n in range(1, 7)
    ]  # fmt: skip
    plan = plan.change(
        FaultKind.KEYS, FaultKind.JOURNAL, FaultKind.KILL_CLIENT, FaultKind.RESTART_FAST,
        FaultKind.DRAIN_SERVER, less=plan.faults, mangle=0.0, loss=0.0, clients=2, workers=1,
        moments=(
            (0.9, FaultKind.KILL_CLIENT), (1.0, FaultKind.RESTART_FAST),
            (1.6, FaultKind.DRAIN_SERVER),
        ),
        busy_s=3.0, linger_s=3.0, sync_s=PLAIN_SYNC_S, asks=((keyed,), (busy, *attached)),
        keys=KeyLimits(orphan_s=0.5), server={**PLAIN_BOUNDS, "worker_capacity": 1},
    )  # fmt: skip
    runs = [run(seed, plan=plan) for seed in range(10)]
    assert not [each.violations[0] for each in runs if each.violations]


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
