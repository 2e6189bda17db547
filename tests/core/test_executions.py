"""The records of workers and executions."""

from __future__ import annotations

import pytest

from trio_envserve.core.executions import Duty, Execution

from .helpers import account_of, duty_of, execution_on, worker_of


def test_dispatches_are_numbered_and_counted_for_their_session():
    worker, session = worker_of(), account_of()
    first, second = execution_on(worker, session, 5), execution_on(worker, session, 6)
    assert (first.number, second.number, worker.next_number) == (0, 1, 2)
    assert session.live_executions == 2
    worker.end(first)
    assert (session.live_executions, list(worker.live)) == (1, [1])
    assert first.body is None
    with pytest.raises(KeyError):
        worker.end(first)
    assert session.live_executions == 1


def test_g1_an_abandoned_execution_holds_its_place_until_it_has_ended():
    worker, session = worker_of(capacity=1), account_of()
    execution = execution_on(worker, session)
    worker.abandon(execution, 3.0)
    assert not execution.is_wanted
    assert not worker.open()
    assert session.live_executions == 1
    worker.end(execution)
    assert worker.open()


def test_the_end_of_all_suspects_of_a_group_gives_the_worker_back():
    worker, session = worker_of(), account_of()
    worker.duty = Duty.SUSPECTS
    one, other = execution_on(worker, session), execution_on(worker, session)
    worker.end(one)
    assert duty_of(worker) is Duty.SUSPECTS
    worker.end(other)
    assert duty_of(worker) is Duty.ANY


def test_the_oldest_stop_is_known_without_a_look_at_all_that_lives():
    """It is asked with every tick: cancelling 100,000 that run was quadratic."""
    worker, session = worker_of(), account_of()
    executions = [execution_on(worker, session) for _ in range(1000)]
    for now_s, execution in enumerate(reversed(executions)):
        worker.abandon(execution, float(now_s))
    looked = [0]

    class Watched(dict[int, Execution]):
        def values(self):
            for execution in super().values():
                looked[0] += 1
                yield execution

    worker.live, worker.stopping = Watched(worker.live), Watched(worker.stopping)
    assert worker.oldest_stop_s() == 0.0
    assert worker.only_abandoned()
    assert looked == [1]
    worker.end(executions[-1])
    assert worker.oldest_stop_s() == 1.0
