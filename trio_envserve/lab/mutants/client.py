"""Mutants of the client: its calls, its sessions, what it tells its callers."""

from __future__ import annotations

from typing import Any

from ...core import client, messages
from ...core.calls import Stage, limit_passed
from ...core.client import ClientCore
from ...core.health import Health
from ...core.ranges import Ranges
from ..simulation.faults import Fault
from .patching import Family, Patches

FAMILY = Family()


@FAMILY.mutant("G2", needs=(Fault.POISON,))
def a_new_session_resets_the_allowance(patch: Patches) -> None:
    """What a lost session may have started is not taken off a call's allowance."""
    assign = ClientCore._assign

    def forget(self: Any, call: Any, session: Any) -> None:
        assign(self, call, session)
        call.granted = 0

    patch.attribute(ClientCore, "_assign", forget)


@FAMILY.mutant(needs=(Fault.MANGLE,))
def every_welcome_is_taken(patch: Patches) -> None:
    """A second welcome to the same hello replaces the session."""
    welcome = ClientCore._welcome

    def take(self: Any, message: Any, now_s: float) -> None:
        self.session, self._nonce = None, message.nonce
        welcome(self, message, now_s)

    patch.attribute(ClientCore, "_welcome", take)


@FAMILY.mutant("G9")
def a_passed_limit_means_it_never_ran(patch: Patches) -> None:
    """A caller whose limit has passed is told that nothing ran."""
    patch.attribute(client, "limit_passed", lambda started: limit_passed(started=False))


@FAMILY.mutant("G4", "G9", needs=(Fault.MANGLE,))
def a_lost_session_is_not_heard(patch: Patches) -> None:
    """An outcome of a session that was lost meanwhile is thrown away."""

    def current(self: Any, session_id: Any, sequence: int) -> Any:
        session = self.session
        known = session is not None and session.id == session_id
        return session.calls.get(sequence) if known else None

    patch.attribute(ClientCore, "_call", current)


@FAMILY.mutant("G4")
def an_unhealthy_server_is_not_heard(patch: Patches) -> None:
    """While its server counts as unhealthy, a client takes outcomes for stale."""
    outcome = ClientCore._outcome

    def stale(self: Any, message: Any, body: Any, now_s: float) -> None:
        if self.link.health(now_s)[0] is not Health.UNHEALTHY:
            outcome(self, message, body, now_s)

    patch.attribute(ClientCore, "_outcome", stale)


@FAMILY.mutant("G4")
def acknowledged_on_arrival(patch: Patches) -> None:
    """An outcome is acknowledged when its message comes, not when its caller has it."""
    outcome = ClientCore._outcome

    def at_once(self: Any, message: Any, body: Any, now_s: float) -> None:
        outcome(self, message, body, now_s)
        span = [message.sequence, message.sequence + 1]
        self._send(messages.Finish(message.session, span))

    patch.attribute(ClientCore, "_outcome", at_once)


@FAMILY.mutant("G9")
def a_lost_request_is_not_repeated(patch: Patches) -> None:
    """A client hears that a request never arrived, and does not send it again."""
    synced = ClientCore._synced

    def deaf(self: Any, message: Any, now_s: float) -> None:
        synced(self, message._replace(missing=[]), now_s)

    patch.attribute(ClientCore, "_synced", deaf)


@FAMILY.mutant("G1", "G2", needs=(Fault.MANGLE,))
def a_retransmission_has_a_new_id(patch: Patches) -> None:
    """A request that seems lost is issued again under another id."""

    def again(self: Any, message: Any, now_s: float) -> None:
        session = self.session
        if session is None or message.session != session.id:
            return
        self._probe_answered |= message.probe == self._probe
        self._known = True
        self._server(message.server, now_s)
        missing = Ranges.from_flat(message.missing)
        for sequence, call in list(session.calls.items()):
            if sequence in missing and call.stage is Stage.SENT:
                self._requeue(call)

    patch.attribute(ClientCore, "_synced", again)


@FAMILY.mutant("G7", "G8", "G9")
def a_cancel_is_not_told(patch: Patches) -> None:
    """A cancelled call is dropped, and its server never hears of it."""
    cancel = ClientCore.cancel

    def silent(self: Any, number: int, now_s: float) -> None:
        call = self.calls.get(number)
        if call is None or call.stage is Stage.QUEUED:
            cancel(self, number, now_s)
        else:
            del self.calls[number]

    patch.attribute(ClientCore, "cancel", silent)
