"""Leases in a small world that does them harm: what ships holds, each broken rule is seen."""

from __future__ import annotations

import pytest

from trio_envserve.lab.hosts.mutants import MUTANTS
from trio_envserve.lab.hosts.plan import OF_THE_ROUTER, Fault, plan_of
from trio_envserve.lab.hosts.world import Leases, run
from trio_envserve.lab.mutants import Mutant
from trio_envserve.retrylab import load_failure, replay, save_failure, search
from trio_envserve.retrylab.target import hunt

NAMES = [mutant.name for mutant in MUTANTS]


@pytest.mark.parametrize("tens", [0, 1, 2, 3])
def test_within_the_bound_nothing_is_found(tens):
    for seed in range(10 * tens, 10 * tens + 10):
        assert run(seed).violations == [], seed


def test_a_late_hello_kept_its_host_out_for_ever():
    assert run(85535).violations == []


def test_a_seed_comes_to_the_same_again():
    assert run(7) == run(7)


def test_without_a_lease_nothing_rests_on_a_clock():
    plans = [plan_of(seed) for seed in range(7, 800, 8)]
    assert not any(plan.lease for plan in plans)
    assert {rate for plan in plans for rate in plan.rates} == {0.2, 1.0, 3.0}
    assert [found for plan in plans for found in run(plan.seed).violations] == []


def test_every_fault_strikes_somewhere():
    struck = {strike.fault for seed in range(100) for strike in plan_of(seed).strikes}
    assert struck == {*Fault}
    assert {*OF_THE_ROUTER} <= struck


@pytest.mark.parametrize("bound", ["drift", "guard"])
def test_beyond_the_bound_the_judge_finds_it(bound, tmp_path):
    target = Leases(beyond=bound)
    failure = search(target, runs=100)
    assert failure is not None
    assert len(failure.plan.strikes) <= len(target.plan(failure.seed).strikes)
    path = save_failure(failure, tmp_path)
    assert load_failure(target, path) == failure
    assert replay(target, failure)
    assert f"--seed {failure.seed}" in failure.text()


FIRST = {
    "counted-from-receipt": 590,
    "numbers-used-again-after-a-reconnect": 130,
    "any-router-answers-a-beat": 180,
    "a-host-that-hears-nothing-is-answered-for-ever": 415,
    "silence-is-proof-without-a-lease": 240,
    "a-late-hello-says-that-nothing-runs": 395,
    "the-guard-is-told-for-how-long": 1880,
    "a-successor-waits-for-each-epoch-by-its-own-words": 610,
    "a-router-is-written-off-while-its-work-is-stopped": 510,
    "what-goes-on-is-counted-by-the-limits-of-the-new-router-alone": 650,
}
"""Where to begin: some rules matter in few seeds, and a test is not to look for long."""


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_each_mutant_is_caught(mutant: Mutant):
    catch = hunt(Leases(mutant=mutant), FIRST.get(mutant.name, 0), most_runs=300)
    assert catch.caught
    assert catch.clean


def test_a_mutant_is_taken_back():
    with MUTANTS[0].applied():
        pass
    assert run(41).violations == []
