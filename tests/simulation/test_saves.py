"""Runs in which environment code saves states: what was said to be safe is what the next one of
the same work begins with, or something newer."""

from __future__ import annotations

from collections import Counter

from trio_envserve.lab.simulation.plan import FaultKind, plan_of
from trio_envserve.lab.simulation.target import Protocol, crashes, keyed_seeds

SAVES = Protocol(saves=True)


def test_no_seed_with_saves_violates_a_guarantee():
    runs = [SAVES.run(seed) for seed in range(8)]
    bad = [each for each in runs if each.violations]
    assert not bad, "\n".join(f"seed {each.seed}: {each.violations[0]}" for each in bad)
    faults = Counter[str]()
    for each in runs:
        faults.update(each.faults)
    assert faults[FaultKind.SAVES.value] > 1000
    assert faults[FaultKind.KILL_WORKER.value] > 20
    assert faults[FaultKind.JOURNAL.value] > 100


def test_no_seed_with_saves_on_hosts_violates_a_guarantee():
    hosted = Protocol(saves=True, hosts=True)
    bad = [each for each in map(hosted.run, range(5)) if each.violations]
    assert not bad, "\n".join(f"seed {each.seed}: {each.violations[0]}" for each in bad)


def test_g11_a_crash_at_a_write_loses_no_state_that_was_said_to_be_safe():
    runs = [each for seed in keyed_seeds(4) for each in crashes(seed, most=3, saves=True)]
    assert len(runs) > 10
    bad = [each for each in runs if each.violations]
    assert not bad, [(each.seed, each.plan.crash_at_write, each.violations[0]) for each in bad]
    assert sum(each.faults.get(FaultKind.SAVES.value, 0) for each in runs) > 100


def test_seeds_without_saves_are_what_they_were():
    assert not any(plan_of(seed).has(FaultKind.SAVES) for seed in range(100))
    assert SAVES.run(3).digest == SAVES.run(3).digest != Protocol().run(3).digest


def test_plan_with_saves_says_how_it_is_run_again():
    plan = SAVES.plan(7)
    assert SAVES.in_words(7, plan) == "seed 7 (harsh, with saves), what ships"
    assert SAVES.again(7, plan) == "trio-envserve fuzz --seed 7 --saves"
