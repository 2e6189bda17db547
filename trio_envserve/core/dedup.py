"""The dedup cache: sessions, their requests, and the bounds on both.

Theory of operation
-------------------
A session holds one :class:`Entry` for each sequence that was seen and is not finished;
the finished ones are spans.  So *never seen*, *finished* and *forgotten* are three
different things, and nothing has to time out for correctness.

What can happen to a request is a table (:mod:`.request_table`); every input to one goes
through :meth:`DedupCache.step`.  The cache knows nothing of workers, queues or sockets.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import filterfalse
from typing import Any

from .limits import ServerLimits
from .ranges import Ranges
from .request_table import TABLE, Effects, RequestAction, RequestInput, absorb
from .requests import Ask, Counters, Entry, RequestState, Session
from .terms import Epoch, Route, SessionId


class DedupCache:
    """Sessions and requests of one epoch.  All its methods are synchronous."""

    def __init__(self, epoch: Epoch, limits: ServerLimits) -> None:
        self.epoch = epoch
        self.limits = limits
        self.declared_rerun = False
        """The environment's declaration; known before anything is dispatched."""
        self.sessions: OrderedDict[SessionId, Session] = OrderedDict()
        """The session heard longest ago comes first."""
        self._idle: OrderedDict[SessionId, Session] = OrderedDict()
        """The sessions in which nothing is unfinished, in the same order."""
        self._unsettled: dict[SessionId, None] = {}
        """Sessions whose lease ended while something was unfinished."""
        self._remembers = True
        """Whether ``_unsettled`` is complete: it never had more than the bound on sessions."""
        self._by_nonce: dict[bytes, Session] = {}
        self._opened: dict[Route, int] = {}
        """How many of the sessions were opened on each connection."""
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        """Nonces whose clients have said goodbye, so that a late hello opens no session.
        There are as many as there may be sessions."""
        self.counters = Counters()
        self.failures: Counter[str] = Counter()
        """Number of requests that have ended without a result, by the code of their ending; the
        work of a key is one, whoever waits."""
        self.kept_count = 0
        self.kept_bytes = 0
        """Bytes of kept outcomes, and of those under way from a worker."""
        self.announced_bytes = 0
        """Bytes of outcomes that wait at their workers for room."""
        self.kept_unrun = 0
        """Kept outcomes of requests that never ran.  They take up room in the queue
        (:meth:`may_enter`) and do not stop other requests from running."""
        self.running_count = 0
        """Requests that run.  They take up room already, because their outcomes will be kept."""
        self.queued_count = 0
        self.held_bytes = 0
        """Bytes of request bodies, waiting or held for a further execution."""

    # -- sessions -------------------------------------------------------------

    def open(
        self, session_id: SessionId, nonce: bytes, name: str, route: Route, connection: int,
        now_s: float,
    ) -> Session | None:  # fmt: skip
        """The session of a hello: the nonce's own, or a new one named ``session_id``.
        None if :meth:`no_session` has a reason."""
        known = self._by_nonce.get(nonce)
        if known is not None and not known.ended:
            self.moved(known, route, connection)
            self.heard(known, now_s)
            return known
        if self.no_session(nonce, route):
            self.counters.sessions_refused += 1
            return None
        return self._add(Session(session_id, nonce, name, route, connection, now_s, opener=route))

    def of_nonce(self, nonce: bytes) -> Session | None:
        """The session of this nonce, if there is one."""
        return self._by_nonce.get(nonce)

    def open_own(
        self, session_id: SessionId, nonce: bytes, name: str, namespace: bytes, now_s: float
    ) -> Session:
        """A session of the server's own, if :meth:`is_full` does not say otherwise."""
        return self._add(Session(session_id, nonce, name, b"", 0, now_s, own=namespace))

    def _add(self, session: Session) -> Session:
        if len(self.sessions) >= self.limits.sessions:
            idle = self._longest_idle()
            assert idle is not None
            self.end(idle)
            self.forget(idle)
        self.sessions[session.id] = self._idle[session.id] = session
        self._by_nonce[session.nonce] = session
        self._opened[session.opener] = self._opened.get(session.opener, 0) + 1
        self.counters.sessions_opened += 1
        return session

    def is_full(self) -> bool:
        """Whether there may be no more sessions, and none is idle to make room."""
        return len(self.sessions) >= self.limits.sessions and self._longest_idle() is None

    def no_session(self, nonce: bytes, route: Route) -> str:
        """Why a new session cannot be opened for this nonce on this connection; empty
        if it can."""
        if nonce in self._by_nonce or nonce in self._ended:
            return "the session of this nonce has ended; say hello with a fresh nonce"
        if self._opened.get(route, 0) >= self.limits.connection_sessions:
            most = self.limits.connection_sessions
            return f"{most} sessions were opened on this connection, and more may not be"
        if self.is_full():
            return f"{len(self.sessions)} sessions are at work, and more may not be"
        return ""

    def _longest_idle(self) -> Session | None:
        """The session that makes room for a new one.  It loses nothing: its client
        hears that all of it was settled (:meth:`settled`), and says hello again."""
        return next((s for s in self._idle.values() if not s.live_executions), None)

    def settled(self, session_id: SessionId) -> bool:
        """Whether a session of this epoch, which is not known any more, was forgotten
        with nothing unfinished: what its client still has pending never ran."""
        return self._remembers and session_id not in self._unsettled

    def goodbye(self, identifier: SessionId | bytes) -> Session | None:
        """A client leaves for good, and names its session, or its nonce if no welcome
        has come.  Returns the session, which is then to be ended, if it has one."""
        session = self.sessions.get(identifier) or self._by_nonce.get(identifier)
        nonce = identifier if session is None else session.nonce
        self._ended[nonce] = None
        self._ended.move_to_end(nonce)
        if len(self._ended) > self.limits.sessions:
            self._ended.popitem(last=False)
        return session

    def heard(self, session: Session, now_s: float) -> None:
        """The client was heard: its lease starts anew."""
        session.heard_s = now_s
        self.sessions.move_to_end(session.id)
        if session.id in self._idle:
            self._idle.move_to_end(session.id)

    def moved(self, session: Session, route: Route, connection: int) -> None:
        """Answers go to the client's newest connection by its own count, not
        to the newest arrival."""
        if connection <= session.connection:
            return
        session.connection = connection
        session.route = route
        for entry in session.entries.values():
            if entry.kept is not None:  # whatever the old one still carried is lost
                entry.kept.sent_probe = -1

    def lapsed(self, now_s: float) -> Iterator[Session]:
        """Sessions whose lease has ended by now, not yet ended."""
        for session in list(self.sessions.values()):
            if now_s - session.heard_s <= self.limits.lease_s:
                break
            if not session.ended:
                yield session

    def end(self, session: Session) -> Effects:
        """The lease has ended, or the client said goodbye: cancel what is left.

        Call :meth:`forget` when nothing of it runs any more."""
        if session.entries and session.nonce not in self._ended:  # a goodbye finishes all
            self._remembers = self._remembers and len(self._unsettled) < self.limits.sessions
            if self._remembers:
                self._unsettled[session.id] = None
        effects: list[tuple[RequestAction, Any]] = []
        for sequence in list(session.entries):
            effects.extend(self.step(session, sequence, RequestInput.LEASE_ENDED))
        session.ended = True
        self._idle.pop(session.id, None)
        self.counters.sessions_ended += 1
        return effects

    def forget(self, session: Session) -> bool:
        """Drop an ended session if none of its executions lives.

        A worker's death ends several executions at once, so it may be gone by now."""
        if not session.ended or session.live_executions or session.id not in self.sessions:
            return False
        del self.sessions[session.id]
        del self._by_nonce[session.nonce]
        self._opened[session.opener] -= 1
        if not self._opened[session.opener]:
            del self._opened[session.opener]
        return True

    # -- bounds ---------------------------------------------------------------

    # One rule for all of them (_most): a session may take its share of what the *others*
    # leave of a bound.  A session that takes all that it may leaves the next one the same
    # share of the rest, so a few that give nothing back do not use up a bound.  Many do so
    # nearly; therefore each session also has a part of its own, which no other can take.
    # All parts together are as large as the bound, so at most twice the bound is used.

    def _most(self, bound: int, others: int) -> float:
        """The part of a bound that a session may have, where the others have so much."""
        limits = self.limits
        return max(limits.session_share * (bound - others), bound // limits.sessions)

    def may_dispatch(self) -> bool:
        """Whether there is room for the outcome of one more execution (G8)."""
        limits = self.limits
        ran = self.running_count + self.kept_count - self.kept_unrun
        return ran < limits.kept_outcomes and self.kept_bytes < limits.kept_bytes

    def share_left(self, session: Session) -> bool:
        """Whether this session has room for the outcome of one more execution.

        A session of which nothing runs or is kept always has it: so at the bound each
        session goes on, with at least one execution at a time.
        """
        limits, share = self.limits, self.limits.session_share
        ran, announced_bytes = self.running_count + self.kept_count, self.announced_bytes
        # Where all together have no more than the share of one, each may go on.
        if (
            ran < share * limits.kept_outcomes
            and self.kept_bytes + announced_bytes < share * limits.kept_bytes
            and announced_bytes < share * limits.announced_bytes
        ):
            return True
        mine = session.running_count + session.kept_count - session.kept_unrun
        if not mine:
            return True
        others = ran - self.kept_unrun - mine
        kept_bytes, waiting_bytes = session.kept_bytes, session.announced_bytes
        return (
            mine < self._most(limits.kept_outcomes, others)
            and kept_bytes + waiting_bytes
            < self._most(limits.kept_bytes, self.kept_bytes - kept_bytes)
            and waiting_bytes
            < self._most(limits.announced_bytes, self.announced_bytes - waiting_bytes)
        )

    def may_keep(self, session: Session, size_bytes: int) -> bool:
        """Whether there is room for an outcome that its worker has announced.

        A session of which nothing is kept gets room for an outcome that is larger than
        what is left, unless the bound is passed already: so the largest outcome arrives,
        too, and the bound is passed by one outcome at most.
        """
        mine_bytes, most_bytes = session.kept_bytes, self.limits.kept_bytes
        others_bytes = self.kept_bytes - mine_bytes
        if not mine_bytes and others_bytes <= most_bytes:
            return True
        return mine_bytes + size_bytes <= self._most(most_bytes, others_bytes)

    def announce(self, session: Session, change_bytes: int) -> None:
        """Count bytes of outcomes that wait at workers; negative when they wait no longer."""
        self.announced_bytes += change_bytes
        session.announced_bytes += change_bytes

    def reserve(self, session: Session, change_bytes: int) -> None:
        """Count bytes of outcomes that workers send; negative when they have arrived."""
        self.kept_bytes += change_bytes
        session.kept_bytes += change_bytes

    def may_enter(self, session: Session, size_bytes: int) -> bool:
        """Whether one more request may wait, in all and of this session (G8).

        Kept outcomes of what never ran (deadlines that passed before a dispatch)
        take up room in the queue; otherwise they would have no bound at all.
        A body larger than its bound may wait, but alone.
        """
        limits = self.limits
        share, waiting = limits.session_share, self.queued_count + self.kept_unrun
        enough = waiting < share * limits.queue  # where all have no more than one of them may
        if enough and self.held_bytes + size_bytes <= share * limits.queue_bytes:
            return True
        mine = session.queued_count + session.kept_unrun
        if mine and mine >= self._most(limits.queue, self.queued_count + self.kept_unrun - mine):
            return False
        held_bytes, mine_bytes = self.held_bytes, session.held_bytes
        if not mine_bytes and (not held_bytes or held_bytes + size_bytes <= limits.queue_bytes):
            return True
        most_bytes = self._most(limits.queue_bytes, held_bytes - mine_bytes)
        return mine_bytes + size_bytes <= most_bytes

    def may_rerun(self, entry: Entry) -> bool:
        """Whether consent and allowance are left for a further execution (G2)."""
        consent = self.declared_rerun if entry.rerun is None else entry.rerun
        return consent and entry.executions < entry.allowance

    def ever_started(self, session: Session, sequence: int) -> bool:
        """Whether an execution of this request was ever dispatched; True where
        it is not known any more."""
        entry = session.entries.get(sequence)
        if entry is not None:
            return entry.executions > 0
        return session.state(sequence) is RequestState.FINISHED

    # -- the table ------------------------------------------------------------

    def step(
        self, session: Session, sequence: int, input: RequestInput, arg: Any = None
    ) -> Effects:
        """One input to one request: look up the cell, do it, say what follows.

        ``arg``: an :class:`Ask` for requests, the execution for a dispatch,
        :class:`~.requests.RetainedOutcome` for an outcome and for ANSWERED, and for
        deadline and worker death the outcome to give if the request ends by it.
        """
        entry = session.entries.get(sequence)
        if entry is not None:
            return TABLE[input][entry.state](self, session, sequence, entry, arg)
        if session.has_finished(sequence):
            return absorb(self, session, sequence, input)
        return TABLE[input][RequestState.NOT_SEEN](self, session, sequence, None, arg)

    def request(self, session: Session, sequence: int, ask: Ask) -> Effects:
        """A transmission of a request: REQUEST, or OTHER_DIGEST if the id is
        known with another payload (G6)."""
        self.counters.requests += 1
        entry = session.entries.get(sequence)
        # The digest of a request with a key is that of the input only.
        same = entry is None or (
            entry.digest == ask.digest
            and entry.body_bytes == len(ask.body)
            and entry.key == ask.key
        )
        return self.step(
            session, sequence, RequestInput.REQUEST if same else RequestInput.OTHER_DIGEST, ask
        )

    def finish_spans(self, session: Session, spans: Ranges) -> Effects:
        """The client is done with these sequences.  Ignored whole if it would
        leave more gaps than a window can, as only a hostile client does."""
        if spans == session.finished or self._too_many_gaps(session, spans):
            return ()  # most statements repeat the one before
        effects: list[tuple[RequestAction, Any]] = []
        for sequence in _members(session.entries, spans):
            effects.extend(self.step(session, sequence, RequestInput.FINISH))
        session.finished.update(spans)
        return effects

    def cancel(self, session: Session, sequence: int) -> tuple[Effects, bool]:
        """The client is done with this sequence, and asks whether an execution
        was ever dispatched: True also where that is not known (any more)."""
        if self._too_many_gaps(session, Ranges((sequence,))):
            return (), True
        started = self.ever_started(session, sequence)
        return self.step(session, sequence, RequestInput.FINISH), started

    def _too_many_gaps(self, session: Session, spans: Ranges) -> bool:
        """Whether finishing these would cost more memory than a window can (G8)."""
        most = self.limits.window + 1
        if session.finished.span_count() + spans.span_count() <= most:
            return False
        if spans.span_count() > most:
            return True
        merged = session.finished.copy()
        merged.update(spans)
        return merged.span_count() > most

    def sync(
        self, session: Session, next_sequence: int, pending: Ranges, sent_before: float = math.inf
    ) -> tuple[Effects, Ranges]:
        """The client states what it holds.  Everything below ``next`` and not
        pending is finished; what is pending and completed, and was last sent
        before the answer to probe ``sent_before``, is replayed; what is pending
        and was never seen is returned, to be named to the client.

        A statement of more than a window of pending requests is ignored.
        """
        missing = Ranges()
        if len(pending) > self.limits.window:
            return (), missing
        effects = list(self.finish_spans(session, pending.gaps(next_sequence)))
        for sequence in filterfalse(session.entries.__contains__, pending):
            if sequence < next_sequence and sequence not in session.finished:
                missing.add(sequence)
        if session.kept_count:
            for entry in filter(None, map(session.entries.get, pending)):
                if entry.kept is not None and entry.kept.sent_probe < sent_before:
                    self.counters.replayed += 1
                    effects.append((RequestAction.ANSWER, entry))
        return effects, missing


def _members(entries: dict[int, Entry], spans: Ranges) -> list[int]:
    """The keys of entries inside the spans; cost by the smaller of the two."""
    if len(spans) < len(entries):
        return [sequence for sequence in spans if sequence in entries]
    return [sequence for sequence in entries if sequence in spans]
