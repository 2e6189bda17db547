"""Mutants of the dedup cache: its table, its bounds, its ranges."""

from __future__ import annotations

from typing import Any

from ...core import outcomes, request_table
from ...core.dedup import DedupCache
from ...core.ranges import Ranges
from ...core.request_table import TABLE, Effects, RequestAction, RequestInput
from ...core.requests import RequestState, Session
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY)


@FAMILY.mutant("G1")
def duplicates_run_again(patch: Patches) -> None:
    """A duplicate of a running request is queued, and runs as well."""

    @patch.cell(TABLE[RequestInput.REQUEST], RequestState.RUNNING)
    def again(cache: Any, session: Any, sequence: int, entry: Any, ask: Any) -> Effects:
        if entry.body is None:
            entry.body = ask.body
            cache.held_bytes += entry.body_bytes
            session.held_bytes += entry.body_bytes
        entry.state = RequestState.WAITING
        request_table._run_count(cache, session, -1)
        request_table._queue(cache, session, +1)
        return ((RequestAction.QUEUE, entry),)


@FAMILY.mutant("G2", "G7", "G9")
def finished_looks_unseen(patch: Patches) -> None:
    """A finished request is forgotten, and then looks like never seen."""
    patch.attribute(Session, "has_finished", lambda self, sequence: False)


@FAMILY.mutant("G2")
def reruns_without_consent(patch: Patches) -> None:
    """A dead worker's requests run again, whether or not anybody has consented."""
    patch.source(DedupCache.may_rerun, "consent and ", "")


@FAMILY.mutant("G2", needs=(Fault.POISON,))
def reruns_for_ever(patch: Patches) -> None:
    """Consent to a rerun is consent to any number: what kills its workers never ends."""
    patch.source(DedupCache.may_rerun, " and entry.executions < entry.allowance", "")


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
    patch.source(DedupCache.sync, "gaps(next_sequence)", "gaps(next_sequence + 1)")


@FAMILY.mutant("G9")
def sync_names_nothing_missing(patch: Patches) -> None:
    """The server never says which requests it has not seen."""
    patch.source(DedupCache.sync, "missing.add(sequence)", "pass")


@FAMILY.mutant("G9")
def sync_replays_nothing(patch: Patches) -> None:
    """An outcome that was lost on its way is not sent again."""
    patch.source(DedupCache.sync, "if session.kept_count:", "if False:")


@FAMILY.mutant("G7", "G8")
def finish_frees_a_running_request(patch: Patches) -> None:
    """A request that is finished while it runs is taken for ended: nobody stops it."""

    @patch.cell(TABLE[RequestInput.FINISH], RequestState.RUNNING)
    def finish(cache: Any, session: Any, sequence: int, entry: Any, arg: Any) -> Effects:
        execution = entry.execution
        request_table._run_count(cache, session, -1)
        request_table._remove(cache, session, entry)
        if execution.number in execution.worker.live:
            execution.worker.end(execution)
        execution.worker.accepting = True
        return ()


@FAMILY.mutant("G7", "G9", needs=(Fault.MANGLE,))
def cancel_is_forgotten(patch: Patches) -> None:
    """A cancel that overtakes its request leaves nothing behind: the request runs."""
    patch.item(TABLE[RequestInput.FINISH], RequestState.NOT_SEEN, request_table._ignore)


@FAMILY.mutant("G7", "G8")
def cancelled_is_kept(patch: Patches) -> None:
    """A request cancelled while it runs keeps "cancelled" as the outcome for a retry."""

    @patch.cell(TABLE[RequestInput.FINISH], RequestState.RUNNING)
    def finish(cache: Any, session: Any, sequence: int, entry: Any, arg: Any) -> Effects:
        execution = entry.execution
        request_table._run_count(cache, session, -1)
        request_table._keep(cache, session, entry, outcomes.stopped(entry))
        return ((RequestAction.STOP, execution),)


@FAMILY.mutant("G7", "G8")
def deadline_stops_nothing(patch: Patches) -> None:
    """A deadline answers the request, and its execution goes on."""
    answer = "return ((_ANSWER, entry), (RequestAction.STOP, execution))"
    alone = "execution.entry = execution.body = None; return ((_ANSWER, entry),)"
    patch.source(request_table._expire_running, answer, alone)


@FAMILY.mutant("G7", "G8", needs=(Fault.SHORT_LEASE, Fault.KILL_CLIENT))
def lease_ends_and_work_goes_on(patch: Patches) -> None:
    """Requests that a client left running when its lease ended are not cancelled."""

    @patch.cell(TABLE[RequestInput.LEASE_ENDED], RequestState.RUNNING)
    def leave(cache: Any, session: Any, sequence: int, entry: Any, arg: Any) -> Effects:
        entry.execution.entry = entry.execution.body = None
        request_table._run_count(cache, session, -1)
        request_table._remove(cache, session, entry)
        return ()


@FAMILY.mutant("G4", "G9")
def kept_outcomes_are_evicted(patch: Patches) -> None:
    """A new outcome throws away those that its session has not fetched yet."""
    complete = request_table._complete

    @patch.cell(TABLE[RequestInput.OUTCOME], RequestState.RUNNING)
    def evict(cache: Any, session: Any, sequence: int, entry: Any, kept: Any) -> Effects:
        effects = complete(cache, session, sequence, entry, kept)
        for other in [e for e in session.entries.values() if e.state is RequestState.COMPLETED]:
            if other is not entry:
                request_table._finish_kept(cache, session, other.id.sequence, other, None)
        return effects


@FAMILY.mutant("G3")
def replay_has_a_new_header(patch: Patches) -> None:
    """An outcome sent a second time is encoded anew, and differs."""
    new = "entry.kept.outcome = entry.kept.outcome._replace(duration_s=1.5)"
    patch.source(request_table._replay, "cache.counters.replayed += 1", new)


@FAMILY.mutant("G6", needs=(Fault.HOSTILE,))
def digest_is_not_compared(patch: Patches) -> None:
    """A request is known by its id alone: another payload gets the first one's outcome."""
    patch.source(DedupCache.request, "same = entry is None", "same = True")


@FAMILY.mutant("G6", "G1", "G2", "CRASH", needs=(Fault.HOSTILE,))
def conflict_replaces_the_first(patch: Patches) -> None:
    """Another payload under the same id takes the place of the one that waits."""

    @patch.cell(TABLE[RequestInput.OTHER_DIGEST], RequestState.WAITING)
    def replace(cache: Any, session: Any, sequence: int, entry: Any, ask: Any) -> Effects:
        entry.body = ask.body
        return ()


@FAMILY.mutant("G9")
def cancel_says_it_never_ran(patch: Patches) -> None:
    """The answer to every cancel is that the request did not run."""
    patch.attribute(DedupCache, "ever_started", lambda *args: False)


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS,))
def kept_outcomes_have_no_bound(patch: Patches) -> None:
    """At the bound of kept outcomes dispatching goes on."""
    patch.attribute(DedupCache, "may_dispatch", lambda self: True)
    patch.attribute(DedupCache, "share_left", lambda self, session: True)


@FAMILY.mutant("G8", needs=(Fault.HOSTILE,))
def a_connection_opens_any_number_of_sessions(patch: Patches) -> None:
    """Sessions are bounded in all, and not for each connection."""
    patch.source(DedupCache.no_session, "self._opened.get(route, 0)", "0")


@FAMILY.mutant("G4", "G3", "G9", "CRASH", needs=(Fault.HOSTILE,))
def a_session_at_work_makes_room(patch: Patches) -> None:
    """At the bound of sessions whichever was unheard for longest makes room."""
    patch.attribute(
        DedupCache, "_longest_idle", lambda self: next(iter(self.sessions.values()), None)
    )


@FAMILY.mutant("G9", "G1", "G2", needs=(Fault.SHORT_LEASE, Fault.STOP_CLIENT))
def every_lost_session_was_settled(patch: Patches) -> None:
    """The server says of each session that it has forgotten that nothing was unfinished."""
    patch.attribute(DedupCache, "settled", lambda self, session_id: True)


@FAMILY.mutant("G8", needs=(Fault.HOSTILE,))
def an_ended_nonce_is_forgotten(patch: Patches) -> None:
    """A hello that comes after the goodbye to its session opens another one."""
    patch.source(DedupCache.goodbye, "self._ended[nonce] = None", "return session")


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS, Fault.CUT_LONG))
def kept_bytes_are_not_counted(patch: Patches) -> None:
    """Kept outcomes are bounded in number, and not in bytes."""
    patch.source(DedupCache.share_left, "self.kept_bytes + ", "")
    patch.source(DedupCache.share_left, "and kept_bytes + ", "and ")


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS,))
def sessions_have_no_share_of_their_own(patch: Patches) -> None:
    """At the bound, whoever holds most stops all the others."""
    patch.attribute(DedupCache, "share_left", lambda self, session: self.may_dispatch())


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS, Fault.HOSTILE))
def window_is_not_kept(patch: Patches) -> None:
    """A session may have any number of unfinished requests."""
    patch.source(request_table._enter, "len(session.entries)", "0")


@FAMILY.mutant("G8")
def bytes_are_not_given_back(patch: Patches) -> None:
    """The bytes of a request's body count as held after it is dropped."""
    patch.source(request_table.drop_body, "-= entry.body_bytes", "-= 0")
