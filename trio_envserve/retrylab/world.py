"""A simulated world: virtual time, processes, connections, and faults that strike.

Theory of operation
-------------------
*Time.*  :class:`Events` is a heap of things to come; time jumps from one to the next.
Whatever is noted goes into a digest, so that two runs can be compared, and into a trace
if one is wanted.  Of a message only its bytes are known.

*Processes.*  A :class:`VirtualProcess` lives, may be held up, and dies once.  Each draws from a
source of its own, so that a schedule with less in it leaves the others' luck as it was.

*Connections.*  A :class:`BaseLink` is one connection: whoever made it is its *dialer*, the
other end its *listener*.  A link is first in, first out, until it is cut: then what is on
its way in either direction is lost, and a new link is made later.  The sender never learns of
a loss.  As the :class:`Rates` say, messages are lost, duplicated, and delayed past others
and past their connection: such a stray goes to whoever answers to that name when it
arrives.  A subclass of :class:`BaseNetwork` knows who is at the ends.

*A run.*  :class:`BaseWorld`: faults strike for some time, then the world is calm and comes
to rest.

This file knows no message, no role and no judge; the simulator of the protocol that ships stands
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


class TraceLine(NamedTuple, Generic[M]):
    """One line of a trace: something that happened, or a message."""

    at_s: float
    who: str
    """Name of the actor that it happened to; for a message, of its connection."""
    what: str
    """Event in words; for a message :data:`ARRIVED`, :data:`LOST` or :data:`STRAY` of its way."""
    message: M | None = None

    def text(self, describe: Callable[[M], str]) -> str:
        """The line; ``describe`` says what a message is."""
        what = self.what if self.message is None else f"{self.what} {describe(self.message)}"
        return f"{self.at_s:10.4f}  {self.who:<12} {what}"


class Events(Generic[M]):
    """Virtual clock, the events to come, and a digest of those that were noted."""

    def __init__(self, to_bytes: Callable[[M], bytes], *, trace: bool) -> None:
        self.now_s = 0.0
        self.count = 0
        self.trace: list[TraceLine[M]] | None = [] if trace else None
        self._to_bytes = to_bytes
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._hash = blake2b(digest_size=16)

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call ``act(*args)`` in ``delay_s`` of virtual time."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._order), act, args))

    def next_s(self) -> float:
        """Time of the next event in virtual seconds; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def step(self) -> bool:
        """Do the next event; False if there is none."""
        if not self._heap:
            return False
        self.now_s, _, act, args = heapq.heappop(self._heap)
        self.count += 1
        act(*args)
        return True

    def note(self, who: str, what: str) -> None:
        """Note an event in the digest, and in the trace if there is one."""
        self._hash.update(_pack(self.now_s) + who.encode() + what.encode())
        if self.trace is not None:
            self.trace.append(TraceLine(self.now_s, who, what))

    def note_message(self, who: str, way: str, message: M) -> None:
        """Note that a message has arrived, or was lost."""
        event = who.encode() + way.encode() + self._to_bytes(message)
        self._hash.update(_pack(self.now_s) + event)
        if self.trace is not None:
            self.trace.append(TraceLine(self.now_s, who, way, message))

    def digest(self) -> str:
        """The hash of the whole trace."""
        return self._hash.hexdigest()


def long_tailed(rng: Random, mean_s: float) -> float:
    """Random time in seconds that is mostly short and sometimes very long.

    No exponential distribution is used: its logarithm may differ in the last digit
    between systems, and a seed is to give the same run on all of them.
    """
    return mean_s * (1.0 / math.sqrt(1.0 - rng.random()) - 1.0)


class VirtualProcess:
    """Process that lives, may be held up, and dies once.

    Functions that are posted to it are called at once.  While it is held (stopped, or its
    loop blocked) they wait, and nothing of it moves; of a dead process they are dropped.

    Each process draws from a source of its own, so that a schedule with less in it leaves
    the others' luck as it was: failures shrink better.
    """

    def __init__(self, events: Events[Any], name: str, rng: Random) -> None:
        self.events = events
        self.name = name
        self.rng = rng
        self.died_s: float | None = None
        self.held_s = 0.0
        """Time for which it has been held up in all, in seconds."""
        self.held_times = 0
        self._holds: dict[str, float] = {}
        self._continued_s = -math.inf
        """Time at which it was last continued after a stop, in virtual seconds."""
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def alive(self) -> bool:
        """Whether the process has not died."""
        return self.died_s is None

    @property
    def held(self) -> bool:
        """Whether the process is stopped, or its loop is blocked."""
        return bool(self._holds)

    def moved_s(self, now_s: float) -> float:
        """Time since it was last continued, in seconds; 0 while stopped.  A block is no stop."""
        return 0.0 if "stopped" in self._holds else now_s - self._continued_s

    def post(self, act: Callable[..., None], *args: Any) -> None:
        """Call a function in the process: now, or when it moves again, or never."""
        if self.died_s is not None:
            return
        if self._holds:
            self._backlog.append((act, args))
        else:
            act(*args)

    def hold(self, why: str) -> None:
        """Hold the process until this reason is released."""
        self._holds.setdefault(why, self.events.now_s)

    def release(self, why: str) -> None:
        """Let the process move again, unless another reason holds it; first it works off
        what has come in, then :meth:`woke` does what its clock missed."""
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
        """Do what the clock would have asked for in the ``late_s`` that it was held."""

    def die(self, how: str) -> None:
        """End the process.  Only the first death counts."""
        if self.died_s is None:
            self.died_s = self.events.now_s
            self.events.note(self.name, f"dies: {how}")


LOST = ("<-x LOST", "->x LOST")
"""Way of a message that never arrives: from the listener, to it."""

ARRIVED = ("<-", "->")
"""Way of a message that arrives: from the listener, to it."""

STRAY = ("<- stray", "-> stray")
"""Way of a message that overtook others, or came late: from the listener, to it."""

LATE_S = (3.0, 0.5, 0.02)
"""Mean delays of a stray in seconds, to draw one from."""

LAST_WORDS = 0.7
"""Probability that messages of a process that has died still arrive."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """Rates of the faults of messages."""

    delay_s: tuple[float, float]
    """Least and most delay of a message in seconds."""
    loss: float = 0.0
    mangle: float = 0.0
    """Probability that a message is taken out of its order."""
    copies: tuple[int, ...] = (1, 1, 2, 3)
    """Numbers of copies of a message that is out of its order, to draw one from."""
    duplicate: float = 0.0
    """Probability that a copy of a message comes later, too."""


class BaseLink:
    """One connection."""

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        """Name under which its messages are noted."""
        self.rng = rng
        """Random source of its messages' luck."""
        self.open = True
        self.half_open = False
        """Whether nothing arrives in either direction, and neither end knows."""
        self.is_stream = False
        """Whether no message is lost, doubled or late unless it is cut, as on a pipe."""
        self.last_s = [0.0, 0.0]
        """Time at which the last message in each direction arrives: none overtakes it."""


L = TypeVar("L", bound=BaseLink)


class BaseNetwork(ABC, Generic[L, M]):
    """Carries messages over links."""

    def __init__(self, events: Events[M], rates: Rates) -> None:
        self.events = events
        self.rates = rates
        self.calm = False
        """Whether messages are not lost, duplicated or delayed any more."""
        self.lost = self.mangled = self.duplicated = 0
        """Numbers of messages that were lost, out of their order, and duplicated."""

    @abstractmethod
    def deliver(self, link: L, message: M, *, up: bool, stray: bool) -> None:
        """Note a message and hand it over: ``up`` to the listener, else to the dialer;
        a stray to whoever answers to that name now."""

    @abstractmethod
    def ended(self, link: L, *, cut: bool) -> None:
        """Handle the end of a connection: it was cut, or a process at its end is dead."""

    def cut(self, link: L | None) -> None:
        """End a connection; messages on their way are lost."""
        if link is not None and link.open:
            link.open = False
            self.ended(link, cut=True)

    def silence(self, link: L, for_s: float) -> None:
        """Let nothing arrive on a connection for ``for_s``; then it is cut."""
        link.half_open = True
        self.events.after(for_s, self.cut, link)

    def close(self, link: L | None) -> None:
        """End the connection of a process that is dead: messages that it has sent still
        arrive, or do not."""
        if link is not None:
            link.open = link.open and link.rng.random() < LAST_WORDS
            self.ended(link, cut=False)

    def send(self, link: L | None, message: M, *, up: bool) -> None:
        """Put a message on its way: ``up`` to the listener, else to the dialer."""
        if link is None or not link.open or link.half_open:
            return
        rates = self.rates
        if link.is_stream:
            rates = Rates(rates.delay_s)
        if self.strikes(rates.loss, link.rng):
            self.lost += 1
            self.events.note_message(link.name, LOST[up], message)
            return
        least_s, most_s = rates.delay_s
        delay_s = least_s + (most_s - least_s) * link.rng.random()
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
        """Whether a fault of this rate strikes; draws nothing where it never does."""
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
"""Most events of a run; one of more is taken for one that never ends."""

NOBODY_S = 0.1
"""Time in seconds after which a fault that found nothing to strike tries again."""

LATEST_S = 10.0
"""Time in seconds after ``busy_s`` until which a fault may still strike."""

LOOK_S = 0.5
"""Time in seconds between checks whether everything is at rest."""


class BaseWorld(ABC, Generic[F]):
    """World of a run.  Its faults are any values.

    A subclass makes :attr:`network` and its processes, then calls
    :meth:`schedule`, then :meth:`to_rest`.
    """

    network: BaseNetwork[Any, Any]

    def __init__(self, events: Events[Any]) -> None:
        self.events = events
        self.busy_s = 0.0
        self._to_strike = 0

    @abstractmethod
    def struck(self, fault: F) -> bool:
        """Let a fault strike now; False if there is nothing to strike."""

    @abstractmethod
    def release(self) -> None:
        """End all faults: what is stopped continues, what is half open ends."""

    @abstractmethod
    def left(self) -> list[str]:
        """Reasons why the run is not at rest."""

    def schedule(self, moments: Iterable[tuple[float, F]], busy_s: float) -> None:
        """Schedule the faults, and the calm after them: at ``busy_s`` at the earliest."""
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
        until ``until`` says so, which returns False."""
        events, until_s = self.events, self.busy_s + LATEST_S + calm_s
        look_at_s = self.busy_s + 1.0
        while events.count < MOST_EVENTS and events.now_s < until_s:
            if not events.step():
                break
            if until is not None and until():
                return False
            if events.now_s >= look_at_s:
                look_at_s += LOOK_S
                if not self.left():
                    break
        return True
