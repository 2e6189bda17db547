"""Grouping changes no outcome: what is done to many at once comes to the same as one by one.

Callers ask, take and cancel, code ends, workers die.  A history is a list of steps, and a
step is a list of such acts.  Two systems play the same history: in one the acts of a
step happen in one turn, their messages share batches, and one finish names them all; in
the other everything settles after each act, and each message is a batch of one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from trio_envserve.core import error_records
from trio_envserve.core.client import (
    Answer,
    CallsCancelled,
    CallSubmitted,
    Fail,
    OutcomeReceived,
    Terms,
)
from trio_envserve.core.messages import Outcome
from trio_envserve.core.requests import grant
from trio_envserve.core.router_inputs import Exited
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import BeginRun, OutcomeMade

from .helpers import Pair

WORKERS, CAPACITY, WINDOW = 2, 3, 9
FLUSH_S = 0.05
"""Within so many seconds a finish is flushed."""

PAUSE_S = 0.2
"""The pause before a dead worker is replaced, however many have died before it."""

REPLACED_S = 0.6
"""Within so many seconds it is replaced."""


class Ask(NamedTuple):
    """A caller asks."""

    rerun: bool
    most: int


class Take(NamedTuple):
    """The caller of one of the answered calls has the outcome in hands."""

    which: int


class Cancel(NamedTuple):
    """The caller of one of the calls that were not taken gives up."""

    which: int


class End(NamedTuple):
    """The code of these executions, of those that run, ends; then perhaps the worker of the
    first that still runs dies.

    It dies only if no request waits for a place, and if the same run on it in both systems:
    which request begins next on which worker depends on the turn."""

    which: list[int]
    dies: bool


Caller: TypeAlias = Ask | Take | Cancel
Step: TypeAlias = list[Caller] | End

INDEX = st.integers(0, 30)
CALLERS: st.SearchStrategy[Caller] = st.one_of(
    st.builds(Ask, st.booleans(), st.integers(1, 3)),
    st.builds(Take, INDEX),
    st.builds(Cancel, INDEX),
)
HISTORIES: st.SearchStrategy[list[Step]] = st.lists(
    st.lists(CALLERS, min_size=1, max_size=8)
    | st.builds(End, st.lists(INDEX, max_size=4), st.booleans()),
    min_size=1,
    max_size=12,
)
BOUNDS = (st.integers(1, 20), st.integers(2, 20), st.integers(1, 4), st.integers(1, 3))
"""How many calls, how many of them at once, the room of the queue and of a worker."""


class Town:
    """A system and its callers."""

    def __init__(self, *, together: bool, **limits: Any) -> None:
        self.together = together
        usual = {
            "worker_capacity": CAPACITY, "window": WINDOW,
            "restart_pause_s": PAUSE_S, "restart_pause_max_s": PAUSE_S,
        }  # fmt: skip
        self.pair = Pair(workers=WORKERS, server=usual | limits)
        self.pair.batched = together
        self.allowed: list[int] = []
        """How many executions each call may have."""
        self.deaths: Counter[int] = Counter()
        """How often a worker died that ran a call."""
        self.cancelled: set[int] = set()
        self.taken: set[int] = set()

    # -- what happens -------------------------------------------------------------

    def step(self, step: Step, *, may_die: bool = True) -> None:
        """All acts of a step; those that are impossible when it begins are left out."""
        if isinstance(step, End):
            self._ends(step, may_die)
        else:
            self._callers(step)
        self._rest()

    def _callers(self, acts: list[Caller]) -> None:
        answered = self.answered()
        asked = sorted(set(range(self.pair.calls)) - self.taken - self.cancelled)
        given: list[Any] = []
        cancelled: list[int] = []
        for act in acts:
            match act:
                case Ask(rerun, most):
                    number = self.pair.new_call()
                    self.allowed.append(grant(most) if rerun else 1)
                    given.append(
                        CallSubmitted(number, b"%d" % number, self.pair.now_s, Terms(rerun, most))
                    )
                case Take(which) if answered:
                    number = answered.pop(which % len(answered))
                    if number not in cancelled:
                        self.taken.add(number)
                        given.append(OutcomeReceived(number, self.pair.now_s))
                case Cancel(which) if asked:
                    number = asked.pop(which % len(asked))
                    if number not in self.taken:
                        cancelled.append(number)
        self.cancelled.update(cancelled)
        self._give(sorted(cancelled, reverse=True), given)

    def _give(self, cancelled: list[int], given: list[Any]) -> None:
        """Calls are cancelled before anything else, the newest first: whether a call had been
        sent before it was cancelled would depend on the turn."""
        now_s = self.pair.now_s
        if self.together:
            self.pair.give_client(*[CallsCancelled(cancelled, now_s)] * bool(cancelled), *given)
            self._settle()
        else:
            for each in (*(CallsCancelled([number], now_s) for number in cancelled), *given):
                self.pair.give_client(each)
                self._settle()

    def _ends(self, end: End, may_die: bool) -> None:
        live = self.live()
        ending = [live[i] for i in dict.fromkeys(n % len(live) for n in end.which)] if live else []
        rest = [each for each in live if each not in ending]
        waits = len(self.pair.router.queue) > 0
        for worker, run in ending:
            core = self.pair.workers[worker]
            payload = b"result of %s" % run.body
            self.pair.work(worker, core.take(OutcomeMade(run.number, Status.RESULT, payload, 1.0)))
            if not self.together:
                self._settle()
        self.pair.leave()  # before anything dies
        if end.dies and may_die and rest and not waits:
            self._die(rest[0][0])

    def _die(self, worker: bytes) -> None:
        self.deaths.update(int(run.body) for where, run in self.live() if where == worker)
        del self.pair.workers[worker]
        self.pair.give(Exited(worker, self.pair.now_s, "killed by a test"))

    def _settle(self) -> None:
        self.pair.advance(FLUSH_S, step_s=FLUSH_S)

    def _rest(self) -> None:
        """The step is over: what was told to stop stops, and who is dead is replaced."""
        self.pair.advance(REPLACED_S, step_s=REPLACED_S / 3)
        for worker, run in self.live():
            if (worker, run.number) in self.pair.cancels:
                made = OutcomeMade(run.number, Status.CANCELLED, b"", 1.0)
                self.pair.work(worker, self.pair.workers[worker].take(made))
        self._settle()

    def end_all(self) -> None:
        """Everything that runs ends and is taken, until nothing runs: what is not taken
        holds its place in the window, and the next call is not sent."""
        while self.live() or self.answered():
            self.step(End([*range(len(self.live()))], dies=False))
            self.step([Take(0)] * len(self.answered()))

    # -- what is seen -------------------------------------------------------------

    def live(self) -> list[tuple[bytes, BeginRun]]:
        """The executions whose code runs, in the order of their calls: in which order
        several workers hear of what was done together says nothing."""
        workers = self.pair.workers
        live = [
            (worker, run) for worker, run in self.pair.runs
            if worker in workers and run.number in workers[worker].running
        ]  # fmt: skip
        return sorted(live, key=lambda each: int(each[1].body))

    def answered(self) -> list[int]:
        """The calls that have an outcome and whose caller may take it."""
        return sorted({*self.outcomes()} - self.taken)

    def starts(self) -> Counter[bytes]:
        """How often each call was started."""
        return Counter(bytes(run.body) for _, run in self.pair.runs)

    def places(self) -> list[tuple[bytes, bytes]]:
        """What runs where."""
        return [(worker, bytes(run.body)) for worker, run in self.live()]

    def outcomes(self) -> dict[int, tuple[Status, bytes, int]]:
        """What each call came to, unless it was cancelled; not where."""
        return {
            ended.call: _plain(ended) for ended in self.pair.answers
            if ended.call not in self.cancelled
        }  # fmt: skip

    def picture(self) -> Any:
        """Everything that must not depend on what was done together."""
        taken, session = self.pair.router.accounts.all, self.pair.session
        return (
            self.outcomes(), self.starts(), [run.body for _, run in self.live()],
            {sequence: ticket.standing for sequence, ticket in session.tickets.items()},
            session.finished, sorted(self.pair.client.calls.live),
            (taken.kept_count, taken.kept_bytes, taken.waiting, taken.running_count),
            taken.held_bytes,
        )  # fmt: skip

    def judge(self) -> None:
        """Each call that was not cancelled has one outcome: its own result, unless workers
        died of all executions that it may have.  None was started without need."""
        outcomes, starts = self.outcomes(), self.starts()
        assert sorted(outcomes) == sorted({*range(self.pair.calls)} - self.cancelled)
        for number, (status, payload, executions) in outcomes.items():
            most, deaths = self.allowed[number], self.deaths[number]
            assert (status is Status.RESULT) is (deaths < most)
            assert status is not Status.RESULT or payload == b"result of %d" % number
            assert starts[b"%d" % number] == executions == min(deaths + 1, most)
        told: dict[int, Outcome] = {}
        for message in self.pair.told:
            if isinstance(message, Outcome):
                assert told.setdefault(message.sequence, message) == message, "two outcomes"


def _plain(ended: Answer | Fail) -> tuple[Status, bytes, int]:
    assert isinstance(ended, Answer), ended
    if ended.status is Status.RESULT:
        return ended.status, bytes(ended.body), ended.executions
    return ended.status, error_records.decode(ended.body).code.encode(), ended.executions


def play_twice(history: list[Step]) -> None:
    """Both systems do the same, step by step."""
    together, apart = Town(together=True), Town(together=False)
    for step in history:
        same = together.places() == apart.places()
        for town in (together, apart):
            town.step(step, may_die=same)
        assert together.picture() == apart.picture()
    for town in (together, apart):
        town.end_all()
        town.judge()
    assert together.picture() == apart.picture()


def play_at_the_bounds(calls: int, at_once: int, queue: int, capacity: int) -> None:
    """Callers ask together for more than there is room: a part is refused for now."""
    for together in (True, False):
        town = Town(together=together, queue=queue, worker_capacity=capacity, window=64)
        for first in range(0, calls, at_once):
            town.step([Ask(False, 1)] * min(at_once, calls - first))
        while town.live():
            town.end_all()
            town.pair.advance(1.0)  # what was refused is tried again
        town.judge()
        assert town.pair.client.sessions.current is not None
        assert town.pair.client.sessions.current.next == calls, "an accepted one had another id"


def play_where_outcomes_are_lost(calls: int) -> None:
    """Of outcomes that were reported together only the first arrives.  It is finished, and
    the others are replayed."""
    town = Town(together=True)
    town.step([Ask(False, 1)] * calls)
    town.pair.lose = lambda message: isinstance(message, Outcome) and message.sequence > 0
    town.step(End([*range(calls)], dies=False))
    town.step([Take(0)])
    assert sorted(town.outcomes()) == [0]
    town.pair.lose = lambda message: False
    town.pair.advance(5.0)
    town.end_all()
    town.judge()


@settings(derandomize=True, database=None)
@given(HISTORIES)
def test_what_is_done_together_comes_to_the_same_as_one_by_one(history: list[Step]) -> None:
    play_twice(history)


@settings(derandomize=True, database=None)
@given(*BOUNDS)
def test_what_is_refused_for_now_is_tried_again_alone(
    calls: int, at_once: int, queue: int, capacity: int
) -> None:
    play_at_the_bounds(calls, at_once, queue, capacity)
