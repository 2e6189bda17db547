"""Whether keys keep what they promise.

Theory of operation
-------------------
Three things are known that no core can make up.  The environment's log names the key and
the input of each start.  Each dispatch has the number of its generation.  And the wires
tell who asks, who is answered and who leaves.

From these follows in which generation a request waits: all requests for one key that are
not answered wait for its open generation, and what is dispatched is of the open one.  So
a dispatch of another generation while somebody still waits for an earlier one breaks a
promise, and so do an outcome of another generation, another input's outcome, and a cancel
that says that nothing started.

Where it is not sure, nothing is claimed: of a request whose session may have lapsed, of
one whose caller has asked again in another session, of what closed without a word.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import cbor2

from ...core import error_records, messages
from ...core.key_records import KeyAct
from ...core.ranges import Ranges
from ...core.terms import Body, RequestId, Status, Verdict
from .judge_keys_runs import KeyRuns
from .judge_keys_said import SLACK_S, Said
from .judge_keys_work import Place, Waiter, Wanted, label_of
from .judge_records import Call, Execution, key_of

if TYPE_CHECKING:
    from ...retrylab.world import Process
    from .judge_wires import Wires


class KeyJudge:
    """The part of the judge that knows of keys."""

    def __init__(self, book: Wires) -> None:
        self._book = book
        self.calls: dict[RequestId, str] = {}
        """Which call each request is: its client says so as it sends it."""
        self._order = itertools.count()
        """The order of events, within one moment too."""
        self._waiters: dict[Place, dict[RequestId, Waiter]] = {}
        self._asking: RequestId | None = None
        """The request that the server is dealing with."""
        self._undo: list[Callable[[], None]] = []
        """Takes back what that has replaced, for a server that will not have it."""
        self._place: dict[RequestId, Place] = {}
        self._left: dict[RequestId, Waiter] = {}
        """Those that were finished, by their client or by a deadline."""
        self._answered: set[RequestId] = set()
        self._inputs: dict[Place, set[str]] = {}
        """All that were asked under a key."""
        self._commands: dict[Place, int] = {}
        """When its last cancel or forget came."""
        self._forgets: dict[Place, int] = {}
        """Moment of the last forget of each; a cancel drops no outcome."""
        self._asked: dict[Place, int] = {}
        """When its last request with an input came."""
        self._fresh: set[Place] = set()
        """Keys for which somebody asked who may start their work: not again without
        proof and consent."""
        self._never: dict[Place, int] = {}
        """Callers that asked before this were told that nothing was started, nor will be."""
        self._ended: dict[Place, int] = {}
        """When its journal last had it that a generation is over."""
        self._kept: dict[Place, tuple[int, float, int]] = {}
        """The generation whose outcome came while somebody waited, and when that was."""
        self._owed: dict[str, tuple[bytes, RequestId, Process]] = {}
        """The outcome that came while a call waited for it."""
        self.runs = KeyRuns(book)
        self.said = Said(book, self.runs.of_key, self.runs.of_generation)
        self.closed = self.said.closed
        self.work = Wanted(book, self._waiters)

    # -- who waits ------------------------------------------------------------

    def heard(self, server: Process, message: messages.KeyedRequest) -> None:
        """A server has dealt with a request; what it says to it comes next."""
        request = RequestId(message.session, message.sequence)
        call = self._book.calls[self.calls[request]]
        assert call.use is not None
        place = self._book.journal.home(server), call.use.label
        order = next(self._order)
        self._asking = request
        here = self._waiters.setdefault(place, {})
        match KeyAct(message.act):
            case KeyAct.CANCEL | KeyAct.FORGET:
                self._commands[place] = order
                if message.act == KeyAct.FORGET:
                    self._forgets[place] = order
                self._place[request] = place
                return
            case KeyAct.WITHDRAW:
                self._is_back(place, message.caller, message.session)
                self._place[request] = place
                return
        if request in here or request in self._answered:
            return
        new = Waiter(request, call, message.caller, order)
        if message.act == KeyAct.ATTACH:
            new.counts = False
        else:
            self._inputs.setdefault(place, set()).add(call.input)
            self._asked[place] = order
            if message.earlier is None or (message.gone and call.consent):
                self._fresh.add(place)
            self._is_back(place, message.caller, message.session)
        new.generation = next((w.generation for w in self._sure(place)), None)
        here[request] = new
        self._place[request] = place

    def _is_back(self, place: Place, caller: bytes, session: bytes) -> None:
        """Count no more what a caller asked in other sessions."""
        if self.work.is_back(place, caller):
            self._undo.append(partial(self.work.lost, place, caller))
        for waiter in self._waiters[place].values():
            if waiter.caller == caller and waiter.request.session != session and waiter.counts:
                waiter.counts = False
                self._undo.append(partial(setattr, waiter, "counts", True))

    def _not_taken(self) -> None:
        """The request that the server is dealing with has replaced nobody."""
        for undo in self._undo:
            undo()
        self._asking = None
        self._undo.clear()

    def dealt(self) -> None:
        """The server has said all that follows from one message."""
        asking = self._asking
        if asking is not None and asking in self._place:
            self._book.journal.waits(asking, self._place[asking][1])
        self._asking = None
        self._undo.clear()

    def _sure(self, place: Place) -> Iterator[Waiter]:
        """Those whose generation is known, and still open."""
        for waiter in self._waiters.get(place, {}).values():
            if waiter.generation is None or not self._here(waiter):
                continue
            if self.is_over(place, waiter):
                continue
            after_forget = self._forgets.get(place, -1) > waiter.order
            if not waiter.answered or (waiter.counts and not after_forget):
                yield waiter

    def _here(self, waiter: Waiter) -> bool:
        return not self._book.unheard(waiter.request.session)

    def is_over(self, place: Place, waiter: Waiter) -> bool:
        """Whether it waits only to be told that its generation is over, once that is safe."""
        return waiter.order < self._ended.get(place, -1)

    def over(self, place: Place) -> None:
        """A journal has it that all who have asked for this key wait for nothing more."""
        self._ended[place] = next(self._order)

    def server_died(
        self, server: Process, known: set[int], callers: dict[Place, set[bytes]]
    ) -> None:
        """The next server will know only these outcomes, and of these keys that these
        callers may count.  Work that nobody else asks for anew may start again."""
        for request in list(self._place):
            if self._book.sessions[request.session][0] is server:
                self._lose(request)
        for place, (number, _, _) in list(self._kept.items()):
            if number not in known:
                del self._kept[place]
        self._fresh = set(callers)
        for place, names in callers.items():
            for caller in names:
                self.work.lost(place, caller)

    def finished(self, session: bytes, finished: Ranges) -> None:
        """A client wants no more of these."""
        gone = self._book.unheard(session)  # then the server may not know what that was
        for request in [r for r in self._place if r.session == session]:
            if request.sequence in finished:
                leave = self._lose if gone else self._leave
                leave(request)

    def _leave(self, request: RequestId) -> Waiter | None:
        place = self._place.pop(request, None)
        waiter = None if place is None else self._waiters.get(place, {}).pop(request, None)
        if waiter is not None:
            assert place is not None
            waiter.left = next(self._order)
            self._left[request] = waiter
        return waiter

    def lost(self, session: bytes) -> None:
        """A server does not know this session."""
        if self._asking is not None and self._asking.session == session:
            self._not_taken()
        for request in [r for r in self._place if r.session == session]:
            self._lose(request)

    def _lose(self, request: RequestId) -> None:
        """It waits no more, and its caller may go on counting."""
        place = self._place[request]
        waiter = self._leave(request)
        if waiter is not None and waiter.counts:
            self.work.lost(place, waiter.caller)

    # -- what they are told ---------------------------------------------------

    def refused(self, message: messages.Refused) -> None:
        """A request is refused, for good or for now: it does not wait."""
        request = RequestId(message.session, message.sequence)
        place = self._place.get(request)
        if request == self._asking:
            self._not_taken()
        waiter = self._leave(request)
        if waiter is None or place is None:
            return
        del self._left[request]
        call = waiter.call
        if message.code == "key-conflict":
            if not self._inputs[place] - {call.input}:
                text = f"{call.key} is a conflict, and nobody asked anything else of its key"
                self._broken("G6", text, call)
            same = [w for w in self._unanswered(place) if w.counts and w.call.input == call.input]
            if same:
                text = f"{call.key} is a conflict, and {same[0].call.key} waits for the same"
                self._broken("G6", text, call)
        if message.code == "unknown-key":
            for other in self._unanswered(place):
                if other.counts:
                    text = f"nothing is known to {call.key}, and {other.call.key} waits"
                    self._broken("G4", text, call)

    def _unanswered(self, place: Place) -> list[Waiter]:
        here = self._waiters.get(place, {}).values()
        waiting = [w for w in here if not w.answered and self._here(w)]
        return [w for w in waiting if not self.is_over(place, w)]

    def told(self, message: messages.Outcome, body: Body | None) -> None:
        """An outcome is sent, or sent again."""
        request = RequestId(message.session, message.sequence)
        place = self._place.get(request)
        if place is None or request in self._answered:
            return
        self._answered.add(request)
        assert body is not None
        payload = bytes(body)
        waiter = self._waiters[place].get(request)
        if waiter is None:
            if message.status == Status.RESULT:
                call = self._book.calls[self.calls[request]]
                self._command_done(place, call, cbor2.loads(payload))
            return
        waiter.answered = True
        execution = self.runs.by_payload.get(payload)
        if execution is not None:
            self._book.journal.told(
                waiter.call, request, payload, of_key=True, executions=message.executions
            )
            self._given(place, waiter, execution)
        elif message.status != Status.RESULT:
            self._failed(place, waiter, payload, message.executions)

    def _given(self, place: Place, waiter: Waiter, execution: Execution) -> None:
        call, number = waiter.call, execution.request.sequence
        if self._book.journal.home(execution.server) is not place[0]:
            self._broken("G5", f"{call.key} gets an outcome of another epoch", call)
        if label_of(execution.key) != place[1] or (call.input and call.input != execution.key):
            text = f"{call.key} asked for {call.input or place[1]} and gets {execution.key}"
            self._broken("G6", text, call)
        if waiter.generation not in (None, number):
            text = f"{call.key} waits for generation {waiter.generation} and gets {number}"
            self._broken("G3", text, call)
        if execution is not self.runs.of_generation[place[0], number][-1]:
            self._broken("G3", f"{call.key} gets the outcome of an earlier execution", call)
        if self.closed.get((place[0], number), waiter.order) < waiter.order:
            text = f"{call.key} gets generation {number}, which a command had closed before"
            self._broken("G7", text, call)
        waiter.generation = number

    def _failed(self, place: Place, waiter: Waiter, payload: bytes, executions: int) -> None:
        """It is told that there is no outcome, or that there will be none."""
        call, error = waiter.call, error_records.decode(payload)
        over = error.verdict is Verdict.DID_NOT_RUN or "was cancelled by name" in error.message
        if over or error.code not in ("no-answer", "outcome-too-large"):
            self._book.journal.told(
                call, waiter.request, payload, of_key=not over, executions=executions,
                code=error.code,
            )  # fmt: skip
        if error.verdict is Verdict.DID_NOT_RUN:
            self._never[place] = max(self._never.get(place, -1), waiter.order)
        if "was cancelled by name" in error.message:
            self.said.hit(place)
        if "was cancelled by name" in error.message and waiter.counts and self._here(waiter):
            last = self._commands.get(place, -1)
            if last < (waiter.order if waiter.generation is not None else 0):
                text = f"{call.key} is cancelled, and waits, and nobody has cancelled its key"
                self._broken("G7", text, call)
        if error.verdict is Verdict.DID_NOT_RUN and waiter.generation is not None:
            text = f"{call.key} is told that it did not run, and generation "
            self._broken("G7", f"{text}{waiter.generation} was dispatched", call)
        self._leave(waiter.request)

    def _command_done(self, place: Place, call: Call, record: dict[str, Any]) -> None:
        """A command by key is answered: nobody waits any more for what it has closed."""
        self.said.answer(place, call, record, next(self._order))
        self._book.journal.command_told(call, record)
        number = record["generation"]
        for waiter in self._unanswered(place):
            if number is not None and waiter.generation == number:
                text = f"{waiter.call.key} still waits for generation {number}, which was closed"
                self._broken("G7", text, waiter.call)

    def cancelled(self, message: messages.Cancelled) -> None:
        """Judge the answer to the cancel of one request."""
        request = RequestId(message.session, message.sequence)
        waiter = self._left.get(request)
        if waiter is not None:
            self._book.journal.confirmed(waiter.call, request)
        if message.started or waiter is None or request in self._answered:
            return
        call = waiter.call
        if waiter.generation is not None:
            text = f"{call.key} did not run, it is said; generation {waiter.generation} has"
            self._broken("G7", text, call)
        assert call.use is not None
        server = self._book.sessions[request.session][0]
        place = self._book.journal.home(server), call.use.label
        for other in self._unanswered(place):
            if other.counts and other.order < waiter.order and other.call.input == call.input:
                text = f"{call.key} will not run, it is said, and {other.call.key} waits for it"
                self._broken("G7", text, call)
        self._never[place] = max(self._never.get(place, -1), waiter.left)

    # -- what is done ---------------------------------------------------------

    def dispatched(self, server: Process, number: int, body: Body) -> None:
        """An execution is sent to a worker, for the first time."""
        self._book.journal.dispatched(number)
        place = self._book.journal.home(server), label_of(key_of(body))
        for waiter in list(self._sure(place)):
            if waiter.generation != number:
                text = (
                    f"generation {number} of {place[1]} is started, and {waiter.call.key} "
                    f"has not left generation {waiter.generation}"
                )
                self._broken("G4", text, waiter.call)
        if place not in self._fresh:
            text = f"{place[1]} is started, and was asked again only, without proof or consent"
            self._book.violation("G2", text, place[1])
        if self._asked.get(place, -1) <= self._never.get(place, -2):
            text = f"{place[1]} is started, and it was said that it would not be"
            self._book.violation("G7", text, place[1])
        self.said.dispatched(place, number)
        self._retained(place, number)
        for waiter in self._waiters.get(place, {}).values():
            if not waiter.answered and not self.is_over(place, waiter):
                waiter.generation = number

    def _retained(self, place: Place, number: int) -> None:
        """Judge that what was retained is not run again before its retention has ended."""
        kept, since_s, order = self._kept.get(place, (number, 0.0, 0))
        if kept == number or self._forgets.get(place, -1) > order:
            return
        for_s = self._book.clock() - since_s
        if for_s < self._book.plan.keys.retention_s - SLACK_S:
            text = f"generation {kept} of {place[1]} is forgotten after {for_s:.1f} s"
            self._book.violation("G4", text, place[1])

    def delivered(self, execution: Execution) -> None:
        """Its outcome has come to its server: whoever waits will have it."""
        if execution.cancelled or execution.status is None:
            return
        server, number = execution.server, execution.request.sequence
        place = self._book.journal.home(server), label_of(execution.key)
        for waiter in self._unanswered(place):
            if waiter.generation != number:
                continue
            if waiter.counts:
                self._kept[place] = number, self._book.clock(), next(self._order)
            self._owed[waiter.call.key] = execution.payload, waiter.request, server

    # -- what callers are told ------------------------------------------------

    def kept(self, call: Call, body: bytes | None, *, excused: bool) -> None:
        """G4: the outcome that came while it waited is what it is told."""
        payload, request, server = self._owed.get(call.key, (body, None, None))
        if payload == body or payload is None or excused or request is None:
            return
        assert server is not None
        over = not server.alive or server in self._book.draining
        too_large = len(payload) > self._book.plan.message_bytes
        if not over and not too_large and not self._book.unheard(request.session):
            text = f"{call.key}: the outcome of its key had come, and it was told {call.told}"
            self._broken("G4", text, call)

    def _broken(self, guarantee: str, text: str, call: Call) -> None:
        self._book.violation(guarantee, text, call.key)
