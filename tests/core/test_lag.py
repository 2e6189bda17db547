"""How late a loop is, over a window."""

from __future__ import annotations

import pytest

from trio_envserve.core.lag import LagMeter


def test_lag_is_what_a_sleep_took_longer_than_it_should():
    meter = LagMeter(period_s=0.1)
    assert meter.record(0.35) == pytest.approx(0.25)
    assert meter.record(0.05) == 0.0


def test_the_summary_is_of_the_window_and_of_nothing_at_first():
    meter = LagMeter(period_s=1.0, window=100)
    assert meter.summary("loop") == {
        "loop_lag_p50_s": 0.0, "loop_lag_p99_s": 0.0, "loop_lag_max_s": 0.0,
    }  # fmt: skip
    for lag_s in range(1000):
        meter.record(1.0 + lag_s)
    assert meter.summary("loop") == {
        "loop_lag_p50_s": 950.0, "loop_lag_p99_s": 999.0, "loop_lag_max_s": 999.0,
    }  # fmt: skip
