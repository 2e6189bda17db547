"""Mutants of the client: its calls, its sessions, what it tells its callers."""

from __future__ import annotations

from typing import Any

from ...core import call_table, messages
from ...core.call_steps import CallInput
from ...core.call_table import TABLE, Effects
from ...core.calls import Stage, limit_passed
from ...core.client import ClientCore
from ...core.client_pings import Pings
from ...core.client_sessions import Sessions
from ...core.health import Health
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY)


@FAMILY.mutant("G2", needs=(Fault.POISON,))
def a_new_session_resets_the_allowance(patch: Patches) -> None:
    """Executions that a lost session may have started are not taken off a call's allowance."""
    sent = "return ((CallAction.TRANSMIT, call),)"
    patch.source(call_table._send, sent, f"call.granted = 0; {sent}")


@FAMILY.mutant(needs=(Fault.MANGLE,))
def every_welcome_is_taken(patch: Patches) -> None:
    """A second welcome to the same hello replaces the session."""

    @patch.around(Pings, "welcomed")
    def take(welcomed: Any, self: Any, message: Any, now_s: float) -> bool:
        self._sessions.current, self._nonce = None, message.nonce
        return bool(welcomed(self, message, now_s))


@FAMILY.mutant("G9")
def a_passed_limit_means_it_never_ran(patch: Patches) -> None:
    """A caller whose limit has passed is told that nothing ran."""
    patch.attribute(call_table, "limit_passed", lambda started: limit_passed(started=False))


@FAMILY.mutant("G4", "G9", needs=(Fault.MANGLE,))
def a_lost_session_is_not_heard(patch: Patches) -> None:
    """An outcome of a session that was lost meanwhile is thrown away."""
    current = "self.current if self.current and self.current.id == session_id else None"
    patch.source(Sessions.call, "self.find(session_id)", current)


@FAMILY.mutant("G4")
def an_unhealthy_server_is_not_heard(patch: Patches) -> None:
    """While its server counts as unhealthy, a client takes outcomes for stale."""

    @patch.around(ClientCore, "_outcome")
    def stale(outcome: Any, self: Any, message: Any, body: Any, now_s: float) -> None:
        if self.link.health(now_s)[0] is not Health.UNHEALTHY:
            outcome(self, message, body, now_s)


@FAMILY.mutant("G4")
def acknowledged_on_arrival(patch: Patches) -> None:
    """An outcome is acknowledged when its message comes, not when its caller has it."""

    @patch.around(ClientCore, "_outcome")
    def at_once(outcome: Any, self: Any, message: Any, body: Any, now_s: float) -> None:
        outcome(self, message, body, now_s)
        span = [message.sequence, message.sequence + 1]
        self._send(messages.Finish(message.session, span))


@FAMILY.mutant("G9")
def a_lost_request_is_not_repeated(patch: Patches) -> None:
    """A client hears that a request never arrived, and does not send it again."""
    patch.item(TABLE[CallInput.MISSING], Stage.SENT, call_table._ignore)


@FAMILY.mutant("G1", "G2", needs=(Fault.MANGLE,))
def a_retransmission_has_a_new_id(patch: Patches) -> None:
    """A request that seems lost is issued again under another id."""

    @patch.cell(TABLE[CallInput.MISSING], Stage.SENT)
    def again(calls: Any, call: Any, now_s: float, probe: int) -> Effects:
        return call_table._requeue(calls, call)


@FAMILY.mutant("G7", "G8", "G9")
def a_cancel_is_not_told(patch: Patches) -> None:
    """A cancelled call is dropped, and its server never hears of it."""

    def silent(calls: Any, call: Any, now_s: float, arg: Any) -> Effects:
        del calls.live[call.number]
        calls.timed.pop(call.number, None)
        return ()

    for stage in (Stage.SENT, Stage.EXPIRED, Stage.ANSWERED):
        patch.item(TABLE[CallInput.CANCEL], stage, silent)
