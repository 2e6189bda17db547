"""How late a loop is, over a window."""

from __future__ import annotations

import pytest

from trio_envserve.core.clock import BlockedFor, LagMeter


def test_the_summary_is_of_the_window_and_of_nothing_at_first():
    assert LagMeter(period_s=0.1).record(0.35) == pytest.approx(0.25)
    assert LagMeter(period_s=0.1).record(0.05) == 0.0
    meter = LagMeter(period_s=1.0, window=100)
    assert meter.summary("loop") == {
        "loop_lag_p50_s": 0.0, "loop_lag_p99_s": 0.0, "loop_lag_max_s": 0.0,
    }  # fmt: skip
    for lag_s in range(1000):
        meter.record(1.0 + lag_s)
    assert meter.summary("loop") == {
        "loop_lag_p50_s": 950.0, "loop_lag_p99_s": 999.0, "loop_lag_max_s": 999.0,
    }  # fmt: skip


class Process:
    """A loop that means to run every 0.1 s, and a thread that looks every second."""

    def __init__(self) -> None:
        self.now_s = self.ran_s = 100.0
        self.busy_s = 0.0
        self.blocked = BlockedFor(1.0, now_s=self.now_s, busy_s=self.busy_s)
        self.look()

    def look(self) -> float:
        return self.blocked.look(self.now_s, self.busy_s, self.ran_s, 0.1)

    def after(self, seconds: float, *, busy_s: float = 0.0, ran: bool = False) -> float:
        """What the thread sees after so long."""
        self.now_s += seconds
        self.busy_s += busy_s
        if ran:
            self.ran_s = self.now_s - 0.01
        return self.look()


@pytest.mark.parametrize(
    ("ran", "late_s"), [(True, [0.0, 0.0, 0.0]), (False, [0.9, 1.9, 2.9])], ids=["runs", "blocked"]
)
def test_a_loop_that_is_blocked_is_later_with_each_look(ran: bool, late_s: list[float]):
    process = Process()
    assert [process.after(1.0, ran=ran) for _ in range(3)] == pytest.approx(late_s)


def test_a_process_that_was_stopped_took_its_loop_for_blocked():
    """ "event loop blocked for 6.1 s", after the machine had slept."""
    process = Process()
    process.after(1.0, ran=True)
    assert process.after(7.1) < 1.0  # the thread looks first
    assert process.after(1.0, ran=True) == 0.0
    assert process.after(7.1, ran=True) == 0.0  # the loop runs first


def test_what_a_loop_was_blocked_before_a_stop_and_after_it_counts():
    process = Process()
    process.after(1.0, ran=True)
    process.after(1.0)
    process.after(60.0)
    assert process.after(1.0) == pytest.approx(3.01 - 0.1)  # the turn in which it was stopped, too
    assert process.after(1.0, ran=True) == 0.0
    assert process.after(1.0) == pytest.approx(0.91)  # nothing is left of it


def test_code_that_holds_the_interpreter_blocks_the_loop():
    """Its process was busy all the time, though no thread could look."""
    process = Process()
    process.after(1.0, ran=True)
    assert process.after(7.0, busy_s=6.9) == pytest.approx(6.81)


def test_what_a_thread_missed_before_the_loop_ran_is_no_excuse_afterwards():
    process = Process()
    process.now_s += 30.0
    process.ran_s = process.now_s - 0.5
    assert process.look() == 0.0
    assert process.after(1.0) == pytest.approx(0.9)


def test_a_stop_right_after_the_loop_has_begun_is_known_too():
    blocked = BlockedFor(1.0, now_s=99.0, busy_s=0.0)
    assert [blocked.look(now_s, 0.0, None, 0.0) for now_s in (100.0, 101.0)] == [0.0, 0.0]
    assert blocked.look(110.0, 0.0, 101.5, 0.1) < 1.0


def test_a_stop_before_the_first_look_was_taken_for_a_blocked_loop():
    """The thread looks one turn after the start; a request may come, and a stop, by then."""
    blocked = BlockedFor(1.0, now_s=100.0, busy_s=0.0)
    assert blocked.look(103.5, 0.4, 100.4, 0.1) < 1.0
