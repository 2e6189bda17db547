"""The dedup cache against an independent model, by random histories.

The machine plays the scheduler, the workers and some clients at once; it uses
only the cache's public methods.  The model (dedup_model.py) says what must be
done after each input; after each step all sums are counted anew and compared.
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

from trio_envserve.core.dedup import DedupCache
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.request_table import Effects, RequestAction, RequestInput
from trio_envserve.core.requests import Ask, Entry, Session, WorkState

from . import dedup_model as model
from .dedup_model import Effect, Model, Run
from .helpers import identifier, picture
from .helpers import kept as retained

LIMITS = ServerLimits(
    window=model.WINDOW, queue=model.QUEUE, queue_bytes=model.QUEUE_BYTES,
    kept_outcomes=model.KEPT, kept_bytes=model.KEPT_BYTES, session_share=model.SHARE,
    sessions=model.SESSIONS, lease_s=model.LEASE_S, connection_sessions=model.ON_ONE_ROUTE,
)  # fmt: skip

NONCE = 1 << 20
"""The first of the nonces; sessions are numbered from 0."""

ALL_STATES = [*WorkState]
AHEAD = st.integers(0, 7)
"""Sequences, counted from the first that is not finished: histories have no end."""
PAYLOADS = st.sampled_from([b"a", b"b", b"c" * 8, b"d" * 8, b"e" * 40])
OUTCOMES = st.sampled_from([b"1", b"2", b"3" * 10, b"4" * 30])
CONSENT = st.none() | st.booleans()

OF_KEYS = (RequestInput.ANSWERED, RequestInput.TURNED_AWAY)

# What no honest caller does: by state, the inputs that cannot be.
IMPOSSIBLE: dict[str, list[RequestInput]] = {
    "not seen": [
        RequestInput.OTHER_DIGEST, RequestInput.DISPATCH, RequestInput.OUTCOME,
        RequestInput.WORKER_DEAD, RequestInput.LEASE_ENDED, *OF_KEYS,
    ],
    "waiting": [RequestInput.OUTCOME, RequestInput.WORKER_DEAD],
    "running": [RequestInput.DISPATCH, *OF_KEYS],
    "completed": [RequestInput.DISPATCH, RequestInput.OUTCOME, RequestInput.WORKER_DEAD, *OF_KEYS],
}  # fmt: skip


class Watched(DedupCache):
    """A cache that remembers which cells were reached."""

    reached: set[tuple[RequestInput, WorkState]]

    def step(
        self, session: Session, sequence: int, input: RequestInput, arg: Any = None
    ) -> Effects:
        self.reached.add((input, session.state(sequence)))
        return super().step(session, sequence, input, arg)


class DedupMachine(RuleBasedStateMachine):
    """One cache, its model, and the world around them."""

    reached: ClassVar[set[tuple[RequestInput, WorkState]]]
    """Over all histories; a subclass has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Watched(b"epoch", LIMITS)
        self.cache.reached = self.reached
        self.model = Model()
        self.sessions: dict[int, Session] = {}
        self.queue: set[tuple[int, int]] = set()
        self.waiters: set[tuple[int, int]] = set()
        """Those that wait for the work of a key, and those that have its outcome."""
        self.opened = 0
        self.now_s = 0.0

    # -- checking what must be done -----------------------------------------------

    def check(self, effects: Effects, expected: list[Effect]) -> None:
        """The cache says what the model says; carry it out."""
        assert sorted(map(self._named, effects), key=repr) == sorted(expected, key=repr)
        for do, arg in effects:
            if do is RequestAction.QUEUE:
                waiting = self.queue if arg.key is None else self.waiters
                assert self._id(arg) not in waiting
                waiting.add(self._id(arg))
            elif do is RequestAction.LEAVE:
                self.waiters.discard(self._id(arg))
            elif do is RequestAction.UNQUEUE:
                self.queue.remove(self._id(arg))
            elif do is RequestAction.ANSWER:
                assert arg.kept.payload == self._request(arg).outcome, "G3: another outcome"

    def _id(self, entry: Entry) -> tuple[int, int]:
        return int.from_bytes(entry.id.session, "big"), entry.id.sequence

    def _request(self, entry: Entry) -> model.Request:
        number, sequence = self._id(entry)
        return self.model.clients[number].requests[sequence]

    def _named(self, effect: tuple[RequestAction, Any]) -> Effect:
        do, arg = effect
        return do.name, self._id(arg) if isinstance(arg, Entry) else arg

    def session(self, data: st.DataObject, *, alive: bool = True) -> tuple[int, Session]:
        """Some session; the server takes no message of one that has ended."""
        numbers = [n for n, c in self.model.clients.items() if not (alive and c.ended)]
        number = data.draw(st.sampled_from(numbers), label="session")
        return number, self.sessions[number]

    def any_alive(self) -> bool:
        return any(not client.ended for client in self.model.clients.values())

    def base(self, number: int) -> int:
        """The first sequence of a session that is not finished."""
        finished = self.model.clients[number].finished
        return next(n for n in itertools.count() if n not in finished)

    def known(self, data: st.DataObject, number: int) -> int:
        """A sequence: mostly one that was seen, and if not, perhaps a finished one."""
        requests = sorted(self.model.clients[number].requests)
        base = self.base(number)
        near = st.integers(max(0, base - 2), base + 6)
        return data.draw(st.sampled_from(requests) | near if requests else near, label="sequence")

    def forget(self) -> None:
        """As the server does once nothing of an ended session runs."""
        for session in list(self.sessions.values()):
            self.cache.forget(session)
        self.model.forget()
        self.sessions = {n: s for n, s in self.sessions.items() if n in self.model.clients}

    # -- clients ------------------------------------------------------------------

    @initialize(data=st.data(), declared=st.booleans())
    def first(self, data: st.DataObject, declared: bool) -> None:
        """Begin with something going on, or most histories would be of nothing."""
        self.cache.declared_rerun = self.model.declared = declared
        for number in range(data.draw(st.integers(1, 3), label="sessions")):
            self._open(NONCE + number, number + 1)
            self._some_calls(data, number)

    @precondition(any_alive)
    @rule(data=st.data())
    def some_calls(self, data: st.DataObject) -> None:
        self._some_calls(data, self.session(data)[0])

    def _some_calls(self, data: st.DataObject, number: int) -> None:
        """Requests that wait, run, and have completed."""
        fates = data.draw(st.lists(st.sampled_from(["wait", "run", "end"]), max_size=4))
        session, base = self.sessions[number], self.base(number)
        for sequence, fate in enumerate(fates, base):
            rerun, allowance = data.draw(st.tuples(CONSENT, st.integers(1, 3)), label="options")
            ask = Ask(identifier(ord("x")), b"x", rerun, allowance)
            effects = self.cache.request(session, sequence, ask)
            self.check(effects, self.model.request(number, sequence, b"x", rerun, allowance))
            before = len(self.model.runs)
            if fate != "wait" and (number, sequence) in self.queue and before < model.AT_ONCE:
                self._dispatch(number, sequence, worker=sequence % 2)
                if fate == "end" and len(self.model.runs) > before:
                    self._end_run(self.model.runs[-1], b"1")

    @rule(nonce=st.integers(NONCE, NONCE + 9), connection=st.integers(1, 5))
    def open(self, nonce: int, connection: int) -> None:
        self._open(nonce, connection)

    def _open(self, nonce: int, connection: int) -> None:
        route = b"route %d" % connection
        clients = self.model.clients
        known = next((n for n, c in clients.items() if c.nonce == nonce), None)
        number = self.opened
        session = self.cache.open(
            identifier(number), identifier(nonce), "name", route, connection, self.now_s
        )
        if known is not None:
            if clients[known].ended:
                assert session is None
                return
            assert session is self.sessions[known]
            self._moved(known, route, connection)
            clients[known].heard_s = self.now_s
        elif not self.model.may_open(nonce, route):
            assert session is None
        else:
            assert session is not None
            for made_room in {*clients} - {
                int.from_bytes(key, "big") for key in self.cache.sessions
            }:
                self.model.makes_room(made_room)
                del self.sessions[made_room]
            self.opened += 1
            self.sessions[number] = session
            clients[number] = model.Client(nonce, self.now_s, connection, route, route)

    def _moved(self, number: int, route: bytes, connection: int) -> None:
        client = self.model.clients[number]
        if connection > client.connection:
            client.connection, client.route = connection, route

    @precondition(any_alive)
    @rule(data=st.data(), connection=st.integers(1, 9))
    def heard_and_moved(self, data: st.DataObject, connection: int) -> None:
        number, session = self.session(data)
        route = b"route %d" % connection
        self.cache.heard(session, self.now_s)
        self.cache.moved(session, route, connection)
        self.model.clients[number].heard_s = self.now_s
        self._moved(number, route, connection)

    def ask(self, payload: bytes, rerun: bool | None, allowance: int, *, keyed: bool) -> Ask:
        return Ask(identifier(payload[0]), payload, rerun, allowance, "some key" if keyed else None)

    @precondition(any_alive)
    @rule(
        data=st.data(), ahead=st.lists(AHEAD, min_size=1, max_size=5), payload=PAYLOADS,
        rerun=CONSENT, allowance=st.integers(1, 3), eager=st.booleans(), keyed=st.booleans(),
    )  # fmt: skip
    def request(
        self, data: st.DataObject, ahead: list[int], payload: bytes, rerun: bool | None,
        allowance: int, eager: bool, keyed: bool,
    ) -> None:  # fmt: skip
        number, session = self.session(data)
        ask, base = self.ask(payload, rerun, allowance, keyed=keyed), self.base(number)
        for sequence in (base + n for n in ahead):
            effects = self.cache.request(session, sequence, ask)
            expected = self.model.request(number, sequence, payload, rerun, allowance, keyed=keyed)
            self.check(effects, expected)
        if eager:
            self._dispatch_all()

    @precondition(any_alive)
    @rule(data=st.data())
    def retransmit(self, data: st.DataObject) -> None:
        number, session = self.session(data)
        for sequence, known in list(self.model.clients[number].requests.items()):
            terms = known.payload, known.rerun, known.allowance
            effects = self.cache.request(session, sequence, self.ask(*terms, keyed=known.keyed))
            expected = self.model.request(number, sequence, *terms, keyed=known.keyed)
            self.check(effects, expected)

    @precondition(any_alive)
    @rule(data=st.data(), ahead=st.sets(AHEAD, min_size=1, max_size=3))
    def finish(self, data: st.DataObject, ahead: set[int]) -> None:
        number, session = self.session(data)
        sequences = {self.base(number) + n for n in ahead}
        effects = self.cache.finish_spans(session, Ranges(sequences))
        self.check(effects, self.model.finish(number, sequences))

    @precondition(any_alive)
    @rule(data=st.data(), next_ahead=st.integers(0, 9), pending_ahead=st.sets(AHEAD, max_size=6))
    def sync(self, data: st.DataObject, next_ahead: int, pending_ahead: set[int]) -> None:
        number, session = self.session(data)
        base = self.base(number)
        next, pending = base + next_ahead, {base + n for n in pending_ahead}
        effects, missing = self.cache.sync(session, next, Ranges(pending))
        expected, absent = self.model.sync(number, next, pending)
        self.check(effects, expected)
        assert {*missing} == absent

    @precondition(any_alive)
    @rule(data=st.data(), far=st.sampled_from([0, 0, 0, 20]))
    def cancel(self, data: st.DataObject, far: int) -> None:
        number, session = self.session(data)
        first = self.known(data, number) + far
        for sequence in range(first, first + (12 if far else 1), 2):  # far: a peer that plays games
            effects, started = self.cache.cancel(session, sequence)
            expected, expected_started = self.model.cancel(number, sequence)
            self.check(effects, expected)
            assert started is expected_started

    # -- keys ---------------------------------------------------------------------

    @precondition(lambda self: self.waiters)
    @rule(data=st.data(), outcome=OUTCOMES, refused=st.booleans())
    def work_of_a_key_ends(self, data: st.DataObject, outcome: bytes, refused: bool) -> None:
        """Some of those that wait for it get its outcome, or are refused for now."""
        for number, sequence in data.draw(st.sets(st.sampled_from(sorted(self.waiters)))):
            session = self.sessions[number]
            if self.model.clients[number].state(sequence) != "waiting":
                continue
            if refused:
                self.waiters.remove((number, sequence))
                self.model.turned_away(number, sequence)
                assert self.cache.step(session, sequence, RequestInput.TURNED_AWAY) == ()
            else:
                kept = retained(outcome)
                effects = self.cache.step(session, sequence, RequestInput.ANSWERED, kept)
                self.check(effects, self.model.answered_for_its_key(number, sequence, outcome))

    # -- workers ------------------------------------------------------------------

    @rule(declared=st.booleans())
    def declare(self, declared: bool) -> None:
        self.cache.declared_rerun = self.model.declared = declared

    @rule()
    def dispatch(self) -> None:
        self._dispatch_all()

    def _dispatch_all(self) -> None:
        for number, sequence in sorted(self.queue):
            if len(self.model.runs) < model.AT_ONCE:
                self._dispatch(number, sequence, worker=len(self.model.runs) % 2)

    def _dispatch(self, number: int, sequence: int, *, worker: int) -> None:
        session, client = self.sessions[number], self.model.clients[number]
        assert self.cache.may_dispatch() == self.model.may_dispatch()
        assert self.cache.share_left(session) == self.model.share_left(client)
        if not self.cache.share_left(session):
            return
        request = client.requests[sequence]
        assert request.starts < request.allowance, "G2: over the allowance"
        assert session.tickets[sequence].body == request.payload
        self.queue.remove((number, sequence))
        run = self.model.dispatch(number, sequence, worker)
        session.live_executions += 1
        assert self.cache.step(session, sequence, RequestInput.DISPATCH, run) == ()

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data(), outcome=OUTCOMES)
    def ends(self, data: st.DataObject, outcome: bytes) -> None:
        self._end_run(data.draw(st.sampled_from(self.model.runs), label="execution"), outcome)

    def _end_run(self, run: Run, outcome: bytes) -> None:
        session = self.sessions[run.session]
        session.live_executions -= 1
        wanted, expected = run.wanted, self.model.outcome(run, outcome)
        if wanted:
            kept = retained(outcome)
            self.check(self.cache.step(session, run.sequence, RequestInput.OUTCOME, kept), expected)
        self.forget()

    @rule(worker=st.integers(0, 1), outcome=OUTCOMES)
    def worker_dies(self, worker: int, outcome: bytes) -> None:
        dead = [run for run in self.model.runs if run.worker == worker]
        for run in dead:
            self.model.runs.remove(run)
            self.sessions[run.session].live_executions -= 1
        for run in dead:
            wanted, expected = run.wanted, self.model.dead(run, outcome)
            if wanted:
                effects = self.cache.step(
                    self.sessions[run.session], run.sequence, RequestInput.WORKER_DEAD,
                    lambda entry: retained(outcome),
                )  # fmt: skip
                self.check(effects, expected)
        self.forget()

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def stray_outcome(self, data: st.DataObject) -> None:
        number, session = self.session(data, alive=False)
        sequence = self.known(data, number)
        before = picture(self.cache)
        assert self.cache.step(session, sequence, RequestInput.STRAY_OUTCOME) == ()
        assert picture(self.cache) == before

    # -- time ---------------------------------------------------------------------

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), outcome=OUTCOMES)
    def deadline(self, data: st.DataObject, outcome: bytes) -> None:
        number, session = self.session(data, alive=False)
        sequence = self.known(data, number)
        effects = self.cache.step(
            session,
            sequence,
            RequestInput.DEADLINE,
            lambda entry: retained(outcome),
        )
        self.check(effects, self.model.deadline(number, sequence, outcome))

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(data=st.data())
    def goodbye(self, data: st.DataObject) -> None:
        if self.any_alive():
            number, session = self.session(data)
            assert self.cache.goodbye(session.id) is session
            self.model.goodbye(self.model.clients[number].nonce)
            self._end(number)
            self.forget()

    @rule(nonce=st.integers(NONCE, NONCE + 9))
    def goodbye_by_nonce(self, nonce: int) -> None:
        """Also before its hello."""
        session = self.cache.goodbye(identifier(nonce))
        self.model.goodbye(nonce)
        known = {each.nonce: number for number, each in self.model.clients.items()}
        assert session is self.sessions.get(known.get(nonce, -1))
        if session is not None and not session.ended:
            self._end(known[nonce])
            self.forget()

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]), heard=st.integers(1, 3))
    def time_passes(self, seconds: float, heard: int) -> None:
        self.now_s += seconds
        for number, client in list(self.model.clients.items())[:heard]:
            if not client.ended:  # the others are silent
                self.cache.heard(self.sessions[number], self.now_s)
                client.heard_s = self.now_s
        lapsed = {int.from_bytes(s.id, "big") for s in self.cache.lapsed(self.now_s)}
        assert lapsed == self.model.lapsed(self.now_s)
        for number in sorted(lapsed):
            self._end(number)
        self.forget()

    def _end(self, number: int) -> None:
        self.check(self.cache.end(self.sessions[number]), self.model.end(number))

    # -- what cannot be -----------------------------------------------------------

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def impossible(self, data: st.DataObject) -> None:
        number, session = self.session(data, alive=False)
        sequence = self.known(data, number)
        state = self.model.clients[number].state(sequence)
        before = picture(self.cache)
        if state == "finished":  # absorbing: whatever comes changes nothing
            for input in RequestInput:
                effects = self.cache.step(session, sequence, input, None)
                assert [do for do, _ in effects] in ([], [RequestAction.SPENT])
                assert picture(self.cache) == before
            return
        for input in IMPOSSIBLE[state]:
            with pytest.raises(AssertionError, match="cannot reach"):
                self.cache.step(session, sequence, input, None)
            assert picture(self.cache) == before

    # -- after each step ----------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        """Every record and every sum is the model's."""
        cache, clients = self.cache, self.model.clients
        assert {int.from_bytes(key, "big") for key in cache.sessions} == {*clients}
        heard = [s.heard_s for s in cache.sessions.values()]
        assert heard == sorted(heard)
        for number, client in clients.items():
            session = self.sessions[number]
            assert cache.sessions[identifier(number)] is session
            assert (session.route, session.connection) == (client.route, client.connection)
            assert (session.ended, session.heard_s) == (client.ended, client.heard_s)
            states = {n: e.state.value for n, e in session.tickets.items()}
            assert states == {n: r.state for n, r in client.requests.items()}
            assert {*session.finished} == client.finished
            assert all(session.state(n).value == client.state(n) for n in range(12))
            assert session.kept_count == client.count("completed")
            assert session.kept_bytes == client.kept_bytes()
            assert session.running_count == client.count("running")
            assert session.queued_count == client.count("waiting")
            assert session.held_bytes == client.held_bytes()
            for sequence, request in client.requests.items():
                entry = session.tickets[sequence]
                assert (entry.executions, entry.execution) == (request.starts, request.run)
                assert (entry.body is not None) is request.holds_body
        assert cache.kept_count == self.model.count("completed")
        assert cache.kept_bytes == self.model.kept_bytes()
        assert cache.running_count == self.model.count("running")
        waiters = sum(clients[n].state(sequence) == "waiting" for n, sequence in self.waiters)
        assert cache.queued_count == self.model.count("waiting") == len(self.queue) + waiters
        assert cache.held_bytes == self.model.held_bytes()

    @invariant()
    def what_is_forgotten_was_settled_or_is_not_said_to_be(self) -> None:
        unsettled = self.model.unsettled
        for number in range(self.opened):
            if number not in self.model.clients:
                settled = self.cache.settled(identifier(number))
                assert not (settled and number in unsettled), "G9: something was unfinished"
                assert settled or number in unsettled or len(unsettled) > model.SESSIONS


def test_the_cache_does_what_its_model_does():
    class Machine(DedupMachine):
        reached: ClassVar[set[tuple[RequestInput, WorkState]]] = set()

    run_state_machine_as_test(Machine)
