"""Mutants of works: their table, who waits, what may start, and the bounds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ...core import outcomes
from ...core.account import Accounts
from ...core.ranges import Ranges
from ...core.sessions import Session, Sessions
from ...core.work import Command, Ended, WorkInput, Works, WorkState
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault
from .router import without

FAMILY = Family(ANY)
KEYS = Family(ANY, needs=(Fault.KEYS,))

TABLE = Works.TABLE
WITHOUT_OUTCOME = (WorkState.HELD, WorkState.WAITING, WorkState.RUNNING)
OPEN = (*WITHOUT_OUTCOME, WorkState.COMPLETED)


# -- requests ---------------------------------------------------------------------


@FAMILY.mutant("G1")
def duplicates_run_again(patch: Patches) -> None:
    """A duplicate of a running request is queued, and runs as well."""

    @patch.around(Works, "request")
    def again(request: Any, self: Any, session: Any, sequence: int, ask: Any, asker: Any) -> Any:
        ticket = session.tickets.get(sequence)
        work = None if ticket is None else ticket.work
        if work is not None and work.name is None and work.state is WorkState.RUNNING:
            if work.body is None:
                work.body = ask.body
                self.accounts.hold(work.account, work.body_bytes)
            self.accounts.run(work.account, -1)
            self.accounts.place(work.account, +1)
            work.state = WorkState.WAITING
            self._queue(work)
        return request(self, session, sequence, ask, asker)


@FAMILY.mutant("G2", "G7", "G9")
def finished_looks_unseen(patch: Patches) -> None:
    """A finished request is forgotten, and then looks like never seen."""

    @patch.replacing(Session, "has_finished")
    def has_finished(self: Any, sequence: int) -> bool:
        return False


@FAMILY.mutant("G2")
def reruns_without_consent(patch: Patches) -> None:
    """A dead worker's requests run again, whether or not anybody has consented."""

    @patch.replacing(Works, "may_rerun")
    def may_rerun(self: Any, work: Any) -> bool:
        return bool(work.executions < work.allowance)


@FAMILY.mutant("G2", needs=(Fault.POISON,))
def reruns_for_ever(patch: Patches) -> None:
    """Consent to a rerun is consent to any number: what kills its workers never ends."""

    @patch.replacing(Works, "may_rerun")
    def may_rerun(self: Any, work: Any) -> bool:
        return bool(self.declared_rerun if work.rerun is None else work.rerun)


@FAMILY.mutant()
def spans_one_too_long(patch: Patches) -> None:
    """A span that a statement finishes has one more at its end."""

    @patch.around(Ranges, "gaps")
    def longer(gaps: Any, self: Ranges, stop: int) -> Ranges:
        made = Ranges()
        for start, end in gaps(self, stop).spans():
            made.add_span(start, end + 1)
        return made


@FAMILY.mutant("G2", "G4", "G7", "G8", "G9")
def sync_off_by_one(patch: Patches) -> None:
    """A statement finishes all up to its next sequence, that one included."""

    @patch.around(Works, "sync")
    def too_far(sync: Any, self: Any, session: Any, next_sequence: int, *rest: Any) -> Any:
        return sync(self, session, next_sequence + 1, *rest)


@FAMILY.mutant("G9")
def sync_names_nothing_missing(patch: Patches) -> None:
    """The server never says which requests it has not seen."""

    @patch.around(Works, "sync")
    def none_missing(sync: Any, self: Any, *args: Any) -> Ranges:
        sync(self, *args)
        return Ranges()


@FAMILY.mutant("G9")
def sync_replays_nothing(patch: Patches) -> None:
    """An outcome that was lost on its way is not sent again."""

    @patch.around(Works, "sync")
    def silent(sync: Any, self: Any, session: Any, after: int, pending: Any, _: Any) -> Any:
        return sync(self, session, after, pending, -math.inf)


@FAMILY.mutant("G7", "G8")
def finish_frees_a_running_request(patch: Patches) -> None:
    """A request that is finished while it runs is taken for ended: nobody stops it."""

    @patch.around_cell(TABLE[WorkInput.LEAVE], WorkState.RUNNING)
    def finish(leave: Any, self: Any, work: Any, ticket: Any) -> None:
        execution = work.execution
        leave(self, work, ticket)
        if work.name is None:
            self._stopping.remove(execution)
            if execution.number in execution.worker.live:
                execution.worker.end(execution)
            execution.worker.accepting = True


@FAMILY.mutant("G7", "G9", needs=(Fault.MANGLE,))
def cancel_is_forgotten(patch: Patches) -> None:
    """A cancel that overtakes its request leaves nothing behind: the request runs."""

    @patch.around(Works, "cancel")
    def cancel(original: Any, self: Any, session: Any, sequence: int, **named: Any) -> None:
        unseen = not session.has_seen(sequence)
        original(self, session, sequence, **named)
        if unseen:
            session.finished = without(session.finished, sequence)


@FAMILY.mutant("G7", "G8")
def cancelled_is_kept(patch: Patches) -> None:
    """A request cancelled while it runs keeps "cancelled" as the outcome for a retry."""

    @patch.around_cell(TABLE[WorkInput.LEAVE], WorkState.RUNNING)
    def finish(leave: Any, self: Any, work: Any, ticket: Any) -> None:
        if work.name is not None:
            leave(self, work, ticket)
            return
        ticket.session.tickets[ticket.sequence] = ticket
        self.sessions.busy(ticket.session)
        self.answer(work, outcomes.stopped)


@FAMILY.mutant("G7", "G8")
def deadline_stops_nothing(patch: Patches) -> None:
    """A deadline answers the request, and its execution goes on."""

    @patch.around_cell(TABLE[WorkInput.ANSWER], WorkState.RUNNING)
    def answer(abort: Any, self: Any, work: Any, outcome: Any) -> None:
        abort(self, work, outcome)
        execution = self._stopping.pop()
        execution.is_wanted, execution.body = False, None


@FAMILY.mutant("G7", "G8", needs=(Fault.SHORT_LEASE, Fault.KILL_CLIENT))
def lease_ends_and_work_goes_on(patch: Patches) -> None:
    """Requests that a client left running when its lease ended are not cancelled."""

    @patch.around_cell(TABLE[WorkInput.LOSE], WorkState.RUNNING)
    def lose(original: Any, self: Any, work: Any, ticket: Any) -> None:
        execution = work.execution
        original(self, work, ticket)
        if work.name is None:
            self._stopping.remove(execution)
            execution.is_wanted, execution.body = False, None


@FAMILY.mutant("G4", "G9")
def kept_outcomes_are_evicted(patch: Patches) -> None:
    """A new outcome throws away those that its session has not fetched yet."""

    @patch.around_cell(TABLE[WorkInput.REPORT], WorkState.RUNNING)
    def evict(complete: Any, self: Any, work: Any, brought: Any) -> None:
        session = self.sessions.known.get(work.account.id)
        others = [] if session is None else list(session.tickets.values())
        for other in others:
            if other.kept is not None and other.key is None:
                session.finished.add(other.sequence)
                self._forget(other)
        complete(self, work, brought)


@FAMILY.mutant("G3")
def replay_has_a_new_header(patch: Patches) -> None:
    """An outcome sent a second time is encoded anew, and differs."""

    @patch.around(Works, "request")
    def replay(request: Any, self: Any, session: Any, sequence: int, *rest: Any) -> Any:
        ticket = session.tickets.get(sequence)
        if ticket is not None and ticket.kept is not None:
            ticket.kept.outcome = ticket.kept.outcome._replace(duration_s=1.5)
        return request(self, session, sequence, *rest)


@FAMILY.mutant("G6", needs=(Fault.HOSTILE,))
def digest_is_not_compared(patch: Patches) -> None:
    """A request is known by its id alone: another payload gets the first one's outcome."""

    @patch.around(Works, "request")
    def compare(request: Any, self: Any, session: Any, sequence: int, ask: Any, asker: Any) -> Any:
        ticket = session.tickets.get(sequence)
        if ticket is not None:
            ticket.digest, ticket.body_bytes, ticket.key = ask.digest, len(ask.body), ask.key
        return request(self, session, sequence, ask, asker)


@FAMILY.mutant("G6", "G1", "G2", "CRASH", needs=(Fault.HOSTILE,))
def conflict_replaces_the_first(patch: Patches) -> None:
    """Another payload under the same id takes the place of the one that waits."""

    @patch.around(Works, "request")
    def replace(request: Any, self: Any, session: Any, sequence: int, ask: Any, asker: Any) -> Any:
        ticket = session.tickets.get(sequence)
        work = None if ticket is None else ticket.work
        if work is None or work.name is not None or work.state is not WorkState.WAITING:
            return request(self, session, sequence, ask, asker)
        work.body = ask.body
        return None


@FAMILY.mutant("G9")
def cancel_says_it_never_ran(patch: Patches) -> None:
    """The answer to every cancel is that the request did not run."""

    @patch.around(Works, "_cancel")
    def never(cancel: Any, self: Any, ticket: Any) -> bool:
        return bool(cancel(self, ticket)) and ticket.key is not None


# -- bounds -----------------------------------------------------------------------


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS,))
def kept_outcomes_have_no_bound(patch: Patches) -> None:
    """At the bound of kept outcomes dispatching goes on."""
    patch.attribute(Accounts, "may_run", lambda self, account: True)


@FAMILY.mutant("G8", needs=(Fault.HOSTILE,))
def a_connection_opens_any_number_of_sessions(patch: Patches) -> None:
    """Sessions are bounded in all, and not for each connection."""

    @patch.around(Sessions, "refusal")
    def refusal(original: Any, self: Any, nonce: bytes, route: bytes) -> Any:
        return original(self, nonce, b"")


@FAMILY.mutant("G4", "G3", "G9", "CRASH", needs=(Fault.HOSTILE,))
def a_session_at_work_makes_room(patch: Patches) -> None:
    """At the bound of sessions whichever was unheard for longest makes room."""

    @patch.replacing(Sessions, "_longest_idle")
    def longest(self: Any) -> Any:
        return next(iter(self.known.values()), None)


@FAMILY.mutant("G9", "G1", "G2", needs=(Fault.SHORT_LEASE, Fault.STOP_CLIENT))
def every_lost_session_was_settled(patch: Patches) -> None:
    """The server says of each session that it has forgotten that nothing was unfinished."""
    patch.attribute(Sessions, "settled", lambda self, session_id: True)


@FAMILY.mutant("G8", needs=(Fault.HOSTILE,))
def an_ended_nonce_is_forgotten(patch: Patches) -> None:
    """A hello that comes after the goodbye to its session opens another one."""

    @patch.replacing(Sessions, "goodbye")
    def goodbye(self: Any, identifier: bytes) -> Any:
        return self.known.get(identifier) or self._by_nonce.get(identifier)


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS, Fault.CUT_LONG))
def kept_bytes_are_not_counted(patch: Patches) -> None:
    """Kept outcomes are bounded in number, and not in bytes."""

    @patch.around(Accounts, "may_run")
    def uncounted(may_run: Any, self: Any, account: Any) -> Any:
        bytes_of = self.all.kept_bytes, account.kept_bytes
        self.all.kept_bytes = account.kept_bytes = 0
        try:
            return may_run(self, account)
        finally:
            self.all.kept_bytes, account.kept_bytes = bytes_of


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS,))
def sessions_have_no_share_of_their_own(patch: Patches) -> None:
    """At the bound, whoever holds most stops all the others."""

    @patch.replacing(Accounts, "may_run")
    def may_run(self: Any, account: Any) -> bool:
        taken, limits = self.all, self.limits
        ran = taken.running_count + taken.kept_count - taken.kept_unrun
        return bool(ran < limits.kept_outcomes and taken.kept_bytes < limits.kept_bytes)


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS, Fault.HOSTILE))
def window_is_not_kept(patch: Patches) -> None:
    """A session may have any number of unfinished requests."""

    @patch.around(Works, "request")
    def unbounded(request: Any, self: Any, *args: Any) -> Any:
        limits = self.limits
        self.limits = dataclasses.replace(limits, window=1 << 40)
        try:
            return request(self, *args)
        finally:
            self.limits = limits


@FAMILY.mutant("G8")
def bytes_are_not_given_back(patch: Patches) -> None:
    """The bytes of a request's body count as held after it is dropped."""

    @patch.replacing(Works, "_drop_body")
    def drop(self: Any, work: Any) -> None:
        work.body = None


# -- keys -------------------------------------------------------------------------


@KEYS.mutant("G6")
def a_key_joins_another_input(patch: Patches) -> None:
    """A caller with another input under a key waits for what was asked first."""
    for state in WITHOUT_OUTCOME:
        patch.item(TABLE[WorkInput.CLASH], state, Works._join)
    patch.item(TABLE[WorkInput.CLASH], WorkState.COMPLETED, Works._replay)


@KEYS.mutant("G7", "G8")
def a_waiter_is_counted_twice(patch: Patches) -> None:
    """A caller that joins work under way counts for two, and leaves once."""

    def leave(self: Any, work: Any, ticket: Any) -> None:
        if [each for each in work.tickets if each.counts][1:] != [ticket]:
            Works._leave(self, work, ticket)

    for state in OPEN:
        patch.item(TABLE[WorkInput.LEAVE], state, leave)


@KEYS.mutant("G7")
def the_first_who_leaves_cancels(patch: Patches) -> None:
    """The work of a key is cancelled by the first of two waiters that leaves."""

    def leave(self: Any, work: Any, ticket: Any) -> None:
        Works._leave(self, work, ticket)
        if work.state is not WorkState.CLOSED and ticket.counts:
            self._close(work)

    for state in WITHOUT_OUTCOME:
        patch.item(TABLE[WorkInput.LEAVE], state, leave)


@KEYS.mutant("G4", "G7")
def retention_forgets_what_runs(patch: Patches) -> None:
    """The retention of a key begins when its work does."""

    @patch.around_cell(TABLE[WorkInput.DISPATCH], WorkState.WAITING)
    def run(original: Any, self: Any, work: Any, execution: Any) -> None:
        original(self, work, execution)
        if work.name is not None:
            work.wait_in(self.retained, self.clock.awake_s)

    for state in (WorkState.WAITING, WorkState.RUNNING):
        patch.item(TABLE[WorkInput.OUTDATED], state, Works._close)


class _Unseen(dict[Any, Any]):
    """Works whose executions live, and that nobody finds."""

    def __contains__(self, name: object) -> bool:
        return False

    def __delitem__(self, name: Any) -> None:
        self.pop(name, None)


@KEYS.mutant("G1")
def a_generation_starts_beside_the_last(patch: Patches) -> None:
    """A new generation of a key does not wait for the execution of the one before."""

    @patch.around(Works, "__init__")
    def init(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        self.ending = _Unseen()


@KEYS.mutant("G4")
def nothing_is_retained(patch: Patches) -> None:
    """The outcome of a key is dropped when the last who waited has it."""

    @patch.around_cell(TABLE[WorkInput.LEAVE], WorkState.COMPLETED)
    def leave(original: Any, self: Any, work: Any, ticket: Any) -> None:
        original(self, work, ticket)
        if not work.tickets:
            self._close(work)


@KEYS.mutant("G7")
def who_leaves_is_told_that_it_never_ran(patch: Patches) -> None:
    """A cancel says that nothing started, whatever became of the key's work."""

    @patch.around(Works, "_cancel")
    def cancel(original: Any, self: Any, ticket: Any) -> bool:
        return bool(original(self, ticket)) and ticket.key is None


@KEYS.mutant("G7")
def a_command_hits_any_generation(patch: Patches) -> None:
    """A cancel or forget that names a generation ends whichever is open."""

    @patch.around(Works, "_command")
    def command(original: Any, self: Any, ticket: Any, asked: Any, work: Any) -> Any:
        if isinstance(asked.tag, int) and work is not None:
            asked = asked._replace(tag=work.number)
        return original(self, ticket, asked, work)


@KEYS.mutant("G8")
def orphans_are_never_given_up(patch: Patches) -> None:
    """Work goes on counting for callers that never come back."""

    @patch.around(Works, "_timed")
    def timed(original: Any, self: Any) -> Any:
        return (found for found in original(self) if found[1] is not WorkInput.ORPHANED)


@KEYS.mutant("G2")
def what_is_issued_again_starts_anew(patch: Patches) -> None:
    """After a lost session a key's work starts without proof and consent."""

    @patch.replacing(Works, "may_start")
    def may_start(self: Any, ask: Any, reissue: Any) -> bool:
        return bool(reissue.earlier < ask.allowance)


@KEYS.mutant("G7", "G9")
def who_is_cancelled_by_key_is_told_that_it_never_ran(patch: Patches) -> None:
    """The waiters of a key that is cancelled or forgotten hear that nothing started."""

    def end(self: Any, work: Any, arg: Any) -> None:
        tell = self._tell

        def never_ran(work: Any, answer: Any) -> None:
            tell(work, answer._replace(started=False) if isinstance(answer, Ended) else answer)

        self._tell = never_ran
        Works._close(self, work)
        del self._tell

    for input in (WorkInput.CANCEL, WorkInput.FORGET):
        patch.item(TABLE[input], WorkState.RUNNING, end)


@KEYS.mutant("G7")
def the_limit_of_one_ends_the_work_of_all(patch: Patches) -> None:
    """When the deadline of one who waits for a key passes, the work is cancelled."""

    @patch.around(Works, "expire")
    def expire(original: Any, self: Any, ticket: Any) -> bool:
        work = ticket.work
        if work is not None and work.name is not None and work.outcome is None:
            self._close(work)
        return bool(original(self, ticket))


@KEYS.mutant("G7")
def a_lost_waiter_counts_no_more(patch: Patches) -> None:
    """A waiter of a key whose lease ends is taken for one that leaves."""
    for state in OPEN:
        patch.item(TABLE[WorkInput.LOSE], state, Works._leave)


@KEYS.mutant("G4")
def a_cancel_drops_an_outcome(patch: Patches) -> None:
    """A cancel by key that comes after the outcome drops that."""
    patch.item(TABLE[WorkInput.CANCEL], WorkState.COMPLETED, Works._close)


@KEYS.mutant("G7")
def a_doubled_command_hits_the_next_generation(patch: Patches) -> None:
    """A cancel or forget that comes again ends whatever is open by then."""

    @patch.around(Works, "_command")
    def command(original: Any, self: Any, ticket: Any, asked: Any, work: Any) -> Any:
        for input in (WorkInput.CANCEL, WorkInput.FORGET):
            self.commands.pop(Command(input, asked.name, asked.tag), None)
        return original(self, ticket, asked, work)


@KEYS.mutant("G7", "G11")
def a_passed_deadline_cancels_the_work_of_a_key(patch: Patches) -> None:
    """Who waits for a key for a limited time takes its work along."""
    patch.source(Works.expire, "_I.LOSE", "_I.LEAVE")


@KEYS.mutant("G7", "G8")
def a_withdrawal_is_ignored(patch: Patches) -> None:
    """A caller that is back and wants nothing of what it asked for goes on counting."""
    for state in OPEN:
        patch.item(TABLE[WorkInput.WITHDRAW], state, Works._ignore)


@KEYS.mutant("G7", "G8")
def who_is_back_counts_twice(patch: Patches) -> None:
    """A caller that asks in a new session counts there, and in the old one as before."""

    def join(self: Any, work: Any, arg: Any) -> Any:
        lost, self._replace = work.lost, lambda *args: None
        refusal = Works._join(self, work, arg)
        del self._replace
        work.lost = lost
        return refusal

    for state in WITHOUT_OUTCOME:
        patch.item(TABLE[WorkInput.ASK], state, join)


@KEYS.mutant("G7", "G8")
def attaching_counts_as_waiting(patch: Patches) -> None:
    """Work goes on for those who only attached, though nobody is left who asked for it."""

    def watch(self: Any, work: Any, arg: Any) -> Any:
        ticket = arg[0]
        ticket.counts, ticket.caller = True, b"attached" + bytes(8)
        refusal = Works._watch(self, work, arg)
        self._who_waits(work)
        return refusal

    for state in WITHOUT_OUTCOME:
        patch.item(TABLE[WorkInput.ATTACH], state, watch)


@KEYS.mutant("G8")
def what_was_answered_is_never_given_back(patch: Patches) -> None:
    """A caller that has received the outcome of a key goes on being counted as holding it."""

    @patch.around(Works, "_forget")
    def forget(original: Any, self: Any, ticket: Any) -> None:
        if ticket.kept is not None:
            ticket.kept.shared = None
        original(self, ticket)
