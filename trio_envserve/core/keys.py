"""Keys: requests of any caller that name one piece of work, which runs at most once.

Theory of operation
-------------------
The first request under a key opens a *generation* of it; those that come later, from
whatever process, join it or are answered with its retained outcome.  Who sent the input
is a *waiter* and counts: when the last one leaves, the work is cancelled.  A waiter whose
lease ended goes on counting until its caller is back, to ask again or to withdraw, or the
orphan deadline has passed, which runs only while nobody waits.  When the outcome is there
and nobody counts any more, its retention begins.  A cancel, a forget, the last one's
leaving or the end of the retention closes the generation, and the next request opens
another one.  A cancel that comes after the outcome has lost: it closes nothing.

What can happen to a generation is a table (:mod:`.key_table`); every input goes through
:meth:`Keys.step`.  At the bounds new keys wait: nothing that has run is dropped for them.
Times are ``now_s``, the time that the server was awake, and never go back.

How the router drives it
------------------------
All of it is in :mod:`.keyed`, which calls these methods and carries out what they say.

*The work of a generation* is one request of a session of the server's own, one for each
namespace, which has no window, and whose sequences are the numbers of generations.  So
dedup cache, scheduler and workforce treat it as any other, and G1, G2 and the consent to
a rerun stay with their table.  Each generation gets one ``Enter`` at most, and a ``Finish``
if it is closed without an outcome.

*A request of a caller* is an entry of the dedup cache under its own id, and WAITING there
until it is answered: its ``entry.key`` says what it asks, and no execution is its own.
Where nothing is to be done about it, it waits.  So retransmissions end there, and its
deadline, its cancel and what is too large for its client concern it alone.

================================================ =========================================
the router hears                                 and calls
================================================ =========================================
a request with a key and its input, or without   :meth:`Keys.ask`, :meth:`Keys.attach`
a caller, back, wants nothing that it asked for  :meth:`Keys.withdraw`
such a request is cancelled, its deadline came  :meth:`Keys.leave`
such requests are finished                       :meth:`Keys.leave_together`
a goodbye, the end of a lease                    :meth:`Keys.leave_all`: before the dedup cache
                                                 ends the session
a cancel, a forget by key                        :meth:`Keys.cancel`, :meth:`Keys.forget`
the work of a generation is dispatched           :meth:`Keys.dispatched`
its execution has ended, or is proven dead       :meth:`Keys.execution_ended`, wanted or not
it is answered by the router                     :meth:`Keys.outcome`
time, or a Resume while :attr:`Keys.behind`      :meth:`Keys.tick`
================================================ =========================================

A cancel of a request that the router has not seen says ``started: true`` if it is one
with a key: others may wait for that.  A command by key names the generation's number, or
an id of its own; or it has none (``b""``), and is known by the request that brings it, which
is never issued again: so nothing of it is to be remembered.  A server that closes gives
what waits or is held the outcome "stopping": what never ran is not retained, so it may be
asked for anew.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any

from .errors import ProtocolError
from .journal import Closed, Journal
from .key_commands import KeyCommands
from .key_records import (
    CallerToken,
    CommandAnswer,
    Enter,
    Generation,
    GenerationState,
    KeyEffect,
    KeyEffects,
    KeyName,
    Reissue,
    Tag,
)
from .key_room import KeyRoom
from .key_table import TABLE, KeyCommand, KeyInput, Withdrawn
from .limits import KeyLimits
from .requests import Ask, Entry, RetainedOutcome
from .restored import Remains, generation_of
from .terms import Incarnation, RequestId, SessionId

ENDED_AT_ONCE = 1024
"""Waiters that leave in one turn, and generations that it ends by time; none of these after
so many effects (G10)."""


# Each generation comes by here: to look one of them up in its class takes as long as a line (3.11).
_ABSENT, _CLOSED = GenerationState.ABSENT, GenerationState.CLOSED
_ASK, _DISPATCH, _EXECUTION_ENDED = (
    KeyInput.ASK, KeyInput.DISPATCH, KeyInput.EXECUTION_ENDED,
)  # fmt: skip


class Keys:
    """The keys of one epoch.  All its methods are synchronous."""

    def __init__(self, limits: KeyLimits, journal: Journal) -> None:
        self.limits = limits
        self.journal = journal
        self.declared_rerun = False
        """The environment's declaration; known before anything is dispatched."""
        self.next_number = 0
        """Of the generation that is opened next."""
        self.generations: dict[int, Generation] = {}
        """The open ones, and those closed whose execution lives; by number."""
        self.open: dict[KeyName, Generation] = {}
        self.ending: dict[KeyName, Generation] = {}
        """Closed ones whose execution lives: one of a key at most."""
        self.orphans: OrderedDict[int, Generation] = OrderedDict()
        """Those that count for lost waiters only, the longest ago first."""
        self.retained: OrderedDict[int, Generation] = OrderedDict()
        """Those for which nobody waits or counts, the longest ago first."""
        self.waiting: dict[RequestId, Generation] = {}
        """The generation that each waiter and watcher waits for."""
        self._leaving: deque[tuple[RequestId, KeyInput]] = deque()
        """Those that leave, or are lost, and for which there was no time yet."""
        self._late = False
        """More was due by time at the last tick than one turn may end."""
        self.started_as: dict[Incarnation, dict[int, Generation]] = {}
        """The generations that an earlier epoch has dispatched to each life of a worker, with their
        numbers, and of which the journal has no outcome."""
        self.room = KeyRoom(limits)
        self.usage = self.room.all
        self.commands = KeyCommands(self.room, journal)

    def step(
        self, generation: Generation | None, input: KeyInput, arg: Any, now_s: float
    ) -> KeyEffects:
        """One input to a generation, or to a key without an open one: look up the cell,
        do it, say what follows."""
        state = _ABSENT if generation is None else generation.state
        return TABLE[input][state](self, generation, arg, now_s)

    def restore(self, remains: Remains, now_s: float) -> list[tuple[Generation, Ask]]:
        """Take over what a journal has left, before anything else comes.  All that are open
        count for those who had asked, until these are back or the orphan deadline has
        passed.  Returns those without an outcome, oldest first, and what is to be run."""
        self.next_number = remains.next_number
        waiting = []
        for left in remains.generations.values():
            generation, ask = generation_of(left, now_s)
            self.generations[generation.number] = self.open[generation.name] = generation
            self.room.add(generation)
            if left.frames is None:
                waiting.append((generation, ask))
                incarnation, dispatch = left.last
                self.started_as.setdefault(incarnation, {})[dispatch] = generation
            else:
                self.retain(generation, RetainedOutcome.of_frames(left.frames))
                generation.state = GenerationState.COMPLETED
            generation.wait_in(self.orphans, now_s)
        self.commands.restore(remains, now_s)
        return waiting

    # -- requests -----------------------------------------------------------------------

    def ask(self, asked: Entry, now_s: float) -> KeyEffects:
        """A request with a key and its input.  Its digest is
        :func:`~.key_records.input_digest`; its allowance and its limit of an
        execution are those of the key, for all of its life, and the first one's hold."""
        name: KeyName = asked.key.name
        known = self.open.get(name)
        if known is None:
            self._check(name)
            return self.step(None, _ASK, asked, now_s)
        if asked.id in self.waiting:  # a waiter is counted once
            return ()
        same = (known.digest, known.body_bytes, known.rerun) == (
            asked.digest, asked.body_bytes, asked.rerun,
        )  # fmt: skip
        return self.step(known, _ASK if same else KeyInput.OTHER_INPUT, asked, now_s)

    def attach(self, name: KeyName, waiter: RequestId, now_s: float) -> KeyEffects:
        """A request that waits for a key without sending the input: it never counts."""
        self._check(name)
        if waiter in self.waiting:
            return ()
        return self.step(self.open.get(name), KeyInput.ATTACH, waiter, now_s)

    def leave(self, waiter: RequestId, now_s: float) -> tuple[KeyEffects, bool]:
        """A request is finished: its client has the outcome, or wants none.  And whether
        an execution may have been started: False only if this ended a generation that
        never was."""
        if waiter not in self.waiting:
            return (), True
        return self._end_by(self.waiting[waiter], KeyInput.LEAVE, waiter, now_s)

    def leave_together(self, waiters: Iterable[RequestId], now_s: float) -> KeyEffects:
        """The same of several, as many as one turn may (:attr:`behind`)."""
        self._leaving.extend(zip(waiters, repeat(KeyInput.LEAVE)))
        return self._leave_on(now_s)

    def leave_all(self, waiters: Iterable[RequestId], now_s: float, *, lost: bool) -> KeyEffects:
        """A client said goodbye: all of its requests leave.  Or its lease has ended (lost):
        its waiters go on counting."""
        # Watchers first: else they would hear of what the last waiter's leaving ends.
        waiting = filter(self.waiting.__contains__, waiters)
        ordered = sorted(waiting, key=lambda waiter: waiter in self.waiting[waiter].waiters)
        self._leaving.extend(zip(ordered, repeat(KeyInput.LOSE if lost else KeyInput.LEAVE)))
        return self._leave_on(now_s)

    def withdraw(
        self, name: KeyName, caller: CallerToken, session: SessionId, now_s: float
    ) -> tuple[KeyEffects, bool]:
        """A caller that is back, now in this session, wants nothing of what it asked for
        in others.  And as :meth:`leave` says."""
        self._check(name)
        arg = Withdrawn(name, caller, session)
        return self._end_by(self.open.get(name), KeyInput.WITHDRAW, arg, now_s)

    def may_go_on(self, generation: Generation, ask: Ask) -> bool:
        """Whether what may have been started before a crash may be started again."""
        consent = self.declared_rerun if generation.rerun is None else generation.rerun
        return consent and ask.allowance > generation.executions

    def take_back(self, generation: Generation) -> Enter:
        """Take back the last start of an earlier epoch, which lives on: it waits to be
        dispatched, and is counted then, in the place of before."""
        ask = generation.ask
        assert ask is not None
        self._drop_ask(generation)
        generation.state = GenerationState.WAITING
        generation.executions -= 1
        return Enter(generation, ask.body, ask.allowance, ask.traceparent, ask.execution_s, True)

    def enter_held(self, generation: Generation, *, counted: bool = False) -> KeyEffects:
        """Nothing of its key lives any more that it had to wait for."""
        ask = generation.ask
        assert ask is not None
        self._drop_ask(generation)
        generation.state = GenerationState.WAITING
        return (
            Enter(generation, ask.body, ask.allowance, ask.traceparent, ask.execution_s, counted),
        )

    # -- commands by key ----------------------------------------------------------------

    def cancel(self, name: KeyName, tag: Tag, now_s: float) -> tuple[KeyEffects, CommandAnswer]:
        """End a generation, whoever waits for it, unless it has its outcome.  With an id of its
        own, and a key that was never seen: the next request of it."""
        return self._command(KeyCommand(KeyInput.CANCEL, name, tag), now_s)

    def forget(self, name: KeyName, tag: Tag, now_s: float) -> tuple[KeyEffects, CommandAnswer]:
        """Drop a generation and its outcome; what runs is cancelled first."""
        return self._command(KeyCommand(KeyInput.FORGET, name, tag), now_s)

    def _command(self, command: KeyCommand, now_s: float) -> tuple[KeyEffects, CommandAnswer]:
        self._check(command.name)
        generation = self.open.get(command.name)
        if isinstance(command.tag, int):
            if generation is None or generation.number != command.tag:
                return (), CommandAnswer()
        elif not command.tag:
            if generation is None:  # a cancel of the next request would have to be remembered
                return (), CommandAnswer()
        elif command in self.commands.said:
            return (), self.commands.said[command][0]
        elif not self.commands.has_room(command.name.namespace):
            return (), CommandAnswer(refused=True)
        effects, started = self._end_by(generation, command.input, command, now_s)
        is_closed = generation is not None and generation.state is _CLOSED
        answer = CommandAnswer(
            generation.number if generation is not None and is_closed else None, started,
            finished=generation is not None and not is_closed,
        )  # fmt: skip
        if isinstance(command.tag, bytes) and command.tag:
            self.commands.remember(command, answer, now_s)
        return effects, answer

    def _end_by(
        self, generation: Generation | None, input: KeyInput, arg: Any, now_s: float
    ) -> tuple[KeyEffects, bool]:
        """A step that may end a generation.  And whether it may have been started."""
        effects = self.step(generation, input, arg, now_s)
        if generation is None or generation.state is not GenerationState.CLOSED:
            return effects, True
        return effects, generation.started

    # -- work ---------------------------------------------------------------------------

    def dispatched(self, number: int, where: tuple[Incarnation, int] | None = (b"", 0)) -> None:
        """An execution of this generation was dispatched, to this life of a worker, and with
        this number there; or (None) the one that the journal knows is known to live on."""
        self.step(self.generations[number], _DISPATCH, where, 0.0)

    def execution_ended(
        self, number: int, brought: RetainedOutcome | None = None, now_s: float = 0.0
    ) -> KeyEffects:
        """Its worker has reported it, with its outcome if that is wanted; or is proven dead."""
        return self.step(self.generations[number], _EXECUTION_ENDED, brought, now_s)

    def outcome(self, number: int, outcome: RetainedOutcome, now_s: float) -> KeyEffects:
        """The router gives a generation its outcome."""
        generation = self.generations[number]
        was_started = generation.executions or generation.earlier
        input = KeyInput.OUTCOME if was_started else KeyInput.NEVER_RAN
        return self.step(generation, input, outcome, now_s)

    # -- time ---------------------------------------------------------------------------

    def tick(self, now_s: float) -> KeyEffects:
        """End what is due by now, as much as one turn may (:attr:`behind`)."""
        effects = self._leave_on(now_s)
        self._late = False
        for ended, (generation, input) in enumerate(self._due(now_s)):
            if ended == ENDED_AT_ONCE or len(effects) >= ENDED_AT_ONCE:
                self._late = True
                break
            effects += self.step(generation, input, None, now_s)
        self.commands.pass_by(now_s)
        return effects

    @property
    def behind(self) -> bool:
        """Whether more was due than one turn could do.  What has become due since the last
        tick waits for the next: where much is retained, something always has."""
        return self._late or bool(self._leaving)

    def _due(self, now_s: float) -> Iterator[tuple[Generation, KeyInput]]:
        """The inputs that are due, and one more than a turn may take; the end of one of them
        changes nothing about the others."""
        limits = self.limits
        for timed, most_s, input in (
            (self.orphans, limits.orphan_s, KeyInput.ORPHANED),
            (self.retained, limits.retention_s, KeyInput.RETENTION_ENDED),
        ):
            for generation in list(islice(timed.values(), ENDED_AT_ONCE + 1)):
                if now_s - generation.since_s < most_s:
                    break
                yield generation, input

    # -- what is allowed ----------------------------------------------------------------

    def may_start(self, asked: Entry, reissue: Reissue) -> bool:
        """Whether a request that is issued again may open a generation: it needs proof,
        consent and allowance, since it may have run."""
        consent = self.declared_rerun if asked.rerun is None else asked.rerun
        return reissue.gone and consent and reissue.earlier < asked.allowance

    def _check(self, name: KeyName) -> None:
        """ProtocolError if this cannot be a key; nothing has changed."""
        limits = self.limits
        if 0 < len(name[1]) <= limits.key_bytes and 0 < len(name[0]) <= limits.namespace_bytes:
            return
        what, part, most = "key", name.key, limits.key_bytes
        if not 0 < len(name.namespace) <= limits.namespace_bytes:
            what, part, most = "namespace", name.namespace, limits.namespace_bytes
        raise ProtocolError(f"a {what} has 1 to {most} bytes, this one {len(part)}")

    # -- what cells change ----------------------------------------------------------------

    def close(self, generation: Generation) -> None:
        """It is open no more, and takes up room only while its execution lives."""
        if self.journal.on:
            self.journal.append(Closed, generation.number)
        self.room.drop(generation)
        generation.state = _CLOSED
        generation.outcome = None
        del self.open[generation.name]
        if generation.live:
            generation.drop_ask()
            self.ending[generation.name] = generation
            self.room.add(generation)
        else:
            del self.generations[generation.number]

    def release(self, generation: Generation) -> None:
        """It was closed, and now its execution has ended: nothing of it is left."""
        self.room.drop(generation)
        del self.ending[generation.name]
        del self.generations[generation.number]

    def retain(self, generation: Generation, outcome: RetainedOutcome) -> None:
        """It has its outcome, and needs its input no more."""
        if generation.ask is not None:
            self._drop_ask(generation)
        outcome.shared = self.room.bring(
            generation.name.namespace, outcome.size_bytes, self.journal.appended
        )
        generation.outcome = outcome

    def _drop_ask(self, generation: Generation) -> None:
        self.room.drop(generation)
        generation.drop_ask()
        self.room.add(generation)

    def _leave_on(self, now_s: float) -> list[KeyEffect]:
        effects: list[KeyEffect] = []
        leaving, waiting, step = self._leaving, self.waiting, self.step
        for _ in range(min(len(leaving), ENDED_AT_ONCE)):
            waiter, input = leaving.popleft()
            if waiter not in waiting:
                continue  # it has heard meanwhile that it is over
            follows = step(waiting[waiter], input, waiter, now_s)
            if follows:
                effects += follows
                if len(effects) >= ENDED_AT_ONCE:  # others may wait for what they leave
                    break
        return effects
