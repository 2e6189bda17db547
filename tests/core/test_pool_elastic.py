"""A pool that grows and shrinks: when, by how much, and what becomes of its workers."""

from __future__ import annotations

from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.pool import NOT_NEEDED, Phase
from trio_envserve.core.router_inputs import Exited
from trio_envserve.core.worker import BeginRun, EnvironmentReady
from trio_envserve.core.worker_range import WorkerRange

from .helpers import Pair

GROW_S, SHRINK_S = 5.0, 60.0


class Elastic(Pair):
    """A pool of 2 to 8 workers, each with one execution at once."""

    def __init__(self, least: int = 2, most: int = 8, **limits: float) -> None:
        workers = WorkerRange(least, most)
        super().__init__(workers=workers, server={"worker_capacity": 1, **limits})

    def wanted(self) -> int:
        return self.router.pool.wanted

    def serving(self) -> int:
        """Processes that were not told to end."""
        return sum(not life.leaving for life in self.router.pool.lives.values())

    def grown(self, to: int) -> None:
        """As many workers as that, each with an execution."""
        self.submit_many(to - len(self.runs))
        while self.wanted() < to:
            self.advance(GROW_S + 0.5)
        assert (self.wanted(), len(self.runs)) == (to, to)

    def run_dry(self) -> None:
        """Whatever runs has its outcome, and so has what runs next."""
        while self.runs:
            self.end(self.runs[0])
            del self.runs[0]

    def reaped(self) -> None:
        """Processes that were told to exit do."""
        for worker in self.exits:
            if self.workers.pop(worker, None) is not None:
                self.give(Exited(worker, self.now_s, "exit 0"))
        self.settle()


def said(pair: Pair, text: str) -> list[str]:
    return [report.text for report in pair.reports if text in report.text]


# -- growing ---------------------------------------------------------------------------


def test_it_grows_once_a_request_has_waited_for_long_and_not_before_and_says_why():
    pair = Elastic()
    stats = pair.router.stats()
    assert (stats["workers_least"], stats["workers"], stats["workers_most"]) == (2, 2, 8)
    assert (stats["resized"], stats["oldest_wait_s"]) == ("", 0.0)
    pair.submit_many(3)
    pair.advance(GROW_S - 0.5)
    assert (pair.wanted(), len(pair.runs)) == (2, 2)
    assert pair.router.stats()["oldest_wait_s"] == 4.5
    pair.advance(0.5)
    assert (pair.wanted(), pair.serving(), len(pair.runs)) == (3, 3, 3)
    stats = pair.router.stats()
    assert (stats["workers"], stats["bounds"]["running"]) == (3, 3)
    assert stats["resized"] == "2 -> 3 workers: a request has waited for 5.0 s"
    assert said(pair, stats["resized"])


def test_it_doubles_at_most_and_ends_at_its_most():
    pair = Elastic()
    pair.submit_many(100)
    sizes = set()
    for _ in range(20):
        pair.advance(0.5)
        sizes.add(pair.wanted())
    assert sizes == {2, 4, 8}
    assert (pair.serving(), len(pair.runs)) == (8, 8)


def test_it_does_not_grow_before_its_first_workers_are_ready():
    pair = Elastic()
    pair.auto_hello = False
    pair.restart(proven=True)
    pair.advance(1.0)
    pair.submit_many(100)
    pair.advance(GROW_S * 5)
    assert pair.wanted() == 2


# -- shrinking -------------------------------------------------------------------------


def test_it_shrinks_once_fewer_were_enough_for_long():
    pair = Elastic()
    pair.grown(8)
    pair.run_dry()
    pair.advance(SHRINK_S - 2.0)
    assert pair.wanted() == 8
    pair.advance(3.0)
    assert (pair.wanted(), pair.serving()) == (2, 2)
    assert sorted(pair.exits) == [b"w%d-1" % n for n in range(2, 8)]
    assert not pair.kills
    pair.reaped()
    pair.advance(SHRINK_S * 3)
    assert (pair.wanted(), pair.serving()) == (2, 2)
    assert said(pair, "8 -> 2 workers: fewer were enough for 60 s")


def test_it_keeps_what_was_needed_in_that_time():
    pair = Elastic()
    pair.grown(8)
    pair.run_dry()
    pair.advance(SHRINK_S / 2)
    pair.submit_many(5)
    pair.advance(1.0)
    pair.run_dry()
    pair.advance(SHRINK_S / 2)
    assert pair.wanted() == 5
    pair.advance(SHRINK_S + 1.0)
    assert pair.wanted() == 2


def half_idle() -> tuple[Elastic, dict[bytes, tuple[bytes, BeginRun]]]:
    """A pool that has shrunk from 4 to 2 workers, each of which runs one more: what they run."""
    pair = Elastic(least=1, most=4, worker_capacity=2)
    pair.submit_many(8)
    pair.advance(GROW_S * 3)
    assert (pair.wanted(), len(pair.runs)) == (4, 8)
    runs, ended = list(pair.runs), {run[0]: run for run in pair.runs}
    pair.runs.clear()
    for run in ended.values():
        pair.end(run)
    pair.advance(SHRINK_S + 1.0)
    assert pair.wanted() == 2
    assert not pair.exits
    return pair, {run[0]: run for run in runs if run not in ended.values()}


def test_a_worker_that_is_not_needed_ends_what_it_runs_and_gets_nothing_new():
    """Its execution may take an hour: it is neither killed nor cancelled."""
    pair, runs = half_idle()
    draining = [life for life in pair.router.pool.lives.values() if life.phase is Phase.RETIRING]
    assert [life.why for life in draining] == [NOT_NEEDED] * 2
    pair.submit_many(1)
    assert pair.runs[-1][0] not in {life.id for life in draining}
    for life in draining:
        pair.end(runs[life.id])
    pair.advance(1.0)
    assert sorted(pair.exits) == sorted(life.id for life in draining)
    assert not pair.kills
    assert not pair.cancels


def test_a_worker_that_drains_is_taken_back_before_another_one_is_started():
    pair, _ = half_idle()
    spawns = len(pair.spawns)
    pair.submit_many(4)
    pair.advance(GROW_S + 1.0)
    assert (pair.wanted(), len(pair.spawns), len(pair.runs)) == (4, spawns, 4)
    assert len(said(pair, "is needed again: it does not retire")) == 2
    assert not pair.exits


def test_a_worker_that_starts_when_it_is_not_needed_any_more_ends_once_it_is_ready():
    pair = Elastic(least=1, most=2)
    pair.auto_hello = False
    pair.submit_many(2)
    pair.advance(GROW_S)
    assert pair.wanted() == 2
    pair.run_dry()
    pair.advance(SHRINK_S + 1.0)
    assert (pair.wanted(), pair.serving()) == (1, 2)
    pair.work(b"w1-1", pair.workers[b"w1-1"].take(EnvironmentReady(1, "env", False)))
    pair.advance(1.0)
    assert pair.exits == [b"w1-1"]
    assert not pair.kills


def test_a_place_that_is_empty_goes_first_and_forgets_how_its_last_worker_ended():
    pair = Elastic(least=1, most=2, restart_pause_s=1000.0, restart_pause_max_s=1000.0)
    pair.grown(2)
    pair.run_dry()
    pair.die(b"w0-1")
    restarts = pair.router.pool.restarts
    pair.advance(SHRINK_S + 1.0)
    assert pair.wanted() == 1
    assert not pair.exits
    assert pair.router.pool.slots[0].spare
    pair.submit_many(2)
    pair.advance(GROW_S + 1.0)
    assert (pair.wanted(), pair.serving()) == (2, 2)
    assert pair.router.pool.restarts == restarts  # it is one worker more, not a replacement


def test_nobody_grows_or_shrinks_in_a_server_that_closes():
    pair = Elastic()
    pair.grown(8)
    pair.close(ClosingStage.DRAINING, 1000.0)
    pair.run_dry()
    pair.advance(SHRINK_S * 2)
    assert pair.wanted() == 8


def test_a_server_that_slept_does_neither():
    """The time in which it was stopped counts for a second."""
    pair = Elastic()
    pair.grown(4)
    pair.run_dry()
    pair.advance(1.0)
    pair.advance(1000.0, step_s=1000.0)
    assert pair.wanted() == 4
