"""Clients by number: what can happen to one, and what it then does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...core.calls import Stage
from ...core.client import ClientCore
from ...core.client_effects import Answer, Fail, ToServer
from ...core.client_inputs import (
    CallsCancelled,
    CallSubmitted,
    ClientClosed,
    ClientInput,
    ClientTick,
    Connected,
    Disconnected,
    OutcomeReceived,
    ServerMessage,
)
from . import names
from .machines import LONG_AGO_S, NOT_YET_S, NOW_S, Catalogue
from .mail import Mail


class ClientInfo(NamedTuple):
    """The events of a client that need no message."""

    probe: int
    connections: int
    connected: bool
    closed: bool
    calls: tuple[int, ...]
    """Those that the caller could still cancel."""
    answered: tuple[int, ...]
    """Of those, the ones that the caller was given and has not taken."""
    limited: tuple[int, ...]
    """Of those, the ones of which the limit could pass."""
    asking: tuple[int, ...]
    """Of those, the ones that the server was asked whether they ever ran."""
    requests: tuple[tuple[bytes, int, int], ...]
    """Session, sequence and call of each that was sent."""
    unflushed: bool
    held: bool
    """Whether a call waits to be sent again, or a lost session to be given up."""
    sessions: tuple[bytes, ...]
    """All that it knows of."""
    lost: tuple[bytes, ...]
    """Lost sessions, of which it is not known whether anything of them still runs."""


class Clients(Catalogue):
    """Clients."""

    def __init__(
        self, mail: Mail, limits: tuple[Any, ...], options: Callable[[], dict[str, Any]]
    ) -> None:
        super().__init__(mail, limits)
        self._options = options

    def new(self, index: int) -> int:
        """The first local state of a client: not connected."""
        core = ClientCore(
            name=names.client_name(index), new_id=names.Nonces(index), now_s=NOW_S,
            limits=self._limits["ClientLimits"], wire=self._limits["WireLimits"],
        )  # fmt: skip
        return self.add(core)

    def calm(self, machine: ClientCore) -> None:
        """No ping, flush, scan or limit is due."""
        machine.pings.at_s = machine._scan_at_s = NOT_YET_S
        machine._flush_at_s = None if machine._flush_at_s is None else NOT_YET_S
        for call in machine.calls.live.values():
            call.asked_s = NOW_S
            call.held_until_s = call.cancel_until_s = NOT_YET_S
        for session in machine.sessions.lost:
            session.lost_s = NOW_S

    def look(self, machine: ClientCore) -> ClientInfo:
        """See :class:`ClientInfo`."""

        def at(*stages: Stage) -> tuple[int, ...]:
            return tuple(n for n, call in machine.calls.live.items() if call.stage in stages)

        calls, sessions = machine.calls.live.values(), machine.sessions
        return ClientInfo(
            probe=machine.pings.probe,
            connections=machine.pings.connections,
            connected=machine.link.connected,
            closed=machine.closed,
            calls=tuple(machine.calls.live),
            answered=at(Stage.ANSWERED),
            limited=tuple(
                call.number for call in calls
                if call.limit_s is not None and call.stage in (Stage.QUEUED, Stage.SENT)
            ),
            asking=at(Stage.EXPIRED),
            requests=tuple(
                (call.session.id, call.sequence, call.number) for call in calls if call.session
            ),
            unflushed=machine._flush_at_s is not None and machine.link.connected,
            held=bool(machine.calls.held) or any(not session.calls for session in sessions.lost),
            sessions=tuple(session.id for session in sessions),
            lost=tuple(session.id for session in sessions.lost if session.calls),
        )  # fmt: skip

    def run(self, machine: ClientCore, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Take an input of the caller, the connection, the server or a timer."""
        effects = machine.take(self._input(machine, given))
        if given[0] == "limit" and given[1] in machine.calls.live:
            # So has the moment in which it waits for the server's own word: what comes in it
            # comes as well before the limit.
            self._due_again(machine, given[1])
            effects = [*effects, *machine.take(ClientTick(NOW_S))]
        return tuple(filter(None, map(self._effect, effects)))

    def _input(self, machine: ClientCore, given: tuple[Any, ...]) -> ClientInput:
        match given:
            case ("message", message):
                return ServerMessage(self.mail.frames[message], NOW_S)
            case ("ask", call, key):
                return CallSubmitted(call, key, NOW_S, **self._options())
            case ("take", call):
                return OutcomeReceived(call, NOW_S)
            case ("cancel", call):
                return CallsCancelled((call,), NOW_S)
            case ("connect",):
                return Connected(NOW_S)
            case ("cut",):
                return Disconnected(NOW_S, "connection lost")
            case ("close",):
                return ClientClosed(NOW_S)
        timer, *which = given
        getattr(self, f"_due_{timer}")(machine, *which)
        return ClientTick(NOW_S)

    def _due_ping(self, machine: ClientCore) -> None:
        machine.pings.at_s = NOW_S

    def _due_flush(self, machine: ClientCore) -> None:
        machine._flush_at_s = NOW_S

    def _due_scan(self, machine: ClientCore) -> None:
        """Try again what was refused for now."""
        machine._scan_at_s = NOW_S
        for call in machine.calls.held.values():
            call.held_until_s = NOW_S

    def _due_limit(self, machine: ClientCore, call: int) -> None:
        machine._scan_at_s = NOW_S
        machine.calls.live[call].asked_s = LONG_AGO_S

    def _due_again(self, machine: ClientCore, call: int) -> None:
        """It asks once more whether the call ever ran."""
        machine._scan_at_s = NOW_S
        machine.calls.live[call].held_until_s = NOW_S

    def _due_despair(self, machine: ClientCore, session: bytes) -> None:
        """It has waited long enough for a lost session."""
        machine._scan_at_s = NOW_S
        for each in machine.sessions.lost:
            if each.id == session:
                each.lost_s = LONG_AGO_S

    def _effect(self, effect: Any) -> Any:
        match effect:
            case ToServer():
                return ("server", self.mail.number(effect.frames))
            case Answer():
                return ("answer", effect.call, effect.status, bytes(effect.body))
            case Fail():
                return ("fail", effect.call, effect.info.code, effect.info.verdict)
        return None
