"""Connections between processes, and what becomes of the messages on them.

Theory of operation
-------------------
A :class:`BaseLink` is one connection: whoever made it is its *dialer*, the other end its
*listener*.  It is first in, first out, until it is cut: then what is on its way in
either direction is lost, and a new link is made later.  The sender never learns of
a loss.  As the :class:`Rates` say, messages are lost, duplicated, and delayed past
others and past their connection: such a stray goes to whoever answers to that name
when it arrives.

A subclass of :class:`BaseNetwork` knows who is at the ends: it delivers, and it is told
when a connection has ended.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from random import Random
from typing import Generic, TypeVar

from .events import Events, M, long_tailed

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
