"""A failing plan gets small, always in the same way, and still fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing.known import broken_by
from trio_envserve.lab.fuzzing.failure import examine, schedule, text
from trio_envserve.lab.fuzzing.shrink import shrink
from trio_envserve.lab.mutants import find
from trio_envserve.lab.simulation.faults import (
    PLAIN_BOUNDS,
    PLAIN_LEASE_S,
    PLAIN_MESSAGE_BYTES,
    Fault,
)
from trio_envserve.lab.simulation.simulator import plan_of, run
from trio_envserve.retrylab.shrink import ddmin


@pytest.mark.parametrize("name", ["reruns-without-consent", "sync-replays-nothing"])
def test_a_failure_gets_small_and_still_fails(name: str):
    seed, harsh, guarantee = broken_by(name)
    plan = plan_of(seed, harsh=harsh)
    with find(name).applied():
        small = shrink(seed, plan, guarantee)
        again = shrink(seed, plan, guarantee)
        ran = run(small.luck, harsh=harsh, plan=small.plan)
    assert small.run.breaks(guarantee)
    assert (small.plan, small.luck, small.tried) == (again.plan, again.luck, again.tried)
    assert small.run.digest == again.run.digest
    assert ran.breaks(guarantee)
    assert sum(map(len, small.plan.asks)) <= 5 < sum(map(len, plan.asks))
    assert len(small.plan.moments) <= len(plan.moments)
    assert not run(small.luck, harsh=harsh, plan=small.plan).violations, "it is the mutant's"


def test_the_work_is_bounded():
    seed, harsh, guarantee = broken_by("reruns-without-consent")
    with find("reruns-without-consent").applied():
        small = shrink(seed, plan_of(seed, harsh=harsh), guarantee, most_runs=3)
    assert small.tried <= 3
    assert small.run.breaks(guarantee)


def test_what_does_not_fail_is_not_examined():
    assert examine(1, harsh=True) is None
    assert examine(1, harsh=True, guarantee="G1") is None


@given(st.lists(st.integers(0, 20), max_size=40), st.sets(st.integers(0, 20), max_size=4))
def test_ddmin_keeps_what_is_needed_and_little_else(items: list[int], needed: set[int]):
    numbered = list(enumerate(items))
    needed &= set(items)

    def take(kept: Sequence[tuple[int, int]]) -> bool:
        return needed <= {item for _, item in kept}

    kept = ddmin(numbered, take)
    assert needed <= {item for _, item in kept}
    assert len(kept) <= max(1, len(needed))
    assert kept == sorted(kept)


@pytest.mark.parametrize("fault", Fault)
def test_a_kind_of_fault_can_be_taken_out_of_a_plan(fault: Fault):
    seed = next(s for s in range(200) if plan_of(s, harsh=True).has(fault))
    plan = plan_of(seed, harsh=True).without(fault)
    assert not plan.has(fault)
    assert all(struck is not fault for _, struck in plan.moments)
    if fault is Fault.TINY_BOUNDS:
        assert all(getattr(plan.server, name) == most for name, most in PLAIN_BOUNDS.items())
    assert fault is not Fault.KEYS or not any(ask.use for asks in plan.asks for ask in asks)
    assert not (fault is Fault.LOSE and plan.loss)
    assert not (fault is Fault.MANGLE and plan.mangle)
    assert fault is not Fault.HUGE or plan.message_bytes == PLAIN_MESSAGE_BYTES
    assert fault is not Fault.SHORT_LEASE or plan.server.lease_s == PLAIN_LEASE_S
    assert not run(seed, harsh=True, plan=plan).violations


def test_a_schedule_is_told_in_order_and_not_endlessly():
    lines = schedule(plan_of(3, harsh=True))
    assert max(map(len, lines)) <= 96
    times = [float(line[:6]) for line in lines if line[6:10] == " s  "]
    assert times == sorted(times)
    assert lines[-1].strip().startswith("and ")


def test_a_failure_is_told_in_a_hundred_columns():
    seed, harsh, guarantee = broken_by("duplicates-run-again")
    with find("duplicates-run-again").applied():
        failure = examine(seed, harsh=harsh, guarantee=guarantee, mutant="duplicates-run-again")
    assert failure is not None
    told = text(failure, "the end")
    assert told.startswith("G1: one at a time")
    assert failure.command() in told
    assert f"--seed {seed}" in failure.command()
    assert "--mutant duplicates-run-again" in failure.command()
    assert told.endswith("the end")
    assert max(map(len, failure.drawing)) <= 100
    assert type(failure).from_data(failure.to_data()) == failure
