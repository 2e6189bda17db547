"""A check that no mutant fails is not a check: broken keys that the machine must catch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from trio_envserve.core import key_table
from trio_envserve.core.key_commands import KeyCommands
from trio_envserve.core.key_records import Answer, Generation, Refusal, Refuse, WorkState
from trio_envserve.core.key_room import KeyRoom
from trio_envserve.core.key_table import TABLE, KeyInput
from trio_envserve.core.keys import Keys
from trio_envserve.core.limits import KeyLimits

from .test_keys_machine import POSSIBLE, Cell, KeysMachine

pytestmark = pytest.mark.mutants

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
OPEN = (
    WorkState.HELD,
    WorkState.WAITING,
    WorkState.RUNNING,
    WorkState.COMPLETED,
)


def cells(input: KeyInput, mutant: Any, *states: WorkState) -> Mutant:
    """Replaces cells of the table: of these states, or of all open ones."""

    def apply(patch: Patch) -> None:
        for state in states or OPEN:
            patch.setitem(TABLE[input], state, mutant)

    return apply


def attribute(owner: Any, name: str, mutant: Any) -> Mutant:
    return lambda patch: patch.setattr(owner, name, mutant)


def joins_whatever_the_input(patch: Patch) -> None:
    for state in OPEN:
        patch.setitem(TABLE[KeyInput.OTHER_INPUT], state, TABLE[KeyInput.ASK][state])


def ignores_the_consent(patch: Patch) -> None:
    ask = Keys.ask

    def careless(self, asked, now_s):
        known = self.open.get(asked.key.name)
        if known is not None:
            asked = dataclasses.replace(asked, digest=known.digest, rerun=known.rerun)
        return ask(self, asked, now_s)

    patch.setattr(Keys, "ask", careless)


def shares_keys_of_all_namespaces(patch: Patch) -> None:
    ask = Keys.ask

    def mixed(self, asked, now_s):
        known = [n for n in self.open if n.key == asked.key.name.key]
        if known:
            asked = dataclasses.replace(asked, key=asked.key._replace(name=known[0]))
        return ask(self, asked, now_s)

    patch.setattr(Keys, "ask", mixed)


def counts_a_waiter_twice(patch: Patch) -> None:
    """A second copy of a request is taken for another one."""
    ask = Keys.ask

    def again(self, asked, now_s):
        if asked.id in self.waiting:
            other = asked.id._replace(sequence=asked.id.sequence + 1000)
            asked = dataclasses.replace(asked, id=other)
        return ask(self, asked, now_s)

    patch.setattr(Keys, "ask", again)


def counts_who_is_back_twice(patch: Patch) -> None:
    patch.setattr(key_table, "_replace", lambda *args: None)


def does_not_take_the_lost_one_back(patch: Patch) -> None:
    place = key_table._place

    def beside(keys, generation, waiter, caller):
        lost = {*generation.lost}
        place(keys, generation, waiter, caller)
        generation.lost |= lost

    patch.setattr(key_table, "_place", beside)


def cancels_with_the_first(keys, generation, waiter, now_s):
    if waiter in generation.waiters and generation.outcome is None:
        del keys.waiting[waiter]
        del generation.waiters[waiter]
        return key_table._close(keys, generation)
    return key_table._leave(keys, generation, waiter, now_s)


def goes_on_for_nobody(keys, generation, waiter, now_s):
    del keys.waiting[waiter]
    generation.waiters.pop(waiter, None)
    generation.watchers.pop(waiter, None)
    return ()


def runs_the_deadline_all_the_time(keys, generation, waiter, now_s):
    effects = key_table._lose(keys, generation, waiter, now_s)
    if generation.lost and generation.state in OPEN:
        generation.wait_in(keys.orphans, now_s)
    return effects


def attaches_as_a_waiter(keys, generation, waiter, now_s):
    if key_table._crowded(keys, generation):
        return key_table._watch(keys, generation, waiter, now_s)
    effects = key_table._watch(keys, generation, waiter, now_s)
    del generation.watchers[waiter]
    generation.count(waiter, waiter.session)
    generation.wait_no_more()
    return effects


def cancels_for_who_did_it_alone(keys, generation, command, now_s):
    return key_table._close(keys, generation) if len(generation.waiters) < 2 else ()


def hits_any_generation(patch: Patch) -> None:
    command = Keys._command

    def careless(self, given, now_s):
        known = self.open.get(given.name)
        if isinstance(given.tag, int) and known is not None:
            given = given._replace(tag=known.number)
        return command(self, given, now_s)

    patch.setattr(Keys, "_command", careless)


def forgets_ids(patch: Patch) -> None:
    command = Keys._command

    def forgetful(self, given, now_s):
        self.commands.said.pop(given, None)
        return command(self, given, now_s)

    patch.setattr(Keys, "_command", forgetful)


def cancels_all_that_follows(patch: Patch) -> None:
    patch.setattr(KeyCommands, "take_early", lambda self, name: name in self.early)


def starts_beside_an_earlier_execution(patch: Patch) -> None:
    class Nothing(dict[Any, Any]):
        def __contains__(self, name: object) -> bool:
            return False

    init = Keys.__init__

    def blind(self, limits, journal):
        init(self, limits, journal)
        self.ending = Nothing()

    patch.setattr(Keys, "__init__", blind)


def never_lets_the_next_one_in(keys, generation, arg, now_s):
    key_table._release(keys, generation, arg, now_s)
    return ()


def says_it_never_started(patch: Patch) -> None:
    end_by = Keys._end_by

    def hopeful(self, generation, input, arg, now_s):
        effects, _ = end_by(self, generation, input, arg, now_s)
        return effects, bool(generation and generation.started)

    patch.setattr(Keys, "_end_by", hopeful)


def forgets_what_still_runs(patch: Patch) -> None:
    """Retention begins with the last waiter, whether or not there is an outcome."""
    who_waits = key_table._who_waits

    def early(keys, generation, now_s):
        if not generation.waiters and generation.lost and generation.outcome is None:
            generation.wait_in(keys.retained, now_s)
            return ()
        return who_waits(keys, generation, now_s)

    patch.setattr(key_table, "_who_waits", early)
    patch.setitem(TABLE[KeyInput.RETENTION_ENDED], WorkState.RUNNING, key_table._close)


def retention_begins_with_the_outcome(patch: Patch) -> None:
    complete = key_table._complete

    def at_once(keys, generation, outcome, now_s):
        effects = complete(keys, generation, outcome, now_s)
        generation.wait_in(keys.retained, now_s)
        return effects

    for state in (WorkState.HELD, WorkState.WAITING, WorkState.RUNNING):
        patch.setitem(TABLE[KeyInput.OUTCOME], state, at_once)


def makes_room(patch: Patch) -> None:
    """At the bound the oldest retained outcome is dropped."""
    original = key_table._open

    def open_after(keys, generation, asked, now_s):
        effects = original(keys, generation, asked, now_s)
        if effects == (Refuse(asked.id, Refusal.FULL),) and keys.retained:
            key_table._close(keys, next(iter(keys.retained.values())))
            return original(keys, generation, asked, now_s)
        return effects

    patch.setitem(TABLE[KeyInput.ASK], WorkState.ABSENT, open_after)


def forgets_to_give_back(patch: Patch) -> None:
    let_go = KeyRoom.let_go

    def one_way(self, payload):
        let_go(self, payload)
        if not payload.holders:
            self.all.outcome_bytes += payload.size_bytes

    patch.setattr(KeyRoom, "let_go", one_way)


def splits_the_allowance(patch: Patch) -> None:
    """Each epoch has the whole of it."""
    original = key_table._open

    def whole(keys, generation, asked, now_s):
        if asked.key.reissue is not None:
            more = asked.allowance + asked.key.reissue.earlier
            asked = dataclasses.replace(asked, allowance=more)
        return original(keys, generation, asked, now_s)

    patch.setitem(TABLE[KeyInput.ASK], WorkState.ABSENT, whole)


def retains_what_never_ran(patch: Patch) -> None:
    for state in (WorkState.HELD, WorkState.WAITING):
        patch.setitem(TABLE[KeyInput.NEVER_RAN], state, key_table._complete)


def loses_watchers(keys: Keys, generation: Generation, outcome: Any) -> list[Any]:
    for watcher in generation.watchers:
        del keys.waiting[watcher]
    generation.watchers.clear()
    return [Answer(waiter, outcome) for waiter in generation.waiters]


MUTANTS: dict[str, Mutant] = {
    "a key joins another's input": joins_whatever_the_input,
    "a key joins another's consent": ignores_the_consent,
    "a key is one in all namespaces": shares_keys_of_all_namespaces,
    "a known key is opened again": cells(
        KeyInput.ASK, key_table._open, WorkState.WAITING, WorkState.RUNNING
    ),
    "a waiter is counted twice": counts_a_waiter_twice,
    "a caller that is back is counted beside its live waiter": counts_who_is_back_twice,
    "a caller that is back is counted beside its lost waiter": does_not_take_the_lost_one_back,
    "the first of two waiters cancels": cells(KeyInput.LEAVE, cancels_with_the_first),
    "work goes on when the last one has left": cells(KeyInput.LEAVE, goes_on_for_nobody),
    "a lost waiter has left": cells(KeyInput.LOSE, key_table._leave),
    "the deadline for orphans runs while somebody waits": cells(
        KeyInput.LOSE, runs_the_deadline_all_the_time
    ),
    "the deadline for orphans never ends": cells(
        KeyInput.ORPHANED, lambda keys, generation, arg, now_s: generation.wait_no_more() or ()
    ),
    "who attaches counts": cells(
        KeyInput.ATTACH, attaches_as_a_waiter, WorkState.WAITING, WorkState.RUNNING
    ),
    "who attaches is not answered": attribute(key_table, "_answers", loses_watchers),
    "a withdrawal is ignored": cells(KeyInput.WITHDRAW, key_table._ignore),
    "a cancel by key is stopped by those who wait": cells(
        KeyInput.CANCEL, cancels_for_who_did_it_alone
    ),
    "a command hits whatever is open": hits_any_generation,
    "a second copy of a command hits again": forgets_ids,
    "a cancel of what was never seen is not remembered": cells(
        KeyInput.CANCEL, key_table._ignore, WorkState.ABSENT
    ),
    "a cancel of what was never seen is remembered for ever": attribute(
        KeyLimits, "command_s", 1e9
    ),
    "an early cancel hits all that follows": cancels_all_that_follows,
    "the next generation starts beside an execution": starts_beside_an_earlier_execution,
    "a held generation is never let in": cells(
        KeyInput.EXECUTION_ENDED, never_lets_the_next_one_in, WorkState.CLOSED
    ),
    "started is false for what others wait for": says_it_never_started,
    "retention forgets what still runs": forgets_what_still_runs,
    "retention begins with the outcome": retention_begins_with_the_outcome,
    "retention ends too early": attribute(KeyLimits, "retention_s", 5.0),
    "a full table makes room": makes_room,
    "everything may be opened": attribute(KeyRoom, "may_open", lambda *args: True),
    "dispatching never pauses": attribute(KeyRoom, "may_retain", lambda *args: True),
    "room is not given back": forgets_to_give_back,
    "any number may wait": attribute(key_table, "_crowded", lambda *args: False),
    "a reissue always starts": attribute(Keys, "may_start", lambda *args: True),
    "a reissue has the whole allowance": splits_the_allowance,
    "what never ran is retained": retains_what_never_ran,
    "any name is a key": attribute(Keys, "_check", lambda *args: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_catches(name, monkeypatch):
    class Machine(KeysMachine):
        reached: ClassVar[set[Cell]] = set()

    MUTANTS[name](monkeypatch)
    generate = settings(
        max_examples=3000, derandomize=True, stateful_step_count=50, phases=[Phase.generate],
        database=None, report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
        run_state_machine_as_test(Machine, settings=generate)


def test_the_machine_reaches_every_cell():
    class Machine(KeysMachine):
        reached: ClassVar[set[Cell]] = set()

    histories = settings(max_examples=50, stateful_step_count=50, database=None)
    for number in range(20):  # a few are mostly enough
        run_state_machine_as_test(seed(number)(Machine), settings=histories)
        if Machine.reached >= POSSIBLE:
            break
    assert Machine.reached == POSSIBLE
