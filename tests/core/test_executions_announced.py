"""Large outcomes: announced by their workers, sent when the router has room (G8)."""

from __future__ import annotations

from typing import Any

from trio_envserve.core import messages, outcomes
from trio_envserve.core.limits import KIB
from trio_envserve.core.pool import LifeInput, Phase
from trio_envserve.core.router_inputs import Exited, Tick, WorkerMessage
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.core.work import WorkState
from trio_envserve.core.worker import BeatDue, OutcomeMade, RouterMessage

from .helpers import Pair, identifier
from .test_pool_elastic import GROW_S, SHRINK_S, Elastic

SIZE = 100 * KIB
BOUND = 4 * SIZE + 2 * KIB
"""Half of it is a session's share: room for two, if nobody else has any."""
LARGE = bytes(SIZE)


def pair_of(calls: int, *, server: dict[str, Any] | None = None, **how: Any) -> Pair:
    """A pair with so many calls that run."""
    pair = Pair(server={"kept_bytes": BOUND, **(server or {})}, **how)
    for n in range(calls):
        pair.submit(b"%d" % n)
    assert len(pair.runs) == calls
    return pair


def end_all(pair: Pair) -> None:
    for run in list(pair.runs):
        pair.end(run, LARGE)


def held(pair: Pair) -> tuple[int, int]:
    """What the router has of outcomes or has asked for, and what waits at workers."""
    return pair.router.accounts.all.kept_bytes, pair.router.accounts.all.announced_bytes


def nothing_left(pair: Pair) -> bool:
    workforce = pair.router.workforce
    return held(pair) == (0, 0) and not pair.router.announced and not workforce.live_count()


def test_a13_what_ran_was_kept_beyond_the_bound_of_bytes():
    """120 outcomes of 20 MB that nobody fetched: 2.3 GiB, with a bound of 256 MiB."""
    pair = pair_of(20)
    end_all(pair)
    kept, waiting = held(pair)
    assert kept <= BOUND // 2, "more is kept than the session's share"
    assert (len(pair.answers), waiting, len(pair.router.announced)) == (2, 18 * SIZE, 18)
    for call in range(20):
        assert len(pair.answers) > call
        pair.receive(call)
        assert held(pair)[0] <= BOUND // 2
    assert {answer.body for answer in pair.answers if isinstance(answer.body, bytes)} == {LARGE}  # type: ignore[union-attr]
    pair.beat()
    assert nothing_left(pair)
    assert not pair.workers[b"w0-1"]._held


def test_sessions_take_turns_and_one_that_does_not_fetch_stops_no_other():
    pair = pair_of(0)
    stranger = pair.stranger()
    for sequence in range(4):
        pair.ask(stranger, sequence, b"stranger")
    for n in range(4):
        pair.submit(b"%d" % n)
    end_all(pair)  # first the stranger's, of which it never takes one
    sent = pair.mailed(messages.Outcome)
    assert len(sent) == 2
    assert len(pair.answers) == 1  # a share of what is left
    for call in range(4):
        assert len(pair.answers) > call
        pair.receive(call)
    assert len(pair.mailed(messages.Outcome)) == 2
    pair.tell(messages.Finish(stranger, [0, 2]), route=b"stranger")
    assert len(pair.mailed(messages.Outcome)) == 4


def test_g10_a_worker_that_announces_what_never_ran_is_killed_and_not_answered():
    """Each of these was answered, and kept in memory until a beat that need not come."""
    pair = Pair()
    worker = pair.router.workforce.workers[b"w0-1"]
    told = worker.sent
    pair.from_worker(messages.Announced(pair.session.id, 0, 7, SIZE))
    assert [kill.worker for kill in pair.kills] == [b"w0-1"]
    assert (worker.sent, worker.dropped) == (told, {})


# -- what comes in between --------------------------------------------------------


def waiting(**how: Any) -> Pair:
    """Two outcomes are here, the third waits at its worker."""
    pair = pair_of(3, **how)
    end_all(pair)
    work = pair.session.tickets[2].work
    assert work is not None
    assert (work.state, work.executions) == (WorkState.RUNNING, 1)
    return pair


def test_g7_a_cancel_ends_it_at_once():
    pair = waiting()
    pair.cancel(2)
    assert (pair.router.workforce.live_count(), held(pair)[1]) == (0, 0)
    assert pair.cancels == []  # nothing runs that could be told
    assert list(pair.workers[b"w0-1"]._held) == []
    pair.beat()
    assert pair.kills == []


def test_deadline_and_death_in_one_tick_took_an_execution_out_twice():
    """The router ended with a KeyError."""
    pair = pair_of(2)
    pair.submit(b"2", limit_s=30.0)
    end_all(pair)
    pair.give(Exited(b"w0-1", pair.now_s, "killed by a test"))
    del pair.workers[b"w0-1"]
    pair.router_takes(Tick(pair.now_s + 60.0))
    assert pair.failure(2).verdict is Verdict.RAN_AND_FAILED
    assert pair.router.workforce.live_count() == 0


def test_g7_a_cancel_that_crosses_its_outcome_takes_nothing_for_a_difference():
    pair = pair_of(1, server={"kept_bytes": 2 * SIZE})
    worker, run = pair.runs[0]
    announced, *_ = pair.workers[worker].take(OutcomeMade(run.number, Status.RESULT, LARGE, 1.0))
    outcomes_: list[Any] = []
    pair.lose = lambda message: isinstance(message, messages.Fetch)
    pair.work(worker, [announced])
    pair.settle()  # it is asked for the outcome
    pair.lose = lambda message: False
    core = pair.workers[worker]
    fetch = messages.encode(messages.Fetch([0, 1], []))
    outcomes_ += core.take(RouterMessage((core.incarnation, fetch)))
    beat = core.take(BeatDue({}))
    pair.cancel(0)  # before that has come
    pair.work(worker, [*outcomes_, *beat])
    pair.settle()
    pair.beat()
    assert pair.kills == []
    assert nothing_left(pair)


def test_g7_a_cancel_that_crosses_the_announcement_ends_it():
    pair = pair_of(1)
    pair.lose = lambda message: isinstance(message, messages.Stop)
    pair.cancel(0)
    assert pair.router.workforce.live_count() == 1
    pair.end(payload=LARGE)
    assert pair.router.workforce.live_count() == 0
    assert nothing_left(pair)


def test_g9_a_deadline_says_that_it_has_run():
    pair = pair_of(0)
    for n in range(3):
        pair.submit(b"%d" % n, limit_s=None if n < 2 else 3.0)
    end_all(pair)
    pair.advance(4.0)
    assert len(pair.answers) == 3
    info = pair.failure()
    assert (info.code, info.verdict) == ("deadline", Verdict.RAN_AND_FAILED)
    assert str(SIZE) in info.message
    assert "has run" in info.message
    assert pair.router.workforce.live_count() == 0


def test_g9_its_workers_death_loses_it_and_says_that_it_had_run():
    pair = waiting()
    pair.die(b"w0-1")
    info = pair.failure()
    assert (info.code, info.verdict) == ("worker-lost", Verdict.MAY_HAVE_RUN)
    assert "had run" in info.message
    for call in range(3):
        pair.receive(call)
    assert nothing_left(pair)


def test_g2_with_consent_it_runs_again_after_its_workers_death():
    pair = waiting(rerun=True)
    for call in range(2):
        pair.lose = lambda message: isinstance(message, messages.Fetch)
        pair.receive(call)
    assert held(pair) == (SIZE, 0)  # asked for, and that was lost
    pair.lose = lambda message: False
    pair.die(b"w0-1")
    pair.advance(1.0)
    assert held(pair) == (0, 0)
    assert [run.body for _, run in pair.runs[3:]] == [b"2"]


def test_a_server_that_stops_says_that_it_has_run():
    pair = waiting()
    works = pair.router.works
    works.answer_all(lambda work: work.execution is not None, outcomes.stopped)
    pair.router_takes(Tick(pair.now_s))
    info = pair.failure()
    assert (info.code, info.verdict) == ("server-stopped", Verdict.MAY_HAVE_RUN)
    assert "has run" in info.message


def test_what_its_client_cannot_take_is_not_fetched():
    pair = Pair.asked(wire={"message_bytes": 99 * KIB}, server={"kept_bytes": BOUND})
    pair.lose = lambda message: isinstance(message, messages.WorkerOutcome)
    pair.end(payload=LARGE)
    info = pair.failure()
    assert (info.code, info.verdict) == ("outcome-too-large", Verdict.RAN_AND_FAILED)


# -- from the wrong one, or of something else ----------------------------------------


def announce(pair: Pair, **changed: Any) -> None:
    session = pair.session.id
    message = messages.Announced(session, 0, 0, SIZE)._replace(**changed)
    frames = (pair.workers[b"w0-1"].incarnation, messages.encode(message))
    pair.router_takes(WorkerMessage((b"w0-1", *frames), pair.now_s))


def test_an_announcement_of_what_does_not_live_changes_nothing():
    pair = pair_of(1)
    announce(pair, number=7)
    announce(pair, sequence=7)
    announce(pair, session=identifier(7))
    assert held(pair) == (0, 0)
    assert pair.router.malformed == 3


def test_an_outcome_that_comes_before_it_was_asked_for_is_taken():
    pair = waiting()
    core = pair.workers[b"w0-1"]
    pair.router_takes(WorkerMessage((b"w0-1", *core._held[2].message.frames), pair.now_s))
    assert len(pair.answers) == 3
    assert held(pair)[1] == 0


# -- workers that drain -----------------------------------------------------------
# A worker that was to be replaced kept its place for as long as it held an outcome, and a pool of
# one stood still for everybody while one client took none.


class Recycled(Elastic):
    """A pool of one worker, which is replaced after each execution."""

    def __init__(self) -> None:
        super().__init__(least=1, most=1, kept_bytes=BOUND, recycle_executions=1)

    def hoarder(self, number: int) -> bytes:
        """The session of a client that takes none of its large outcomes: a worker holds the last
        one, and the client has no more work done."""
        stranger, sequence = self.stranger(number), 0
        announced, waiting = len(self.router.announced), len(self.router.queue)
        while len(self.router.announced) == announced:
            self.ask(stranger, sequence)
            self.end(payload=LARGE)
            self.pass_on()
            sequence += 1
        self.ask(stranger, sequence)
        assert len(self.router.queue) == waiting + 1, "it gets no more work"
        return stranger

    def pass_on(self) -> None:
        """Workers that were told to exit do, and others start."""
        self.advance(0.5)
        self.reaped()
        self.advance(0.5)

    def finish(self, session: bytes, *spans: int) -> None:
        """A client has these outcomes, or wants them no more."""
        self.tell(messages.Finish(session, list(spans)), route=b"stranger")
        self.pass_on()

    def phases(self) -> dict[str, str]:
        """Phases of the workers."""
        return {each["worker"]: each["phase"] for each in self.router.stats()["per_worker"]}


def test_g9_client_that_takes_nothing_stopped_a_pool_whose_only_worker_was_to_be_replaced():
    pair = Recycled()
    stranger = pair.hoarder(900)
    assert pair.phases() == {"w0-3": "emptying", "w0-4": "ready"}
    for call in range(3):
        pair.submit(b"%d" % call)
        pair.end()
        assert pair.result(call) == b"outcome"
        pair.pass_on()
    assert pair.phases() == {"w0-3": "emptying", "w0-7": "ready"}
    pair.finish(stranger, 0, 1)
    assert "w0-3" not in pair.phases(), "it has given what it held"
    assert len(pair.mailed(messages.Outcome)) == 3
    assert not pair.kills


def test_g8_second_worker_of_a_place_with_what_nobody_takes_waits_there_for_the_first():
    pair = Recycled()
    first, second = pair.hoarder(900), pair.hoarder(901)
    assert pair.phases() == {"w0-3": "emptying", "w0-5": "retiring"}
    pair.finish(first, 2, 4)
    assert pair.phases() == {"w0-5": "emptying", "w0-6": "ready"}
    pair.finish(second, 1, 3)
    assert pair.phases() == {"w0-6": "ready"}


def test_cancel_of_what_it_holds_ends_a_worker_that_has_left_its_place():
    pair = Recycled()
    pair.finish(pair.hoarder(900), 2, 4)
    assert pair.phases() == {"w0-4": "ready"}


def test_worker_that_has_left_its_place_and_says_what_cannot_be_is_killed():
    for said in (messages.Announced(identifier(1), 0, 7, SIZE), messages.Beat(b"", 9, 9, [], {})):
        pair = Recycled()
        pair.hoarder(900)
        pair.from_worker(said, worker=b"w0-3")
        assert [kill.worker for kill in pair.kills] == [b"w0-3"]
        assert pair.phases() == {"w0-3": "ending", "w0-4": "ready"}


def beside(pair: Pair, workers: int) -> None:
    """So many workers hold an outcome each and have left their places to others."""
    for number in range(workers):
        pair.ask(pair.stranger(950 + number))
    with pair.losing(messages.Fetch):
        end_all(pair)
    for life in list(pair.router.pool.lives.values())[:workers]:
        pair.router.pool.step(life, LifeInput.RETIRE, pair.now_s, "old")
    pair.advance(1.0)
    assert sum(life.phase is Phase.EMPTYING for life in pair.router.pool.lives.values()) == workers


def test_workers_that_had_left_their_places_let_suspects_have_all_others():
    pair = Pair(workers=2, server={"kept_bytes": 1, "worker_capacity": 2})
    beside(pair, 2)
    for number in (900, 901):
        pair.ask(pair.stranger(number), rerun=True, allowance=3)
    for worker in (b"w0-2", b"w1-2"):
        pair.die(worker)
    pair.ask(pair.stranger(902), body=b"no suspect")
    pair.advance(5.0)
    assert [run.body for _, run in pair.runs[4:]] == [b"b", b"no suspect"]


def test_machine_whose_worker_had_left_its_place_looked_half_as_busy():
    pair = Pair(server={"kept_bytes": 1})
    beside(pair, 1)
    pair.router.pool.open_slots(1, "b")
    pair.advance(1.0)
    for number in range(6):
        pair.ask(pair.stranger(900 + number))
    went = [worker for worker, _ in pair.runs[1:]]
    assert [went.count(worker) for worker in (b"w0-2", b"w1-1")] == [3, 3]
    pair.die(b"w0-1")
    site = pair.router.workforce.sites[""]
    assert (site.members, site.workers) == (1, 1)


def test_worker_that_is_not_needed_stays_in_its_place_with_what_it_holds_and_is_recalled():
    """Nobody else is to start there, and to recall it is quicker than a start."""
    pair = Elastic(least=1, most=2, kept_bytes=1, session_share=1.0)
    pair.grown(2)
    with pair.losing(messages.Fetch):
        for run in list(pair.runs):
            pair.end(run, LARGE)
    pair.advance(SHRINK_S + 1.0)
    phases = [each["phase"] for each in pair.router.stats()["per_worker"]]
    assert sorted(phases) == ["ready", "retiring"]
    spawns = len(pair.spawns)
    for number in (900, 901):
        pair.ask(pair.stranger(number))
    pair.advance(GROW_S + 1.0)
    assert (pair.wanted(), len(pair.spawns), len(pair.runs)) == (2, spawns, 4)
    assert not pair.exits


def test_worker_of_a_server_that_closes_keeps_its_place_with_what_it_holds():
    pair = waiting(server={"recycle_executions": 3})
    pair.close()
    pair.advance(1.0)
    assert [life.phase for life in pair.router.pool.lives.values()] == [Phase.RETIRING]
