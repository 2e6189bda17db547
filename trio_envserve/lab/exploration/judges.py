"""The judges of explored systems.

Theory of operation
-------------------
:class:`Promises` judges from end to end: processes, executions, calls.  A worker of a machine that
sleeps runs no code: what counts is whether it would run again, once the machine has woken and its
timers have fired.

:class:`TurnModel` is the model of a router (:mod:`..model`): it judges what one without hosts does,
and all that is about keys, turn by turn.

Their memory is part of the state that is explored (two states with different pasts are
different states), so they remember little, and forget what cannot matter any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from ...core.limits import KeyLimits, ServerLimits
from ...core.messages import encode
from ...core.terms import Verdict
from ...retrylab import Bag, Event, Judge, Rule, Violation
from ...retrylab.system import SETTLED
from ...retrylab.values import Forms
from ..model import Boundary, ModelSession, ModelTicket, ModelWork
from .wire import Frames, decoded, frames_form

# -- end to end ------------------------------------------------------------------------------------

RunId: TypeAlias = tuple[int, bytes, int]
"""An execution: life of its server, id of its worker, number of its dispatch."""

Request: TypeAlias = tuple[bytes, int]
"""Session and sequence."""

ProcessId: TypeAlias = tuple[int, bytes]
"""A worker: life of its server, and its id."""

OF_THE_MODEL = frozenset({"turn", "synced", "doomed"})
"""Names of events that this judge need not see."""


class CallPast(NamedTuple):
    """The past of a call."""

    starts: int = 0
    last: RunId | None = None
    """Its last execution."""
    of: Request | None = None
    """The request under which that was started."""
    told: str = ""
    """The verdict that its caller was told, or ``result``; ``over`` once it has left."""


class Promises(Judge):
    """What must hold of calls.  ``most``: executions that each call allows."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.calls: dict[str, CallPast] = {}
        """By the names of their requests, which are their bodies, too."""
        self.live: dict[RunId, tuple[str, bytes, int]] = {}
        """Call, session and server's life of each execution that lives."""
        self.homes: dict[ProcessId, tuple[str, int]] = {}
        """Of each process that is alive: its slot or machine, and the life of its server."""
        self.asleep: set[str] = set()
        """Machines that sleep."""
        self.lost: set[ProcessId] = set()
        """Processes of those that were declared lost."""
        self.dead: set[int] = set()
        """Lives of servers of whose executions none lives, as was said."""
        self.left: tuple[str, ...] = ()
        """The contents that a router has at rest."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violations that an event shows."""
        request = event.request
        found: Iterable[tuple[str, str]] = ()
        match event.kind:
            case "asked":
                self._asked(request)
            case "told":
                found = self._told(request, *event.what)
            case "has":
                self.left = (*self.left, event.what)
            case "ended":
                self.live.pop(event.what, None)
            case "did" if event.what[0] not in OF_THE_MODEL and event.what != SETTLED:
                name, *given = event.what
                found = getattr(self, f"_{name}")(*given) or ()
        for guarantee, text in found:
            yield event.breaks(guarantee, text)

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by what has not come to its end."""
        for request, call in self.calls.items():
            if not call.told:
                yield Violation("G9", at_s, f"{request} waits for ever", request)
        for request, *_ in self.live.values():
            yield Violation("G7", at_s, f"{request} runs for ever", request)
        for what in self.left:
            yield Violation("G8", at_s, what)

    def _change(self, request: str, **to: Any) -> None:
        self.calls[request] = self.calls[request]._replace(**to)

    def _broken(self, guarantee: str, text: str) -> Iterator[tuple[str, str]]:
        yield guarantee, text

    # -- environment code, and workers -----------------------------------------------

    def _spawned(self, home: str, *process: Any) -> None:
        life, _ = process
        self.homes[process] = home, life

    def _died(self, *process: Any) -> None:
        """A process begins nothing any more."""
        self.homes.pop(process, None)
        self.lost.discard(process)
        self.live = {run: of for run, of in self.live.items() if run[:2] != process}

    def _fell(self, *rows: Any) -> None:
        """The server has fallen, and its workers with it."""
        self.homes.clear()

    def _is_awake(self, process: ProcessId) -> bool:
        """Whether a process is alive, and its machine does not sleep."""
        return process in self.homes and self.homes[process][0] not in self.asleep

    def _lost(self, *process: Any) -> Iterator[tuple[str, str]]:
        """Executions of a worker are declared over."""
        if self._is_awake(process):
            yield self._is_lost(process)
        elif process in self.homes:
            self.lost.add(process)

    @staticmethod
    def _is_lost(process: ProcessId) -> tuple[str, str]:
        return "G1", f"{process[1].decode()} is declared lost and lives"

    def _dead(self, *lives: int) -> Iterator[tuple[str, str]]:
        """All executions of earlier servers are declared over."""
        self.dead.update(lives)
        yield from self._of_the_dead([run for run, of in self.live.items() if of[2] in lives])

    def _of_the_dead(self, runs: Iterable[RunId]) -> Iterator[tuple[str, str]]:
        for run in runs:
            body, _, life = self.live[run]
            if life in self.dead and self._is_awake(run[:2]):
                yield "G1", f"{body} runs, and server {life} is declared dead"

    def _back(self, process: ProcessId, numbers: tuple[int, ...], life: int) -> None:
        """A server takes a worker of an earlier one over, and what it knows of what runs there."""
        if process in self.homes:
            self.homes[process] = self.homes[process][0], life
        for run, (body, session, _) in [*self.live.items()]:
            if run[:2] == process and run[2] in numbers:
                self.live[run] = body, session, life

    def _slept(self, machine: str) -> None:
        self.asleep.add(machine)

    def _woke(self, machine: str) -> Iterator[tuple[str, str]]:
        """A machine has woken, and its timers have fired: what lives there runs again."""
        self.asleep.discard(machine)
        for process in [each for each, (home, _) in self.homes.items() if home == machine]:
            if process in self.lost:
                yield self._is_lost(process)
            runs = [run for run in self.live if run[:2] == process]
            yield from self._of_the_dead(runs)
            for run in runs:
                yield from self._alone(run)

    def _alone(self, run: RunId) -> Iterator[tuple[str, str]]:
        """No other execution of its call runs."""
        body, *_ = self.live[run]
        for other, (of, *_) in self.live.items():
            if of == body and other != run and self._is_awake(other[:2]):
                yield "G1", f"{body} starts, and another execution of it lives"

    def _started(self, body: str, run: RunId, request: Request) -> Iterator[tuple[str, str]]:
        """Environment code begins."""
        call = self.calls.get(body)
        if call is None:
            yield "G6", f"{body} starts in the place of another request"
            return
        life, process = int(request[0][1:2]), run[:2]
        again = run in self.live or run == call.last
        self.live[run] = body, request[0], life
        if again:
            yield "G2", f"{body} starts a second time under one number"
        elif others := [*self._alone(run)]:
            yield from others
        elif call.of == request and call.last is not None and self._is_awake(call.last[:2]):
            yield "G2", f"{body} starts again, and its worker had not died"
        yield from self._of_the_dead([run])
        if call.starts >= self.most:
            yield "G2", f"{body} starts for the {call.starts + 1}. time, {self.most} allowed"
        if life != self.homes[process][1]:
            yield "G5", f"{body} starts on a worker of another epoch"
        if call.told == Verdict.DID_NOT_RUN.name:
            yield "G9", f"{body} starts, and its caller was told that it did not run"
        self._change(body, starts=call.starts + 1, last=run, of=request)

    # -- callers ---------------------------------------------------------------------

    def _asked(self, request: str) -> None:
        self.calls[request] = CallPast()

    def _told(
        self, request: str, what: str, body: bytes | None = None
    ) -> Iterator[tuple[str, str]]:
        """A caller is told an outcome, or the verdict of an error; or it has left."""
        if what == "left":
            return
        call = self.calls[request]
        if call.told:
            yield "G9", f"{request} was told twice: {call.told}, then {what}"
        if what == Verdict.DID_NOT_RUN.name and call.starts:
            yield "G9", f"{request} is told that it did not run, and it did"
        if what in (Verdict.RAN_AND_FAILED.name, "result") and not call.starts:
            yield "G9", f"{request} is told that it ran, and it did not"
        if what == "result" and body is not None:
            whose = body.partition(b"@")[0].decode("ascii", "replace")
            if whose != request:
                yield "G3", f"{request} was given a result of {whose}"
        self._change(request, told=what)

    def _left(self, request: str) -> None:
        """Its caller has what it gets, or has left: little of what was still matters."""
        call = self.calls[request]
        told = call.told if call.told == Verdict.DID_NOT_RUN.name else "over"
        self.calls[request] = CallPast(call.starts, told=told)

    # -- the server, and the wires -----------------------------------------------------

    def _gone(self, session: bytes) -> Iterator[tuple[str, str]]:
        """The server says that nothing of a session runs."""
        for request, its, _ in self.live.values():
            if its == session:
                yield "G1", f"{request} runs, and its session is said to be gone"


# -- the router ------------------------------------------------------------------------------------

MANY = 1 << 30
LIMITS = ServerLimits(window=MANY, max_executions=MANY), KeyLimits(commands=MANY)
"""The limits of the model.  No clock passes: what time ends is chosen."""


class TurnModel(Boundary):
    """The model, fed by actors with events without a request: ``("turn", *parts)`` for each input
    of the router with its effects, ``("synced", records)`` and ``("fell", records)``."""

    def __init__(self, capacity: int, *, journaled: bool, prompt: bool) -> None:
        self._capacity = capacity
        super().__init__(*LIMITS, journaled=journaled, prompt=prompt)

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        if event.kind == "died":
            self._falls(event.at_s)
        if event.kind != "did" or event.what == SETTLED:
            return []
        match event.what:
            case ("turn", *parts):
                for kind, actor, *what in parts:
                    opened = tuple(part for each in what for part in _opened(each))
                    super().see(Event(event.at_s, kind, actor, "", opened))
                return super().see(Event(event.at_s, "turned", "", "", ()))
            case ("synced", records):
                self.synced(records)
            case ("fell", *rows):
                self._left = tuple(rows)
                self._falls(event.at_s)
        return []

    def _falls(self, at_s: float) -> None:
        """The server has ended, and the next one has what is left of its journal."""
        self._begins(at_s)

    def settle(self) -> None:
        """And nothing waits while a worker is free, nor is stopped while lost callers count: no
        limit of an execution passes here."""
        for run in self._stopped:
            work = run.work
            if work.lost and work.open and work.outcome is None and not self.closing:
                self.broken("G7", f"{work.label} is stopped, and lost callers count", work.label)
        super().settle()
        running = [worker for worker, _ in self.runs]
        serving = self.enlisted - self.leaving
        free = any(running.count(worker) < self._capacity for worker in serving)
        for work in self.open.values() if free and not self.closing else ():
            if not (work.live or work.outcome or work.name in self.ending):
                text = f"generation {work.number} waits, and a worker is free"
                self.broken("G9", text, work.label)

    def worker_lost(self, worker: str) -> None:
        """Its executions are over, and it serves no more."""
        super().worker_lost(worker)
        self.enlisted.discard(worker)


def _opened(what: Any) -> tuple[Any, ...]:
    """Part of a turn for the model: of frames the message and its body."""
    if not isinstance(what, Frames):
        return (what,)
    *before, last = what
    return (decoded(before[-1]), last) if before else (decoded(last), None)


# -- which of their states are the same ------------------------------------------------------------

_CONSTANT = Rule("the same in every state")


def _bags(*names: str) -> dict[str, Rule]:
    why = "in no order"
    return {name: Rule(why, lambda judge, each: Bag(tuple(each.items()))) for name in names}


OF_JUDGES: Forms = {
    Promises: {"most": _CONSTANT, **_bags("calls", "live", "homes")},
    TurnModel: {
        **dict.fromkeys(
            ("limits", "keys", "journaled", "prompt", "_resting", "_capacity"), _CONSTANT
        ),
        **_bags("sessions", "open", "numbers", "ending", "runs", "confirms", "pending"),
    },
    ModelSession: {"message_bytes": _CONSTANT, "nonce": _CONSTANT, **_bags("tickets")},
    ModelWork: _bags("waiters", "watchers"),
    ModelTicket: {
        "told": Rule(
            "texts are for people",
            lambda ticket, told: told and frames_form((encode(told[0]), told[1])),
        ),
    },
}
