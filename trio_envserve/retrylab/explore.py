"""The engine ``explore``: every order in which a small system can go, and every fault.

Theory of operation
-------------------
States are found breadth first, each looked at once, by its digest; so the first violation
has a shortest path to it (:class:`Path`), which can be run again and drawn.

A state is what actors keep in their attributes and on their disks, their timers, what is on
its way, which callers wait, and what the judges keep.  In it may happen, in any order: an
ask, the arrival of the next message or notice of a link, the timer that is due first, a
choice of an actor (:meth:`.Actor.choices`).  Faults, and choices that have a bound, may
happen as often as :class:`.Bounds` say: a message is lost, doubled, delayed past others, or
slower than a timer; a connection is cut; an actor is killed, between two handlers or before
any act of one, or loses power with any of its unsynced writes; an actor is stopped and
continued.  A partition is the loss of its messages.  Clocks are all right, or each as fast or
as slow as the system allows, from the beginning.

*Speed.*  A state is made of local states, one of each actor and judge, which many other
states have, too.  So each local state is kept once (:class:`Local`), and what a handler does
in it is found out once, by running it, and remembered (:class:`HandlerResult`): unless it looks at
its clock, for it may do something else later.

*Sameness.*  Two states are the same if their forms are (:func:`.values.form`): attributes are
left out as :attr:`.System.forms` say, counted numbers are compared by their order, and actors
that are alike (:attr:`.System.alike`) are exchanged: of all exchanges of their names the
least text stands for the state.

*Time.*  Nothing takes time but timers, and asks that wait for their moment.  Two states
that differ in nothing but the time are one, unless an actor has looked at its clock.

*Rest.*  Each state is run on without any fault until nothing is left to do, or nothing new
happens any more; then actors say what they have (``on_rest``) and judges what is missing.

A digest has 16 bytes; that two states share one is less likely than a fault of the machine.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import re
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from random import Random
from textwrap import wrap
from typing import Any, Final, NamedTuple, TypeAlias

from .draw import COLUMNS
from .judges import Event, Kind, Violation
from .life import CRASH, BaseLife, judged, made_judges
from .plan import asks_data, asks_of
from .run import Run, told_of
from .system import (
    GONE,
    SETTLED,
    Actor,
    Ask,
    Bounds,
    BrokenSystem,
    Choice,
    Clock,
    Envelope,
    Fault,
    Stored,
    System,
)
from .values import Counted, Twins, counted, form, lowered, plain, ruled, short, tuples
from .world import ARRIVED, LOST, STRAY, Events

MOST_CALM = 5_000
"""Moves without a fault after which a system is taken for one that never rests."""

MOST_WRITES = 3
"""Most unsynced writes of which any may survive; of more, only the last ones or none."""

MOST_REMEMBERED = 500_000
"""Outcomes of judges that are remembered at a time."""

TOLD_STATES = 10
"""States between two statements of the progress.  A job whose search states nothing for too long
counts as stuck, and some states take 0.1 s each."""

WHERE = "a search of every order"

Move: TypeAlias = tuple[Any, ...]
"""Name of a move, and its arguments: actors, links, numbers."""

Link: TypeAlias = tuple[str, str]
"""Names of the sender and of the receiver."""


@dataclasses.dataclass(slots=True, eq=False)
class Local:
    """State of one actor, with its disk, or of one judge; each is kept once."""

    number: int
    kind: Any
    twins: Twins
    form: Any
    stored: Stored
    draws: int
    """Number of random sources that it was given."""
    choices: tuple[Choice, ...]
    counted: tuple[int, ...]
    """Numbers of the counted numbers in its form."""

    def make(self) -> Any:
        """The actor or the judge, to do with what the caller likes."""
        other = self.kind.__new__(self.kind)
        vars(other).update(self.twins.make())
        return other


@dataclasses.dataclass(slots=True, eq=False)
class Letter:
    """Message, or notice, from one actor to another; each is kept once."""

    number: int
    envelope: Envelope
    form: Any
    counted: tuple[int, ...]


CUT: Final = Letter(-1, Envelope("", "", None), "cut", ())
"""Item of a link that is no message: the connection is gone."""


class HandlerResult(NamedTuple):
    """Result of a handler in a local state."""

    local: Local | None
    """Local state after it; None if the actor died, or could not be made."""
    effects: tuple[tuple[Any, ...], ...]
    """Effects in order: the name of a method of :class:`_Step`, and its arguments."""
    acts: int
    """Number of its acts."""
    stored: Stored
    """Disk after it."""
    draws: int
    looked: bool
    """Whether it looked at the clock."""


class ActorState(NamedTuple):
    """Actor in a state, with its timers."""

    local: Local
    timers: tuple[tuple[float, str], ...] = ()
    """Time at which each is due, in true seconds since the run began, and its name."""
    held: int = 0
    """0 unless it is stopped; then one more than the number of timers fired meanwhile."""


class SystemState(NamedTuple):
    """State of the whole system at a moment."""

    now_s: float
    since_s: float
    """Time of the last event, in seconds since the run began."""
    looked: bool
    """Whether an actor has looked at its clock, so that the time matters."""
    clocks: int
    """Index of the right or wrong clocks in :attr:`Space.clocks`."""
    parts: dict[str, ActorState]
    links: dict[Link, tuple[Letter, ...]]
    """Items on their way, by link: messages or :data:`CUT`, first in, first out."""
    notices: dict[Link, tuple[Letter, ...]]
    """Notices on their way, likewise."""
    joined: frozenset[Link]
    """Pairs of actors with a connection, each in alphabetical order."""
    strays: tuple[Letter, ...]
    """Messages that come past others, or once more."""
    asks: tuple[Ask, ...]
    """Asks that are still to come."""
    waiting: tuple[tuple[str, str], ...]
    """Names of the requests whose callers wait, and of their actors."""
    known: frozenset[str]
    """Names of the requests that were asked."""
    faults: int
    """Number of faults so far."""
    spent: tuple[int, ...]
    """Number of those of each kind that has a bound of its own, as in :attr:`.Bounds.each`."""
    judges: tuple[Local, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """Moves from the first state to a violation: the schedule of a failure of this engine."""

    moves: tuple[Move, ...]
    bounds: Bounds
    asks: tuple[Ask, ...]
    """Asks that are made on the path."""
    rests: bool = False
    """Whether the violation comes only after the last move, on the way to rest."""

    def kinds(self) -> list[Fault]:
        """Kinds of fault on the path."""
        found = set(map(self.kind, self.moves))
        return [fault for fault in Fault if fault in found]

    @staticmethod
    def kind(move: Move) -> Fault | None:
        """Kind of fault that a move is; None if it is none.

        Args:
            move: The move.
        """
        return None if move[0] == "clocks" and not move[1] else _KINDS.get(move[0])

    def to_data(self) -> dict[str, Any]:
        """Path as plain data, for a file."""
        bounds = dataclasses.asdict(self.bounds)
        path = {"path": self.moves, "rests": self.rests, "bounds": bounds}
        return {"asks": asks_data(self.asks), **path}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], asks: tuple[Ask, ...]) -> Path:
        """Path in the data of a file; what was asked for is given.

        Args:
            data: The data.
            asks: Asks that are made on the path.
        """
        return cls(tuples(data["path"]), Bounds(**data["bounds"]), asks, data["rests"])

    def schedule(self) -> list[str]:
        """Moves in words, in order."""
        told = [move for move in self.moves if move[0] != "clocks" or move[1]]
        lines = [
            line
            for number, move in enumerate(told, 1)
            for line in wrap(
                f"{number:3}. {in_words(move)}", COLUMNS, subsequent_indent="     ",
                drop_whitespace=False,
            )
        ]  # fmt: skip
        return lines + ["     and then on without a fault, until all is at rest"] * self.rests


def _of_clocks(clocks: dict[str, Clock]) -> str:
    """Wrong clocks in words; nothing if all are right."""
    return ", ".join(
        f"{name} {clock.rate:g}" + f" and {clock.ahead_s:g} s ahead" * bool(clock.ahead_s)
        for name, clock in clocks.items()
        if clock != Clock()
    )


_KINDS = {
    "lose": Fault.LOSE, "double": Fault.DUPLICATE, "delay": Fault.REORDER, "cut": Fault.CUT,
    "kill": Fault.KILL, "power": Fault.POWER, "stop": Fault.STOP, "clocks": Fault.DRIFT,
}  # fmt: skip


def in_words(move: Move) -> str:
    """Move in words, for people."""
    name, *more = move
    match name:
        case "ask" | "ask later":
            return f"{more[0]} asks{' at its time' if name == 'ask later' else ''}"
        case "arrive":
            return f"{more[1]} gets the next message of {more[0]}"
        case "notice":
            return f"{more[1]} gets the next notice of {more[0]}"
        case "choose" | "chance":
            return f"{more[0]}: {' '.join(map(_shown, more[1:]))}"
        case "stray":
            return f"a delayed message arrives (number {more[0]} of them)"
        case "timer":
            return f"{more[0]}: timer {more[1]}"
        case "lose" | "double" | "delay":
            verb = {"lose": "is lost", "double": "is duplicated", "delay": "is delayed"}[name]
            return f"the next message from {more[0]} to {more[1]} {verb}"
        case "cut":
            return f"the connection of {more[0]} and {more[1]} is cut"
        case "kill" | "power":
            verb = "is killed" if name == "kill" else "loses power"
            when = f" before act {more[2]}: {in_words(more[3])}" if more[2] else ""
            return f"{more[0]} {verb}{when}"
        case "clocks":
            return (
                f"clocks count so many seconds in one: {more[1]}"
                if more[0]
                else "all clocks are right"
            )
        case "stop":
            return f"{more[0]} is stopped"
        case "continue":
            return f"{more[0]} goes on"
        case _:
            return " ".join(map(str, move))


def _shown(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else short(value)


# -- one move -------------------------------------------------------------------------------


class _Life(BaseLife):
    """A life that goes on for one handler, and notes its effects."""

    def __init__(
        self, space: Space, name: str, stored: Stored, draws: int, now_s: float, clock: Clock
    ) -> None:
        super().__init__(space.system, stored.copy())
        self.name = name
        self.space = space
        self.draws = draws
        self.effects: list[tuple[Any, ...]] = []
        self.looked = False
        self._alive = True
        self._now_s = now_s
        self._clock = clock

    @property
    def alive(self) -> bool:
        return self._alive

    def now_s(self) -> float:
        self.looked = True
        return self._clock.shows_s(self._now_s)

    def luck(self) -> Random:
        self.draws += 1
        return Random(f"{self.name}/{self.draws}")

    def note(self, what: str) -> None:
        self.effects.append(("note", self.name, what))

    def transmit(self, to: str, message: Any) -> None:
        self.effects.append(("transmit", self.space.letter(self.name, to, message)))

    def pass_on(self, to: str, what: Any) -> None:
        self.effects.append(("pass_on", self.space.letter(self.name, to, what)))

    def set_timer(self, timer: str, delay_s: float) -> None:
        self.effects.append(("set_timer", self.name, timer, self._clock.takes_s(delay_s)))

    def stop_timer(self, timer: str) -> None:
        self.effects.append(("set_timer", self.name, timer, None))

    def happened(self, kind: Kind, request: str, what: Any) -> None:
        words = self.in_words(kind, request, what)
        self.effects.append(("said", self.space.event(kind, self.name, request, what), words))

    def die(self, how: str) -> None:
        self._alive = False
        self.effects.append(("dies", self.name, how))

    def crashed(self, what: str, why: str = "") -> None:
        self.effects.append(("crashed", f"{what}\n{why}".rstrip()))

    def outcome(self) -> HandlerResult:
        """Result of the handler that ran."""
        local = None
        if self._alive and self.actor is not None:
            choices = tuple(self.actor.choices())
            self.actor._life = None
            if not self.space.loses_power:
                self.stored.sync()  # so that states are the same whatever was written since
            local = self.space.local(self.name, self.actor, self.stored, self.draws, choices)
        effects = tuple(self.effects)
        return HandlerResult(local, effects, self.acts, self.stored, self.draws, self.looked)


class Walk(Events[Envelope]):
    """Trace and events of a path that is walked again."""

    def __init__(self) -> None:
        super().__init__(Envelope.to_bytes, trace=True)
        self.history: list[Event] = []


class _Step:
    """Move under way: a state that may be changed, with the events and violations so far."""

    def __init__(self, space: Space, state: SystemState, walk: Walk | None) -> None:
        self.space = space
        self.before = state
        self.now_s, self.since_s, self.looked = state.now_s, state.since_s, state.looked
        self.clocks = state.clocks
        self.parts = dict(state.parts)
        self.links = dict(state.links)
        self.notices = state.notices
        self.joined = state.joined
        self.strays = state.strays
        self.asks = state.asks
        self.waiting = state.waiting
        self.known = state.known
        self.faults = state.faults
        self.spent = state.spent
        self.judges = state.judges
        self.violations: list[Violation] = []
        self.acts = 0
        """Number of acts of the handler that ran."""
        self.dies_before = 0
        """Number of the act of its handler before which an actor dies; 0: none."""
        self.power = False
        """Whether the actor that dies in this move loses power."""
        self._walk = walk
        self._events: list[Event] = []
        self._sent: list[Move] = []
        """The arrivals of all that this move has sent, and that arrives at once, in order."""

    # -- effects of handlers ------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        if self._walk is not None:
            self._walk.now_s = self.now_s
            self._walk.note(who, what)

    def note_message(self, envelope: Envelope, way: tuple[str, str]) -> None:
        if self._walk is not None:
            self._walk.now_s = self.now_s
            name = "-".join(sorted((envelope.sender, envelope.to)))
            self._walk.note_message(name, way[envelope.sender < envelope.to], envelope)

    def transmit(self, letter: Letter) -> None:
        link = letter.envelope[:2]
        pair = _pair(*link)
        if pair not in self.joined:
            self.joined |= {pair}
        self.links[link] = (*self.links.get(link, ()), letter)
        if self.space.bounds.instant:
            self._sent.append(("arrive", *link))

    def pass_on(self, letter: Letter) -> None:
        link = letter.envelope[:2]
        self.notices = {**self.notices, link: (*self.notices.get(link, ()), letter)}
        if self.space.bounds.instant or self.space.bounds.prompt:
            self._sent.append(("notice", *link))

    def set_timer(self, name: str, timer: str, takes_s: float | None) -> None:
        part = self.parts[name]
        others = [each for each in part.timers if each[1] != timer]
        if takes_s is not None:
            others.append((self.now_s + takes_s, timer))
        self.parts[name] = part._replace(timers=tuple(sorted(others)))

    def said(self, event: Event, words: str) -> None:
        request = event.request
        if request and request not in self.known:
            self.crashed(f"{event.actor} says that it {words}, and nobody has asked for that")
            return
        self.note(event.actor, words)
        self.happened(event)

    def dies(self, name: str, how: str) -> None:
        self.note(name, f"dies: {how.replace('killed', 'power lost') if self.power else how}")

    def crashed(self, text: str) -> None:
        self.violations.append(Violation(CRASH, self.now_s, text))

    def happened(self, event: Event) -> None:
        """Let the judges see an event."""
        self.since_s = self.now_s
        if event.kind == "told" and self.waiting:
            self.waiting = tuple(each for each in self.waiting if each[0] != event.request)
        elif event.kind == "died":
            self.waiting = tuple(each for each in self.waiting if each[1] != event.actor)
        self._events.append(event)
        if self._walk is not None:
            self._walk.history.append(event._replace(at_s=self.now_s))

    # -- moves ---------------------------------------------------------------------------

    def take(self, move: Move) -> None:
        """Make a move."""
        name, *more = move
        getattr(self, f"_{name.replace(' ', '_')}")(*more)
        if self.space.bounds.instant or self._sent:
            self.settle()

    def settle(self) -> None:
        """Let all arrive that arrives at once."""
        for name, *link in self._sent:  # which grows meanwhile
            getattr(self, f"_{name}")(*link)
        self._sent = []
        for actor, part in self.parts.items():
            if part.local.kind.on_settled is not Actor.on_settled:
                self._run(actor, "on_settled")
        self.happened(self.space.event("did", "", "", SETTLED))

    def _run(self, name: str, handler: str, *args: Any, given: Any = None) -> HandlerResult:
        """Call a handler of an actor.  ``given``: key of the arguments; None: themselves."""
        outcome = self.space.outcome(
            self.parts[name].local, name, handler, args, args if given is None else given,
            self.dies_before, self.now_s, self.clocks,
        )  # fmt: skip
        self.apply(name, outcome)
        self.acts = outcome.acts
        return outcome

    def apply(self, name: str, outcome: HandlerResult) -> None:
        """Carry out the effects of a handler."""
        if outcome.local is not None:
            self.parts[name] = ActorState(outcome.local, self.parts[name].timers)
        self.looked |= outcome.looked
        for effect in outcome.effects:
            getattr(self, effect[0])(*effect[1:])

    def start(self, name: str, stored: Stored, draws: int) -> None:
        """Make an actor, and start it."""
        outcome = self.space.started(name, stored, draws, self.now_s, self.clocks)
        if outcome.local is not None:
            self.parts[name] = ActorState(outcome.local)
        self.apply(name, outcome)

    def _ask(self, name: str) -> HandlerResult:
        ask = next(ask for ask in self.asks if ask.actor == name)
        self.asks = tuple(each for each in self.asks if each is not ask)
        self.known |= {ask.request}
        self.note(name, f"asks {ask.request}: {short(ask.what)}")
        self.waiting = (*self.waiting, (ask.request, name))
        self.happened(self.space.event("asked", name, ask.request, ask.what))
        return self._run(name, "on_ask", ask.request, ask.what)

    def _ask_later(self, name: str) -> HandlerResult:
        self.now_s = next(ask for ask in self.asks if ask.actor == name).at_s
        return self._ask(name)

    def _next(self, sender: str, to: str) -> Letter:
        """Take the first item from a link."""
        first, *others = self.links.pop((sender, to))
        if others:
            self.links[sender, to] = tuple(others)
        return first

    def _arrive(self, sender: str, to: str) -> HandlerResult:
        first = self._next(sender, to)
        if first is CUT:
            return self._run(to, "on_cut", sender)
        return self._hand(first, ARRIVED)

    def _stray(self, number: int) -> HandlerResult:
        letter = self.strays[number]
        self.strays = self.strays[:number] + self.strays[number + 1 :]
        return self._hand(letter, STRAY)

    def _hand(self, letter: Letter, way: tuple[str, str]) -> HandlerResult:
        sender, to, message, _ = envelope = letter.envelope
        self.note_message(envelope, way)
        return self._run(to, "on_message", sender, message, given=letter.number)

    def _notice(self, sender: str, to: str) -> HandlerResult:
        first, *others = self.notices[sender, to]
        self.notices = {link: items for link, items in self.notices.items() if link != (sender, to)}
        if others:
            self.notices[sender, to] = tuple(others)
        what = first.envelope.message
        self.note(to, f"notices of {sender}: {short(what)}")
        return self._run(to, "on_notice", sender, what, given=first.number)

    def _timer(self, name: str, timer: str) -> HandlerResult:
        part = self.parts[name]
        due_s = next(due_s for due_s, each in part.timers if each == timer)
        if due_s > self.now_s:
            self.faults += self.space.busy(self.before)  # what is on its way is slow
            self.now_s = due_s
        for other, its in self.parts.items():
            if its.held:
                self.parts[other] = its._replace(held=its.held + 1)
        left = tuple(each for each in part.timers if each[1] != timer)
        self.parts[name] = part._replace(timers=left)
        self.note(name, f"timer {timer}")
        return self._run(name, "on_timer", timer)

    def _choose(self, name: str, what: str, *args: Any) -> HandlerResult:
        self.note(name, in_words(("choose", name, what, *args)).partition(": ")[2])
        return self._run(name, "on_choice", what, *args)

    def _chance(self, name: str, what: str, *args: Any) -> HandlerResult:
        choices = self.parts[name].local.choices
        self._spend(next(each.bound for each in choices if each[:2] == (what, args) and each.bound))
        return self._choose(name, what, *args)

    # -- faults --------------------------------------------------------------------------

    def _spend(self, kind: str) -> None:
        self.faults += 1
        index = self.space.bounded.get(kind)
        if index is not None:
            spent = [*self.spent]
            spent[index] += 1
            self.spent = tuple(spent)

    def _lose(self, sender: str, to: str) -> None:
        self._spend("LOSE")
        self.note_message(self._next(sender, to).envelope, LOST)

    def _double(self, sender: str, to: str) -> None:
        self._spend("DUPLICATE")
        self._add_stray(self.links[sender, to][0])

    def _delay(self, sender: str, to: str) -> None:
        self._spend("REORDER")
        self._add_stray(self._next(sender, to))

    def _add_stray(self, letter: Letter) -> None:
        strays = [*self.strays, letter]
        self.strays = tuple(sorted(strays, key=lambda each: each.envelope.to_bytes()))

    def _cut(self, one: str, other: str) -> None:
        self._spend("CUT")
        self.note("fault", f"{Fault.CUT.value}: {one}-{other}")
        self.joined -= {(one, other)}
        for link in ((one, other), (other, one)):
            self.links.pop(link, None)
            self._hears(*link)

    def _hears(self, peer: str, name: str) -> None:
        """Put :data:`CUT` on the link from the peer to an actor that has an ``on_cut``."""
        if self.parts[name].local.kind.on_cut is not Actor.on_cut:
            self.links[peer, name] = (*self.links.get((peer, name), ()), CUT)

    def _stop(self, name: str) -> None:
        self._spend("STOP")
        self.note(name, "is stopped")
        self.parts[name] = self.parts[name]._replace(held=1)

    def _continue(self, name: str) -> None:
        self.note(name, "goes on")
        self.parts[name] = self.parts[name]._replace(held=0)

    def _kill(self, name: str, survive: tuple[int, ...] | None, act: int, during: Move) -> None:
        self._spend("KILL" if survive is None else "POWER")
        self.power = survive is not None
        before = self.parts[name].local
        stored = before.stored
        if act:
            kind, *more = during
            self.dies_before = act
            stored = getattr(self, f"_{kind.replace(' ', '_')}")(*more).stored
            self.dies_before = 0
        else:
            self.note(name, "dies: killed" if survive is None else "dies: power lost")
        if survive is not None:
            stored = stored.copy()
            stored.lose(lambda number: number in survive)
        self.happened(self.space.event("died", name, "", None))
        for peer in self.space.system.actors:
            if _pair(name, peer) in self.joined:
                self.joined -= {_pair(name, peer)}
                self.links.pop((peer, name), None)
                self._hears(name, peer)
        self.notices = {link: items for link, items in self.notices.items() if link[1] != name}
        self.parts[name] = ActorState(before)
        self.start(name, stored, before.draws)

    _power = _kill

    # -- its end --------------------------------------------------------------------------

    def state(self) -> SystemState:
        """State after the move; the judges have seen its events."""
        if self._events:
            events, self._events = tuple(self._events), []
            self.judges, found = self.space.judged(self.judges, events, self.now_s)
            self.violations += found
        return SystemState(
            self.now_s, self.since_s, self.looked, self.clocks, self.parts, self.links,
            self.notices, self.joined, self.strays, self.asks, self.waiting, self.known,
            self.faults, self.spent, self.judges,
        )  # fmt: skip


def _pair(one: str, other: str) -> Link:
    return (one, other) if one < other else (other, one)


# -- local states, and which are the same -----------------------------------------------------


class NameExchange:
    """One exchange of the names of actors that are alike."""

    def __init__(self, names: Mapping[str, str], actors: Sequence[str]) -> None:
        self.names = names
        self.order = sorted(actors, key=lambda name: names.get(name, name))
        """Actors in the order of their new names."""
        changed = [name for name, new in names.items() if name != new]
        text = rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, changed))})(?![A-Za-z0-9])"
        self._text = re.compile(text) if changed else None
        self._bytes = re.compile(text.encode()) if changed else None
        self._known: dict[Any, Any] = {}
        self.pieces: dict[Any, int] = {}
        """Number of the text of each local state and letter, by its number and the ranks of its
        counted numbers."""

    def __call__(self, text: Any) -> Any:
        """Text or bytes with the names exchanged."""
        if self._text is None or self._bytes is None:
            return text
        known = self._known.get(text)
        if known is None:
            if isinstance(text, str):
                known = self._text.sub(lambda found: self.names[found[1]], text)
            else:
                known = self._bytes.sub(lambda found: self.names[found[1].decode()].encode(), text)
            self._known[text] = known
        return known


def _exchanges(system: System) -> list[NameExchange]:
    """All exchanges of the names of actors that are alike; the first one changes nothing."""
    groups = [tuple(group) for group in system.alike]
    ways = itertools.product(*map(itertools.permutations, groups))
    return [
        NameExchange(
            {old: new for group, way in zip(groups, chosen, strict=True)
             for old, new in zip(group, way, strict=True)},
            [*system.actors],
        )
        for chosen in ways
    ]  # fmt: skip


class Space:
    """States of a system within bounds, and the moves that each allows."""

    def __init__(self, system: System, bounds: Bounds) -> None:
        for name, make in system.actors.items():
            if hasattr(make, "engine"):
                raise BrokenSystem(f"{name} is a program: only actors are searched in every order")
        self.system = system
        self.bounds = bounds
        self.asks = asks_of(system, bounds.seed)[: bounds.asks]
        self.clocks = list(self._all_clocks())
        self.bounded = {kind: index for index, kind in enumerate(bounds.each)}
        """Index in :attr:`SystemState.spent` of each kind of fault or choice with its own bound."""
        self._most = tuple(bounds.each.values())
        self._moves = set(system.faults)
        if self._moves & {Fault.HALF_OPEN, Fault.PARTITION}:
            self._moves.add(Fault.LOSE)
        self.loses_power = Fault.POWER in self._moves
        self._rested: set[bytes] = set()
        self._exchanges = _exchanges(system)
        self._locals: dict[str, Local] = {}
        self._count = itertools.count()
        self._letters: dict[str, Letter] = {}
        self._events: dict[str, Event] = {}
        self._outcomes: dict[Any, HandlerResult | None] = {}
        self._judged: dict[Any, tuple[Local, list[Violation]]] = {}
        self._numbers: dict[Counted, int] = {}
        self._ranks: dict[frozenset[int], dict[int, int]] = {}
        self._counted: list[Counted] = []
        self._texts: dict[str, int] = {}

    def _all_clocks(self) -> Iterator[dict[str, Clock]]:
        """Right clocks, then each combination of the extreme rates, set ahead or not."""
        yield {}
        if Fault.DRIFT not in self.system.faults:
            return
        drift, ahead_s = self.system.drift, self.system.ahead_s
        kinds = [
            Clock(rate, ahead)
            for rate in dict.fromkeys((1.0 - drift, 1.0 + drift))
            for ahead in dict.fromkeys((0.0, ahead_s))
        ]
        names = list(self.system.actors)
        for chosen in itertools.product(kinds, repeat=len(names)):
            yield dict(zip(names, chosen, strict=True))

    # -- each once --------------------------------------------------------------------------

    def local(
        self, name: str, actor: Any, stored: Stored, draws: int, choices: tuple[Choice, ...] = ()
    ) -> Local:
        """Local state of an actor or a judge; BrokenSystem if it cannot be copied or compared."""
        kept = {each: vars(actor)[each] for each in sorted(vars(actor)) if each != "_life"}
        rules: Any = self.system.forms.get(type(actor), {})
        writes = [(each, None if value is GONE else (value,)) for each, value in stored.unsynced]
        its = self._form([[*ruled(actor, kept, rules)], stored.found, writes, draws], name)
        text = f"{name} {its!r}"
        known = self._locals.get(text)
        if known is None:
            try:
                twins = Twins(kept, name)
            except TypeError as error:
                raise BrokenSystem(str(error)) from error
            known = self._locals[text] = Local(
                next(self._count), type(actor), twins, its, stored.copy(), draws, choices,
                self._counted_in(its),
            )  # fmt: skip
        return known

    def _form(self, value: Any, whose: str) -> Any:
        try:
            return form(value, self.system.forms)
        except (TypeError, RecursionError) as error:
            raise BrokenSystem(
                f"{whose} keeps what two states cannot be compared by ({error}); "
                "keep plain values, lists, sets and dicts"
            ) from None

    def _counted_in(self, its: Any) -> tuple[int, ...]:
        found = []
        for each in dict.fromkeys(counted(its)):
            number = self._numbers.setdefault(each, len(self._numbers))
            if number == len(self._counted):
                self._counted.append(each)
            found.append(number)
        return tuple(found)

    def letter(self, sender: str, to: str, message: Any) -> Letter:
        """Message from one actor to another."""
        text = f"{sender} {to} {plain(message)}"
        known = self._letters.get(text)
        if known is None:
            its = self._form(message, sender)
            known = self._letters[text] = Letter(
                len(self._letters), Envelope(sender, to, message), its, self._counted_in(its)
            )
        return known

    def event(self, kind: Kind, name: str, request: str, what: Any) -> Event:
        """Event at no certain time."""
        text = f"{kind} {name} {request} {plain(what)}"
        return self._events.setdefault(text, Event(0.0, kind, name, request, what))

    # -- what comes of it ---------------------------------------------------------------------

    def outcome(
        self, local: Local, name: str, handler: str, args: tuple[Any, ...], given: Any,
        dies_before: int, now_s: float, clocks: int,
    ) -> HandlerResult:  # fmt: skip
        """Result of a handler in a local state."""
        key = local.number, handler, given, dies_before, clocks
        known = self._outcomes.get(key)
        if known is None:
            life = self._life_in(local, name, now_s, clocks)
            life.dies_before = dies_before
            life.call(handler, *args)
            known = life.outcome()
            if not known.looked:
                self._outcomes[key] = known
        return known

    def started(
        self, name: str, stored: Stored, draws: int, now_s: float, clocks: int
    ) -> HandlerResult:
        """Result of the start of an actor."""
        key = name, draws, clocks, repr(self._form([stored.found, stored.unsynced], name))
        known = self._outcomes.get(key)
        if known is None:
            life = self._life(name, stored, draws, now_s, clocks)
            life.start()
            known = life.outcome()
            if not known.looked:
                self._outcomes[key] = known
        return known

    def _life(self, name: str, stored: Stored, draws: int, now_s: float, clocks: int) -> _Life:
        clock = self.clocks[clocks].get(name, Clock())
        return _Life(self, name, stored, draws, now_s, clock)

    def _life_in(self, local: Local, name: str, now_s: float, clocks: int) -> _Life:
        """Life of an actor in a local state."""
        life = self._life(name, local.stored, local.draws, now_s, clocks)
        life.actor = local.make()
        life.actor._life = life
        return life

    def judged(
        self, judges: tuple[Local, ...], events: tuple[Event, ...], now_s: float
    ) -> tuple[tuple[Local, ...], list[Violation]]:
        """Judges after the events of a move, and the violations that they see in them."""
        after, found = [], []
        for judge in judges:
            key = judge.number, tuple(map(id, events)), now_s  # each is kept, and so is its id
            known = self._judged.get(key)
            if known is None:
                made, violations = judge.make(), []
                for event in events:
                    violations += judged((made,), event._replace(at_s=now_s), WHERE)
                known = self.local(type(made).__name__, made, Stored(), 0), violations
                if len(self._judged) >= MOST_REMEMBERED:
                    self._judged.clear()
                self._judged[key] = known
            after.append(known[0])
            found += known[1]
        return tuple(after), found

    def size(self) -> int:
        """Number of local states."""
        return len(self._locals)

    # -- states -------------------------------------------------------------------------------

    def first(self) -> tuple[SystemState, list[Violation]]:
        """State before any actor has started, and no violation."""
        made = made_judges(self.system)
        judges = tuple(self.local(type(each).__name__, each, Stored(), 0) for each in made)
        nobody = self.local("", Actor(), Stored(), 0)
        state = SystemState(
            0.0, 0.0, False, 0, dict.fromkeys(self.system.actors, ActorState(nobody)), {}, {},
            frozenset(), (), self.asks, (), frozenset(), 0, (0,) * len(self.bounded), judges,
        )  # fmt: skip
        return state, []

    def begun(
        self, state: SystemState, clocks: int, walk: Walk | None = None
    ) -> tuple[SystemState, list[Violation]]:
        """State after all actors have started with these clocks, and the violations."""
        step = _Step(self, state, walk)
        step.clocks = clocks
        for name in self.system.actors:
            step.start(name, Stored(), 0)
        if self.bounds.instant or self.bounds.prompt:
            step.settle()
        state = step.state()
        while self.bounds.settled:
            moves = [each for each in self.certain(state, calm=True) if each[0] != "ask"]
            if not moves or step.violations:
                break
            state, step = self.move(state, moves[0], walk)
        return state, step.violations

    def key(self, state: SystemState) -> bytes:
        """Digest of a state, less the numbers of faults."""
        things = [part.local for part in state.parts.values()]
        things += state.judges
        for items in (*state.links.values(), *state.notices.values(), state.strays):
            things += items  # type: ignore[arg-type]  # letters have these attributes, too
        ranks = self._ranks_of(frozenset().union(*[each.counted for each in things]))
        text = min([self._text(state, each, ranks) for each in self._exchanges])
        now_s = state.now_s
        quiet_s = round(min(now_s - state.since_s, self.system.quiet_s), 9)
        whole = f"{text} {now_s if state.looked else None} {quiet_s}"
        return blake2b(whole.encode(), digest_size=16).digest()

    def _ranks_of(self, numbers: frozenset[int]) -> dict[int, int]:
        """Rank of each counted number among those of its kind and owner."""
        known = self._ranks.get(numbers)
        if known is None:
            known, owners = {}, Counter[Any]()
            for number in sorted(numbers, key=lambda each: self._counted[each].number):
                owner = self._counted[number][:2]
                known[number] = owners[owner]
                owners[owner] += 1
            self._ranks[numbers] = known
        return known

    def _piece(
        self, kind: int, thing: Local | Letter, exchange: NameExchange, ranks: dict[int, int]
    ) -> int:
        """Number of the text of a local state or a letter under an exchange of names."""
        its = tuple([ranks[each] for each in thing.counted])
        key = kind, thing.number, its
        known = exchange.pieces.get(key)
        if known is None:
            numbers = {self._counted[each]: ranks[each] for each in thing.counted}
            text = repr(lowered(thing.form, exchange, numbers))
            known = exchange.pieces[key] = self._texts.setdefault(text, len(self._texts))
        return known

    def _text(self, state: SystemState, exchange: NameExchange, ranks: dict[int, int]) -> str:
        """State as text, without times and faults."""
        now_s, clocks, piece = state.now_s, self.clocks[state.clocks], self._piece
        parts = []
        for name in exchange.order:
            part = state.parts[name]
            timers = [(round(due_s - now_s, 9), exchange(each)) for due_s, each in part.timers]
            number = piece(0, part.local, exchange, ranks)
            parts.append((number, part.held, timers, clocks.get(name)))
        links = [
            [
                (exchange(one), exchange(to), [piece(1, each, exchange, ranks) for each in items])
                for (one, to), items in of.items()
            ]
            for of in (state.links, state.notices)
        ]
        judges = [piece(0, judge, exchange, ranks) for judge in state.judges]
        strays = [
            (exchange(each.envelope.sender), exchange(each.envelope.to),
             piece(1, each, exchange, ranks)) for each in state.strays
        ]  # fmt: skip
        joined = sorted([sorted(map(exchange, pair)) for pair in state.joined])
        asks = [(exchange(ask.request), ask.at_s) for ask in state.asks]
        waiting = sorted([exchange(request) for request, _ in state.waiting])
        whole = parts, *map(sorted, links), judges, sorted(strays), joined, sorted(asks), waiting
        return repr(whole)

    def move(
        self, state: SystemState, move: Move, walk: Walk | None = None
    ) -> tuple[SystemState, _Step]:
        """State after a move, and the move."""
        step = _Step(self, state, walk)
        step.take(move)
        return step.state(), step

    # -- what can happen -----------------------------------------------------------------------

    def certain(self, state: SystemState, *, calm: bool = False) -> list[Move]:
        """Moves other than :meth:`trouble`: asks, arrivals, choices that come by themselves, and
        the timers that are due first, unless something else has to come before them."""
        moves: list[Move] = []
        free = {name for name, part in state.parts.items() if not part.held}
        longest = max(part.held for part in state.parts.values())
        asking = [a for a in dict.fromkeys(ask.actor for ask in state.asks) if a in free]
        moves += [("ask", name) for name in asking]
        moves += [("arrive", *link) for link in sorted(state.links) if link[1] in free]
        moves += [("notice", *link) for link in sorted(state.notices) if link[1] in free]
        moves += [
            ("stray", number)
            for number, stray in enumerate(state.strays)
            if stray.envelope.to in free and stray not in state.strays[:number]
        ]
        moves += self._choices(state, "")
        if not calm or (not moves and state.waiting):
            moves += self._choices(state, "patient")
        if (calm and moves) or longest > self.bounds.pause:
            return moves
        timers: list[tuple[float, Move]] = [
            (due_s, ("timer", name, timer))
            for name in state.parts
            if name in free
            for due_s, timer in state.parts[name].timers
        ]
        if self.busy(state) and state.faults >= self.bounds.faults:
            return moves + [move for due_s, move in timers if due_s <= state.now_s]
        return moves + self._due(state, timers, asking, calm=calm)

    def _choices(self, state: SystemState, when: str) -> list[Move]:
        return [
            ("choose", name, each.name, *each.args)
            for name, part in state.parts.items()
            if not part.held
            for each in part.local.choices
            if each.when == when and not each.bound
        ]

    def busy(self, state: SystemState) -> bool:
        """Whether something is on its way to an actor that is not stopped."""
        to = {link[1] for link in (*state.links, *state.notices)}
        to |= {stray.envelope.to for stray in state.strays}
        return any(not state.parts[name].held for name in to)

    def _due(
        self, state: SystemState, timers: list[tuple[float, Move]], asking: list[str], *, calm: bool
    ) -> list[Move]:
        """Timers, and asks at their time, that are due first."""
        if not calm and state.looked:
            first: dict[str, Ask] = {}
            for ask in state.asks:
                first.setdefault(ask.actor, ask)
            timers += [
                (first[name].at_s, ("ask later", name))
                for name in asking
                if first[name].at_s > state.now_s
            ]
        if not timers or (not calm and self.at_rest(state)):
            return []
        next_s = max(state.now_s, min(due_s for due_s, _ in timers))
        return [move for due_s, move in timers if due_s <= next_s]

    def repairs(self, state: SystemState, certain: Sequence[Move]) -> list[Move]:
        """Choices that come once nothing else does, in a state that is not at rest."""
        if certain and (state.waiting or set(certain) - set(self._choices(state, "patient"))):
            return []
        moves = self._choices(state, "idle")
        return moves if moves and self._at_the_end(state, None) else []

    def trouble(self, state: SystemState) -> Iterator[Move]:
        """Faults, and choices with a bound, that may strike now."""
        if state.faults >= self.bounds.faults:
            return
        may, system = self._moves, self.system
        may = {fault for fault in may if self._is_left(state, fault.name)}
        for link in sorted(state.links):
            if state.links[link][0] is CUT:
                continue
            for fault, name in ((Fault.LOSE, "lose"), (Fault.DUPLICATE, "double")):
                if fault in may:
                    yield (name, *link)
            if Fault.REORDER in may:
                yield ("delay", *link)
        if Fault.CUT in may:
            for pair in sorted(state.joined):
                yield ("cut", *pair)
        for name, part in state.parts.items():
            if Fault.STOP in may and not part.held:
                yield ("stop", name)
            if name not in system.never_killed:
                yield from self.deaths(state, name, part.local.stored, 0, ())
            if not part.held:
                for each in part.local.choices:
                    if each.bound and self._is_left(state, each.bound):
                        yield ("chance", name, each.name, *each.args)

    def _is_left(self, state: SystemState, kind: str) -> bool:
        """Whether a kind of fault or choice may still come."""
        index = self.bounded.get(kind)
        return index is None or state.spent[index] < self._most[index]

    def deaths(
        self, state: SystemState, name: str, stored: Stored, act: int, during: Move
    ) -> Iterator[Move]:
        """The ways in which an actor may die now, or before this act of a move."""
        if Fault.KILL in self._moves and self._is_left(state, "KILL"):
            yield ("kill", name, None, act, during)
        if Fault.POWER in self._moves and self._is_left(state, "POWER"):
            for survive in _survivors(len(stored.unsynced)):
                yield ("power", name, survive, act, during)

    def continued(self, state: SystemState) -> list[Move]:
        """Moves that continue a stopped actor."""
        return [("continue", name) for name, part in state.parts.items() if part.held]

    def mid_way(self, state: SystemState, move: Move, step: _Step) -> Iterator[Move]:
        """The deaths in the middle of a move that has run a handler."""
        name = _whose(state, move)
        if name is None or name in self.system.never_killed or step.faults >= self.bounds.faults:
            return
        for act in range(1, step.acts + 1):
            # The writes before that act are only known by running it.
            most = len(state.parts[name].local.stored.unsynced) + act - 1
            unsynced = Stored()
            unsynced.unsynced = [("", None)] * (most if Fault.POWER in self._moves else 0)
            yield from self.deaths(state, name, unsynced, act, move)

    # -- rest -----------------------------------------------------------------------------------

    def at_rest(self, state: SystemState) -> bool:
        """Whether nothing is left to do."""
        if state.asks or state.waiting or state.links or state.notices or state.strays:
            return False
        if self._choices(state, ""):
            return False
        quiet = state.now_s - state.since_s >= self.system.quiet_s
        return quiet or not any(part.timers for part in state.parts.values())

    def run_to_rest(
        self, state: SystemState, key: bytes, walk: Walk | None = None
    ) -> list[Violation]:
        """Violations on the way to rest without a fault, or at rest.

        Args:
            state: The state.
            key: Its key.
            walk: Where to note what happens.
        """
        passed: list[bytes] = []
        seen: set[bytes] = set()
        until_s = state.now_s + self.system.patience_s
        for name in state.parts:
            if state.parts[name].held:
                state, _ = self.move(state, ("continue", name), walk)
                key = self.key(state)
        for count in range(MOST_CALM):
            if key in self._rested:
                break
            moves = self.certain(state, calm=True)
            over = key in seen or state.now_s > until_s
            if over or not moves or self.at_rest(state):
                violations = self._at_the_end(state, walk)
                moves = self._choices(state, "idle") + self._choices(state, "rest")
                if not violations:
                    break
                if over or not moves:
                    return violations
            else:
                moves = [moves[count % len(moves)]]
            seen.add(key)
            passed.append(key)
            for move in moves:
                state, step = self.move(state, move, walk)
                if step.violations:
                    return step.violations
            key = self.key(state)
        else:
            raise BrokenSystem(f"it never rests: {MOST_CALM:,} moves without a fault, and more")
        self._rested.update(passed)
        return []

    def _at_the_end(self, state: SystemState, walk: Walk | None) -> list[Violation]:
        step = _Step(self, state, walk)
        for name, part in state.parts.items():
            if part.local.kind.on_rest is not Actor.on_rest:
                life = self._life_in(part.local, name, state.now_s, state.clocks)
                life.rest()
                for effect in life.effects:
                    getattr(step, effect[0])(*effect[1:])
        judges = step.state().judges
        if step.violations:
            return step.violations
        return judged([each.make() for each in judges], float(state.now_s), WHERE)


def _survivors(writes: int) -> Iterator[tuple[int, ...]]:
    """Sets of unsynced writes that may survive a loss of power, counted from the end."""
    numbers = range(-writes, 0)
    if writes <= MOST_WRITES:
        for count in range(writes + 1):
            yield from itertools.combinations(numbers, count)
    else:
        yield ()
        for last in range(1, MOST_WRITES):
            yield tuple(numbers[-last:])


def _whose(state: SystemState, move: Move) -> str | None:
    """The actor whose handler a move runs."""
    match move:
        case ("ask" | "ask later" | "timer" | "choose" | "chance", name, *_):
            return str(name)
        case ("arrive" | "notice", _, name):
            return str(name)
        case ("stray", number):
            return state.strays[number].envelope.to
    return None


# -- the search -------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Explored:
    """Progress of a search of every order, and the end of it that is violated."""

    bounds: Bounds
    """Bounds of the search."""
    asks: tuple[Ask, ...] = ()
    """Asks of the search."""
    states: int = 0
    """Number of states found."""
    transitions: int = 0
    """Number of moves from one state to another."""
    depth: int = 0
    """Number of moves from the first state to those found last."""
    exhausted: bool = False
    """Whether all states within the bounds were looked at."""
    seconds: float = 0.0
    """Duration of the search in seconds."""
    violations: tuple[Violation, ...] = ()
    """Violations that were found at the same time; none: nothing was violated."""
    path: Path | None = None
    """Shortest path to them; None if there is none."""
    looked: int = 0
    """Number of states looked at: of the others it is only known that there are such."""
    locals: int = 0
    """Number of local states, of all actors and judges together."""

    @property
    def violation(self) -> Violation | None:
        """First violation that was found; None if there is none."""
        return self.violations[0] if self.violations else None

    def text(self) -> str:
        """Figures in one line."""
        how = "all" if self.exhausted else "not all"
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.depth} deep, "
            f"{how} within {self.bounds.faults} faults and the asks {self.asked()}"
        )

    def to_data(self) -> dict[str, Any]:
        """Figures for JSON."""
        names = ("states", "transitions", "depth", "exhausted")
        data = {name: getattr(self, name) for name in names}
        more = {"bounds": dataclasses.asdict(self.bounds), "asked": self.asked()}
        return {**data, **more, "seconds": round(self.seconds, 3)}

    def asked(self) -> str:
        """Asks of the search in words."""
        return ", ".join(f"{ask.request} {short(ask.what)}" for ask in self.asks) or "none"


_Found: TypeAlias = tuple[SystemState, int, bytes]
"""A state that is to be looked at, its number, and its key."""


class Exploration:
    """A search of every order; iterate over :meth:`run`, which ends at a violation."""

    def __init__(self, system: System, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or system.bounds
        self.space = Space(system, self.bounds)
        self.explored = Explored(self.bounds, self.space.asks)
        self._seen: set[bytes] = set()
        self._parents, self._moves = array("q"), array("q")
        """Predecessor of each state, and number of the move between."""
        self._numbers: dict[Move, int] = {}

    def run(self) -> Iterator[Explored]:
        """Look at states; yields the progress every :data:`TOLD_STATES` and at the end."""
        began_s = time.monotonic()
        explored = self.explored
        collects = gc.isenabled()
        gc.disable()  # nothing here is garbage in cycles, and there is much to look through
        try:
            for _ in self._search():
                explored.looked += 1
                if explored.looked % TOLD_STATES == 0:
                    yield self._since(began_s)
        finally:
            if collects:
                gc.enable()
        yield self._since(began_s)

    def _since(self, began_s: float) -> Explored:
        """Progress of a search that began at this time."""
        self.explored.seconds = time.monotonic() - began_s
        self.explored.locals = self.space.size()
        return self.explored

    def _search(self) -> Iterator[None]:
        space, explored = self.space, self.explored
        blank, _ = space.first()
        layer: list[_Found] = []
        for number in range(len(space.clocks)):
            state, violations = space.begun(blank, number)
            move = "clocks", number, _of_clocks(space.clocks[number])
            index = self._enter(state, -1, move, layer)
            if violations:
                self._report(violations, index)
                return
        while layer:
            found: list[_Found] = []
            for each in layer:
                if not self._look(each, found):
                    return
                yield
                if explored.states >= self.bounds.most_states:
                    return
            layer = found
            explored.depth += bool(layer)
        explored.exhausted = True

    def _look(self, each: _Found, found: list[_Found]) -> bool:
        """Look at one state; False if something is violated there or after it."""
        space, (state, index, key) = self.space, each
        violations = space.run_to_rest(state, key)
        if violations:
            self._report(violations, index, rests=True)
            return False
        moves: list[Move] = [*space.certain(state), *space.continued(state)]
        moves += space.repairs(state, moves)
        moves += space.trouble(state)
        for move in moves:
            after, step = space.move(state, move)
            if not self._took(after, step, index, move, found):
                return False
            if step.acts:
                for death in space.mid_way(state, move, step):
                    after, dying = space.move(state, death)
                    if not self._took(after, dying, index, death, found):
                        return False
        return True

    def _took(
        self, after: SystemState, step: _Step, index: int, move: Move, found: list[_Found]
    ) -> bool:
        self.explored.transitions += 1
        if step.violations:
            self._report(step.violations, index, move)
            return False
        self._enter(after, index, move, found)
        return True

    def _enter(
        self, state: SystemState, parent: int, move: Move, found: list[_Found]
    ) -> int | None:
        """Add a new state to those found; its number, or None for one that was seen before."""
        key = self.space.key(state)
        seen = key + repr((state.faults, state.spent)).encode()
        if seen in self._seen:
            return None
        self._seen.add(seen)
        self._parents.append(parent)
        self._moves.append(self._numbers.setdefault(move, len(self._numbers)))
        self.explored.states = len(self._parents)
        found.append((state, len(self._parents) - 1, key))
        return len(self._parents) - 1

    def _report(
        self, violations: list[Violation], index: int | None, *last: Move, rests: bool = False
    ) -> None:
        path, moves = list(reversed(last)), [*self._numbers]
        while index is not None and index >= 0:
            path.append(moves[self._moves[index]])
            index = self._parents[index]
        inner = [move[4] if move[0] in ("kill", "power") and move[3] else move for move in path]
        asking = Counter(move[1] for move in inner if move[0] in ("ask", "ask later"))
        asks = []
        for ask in self.space.asks:
            if asking[ask.actor] > 0:
                asking[ask.actor] -= 1
                asks.append(ask)
        self.explored.violations = tuple(violations)
        self.explored.path = Path(tuple(reversed(path)), self.bounds, tuple(asks), rests)


def explore(system: System, bounds: Bounds | None = None) -> Explored:
    """Look at every state within the bounds, or until the first violation.

    BrokenSystem if an actor keeps what cannot be copied or compared, or never rests.

    Args:
        system: The system.
        bounds: Bounds of the search; None: those of the system.
    """
    search = Exploration(system, bounds)
    for _ in search.run():
        pass
    return search.explored


def walk(system: System, path: Path) -> Run:
    """Walk a path, and then without a fault to rest.  ValueError if the system has no such
    path (any more)."""
    space, walked = Space(system, path.bounds), Walk()
    state, violations = space.first()
    for number, move in enumerate(path.moves, 1):
        try:
            if move[0] == "clocks":
                state, violations = space.begun(state, move[1], walked)
            else:
                state, step = space.move(state, move, walked)
                violations = step.violations
        except (KeyError, IndexError, StopIteration):
            raise ValueError(f"move {number} cannot be made: {in_words(move)}") from None
        if violations:
            break
    else:
        violations = space.run_to_rest(state, space.key(state), walked)
    return Run(
        seed=path.bounds.seed,
        plan=path,
        violations=tuple(violations),
        events=len(walked.trace or ()),
        virtual_s=walked.now_s,
        faults=Counter(kind.value for kind in map(path.kind, path.moves) if kind is not None),
        told=told_of(walked.history),
        digest=walked.digest(),
        trace=tuple(walked.trace or ()),
        history=tuple(walked.history),
    )
