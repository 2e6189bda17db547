"""Mutants of the router: what it does with the word of the works, and what it says."""

from __future__ import annotations

import math
from typing import Any

from ...core import messages, outcomes
from ...core import router as routing
from ...core.clock import AwakeClock
from ...core.closing import Closing, ClosingStage
from ...core.lives import Pool
from ...core.ranges import Ranges
from ...core.router import Router
from ...core.router_effects import ToClient
from ...core.router_inputs import Tick
from ...core.sessions import Sessions
from ...core.terms import Status, Verdict
from ...core.work import Works
from ...core.workforce import Workforce
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY)

EXPIRE_S = 1.0
"""After how long :func:`kept_outcomes_expire` forgets: sooner than any retry."""


@FAMILY.mutant("G1", needs=(Fault.STOP_CLIENT, Fault.SHORT_LEASE, Fault.IGNORE_CANCEL))
def every_lost_session_is_gone(patch: Patches) -> None:
    """The server says of each session that it does not know that nothing of it runs."""

    @patch.around(Router, "_session")
    def session(original: Any, router: Any, route: Any, session_id: Any, epoch: Any = b"") -> Any:
        found = original(router, route, session_id, epoch)
        if found is None:
            router.send(route, messages.Unknown(session_id, True, router.epoch, False))
        return found


@FAMILY.mutant("G9")
def any_server_answers_a_ping(patch: Patches) -> None:
    """A ping is answered whether the session is known or not: a restart goes unseen."""

    @patch.around_cell(routing._HANDLERS, messages.Sync)
    def sync(original: Any, router: Any, route: Any, message: Any) -> None:
        if message.session in router.sessions.known:
            original(router, route, message)
        else:
            synced = messages.Synced(message.session, message.probe, [], router.status())
            router.send(route, synced)


@FAMILY.mutant("G4", "G9")
def what_was_sent_is_finished(patch: Patches) -> None:
    """An outcome that was handed to the socket counts as received."""

    @patch.around(Works, "send")
    def forget(send: Any, self: Any, ticket: Any) -> None:
        send(self, ticket)
        self.finish(ticket.session, Ranges((ticket.sequence,)))


@FAMILY.mutant("G2", "G4", "G9")
def kept_outcomes_expire(patch: Patches) -> None:
    """An outcome is kept for a second, and then forgotten as if never asked for."""
    tick = Router._tick

    @patch.cell(routing._INPUTS, Tick)
    def expire(self: Any, given: Tick) -> None:
        tick(self, given)
        now_s = given.now_s
        for session in self.sessions.known.values():
            for sequence, ticket in list(session.tickets.items()):
                if ticket.kept is not None:
                    since_s = self.__dict__.setdefault("since_s", {}).setdefault(ticket.id, now_s)
                    if now_s - since_s > EXPIRE_S:
                        self.works.finish(session, Ranges((sequence,)))
                        session.finished = without(session.finished, sequence)


def without(finished: Any, sequence: int) -> Any:
    """These finished sequences, but for one."""
    kept = type(finished)()
    for start, stop in finished.spans():
        kept.add_span(start, min(stop, sequence) if start <= sequence < stop else stop)
        if start <= sequence < stop:
            kept.add_span(sequence + 1, stop)
    return kept


@FAMILY.mutant("G9", needs=(Fault.NEW_ROUTE,))
def answers_go_to_the_first_connection(patch: Patches) -> None:
    """A client that has reconnected is answered where it was before."""
    patch.attribute(Sessions, "moved", lambda *args: None)


@FAMILY.mutant("G4", needs=(Fault.SUSPEND, Fault.SHORT_LEASE))
def leases_run_while_it_is_stopped(patch: Patches) -> None:
    """A server that was stopped takes its clients for silent meanwhile."""

    @patch.replacing(AwakeClock, "read")
    def read(self: Any, now_s: float) -> float:
        self.awake_s += max(0.0, now_s - self.last_s)
        self.last_s = max(now_s, self.last_s)
        awake_s: float = self.awake_s
        return awake_s


@FAMILY.mutant("G3", "G7", "G8")
def a_second_answer_is_forwarded(patch: Patches) -> None:
    """An outcome from an execution that had already ended is kept and sent on."""

    @patch.around(Router, "_stray")
    def forward(stray: Any, self: Any, late: Any) -> None:
        stray(self, late)
        session = self.sessions.known.get(late.session)
        if session is not None:
            outcome = messages.Outcome(late.session, late.sequence, 0, "late", 0.0, 1)
            self.works.out.append(ToClient(session.route, outcome, b"late"))
            self.accounts.all.kept_count += 1


@FAMILY.mutant("G9")
def a_dead_pool_is_ready(patch: Patches) -> None:
    """Every process counts as a ready worker, whatever has become of it."""
    patch.attribute(Pool, "ready_count", lambda self: len(self.lives))


@FAMILY.mutant("G9", needs=(Fault.STOP_WORKER,))
def a_stopped_pool_is_ready(patch: Patches) -> None:
    """Workers that give no sign of life count as ready until they are dead."""
    patch.attribute(Pool, "is_silent", lambda self: False)


@FAMILY.mutant("G7", "G8", "G9", needs=(Fault.DRAIN_SERVER,))
def a_stopping_server_starts_workers(patch: Patches) -> None:
    """A server that drains replaces its workers for ever, and never ends."""
    patch.attribute(Pool, "stop", lambda self: None)


@FAMILY.mutant("G9", needs=(Fault.DRAIN_SERVER, Fault.HANG))
def a_stage_of_closing_has_no_end(patch: Patches) -> None:
    """A server that drains waits for what runs as long as that takes."""

    @patch.around(Closing, "following")
    def following(original: Any, self: Any, now_s: float, held: Any) -> Any:
        patient = self.stage is ClosingStage.DRAINING
        return original(self, -math.inf if patient else now_s, held)


@FAMILY.mutant("G7", needs=(Fault.DRAIN_SERVER,))
def work_begins_while_closing(patch: Patches) -> None:
    """A server that drains takes work in as ever."""
    patch.attribute(Router, "_never_starts", lambda self: None)
    patch.attribute(Workforce, "retire_all", lambda self, now_s: self.pool.stop())


@FAMILY.mutant("G9", needs=(Fault.DRAIN_SERVER, Fault.HANG))
def what_closing_cancels_did_not_run(patch: Patches) -> None:
    """Requests that still run when a server closes are answered with "did not run"."""

    @patch.replacing(outcomes, "stopped")
    def stopped(entry: Any) -> Any:
        return outcomes._error(
            entry, "stopping", Verdict.DID_NOT_RUN, "the server stops", Status.CANCELLED
        )
