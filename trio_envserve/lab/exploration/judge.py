"""The judge of an explored step, and the little history that it needs.

Theory of operation
-------------------
The judge sees what the simulator's sees: what callers ask and are told, where
environment code begins and ends, deaths, and what passes on the wires.  What it
must remember is part of the state that is explored (two states with different
pasts are different states), so it remembers little, and forgets what cannot
matter any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ...core import error_records, messages
from ...core.ranges import Ranges
from ...core.terms import Status, Verdict
from .actions import BaseJudge

Run = tuple[int, bytes, int]
"""An execution: life of its server, id of its worker, number of its dispatch."""

Request = tuple[bytes, int]
"""A request id."""


class CallPast(NamedTuple):
    """The past of a call."""

    key: bytes
    starts: int = 0
    last: Run | None = None
    """Its last execution."""
    of: Request | None = None
    """The request id under which that was started."""
    told: str = ""
    """The verdict that its caller was told, or ``result``, or how it left."""
    excused: bool = False
    """Whether its outcome may be lost: by a lease, a limit or its server's death."""
    delivered: bytes | None = None
    """The result that has arrived at its living server."""
    sent: int | None = None
    """The outcome that its server has sent, while its caller wants it."""


class Past(NamedTuple):
    """The past, as far as it still matters."""

    calls: tuple[CallPast, ...]
    finished: tuple[Request, ...] = ()
    """Requests that the living server was told are finished."""
    stopped: tuple[Run, ...] = ()
    """Dispatches that their worker was told to stop and has not begun."""


class Judge(BaseJudge):
    """Judges one step: starts from a past, ends with the next and violations."""

    def __init__(self, past: Past, most: int, requests: int) -> None:
        super().__init__()
        self.calls = list(past.calls)
        self.finished = past.finished
        self.stopped = past.stopped
        self._most = most
        self._requests = requests

    def past(self) -> Past:
        """The past for the next step."""
        return Past(tuple(self.calls), self.finished, self.stopped)

    def _index(self, key: bytes) -> int:
        for index, call in enumerate(self.calls):
            if call.key == key:
                return index
        raise KeyError(key)

    # -- environment code -------------------------------------------------------

    def started(
        self, key: bytes, run: Run, request: Request, session_life: int,
        live: Iterable[bytes], alive: Callable[[Run], bool],
    ) -> None:  # fmt: skip
        """Environment code begins; ``live`` are the calls that others run just now."""
        if key not in (call.key for call in self.calls):
            self.violation("G6", f"{key.decode()} starts in the place of another request")
            return
        index = self._index(key)
        call = self.calls[index]
        text = key.decode()
        if key in live:
            self.violation("G1", f"{text} starts, and another execution of it lives")
        elif call.of == request and call.last is not None and alive(call.last):
            self.violation("G2", f"{text} starts again, and its worker had not died")
        starts = call.starts + 1
        if starts > self._most:
            self.violation("G2", f"{text} starts for the {starts}. time, {self._most} allowed")
        if session_life != run[0]:
            self.violation("G5", f"{text} starts on a worker of another epoch")
        if run in self.stopped:
            self.violation("G7", f"{text} starts though its worker was told not to")
        if call.told == Verdict.DID_NOT_RUN.name:
            self.violation("G9", f"{text} starts, and its caller was told that it did not run")
        self.stopped = tuple(each for each in self.stopped if each != run)
        self.calls[index] = call._replace(starts=starts, last=run, of=request)

    def reported(self, run: Run, payload: bytes | None) -> None:
        """The report of an execution has arrived at its own, living server."""
        for index, call in enumerate(self.calls):
            if call.last == run and not (call.excused or call.told):
                self.calls[index] = call._replace(delivered=payload)

    def lost(self, worker: str, *, alive: bool) -> None:
        """A worker's executions are declared over."""
        if alive:
            self.violation("G1", f"{worker} is declared lost and lives")

    # -- callers ----------------------------------------------------------------

    def answered(self, key: bytes, status: Status, body: bytes) -> None:
        """A caller is given an outcome."""
        index = self._index(key)
        if status is not Status.RESULT:
            info = error_records.decode(body)
            self._told(index, info.verdict.name)
        else:
            self._told(index, "result")
            whose = body.partition(b"@")[0]
            if whose != key:
                self.violation("G3", f"{key.decode()} was given a result of {whose.decode()}")
        self._kept(index, body)

    def failed(self, key: bytes, verdict: Verdict) -> None:
        """A call has ended without an outcome."""
        index = self._index(key)
        self._told(index, verdict.name)
        self._kept(index, None)
        self.forget(key)

    def _told(self, index: int, what: str) -> None:
        call = self.calls[index]
        text = call.key.decode()
        if call.told:
            self.violation("G9", f"{text} was told twice: {call.told}, then {what}")
        if what == Verdict.DID_NOT_RUN.name and call.starts:
            self.violation("G9", f"{text} is told that it did not run, and it did")
        if what in (Verdict.RAN_AND_FAILED.name, "result") and not call.starts:
            self.violation("G9", f"{text} is told that it ran, and it did not")
        self.calls[index] = call._replace(told=what)

    def _kept(self, index: int, body: bytes | None) -> None:
        call = self.calls[index]
        if call.delivered is not None and call.delivered != body:
            self.violation("G4", f"{call.key.decode()} had its outcome and was told another thing")
        self.calls[index] = call._replace(delivered=None)

    def forget(self, key: bytes) -> None:
        """Its caller has what it gets, or has left: little of what was still matters."""
        index = self._index(key)
        call = self.calls[index]
        told = call.told if call.told == Verdict.DID_NOT_RUN.name else "over"
        self.calls[index] = CallPast(key, call.starts, told=told)

    def excuse(self, keys: Iterable[bytes]) -> None:
        """These may lose their outcomes: a limit or a lease has ended."""
        for key in keys:
            index = self._index(key)
            self.calls[index] = self.calls[index]._replace(excused=True, delivered=None)

    def server_died(self) -> None:
        """Forget all that a dead server knew and had sent."""
        self.calls = [call._replace(delivered=None, sent=None) for call in self.calls]
        self.finished = self.stopped = ()

    def issued_again(self, keys: Iterable[bytes]) -> None:
        """These calls left their session: their next outcome is another request's."""
        for key in keys:
            index = self._index(key)
            self.calls[index] = self.calls[index]._replace(sent=None)

    # -- the wires --------------------------------------------------------------

    def server_heard(self, message: Any, sessions: Iterable[bytes]) -> list[Request]:
        """The server hears a client, and knows these sessions: what it is told finished."""
        session = getattr(message, "session", None)
        if session is None or session not in sessions:
            return []
        finished: Iterable[int] = ()
        match message:
            case messages.Finish():
                finished = Ranges.from_flat(message.finished)
            case messages.Cancel():
                finished = (message.sequence,)
            case messages.Sync():
                finished = Ranges.from_flat(message.pending).gaps(message.next)
            case messages.Goodbye():
                finished = range(self._requests * 4)
        requests = [(session, n) for n in finished]
        self._finish(requests)
        return requests

    def _finish(self, requests: Iterable[Request]) -> None:
        fresh = [each for each in requests if each not in self.finished]
        if fresh:
            self.finished = tuple(sorted((*self.finished, *fresh)))

    def told_client(
        self, key_of: Callable[[Request], bytes | None], number: int, message: Any,
        live: Iterable[tuple[bytes, bytes]],
    ) -> None:  # fmt: skip
        """The server sends to a client; ``live`` are session and call of what runs."""
        match message:
            case messages.Outcome():
                key = key_of((message.session, message.sequence))
                if key is not None:
                    self._outcome(self._index(key), number)
            case messages.Cancelled(started=False):
                request = (message.session, message.sequence)
                self._finish((request,))
                if any(call.of == request for call in self.calls):
                    self.violation("G9", "a request is said not to have started, and it had")
            case messages.Unknown(gone=True):
                for session, key in live:
                    if session == message.session:
                        text = f"{key.decode()} runs, and its session is said to be gone"
                        self.violation("G1", text)

    def _outcome(self, index: int, number: int) -> None:
        call = self.calls[index]
        if call.sent is None:
            self.calls[index] = call._replace(sent=number)
        elif call.sent != number:
            self.violation("G3", f"{call.key.decode()}: two outcomes that differ")

    def told_worker(self, message: Any) -> None:
        """The server sends to a worker."""
        if not isinstance(message, messages.Dispatch):
            return
        if (message.session, message.sequence) in self.finished:
            text = f"request {message.sequence} is dispatched after it was finished"
            self.violation("G7", text)

    def worker_heard(self, life: int, worker: bytes, message: Any, begun: Iterable[int]) -> None:
        """A worker has dealt with its router's message."""
        if isinstance(message, messages.Stop):
            stopped = {
                (life, worker, n) for n in Ranges.from_flat(message.numbers) if n not in begun
            }
            self.stopped = tuple(sorted(stopped.union(self.stopped)))

    def worker_gone(self, life: int, worker: bytes) -> None:
        """Its process is dead: it begins nothing any more."""
        self.stopped = tuple(each for each in self.stopped if each[:2] != (life, worker))
