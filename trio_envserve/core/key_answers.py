"""Answers to requests that wait for keys: in the same turn, or once they are safe.

Theory of operation
-------------------
What is decided about a key is told at once, but for two reasons.  It may wait for the
journal (:mod:`.journal`), until all that was recorded by then is safe; an outcome that was
safe before waits for nothing that was recorded since.  And many may wait for one key, and
many keys may end at once: so no turn tells more than :data:`~.keys.ENDED_AT_ONCE` of them,
and the rest is due in the next (G10).

What waits for the journal is decided: no deadline and no cancel changes it, and the answer
to a cancel comes after it.  Who asks again meanwhile is not answered twice (G8): clients go
on asking.

A disk may be stuck for minutes, and what waits for it is bounded as keys are (G8).  At the
bound what is asked of keys is refused for now; what was let in goes on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from . import messages, outcomes
from .journal import Journal
from .key_records import Answer, AnswerCancelled
from .key_room import KeyRoom
from .keys import ENDED_AT_ONCE
from .request_table import RequestInput
from .requests import Entry, RetainedOutcome
from .router_effects import ToClient
from .terms import Body, RequestId, Route

if TYPE_CHECKING:
    from .dispatcher import Dispatcher


RECORDS_OF_EACH = 4
"""The records of a generation in a journal: opened, started, completed, closed."""

PAGES = 64
"""So many pages of keys wait for the journal.  Who asked for others asks again."""


class Say(NamedTuple):
    """Answer a command by key, or a request whose deadline has passed."""

    waiter: RequestId
    said: RetainedOutcome


class Confirm(NamedTuple):
    """Answer the cancel of a request that waited for a key."""

    waiter: RequestId
    started: bool


class Page(NamedTuple):
    """Answer which keys there are."""

    waiter: Route
    message: messages.KnownKeys
    body: Body


_ANSWERED = RequestInput.ANSWERED

OfRequest: TypeAlias = Answer | AnswerCancelled | Say
Given: TypeAlias = OfRequest | Confirm | Page


class KeyAnswers:
    """The answers that were not given yet."""

    def __init__(self, dispatcher: Dispatcher, room: KeyRoom, journal: Journal) -> None:
        self._dispatcher = dispatcher
        self._cache = dispatcher.cache
        self._room = room
        self._journal = journal
        self._late: deque[OfRequest] = deque()
        """The safe answers for which there was no time yet."""
        self._unsafe: deque[tuple[int, Given]] = deque()
        """The answers that wait for the journal, and how much of it is to be safe before each."""
        self._decided: dict[RequestId | Route, Given] = {}
        """The last of these for each who waits."""
        self._pages = 0
        """How many of them are pages."""
        self._left = ENDED_AT_ONCE
        """How many this turn may still tell."""

    @property
    def due(self) -> bool:
        """Whether somebody is to be told what is safe by now, or never will be."""
        if self._late or not self._unsafe:
            return bool(self._late)
        return self._journal.lost or self._journal.is_safe(self._unsafe[0][0])

    @property
    def waiting(self) -> int:
        """How many wait for the journal, or for another turn."""
        return len(self._unsafe) + len(self._late)

    def is_decided(self, waiter: RequestId | Route) -> bool:
        """Whether what it is told, or what is said to its cancel, waits for the journal."""
        return waiter in self._decided

    def has_room(self, part: float = 1.0) -> bool:
        """Whether the disk may owe more: this part of what all generations that there may be
        would leave in it, and of the bytes that these may hold.  One that is lost owes
        nothing."""
        journal, limits = self._journal, self._room.limits
        most = part * RECORDS_OF_EACH * limits.generations
        few = journal.appended - journal.safe < most and len(self._unsafe) < most
        return (few and journal.waiting_bytes < part * limits.retained_bytes) or journal.lost

    def give(self, answer: OfRequest) -> None:
        """At once, if it is safe, this turn may, and nobody's turn is before."""
        journal = self._journal
        if journal.on and journal.appended > journal.safe and not _is_safe(answer, journal):
            self._hold(answer)
        elif self._left and not self._late:
            self._left -= 1
            self._give(answer)
        else:
            self._late.append(answer)

    def tell(self, given: Confirm | Page) -> None:
        """Tell a client what it asked of keys, once all that was recorded of them is safe."""
        journal = self._journal
        if journal.is_safe(journal.appended):
            self._tell(given)
        elif not isinstance(given, Page):
            self._hold(given)
        elif self._pages < PAGES:
            self._pages += 1
            self._hold(given)

    def begin_turn(self) -> None:
        """Another input may tell as many again."""
        self._left = ENDED_AT_ONCE
        self.give_due()

    def give_due(self) -> None:
        """Give the answers that are due, as many as this turn may."""
        while self._left and self.due:
            self._left -= 1
            if self._late:
                self._tell(self._late.popleft())
            else:
                after, given = self._unsafe.popleft()
                self._pages -= isinstance(given, Page)
                if self._decided[given.waiter] is given:
                    del self._decided[given.waiter]
                self._tell(given, self._journal.is_safe(after))

    def _hold(self, given: Given) -> None:
        self._unsafe.append((self._journal.appended, given))
        self._decided[given.waiter] = given

    def _tell(self, given: Given, is_safe: bool = True) -> None:
        """Give an answer; one that never will be safe says that the work may have run."""
        if isinstance(given, Page):
            self._dispatcher.out.append(ToClient(*given))
        elif isinstance(given, Confirm):
            self._confirm(given, is_safe)
        else:
            self._give(given, is_safe)

    def _confirm(self, confirm: Confirm, is_safe: bool) -> None:
        session = self._cache.sessions.get(confirm.waiter.session)
        if session is not None:
            started = confirm.started or not is_safe
            self._dispatcher.send(session.route, messages.Cancelled(*confirm.waiter, started))

    def _give(self, answer: OfRequest, is_safe: bool = True) -> None:
        session_id, sequence = answer[0]
        session = self._cache.sessions.get(session_id)
        if session is None or (entry := session.entries.get(sequence)) is None or entry.kept:
            return  # it is finished, or its deadline passed while nothing could be saved
        if type(answer) is Answer and is_safe:  # first: it is what most are told
            kept = outcomes.for_key(answer[1], entry, session.message_bytes)
            if kept.shared is not None:
                self._room.hold(kept.shared)
        else:
            kept = self._otherwise(answer, entry, is_safe)
        self._cache.step(session, sequence, _ANSWERED, kept)
        self._dispatcher.answer(session, entry)

    def _otherwise(self, answer: OfRequest, entry: Entry, is_safe: bool) -> RetainedOutcome:
        if isinstance(answer, AnswerCancelled) and is_safe:
            return outcomes.key_cancelled(entry, started=answer.started)
        if isinstance(answer, Say) and is_safe:
            return answer.said
        return outcomes.not_durable(self._journal.failed)(entry)


def _is_safe(answer: OfRequest, journal: Journal) -> bool:
    """Whether it is an outcome that was safe before what is not."""
    if not isinstance(answer, Answer) or answer.outcome.shared is None:
        return False
    return journal.is_safe(answer.outcome.shared.after)
