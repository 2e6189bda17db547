"""Mutants of keys: who waits, what closes a generation, what may start."""

from __future__ import annotations

from typing import Any

from ...core import key_table
from ...core.deadlines import Deadlines
from ...core.key_records import GenerationState
from ...core.key_table import TABLE, KeyInput
from ...core.keyed import KeyedRequests
from ...core.keys import Keys
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY, needs=(Fault.KEYS,))

WITHOUT_OUTCOME = (GenerationState.HELD, GenerationState.WAITING, GenerationState.RUNNING)


@FAMILY.mutant("G6")
def a_key_joins_another_input(patch: Patches) -> None:
    """A caller with another input under a key waits for what was asked first."""
    for state in WITHOUT_OUTCOME:
        patch.item(TABLE[KeyInput.OTHER_INPUT], state, key_table._join)
    patch.item(TABLE[KeyInput.OTHER_INPUT], GenerationState.COMPLETED, key_table._replay)


@FAMILY.mutant("G7", "G8")
def a_waiter_is_counted_twice(patch: Patches) -> None:
    """A caller that joins work under way counts for two, and leaves once."""

    def leave(keys: Any, generation: Any, waiter: Any, now_s: float) -> Any:
        if list(generation.waiters)[1:] == [waiter]:
            return ()
        return key_table._leave(keys, generation, waiter, now_s)

    for state in (*WITHOUT_OUTCOME, GenerationState.COMPLETED):
        patch.item(TABLE[KeyInput.LEAVE], state, leave)


@FAMILY.mutant("G7")
def the_first_who_leaves_cancels(patch: Patches) -> None:
    """The work of a key is cancelled by the first of two waiters that leaves."""
    patch.source(
        key_table._leave,
        "return _who_waits(keys, generation, now_s)",
        "return _close(keys, generation)",
    )


@FAMILY.mutant("G4", "G7")
def retention_forgets_what_runs(patch: Patches) -> None:
    """The retention of a key begins when its work does."""

    @patch.cell(TABLE[KeyInput.DISPATCH], GenerationState.WAITING)
    def run(keys: Any, generation: Any, arg: Any, now_s: float) -> Any:
        effects = key_table._run(keys, generation, arg, now_s)
        generation.wait_in(keys.retained, now_s)
        return effects

    for state in (GenerationState.WAITING, GenerationState.RUNNING):
        patch.item(TABLE[KeyInput.RETENTION_ENDED], state, key_table._close)


@FAMILY.mutant("G1")
def a_generation_starts_beside_the_last(patch: Patches) -> None:
    """A new generation of a key does not wait for the execution of the one before."""
    patch.source(key_table._open, "name in keys.ending", "False")
    patch.source(
        Keys.release, "del self.ending[generation.name]", "self.ending.pop(generation.name, None)"
    )


@FAMILY.mutant("G4")
def nothing_is_retained(patch: Patches) -> None:
    """The outcome of a key is dropped when the last who waited has it."""

    @patch.cell(TABLE[KeyInput.LEAVE], GenerationState.COMPLETED)
    def leave(keys: Any, generation: Any, waiter: Any, now_s: float) -> Any:
        key_table._leave(keys, generation, waiter, now_s)
        return () if generation.waiters else key_table._close(keys, generation)


@FAMILY.mutant("G7")
def who_leaves_is_told_that_it_never_ran(patch: Patches) -> None:
    """A cancel says that nothing started, whatever became of the key's work."""
    patch.source(Keys.leave, "waiter, now_s)", "waiter, now_s)[0], False")


@FAMILY.mutant("G7")
def a_command_hits_any_generation(patch: Patches) -> None:
    """A cancel or forget that names a generation ends whichever is open."""
    patch.source(Keys._command, " or generation.number != command.tag", "")


@FAMILY.mutant("G8")
def orphans_are_never_given_up(patch: Patches) -> None:
    """Work goes on counting for callers that never come back."""
    patch.source(Keys._due, "(self.orphans, limits.orphan_s, KeyInput.ORPHANED),", "")


@FAMILY.mutant("G2")
def what_is_issued_again_starts_anew(patch: Patches) -> None:
    """After a lost session a key's work starts without proof and consent."""
    patch.source(Keys.may_start, "reissue.gone and consent and ", "")


@FAMILY.mutant("G7", "G9")
def who_is_cancelled_by_key_is_told_that_it_never_ran(patch: Patches) -> None:
    """The waiters of a key that is cancelled or forgotten hear that nothing started."""
    patch.source(key_table._close, "started = generation.started", "started = False")


@FAMILY.mutant("G7")
def the_limit_of_one_ends_the_work_of_all(patch: Patches) -> None:
    """When the deadline of one who waits for a key passes, the work is cancelled."""

    @patch.around(Deadlines, "_deadline")
    def deadline(original: Any, self: Any, entry: Any) -> Any:
        keyed, keys = self._dispatcher.keyed, self._dispatcher.keyed.keys
        generation = keys.waiting.get(entry.id)
        if generation is not None and generation.outcome is None:
            keyed._do(key_table._close(keys, generation))
        return original(self, entry)


@FAMILY.mutant("G7")
def a_lost_waiter_counts_no_more(patch: Patches) -> None:
    """A waiter of a key whose lease ends is taken for one that leaves."""
    patch.source(key_table._lose, "generation.lost |= {caller}", "pass")


@FAMILY.mutant("G7")
def an_early_cancel_by_key_is_forgotten(patch: Patches) -> None:
    """A cancel of a key that was never seen leaves nothing behind: the next request runs."""
    patch.item(TABLE[KeyInput.CANCEL], GenerationState.ABSENT, key_table._ignore)


@FAMILY.mutant("G4")
def a_cancel_drops_an_outcome(patch: Patches) -> None:
    """A cancel by key that comes after the outcome drops that."""
    patch.item(TABLE[KeyInput.CANCEL], GenerationState.COMPLETED, key_table._close)


@FAMILY.mutant("G7")
def a_doubled_command_hits_the_next_generation(patch: Patches) -> None:
    """A cancel or forget that comes again ends whatever is open by then."""
    patch.source(Keys._command, "command in self.commands.said", "False")


@FAMILY.mutant("G7", "G8")
def a_withdrawal_is_ignored(patch: Patches) -> None:
    """A caller that is back and wants nothing of what it asked for goes on counting."""
    for state in (*WITHOUT_OUTCOME, GenerationState.COMPLETED):
        patch.item(TABLE[KeyInput.WITHDRAW], state, key_table._ignore)


@FAMILY.mutant("G7", "G8")
def who_is_back_counts_twice(patch: Patches) -> None:
    """A caller that asks in a new session counts there, and in the old one as before."""
    patch.source(key_table._place, "_replace(keys, generation, caller, waiter.session)", "pass")


@FAMILY.mutant("G7", "G8")
def attaching_counts_as_waiting(patch: Patches) -> None:
    """Work goes on for those who only attached, though nobody is left who asked for it."""
    patch.source(
        key_table._watch, "generation.watch(waiter)", "generation.count(waiter, bytes(16))"
    )
    patch.source(key_table._watch, "return ()", "return _who_waits(keys, generation, now_s)")


@FAMILY.mutant("G8")
def what_was_answered_is_never_given_back(patch: Patches) -> None:
    """A caller that has received the outcome of a key goes on being counted as holding it."""
    patch.attribute(KeyedRequests, "_let_go", lambda self, entries: None)
