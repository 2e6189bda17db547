"""The part of the judge that listens to the wires.

It reads messages as they are sent and once they have been dealt with, knows
from them what each side has been told, and holds against it what is done and
said afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core import messages
from ...core.ranges import Ranges
from ...core.terms import Body, RequestId, Status
from .judge_journal import JournalJudge
from .judge_keys import KeyJudge
from .judge_keys_work import label_of
from .judge_records import Book, Call, Hearing, key_of

if TYPE_CHECKING:
    from ...retrylab.world import Process
    from .actor_server import SimServer
    from .actor_worker import SimWorker
    from .plan import Plan


TICKS_S = 0.6
"""How much shorter or longer a lease may seem than it is: some ticks."""


class Wires(Book):
    """The part of the judge that listens."""

    def __init__(
        self, clock: Callable[[], float], note: Callable[[str, str], None], plan: Plan
    ) -> None:
        super().__init__(clock, note, plan)
        self.stopped: set[tuple[Process, int]] = set()
        """Dispatches that their workers were told to stop."""
        self.lost: set[Process] = set()
        """Workers whose executions their router takes for ended."""
        self.outcomes: dict[RequestId, tuple[messages.Outcome, bytes]] = {}
        self._unreceived: dict[RequestId, Call] = {}
        """Under which id a call was answered, until its caller has the outcome."""
        self._given_up: set[RequestId] = set()
        """Requests that their client has asked to end, whatever came of them."""
        self.refused: set[RequestId] = set()
        """Requests that were refused for good."""
        self.unknown: set[bytes] = set()
        """Sessions to whose clients a server has said that it does not know them."""
        self._nonces: dict[bytes, bytes] = {}
        """By session."""
        self._said_goodbye: dict[Process, list[bytes]] = {}
        """The sessions that goodbyes named, in the order in which a server heard them."""
        self._over: set[bytes] = set()
        """Sessions whose client was told that nothing of them runs any more."""
        self.dispatched: set[tuple[Process, int]] = set()
        self.journal = JournalJudge(self)
        self.keys = KeyJudge(self)
        self._owed: tuple[RequestId, str] | None = None
        """A request with another body than the first, whose sender is to be told."""

    # -- between clients and servers ------------------------------------------

    def server_heard(
        self, server: Process, client: str, message: messages.Message, body: Body | None
    ) -> None:
        """A server has dealt with a client's message; what it says comes next."""
        if isinstance(message, messages.Goodbye):
            left = self._left(server, message.session)
            self._said_goodbye.setdefault(server, []).append(left)
        session = getattr(message, "session", None)
        if session is None or self.sessions.get(session, (None, ""))[0] is not server:
            return
        self._compare(session)
        self.heard[session] = Hearing(self.clock(), server.held_s, server.held_times)
        if isinstance(message, messages.Request):
            assert body is not None
            self._request_heard(RequestId(session, message.sequence), key_of(body))
            return
        if client != "hostile" and isinstance(message, messages.KeyedRequest):
            request = RequestId(session, message.sequence)
            self._request_heard(request, self.keys.calls[request])
            self.keys.heard(server, message)
            return
        if client == "hostile":
            return  # a server may ignore what it states; what it is promised counts
        finished = self.finished.setdefault(session, Ranges())
        match message:
            case messages.Finish():
                finished.update(Ranges.from_flat(message.finished))
            case messages.Cancel() | messages.KeyedCancel():
                finished.add(message.sequence)
                self._given_up.add(RequestId(session, message.sequence))
            case messages.Sync():
                finished.update(Ranges.from_flat(message.pending).gaps(message.next))
            case messages.Goodbye():
                finished.add_span(0, 1 << 40)
                self.keys.finished(session, finished)
                return
        self._acknowledged(session, finished)

    def _left(self, server: Process, identifier: bytes) -> bytes:
        """The nonce that a goodbye leaves with, if its server must still know the session;
        else what it names, for that is all that the server can remember."""
        opened = sum(1 for whose, _ in self.sessions.values() if whose is server)
        nonce = self._nonces.get(identifier)
        if (
            nonce is None
            or nonce in self._said_goodbye.get(server, ())  # forgotten since, or soon
            or opened > self.plan.server.sessions  # it may have made room for another
            or self.unheard(identifier)
        ):
            return identifier
        return nonce

    def _request_heard(self, request: RequestId, key: str) -> None:
        first = self.first.setdefault(request, key)
        self.asked_in[key] = request.session
        if first != key:
            self._owed = (request, key)

    def server_has_dealt(self) -> None:
        """Everything that follows from the last message was sent."""
        self.keys.dealt()
        if self._owed is not None:
            (request, key), self._owed = self._owed, None
            first = self.first.get(request, "?")
            self.violation("G6", f"{key} comes as {request}, was {first}: not refused", key)

    def _acknowledged(self, session: bytes, finished: Ranges) -> None:
        """G4: nothing is finished between its arrival and its caller's receiving it."""
        self.keys.finished(session, finished)
        for request, call in list(self._unreceived.items()):
            if call.received or call.cancelled_s is not None or call.client in self.gone_clients:
                del self._unreceived[request]
            elif request.session == session and request.sequence in finished:
                del self._unreceived[request]
                if request in self._given_up:
                    continue
                text = f"{call.key} is acknowledged before its caller has the outcome"
                self.violation("G4", text, call.key)

    def _compare(self, session: bytes) -> None:
        """Remember a silence that may have ended the session's lease."""
        last = self.heard.get(session)
        if last is None:
            return
        server = self.sessions[session][0]
        silence_s = self.clock() - last.at_s - (server.held_s - last.slept_s)
        # Each sleep may count as much as one step, however long it was.
        sleeps_s = self.plan.server.awake_step_s * (server.held_times - last.sleeps)
        if silence_s >= self.plan.server.lease_s - sleeps_s - TICKS_S:
            self.silent.add(session)

    def unheard(self, session: bytes) -> bool:
        """Whether the session's lease may have ended: then it is over for all its calls."""
        self._compare(session)
        return session in self.silent

    def server_told_client(
        self, server: SimServer, client: str, message: messages.Message, body: Body | None
    ) -> None:
        """A server sends to a client."""
        match message:
            case messages.Welcome():
                self._nonces[message.session] = message.nonce
                left = self._said_goodbye.get(server, [])
                # So many are remembered.
                if message.nonce in left[-self.plan.server.sessions :]:
                    text = f"a session is opened for {client}, who has said goodbye to it"
                    self.violation("G8", text)
                self.sessions[message.session] = (server, client)
                self.heard.setdefault(
                    message.session, Hearing(self.clock(), server.held_s, server.held_times)
                )
                self.status_told(server, message.server)
            case messages.Synced():
                self.status_told(server, message.server)
            case messages.Outcome():
                self._outcome_sent(message, body)
                self.keys.told(message, body)
            case messages.Refused():
                self.keys.refused(message)
                request = RequestId(message.session, message.sequence)
                if self._owed is not None and self._owed[0] == request:
                    self._owed = None
                elif message.delay_s is not None:
                    self.first.pop(request, None)
                else:
                    self.refused.add(request)
            case messages.Unknown():
                self.unknown.add(message.session)
                self._owed = None
                self.keys.lost(message.session)
                if message.gone:
                    self._promised_gone(message.session)
                if message.settled:
                    self._promised_settled(message.session)
            case messages.Cancelled() if not message.started:
                self._promised_not_to_run(RequestId(message.session, message.sequence))
                self.keys.cancelled(message)

    def status_told(self, server: SimServer, status: dict[str, Any]) -> None:
        """Judge what a server tells a client of itself: see :mod:`.judge_health`."""

    def _promised_not_to_run(self, request: RequestId) -> None:
        """The server says that it never ran and never will."""
        self.finished.setdefault(request.session, Ranges()).add(request.sequence)
        if request in self.started_as:
            key = self.started_as[request]
            self.violation("G9", f"{request} is said not to have started, and it had", key)

    def _promised_gone(self, session: bytes) -> None:
        """The server says that nothing of this session runs any more."""
        for call in self.calls.values():
            if any(e.request.session == session and e.live() for e in call.executions):
                text = f"{call.key} runs, and its session is said to be gone"
                self.violation("G1", text, call.key)

    def _promised_settled(self, session: bytes) -> None:
        """The server says that of this session nothing was unfinished."""
        finished = self.finished.get(session, Ranges())
        for request, key in self.started_as.items():
            if request.session == session and request.sequence not in finished:
                text = f"{request} has run, and its session is said to be settled"
                self.violation("G9", text, key)

    def _outcome_sent(self, message: messages.Outcome, body: Body | None) -> None:
        assert body is not None
        sent = message, bytes(body)
        request = RequestId(message.session, message.sequence)
        key = self.key_of_request(request)
        if self.outcomes.setdefault(request, sent) != sent:
            self.violation("G3", f"{request}: two outcomes that differ", key)
        if request.sequence in self.finished.get(request.session, ()):
            self.violation("G7", f"{request} is answered after it was finished", key)
        call = self.calls.get(self.started_as.get(request, ""))
        if call is None or not call.executions:
            return
        # A result is never that of an execution that was proven over before.
        *earlier, last = call.executions
        if any(e.payload == sent[1] for e in earlier) and last.request == request:
            text = f"{call.key}: the outcome is of an execution before the last"
            self.violation("G5", text, call.key)

    def client_heard(self, client: Process, message: messages.Message) -> None:
        """A client has dealt with a server's message."""
        if isinstance(message, messages.Unknown) and message.gone:
            self._over.add(message.session)
        if not isinstance(message, messages.Outcome) or message.session in self._over:
            return
        request = RequestId(message.session, message.sequence)
        call = self.calls.get(self.key_of_request(request))
        if call is None or call.client != client.name:
            return
        if not call.told and call.cancelled_s is None:
            again = message.status != Status.RESULT and not message.executions
            if not again:  # else it did not run here, and another server is asked
                self.violation("G4", f"{call.key}: its outcome was thrown away", call.key)
        elif call.told_s == self.clock() and not call.told.startswith("fail"):
            self._unreceived[request] = call

    # -- between servers and workers ------------------------------------------

    def server_told_worker(
        self, worker: SimWorker, message: messages.Message, body: Body | None
    ) -> None:
        """A server sends to a worker."""
        if isinstance(message, messages.Retire):
            self.leaving.add(worker)
        if isinstance(message, messages.Stop):
            for number in Ranges.from_flat(message.numbers):
                self.keys.work.stop_sent(worker, number)
        if not isinstance(message, messages.Dispatch):
            return
        request = RequestId(message.session, message.sequence)
        assert body is not None
        key = key_of(body)
        # What waited for the disk was spent before.
        began = (worker, message.number) in self.dispatched or (label_of(key) and self.journal.on)
        if worker in self.leaving and not began:
            text = f"an execution is spent on {worker.name}, which is to end"
            self.violation("G2", text, key)
        if label_of(key) and (worker, message.number) not in self.dispatched:
            self.keys.dispatched(worker.server, message.sequence, body)
        self.dispatched.add((worker, message.number))
        if message.sequence in self.finished.get(message.session, ()):
            self.violation("G7", f"{request} is dispatched after it was finished", key)

    def worker_heard(self, worker: Process, message: messages.Message) -> None:
        """A worker has dealt with a message of its router."""
        if isinstance(message, messages.Stop):
            self.stopped.update((worker, n) for n in Ranges.from_flat(message.numbers))

    def outcome_arrived(self, worker: Process, message: messages.Message) -> None:
        """An outcome has arrived at the worker's own router."""
        if worker in self.lost:
            return
        if isinstance(message, messages.WorkerOutcome):
            execution = self.by_dispatch.get((worker, message.number))
            of = RequestId(message.session, message.sequence)
            if execution is not None and execution.request == of:
                execution.delivered = True
                if label_of(execution.key):
                    self.keys.delivered(execution)

    def declared_lost(self, worker: Process) -> None:
        """The router takes the worker's executions for ended."""
        self.lost.add(worker)
        if worker.alive:
            self.violation("G1", f"{worker.name} is declared lost and lives")
