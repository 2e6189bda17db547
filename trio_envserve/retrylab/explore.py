"""The engine ``explore``: every order in which a small system can go, and every fault.

Theory of operation
-------------------
States are found breadth first, each looked at once, by its digest; so the first violation
has a shortest path to it (:class:`Path`), which can be run again and drawn.

A state is what actors keep in their attributes and on their disks, their timers, what is on
its way, which callers wait, and what the judges keep.  In it may happen, in any order: an
ask, the arrival of the next message of a link, the timer that is due first.  Faults may
happen as often as :class:`.Bounds` say: a message is lost, doubled, delayed past others, or
slower than a timer; a connection is cut; an actor is killed, between two handlers or before
any act of one, or loses power with any of its unsynced writes; an actor is stopped and
continued.  A partition is the loss of its messages.  Clocks are all right, or each as fast or
as slow as the system allows, from the beginning.

*Time.*  Nothing takes time but timers, and asks that wait for their moment.  Two states
that differ in nothing but the time are one, unless an actor has looked at its clock.

*Rest.*  Each state is run on without any fault until nothing is left to do; then actors say
what they have (``on_rest``) and judges what is missing.

A digest has 16 bytes; that two states share one is less likely than a fault of the machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from random import Random
from textwrap import wrap
from typing import Any, NamedTuple, TypeAlias

from .draw import COLUMNS
from .judges import Event, Judge, Kind, Violation
from .life import CRASH, BaseLife, judged, made_judges
from .plan import asks_of
from .system import GONE, Actor, Ask, Bounds, BrokenSystem, Clock, Envelope, Fault, Stored, System
from .values import copied, plain, short, state_text
from .world import ARRIVED, LOST, STRAY, Record

MOST_CALM = 5_000
"""Moves without a fault after which a system is taken for one that never rests."""

MOST_WRITES = 3
"""Most unsynced writes of which any may survive; of more, only the last ones or none."""

CUT = b"cut"
"""Item of a link that is no message: the connection is gone."""

Move: TypeAlias = tuple[Any, ...]
"""Name of a move, and its arguments: actors, links, numbers."""

Link: TypeAlias = tuple[str, str]
"""Names of the sender and of the receiver."""


class Part(NamedTuple):
    """Actor in a state, with its disk and its timers.  Never changed: a move makes another."""

    actor: Actor
    stored: Stored
    timers: tuple[tuple[float, str], ...]
    """Time at which each is due, in true seconds since the run began, and its name."""
    held: int
    """0 unless it is stopped; then one more than the number of timers fired meanwhile."""
    draws: int
    """Number of random sources that it was given."""
    text: str
    """Attributes, disk and draws as text, for the digest."""


class State(NamedTuple):
    """State of the whole system at a moment."""

    now_s: float
    since_s: float
    """Time of the last event, in seconds since the run began."""
    looked: bool
    """Whether an actor has looked at its clock, so that the time matters."""
    clocks: int
    """Index of the right or wrong clocks in :attr:`Space.clocks`."""
    parts: dict[str, Part]
    links: dict[Link, tuple[Any, ...]]
    """Items on their way, by link: messages or :data:`CUT`, first in, first out."""
    joined: frozenset[Link]
    """Pairs of actors with a connection, each in alphabetical order."""
    strays: tuple[Envelope, ...]
    """Messages that come past others, or once more."""
    asks: tuple[Ask, ...]
    """Asks that are still to come."""
    waiting: tuple[tuple[str, str], ...]
    """Names of the requests whose callers wait, and of their actors."""
    known: frozenset[str]
    """Names of the requests that were asked."""
    faults: int
    """Number of faults so far."""
    judges: tuple[Judge, ...]
    said: str
    """State of the judges as text, for the digest."""


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
        names = {move[0] for move in self.moves if move[0] != "clocks" or move[1]}
        found = {_KINDS[name] for name in names if name in _KINDS}
        return [fault for fault in Fault if fault in found]

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


# -- one move -------------------------------------------------------------------------------


class _Life(BaseLife):
    """A life that goes on for one move."""

    def __init__(self, step: _Step, name: str, part: Part) -> None:
        super().__init__(step.space.system, part.stored.copy())
        self.name = name
        self.step = step
        self.timers = {timer: due_s for due_s, timer in part.timers}
        self.draws = part.draws
        self._alive = True
        self.clock: Clock = step.space.clocks[step.clocks].get(name, Clock())
        if part.actor is not step.space.nobody:
            self.actor = step.space.copy_of(part.actor, name)
            self.actor._life = self

    @property
    def alive(self) -> bool:
        return self._alive

    def now_s(self) -> float:
        self.step.looked = True
        return self.clock.shows_s(self.step.now_s)

    def luck(self) -> Random:
        self.draws += 1
        return Random(f"{self.name}/{self.draws}")

    def note(self, what: str) -> None:
        self.step.note(self.name, what)

    def transmit(self, to: str, message: Any) -> None:
        self.step.transmit(Envelope(self.name, to, message))

    def set_timer(self, timer: str, delay_s: float) -> None:
        self.timers[timer] = self.step.now_s + self.clock.takes_s(delay_s)

    def stop_timer(self, timer: str) -> None:
        self.timers.pop(timer, None)

    def happened(self, kind: Kind, request: str, what: Any) -> None:
        if request not in self.step.known and (request or kind in ("did", "told", "has")):
            raise ValueError(f"nobody has asked for {request!r}")
        self.note(self.in_words(kind, request, what))
        self.step.happened(Event(self.step.now_s, kind, self.name, request, what))

    def die(self, how: str) -> None:
        self._alive = False
        self.note(f"dies: {how.replace('killed', 'power lost') if self.step.power else how}")

    def crashed(self, what: str, why: str = "") -> None:
        text = f"{what}\n{why}".rstrip()
        self.step.violations.append(Violation(CRASH, self.step.now_s, text))

    def part(self) -> Part:
        """Part of the next state: the actor as the move leaves it."""
        assert self.actor is not None
        self.actor._life = None
        if not self.step.space.loses_power:
            self.stored.sync()  # so that states are the same whatever was written since
        timers = tuple(sorted((due_s, timer) for timer, due_s in self.timers.items()))
        space = self.step.space
        text = space.text_of(self.actor, self.name, self.stored, self.draws)
        return Part(self.actor, self.stored, timers, 0, self.draws, text)


class _Step:
    """Move under way: a state that may be changed, with the events and violations so far."""

    def __init__(self, space: Space, state: State, trace: list[Record[Envelope]] | None) -> None:
        self.space = space
        self.before = state
        self.now_s, self.since_s, self.looked = state.now_s, state.since_s, state.looked
        self.clocks = state.clocks
        self.parts = dict(state.parts)
        self.links = dict(state.links)
        self.joined = set(state.joined)
        self.strays = list(state.strays)
        self.asks = state.asks
        self.waiting = dict(state.waiting)
        self.known = set(state.known)
        self.faults = state.faults
        self.events: list[Event] = []
        self.violations: list[Violation] = []
        self.acts = 0
        """Number of acts of the handler that ran."""
        self.power = False
        """Whether the actor that dies in this move loses power."""
        self._trace = trace

    # -- what lives do ------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        if self._trace is not None:
            self._trace.append(Record(self.now_s, who, what))

    def note_message(self, envelope: Envelope, way: tuple[str, str]) -> None:
        if self._trace is not None:
            name = "-".join(sorted((envelope.sender, envelope.to)))
            self._trace.append(
                Record(self.now_s, name, way[envelope.sender < envelope.to], envelope)
            )

    def transmit(self, envelope: Envelope) -> None:
        link = envelope.sender, envelope.to
        self.joined.add(_pair(*link))
        self.links[link] = (*self.links.get(link, ()), envelope)

    def happened(self, event: Event) -> None:
        self.since_s = self.now_s
        match event.kind:
            case "told":
                self.waiting.pop(event.request, None)
            case "died":
                self.waiting = {r: a for r, a in self.waiting.items() if a != event.actor}
        self.events.append(event)

    # -- moves ---------------------------------------------------------------------------

    def take(self, move: Move) -> None:
        """Make a move."""
        name, *more = move
        getattr(self, f"_{name.replace(' ', '_')}")(*more)

    def _run(self, name: str, handler: str, *args: Any, dies_before: int = 0) -> _Life:
        """Call a handler of an actor."""
        life = _Life(self, name, self.parts[name])
        life.dies_before = dies_before
        life.call(handler, *args)
        self.acts = life.acts
        if life.alive:
            self.parts[name] = life.part()
        return life

    def _ask(self, name: str, *, dies_before: int = 0) -> _Life:
        ask = next(ask for ask in self.asks if ask.actor == name)
        self.asks = tuple(each for each in self.asks if each is not ask)
        self.known.add(ask.request)
        self.note(name, f"asks {ask.request}: {short(ask.what)}")
        self.waiting[ask.request] = name
        self.happened(Event(self.now_s, "asked", name, ask.request, ask.what))
        return self._run(name, "on_ask", ask.request, ask.what, dies_before=dies_before)

    def _ask_later(self, name: str, *, dies_before: int = 0) -> _Life:
        self.now_s = next(ask for ask in self.asks if ask.actor == name).at_s
        return self._ask(name, dies_before=dies_before)

    def _next(self, sender: str, to: str) -> Any:
        """Take the first item from a link."""
        first, *others = self.links.pop((sender, to))
        if others:
            self.links[sender, to] = tuple(others)
        return first

    def _arrive(self, sender: str, to: str, *, dies_before: int = 0) -> _Life:
        first = self._next(sender, to)
        if first is CUT:
            return self._run(to, "on_cut", sender, dies_before=dies_before)
        self.note_message(first, ARRIVED)
        return self._run(to, "on_message", sender, first.message, dies_before=dies_before)

    def _stray(self, number: int, *, dies_before: int = 0) -> _Life:
        envelope = self.strays.pop(number)
        self.note_message(envelope, STRAY)
        to, sender = envelope.to, envelope.sender
        return self._run(to, "on_message", sender, envelope.message, dies_before=dies_before)

    def _timer(self, name: str, timer: str, *, dies_before: int = 0) -> _Life:
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
        return self._run(name, "on_timer", timer, dies_before=dies_before)

    # -- faults --------------------------------------------------------------------------

    def _lose(self, sender: str, to: str) -> None:
        self.faults += 1
        self.note_message(self._next(sender, to), LOST)

    def _double(self, sender: str, to: str) -> None:
        self.faults += 1
        self._add_stray(self.links[sender, to][0])

    def _delay(self, sender: str, to: str) -> None:
        self.faults += 1
        self._add_stray(self._next(sender, to))

    def _add_stray(self, envelope: Envelope) -> None:
        self.strays = sorted([*self.strays, envelope], key=Envelope.to_bytes)

    def _cut(self, one: str, other: str) -> None:
        self.faults += 1
        self.note("fault", f"{Fault.CUT.value}: {one}-{other}")
        self.joined.discard((one, other))
        for link in ((one, other), (other, one)):
            self.links.pop(link, None)
            self._hears(*link)

    def _hears(self, peer: str, name: str) -> None:
        """Put :data:`CUT` on the link from the peer to an actor that has an ``on_cut``."""
        if type(self.parts[name].actor).on_cut is not Actor.on_cut:
            self.links[peer, name] = (*self.links.get((peer, name), ()), CUT)

    def _stop(self, name: str) -> None:
        self.faults += 1
        self.note(name, "is stopped")
        self.parts[name] = self.parts[name]._replace(held=1)

    def _continue(self, name: str) -> None:
        self.note(name, "goes on")
        self.parts[name] = self.parts[name]._replace(held=0)

    def _kill(self, name: str, survive: tuple[int, ...] | None, act: int, during: Move) -> None:
        self.faults += 1
        self.power = survive is not None
        if act:
            kind, *more = during
            life = getattr(self, f"_{kind.replace(' ', '_')}")(*more, dies_before=act)
            stored = life.stored
        else:
            self.note(name, "dies: killed" if survive is None else "dies: power lost")
            stored = self.parts[name].stored.copy()
        if survive is not None:
            stored.lose(lambda number: number in survive)
        self.happened(Event(self.now_s, "died", name, "", None))
        for peer in self.space.system.actors:
            if _pair(name, peer) in self.joined:
                self.joined.discard(_pair(name, peer))
                self.links.pop((peer, name), None)
                self._hears(name, peer)
        nobody = self.space.nobody
        life = _Life(self, name, Part(nobody, stored, (), 0, self.parts[name].draws, ""))
        life.start()
        if life.actor is not None:
            self.parts[name] = life.part()

    _power = _kill

    # -- its end --------------------------------------------------------------------------

    def state(self) -> State:
        """State after the move; the judges have seen its events."""
        judges, said = self.before.judges, self.before.said
        if self.events:
            judges = tuple(self.space.copy_of_judge(judge) for judge in judges)
            for event in self.events:
                self.violations += judged(judges, event, "a search of every order")
            said = self.space.text_of_judges(judges)
        return State(
            self.now_s, self.since_s, self.looked, self.clocks, self.parts, self.links,
            frozenset(self.joined), tuple(self.strays), self.asks,
            tuple(self.waiting.items()), frozenset(self.known), self.faults, judges, said,
        )  # fmt: skip


def _pair(one: str, other: str) -> Link:
    return (one, other) if one < other else (other, one)


# -- all states -------------------------------------------------------------------------------


class Space:
    """States of a system within bounds, and the moves that each allows."""

    def __init__(self, system: System, bounds: Bounds) -> None:
        for name, make in system.actors.items():
            if hasattr(make, "engine"):
                raise BrokenSystem(f"{name} is a program: only actors are searched in every order")
        self.system = system
        self.bounds = bounds
        self.nobody = Actor()
        """Placeholder of an actor that is not made yet."""
        self.asks = asks_of(system, bounds.seed)[: bounds.asks]
        self.clocks = list(self._all_clocks())
        self._moves = set(system.faults)
        if self._moves & {Fault.HALF_OPEN, Fault.PARTITION}:
            self._moves.add(Fault.LOSE)
        self.loses_power = Fault.POWER in self._moves
        self._rested: set[bytes] = set()

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

    # -- copies and texts -------------------------------------------------------------------

    def copy_of(self, actor: Actor, name: str) -> Actor:
        """Copy of an actor; BrokenSystem if its state cannot be copied."""
        other = type(actor).__new__(type(actor))
        vars(other).update(self._copied(vars(actor), name))
        return other

    def copy_of_judge(self, judge: Judge) -> Judge:
        """Copy of a judge; BrokenSystem if its state cannot be copied."""
        other = type(judge).__new__(type(judge))
        vars(other).update(self._copied(vars(judge), type(judge).__name__))
        return other

    def _copied(self, kept: dict[str, Any], whose: str) -> Any:
        try:
            return copied({name: kept[name] for name in kept if name != "_life"}, whose)
        except TypeError as error:
            raise BrokenSystem(str(error)) from error

    def text_of(self, actor: Actor, name: str, stored: Stored, draws: int) -> str:
        """Attributes, disk and draws of an actor as text."""
        kept = {each: vars(actor)[each] for each in sorted(vars(actor)) if each != "_life"}
        writes = [(name, None if value is GONE else (value,)) for name, value in stored.unsynced]
        disk = [stored.found, writes]
        return f"{self._text(kept, name)} {self._text(disk, name)} {draws}"

    def text_of_judges(self, judges: Sequence[Judge]) -> str:
        """Attributes of judges as text."""
        return " ".join(self._text(vars(judge), type(judge).__name__) for judge in judges)

    def _text(self, value: Any, whose: str) -> str:
        try:
            return state_text(value)
        except (TypeError, RecursionError) as error:
            raise BrokenSystem(
                f"{whose} keeps what two states cannot be compared by ({error}); "
                "keep plain values, lists, sets and dicts"
            ) from None

    # -- states -------------------------------------------------------------------------------

    def first(self) -> tuple[State, list[Violation]]:
        """State before any actor has started, and no violation."""
        judges = tuple(made_judges(self.system))
        blank = Part(self.nobody, Stored(), (), 0, 0, "")
        state = State(
            0.0, 0.0, False, 0, dict.fromkeys(self.system.actors, blank), {}, frozenset(), (),
            self.asks, (), frozenset(), 0, judges, self.text_of_judges(judges),
        )  # fmt: skip
        return state, []

    def started(
        self, state: State, clocks: int, trace: Any = None
    ) -> tuple[State, list[Violation]]:
        """State after all actors have started with these clocks, and the violations."""
        step = _Step(self, state, trace)
        step.clocks = clocks
        for name in self.system.actors:
            life = _Life(step, name, state.parts[name])
            life.start()
            if step.violations:
                return state, step.violations
            step.parts[name] = life.part()
        return step.state(), step.violations

    def key(self, state: State, *, faults: bool = True) -> bytes:
        """Digest of a state.  ``faults``: whether the number of faults is part of it."""
        now_s = state.now_s
        parts = [
            (part.text, part.held, [(round(due_s - now_s, 9), name) for due_s, name in part.timers])
            for part in state.parts.values()
        ]
        links = [
            (link, [each if each is CUT else plain(each.message) for each in state.links[link]])
            for link in sorted(state.links)
        ]
        quiet_s = round(min(now_s - state.since_s, self.system.quiet_s), 9)
        whole = (
            parts, links, sorted(state.joined), [each.to_bytes() for each in state.strays],
            [ask.request for ask in state.asks], sorted(state.waiting), state.said,
            state.clocks, now_s if state.looked else None, quiet_s,
            state.faults if faults else 0,
        )  # fmt: skip
        return blake2b(repr(whole).encode(), digest_size=16).digest()

    def move(self, state: State, move: Move, trace: Any = None) -> tuple[State, _Step]:
        """State after a move, and the move."""
        step = _Step(self, state, trace)
        step.take(move)
        return step.state(), step

    # -- what can happen -----------------------------------------------------------------------

    def certain(self, state: State, *, calm: bool = False) -> list[Move]:
        """Moves other than :meth:`trouble`: asks, arrivals, and the timers that are due first,
        unless something else has to come before them."""
        moves: list[Move] = []
        free = {name for name, part in state.parts.items() if not part.held}
        longest = max(part.held for part in state.parts.values())
        asking = [a for a in dict.fromkeys(ask.actor for ask in state.asks) if a in free]
        moves += [("ask", name) for name in asking]
        moves += [("arrive", *link) for link in sorted(state.links) if link[1] in free]
        moves += [
            ("stray", number)
            for number, stray in enumerate(state.strays)
            if stray.to in free and stray not in state.strays[:number]
        ]
        if (calm and moves) or longest > self.bounds.pause:
            return moves
        if self.busy(state) and state.faults >= self.bounds.faults:
            return moves + self._overdue(state, free)
        return moves + self._due(state, free, asking, calm=calm)

    def busy(self, state: State) -> bool:
        """Whether something is on its way to an actor that is not stopped."""
        to = {link[1] for link in state.links} | {stray.to for stray in state.strays}
        return any(not state.parts[name].held for name in to)

    def _overdue(self, state: State, free: set[str]) -> list[Move]:
        return [
            ("timer", name, timer)
            for name in state.parts
            if name in free
            for due_s, timer in state.parts[name].timers
            if due_s <= state.now_s
        ]

    def _due(self, state: State, free: set[str], asking: list[str], *, calm: bool) -> list[Move]:
        """Timers, and asks at their time, that are due first."""
        timers: list[tuple[float, Move]] = [
            (due_s, ("timer", name, timer))
            for name in state.parts
            if name in free
            for due_s, timer in state.parts[name].timers
        ]
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

    def trouble(self, state: State) -> Iterator[Move]:
        """Faults that may strike now."""
        if state.faults >= self.bounds.faults:
            return
        may, system = self._moves, self.system
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
                yield from self.deaths(name, part.stored, 0, ())

    def deaths(self, name: str, stored: Stored, act: int, during: Move) -> Iterator[Move]:
        """The ways in which an actor may die now, or before this act of a move."""
        if Fault.KILL in self._moves:
            yield ("kill", name, None, act, during)
        if Fault.POWER in self._moves:
            for survive in _survivors(len(stored.unsynced)):
                yield ("power", name, survive, act, during)

    def continued(self, state: State) -> list[Move]:
        """Moves that continue a stopped actor."""
        return [("continue", name) for name, part in state.parts.items() if part.held]

    def mid_way(self, state: State, move: Move, step: _Step) -> Iterator[Move]:
        """The deaths in the middle of a move that has run a handler."""
        name = _whose(state, move)
        if name is None or name in self.system.never_killed or step.faults >= self.bounds.faults:
            return
        for act in range(1, step.acts + 1):
            # The writes before that act are only known by running it.
            most = len(state.parts[name].stored.unsynced) + act - 1
            unsynced = Stored()
            unsynced.unsynced = [("", None)] * (most if Fault.POWER in self._moves else 0)
            yield from self.deaths(name, unsynced, act, move)

    # -- rest -----------------------------------------------------------------------------------

    def at_rest(self, state: State) -> bool:
        """Whether nothing is left to do."""
        if state.asks or state.waiting or any(state.links.values()) or state.strays:
            return False
        quiet = state.now_s - state.since_s >= self.system.quiet_s
        return quiet or not any(part.timers for part in state.parts.values())

    def run_to_rest(self, state: State, trace: Any = None) -> list[Violation]:
        """Violations on the way to rest without a fault, or at rest."""
        passed: list[bytes] = []
        seen: set[bytes] = set()
        until_s = state.now_s + self.system.patience_s
        for name in state.parts:
            if state.parts[name].held:
                state, _ = self.move(state, ("continue", name), trace)
        for count in range(MOST_CALM):
            key = self.key(state, faults=False)
            if key in self._rested:
                break
            if key in seen or self.at_rest(state) or state.now_s > until_s:
                violations = self._at_the_end(state, trace)
                if violations:
                    return violations
                break
            seen.add(key)
            passed.append(key)
            moves = self.certain(state, calm=True)
            if not moves:
                violations = self._at_the_end(state, trace)
                if violations:
                    return violations
                break
            state, step = self.move(state, moves[count % len(moves)], trace)
            if step.violations:
                return step.violations
        else:
            raise BrokenSystem(f"it never rests: {MOST_CALM:,} moves without a fault, and more")
        self._rested.update(passed)
        return []

    def _at_the_end(self, state: State, trace: Any) -> list[Violation]:
        step = _Step(self, state, trace)
        for name, part in state.parts.items():
            if type(part.actor).on_rest is not Actor.on_rest:
                life = _Life(step, name, part)
                life.rest()
        after = step.state()
        if step.violations:
            return step.violations
        judges = tuple(self.copy_of_judge(judge) for judge in after.judges)
        return judged(judges, float(after.now_s), "a search of every order")


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


def _whose(state: State, move: Move) -> str | None:
    """The actor whose handler a move runs."""
    match move:
        case ("ask" | "ask later" | "timer", name, *_):
            return str(name)
        case ("arrive", _, name):
            return str(name)
        case ("stray", number):
            return state.strays[number].to
    return None


# -- the search -------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Explored:
    """Progress of a search of every order, and its first violation."""

    bounds: Bounds
    """Bounds of the search."""
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
    violation: Violation | None = None
    """First violation that was found; None if there is none."""
    path: Path | None = None
    """Shortest path to the violation; None if there is none."""

    def text(self) -> str:
        """Figures in one line."""
        how = "all" if self.exhausted else "not all"
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.depth} deep, "
            f"{how} within {self.bounds.asks} asks and {self.bounds.faults} faults"
        )


class Exploration:
    """A search of every order; iterate over :meth:`run`, which ends at a violation."""

    def __init__(self, system: System, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or system.bounds
        self.space = Space(system, self.bounds)
        self.explored = Explored(self.bounds)
        self._parents: list[tuple[int, Move]] = []
        self._seen: set[bytes] = set()

    def run(self) -> Iterator[Explored]:
        """Look at states; yields the progress every 500 states and at the end."""
        began_s = time.monotonic()
        for looked, _ in enumerate(self._search()):
            if looked % 500 == 0:
                self.explored.seconds = time.monotonic() - began_s
                yield self.explored
        self.explored.seconds = time.monotonic() - began_s
        yield self.explored

    def _search(self) -> Iterator[None]:
        space, explored = self.space, self.explored
        blank, _ = space.first()
        layer: list[tuple[State, int]] = []
        for number in range(len(space.clocks)):
            state, violations = space.started(blank, number)
            index = self._enter(state, -1, ("clocks", number, _of_clocks(space.clocks[number])))
            if violations:
                self._report(violations, index)
                return
            if index is not None:
                layer.append((state, index))
        while layer:
            found: list[tuple[State, int]] = []
            for state, index in layer:
                if not self._look(state, index, found):
                    return
                yield
                if explored.states >= self.bounds.most_states:
                    return
            layer = found
            explored.depth += bool(layer)
        explored.exhausted = True

    def _look(self, state: State, index: int, found: list[tuple[State, int]]) -> bool:
        """Look at one state; False if something is violated there or after it."""
        space = self.space
        violations = space.run_to_rest(state)
        if violations:
            self._report(violations, index, rests=True)
            return False
        moves: list[Move] = [*space.certain(state), *space.continued(state)]
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
        self, after: State, step: _Step, index: int, move: Move, found: list[tuple[State, int]]
    ) -> bool:
        self.explored.transitions += 1
        if step.violations:
            self._report(step.violations, index, move)
            return False
        number = self._enter(after, index, move)
        if number is not None:
            found.append((after, number))
        return True

    def _enter(self, state: State, parent: int, move: Move) -> int | None:
        """Number of a new state; None for one that was seen before."""
        key = self.space.key(state)
        if key in self._seen:
            return None
        self._seen.add(key)
        self._parents.append((parent, move))
        self.explored.states = len(self._parents)
        return len(self._parents) - 1

    def _report(
        self, violations: list[Violation], index: int | None, *last: Move, rests: bool = False
    ) -> None:
        path = list(reversed(last))
        while index is not None and index >= 0:
            index, move = self._parents[index]
            path.append(move)
        inner = [move[4] if move[0] in ("kill", "power") and move[3] else move for move in path]
        asking = Counter(move[1] for move in inner if move[0] in ("ask", "ask later"))
        asks = []
        for ask in self.space.asks:
            if asking[ask.actor] > 0:
                asking[ask.actor] -= 1
                asks.append(ask)
        self.explored.violation = violations[0]
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


@dataclasses.dataclass(frozen=True, slots=True)
class Walked:
    """Violations and trace of a path that was walked again."""

    violations: tuple[Violation, ...]
    trace: tuple[Record[Envelope], ...]


def walk(system: System, path: Path) -> Walked:
    """Walk a path, and then without a fault to rest.  ValueError if the system has no such
    path (any more)."""
    space = Space(system, path.bounds)
    trace: list[Record[Envelope]] = []
    state, _ = space.first()
    violations: list[Violation] = []
    for number, move in enumerate(path.moves):
        if move[0] == "clocks" and not number:
            if move[1] >= len(space.clocks):
                raise ValueError(f"move {number + 1} cannot be made: {in_words(move)}")
            state, violations = space.started(state, move[1], trace)
        else:
            try:
                state, step = space.move(state, move, trace)
            except (KeyError, IndexError, StopIteration):
                raise ValueError(f"move {number + 1} cannot be made: {in_words(move)}") from None
            violations = step.violations
        if violations:
            return Walked(tuple(violations), tuple(trace))
    violations = space.run_to_rest(state, trace)
    return Walked(tuple(violations), tuple(trace))
