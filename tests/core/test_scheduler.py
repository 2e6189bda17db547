"""Who runs next, and where."""

from __future__ import annotations

import pytest

from trio_envserve.core.executions import Duty, Site, Worker
from trio_envserve.core.scheduler import Scheduler, group_most
from trio_envserve.core.terms import SessionId
from trio_envserve.core.work import Work

from .helpers import account_of, duty_of, execution_on, identifier, work_of, worker_of


def all_have_room(session: SessionId) -> bool:
    return True


def nobody_has_room(session: SessionId) -> bool:
    return False


def filled(*entries: Work) -> Scheduler[Work]:
    queue: Scheduler[Work] = Scheduler()
    for entry in entries:
        queue.add(entry)
    return queue


def order(queue: Scheduler[Work], workers: list[Worker]) -> list[tuple[int, int]]:
    """(session, sequence) in the order of dispatch, nothing ever ending."""
    picked = []
    while (chosen := queue.pick(workers, all_have_room)) is not None:
        entry, worker = chosen
        worker.start(account_of(), entry, 0.0)
        picked.append((int.from_bytes(entry.id.session, "big"), entry.id.sequence))
    return picked


def suspect(
    session: int = 1, sequence: int = 0, *, of: tuple[bytes, int] = (b"dead", 1), left: int = 1
) -> Work:
    entry = work_of(session, sequence, suspicion=of)
    entry.allowance = entry.executions + left
    return entry


def busy(name: bytes, load: int, capacity: int = 9) -> Worker:
    worker = worker_of(name, capacity)
    for sequence in range(load):
        execution_on(worker, account_of(), sequence)
    return worker


def test_sessions_take_turns_and_are_each_first_in_first_out():
    queue = filled(*(work_of(1, n) for n in range(3)), work_of(2, 0), work_of(2, 1))
    assert len(queue) == 5
    assert order(queue, [worker_of(capacity=9)]) == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]
    assert len(queue) == 0


def test_a_dispatch_goes_to_the_host_with_least_to_do_for_each_worker_and_then_to_its_worker():
    """It went to the least busy worker, of a host that was the busiest."""
    small, large = Site(), Site()
    workers: list[Worker] = []
    for site, loads in ((small, (2, 0)), (large, (1, 1, 1, 0, 0))):
        for load in loads:
            worker = worker_of(b"w%d" % len(workers), 9)
            worker.site = site
            site.workers += 1
            for sequence in range(load):
                execution_on(worker, account_of(), sequence)
            workers.append(worker)
    queue = filled(*(work_of(1, n) for n in range(4)))
    went = []
    while (chosen := queue.pick(workers, all_have_room)) is not None:
        entry, worker = chosen
        execution_on(worker, account_of(), entry.id.sequence)
        went.append(workers.index(worker))
    # 3 of 5, 4 of 5, then 5 of 5 is no less than 2 of 2, where a worker is idle.
    assert went[:2] == [5, 6]
    assert went[2] == 1
    full, light = worker_of(b"f", 1), worker_of(b"l", 1)
    full.site.workers = light.site.workers = 1
    assert not full.is_lighter(light)
    assert not light.is_lighter(full)


def test_g8_a_session_without_room_in_its_share_waits_and_does_not_hold_up_others():
    queue = filled(work_of(1, 0), work_of(2, 0))
    room = {identifier(2)}
    chosen = queue.pick([worker_of()], room.__contains__)
    assert chosen is not None
    assert chosen[0].id.session == identifier(2)
    queue.add(work_of(1, 1))  # joins the paused line
    assert queue.pick([worker_of()], all_have_room) is None
    assert len(queue) == 2
    queue.resume(nobody_has_room)
    assert queue.pick([worker_of()], all_have_room) is None
    queue.resume(all_have_room)
    assert order(queue, [worker_of(capacity=9)]) == [(1, 0), (1, 1)]


# -- suspects: test_scheduler_suspects.py plays whole pools -------------------


@pytest.mark.parametrize(
    ("size", "left", "most"),
    [
        (1, 1, 1), (30, 1, 1), (30, 2, 6), (36, 2, 6), (37, 2, 7), (27, 3, 9), (28, 3, 10),
        (343, 3, 49), (61, 99, 59), (61, 1000, 61), (2, 10**9, 2), (10**6, 2, 1000),
    ],
)  # fmt: skip
def test_the_size_of_a_group_is_the_root_of_the_last_ones(size, left, most):
    assert group_most((b"dead", size), left) == most
    assert most ** min(left, 9999) >= size ** (min(left, 9999) - 1)


def test_g8_a_worker_takes_no_more_suspects_than_its_capacity():
    """Outcomes that the dead worker held count as well, so it had more than it could run."""
    worker = worker_of(capacity=1)
    queue = filled(*(suspect(1, n, of=(b"dead", 2), left=2) for n in range(2)))
    assert order(queue, [worker]) == [(1, 0)]
    worker.end(worker.live[0])
    assert order(queue, [worker]) == [(1, 1)]


def test_no_more_workers_drain_than_groups_wait():
    pool = [busy(b"%d" % n, n + 1) for n in range(6)]
    queue = filled(*(suspect(1, n, of=(b"dead", 9), left=2) for n in range(4)))
    assert queue.pick(pool, all_have_room) is None
    assert [worker.duty is Duty.DRAINING for worker in pool] == [True, True, *[False] * 4]


def test_g8_a_suspect_without_room_in_its_share_waits_and_no_worker_is_reserved_for_it():
    worker = busy(b"a", 1)
    queue = filled(suspect(1), suspect(2))
    assert queue.pick([worker], all_have_room) is None
    assert duty_of(worker) is Duty.DRAINING
    assert queue.pick([worker], nobody_has_room) is None
    assert duty_of(worker) is Duty.ANY
    worker.end(worker.live[0])
    chosen = queue.pick([worker], {identifier(2)}.__contains__)
    assert chosen is not None
    assert chosen[0].id.session == identifier(2)
    assert duty_of(worker) is Duty.SUSPECTS


def test_a_worker_reserved_for_suspects_that_are_gone_is_given_back():
    draining, gone = busy(b"a", 1), suspect()
    queue = filled(gone)
    queue.pick([draining], all_have_room)
    assert queue.reserving
    queue.remove(gone)
    assert queue.pick([draining], all_have_room) is None
    assert duty_of(draining) is Duty.ANY
    assert not queue.reserving


def test_the_oldest_is_the_first_of_a_line_or_of_suspects_and_has_room_in_its_share():
    queue: Scheduler[Work] = Scheduler()
    assert queue.oldest_s(all_have_room) is None
    for session, at_s in ((1, 5.0), (1, 1.0), (2, 4.0)):  # the first of a line has waited longest
        queue.add(work_of(session, int(at_s), queued_s=at_s))
    assert queue.oldest_s(all_have_room) == 4.0
    for sequence, at_s in ((7, 3.0), (8, 2.0)):
        poison = suspect(3, sequence)
        poison.queued_s = at_s
        queue.add(poison)
    assert queue.oldest_s(all_have_room) == 3.0
    assert queue.oldest_s(nobody_has_room) is None
    second = int.to_bytes(2, 16, "big")
    assert queue.oldest_s(lambda session: session == second) == 4.0
