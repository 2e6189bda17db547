"""The model calls of workers, added up."""

from __future__ import annotations

from trio_envserve.core.durations import BOUNDS_S, Durations
from trio_envserve.core.worker_history import (
    COUNTS,
    STATISTICS_MOST,
    ModelTotals,
    checked,
    to_statistics,
)


def worker(*took_s: float) -> dict[str, float]:
    took = Durations()
    for each_s in took_s:
        took.add(each_s)
    return to_statistics(dict.fromkeys(COUNTS, len(took_s)), took)


def test_a_worker_that_called_no_model_says_nothing_of_it():
    assert worker() == {}


def test_the_totals_are_those_of_all_workers():
    totals = ModelTotals()
    totals.take(worker(0.5, 2.0))
    past = totals.copy()
    totals.take({"loop_lag_p99_s": 3.0, **worker(2.0)})
    assert totals.usage() == dict.fromkeys(COUNTS, 3)
    assert totals.took() == {"sum_s": 4.5, "most_s": 2.0, "0.5": 1, "2.5": 2}
    assert past.usage() == dict.fromkeys(COUNTS, 2)
    assert past.took() == {"sum_s": 2.5, "most_s": 2.0, "0.5": 1, "2.5": 1}


def test_what_a_worker_says_at_most_is_taken_whole():
    statistics = worker(*BOUNDS_S, 10_000.0)
    assert checked(statistics) == (statistics, 0)
    assert len(statistics) < STATISTICS_MOST / 2


def test_what_is_no_count_is_left_out():
    totals = ModelTotals()
    totals.take({"model_calls": -3, "model_failed": "x", "model_took_x": 1, "model_took_1": 0.5})
    assert totals.usage() == dict.fromkeys(COUNTS, 0)
    assert totals.took() == {"sum_s": 0.0}
