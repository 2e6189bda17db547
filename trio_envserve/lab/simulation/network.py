"""The links between clients, servers and workers, and the messages on them.

A server is found at its address, clients and workers by their routes: so a message
that outlives its connection reaches whoever has that name then.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...core.errors import ProtocolError
from ...core.messages import KeyedRequest, Message, Said, ToSay, in_batches, one_by_one, read
from ...core.terms import Body, SentBody, whole
from ...retrylab.world import ARRIVED, STRAY, BaseLink, BaseNetwork, Events, Process, Rates

if TYPE_CHECKING:
    from .simulator import World

Frames: TypeAlias = Sequence[Body]


HEADER_BYTES = 1 << 20


def messages_of(frames: Frames) -> list[Message]:
    """The messages whose header is among these frames; none for garbage."""
    for at in range(len(frames)):
        try:
            return [message for message, _ in read(frames[at:], most_bytes=HEADER_BYTES)]
        except ProtocolError:
            continue
    return []


def singly(frames: Frames) -> list[Frames]:
    """The rows of a batch, each in one of its own, for those who look on."""
    for at in range(len(frames)):
        try:
            alone = list(one_by_one(frames[at:], most_bytes=HEADER_BYTES))
        except ProtocolError:
            continue
        return [(*frames[:at], *each) for each in alone] if len(alone) > 1 else [frames]
    return [frames]


class SentAlone(list[Body]):
    """Frames of one message, which judges need not decode again."""

    __slots__ = ("said",)

    def __init__(
        self, before: tuple[SentBody, ...], frames: tuple[SentBody, ...], said: ToSay
    ) -> None:  # fmt: skip
        super().__init__(map(whole, (*before, *frames)))
        message, body = said
        self.said: Sequence[Said] = ((message, None if body is None else self[-1]),)


def said_in(frames: Frames, at: int = 0) -> Sequence[Said]:
    """The messages from this frame on, each with its body; none for garbage."""
    if type(frames) is SentAlone:
        return frames.said
    try:
        return read(frames[at:] if at else frames, most_bytes=HEADER_BYTES)
    except ProtocolError:
        return ()


def describe(frames: Frames) -> str:
    """A message for people, ids shortened."""
    found = messages_of(frames)
    if not found:
        return f"{len(frames)} frames of garbage"
    return " + ".join(map(_text, found))


def _text(message: Message) -> str:
    fields = [
        f"{name}={value.hex()[:6] if isinstance(value, bytes) else value!r}"
        for name, value in zip(message._fields, message, strict=True)
        if name not in ("server", "stats")
    ]
    return f"{type(message).__name__}({', '.join(fields)})"


class SimProcess(Process):
    """A process of a server or of a worker: its stops and its death are events."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.events, name, world.luck_of(name))
        self.world = world

    def hold(self, why: str) -> None:
        """Hold the process until this reason is released."""
        is_stop = why == "stopped" and why not in self._holds
        super().hold(why)
        if is_stop:
            self.world.happened("is", self.name, "", {"stopped_s": self.events.now_s})

    def release(self, why: str) -> None:
        """Let the process move again, unless another reason holds it."""
        now_s, since_s, facts = self.events.now_s, self._holds.get(why), {}
        if why == "stopped":
            facts = {"stopped_s": None, "continued_s": now_s}
        if since_s is not None and len(self._holds) == 1:
            held_s = self.held_s + (now_s - since_s)
            facts |= {"held_s": held_s, "held_times": self.held_times + 1}
        if facts and self.alive:
            self.world.happened("is", self.name, "", facts)
        super().release(why)

    def die(self, how: str) -> None:
        """End the process."""
        if self.alive:
            super().die(how)
            self.world.happened("is", self.name, "", {"died_s": self.died_s})


class Server(Protocol):
    """The part of a server that a link needs."""

    client_links: dict[bytes, Link]
    worker_links: dict[bytes, Link]

    @property
    def alive(self) -> bool:
        """Whether it has not died."""

    def take_in(self, link: Link, frames: Frames) -> None:
        """A message has arrived."""


class Peer(Protocol):
    """The part of a client or a worker that a link needs."""

    name: str
    rng: Random

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""

    def cut_off(self) -> None:
        """The connection is gone."""


class Link(BaseLink):
    """One connection between a peer and a server."""

    def __init__(self, route: bytes, peer: Peer, server: Server, *, worker: bool) -> None:
        super().__init__(peer.name, peer.rng)
        self.route = route
        self.peer = peer
        self.server = server
        self.worker = worker

    def links(self, server: Server) -> dict[bytes, Link]:
        """Where a server finds links of this kind by their route."""
        return server.worker_links if self.worker else server.client_links


class Outgoing:
    """The messages of one turn: grouped as the shells group them, or one by one.  Both
    must come to the same."""

    def __init__(self, network: Network, *, grouped: bool) -> None:
        self._network = network
        self._grouped = grouped
        self._waiting: dict[Link, list[tuple[tuple[SentBody, ...], ToSay]]] = {}

    def say(
        self, link: Link | None, said: ToSay, before: tuple[SentBody, ...], *, up: bool
    ) -> None:
        """A message, with what stands before its header."""
        if link is not None and self._grouped:
            self._waiting.setdefault(link, []).append((before, said))
        else:
            self._alone(link, before, said, up)

    def _alone(
        self, link: Link | None, before: tuple[SentBody, ...], said: ToSay, up: bool
    ) -> None:  # fmt: skip
        for frames in in_batches((said,)):
            self._network.send(link, SentAlone(before, frames, said), up=up)

    def leave(self, *, up: bool) -> None:
        """The turn is over."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for link, all_said in waiting.items():
            for before, of_one in itertools.groupby(all_said, operator.itemgetter(0)):
                said = [each for _, each in of_one]
                if len(said) == 1:
                    self._alone(link, before, said[0], up)
                    continue
                for frames in _together(said):
                    self._network.send(link, [*map(whole, (*before, *frames))], up=up)


def _together(said: Iterable[ToSay]) -> Iterator[tuple[SentBody, ...]]:
    """Requests for keys travel alone.  What is right to tell one of them depends on whether
    another came before it, and the judge sees what is told once all of a message is done.
    (That their batches come to the same is shown of the router alone.)"""
    company: list[ToSay] = []
    for each in said:
        if isinstance(each[0], KeyedRequest):
            yield from in_batches(company)
            yield from in_batches((each,))
            company = []
        else:
            company.append(each)
    yield from in_batches(company)


class Network(BaseNetwork[Link, Frames]):
    """The listeners, and the ends of each link."""

    def __init__(self, events: Events[Frames], rates: Rates) -> None:
        super().__init__(events, rates)
        self.server: Server | None = None
        """The server that listens at the address."""
        self.worker_named: dict[bytes, Peer] = {}
        """The newest worker of each id, of whatever epoch."""
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

    def ended(self, link: Link, *, cut: bool) -> None:
        """The server finds it no more; who was cut off connects again."""
        links = link.links(link.server)
        if links.get(link.route) is link:
            del links[link.route]
        if cut:
            link.peer.cut_off()

    def deliver(self, link: Link, frames: Frames, *, up: bool, stray: bool) -> None:
        """To its server or peer; a stray to whoever is at the address, or has the name."""
        if up:
            server = self.server if stray else link.server
            if server is not None:
                way = STRAY if stray else ARRIVED
                self.events.note_message(link.name, way[up], frames)
                server.take_in(link, frames)
            return
        named = stray and link.worker
        peer = self.worker_named.get(link.route, link.peer) if named else link.peer
        self.events.note_message(peer.name, ARRIVED[up], frames)
        peer.take_in(frames)
