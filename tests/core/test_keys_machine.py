"""Keys against an independent model, by random histories.

The machine plays callers, the router and the workers.  The model (keys_model.py) says
what must be done after each input; after each step all records and sums are its own.
"""

from __future__ import annotations

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

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.journal import Journal
from trio_envserve.core.key_records import (
    Answer,
    AnswerCancelled,
    Enter,
    Finish,
    Generation,
    KeyEffects,
    KeyName,
    Refuse,
    Reissue,
    WorkState,
    input_digest,
)
from trio_envserve.core.key_table import TABLE, KeyInput, _never
from trio_envserve.core.keys import Keys
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.requests import Ask
from trio_envserve.core.terms import RequestId

from . import keys_model as model
from .helpers import identifier
from .helpers import kept as retained
from .key_desk import asking
from .keys_model import Model, Said, Waiter

LIMITS = KeyLimits(
    namespace_bytes=model.NAMESPACE_BYTES, key_bytes=model.KEY_BYTES,
    generations=model.GENERATIONS, retained_bytes=model.RETAINED_BYTES,
    namespace_share=model.SHARE, waiters=model.WAITERS, commands=model.COMMANDS,
    command_s=model.COMMAND_S, orphan_s=model.ORPHAN_S, retention_s=model.RETENTION_S,
)  # fmt: skip

NAMES = [KeyName(b"a", b"x"), KeyName(b"a", b"y"), KeyName(b"b", b"x"), KeyName(b"b", b"y")]
NAME = st.sampled_from([NAMES[0], NAMES[0], *NAMES])
BAD_NAMES = [
    KeyName(b"", b"x"),
    KeyName(b"a", b""),
    KeyName(b"a", b"x" * 5),
    KeyName(b"a" * 5, b""),
]
PAYLOADS = st.sampled_from([b"p", b"p", b"p", b"q", b"r" * 40])
OUTCOMES = st.sampled_from([b"1", b"1", b"2" * 10, b"3" * 90])
CONSENT = st.none() | st.booleans()
IDS = st.sampled_from([b"1", b"2", b"3", b"4", b"5"])

Cell = tuple[KeyInput, WorkState]
POSSIBLE: set[Cell] = {
    (input, state) for input, row in TABLE.items() for state, cell in row.items()
    if cell != _never and state is not WorkState.READING
}  # fmt: skip
"""None of its outcomes is on a disk."""


class Watched(Keys):
    """Keys that remember which cells were reached."""

    reached: set[Cell]

    def step(
        self, generation: Generation | None, input: KeyInput, arg: Any, now_s: float
    ) -> KeyEffects:
        state = WorkState.ABSENT if generation is None else generation.state
        self.reached.add((input, state))
        return super().step(generation, input, arg, now_s)


def number(of: bytes) -> int:
    return int.from_bytes(of, "big")


def waiter(of: RequestId) -> Waiter:
    return number(of.session), of.sequence


def request(of: Waiter) -> RequestId:
    return RequestId(identifier(of[0]), of[1])


def said(effect: object) -> Said:
    """An effect as the model says it."""
    match effect:
        case Enter(generation, body, allowance):
            return "ENTER", generation.number, body, allowance
        case Finish(generation):
            return "FINISH", generation.number
        case Answer(who, outcome):
            return "ANSWER", waiter(who), bytes(outcome.payload)
        case AnswerCancelled(who, started):
            return "CANCELLED", waiter(who), started
        case Refuse(who, why):
            return "REFUSE", waiter(who), why.name
    raise AssertionError(effect)


def picture(keys: Keys) -> Any:
    """Everything that an input could change."""
    return (
        keys.next_number, [*keys.open], [*keys.ending], [*keys.orphans], [*keys.retained],
        [*keys.commands.early.items()], [*keys.commands.said.items()], keys.usage,
        {of: generation.number for of, generation in keys.waiting.items()},
        [
            (
                g.number, g.state, g.ask, g.executions, g.live, [*g.waiters.items()], {*g.lost},
                [*g.watchers], g.outcome, g.since_s,
            )
            for g in keys.generations.values()
        ],
    )  # fmt: skip


class KeysMachine(RuleBasedStateMachine):
    """Keys, their model, and the world around them."""

    reached: ClassVar[set[Cell]]
    """Over all histories; a subclass has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = Watched(LIMITS, Journal(on=False))
        self.keys.reached = self.reached
        self.model = Model()
        self.sessions: dict[int, int] = {}
        """The open ones, with their callers."""
        self.opened = 0
        self.asked = 0

    # -- checking what must be done -------------------------------------------------------

    def check(self, effects: KeyEffects, expected: list[Said]) -> None:
        """They say what the model says."""
        found = [said(effect) for effect in effects]
        assert sorted(found, key=repr) == sorted(expected, key=repr)

    def session(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([*self.sessions]), label="session")

    def next(self, session: int) -> Waiter:
        """A request that was not seen."""
        self.asked += 1
        return session, self.asked

    def generation(self, data: st.DataObject, *states: str) -> model.Generation:
        those = [g for g in self.model.all if g.state in states]
        return data.draw(st.sampled_from(those), label="generation")

    def any_in(self, *states: str) -> bool:
        return any(g.state in states for g in self.model.all)

    # -- callers --------------------------------------------------------------------------

    @initialize(data=st.data(), declared=st.booleans())
    def first(self, data: st.DataObject, declared: bool) -> None:
        """Begin with something going on, or most histories would be of nothing."""
        self.keys.declared_rerun = self.model.declared = declared
        for caller in range(2):
            self._connect(caller)
        self.some_work(data)

    def _connect(self, caller: int) -> None:
        self.sessions[self.opened] = caller
        self.opened += 1

    @precondition(lambda self: len(self.sessions) < 4)
    @rule(caller=st.integers(0, 2))
    def connect(self, caller: int) -> None:
        """Also a second session of a caller, before the lease of its first has ended."""
        self._connect(caller)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def some_work(self, data: st.DataObject) -> None:
        """Generations that wait, run, have ended, or are held by one that was cancelled."""
        fates = st.sampled_from(["wait", "run", "run", "end", "hold", "hold"])
        for fate in data.draw(st.lists(fates, min_size=1, max_size=3), label="fates"):
            name, session = data.draw(NAME, label="name"), self.session(data)
            self._ask(session, name, b"p", True, 2, None)
            known = self.model.open(name)
            if fate == "wait" or known is None:
                continue
            if self.may_start(known):
                self._dispatch(known)
            if not known.live:
                continue
            if fate == "end" and known.outcome is None:
                self._end(known, b"1")
            elif fate == "hold":
                self._command("cancel", name, known.number)
                reissue = data.draw(st.sampled_from([None, (True, 1)]), label="reissue")
                self._ask(session, name, b"p", True, 2, reissue)

    @precondition(lambda self: self.sessions)
    @rule(
        data=st.data(), name=NAME, payload=PAYLOADS, rerun=CONSENT, allowance=st.integers(1, 3),
        reissue=st.none() | st.tuples(st.booleans(), st.integers(0, 3)),
    )  # fmt: skip
    def ask(
        self, data: st.DataObject, name: KeyName, payload: bytes, rerun: bool | None,
        allowance: int, reissue: tuple[bool, int] | None,
    ) -> None:  # fmt: skip
        self._ask(self.session(data), name, payload, rerun, allowance, reissue)

    @precondition(lambda self: self.sessions and self.keys.open)
    @rule(data=st.data(), allowance=st.integers(1, 3))
    def join(self, data: st.DataObject, allowance: int) -> None:
        """The same input as somebody else."""
        known = self.generation(data, "held", "waiting", "running", "completed")
        session = self.session(data)
        self._ask(session, KeyName(*known.name), known.payload, known.rerun, allowance, None)

    def _ask(
        self, session: int, name: KeyName, payload: bytes, rerun: bool | None, allowance: int,
        reissue: tuple[bool, int] | None, again: Waiter | None = None,
    ) -> None:  # fmt: skip
        who, caller = again or self.next(session), self.sessions[session]
        ask = Ask(input_digest(payload, rerun), payload, rerun, allowance)
        issued = Reissue(*reissue) if reissue else None
        asked = asking(request(who), ask, name, issued, identifier(caller))
        effects = self.keys.ask(asked, self.model.now_s)
        expected = self.model.ask(name, who, caller, payload, rerun, allowance, reissue)
        self.check(effects, expected)

    @rule(data=st.data(), attaches=st.booleans())
    @precondition(lambda self: self.candidates())
    def again(self, data: st.DataObject, attaches: bool) -> None:
        """A request that waits comes another time."""
        who = data.draw(st.sampled_from(self.candidates()), label="waiter")
        known = self.model.of(who)
        assert known is not None
        name, before = KeyName(*known.name), picture(self.keys)
        if attaches:
            self.check(self.keys.attach(name, request(who), self.model.now_s), [])
        else:
            self._ask(who[0], name, known.payload, known.rerun, 1, None, again=who)
        assert picture(self.keys) == before, "a waiter is counted once"

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), name=NAME)
    def attach(self, data: st.DataObject, name: KeyName) -> None:
        who = self.next(self.session(data))
        effects = self.keys.attach(name, request(who), self.model.now_s)
        self.check(effects, self.model.attach(name, who))

    @precondition(lambda self: any(map(self.model.of, self.candidates())))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self._leave(data.draw(st.sampled_from(self.candidates()), label="waiter"))

    def candidates(self) -> list[Waiter]:
        return [w for g in self.model.all for w in [*g.counting, *sorted(g.watching)]]

    def requests_of(self, session: int) -> list[RequestId]:
        """All that the session has asked, also what has its answer or was refused."""
        made = self.keys.waiting.keys() | {request((session, 0))}
        return [each for each in made if each.session == identifier(session)]

    @precondition(lambda self: self.any_in("completed"))
    @rule()
    def everybody_has_the_outcome(self) -> None:
        for generation in [g for g in self.model.all if g.state == "completed"]:
            for who in [*generation.counting]:
                self._leave(who)

    @rule(session=st.integers(0, 9))
    def leave_what_does_not_wait(self, session: int) -> None:
        self._leave((session, 0))

    def _leave(self, who: Waiter) -> None:
        effects, started = self.keys.leave(request(who), self.model.now_s)
        expected, expected_started = self.model.leave(who)
        self.check(effects, expected)
        assert started is expected_started

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def goodbye(self, data: st.DataObject) -> None:
        session = self.session(data)
        del self.sessions[session]
        effects = self.keys.leave_all(self.requests_of(session), self.model.now_s, lost=False)
        self.check(effects, self.model.leave_all(session))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), returns=st.booleans())
    def lapse(self, data: st.DataObject, returns: bool) -> None:
        """The lease of a session has ended; its caller may be back."""
        caller = self._lapse(self.session(data))
        if returns:
            self._connect(caller)

    def _lapse(self, session: int) -> int:
        caller = self.sessions.pop(session)
        effects = self.keys.leave_all(self.requests_of(session), self.model.now_s, lost=True)
        self.check(effects, self.model.lose(session))
        return caller

    @rule(seconds=st.sampled_from([4.0, 6.0]))
    def everybody_is_cut_off(self, seconds: float) -> None:
        callers = [self._lapse(session) for session in [*self.sessions]]
        self._pass(seconds)
        for caller in callers:
            self._connect(caller)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), name=NAME)
    def withdraw(self, data: st.DataObject, name: KeyName) -> None:
        self._withdraw(self.session(data), name)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), name=NAME)
    def come_back_and_withdraw(self, data: st.DataObject, name: KeyName) -> None:
        session = self.session(data)
        self._ask(session, name, b"p", True, 2, None)
        caller = self._lapse(session)
        self._connect(caller)
        self._withdraw(self.opened - 1, name)

    def _withdraw(self, session: int, name: KeyName) -> None:
        caller = self.sessions[session]
        effects, started = self.keys.withdraw(
            name, identifier(caller), identifier(session), self.model.now_s
        )
        expected, expected_started = self.model.withdraw(name, caller, session)
        self.check(effects, expected)
        assert started is expected_started

    # -- commands -------------------------------------------------------------------------

    @rule(
        data=st.data(), name=NAME, what=st.sampled_from(["cancel", "forget"]),
        way=st.sampled_from(["id", "no id", "number", "old number"]),
    )  # fmt: skip
    def command(self, data: st.DataObject, name: KeyName, what: str, way: str) -> None:
        known = self.keys.open.get(name)
        tag: int | bytes = data.draw(IDS, label="id")
        if way == "no id":
            tag = b""
        elif way != "id":
            others = st.integers(0, len(self.model.all))
            tag = known.number if way == "number" and known else data.draw(others)
        self._command(what, name, tag)

    @precondition(lambda self: self.model.commands and self.sessions)
    @rule(data=st.data())
    def command_again(self, data: st.DataObject) -> None:
        """A second copy, after somebody has asked for the key anew."""
        what, name, tag = data.draw(st.sampled_from([*self.model.commands]), label="command")
        self._ask(self.session(data), KeyName(*name), b"p", True, 2, None)
        self._command(what, KeyName(*name), tag)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), name=NAME, tag=IDS)
    def command_early(self, data: st.DataObject, name: KeyName, tag: bytes) -> None:
        """A cancel that overtakes one request, and not the one after that."""
        self._command("cancel", name, tag)
        for _ in range(2):
            self._ask(self.session(data), name, b"p", True, 2, None)

    def _command(self, what: str, name: KeyName, tag: int | bytes) -> None:
        early = self.model.early.get(name)
        do = self.keys.cancel if what == "cancel" else self.keys.forget
        effects, answer = do(name, tag, self.model.now_s)
        expected, expected_answer = self.model.command(what, name, tag)
        self.check(effects, expected)
        assert answer == expected_answer
        assert early is None or self.keys.commands.early[name], "an early cancel is remembered"

    @rule(name=st.sampled_from(BAD_NAMES))
    def what_cannot_be_a_key(self, name: KeyName) -> None:
        before, who = picture(self.keys), RequestId(identifier(0), 0)
        ask = Ask(b"", b"", None, 1)
        for call in (
            lambda: self.keys.ask(asking(who, ask, name), 0.0),
            lambda: self.keys.attach(name, who, 0.0),
            lambda: self.keys.withdraw(name, b"caller", b"session", 0.0),
            lambda: self.keys.cancel(name, b"id", 0.0),
            lambda: self.keys.forget(name, 0, 0.0),
        ):
            with pytest.raises(ProtocolError, match="has 1 to 4 bytes"):
                call()
        assert picture(self.keys) == before

    # -- work -----------------------------------------------------------------------------

    @rule(declared=st.booleans())
    def declare(self, declared: bool) -> None:
        self.keys.declared_rerun = self.model.declared = declared

    def may_start(self, generation: model.Generation) -> bool:
        """As the dedup cache says of the work of a generation."""
        left = generation.allowance - generation.earlier
        return generation.state == "waiting" and generation.starts < left

    @precondition(lambda self: any(map(self.may_start, self.model.all)))
    @rule(data=st.data())
    def dispatch(self, data: st.DataObject) -> None:
        those = [g for g in self.model.all if self.may_start(g)]
        self._dispatch(data.draw(st.sampled_from(those), label="generation"))

    def _dispatch(self, chosen: model.Generation) -> None:
        if not self.keys.room.may_retain(chosen.name[0]):
            return
        self.keys.dispatched(chosen.number)
        self.model.dispatched(chosen)

    @precondition(lambda self: any(g.live for g in self.model.all))
    @rule(data=st.data(), outcome=st.none() | OUTCOMES)
    def execution_ends(self, data: st.DataObject, outcome: bytes | None) -> None:
        """With its outcome, or without: then it may be run again."""
        those = [g for g in self.model.all if g.live]
        self._end(data.draw(st.sampled_from(those), label="generation"), outcome)

    def _end(self, chosen: model.Generation, outcome: bytes | None) -> None:
        was_running = chosen.state == "running"
        effects = self.keys.execution_ended(chosen.number)
        self.check(effects, self.model.execution_ended(chosen))
        if outcome is not None and was_running:
            self._complete(chosen, outcome)

    @precondition(lambda self: self.any_in("held", "waiting", "running"))
    @rule(data=st.data(), outcome=OUTCOMES)
    def the_router_answers(self, data: st.DataObject, outcome: bytes) -> None:
        """When the server closes, or nothing can run."""
        self._complete(self.generation(data, "held", "waiting", "running"), outcome)

    def _complete(self, chosen: model.Generation, outcome: bytes) -> None:
        kept = retained(outcome)
        effects = self.keys.outcome(chosen.number, kept, self.model.now_s)
        self.check(effects, self.model.completed(chosen, outcome))

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 6.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.model.now_s += seconds
        effects = self.keys.tick(self.model.now_s)
        self.check(effects, self.model.tick())
        assert not self.keys.behind

    # -- what cannot be -------------------------------------------------------------------

    @precondition(lambda self: self.keys.generations)
    @rule(data=st.data())
    def impossible(self, data: st.DataObject) -> None:
        those = [None, *self.keys.generations.values()]
        chosen = data.draw(st.sampled_from(those), label="generation")
        before = picture(self.keys)
        for input in KeyInput:
            state = WorkState.ABSENT if chosen is None else chosen.state
            if (input, state) not in POSSIBLE:
                with pytest.raises(AssertionError, match="cannot reach"):
                    TABLE[input][state](self.keys, chosen, None, 0.0)
        assert picture(self.keys) == before

    # -- after each step ------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        """Every record and every sum is the model's."""
        keys, there = self.keys, {g.number: g for g in self.model.there()}
        assert {*keys.generations} == {*there}
        assert {n: g.number for n, g in keys.open.items()} == {
            g.name: g.number for g in there.values() if g.open
        }
        assert {g.number for g in keys.ending.values()} == {
            g.number for g in there.values() if not g.open
        }
        for each, generation in keys.generations.items():
            expected = there[each]
            assert generation.state.value == expected.state
            assert (generation.executions, generation.live) == (expected.starts, expected.live)
            callers = {waiter(w): number(c) for w, c in generation.waiters.items()}
            if expected.open:
                assert callers == expected.counting
                assert {number(caller) for caller in generation.lost} == expected.lost
                assert {waiter(w) for w in generation.watchers} == expected.watching
                may_retain = keys.room.may_retain(generation.name.namespace)
                assert may_retain == self.model.may_dispatch(expected)
        lonely = {g.number: g.lonely_s for g in there.values() if g.lonely_s is not None}
        assert {n: g.since_s for n, g in keys.orphans.items()} == lonely
        idle = {g.number: g.idle_s for g in there.values() if g.idle_s is not None}
        assert {n: g.since_s for n, g in keys.retained.items()} == idle
        assert {*keys.commands.early} == {*self.model.early}
        said = {(c.input.name.lower(), *c[1:]) for c in keys.commands.said}
        assert said == {*self.model.commands}

    @invariant()
    def nothing_takes_more_than_it_may(self) -> None:
        """Every sum counted anew, and the bounds (G8)."""
        there = self.model.there()
        usage = self.keys.usage
        outcomes = [g.outcome for g in there if g.open and g.outcome is not None]
        assert usage.generations == len(there) <= model.GENERATIONS
        assert usage.size_bytes == sum(g.size() for g in there)
        assert usage.outcome_bytes == sum(map(len, outcomes))
        assert {*self.keys.room.of_namespace} == {g.name[0] for g in there}
        assert {*map(waiter, self.keys.waiting)} == {*self.candidates()}
        assert self.keys.commands.of.total() == len(self.keys.commands.said) <= model.COMMANDS
        for generation in self.keys.open.values():
            places = len(generation.waiters) + len(generation.lost) + len(generation.watchers)
            assert places <= model.WAITERS


def test_keys_do_what_their_model_does():
    class Machine(KeysMachine):
        reached: ClassVar[set[Cell]] = set()

    run_state_machine_as_test(Machine)
