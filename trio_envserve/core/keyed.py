"""Keyed requests: between the dedup cache, which has their ids, and the keys.

Theory of operation
-------------------
A request that names a key is an entry of its session like any other, and waits there
until the work of its key has an outcome; so retransmissions, replays and acknowledgements
are those of the cache.  The work itself (:class:`~.key_records.Generation`) is a request
of a session of the server's own, one for each namespace, whose sequences are the numbers
of generations: so queue, workers and shares treat it as any other.

What must be done about keys is decided in :mod:`.keys`; here it is carried out.  When those
who wait are told so is up to :mod:`.key_answers`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from . import messages, outcomes
from .calls import grant
from .errors import ProtocolError
from .journal import Journal, Record
from .key_answers import KeyAnswers, Say
from .key_records import (
    Answer,
    AnswerCancelled,
    CommandAnswer,
    Enter,
    Finish,
    Generation,
    GenerationState,
    KeyAct,
    Keyed,
    KeyEffects,
    KeyName,
    Refusal,
    Refuse,
    Reissue,
)
from .keys import ENDED_AT_ONCE, Keys
from .limits import KeyLimits
from .request_table import RequestInput, count_failure, drop_body, place
from .requests import Ask, Entry, Owner, RequestState, RetainedOutcome, Session
from .restored import remains_of
from .terms import ID_BYTES, TAG_BYTES, RequestId, one_line, quick

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

REFUSALS: dict[Refusal, tuple[str, bool]] = {
    Refusal.CONFLICT: ("key-conflict", False),
    Refusal.UNKNOWN_KEY: ("unknown-key", False),
    Refusal.FULL: ("keys-full", True),
    Refusal.COMMANDS_FULL: ("commands-full", True),
    Refusal.CROWDED: ("key-crowded", True),
}
"""The codes of refusals, and whether they are for now."""

COMMANDS = 2.0
"""Commands may leave so much for the disk, in parts of what requests may: they end work."""

FOLLOWERS = 16
"""Those who are sent the deltas of one key."""

_ACTS = tuple(KeyAct)
_request_id = quick(RequestId)
_ASK, _QUEUED = KeyAct.ASK, RequestState.WAITING


class KeyedRequests:
    """The requests that wait for keys, and the sessions in which their work is done."""

    def __init__(
        self, dispatcher: Dispatcher, limits: KeyLimits, new_id: Callable[[], bytes],
        journal: Journal,
    ) -> None:  # fmt: skip
        self.keys = Keys(limits, journal)
        self.answers = KeyAnswers(dispatcher, self.keys.room, journal)
        self._journal = journal
        self._dispatcher = dispatcher
        self._cache = dispatcher.cache
        self._clock = dispatcher.clock
        self._new_id = new_id
        self._sessions: dict[bytes, Session] = {}
        """Of the work, by namespace.  Some may have made room for others, and have ended."""
        self._restored: deque[tuple[Generation, Ask]] = deque()
        """The restored generations that were not entered yet, the oldest first."""

    # -- after a crash ----------------------------------------------------------

    def restore(self, records: Iterable[Record]) -> None:
        """Take over what a journal has left, before anything else comes."""
        self._restored.extend(self.keys.restore(remains_of(records), self._clock.awake_s))

    @property
    def may_go_on(self) -> bool:
        """Whether something that a journal has left can be entered, or answered, now."""
        dispatcher = self._dispatcher
        if not self._restored or dispatcher.is_closing:
            return bool(self._restored)
        if dispatcher.is_starting or dispatcher.earlier_lives:
            return False
        return not self._restored[0][0].started or bool(dispatcher.workforce.environment)

    def go_on(self) -> None:
        """Enter what a journal has left, as much as one turn may.  What may have been
        started waits for a worker to say what its environment consents to."""
        for _ in range(ENDED_AT_ONCE):
            if not self.may_go_on:
                return
            generation, ask = self._restored.popleft()
            if generation.state is not GenerationState.HELD:
                continue  # it was closed meanwhile
            may_go_on = not self._dispatcher.is_closing and self.keys.may_go_on(generation, ask)
            if may_go_on or not generation.started:
                self._do(self.keys.enter_held(generation, counted=True))
            else:
                self.keys.enter_held(generation)
                lost = outcomes.lost_before(generation.executions)
                count_failure(self._cache, lost)
                self._cache.counters.lost += 1
                self._do(self.keys.outcome(generation.number, lost, self._clock.awake_s))

    def take_back(self, generation: Generation) -> tuple[Session, Entry]:
        """The work of what lives on, to be dispatched as it was."""
        return self._place_work(self.keys.take_back(generation))

    # -- what callers ask -------------------------------------------------------

    def enter(self, session: Session, entry: Entry) -> None:
        """A request that names a key was entered."""
        asked: Keyed = entry.key
        try:
            if self._journal.on and not self._may_be_saved(asked):
                last = self._dispatcher.is_flushing
                why = "the server ends" if last else "what came before is not on the disk yet"
                self._refuse_unsaved(entry, why)
            elif asked.act is _ASK:
                if asked.name in self.keys.open or self._may_open(asked, entry):
                    self._do(self.keys.ask(entry, self._clock.awake_s))
            elif asked.act is KeyAct.ATTACH:
                self._do(self.keys.attach(asked.name, entry.id, self._clock.awake_s))
            else:
                self._command(asked, entry)
        except ProtocolError as error:  # what cannot be a key
            self._refuse(entry, "refused", str(error), for_now=False)
        # It is the work's now, or is not needed.
        drop_body(self._cache, session, entry)

    def _may_open(self, asked: Keyed, entry: Entry) -> bool:
        """Whether the work of another key may begin.  Who asks for it is told if not."""
        own = self._sessions.get(asked.name[0])
        if own is None or own.ended:
            has_room = self._has_room_for_one_more()
        else:
            has_room = self._cache.may_enter(own, entry.body_bytes)
        if self._journal.failed:
            self._refuse_unsaved(entry, "")
        elif not has_room:
            text = "for now: there is no room for the work of another key"
            self._refuse(entry, "key-queue-full", text, for_now=True)
        elif asked.reissue is not None and not self._dispatcher.workforce.environment:
            text = "no worker has said yet whether what may have run may run again"
            self._refuse(entry, "keys-early", text, for_now=True)
        else:
            return True
        return False

    def _may_be_saved(self, asked: Keyed) -> bool:
        """Whether the disk is not too far behind for what this leaves in the journal, or lets
        wait for it.  Where it leaves nothing and need not wait, it always may be.  While the
        last answers leave the disk is waited for no more."""
        answers, is_last = self.answers, self._dispatcher.is_flushing
        if not is_last and answers.has_room():
            return True
        if asked.act not in (KeyAct.ASK, KeyAct.ATTACH):
            return not is_last and answers.has_room(COMMANDS)
        generation = self.keys.open.get(asked.name)
        if generation is None or generation.outcome is None:
            return asked.act is KeyAct.ATTACH
        return self._journal.is_safe(generation.outcome.shared.after)

    def _refuse_unsaved(self, entry: Entry, why: str) -> None:
        why = self._journal.failed or why
        text = f"for now: the journal cannot save it: {why}"
        self._refuse(entry, "journal", text, for_now=True)

    def _has_room_for_one_more(self) -> bool:
        """Whether the work of another namespace may wait for a worker."""
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
        if isinstance(asked.tag, bytes) and len(asked.tag) > TAG_BYTES:
            size = f"{len(asked.tag)} bytes, {TAG_BYTES} at most"
            raise ProtocolError(f"the id of a command has {size}")
        if asked.act is not KeyAct.WITHDRAW and asked.tag == b"" and asked.reissue is not None:
            text = "it has no id of its own, and may have been carried out before"
            self._refuse(entry, "unknown-key", text, for_now=False)
            return
        match asked.act:
            case KeyAct.CANCEL:
                effects, said = self.keys.cancel(asked.name, asked.tag, self._clock.awake_s)
            case KeyAct.FORGET:
                effects, said = self.keys.forget(asked.name, asked.tag, self._clock.awake_s)
            case _:
                effects, started = self.keys.withdraw(
                    asked.name, asked.caller, entry.id.session, self._clock.awake_s
                )
                said = CommandAnswer(started=started)
        self._do(effects)
        if said.refused:
            self._do((Refuse(entry.id, Refusal.COMMANDS_FULL),))
            return
        record: dict[str, Any] = {"generation": said.generation, "started": said.started}
        if said.finished:
            record["finished"] = True
        self.answers.give(Say(entry.id, outcomes.said(entry, record)))

    def leave(self, entry: Entry) -> bool:
        """A request waits for its key no more, or has its outcome.  Whether the work may
        have been started; False also says that it never will be."""
        effects, started = self.keys.leave(entry.id, self._clock.awake_s)
        self._do(effects)
        return started

    def leave_together(self, entries: list[Entry]) -> None:
        """The same of several, as many as one turn may."""
        self._let_go(entries)
        self._do(self.keys.leave_together([entry.id for entry in entries], self._clock.awake_s))

    def leave_all(self, session: Session, *, lost: bool) -> None:
        """A session ends, by its lease (lost) or by a goodbye: before the cache ends it."""
        entries = session.entries.values()
        self._let_go(entries)
        waiters = [entry.id for entry in entries if entry.key is not None]
        self._do(self.keys.leave_all(waiters, self._clock.awake_s, lost=lost))

    def _let_go(self, entries: Iterable[Entry]) -> None:
        """They have been answered, if they hold what a generation has brought."""
        for entry in entries:
            kept = entry.kept
            if kept is not None and kept.shared is not None:
                self.keys.room.let_go(kept.shared)

    # -- turns --------------------------------------------------------------------

    @property
    def answers_due(self) -> bool:
        """Whether somebody is to be told more than this turn may."""
        return self.answers.due

    def begin_turn(self) -> None:
        """Another input may answer as many again."""
        self.answers.begin_turn()
        self.go_on()

    def give_up(self) -> None:
        """The journal has failed for good: what has not been started never will be, here,
        and whether a later server starts it depends on what is on the disk.  It is told so,
        as much as one turn may; the next tick goes on."""
        outcome = outcomes.not_durable(self._journal.failed)
        unsent = (
            (session, number)
            for session in self._sessions.values() if not session.ended
            for number, work in session.entries.items() if not self._was_sent(work)
        )  # fmt: skip
        for session, number in list(islice(unsent, ENDED_AT_ONCE)):  # a step takes it out
            self._dispatcher.step(session, number, RequestInput.DEADLINE, outcome)
        self.answers.give_due()

    def _was_sent(self, work: Entry) -> bool:
        """Whether it may be under way at a worker."""
        return work.execution is not None and self._journal.is_safe(work.execution.after)

    # -- what becomes of the work -----------------------------------------------

    def reported(self, session: Session, number: int, brought: RetainedOutcome) -> None:
        """Its execution has ended, and has brought the outcome."""
        self._cache.step(session, number, RequestInput.OUTCOME, brought)
        self._do(self.keys.execution_ended(number, brought, self._clock.awake_s))

    def execution_ended(self, number: int) -> None:
        """Its execution has ended, and nobody wants what came of it, or nothing did."""
        self._do(self.keys.execution_ended(number))

    def outcome(self, work: Entry) -> None:
        """The router has answered it."""
        number, kept = work.id.sequence, work.kept
        assert kept is not None
        if not work.executions and self.keys.generations[number].earlier:
            kept = outcomes.lost_before(0)  # "did not run" is true of this epoch only
        self._do(self.keys.outcome(number, kept, self._clock.awake_s))

    def followers(self, number: int) -> list[tuple[Session, int]]:
        """The waiters that are sent its deltas: some of those that count, since others
        have them with the outcome, and one turn must not serve a thousand (G10)."""
        sessions = self._cache.sessions
        waiters = islice(self.keys.generations[number].waiters, FOLLOWERS)
        return [
            (sessions[session], sequence) for session, sequence in waiters
            if session in sessions and sequence in sessions[session].entries
        ]  # fmt: skip

    def tick(self) -> None:
        """Do what is due by time, as much as one turn may."""
        if self._journal.lost:
            self.give_up()
        self._do(self.keys.tick(self._clock.awake_s))

    @property
    def behind(self) -> bool:
        """Whether more is due than one turn could do."""
        return self.answers_due or self.keys.behind or self.may_go_on

    # -- effects ------------------------------------------------------------------

    def _do(self, effects: KeyEffects) -> None:
        for effect in effects:
            if type(effect) is Answer:  # as most are
                self.answers.give(effect)
            else:
                _CARRY_OUT[type(effect)](self, effect)

    def _enter_work(self, work: Enter) -> None:
        """Where one session may start all that is left, the next could start nothing: so
        this epoch starts as many as :func:`~.calls.grant` says, which callers count.  Of what a
        journal has left all executions are counted, and all that is left may be started.  No
        bound refuses it: those of keys have let it in."""
        session, entry = self._place_work(work)
        self._dispatcher.enqueue(entry)
        self._dispatcher.answer_fresh(session, entry.id.sequence)

    def _place_work(self, work: Enter) -> tuple[Session, Entry]:
        generation, body, allowance, traceparent, execution_s, counted = work
        session = self._sessions.get(generation.name[0])
        if session is None or session.ended:
            session = self._open_own(generation.name[0])
        entry = Entry(
            _request_id((session.id, generation.number)), generation.digest, generation.rerun,
            allowance if counted else grant(allowance), body, generation.body_bytes,
            _QUEUED, None, traceparent, None, generation.executions, execution_s=execution_s,
        )  # fmt: skip
        place(self._cache, session, entry)
        return session, entry

    def _finish_work(self, finish: Finish) -> None:
        number = finish.generation.number
        session = self._sessions.get(finish.generation.name.namespace)
        if session is not None and number in session.entries:
            self._dispatcher.step(session, number, RequestInput.FINISH)

    def _answer_cancelled(self, answer: AnswerCancelled) -> None:
        self.answers.give(answer)

    def _turn_away(self, refuse: Refuse) -> None:
        waiter, why = refuse
        entry = self._cache.sessions[waiter.session].entries[waiter.sequence]
        code, for_now = REFUSALS[why]
        self._refuse(entry, code, why.value, for_now=for_now)

    def _open_own(self, namespace: bytes) -> Session:
        name = one_line(f"keys of {namespace.decode('utf-8', 'replace')}", 128)
        opened = self._cache.open_own(
            self._new_id(), self._new_id(), name, namespace, self._clock.awake_s
        )
        self._sessions[namespace] = opened
        return opened

    def _refuse(self, entry: Entry, code: str, text: str, *, for_now: bool) -> None:
        session = self._cache.sessions[entry.id.session]
        self._dispatcher.step(session, entry.id.sequence, RequestInput.TURNED_AWAY)
        delay_s = self._cache.limits.retry_delay_s if for_now else None
        refused = messages.Refused(session.id, entry.id.sequence, code, text, delay_s)
        self._dispatcher.send(session.route, refused)


_CARRY_OUT: dict[type, Callable[..., None]] = {
    Enter: KeyedRequests._enter_work,
    Finish: KeyedRequests._finish_work,
    AnswerCancelled: KeyedRequests._answer_cancelled,
    Refuse: KeyedRequests._turn_away,
}


_keyed, _key_name = quick(Keyed), quick(KeyName)


def keyed(request: messages.KeyedRequest, owner: Owner | None) -> Keyed:
    """Read a request about its key.  A caller is one of its owner's: nobody acts for a caller
    of another one by giving that one's token (G7)."""
    caller, act, namespace, key, tag, earlier, gone = request[6:13]
    if owner is not None:
        named = owner.name.encode() + caller
        caller = hashlib.blake2b(named, digest_size=ID_BYTES).digest()
    reissue = None if earlier is None else Reissue(gone, earlier)
    return _keyed((_ACTS[act], _key_name((namespace, key)), caller, tag, reissue))
