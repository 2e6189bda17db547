"""Works against an independent model, by random histories.

The machine plays callers, the scheduler and the workers.  The model (work_model.py) says what
is told after each input; after each step all records are its own, and the simulator's audit
counts every sum anew.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from trio_envserve.core.executions import Execution
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.requests import RetainedOutcome
from trio_envserve.core.work import LOST_CALLERS, Work, WorkInput, Works, WorkState
from trio_envserve.lab.simulation.bounds import audit

from . import work_model as model
from .bench import Bench, Told, lost, made
from .helpers import identifier
from .work_model import Id, Job, Model

KEYS = KeyLimits(
    namespace_bytes=model.NAMESPACE_BYTES, key_bytes=model.KEY_BYTES,
    generations=model.GENERATIONS, retained_bytes=model.RETAINED_BYTES,
    namespace_share=model.NAMESPACE_SHARE, namespaces=model.NAMESPACES, waiters=model.WAITERS,
    commands=model.COMMANDS, command_s=model.COMMAND_S, orphan_s=model.ORPHAN_S,
    retention_s=model.RETENTION_S,
)  # fmt: skip
SERVER: dict[str, Any] = {
    "window": model.WINDOW, "queue": model.QUEUE, "queue_bytes": model.QUEUE_BYTES,
    "kept_outcomes": model.KEPT, "session_share": model.SHARE, "sessions": model.SESSIONS,
    "lease_s": model.LEASE_S,
}  # fmt: skip
MOST_LIVE = 4

NAMES = [KeyName(b"a", b"x"), KeyName(b"a", b"y"), KeyName(b"b", b"x"), KeyName(b"b", b"y")]
NAME = st.sampled_from([NAMES[0], NAMES[0], *NAMES])
BAD_NAMES = [
    KeyName(b"", b"x"), KeyName(b"a", b""), KeyName(b"a", b"x" * 5), KeyName(b"a" * 5, b""),
]  # fmt: skip
PAYLOADS = st.sampled_from([b"p", b"p", b"p", b"q", b"r" * 40])
OUTCOMES = st.sampled_from([b"1", b"1", b"2" * 10, b"3" * 300, b"4" * 400])
CONSENT = st.none() | st.booleans()
IDS = st.sampled_from([b"1", b"2", b"3", b"4", b"5"])
AHEAD = st.integers(0, 7)
"""Sequences, counted from the first that is not finished: histories have no end."""
COMMANDS = {"cancel": KeyAct.CANCEL, "forget": KeyAct.FORGET}

Cell = tuple[WorkInput, WorkState]
POSSIBLE: set[Cell] = {
    (input, state) for input, row in Works.TABLE.items() for state, cell in row.items()
    if cell != Works._never and state is not WorkState.ARCHIVED
}  # fmt: skip
"""None of its outcomes is on a disk."""


class WorkMachine(RuleBasedStateMachine):
    """The works of a router, their model, and the world around them."""

    reached: ClassVar[set[Cell]]
    """Over all histories; a subclass has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(KEYS, **SERVER)
        self.bench.reached = self.reached
        self.works = self.bench.works
        self.model = Model()
        self.made: dict[Id, tuple[dict[str, Any], model.Terms, tuple[Any, ...]]] = {}
        """How each request was made: to the bench, its terms, and the rest to the model."""
        self.pairs: list[tuple[Job, Work]] = []
        """The works of the model that are not over, and theirs."""
        self.executions: dict[Job, Execution] = {}
        self.opened = 0

    # -- checking what is told --------------------------------------------------------

    def check(self, told: list[Told], expected: list[model.Told]) -> None:
        """They say what the model says."""
        assert sorted(told, key=repr) == sorted(expected, key=repr)

    def alive(self) -> list[int]:
        return [n for n, c in self.model.clients.items() if not c.ended]

    def session(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.alive()), label="session")

    def base(self, session: int) -> int:
        """The first sequence of a session that was not seen."""
        client = self.model.clients[session]
        seen = client.finished | {*client.asked}
        return next(n for n in itertools.count() if n not in seen)

    def job(self, data: st.DataObject, *states: str) -> Job:
        those = [j for j in self.model.jobs if j.state in states]
        return data.draw(st.sampled_from(those), label="work")

    def any_in(self, *states: str) -> bool:
        return any(j.state in states for j in self.model.jobs)

    def asked(self) -> list[Id]:
        return [(n, s) for n, c in self.model.clients.items() for s in c.asked]

    def work(self, job: Job) -> Work:
        return next(work for each, work in self.pairs if each is job)

    # -- callers ----------------------------------------------------------------------

    @initialize(data=st.data(), declared=st.booleans())
    def first(self, data: st.DataObject, declared: bool) -> None:
        """Begin with something going on, or most histories would be of nothing."""
        self.works.environment.rerun = self.model.declared = declared
        for caller in range(2):
            self._connect(caller)
        self.some_work(data)

    @precondition(lambda self: len(self.alive()) < 4 and len(self.model.clients) < 8)
    @rule(caller=st.integers(0, 2))
    def connect(self, caller: int) -> None:
        """Also a second session of a caller, before the lease of its first has ended."""
        self._connect(caller)

    def _connect(self, caller: int) -> int:
        self.bench.session(self.opened, caller)
        self.model.clients[self.opened] = model.Client(
            caller, self.model.now_s, b"route %d" % self.opened
        )
        self.opened += 1
        return self.opened - 1

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def some_work(self, data: st.DataObject) -> None:
        """Works that wait, run, have ended, or are held by one that was cancelled."""
        fates = st.sampled_from(["wait", "run", "run", "end", "hold", "hold"])
        for fate in data.draw(st.lists(fates, min_size=1, max_size=3), label="fates"):
            name = data.draw(st.none() | NAME, label="name")
            rerun = data.draw(st.sampled_from([True, True, None, False]), label="consent")
            id = self._request(self.session(data), name, b"p", rerun, 3)
            asked = self.model.asked(id)
            job = None if asked is None else asked.job
            if fate == "wait" or job is None:
                continue
            if job.state == "waiting":
                self._dispatch(job)
            if not job.live:
                continue
            if fate == "end" and job.wanted:
                self._end(job, b"1", dead=False)
            elif fate == "hold" and name is not None:
                session = self.session(data)
                self._command(session, "cancel", name, job.number)
                earlier = data.draw(st.sampled_from([None, 1]), label="earlier")
                self._request(session, name, b"p", True, 2, earlier=earlier)

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def an_outcome_fills_its_namespace(self, data: st.DataObject) -> None:
        """Another work of the namespace waits meanwhile."""
        for name in NAMES[:2]:
            self._request(self.session(data), name, b"p", True, 3)
        job = self.model.of_name(NAMES[0])
        if job is not None and job.state == "waiting":
            self._dispatch(job)
        if job is not None and job.state == "running":
            self._end(job, b"4" * 400, dead=False)

    @precondition(lambda self: self.alive())
    @rule(
        data=st.data(), name=st.none() | NAME, payload=PAYLOADS, rerun=CONSENT,
        allowance=st.integers(1, 3), ahead=st.integers(0, 2),
        earlier=st.none() | st.integers(0, 3),
    )  # fmt: skip
    def request(
        self, data: st.DataObject, name: KeyName | None, payload: bytes, rerun: bool | None,
        allowance: int, ahead: int, earlier: int | None,
    ) -> None:  # fmt: skip
        session = self.session(data)
        self._request(
            session, name, payload, rerun, allowance, earlier=earlier,
            sequence=self.base(session) + ahead,
        )  # fmt: skip

    @precondition(lambda self: self.alive() and self.works.open)
    @rule(data=st.data(), allowance=st.integers(1, 3))
    def join(self, data: st.DataObject, allowance: int) -> None:
        """The same input as somebody else."""
        jobs = [j for j in self.model.jobs if j.open and j.name is not None]
        job = data.draw(st.sampled_from(jobs), label="work")
        assert job.name is not None
        name = KeyName(*job.name)
        self._request(self.session(data), name, job.payload, job.rerun, allowance)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), name=NAME)
    def attach(self, data: st.DataObject, name: KeyName) -> None:
        self._request(self.session(data), name, b"", None, 4, act="attach")

    def _request(
        self, session: int, name: KeyName | None, payload: bytes, rerun: bool | None,
        allowance: int, *, act: str = "ask", earlier: int | None = None,
        tag: int | bytes | None = None, sequence: int | None = None,
    ) -> Id:  # fmt: skip
        id = session, self.base(session) if sequence is None else sequence
        how: dict[str, Any] = {
            "name": name, "body": payload, "rerun": rerun, "allowance": allowance,
            "act": KeyAct[act.upper()], "tag": tag, "earlier": earlier,
        }  # fmt: skip
        terms = (name, payload, rerun, act, tag, earlier)
        if self.model.asked(id) is None:
            self.made[id] = how, terms, (rerun, allowance, act, earlier, tag)
        told = self.bench.ask(*id, **how)
        expected = self.model.request(id, terms, payload, rerun, allowance, act, earlier, tag)
        self.check(told, expected)
        self._pair(id)
        return id

    def _pair(self, id: Id) -> None:
        """Know again the work that was opened."""
        asked = self.model.asked(id)
        job = None if asked is None else asked.job
        if job is not None and all(each is not job for each, _ in self.pairs):
            work = self.bench.session(id[0]).tickets[id[1]].work
            assert work is not None
            self.pairs.append((job, work))

    @precondition(lambda self: self.asked())
    @rule(data=st.data(), other=st.booleans())
    def again(self, data: st.DataObject, other: bool) -> None:
        """A request that is not finished comes another time, or another one under its id."""
        id = data.draw(st.sampled_from(self.asked()), label="request")
        how, terms, rest = self.made[id]
        if other:
            how, terms = {**how, "body": how["body"] + b"!"}, ("other", *terms[1:])
        told = self.bench.ask(*id, **how)
        self.check(told, self.model.request(id, terms, how["body"], *rest))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), ahead=st.sets(AHEAD, min_size=1, max_size=3))
    def finish(self, data: st.DataObject, ahead: set[int]) -> None:
        session = self.session(data)
        first = max(0, self.base(session) - 3)
        self._finish(session, {first + n for n in ahead})

    @precondition(lambda self: self.asked())
    @rule(data=st.data())
    def finish_some(self, data: st.DataObject) -> None:
        session, _ = data.draw(st.sampled_from(self.asked()), label="request")
        sequences = st.sets(st.sampled_from([*self.model.clients[session].asked]), min_size=1)
        self._finish(session, data.draw(sequences, label="finished"))

    @precondition(lambda self: self.any_in("completed"))
    @rule()
    def everybody_has_the_outcome(self) -> None:
        for job in [j for j in self.model.jobs if j.state == "completed"]:
            for session, sequence in [*job.counting]:
                self._finish(session, {sequence})

    def _finish(self, session: int, sequences: set[int]) -> None:
        told = self.bench.finish(session, *sequences)
        self.check(told, self.model.finish(session, sequences))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), next_ahead=st.integers(0, 5), pending_ahead=st.sets(AHEAD, max_size=6))
    def sync(self, data: st.DataObject, next_ahead: int, pending_ahead: set[int]) -> None:
        session = self.session(data)
        first = max(0, self.base(session) - 3)
        next, pending = first + next_ahead, {first + n for n in pending_ahead}
        missing = self.works.sync(self.bench.session(session), next, Ranges(pending), 1.0)
        expected, absent = self.model.sync(session, next, pending)
        self.check(self.bench.turn(), expected)
        assert {*missing} == absent

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), ahead=AHEAD)
    def cancel(self, data: st.DataObject, ahead: int) -> None:
        session = self.session(data)
        self._cancel(session, max(0, self.base(session) - 3) + ahead)

    @precondition(lambda self: self.asked())
    @rule(data=st.data())
    def cancel_some(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.asked()), label="request")
        self._cancel(*id)

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def a_peer_that_plays_games(self, data: st.DataObject) -> None:
        session = self.session(data)
        first = self.base(session) + 10
        for sequence in range(first, first + 16, 2):
            self._cancel(session, sequence)
        self._end_session(session, lost=False)

    def _cancel(self, session: int, sequence: int) -> None:
        self.works.cancel(self.bench.session(session), sequence)
        self.check(self.bench.turn(), self.model.cancel(session, sequence))

    @precondition(lambda self: self.asked())
    @rule(data=st.data())
    def deadline(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.asked()), label="request")
        assert self.works.expire(self.bench.session(id[0]).tickets[id[1]])
        self.check(self.bench.turn(), self.model.expire(id))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), lost=st.booleans(), returns=st.booleans())
    def session_ends(self, data: st.DataObject, lost: bool, returns: bool) -> None:
        """By a goodbye, or with its lease; its caller may be back."""
        caller = self._end_session(self.session(data), lost=lost)
        if returns and len(self.model.clients) < 8:
            self._connect(caller)

    def _end_session(self, session: int, *, lost: bool) -> int:
        caller = self.model.clients[session].caller
        told = self.bench.end(session, lost=lost)
        self.check(told, self.model.end(session, lost=lost))
        self.model.forget()
        return caller

    @rule(seconds=st.sampled_from([4.0, 6.0]))
    def everybody_is_cut_off(self, seconds: float) -> None:
        callers = [self._end_session(session, lost=True) for session in self.alive()]
        self._pass(seconds)
        for caller in callers:
            if len(self.model.clients) < 8:
                self._connect(caller)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), connection=st.integers(1, 9))
    def heard_and_moved(self, data: st.DataObject, connection: int) -> None:
        number = self.session(data)
        client, session = self.model.clients[number], self.bench.session(number)
        self.works.sessions.heard(session, self.model.now_s)
        self.works.sessions.moved(session, b"moved", connection)
        client.heard_s = self.model.now_s
        if connection > client.connection:
            client.connection, client.route = connection, b"moved"

    # -- commands -----------------------------------------------------------------------

    @precondition(lambda self: self.alive())
    @rule(
        data=st.data(), name=NAME, what=st.sampled_from(["cancel", "forget"]),
        way=st.sampled_from(["id", "no id", "number", "old number"]),
    )  # fmt: skip
    def command(self, data: st.DataObject, name: KeyName, what: str, way: str) -> None:
        known = self.works.open.get(name)
        tag: int | bytes | None = data.draw(IDS, label="id")
        if way == "no id":
            tag = None
        elif way != "id":
            others = st.integers(0, self.model.numbers)
            tag = known.number if way == "number" and known else data.draw(others)
        self._command(self.session(data), what, name, tag)

    @precondition(lambda self: self.model.commands and self.alive())
    @rule(data=st.data())
    def command_again(self, data: st.DataObject) -> None:
        """A second copy, after somebody has asked for the key anew."""
        what, name, tag = data.draw(st.sampled_from([*self.model.commands]), label="command")
        self._request(self.session(data), KeyName(*name), b"p", True, 2)
        self._command(self.session(data), what, KeyName(*name), tag)

    @precondition(lambda self: self.alive() and len(self.model.clients) < 8)
    @rule(data=st.data(), name=NAME)
    def come_back_and_leave(self, data: st.DataObject, name: KeyName) -> None:
        session = self.session(data)
        self._request(session, name, b"p", True, 2)
        caller = self._end_session(session, lost=True)
        id = self._request(self._connect(caller), name, b"p", True, 2, earlier=2)
        self._cancel(*id)

    def _command(self, session: int, what: str, name: KeyName, tag: int | bytes | None) -> None:
        self._request(session, name, b"", None, 4, act=what, tag=tag)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), name=st.sampled_from(BAD_NAMES), act=st.sampled_from(KeyAct))
    def what_cannot_be_a_key(self, data: st.DataObject, name: KeyName, act: KeyAct) -> None:
        session = self.session(data)
        id = session, self.base(session)
        ((*_, code),) = self.bench.ask(*id, body=b"", name=name, act=act)
        assert code in ("refused", "window", "queue-full")

    # -- executions -----------------------------------------------------------------------

    @rule(declared=st.booleans())
    def declare(self, declared: bool) -> None:
        self.works.environment.rerun = self.model.declared = declared

    @precondition(lambda self: self.any_in("waiting"))
    @rule(data=st.data())
    def dispatch(self, data: st.DataObject) -> None:
        self._dispatch(self.job(data, "waiting"))

    def _dispatch(self, job: Job) -> None:
        work = self.work(job)
        may_start = self.model.may_start(job)
        assert self.bench.router._share_left(work.account.id) == may_start
        if not may_start or len(self.executions) >= MOST_LIVE:
            return
        assert job.starts < job.allowance, "G2: over the allowance"
        assert work.body == job.payload
        self.executions[job] = self.bench.dispatch(work)
        self.model.dispatched(job)

    @precondition(lambda self: self.executions)
    @rule(data=st.data(), outcome=OUTCOMES, dead=st.booleans())
    def execution_ends(self, data: st.DataObject, outcome: bytes, dead: bool) -> None:
        self._end(data.draw(st.sampled_from([*self.executions]), label="work"), outcome, dead=dead)

    @precondition(lambda self: self.executions)
    @rule(outcome=OUTCOMES)
    def worker_dies(self, outcome: bytes) -> None:
        for job in [*self.executions]:
            self._end(job, outcome, dead=True)

    def _end(self, job: Job, outcome: bytes, *, dead: bool) -> None:
        execution = self.executions.pop(job)
        work, brought = self.work(job), made(outcome)
        told: object = "worker-lost" if dead else outcome
        size = lost(work).size_bytes if dead else brought.size_bytes
        found = self.bench.dies(execution) if dead else self.bench.report(execution, brought)
        self.check(found, self.model.ended(job, told, size, dead=dead))

    @precondition(lambda self: self.any_in("waiting", "running"))
    @rule(data=st.data())
    def the_router_answers(self, data: st.DataObject) -> None:
        """When the server closes, or nothing can run."""
        self._answer(self.job(data, "waiting", "running"))

    @precondition(lambda self: self.any_in("running"))
    @rule(data=st.data(), dead=st.booleans())
    def an_execution_ends_late(self, data: st.DataObject, dead: bool) -> None:
        """The router has answered meanwhile."""
        job = self.job(data, "running")
        self._answer(job)
        self._end(job, b"late", dead=dead)

    def _answer(self, job: Job) -> None:
        work = self.work(job)
        told = self.bench.answer(work)
        size = work.outcome.size_bytes if isinstance(work.outcome, RetainedOutcome) else 0
        self.check(told, self.model.completed(job, "worker-lost", size))

    # -- time -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 6.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.model.now_s += seconds
        self.check(self.bench.wait(seconds), self.model.tick())
        assert not self.works.behind
        lapsed = {int.from_bytes(s.id, "big") for s in self.works.sessions.lapsed(self.bench.now_s)}
        silent = [n for n in self.alive() if self.silent(n)]
        assert lapsed == {*silent}
        for number in silent:
            self._end_session(number, lost=True)

    def silent(self, session: int) -> bool:
        """Whether its lease has ended."""
        return self.model.now_s - self.model.clients[session].heard_s > model.LEASE_S

    # -- what cannot be -----------------------------------------------------------------

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def impossible(self, data: st.DataObject) -> None:
        works = [None, *(work for _, work in self.pairs)]
        work = data.draw(st.sampled_from(works), label="work")
        state = WorkState.ABSENT if work is None else work.state
        for input in WorkInput:
            if (input, state) not in POSSIBLE:
                with pytest.raises(AssertionError, match="cannot reach"):
                    Works.TABLE[input][state](self.works, work, None)

    # -- after each step ----------------------------------------------------------------

    @invariant()
    def what_waits_may_start_or_not(self) -> None:
        """Dispatching pauses for an account, and for nobody else (G8, G10)."""
        for job, work in self.pairs:
            if work.state is WorkState.WAITING:
                may_start = self.bench.router._share_left(work.account.id)
                assert may_start == self.model.may_start(job)

    @invariant()
    def is_within_its_bounds(self) -> None:
        """Every sum is counted anew (G8)."""
        wrong = audit(self.bench.router, MOST_LIVE)
        assert wrong == [], wrong
        assert len(self.works.generations) <= model.GENERATIONS
        assert self.works.commands_of.total() == len(self.works.commands) <= model.COMMANDS
        for work in self.works.open.values():
            assert len(work.tickets) <= model.WAITERS
            assert len(work.lost) <= LOST_CALLERS

    @invariant()
    def sessions_agree(self) -> None:
        sessions = self.works.sessions
        assert {*sessions.known} == {identifier(number) for number in self.model.clients}
        for number, client in self.model.clients.items():
            session = sessions.known[identifier(number)]
            assert (session.ended, session.heard_s) == (client.ended, client.heard_s)
            assert (session.route, session.connection) == (client.route, client.connection)
            assert {*session.tickets} == {*client.asked}
            assert {*session.finished} == client.finished or client.ended
            for sequence in range(self.base(number) + 3):
                assert session.standing(sequence) == self.model.standing((number, sequence))

    @invariant()
    def works_agree(self) -> None:
        """Every record is the model's."""
        works = self.works
        there = {j.number: j for j in self.model.there()}
        assert {*works.generations} == {*there}
        assert {n: w.number for n, w in works.open.items()} == {
            j.name: j.number for j in there.values() if j.open
        }
        assert {w.number for w in works.ending.values()} == {
            j.number for j in there.values() if not j.open
        }
        self.pairs = [(j, w) for j, w in self.pairs if j.open or j.live]
        for job, execution in self.executions.items():
            assert execution.is_wanted is job.wanted, "G7: it is told to stop"
        for job, work in self.pairs:
            assert (work.state.value, work.executions, work.live) == (
                job.state, job.starts, job.live,
            )  # fmt: skip
            assert (work.body is not None) is job.holds_body
            tickets = {_id(ticket): ticket for ticket in work.tickets}
            counting = {id: t.caller for id, t in tickets.items() if t.counts}
            assert {*counting} == {*job.counting}
            if job.name is not None:
                assert counting == {id: identifier(c) for id, c in job.counting.items()}
            assert {*tickets} - {*counting} == job.watching
            assert not job.open or work.lost == {identifier(caller) for caller in job.lost}
        lonely = {j.number: j.lonely_s for j in there.values() if j.lonely_s is not None}
        assert {n: w.since_s for n, w in works.orphans.items()} == lonely
        idle = {j.number: j.idle_s for j in there.values() if j.idle_s is not None}
        assert {n: w.since_s for n, w in works.retained.items()} == idle
        said = {(c.input.name.lower(), *c[1:]) for c in works.commands}
        assert said == {*self.model.commands}


def _id(ticket: Any) -> Id:
    return int.from_bytes(ticket.session.id, "big"), ticket.sequence


def test_works_do_what_their_model_does():
    class Machine(WorkMachine):
        reached: ClassVar[set[Cell]] = set()

    run_state_machine_as_test(Machine)
