"""Keyed requests of a server that reads outcomes from its journal.

Theory of operation
-------------------
A generation rests (:mod:`.resting`) once nobody waits for it or counts, and its outcome is
safe.  Whoever names its key wakes it: then it is READING, which is decided like any other
state.  If somebody waits for the outcome, that is read: a :class:`~.router_effects.Load`,
and its :class:`~.router_inputs.Loaded` answers them.  If nobody does, it rests again.

What is read counts in memory from its ``Load`` on; those for which there is no room wait,
and so does who would wake more than there may be generations (G8).  An outcome that cannot
be read is told so to those who wait, and the next to ask tries again: it never runs again
for that (G2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from . import outcomes
from .errors import ProtocolError
from .journal import Journal
from .key_answers import Say
from .key_records import Generation, GenerationState, KeyAct, Keyed, Payload
from .key_table import KeyInput
from .keyed import KeyedRequests
from .keys import ENDED_AT_ONCE
from .limits import KeyLimits
from .requests import Entry, RetainedOutcome, Session
from .rested import RestedFields, generation_of, pack_generation
from .resting import Resting
from .router_effects import Load
from .terms import Body

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

READS_AT_ONCE = 64
ENDS = 0.5
"""The ends of retentions may leave so much for the disk, in parts of what requests may."""
_WAITS = (KeyAct.ASK, KeyAct.ATTACH)


class RestingRequests(KeyedRequests):
    """Those whose keys may rest."""

    def __init__(
        self, dispatcher: Dispatcher, limits: KeyLimits, new_id: Callable[[], bytes],
        journal: Journal,
    ) -> None:  # fmt: skip
        super().__init__(dispatcher, limits, new_id, journal)
        self.resting = Resting(limits)
        self._wanted: dict[int, None] = {}
        """Generations whose outcomes are to be read, and for which there was no room yet."""
        self._reading: set[int] = set()
        """Those of which somebody reads it."""

    # -- what callers ask -------------------------------------------------------

    def enter(self, session: Session, entry: Entry) -> None:
        """A request that names a key was entered."""
        asked: Keyed = entry.key
        generation = self.keys.open.get(asked.name)
        if generation is None and self.resting.all.keys:
            rests = self.resting.find(asked.name) is not None
            if not self._has_place(asked, rests=rests):
                text = "for now: there is no room for another key"
                self._refuse(entry, "keys-full", text, for_now=True)
                return
            if rests:
                fields = self.resting.take(asked.name)
                assert fields is not None
                generation = self._wake(fields)
        super().enter(session, entry)
        if generation is not None and generation.state is GenerationState.READING:
            self._read_or_rest(generation)

    def _has_place(self, asked: Keyed, *, rests: bool) -> bool:
        """Whether one more may wake, or be opened and leave something in the journal."""
        name, act = asked.name, asked.act
        if rests:
            return act not in _WAITS or self.keys.room.may_open(name.namespace, name.size_bytes)
        return act is not KeyAct.ASK or self.resting.may_open(name[0])

    # -- waking and resting -----------------------------------------------------

    def restore_at_rest(self, packed: Iterable[bytes]) -> None:
        """Restore the keys that a journal has with their outcomes.  Their callers count until
        the orphan deadline: so long the retention has not begun."""
        since_s = self._clock.awake_s + self.keys.limits.orphan_s
        self.resting.restore(packed, since_s)

    def _wake(self, fields: RestedFields) -> Generation:
        keys, generation = self.keys, generation_of(fields)
        keys.generations[generation.number] = keys.open[generation.name] = generation
        keys.room.add(generation)
        keys.retained[generation.number] = generation
        generation.timed = keys.retained
        return generation

    def _may_rest(self, generation: Generation) -> bool:
        assert generation.outcome is not None
        number = generation.number
        return (
            not generation.live and not generation.watchers
            and number not in self._reading and number not in self._wanted
            and self._journal.is_safe(generation.outcome.shared.after)
        )  # fmt: skip

    def _rest(self, generation: Generation) -> None:
        keys, rested = self.keys, pack_generation(generation)
        if rested is None:
            return
        generation.wait_no_more()
        del keys.open[generation.name], keys.generations[generation.number]
        keys.room.drop(generation)
        self.resting.add(rested)

    def _rest_some(self) -> None:
        for generation in list(islice(self.keys.retained.values(), ENDED_AT_ONCE)):
            if self._may_rest(generation):
                self._rest(generation)

    def _end_some(self) -> None:
        """End the retention of some that rest."""
        if not self.answers.has_room(ENDS):
            return
        now_s = self._clock.awake_s
        for fields in self.resting.due(now_s):
            self.resting.take(fields.name)
            generation = self._wake(fields)
            self._do(self.keys.step(generation, KeyInput.RETENTION_ENDED, None, now_s))

    # -- reading ----------------------------------------------------------------

    def _read_or_rest(self, generation: Generation) -> None:
        number = generation.number
        if generation.waiters or generation.watchers:
            if number not in self._reading:
                self._wanted[number] = None
                self._read_on()
        elif generation.timed is self.keys.retained and self._may_rest(generation):
            self._rest(generation)

    def _read_on(self) -> None:
        """Read what is wanted, as much as there is room for."""
        for number in list(islice(self._wanted, ENDED_AT_ONCE)):
            if len(self._reading) >= READS_AT_ONCE:
                return
            del self._wanted[number]
            generation = self.keys.generations.get(number)
            if generation is None or generation.state is not GenerationState.READING:
                continue  # it was closed meanwhile
            if not generation.waiters and not generation.watchers:
                self._read_or_rest(generation)
            elif self.keys.room.may_retain(generation.name.namespace):
                self._read(generation)
            else:
                self._wanted[number] = None  # others come first

    def _read(self, generation: Generation) -> None:
        outcome = generation.outcome
        assert outcome is not None
        outcome.shared = self.keys.room.bring(generation.name.namespace, outcome.size_bytes)
        self._reading.add(generation.number)
        self._dispatcher.out.append(Load(generation.number))

    def loaded(self, number: int, frames: Sequence[Body], why: str) -> None:
        """The outcome of a generation was read, or cannot be."""
        self._reading.discard(number)
        generation = self.keys.generations.get(number)
        if generation is not None and generation.state is GenerationState.READING:
            now_s = self._clock.awake_s
            read = None
            try:
                read = RetainedOutcome.of_frames(frames) if frames else None
            except ProtocolError as error:
                why = str(error)
            if read is not None:
                self._do(self.keys.step(generation, KeyInput.READ, read, now_s))
            else:
                self._say_unreadable(generation, why)
                self._do(self.keys.step(generation, KeyInput.UNREADABLE, None, now_s))
        self._read_on()

    def _say_unreadable(self, generation: Generation, why: str) -> None:
        outcome = generation.outcome
        assert outcome is not None
        self.keys.room.let_go(outcome.shared)
        outcome.shared = Payload(generation.name.namespace, 0, 1)
        text = f"the outcome of generation {generation.number} cannot be read: {why}"
        self._dispatcher.warn(text)
        for waiter in (*generation.waiters, *generation.watchers):
            entry = self._cache.sessions[waiter.session].entries[waiter.sequence]
            said = outcomes.unreadable(why, generation.executions)(entry)
            self.answers.give(Say(waiter, said))

    # -- turns --------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due by time, as much as one turn may."""
        super().tick()
        self._end_some()
        self._rest_some()
        self._read_on()

    @property
    def behind(self) -> bool:
        """Whether more is due than one turn could do."""
        retained = self.keys.retained
        return (
            super().behind
            or (self.resting.has_due(self._clock.awake_s) and self.answers.has_room(ENDS))
            or (len(retained) > ENDED_AT_ONCE and self._may_rest(next(iter(retained.values()))))
        )  # fmt: skip
