"""Who runs next, and where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.executions import Worker
from trio_envserve.core.requests import Entry
from trio_envserve.core.scheduler import Scheduler
from trio_envserve.core.terms import SessionId

from .helpers import cache_with, entry_of, execution_on, identifier, session_of, worker_of


def all_have_room(session: SessionId) -> bool:
    return True


def nobody_has_room(session: SessionId) -> bool:
    return False


def filled(*entries: Entry) -> Scheduler:
    queue = Scheduler()
    for entry in entries:
        queue.add(entry)
    return queue


def order(queue: Scheduler, workers: list[Worker]) -> list[tuple[int, int]]:
    """(session, sequence) in the order of dispatch, nothing ever ending."""
    picked = []
    while (chosen := queue.pick(workers, all_have_room)) is not None:
        entry, worker = chosen
        worker.start(session_of(cache_with()), entry, 0.0, solo=worker.reserved)
        picked.append((int.from_bytes(entry.id.session, "big"), entry.id.sequence))
    return picked


def suspect(session: int = 1, sequence: int = 0) -> Entry:
    return entry_of(session, sequence, suspect=True)


def busy(name: bytes, load: int, capacity: int = 9) -> Worker:
    worker = worker_of(name, capacity)
    for sequence in range(load):
        execution_on(worker, session_of(cache_with()), sequence)
    return worker


def test_sessions_take_turns_and_are_each_first_in_first_out():
    queue = filled(*(entry_of(1, n) for n in range(3)), entry_of(2, 0), entry_of(2, 1))
    assert len(queue) == 5
    assert order(queue, [worker_of(capacity=9)]) == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]
    assert len(queue) == 0


def test_a_dispatch_goes_to_the_open_worker_with_least_to_do():
    full, closed, light = busy(b"a", 0, capacity=0), busy(b"b", 0), busy(b"c", 1)
    closed.accepting = False
    chosen = filled(entry_of()).pick([full, closed, busy(b"d", 2), light], all_have_room)
    assert chosen is not None
    assert chosen[1] is light


def test_nothing_is_picked_without_a_worker_or_without_an_entry():
    queue = filled(entry_of())
    assert queue.pick([], all_have_room) is None
    assert queue.pick([busy(b"a", 2, capacity=2)], all_have_room) is None
    assert len(queue) == 1
    assert Scheduler().pick([worker_of()], all_have_room) is None


def test_g8_a_session_without_room_in_its_share_waits_and_does_not_hold_up_others():
    queue = filled(entry_of(1, 0), entry_of(2, 0))
    room = {identifier(2)}
    chosen = queue.pick([worker_of()], room.__contains__)
    assert chosen is not None
    assert chosen[0].id.session == identifier(2)
    queue.add(entry_of(1, 1))  # joins the paused line
    assert queue.pick([worker_of()], all_have_room) is None
    assert len(queue) == 2
    queue.resume(nobody_has_room)
    assert queue.pick([worker_of()], all_have_room) is None
    queue.resume(all_have_room)
    assert order(queue, [worker_of(capacity=9)]) == [(1, 0), (1, 1)]


def test_an_entry_is_taken_out_wherever_it_waits():
    plain, paused, doubted = entry_of(1, 0), entry_of(2, 0), suspect(3, 0)
    queue = filled(paused)
    queue.pick([worker_of()], nobody_has_room)
    queue.add(plain)
    queue.add(doubted)
    assert len(queue) == 3
    for count, entry in enumerate((doubted, paused, plain)):
        queue.remove(entry)
        assert len(queue) == 2 - count
        queue.remove(entry)  # of one that does not wait, nothing
        assert len(queue) == 2 - count
    queue.resume(all_have_room)
    assert queue.pick([worker_of()], all_have_room) is None


def test_removing_one_of_many_keeps_its_line():
    queue = filled(entry_of(1, 0), entry_of(1, 1))
    queue.remove(entry_of(1, 0))
    assert order(queue, [worker_of(capacity=9)]) == [(1, 1)]


# -- suspects -----------------------------------------------------------------


def test_a_suspect_runs_alone_and_others_go_elsewhere():
    one, two = worker_of(b"a"), worker_of(b"b")
    queue = filled(entry_of(1, 0), suspect(2, 0), suspect(2, 1))
    picked = order(queue, [one, two])
    assert picked == [(2, 0), (1, 0)]
    assert [len(one.live), len(two.live)] == [1, 1]
    assert one.reserved
    assert len(queue) == 1  # the second suspect waits for the first to end
    assert queue.pick([one, two], all_have_room) is None


def test_a_busy_worker_is_reserved_and_drains_for_the_suspect():
    worker = busy(b"a", 1)
    queue = filled(suspect(), entry_of(2, 0))
    for _ in range(2):
        assert queue.pick([worker], all_have_room) is None
        assert worker.reserved
    worker.end(worker.live[0])
    assert order(queue, [worker]) == [(1, 0)]


def test_an_idle_worker_is_taken_instead_of_one_that_still_drains():
    one, two = busy(b"a", 1), busy(b"b", 2)
    queue = filled(suspect())
    assert queue.pick([one, two], all_have_room) is None
    assert one.reserved
    for execution in list(two.live.values()):
        two.end(execution)
    assert queue.pick([one, two], all_have_room) is not None
    assert (one.reserved, two.reserved) == (False, True)


def test_g8_a_suspect_without_room_in_its_share_waits_and_no_worker_is_reserved_for_it():
    worker = busy(b"a", 1)
    queue = filled(suspect(1), suspect(2))
    assert queue.pick([worker], all_have_room) is None
    assert worker.reserved
    assert queue.pick([worker], nobody_has_room) is None
    assert not worker.reserved
    worker.end(worker.live[0])
    chosen = queue.pick([worker], {identifier(2)}.__contains__)
    assert chosen is not None
    assert chosen[0].id.session == identifier(2)
    assert worker.reserved


def test_a_suspect_waits_while_nobody_accepts():
    worker = worker_of()
    worker.accepting = False
    assert filled(suspect()).pick([worker], all_have_room) is None
    assert not worker.reserved


def test_a_worker_reserved_for_suspects_that_are_gone_is_given_back():
    draining, running = busy(b"a", 1), worker_of(b"b")
    queue = filled(suspect())
    queue.pick([draining], all_have_room)
    queue.release_reserved([draining])
    assert draining.reserved  # the suspect still waits
    queue.remove(suspect())
    running.reserved = True
    execution_on(running, session_of(cache_with()), solo=True)
    queue.release_reserved([draining, running])
    assert (draining.reserved, running.reserved) == (False, True)


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=12), st.integers(1, 3))
def test_everything_queued_is_dispatched_once_suspects_alone(asked, workers):
    """Whatever the mix, if executions end, all are dispatched, each once."""
    queue = Scheduler()
    for sequence, (session, doubted) in enumerate(asked):
        queue.add(entry_of(session, sequence, suspect=doubted))
    pool = [worker_of(b"%d" % n, capacity=2) for n in range(workers)]
    session, picked = session_of(cache_with()), []
    for _ in range(3 * len(asked) + 1):
        while (chosen := queue.pick(pool, all_have_room)) is not None:
            entry, worker = chosen
            assert not (entry.suspect and worker.live)
            assert not any(e.solo for e in worker.live.values())
            worker.start(session, entry, 0.0, solo=worker.reserved)
            picked.append(entry.id.sequence)
        queue.release_reserved(pool)
        loaded = next((w for w in pool if w.live), None)
        if loaded is not None:
            loaded.end(next(iter(loaded.live.values())))
    assert sorted(picked) == list(range(len(asked)))
    assert not any(w.reserved for w in pool)
