"""Keyed requests: between the dedup cache, which has their ids, and the keys.

Theory of operation
-------------------
A request that names a key is an entry of its session like any other, and waits there
until the work of its key has an outcome; so retransmissions, replays and acknowledgements
are those of the cache.  The work itself (:class:`~.key_records.Generation`) is a request
of a session of the server's own, one for each namespace, whose sequences are the numbers
of generations: so queue, workers and shares treat it as any other.

What must be done about keys is decided in :mod:`.keys`; here it is carried out.  Many may
wait for one key, and many keys may end at once: so no turn answers more than
:data:`~.keys.ENDED_AT_ONCE` of those that wait, and the rest is due in the next (G10).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from . import messages, outcomes
from .calls import grant
from .errors import ProtocolError
from .key_records import (
    Answer,
    AnswerCancelled,
    CommandAnswer,
    Enter,
    Finish,
    KeyAct,
    Keyed,
    KeyEffects,
    KeyName,
    Refusal,
    Refuse,
    Reissue,
    Wait,
)
from .keys import ENDED_AT_ONCE, Keys
from .limits import KeyLimits
from .request_table import RequestInput, drop_body
from .requests import Ask, Entry, RetainedOutcome, Session
from .terms import RequestId, one_line

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

REFUSALS: dict[Refusal, tuple[str, bool]] = {
    Refusal.CONFLICT: ("key-conflict", False),
    Refusal.UNKNOWN_KEY: ("unknown-key", False),
    Refusal.FULL: ("keys-full", True),
    Refusal.CROWDED: ("key-crowded", True),
}
"""The codes of refusals, and whether they are for now."""

FOLLOWERS = 16
"""Those who are sent the deltas of one key."""

_ACTS = tuple(KeyAct)


class KeyedRequests:
    """The requests that wait for keys, and the sessions in which their work is done."""

    def __init__(
        self, dispatcher: Dispatcher, limits: KeyLimits, new_id: Callable[[], bytes]
    ) -> None:
        self.keys = Keys(limits)
        self._dispatcher = dispatcher
        self._cache = dispatcher.cache
        self._clock = dispatcher.clock
        self._new_id = new_id
        self._sessions: dict[bytes, Session] = {}
        """Of the work, by namespace.  Some may have made room for others, and have ended."""
        self._answers: deque[Answer | AnswerCancelled] = deque()
        """Those that were not given yet."""
        self._answers_left = ENDED_AT_ONCE

    # -- what callers ask -------------------------------------------------------

    def enter(self, entry: Entry) -> None:
        """A request that names a key was entered."""
        asked: Keyed = entry.key
        try:
            if asked.act is KeyAct.ASK:
                self._ask(asked, entry)
            elif asked.act is KeyAct.ATTACH:
                self._do(self.keys.attach(asked.name, entry.id, self._now_s))
            else:
                self._command(asked, entry)
        except ProtocolError as error:  # what cannot be a key
            self._refuse(entry, "refused", str(error), for_now=False)
        # It is the work's now, or is not needed.
        drop_body(self._cache, self._cache.sessions[entry.id.session], entry)

    def _ask(self, asked: Keyed, entry: Entry) -> None:
        assert entry.body is not None
        if asked.name not in self.keys.open:
            if not self._has_room(asked.name, len(entry.body)):
                text = "for now: there is no room for the work of another key"
                self._refuse(entry, "keys-full", text, for_now=True)
                return
            if asked.reissue is not None and not self._dispatcher.workforce.environment:
                text = "no worker has said yet whether what may have run may run again"
                self._refuse(entry, "keys-early", text, for_now=True)
                return
        ask = Ask(entry.digest, entry.body, entry.rerun, entry.allowance)
        self._do(self.keys.ask(asked.name, entry.id, asked.caller, ask, self._now_s, asked.reissue))

    def _has_room(self, name: KeyName, size_bytes: int) -> bool:
        """Whether the work of another key may wait for a worker."""
        own = self._sessions.get(name.namespace)
        if own is not None and not own.ended:
            return self._cache.may_enter(own, size_bytes)
        if len(self._sessions) >= self.keys.limits.namespaces:
            self._end_idle()
        return len(self._sessions) < self.keys.limits.namespaces and not self._cache.is_full()

    def _end_idle(self) -> None:
        """Where nothing waits or runs, no session is needed: callers choose namespaces, and
        must not leave other clients without (G10)."""
        for namespace, session in list(self._sessions.items()):
            if not session.ended and not session.entries and not session.live_executions:
                self._cache.end(session)
                self._cache.forget(session)
            if session.ended:
                del self._sessions[namespace]

    def _command(self, asked: Keyed, entry: Entry) -> None:
        match asked.act:
            case KeyAct.CANCEL:
                effects, said = self.keys.cancel(asked.name, asked.tag, self._now_s)
            case KeyAct.FORGET:
                effects, said = self.keys.forget(asked.name, asked.tag, self._now_s)
            case _:
                effects, started = self.keys.withdraw(
                    asked.name, asked.caller, entry.id.session, self._now_s
                )
                said = CommandAnswer(started=started)
        self._do(effects)
        if said.refused:
            self._do((Refuse(entry.id, Refusal.FULL),))
            return
        record = {"generation": said.generation, "started": said.started}
        session = self._cache.sessions[entry.id.session]
        self._answer(session, entry, outcomes.said(entry, record))

    def leave(self, entry: Entry) -> bool:
        """A request waits for its key no more, or has its outcome.  Whether the work may
        have been started; False also says that it never will be."""
        effects, started = self.keys.leave(entry.id, self._now_s)
        self._do(effects)
        return started

    def leave_together(self, entries: list[Entry]) -> None:
        """The same of several, as many as one turn may."""
        self._let_go(entries)
        self._do(self.keys.leave_together([entry.id for entry in entries], self._now_s))

    def leave_all(self, session: Session, *, lost: bool) -> None:
        """A session ends, by its lease (lost) or by a goodbye: before the cache ends it."""
        self._let_go(session.entries.values())
        end = self.keys.lose if lost else self.keys.leave_all
        self._do(end(session.id, self._now_s))

    def _let_go(self, entries: Iterable[Entry]) -> None:
        """They have been answered, if they hold what a generation has brought."""
        for entry in entries:
            if entry.kept is not None and entry.kept.shared is not None:
                self.keys.room.let_go(entry.kept.shared)

    # -- answers ------------------------------------------------------------------

    @property
    def answers_due(self) -> bool:
        """Whether somebody waits whose outcome is there."""
        return bool(self._answers)

    def begin_turn(self) -> None:
        """Another input may answer as many again."""
        self._answers_left = ENDED_AT_ONCE
        self._answer_due()

    def _answer_due(self) -> None:
        while self._answers and self._answers_left:
            self._answers_left -= 1
            given = self._answers.popleft()
            found = self._find(given.waiter)
            if found is None:
                continue
            session, entry = found
            if isinstance(given, AnswerCancelled):
                kept = outcomes.key_cancelled(entry, started=given.started)
            else:
                mine = outcomes.for_key(given.outcome, entry)
                kept = outcomes.fitting(mine, entry, session.message_bytes)
                if kept.shared is not None:
                    self.keys.room.hold(kept.shared)
            self._answer(session, entry, kept)

    # -- what becomes of the work -----------------------------------------------

    def execution_ended(self, number: int) -> None:
        """It was reported, or its worker is proven dead; whether anybody wants it or not."""
        self._do(self.keys.execution_ended(number))

    def outcome(self, work: Entry) -> None:
        """It has an outcome, whoever made that."""
        assert work.kept is not None
        self._do(self.keys.outcome(work.id.sequence, work.kept, self._now_s))

    def followers(self, number: int) -> list[tuple[Session, int]]:
        """Who waits for it and is sent its deltas: some of those that count, since others
        have them with the outcome, and one turn must not serve a thousand (G10)."""
        waiters = islice(self.keys.generations[number].waiters, FOLLOWERS)
        found = filter(None, map(self._find, waiters))
        return [(session, entry.id.sequence) for session, entry in found]

    def may_dispatch(self, session: Session) -> bool:
        """Whether outcomes of this session of work have room to be retained."""
        return not session.entries or self.keys.may_dispatch(next(iter(session.entries)))

    def tick(self) -> None:
        """What is due by time, as much as one turn may."""
        self._do(self.keys.tick(self._now_s))

    @property
    def behind(self) -> bool:
        """Whether more is due than one turn could do."""
        return self.answers_due or self.keys.behind(self._now_s)

    # -- effects ------------------------------------------------------------------

    def _do(self, effects: KeyEffects) -> None:
        for effect in effects:
            _CARRY_OUT[type(effect)](self, effect)
        if self._answers:
            self._answer_due()

    def _enter_work(self, enter: Enter) -> None:
        """Where one session may start all that is left, the next could start nothing: so
        this epoch starts as many as :func:`~.calls.grant` says, which callers count."""
        generation, ask = enter
        session = self._own(generation.name.namespace)
        ask = Ask(ask.digest, ask.body, ask.rerun, grant(ask.allowance))
        self._dispatcher.step(session, generation.number, RequestInput.REQUEST, ask)
        self._dispatcher.answer_fresh(session, generation.number)

    def _finish_work(self, finish: Finish) -> None:
        number = finish.generation.number
        session = self._sessions.get(finish.generation.name.namespace)
        if session is not None and number in session.entries:
            self._dispatcher.step(session, number, RequestInput.FINISH)

    def _wait(self, wait: Wait) -> None:
        pass  # it is WAITING already

    def _answer_soon(self, answer: Answer | AnswerCancelled) -> None:
        self._answers.append(answer)

    def _turn_away(self, refuse: Refuse) -> None:
        waiter, why = refuse
        entry = self._cache.sessions[waiter.session].entries[waiter.sequence]
        code, for_now = REFUSALS[why]
        self._refuse(entry, code, why.value, for_now=for_now)

    def _own(self, namespace: bytes) -> Session:
        known = self._sessions.get(namespace)
        if known is not None and not known.ended:
            return known
        name = one_line(f"keys of {namespace.decode('utf-8', 'replace')}", 128)
        opened = self._cache.open_own(self._new_id(), self._new_id(), name, self._now_s)
        self._sessions[namespace] = opened
        return opened

    def _find(self, waiter: RequestId) -> tuple[Session, Entry] | None:
        """Its entry; none if that is finished, and it leaves with others."""
        session = self._cache.sessions.get(waiter.session)
        entry = None if session is None else session.entries.get(waiter.sequence)
        return None if session is None or entry is None else (session, entry)

    def _answer(self, session: Session, entry: Entry, kept: RetainedOutcome) -> None:
        self._dispatcher.step(session, entry.id.sequence, RequestInput.ANSWERED, kept)

    def _refuse(self, entry: Entry, code: str, text: str, *, for_now: bool) -> None:
        session = self._cache.sessions[entry.id.session]
        self._dispatcher.step(session, entry.id.sequence, RequestInput.TURNED_AWAY)
        delay_s = self._cache.limits.retry_delay_s if for_now else None
        refused = messages.Refused(session.id, entry.id.sequence, code, text, delay_s)
        self._dispatcher.send(session.route, refused)

    @property
    def _now_s(self) -> float:
        return self._clock.awake_s


_CARRY_OUT: dict[type, Callable[..., None]] = {
    Enter: KeyedRequests._enter_work,
    Finish: KeyedRequests._finish_work,
    Wait: KeyedRequests._wait,
    Answer: KeyedRequests._answer_soon,
    AnswerCancelled: KeyedRequests._answer_soon,
    Refuse: KeyedRequests._turn_away,
}


def keyed(request: messages.KeyedRequest) -> Keyed:
    """What a request asks of its key."""
    reissue = None if request.earlier is None else Reissue(request.gone, request.earlier)
    name = KeyName(request.namespace, request.key)
    return Keyed(_ACTS[request.act], name, request.caller, request.tag, reissue)
