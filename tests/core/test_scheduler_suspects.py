"""Suspects: whole pools in which something kills its worker.

The first half plays a pool around the scheduler alone, at random, and holds each
dispatch against the rule; broken schedulers must fail it.  The second half has routers
and clients, in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from trio_envserve.core import error_records, scheduler
from trio_envserve.core.executions import Duty, Execution, Worker
from trio_envserve.core.router_inputs import Exited
from trio_envserve.core.scheduler import Scheduler
from trio_envserve.core.work import Work

from .helpers import Pair, account_of, duty_of, work_of, worker_of

CAPACITY = 9


class Pool:
    """Workers and a queue; what happens next is drawn, and each dispatch is judged."""

    def __init__(self, draw: Callable[[int], int], workers: int, allowances: list[int]) -> None:
        self.draw = draw
        self.queue: Scheduler[Work] = Scheduler()
        self.session = account_of()
        self.born = 0
        self.workers = [self.worker() for _ in range(workers)]
        self.waiting: dict[int, Work] = {}
        self.ended: dict[int, str] = {}
        self.group: dict[int, tuple[Worker, int]] = {}
        """Of each that has run: with whom it was when its worker died, how many of them."""
        for sequence, allowance in enumerate(allowances):
            entry = work_of(1, sequence)
            entry.allowance = allowance
            self.wait(entry)

    def worker(self) -> Worker:
        self.born += 1
        return worker_of(b"w%d" % self.born, CAPACITY)

    def wait(self, entry: Work) -> None:
        self.waiting[entry.id.sequence] = entry
        self.queue.add(entry)

    def dispatch(self) -> None:
        before = {worker: len(worker.live) for worker in self.workers}
        while (chosen := self.queue.pick(self.workers, lambda session: True)) is not None:
            entry, worker = chosen
            assert self.waiting.pop(entry.id.sequence) is entry
            worker.start(self.session, entry, 0.0)
            self.judge(entry, worker, before[worker])
            entry.executions += 1
        serving = sum(worker.duty is Duty.SUSPECTS for worker in self.workers)
        assert serving <= max(1, len(self.workers) // 2)
        draining = sum(worker.duty is Duty.DRAINING for worker in self.workers)
        suspects = [n for n in self.waiting if n in self.group]
        assert draining <= len(suspects), "kept free for nobody"
        idle = [worker for worker in self.workers if not worker.live]
        assert not (idle and len(suspects) < len(self.waiting)), "somebody waits for nothing"

    def judge(self, entry: Work, worker: Worker, before: int) -> None:
        beside: list[Any] = [each.work for each in worker.live.values()]
        if entry.id.sequence not in self.group:
            assert all(each.id.sequence not in self.group for each in beside), "beside suspects"
            return
        death, size = self.group[entry.id.sequence]
        left = entry.allowance - entry.executions
        assert not before, "joins what runs"
        assert all(self.group.get(each.id.sequence, [None])[0] is death for each in beside)
        assert (len(beside) - 1) ** left < size ** (left - 1), "a group larger than the rule"

    def end(self, worker: Worker, execution: Execution, *, kills: bool) -> None:
        """One execution ends; or its worker, and all that it runs."""
        if not kills:
            self.ended[execution.work.id.sequence] = "done"
            worker.end(execution)
            return
        self.workers[self.workers.index(worker)] = self.worker()
        size = len(worker.live)
        for each in list(worker.live.values()):
            worker.end(each)
            entry: Work = each.work
            self.group[entry.id.sequence] = worker, size
            if entry.executions < entry.allowance:
                entry.suspicion = worker.id, size
                self.wait(entry)
            else:
                self.ended[entry.id.sequence] = "lost"

    def play(self, killers: set[int], *, cancels: bool) -> None:
        """Until nothing is left.  Every turn ends an execution or takes out a request."""
        while True:
            self.dispatch()
            live = [(w, e) for w in self.workers for e in w.live.values()]
            if not live:
                break
            if cancels and self.waiting and not self.draw(3):
                sequence = list(self.waiting)[self.draw(len(self.waiting) - 1)]
                self.queue.remove(self.waiting.pop(sequence))
                self.ended[sequence] = "cancelled"
                continue
            worker, execution = live[self.draw(len(live) - 1)]
            self.end(worker, execution, kills=execution.work.id.sequence in killers)
        assert not self.waiting
        assert all(worker.duty is Duty.ANY for worker in self.workers)


games = st.tuples(
    st.integers(1, 5), st.lists(st.integers(2, 5), min_size=1, max_size=14), st.booleans(),
    st.sets(st.integers(0, 13), max_size=3),
)  # fmt: skip


def play(data: Any, game: tuple[int, list[int], bool, set[int]]) -> None:
    workers, allowances, cancels, killers = game
    pool = Pool(lambda most: data.draw(st.integers(0, most)), workers, allowances)
    pool.play(killers, cancels=cancels)
    assert sorted(pool.ended) == list(range(len(allowances))), "each ends"
    if len(killers) == 1:
        lost = {n for n, how in pool.ended.items() if how == "lost"}
        assert lost <= killers, "an innocent was lost"


@given(st.data(), games)
@settings(max_examples=3 * settings().max_examples)
def test_g2_every_suspect_ends_and_one_killer_costs_no_innocent(data, game):
    play(data, game)


def merged(entry: Work) -> Any:
    assert entry.suspicion is not None
    return (b"any", entry.suspicion[1]), entry.allowance - entry.executions


def mutate(patch: pytest.MonkeyPatch, name: str) -> None:
    most, waiting = scheduler.group_most, Scheduler._waiting
    match name:
        case "groups merge":
            patch.setattr(scheduler, "_mark_of", merged)
        case "a group is one larger":
            patch.setattr(scheduler, "group_most", lambda *likes: most(*likes) + 1)
        case "all run again together":
            patch.setattr(scheduler, "group_most", lambda suspicion, left: suspicion[1])
        case "all workers serve suspects":
            patch.setattr(Scheduler, "_waiting", lambda self, most, room: waiting(self, 99, room))
        case "a reserved worker is not given back":
            never = property(lambda self: False, lambda self, value: None)
            patch.setattr(Scheduler, "reserving", never, raising=False)


MUTANTS = (
    "groups merge", "a group is one larger", "all run again together",
    "all workers serve suspects", "a reserved worker is not given back",
)  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_scheduler_is_caught(name, monkeypatch):
    mutate(monkeypatch, name)
    games_of = settings(max_examples=500, phases=[Phase.generate], database=None)

    def search() -> None:
        for number in range(40):  # one is mostly enough; groups that merge are rarely seen
            seed(number)(games_of(given(st.data(), games)(play)))()

    with pytest.raises(AssertionError):
        search()


# -- in virtual time ------------------------------------------------------------

STEP_S = 0.05


class Town:
    """A pair in which each rollout takes a second, and some kill their worker halfway."""

    def __init__(self, workers: int, *, killers: tuple[bytes, ...] = ()) -> None:
        self.pair = Pair(workers=workers, client={"max_executions": 4})
        self.killers = killers
        self.ends_s: dict[int, float] = {}

    def kill(self, worker: bytes) -> None:
        pair = self.pair
        del pair.workers[worker]
        pair.give(Exited(worker, pair.now_s, "killed by a test"))

    def play(self, seconds: float) -> None:
        """Time passes, in small steps."""
        pair = self.pair
        end_s = pair.now_s + seconds
        while pair.now_s < end_s:
            pair.advance(STEP_S, step_s=STEP_S)
            for number, (worker, run) in enumerate(pair.runs):
                kills = run.body in self.killers
                ends_s = self.ends_s.setdefault(number, pair.now_s + (0.5 if kills else 1.0))
                live = worker in pair.workers and run.number in pair.workers[worker].running
                if live and pair.now_s >= ends_s:
                    if kills:
                        self.kill(worker)
                    else:
                        pair.end((worker, run), bytes(run.body))


def test_b6_suspects_of_one_death_went_one_at_a_time_for_the_whole_server():
    """60 rollouts of a second, on two workers, took 31 s after one had died."""
    town = Town(2)
    for n in range(60):
        town.pair.submit(b"%d" % n, rerun=True)
    town.play(0.5)
    town.kill(b"w1-1")
    town.play(7.0)  # what is left of the first, and five groups of six
    assert len(town.pair.answers) == 60
    assert all(getattr(answer, "status", None) == 0 for answer in town.pair.answers)


def test_b6_one_killer_among_61_costs_nobody_else_his_rollout():
    town = Town(8, killers=(b"killer",))
    for n in range(61):
        town.pair.submit(b"killer" if n == 30 else b"%d" % n, rerun=True)
    town.play(8.0)
    answers: list[Any] = town.pair.answers
    assert len(answers) == 61
    assert [answer.call for answer in answers if answer.status] == [30]
    lost = next(answer for answer in answers if answer.status)
    assert error_records.decode(lost.body).code == "worker-lost"
    assert len(town.pair.lost) == 3  # the killer's three executions, the last of them alone


def test_a_worker_that_drains_for_a_suspect_is_given_back_when_that_is_cancelled():
    town = Town(2)
    pair = town.pair
    for n in range(4):
        pair.submit(b"%d" % n, rerun=True)
    town.kill(b"w1-1")
    pair.advance(0.15, step_s=0.05)  # declared lost, and not replaced yet
    worker = pair.router.workforce.workers[b"w0-1"]
    assert duty_of(worker) is Duty.DRAINING
    for call in (1, 3):
        pair.cancel(call)
    pair.advance(0.05, step_s=0.05)
    assert duty_of(worker) is Duty.ANY


def test_g9_a_group_that_a_pause_cut_short_went_on_at_a_worker_that_was_dead():
    """While dispatching was paused one suspect was tried.  If its worker died, the next one was
    dispatched to that worker, too: nobody ever answered it."""
    limits = {"pause_after_errors": 1, "pause_s": 10.0, "worker_capacity": 8}
    pair = Pair(workers=2, server=limits, client={"max_executions": 4})
    for n in range(8):
        pair.submit(b"%d" % n, rerun=True)
    pair.die(b"w0-1")
    pair.advance(10.5)
    tried, _ = pair.runs[-1]
    assert tried == b"w0-2"
    pair.die(tried)
    pair.advance(10.5)
    workers = pair.router.workforce.workers
    works = [ticket.work for ticket in pair.session.tickets.values()]
    running = [work.execution for work in works if work is not None and work.execution]
    assert len(running) == 5, "one more is tried"
    assert all(each.worker is workers.get(each.worker.id) for each in running)


def test_a_group_that_a_pause_cut_short_went_on_beside_what_else_runs_there():
    """Its worker had ended the first of the group, and served others again."""
    limits = {"pause_after_errors": 1, "pause_s": 10.0, "worker_capacity": 8}
    pair = Pair(server=limits, client={"max_executions": 4})
    for n in range(4):
        pair.submit(b"%d" % n, rerun=True)
    pair.die()
    pair.advance(10.5)
    first = pair.runs[-1]
    pair.submit(b"another")
    pair.end(first)  # a result: dispatching goes on
    worker = pair.router.workforce.workers[b"w0-2"]
    beside = [bytes(run.body) for _, run in pair.runs[5:]]
    assert duty_of(worker) is Duty.SUSPECTS
    assert beside == [b"1", b"2"], "a new group, alone"
