"""Virtual time, processes and the links between them.

Theory of operation
-------------------
:class:`Events` is a heap of things to come; time jumps from one to the next.
A :class:`Process` runs what is posted to it, unless it is dead or held
(stopped, or its loop blocked): then that waits, and nothing of it moves.

A :class:`Link` is one connection.  It is first in, first out, until it is cut:
then what is on its way in either direction is lost, and a new link is made
later.  The sender never learns of a loss.  In *harsh* runs messages are also
doubled, and delayed past others and past their connection: such a stray goes
to whoever answers to that name when it arrives.
"""

from __future__ import annotations

import heapq
import itertools
import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple, Protocol

from ...core.errors import ProtocolError
from ...core.messages import Message, decode
from ...core.terms import Body
from .faults import Fault, Plan

Frames = Sequence[Body]
_pack = struct.Struct("<d").pack

LOST = ("<-x LOST", "->x LOST")
"""The way of a message that never arrives: from the server, to it."""

STRAY = "-> stray"
"""The way of a message to the server that overtook others, or came late."""


class Record(NamedTuple):
    """One line of a trace: something that happened, or a message."""

    at_s: float
    who: str
    """Who it happened to; for a message the client or worker, whichever way it went."""
    what: str
    """For a message its way: ``->`` to the server, ``<-`` from it, or how it was lost."""
    frames: Frames | None = None

    def __str__(self) -> str:
        text = self.what if self.frames is None else f"{self.what} {describe(self.frames)}"
        return f"{self.at_s:10.4f}  {self.who:<12} {text}"


class Events:
    """The virtual clock, everything that is to happen, and a digest of what has."""

    def __init__(self, *, trace: bool) -> None:
        self.now_s = 0.0
        self.count = 0
        self.trace: list[Record] | None = [] if trace else None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._hash = blake2b(digest_size=16)

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call ``act(*args)`` in ``delay_s`` of virtual time."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._order), act, args))

    def step(self) -> bool:
        """Do what comes next; False if nothing does."""
        if not self._heap:
            return False
        self.now_s, _, act, args = heapq.heappop(self._heap)
        self.count += 1
        act(*args)
        return True

    def note(self, who: str, what: str) -> None:
        """Something happened: into the digest, and into the log if there is one."""
        self._hash.update(_pack(self.now_s) + who.encode() + what.encode())
        if self.trace is not None:
            self.trace.append(Record(self.now_s, who, what))

    def note_message(self, who: str, arrow: str, frames: Frames) -> None:
        """A message was sent or arrived."""
        self._hash.update(_pack(self.now_s) + who.encode() + arrow.encode() + b"".join(frames))
        if self.trace is not None:
            self.trace.append(Record(self.now_s, who, arrow, frames))

    def digest(self) -> str:
        """The hash of the whole trace."""
        return self._hash.hexdigest()


def message_of(frames: Frames) -> Message | None:
    """The message whose header is among these frames; None for garbage."""
    for frame in frames:
        try:
            return decode(frame, most_bytes=1 << 20)
        except ProtocolError:
            continue
    return None


def describe(frames: Frames) -> str:
    """A message for people, ids shortened."""
    message = message_of(frames)
    if message is None:
        return f"{len(frames)} frames of garbage"
    fields = [
        f"{name}={value.hex()[:6] if isinstance(value, bytes) else value!r}"
        for name, value in zip(message._fields, message, strict=True)
        if name not in ("server", "stats")
    ]
    return f"{type(message).__name__}({', '.join(fields)})"


def long_tailed(rng: Random, mean_s: float) -> float:
    """A time that is mostly short and sometimes very long.

    Not the exponential distribution: its logarithm may differ in the last digit
    between systems, and a seed is to give the same run on all of them.
    """
    return mean_s * (1.0 / math.sqrt(1.0 - rng.random()) - 1.0)


class Process:
    """Something that lives, may be held up, and dies once.

    Each draws from a source of its own, so that a schedule with less in it leaves
    the others' luck as it was: failures shrink better.
    """

    def __init__(self, events: Events, name: str, rng: Random) -> None:
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


class Server(Protocol):
    """What a link needs to know of a server."""

    client_links: dict[bytes, Link]
    worker_links: dict[bytes, Link]

    @property
    def alive(self) -> bool:
        """Whether it has not died."""

    def take_in(self, link: Link, frames: Frames) -> None:
        """A message has arrived."""


class Peer(Protocol):
    """What a link needs to know of a client or a worker."""

    name: str
    rng: Random

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""

    def cut_off(self) -> None:
        """The connection is gone."""


class Link:
    """One connection between a peer and a server."""

    def __init__(self, route: bytes, peer: Peer, server: Server, *, worker: bool) -> None:
        self.route = route
        self.peer = peer
        self.server = server
        self.worker = worker
        self.open = True
        self.half_open = False
        self.last_s = [0.0, 0.0]
        """When the last message in each direction arrives: none overtakes it."""

    def links(self, server: Server) -> dict[bytes, Link]:
        """Where a server finds links of this kind by their route."""
        return server.worker_links if self.worker else server.client_links


class Network:
    """Carries messages over links, with the losses of the plan."""

    def __init__(self, events: Events, plan: Plan, faults: Counter[Fault]) -> None:
        self.events = events
        self.plan = plan
        self.calm = False
        self.server: Server | None = None
        """Who listens at the address."""
        self.worker_named: dict[bytes, Peer] = {}
        """The newest worker of each id, of whatever epoch."""
        self._faults = faults
        self._routes = itertools.count(1)

    def connect(self, peer: Peer, route: bytes, *, worker: bool) -> Link | None:
        """A connection to whoever listens, or None if nobody does."""
        server = self.server
        if server is None or not server.alive:
            return None
        link = Link(route, peer, server, worker=worker)
        links = link.links(server)
        old = links.get(route)
        if old is not None:
            old.open = False  # the newest connection takes a route over
        links[route] = link
        return link

    def new_route(self) -> bytes:
        """A routing id that was never used."""
        return b"\x00%04d" % next(self._routes)

    def cut(self, link: Link | None) -> None:
        """The connection ends; what is on its way is lost."""
        if link is None or not link.open:
            return
        link.open = False
        self._forget(link)
        link.peer.cut_off()

    def _forget(self, link: Link) -> None:
        links = link.links(link.server)
        if links.get(link.route) is link:
            del links[link.route]

    def close(self, link: Link | None) -> None:
        """The peer's process is dead: nothing reaches it, and what it has sent
        still arrives, or does not."""
        if link is not None:
            link.open = link.open and link.peer.rng.random() < 0.7
            self._forget(link)

    def send(self, link: Link | None, frames: Frames, *, up: bool) -> None:
        """Put a message on its way: ``up`` to the server, else to the peer."""
        if link is None or not link.open or link.half_open:
            return
        rng, plan = link.peer.rng, self.plan
        if plan.loss and not self.calm and rng.random() < plan.loss:
            self._faults[Fault.LOSE] += 1
            self.events.note_message(link.peer.name, LOST[up], frames)
            return
        delay_s = rng.uniform(*plan.delay_s)
        if plan.mangle and not self.calm and rng.random() < plan.mangle:
            self._faults[Fault.MANGLE] += 1
            for _ in range(rng.choice((1, 1, 2, 3))):
                late_s = delay_s + long_tailed(rng, rng.choice((3.0, 0.5, 0.02)))
                self.events.after(late_s, self._stray, link, frames, up)
            return
        arrives_s = max(self.events.now_s + delay_s, link.last_s[up])
        link.last_s[up] = arrives_s
        self.events.after(arrives_s - self.events.now_s, self._arrive, link, frames, up)

    def _arrive(self, link: Link, frames: Frames, up: bool) -> None:
        if link.open and not link.half_open:
            self._hand_over(link, link.peer, frames, up)
        else:
            self.events.note_message(link.peer.name, LOST[up], frames)

    def _stray(self, link: Link, frames: Frames, up: bool) -> None:
        """A message that has outlived its connection, or overtaken others."""
        if up:
            if self.server is not None:
                self.events.note_message(link.peer.name, STRAY, frames)
                self.server.take_in(link, frames)
            return
        peer = self.worker_named.get(link.route, link.peer) if link.worker else link.peer
        self._hand_over(link, peer, frames, up)

    def _hand_over(self, link: Link, peer: Peer, frames: Frames, up: bool) -> None:
        self.events.note_message(peer.name, "->" if up else "<-", frames)
        if up:
            link.server.take_in(link, frames)
        else:
            peer.take_in(frames)
