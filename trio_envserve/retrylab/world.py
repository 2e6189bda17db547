"""A simulated world: virtual time, processes, connections, and faults that strike.

Theory of operation
-------------------
*Time.*  :class:`Events` is a heap of things to come; time jumps from one to the next.
Whatever is noted goes into a digest, so that two runs can be compared, and into a trace
if one is wanted.  It knows of a message only how its bytes are made.

*Processes.*  A :class:`Process` lives, may be held up, and dies once.  Each draws from a
source of its own, so that a schedule with less in it leaves the others' luck as it was.

*Connections.*  A :class:`BaseLink` is one connection: whoever made it is its *dialer*, the
other end its *listener*.  It is first in, first out, until it is cut: then what is on its
way in either direction is lost, and a new link is made later.  The sender never learns of
a loss.  As the :class:`Rates` say, messages are lost, duplicated, and delayed past others
and past their connection: such a stray goes to whoever answers to that name when it
arrives.  A subclass of :class:`BaseNetwork` knows who is at the ends.

*A run.*  :class:`BaseWorld`: faults strike for some time, then the world is calm and comes
to rest.

It knows no message, no role and no judge; the simulator of the protocol that ships stands
on it, and :mod:`.run`, which is for any system.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from hashlib import blake2b
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

M = TypeVar("M")

_pack = struct.Struct("<d").pack


class Record(NamedTuple, Generic[M]):
    """One line of a trace: something that happened, or a message."""

    at_s: float
    who: str
    """The actor that it happened to; for a message the name of its connection."""
    what: str
    """For a message its way, or how it was lost: see :mod:`.network`."""
    message: M | None = None

    def text(self, describe: Callable[[M], str]) -> str:
        """The line; ``describe`` says what a message is."""
        what = self.what if self.message is None else f"{self.what} {describe(self.message)}"
        return f"{self.at_s:10.4f}  {self.who:<12} {what}"


class Events(Generic[M]):
    """The virtual clock, everything that is to happen, and a digest of what has."""

    def __init__(self, to_bytes: Callable[[M], bytes], *, trace: bool) -> None:
        self.now_s = 0.0
        self.count = 0
        self.trace: list[Record[M]] | None = [] if trace else None
        self._to_bytes = to_bytes
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._hash = blake2b(digest_size=16)

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call ``act(*args)`` in ``delay_s`` of virtual time."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._order), act, args))

    def next_s(self) -> float:
        """When something is to happen next; infinity if nothing is."""
        return self._heap[0][0] if self._heap else math.inf

    def step(self) -> bool:
        """Do what comes next; False if nothing does."""
        if not self._heap:
            return False
        self.now_s, _, act, args = heapq.heappop(self._heap)
        self.count += 1
        act(*args)
        return True

    def note(self, who: str, what: str) -> None:
        """Something happened: into the digest, and into the trace if there is one."""
        self._hash.update(_pack(self.now_s) + who.encode() + what.encode())
        if self.trace is not None:
            self.trace.append(Record(self.now_s, who, what))

    def note_message(self, who: str, way: str, message: M) -> None:
        """A message has arrived, or was lost."""
        said = who.encode() + way.encode() + self._to_bytes(message)
        self._hash.update(_pack(self.now_s) + said)
        if self.trace is not None:
            self.trace.append(Record(self.now_s, who, way, message))

    def digest(self) -> str:
        """The hash of the whole trace."""
        return self._hash.hexdigest()


def long_tailed(rng: Random, mean_s: float) -> float:
    """A time that is mostly short and sometimes very long.

    Not the exponential distribution: its logarithm may differ in the last digit
    between systems, and a seed is to give the same run on all of them.
    """
    return mean_s * (1.0 / math.sqrt(1.0 - rng.random()) - 1.0)


class Process:
    """Something that lives, may be held up, and dies once.

    It runs what is posted to it, unless it is dead or held (stopped, or its loop
    blocked): then that waits, and nothing of it moves.

    Each draws from a source of its own, so that a schedule with less in it leaves
    the others' luck as it was: failures shrink better.
    """

    def __init__(self, events: Events[Any], name: str, rng: Random) -> None:
        self.events = events
        self.name = name
        self.rng = rng
        self.died_s: float | None = None
        self.held_s = 0.0
        """For how long it has been held up, in all."""
        self.held_times = 0
        self._holds: dict[str, float] = {}
        self._continued_s = -math.inf
        """When it was last continued, stopped before."""
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def alive(self) -> bool:
        """Whether it has not died."""
        return self.died_s is None

    @property
    def held(self) -> bool:
        """Whether it is stopped, or its loop is blocked."""
        return bool(self._holds)

    def moved_s(self, now_s: float) -> float:
        """For how long it has not been stopped; a blocked loop is no stop."""
        return 0.0 if "stopped" in self._holds else now_s - self._continued_s

    def stopped_for_s(self, now_s: float) -> float:
        """For how long it is stopped; 0 if it is not."""
        return now_s - self._holds.get("stopped", now_s)

    def post(self, act: Callable[..., None], *args: Any) -> None:
        """Do this in the process: now, or when it moves again, or never."""
        if self.died_s is not None:
            return
        if self._holds:
            self._backlog.append((act, args))
        else:
            act(*args)

    def hold(self, why: str) -> None:
        """It does not move until this is released."""
        self._holds.setdefault(why, self.events.now_s)

    def release(self, why: str) -> None:
        """It moves again, unless something else holds it; first it works off
        what has come in, then :meth:`woke` says what its clock missed."""
        since_s = self._holds.pop(why, None)
        if why == "stopped":
            self._continued_s = self.events.now_s
        if since_s is None or self._holds or self.died_s is not None:
            return
        late_s = self.events.now_s - since_s
        self.held_s += late_s
        self.held_times += 1
        backlog, self._backlog = self._backlog, []
        for act, args in backlog:
            self.post(act, *args)
        self.post(self.woke, late_s)

    def woke(self, late_s: float) -> None:
        """It runs again after ``late_s``: do what the clock would have asked for."""

    def die(self, how: str) -> None:
        """The process is dead.  Only the first death counts."""
        if self.died_s is None:
            self.died_s = self.events.now_s
            self.events.note(self.name, f"dies: {how}")


LOST = ("<-x LOST", "->x LOST")
"""The way of a message that never arrives: from the listener, to it."""

ARRIVED = ("<-", "->")
"""The way of a message that does: from the listener, to it."""

STRAY = ("<- stray", "-> stray")
"""The way of a message that overtook others, or came late."""

LATE_S = (3.0, 0.5, 0.02)
"""A stray is late by one of these, on average."""

LAST_WORDS = 0.7
"""How often what a process had sent before it died still arrives."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """The faults of messages, and their rates."""

    delay_s: tuple[float, float]
    """How long it is on its way: at least, at most."""
    loss: float = 0.0
    mangle: float = 0.0
    """How often it is taken out of its order."""
    copies: tuple[int, ...] = (1, 1, 2, 3)
    """As how many copies a message that was out of its order arrives."""
    duplicate: float = 0.0
    """How often a copy of it comes later, too."""


class BaseLink:
    """One connection."""

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        """Under which its messages are noted."""
        self.rng = rng
        """The random source of its messages' luck."""
        self.open = True
        self.half_open = False
        """Nothing arrives in either direction, and nobody knows."""
        self.last_s = [0.0, 0.0]
        """When the last message in each direction arrives: none overtakes it."""


L = TypeVar("L", bound=BaseLink)


class BaseNetwork(ABC, Generic[L, M]):
    """Carries messages over links."""

    def __init__(self, events: Events[M], rates: Rates) -> None:
        self.events = events
        self.rates = rates
        self.calm = False
        """No message is lost, duplicated or delayed any more."""
        self.lost = self.mangled = self.duplicated = 0
        """How many were."""

    @abstractmethod
    def deliver(self, link: L, message: M, *, up: bool, stray: bool) -> None:
        """Note a message and hand it over: ``up`` to the listener, else to the dialer;
        a stray to whoever answers to that name now."""

    @abstractmethod
    def ended(self, link: L, *, cut: bool) -> None:
        """A connection is over: it was cut, or its dialer is dead."""

    def cut(self, link: L | None) -> None:
        """The connection ends; what is on its way is lost."""
        if link is not None and link.open:
            link.open = False
            self.ended(link, cut=True)

    def close(self, link: L | None) -> None:
        """The dialer's process is dead: nothing reaches it, and what it has sent
        still arrives, or does not."""
        if link is not None:
            link.open = link.open and link.rng.random() < LAST_WORDS
            self.ended(link, cut=False)

    def send(self, link: L | None, message: M, *, up: bool) -> None:
        """Put a message on its way: ``up`` to the listener, else to the dialer."""
        if link is None or not link.open or link.half_open:
            return
        rates = self.rates
        if self.strikes(rates.loss, link.rng):
            self.lost += 1
            self.events.note_message(link.name, LOST[up], message)
            return
        delay_s = link.rng.uniform(*rates.delay_s)
        if self.strikes(rates.mangle, link.rng):
            self.mangled += 1
            for _ in range(link.rng.choice(rates.copies)):
                self._send_stray(link, message, delay_s, up)
            return
        if self.strikes(rates.duplicate, link.rng):
            self.duplicated += 1
            self._send_stray(link, message, delay_s, up)
        arrives_s = max(self.events.now_s + delay_s, link.last_s[up])
        link.last_s[up] = arrives_s
        self.events.after(arrives_s - self.events.now_s, self._arrive, link, message, up)

    def strikes(self, rate: float, rng: Random) -> bool:
        """Whether it happens; draws nothing where it never does."""
        return rate > 0.0 and not self.calm and rng.random() < rate

    def _send_stray(self, link: L, message: M, delay_s: float, up: bool) -> None:
        late_s = delay_s + long_tailed(link.rng, link.rng.choice(LATE_S))
        self.events.after(late_s, self._stray, link, message, up)

    def _stray(self, link: L, message: M, up: bool) -> None:
        self.deliver(link, message, up=up, stray=True)

    def _arrive(self, link: L, message: M, up: bool) -> None:
        if link.open and not link.half_open:
            self.deliver(link, message, up=up, stray=False)
        else:
            self.events.note_message(link.name, LOST[up], message)


F = TypeVar("F")

MOST_EVENTS = 200_000
"""A run of more events is taken for one that never ends."""

NOBODY_S = 0.1
"""A fault that finds nobody to strike tries again after this."""

LATEST_S = 10.0
"""How long after its time the last fault may still strike."""

LOOK_S = 0.5
"""Between looks at whether everything is at rest."""


class BaseWorld(ABC, Generic[F]):
    """Everything that there is in a run.  Its faults are any values.

    A world of somebody's own makes :attr:`network` and its processes, then calls
    :meth:`schedule`, then :meth:`to_rest`.
    """

    network: BaseNetwork[Any, Any]

    def __init__(self, events: Events[Any]) -> None:
        self.events = events
        self.busy_s = 0.0
        self._to_strike = 0

    @abstractmethod
    def struck(self, fault: F) -> bool:
        """Let a fault strike now; False if nobody is there to be struck."""

    @abstractmethod
    def release(self) -> None:
        """Nothing strikes any more: what is stopped continues, what is half open ends."""

    @abstractmethod
    def left(self) -> list[str]:
        """The parts that have not come to rest."""

    def schedule(self, moments: Iterable[tuple[float, F]], busy_s: float) -> None:
        """When faults strike, and when it is calm: ``busy_s`` at the earliest."""
        self.busy_s = busy_s
        for at_s, fault in moments:
            self._to_strike += 1
            self.events.after(at_s, self._strike, fault)
        self.events.after(busy_s, self._calm_down)

    def _strike(self, fault: F) -> None:
        if self.network.calm:
            return
        if self.struck(fault):
            self._to_strike -= 1
        else:
            self.events.after(NOBODY_S, self._strike, fault)

    def _calm_down(self) -> None:
        if self._to_strike and self.events.now_s < self.busy_s + LATEST_S:
            self.events.after(NOBODY_S, self._calm_down)
            return
        self.events.note("world", "calm")
        self.network.calm = True
        self.release()

    def to_rest(self, calm_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Run until nothing is left to do; or for ``calm_s`` after the last fault; or
        until ``until`` says so, which is False."""
        until_s = self.busy_s + LATEST_S + calm_s
        look_at_s = self.busy_s + 1.0
        while self.events.count < MOST_EVENTS and self.events.now_s < until_s:
            if not self.events.step():
                break
            if until is not None and until():
                return False
            if self.events.now_s >= look_at_s:
                look_at_s += LOOK_S
                if not self.left():
                    break
        return True
