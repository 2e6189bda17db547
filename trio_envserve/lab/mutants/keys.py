"""Mutants of keys: who waits, what closes a generation, what may start."""

from __future__ import annotations

from typing import Any

from ...core import key_table
from ...core.deadlines import Deadlines
from ...core.key_records import AnswerCancelled, GenerationState, Reissue
from ...core.key_table import TABLE, KeyInput
from ...core.keyed import KeyedRequests
from ...core.keys import Keys
from ...core.requests import Entry
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY)

WITHOUT_OUTCOME = (GenerationState.HELD, GenerationState.WAITING, GenerationState.RUNNING)


@FAMILY.mutant("G6", needs=(Fault.KEYS,))
def a_key_joins_another_input(patch: Patches) -> None:
    """A caller with another input under a key waits for what was asked first."""
    for state in WITHOUT_OUTCOME:
        patch.item(TABLE[KeyInput.OTHER_INPUT], state, key_table._join)
    patch.item(TABLE[KeyInput.OTHER_INPUT], GenerationState.COMPLETED, key_table._replay)


@FAMILY.mutant("G7", "G8", needs=(Fault.KEYS,))
def a_waiter_is_counted_twice(patch: Patches) -> None:
    """A caller that joins work under way counts for two, and leaves once."""

    def leave(keys: Any, generation: Any, waiter: Any, now_s: float) -> Any:
        if list(generation.waiters)[1:] == [waiter]:
            return ()
        return key_table._leave(keys, generation, waiter, now_s)

    for state in (*WITHOUT_OUTCOME, GenerationState.COMPLETED):
        patch.item(TABLE[KeyInput.LEAVE], state, leave)


@FAMILY.mutant("G7", needs=(Fault.KEYS,))
def the_first_who_leaves_cancels(patch: Patches) -> None:
    """The work of a key is cancelled by the first of two waiters that leaves."""

    def leave(keys: Any, generation: Any, waiter: Any, now_s: float) -> Any:
        key_table._leave(keys, generation, waiter, now_s)
        if generation.state is GenerationState.CLOSED or waiter in generation.watchers:
            return ()
        return key_table._close(keys, generation)

    for state in WITHOUT_OUTCOME:
        patch.item(TABLE[KeyInput.LEAVE], state, leave)


@FAMILY.mutant("G4", "G7", needs=(Fault.KEYS,))
def retention_forgets_what_runs(patch: Patches) -> None:
    """The retention of a key begins when its work does."""

    @patch.cell(TABLE[KeyInput.DISPATCH], GenerationState.WAITING)
    def run(keys: Any, generation: Any, arg: Any, now_s: float) -> Any:
        effects = key_table._run(keys, generation, arg, now_s)
        generation.wait_in(keys.retained, now_s)
        return effects

    for state in (GenerationState.WAITING, GenerationState.RUNNING):
        patch.item(TABLE[KeyInput.RETENTION_ENDED], state, key_table._close)


class _Unseen(dict[Any, Any]):
    """Generations whose executions live, and that nobody finds."""

    def __contains__(self, name: object) -> bool:
        return False

    def __delitem__(self, name: Any) -> None:
        self.pop(name, None)


@FAMILY.mutant("G1", needs=(Fault.KEYS,))
def a_generation_starts_beside_the_last(patch: Patches) -> None:
    """A new generation of a key does not wait for the execution of the one before."""

    @patch.around(Keys, "__init__")
    def init(original: Any, self: Any, limits: Any, journal: Any) -> None:
        original(self, limits, journal)
        self.ending = _Unseen()


@FAMILY.mutant("G4", needs=(Fault.KEYS,))
def nothing_is_retained(patch: Patches) -> None:
    """The outcome of a key is dropped when the last who waited has it."""

    @patch.cell(TABLE[KeyInput.LEAVE], GenerationState.COMPLETED)
    def leave(keys: Any, generation: Any, waiter: Any, now_s: float) -> Any:
        key_table._leave(keys, generation, waiter, now_s)
        return () if generation.waiters else key_table._close(keys, generation)


@FAMILY.mutant("G7", needs=(Fault.KEYS,))
def who_leaves_is_told_that_it_never_ran(patch: Patches) -> None:
    """A cancel says that nothing started, whatever became of the key's work."""

    @patch.around(Keys, "leave")
    def leave(original: Any, self: Any, waiter: Any, now_s: float) -> Any:
        return original(self, waiter, now_s)[0], False


@FAMILY.mutant("G7", needs=(Fault.KEYS,))
def a_command_hits_any_generation(patch: Patches) -> None:
    """A cancel or forget that names a generation ends whichever is open."""
    original = Keys._command

    def command(self: Any, command: Any, now_s: float) -> Any:
        here = self.open.get(command.name)
        if isinstance(command.tag, int) and here is not None:
            command = command._replace(tag=here.number)
        return original(self, command, now_s)

    patch.attribute(Keys, "_command", command)


@FAMILY.mutant("G8", needs=(Fault.KEYS,))
def orphans_are_never_given_up(patch: Patches) -> None:
    """Work goes on counting for callers that never come back."""

    @patch.around(Keys, "_due")
    def due(original: Any, self: Any, now_s: float) -> Any:
        return (found for found in original(self, now_s) if found[1] is not KeyInput.ORPHANED)


@FAMILY.mutant("G2", needs=(Fault.KEYS,))
def what_is_issued_again_starts_anew(patch: Patches) -> None:
    """After a lost session a key's work starts without proof and consent."""

    @patch.replacing(Keys, "may_start")
    def may_start(self: Any, asked: Entry, reissue: Reissue | None) -> bool:
        return reissue is None or reissue.earlier < asked.allowance


@FAMILY.mutant("G7", "G9", needs=(Fault.KEYS,))
def who_is_cancelled_by_key_is_told_that_it_never_ran(patch: Patches) -> None:
    """The waiters of a key that is cancelled or forgotten hear that nothing started."""

    def end(keys: Any, generation: Any, arg: Any, now_s: float) -> Any:
        return [
            effect._replace(started=False) if isinstance(effect, AnswerCancelled) else effect
            for effect in key_table._close(keys, generation)
        ]

    for input in (KeyInput.CANCEL, KeyInput.FORGET):
        patch.item(TABLE[input], GenerationState.RUNNING, end)


@FAMILY.mutant("G7", needs=(Fault.KEYS,))
def the_limit_of_one_ends_the_work_of_all(patch: Patches) -> None:
    """When the deadline of one who waits for a key passes, the work is cancelled."""

    @patch.around(Deadlines, "_deadline")
    def deadline(original: Any, self: Any, entry: Any) -> Any:
        keyed, keys = self._dispatcher.keyed, self._dispatcher.keyed.keys
        generation = keys.waiting.get(entry.id)
        if generation is not None and generation.outcome is None:
            keyed._do(key_table._close(keys, generation))
        return original(self, entry)


@FAMILY.mutant("G7", needs=(Fault.KEYS,))
def a_lost_waiter_counts_no_more(patch: Patches) -> None:
    """A waiter of a key whose lease ends is taken for one that leaves."""
    for state in (*WITHOUT_OUTCOME, GenerationState.COMPLETED):
        patch.item(TABLE[KeyInput.LOSE], state, key_table._leave)


@FAMILY.mutant("G7", needs=(Fault.KEYS,))
def an_early_cancel_by_key_is_forgotten(patch: Patches) -> None:
    """A cancel of a key that was never seen leaves nothing behind: the next request runs."""
    patch.item(TABLE[KeyInput.CANCEL], GenerationState.ABSENT, key_table._ignore)


@FAMILY.mutant("G4", needs=(Fault.KEYS,))
def a_cancel_drops_an_outcome(patch: Patches) -> None:
    """A cancel by key that comes after the outcome drops that."""
    patch.item(TABLE[KeyInput.CANCEL], GenerationState.COMPLETED, key_table._close)


@FAMILY.mutant("G7", needs=(Fault.KEYS,))
def a_doubled_command_hits_the_next_generation(patch: Patches) -> None:
    """A cancel or forget that comes again ends whatever is open by then."""
    original = Keys._command

    def command(self: Any, command: Any, now_s: float) -> Any:
        self.commands.said.pop(command, None)
        return original(self, command, now_s)

    patch.attribute(Keys, "_command", command)


@FAMILY.mutant("G7", "G8", needs=(Fault.KEYS,))
def a_withdrawal_is_ignored(patch: Patches) -> None:
    """A caller that is back and wants nothing of what it asked for goes on counting."""
    for state in (*WITHOUT_OUTCOME, GenerationState.COMPLETED):
        patch.item(TABLE[KeyInput.WITHDRAW], state, key_table._ignore)


@FAMILY.mutant("G7", "G8", needs=(Fault.KEYS,))
def who_is_back_counts_twice(patch: Patches) -> None:
    """A caller that asks in a new session counts there, and in the old one as before."""

    @patch.replacing(key_table, "_place")
    def place(keys: Any, generation: Any, waiter: Any, caller: Any) -> None:
        generation.count(waiter, caller)
        keys.waiting[waiter] = generation


@FAMILY.mutant("G7", "G8", needs=(Fault.KEYS,))
def attaching_counts_as_waiting(patch: Patches) -> None:
    """Work goes on for those who only attached, though nobody is left who asked for it."""

    def watch(keys: Any, generation: Any, waiter: Any, now_s: float) -> Any:
        generation.count(waiter, b"attached" + bytes(8))
        keys.waiting[waiter] = generation
        return key_table._who_waits(keys, generation, now_s)

    for state in WITHOUT_OUTCOME:
        patch.item(TABLE[KeyInput.ATTACH], state, watch)


@FAMILY.mutant("G8", needs=(Fault.KEYS,))
def what_was_answered_is_never_given_back(patch: Patches) -> None:
    """A caller that has received the outcome of a key goes on being counted as holding it."""
    patch.attribute(KeyedRequests, "_let_go", lambda self, entries: None)
