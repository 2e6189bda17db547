"""A failing plan gets small, always in the same way, and still fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing.known import broken_by, made_small
from trio_envserve.lab.simulation.plan import (
    CONFIGURATIONS,
    PLAIN_BOUNDS,
    PLAIN_LEASE_S,
    PLAIN_MESSAGE_BYTES,
    FaultKind,
    plan_of,
)
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.failure import examine
from trio_envserve.retrylab.target import ddmin

NAME = "reruns-without-consent"


@pytest.mark.parametrize("name", [NAME, "sync-replays-nothing"])
def test_a_failure_gets_small_and_still_fails(name: str):
    small, target = made_small(name), Protocol(mutant=name)
    plan = target.plan(small.seed)
    with target.applied():
        ran = target.run(small.luck, plan=small.plan)
    assert ran.breaks(small.guarantee)
    assert sum(map(len, small.plan.asks)) == small.requests <= 5 < sum(map(len, plan.asks))
    assert len(small.plan.moments) <= len(plan.moments)
    assert not target.run(small.luck, plan=small.plan).violations, "it is the mutant's"


def test_failure_is_always_made_small_in_the_same_way():
    small = made_small(NAME)
    assert made_small.__wrapped__(NAME) == small


def test_the_work_is_bounded():
    (seed, guarantee), target = broken_by(NAME), Protocol(mutant=NAME)
    with target.applied():
        small = examine(target, seed, guarantee=guarantee, most_runs=3)
    assert small is not None
    assert small.tried <= 3
    assert small.violation.startswith(guarantee)


def test_what_does_not_fail_is_not_examined():
    assert examine(Protocol(), 1) is None
    assert examine(Protocol(), 1, guarantee="G1") is None


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


@pytest.mark.parametrize("fault", FaultKind)
def test_a_kind_of_fault_can_be_taken_out_of_a_plan(fault: FaultKind):
    with_: Any = {name: fault is kind for name, (kind, _) in CONFIGURATIONS.items()}
    with_["hosts"] = fault.of == "host"
    seed = next(s for s in range(200) if plan_of(s, harsh=True, **with_).has(fault))
    plan = plan_of(seed, harsh=True, **with_).without(fault)
    assert not plan.has(fault)
    assert all(struck is not fault for _, struck in plan.moments)
    if fault is FaultKind.TINY_BOUNDS:
        assert all(getattr(plan.server, name) == most for name, most in PLAIN_BOUNDS.items())
    assert fault is not FaultKind.KEYS or not any(ask.use for asks in plan.asks for ask in asks)
    assert not (fault is FaultKind.LOSE and plan.loss)
    assert not (fault is FaultKind.MANGLE and plan.mangle)
    graces = [ask.grace_s for asks in plan.asks for ask in asks]
    assert fault is not FaultKind.GRACE or not any(graces)
    assert fault is not FaultKind.HUGE or plan.message_bytes == PLAIN_MESSAGE_BYTES
    assert fault is not FaultKind.SHORT_LEASE or plan.server.lease_s == PLAIN_LEASE_S
    assert not run(seed, plan=plan).violations


def test_a_schedule_is_told_in_order_and_not_endlessly():
    lines = plan_of(3, harsh=True).schedule()
    assert max(map(len, lines)) <= 96
    times = [float(line[:6]) for line in lines if line[6:10] == " s  "]
    assert times == sorted(times)
    assert lines[-1].strip().startswith("and ")


def test_a_failure_is_told_in_a_hundred_columns():
    failure = made_small(NAME)
    told = failure.text()
    assert told.startswith("G2: at most once")
    assert told.endswith(failure.again)
    assert f"--seed {failure.seed}" in failure.again
    assert f"--mutant {NAME}" in failure.again
    assert max(map(len, failure.drawing)) <= 100
