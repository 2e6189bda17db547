"""Awake time: at most one step for each reading, never backwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.clock import AwakeClock


def test_time_awake_is_counted_as_it_passes():
    clock = AwakeClock(1.0, 100.0)
    assert clock.read(100.4) == pytest.approx(0.4)
    assert clock.read(100.9) == pytest.approx(0.9)


def test_g9_a_stopped_process_ages_by_one_step_only():
    clock = AwakeClock(1.0, 100.0)
    assert clock.read(100.0 + 86_400) == 1.0
    assert clock.read(100.0 + 86_400.5) == 1.5


def test_a_reading_out_of_order_changes_nothing():
    clock = AwakeClock(1.0, 100.0)
    assert clock.read(100.5) == 0.5
    assert clock.read(99.0) == 0.5
    assert clock.read(100.75) == 0.75


@given(st.lists(st.floats(0, 1e6), max_size=30))
def test_it_never_runs_backwards_or_faster_than_its_step(times_s):
    clock, last_s = AwakeClock(1.0, 0.0), 0.0
    for time_s in times_s:
        awake_s = clock.read(time_s)
        assert last_s <= awake_s <= last_s + 1.0
        last_s = awake_s
    assert last_s <= max(times_s, default=0.0) + 1e-6
