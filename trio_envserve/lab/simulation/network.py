"""The links between clients, servers and workers, and the messages on them.

A server is found at its address, and clients by their routes: so a message that outlives its
connection reaches whoever has that name then.  The link of a worker is a stream, which loses
nothing until it ends.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple, Protocol, TypeAlias

from ...core import host_messages
from ...core.errors import ProtocolError
from ...core.messages import (
    BATCHED,
    MessageRow,
    Request,
    ToSay,
    encode,
    in_batches,
    read,
    rows_claimed,
)
from ...core.terms import Body, SentBody, whole
from ...retrylab.world import ARRIVED, LOST, STRAY, BaseLink, BaseNetwork, Events, Rates

Frames: TypeAlias = Sequence[Body]


HEADER_BYTES = 1 << 20


def said_anywhere(frames: Frames) -> Sequence[MessageRow]:
    """The messages whose header is among these frames, each with its body; none for garbage."""
    for at in range(len(frames)):
        try:
            return read(frames[at:], most_bytes=HEADER_BYTES)
        except ProtocolError:
            continue
    return ()


class SentFrames(list[Body]):
    """Frames of one message, or of the rows of a batch, which nobody who looks on need decode."""

    __slots__ = ("said",)

    def __init__(
        self, before: tuple[SentBody, ...], frames: tuple[SentBody, ...], said: Sequence[ToSay]
    ) -> None:  # fmt: skip
        super().__init__(map(whole, (*before, *frames)))
        self.said: Sequence[MessageRow] = [
            (message, None if body is None else whole(body)) for message, body in said
        ]


def said_in(frames: Frames, at: int = 0) -> Sequence[MessageRow]:
    """The messages from this frame on, each with its body; none for garbage."""
    if type(frames) is SentFrames:
        return frames.said
    try:
        return read(frames[at:] if at else frames, most_bytes=HEADER_BYTES)
    except ProtocolError:
        return ()


def describe(frames: Frames) -> str:
    """A message for people, ids shortened."""
    found: list[NamedTuple] = [*of_host(frames)]
    found = found or [message for message, _ in said_anywhere(frames)]
    if not found:
        return f"{len(frames)} frames of garbage"
    return " + ".join(map(_text, found))


def is_kind(frames: Frames, kind: type[host_messages.HostMessage]) -> bool:
    """Whether a message between a host and its router has this kind, to be decoded then."""
    # The second item of a short array: an integer of two bytes.
    return len(frames[0]) > 2 and frames[0][2] == host_messages.KINDS[kind]


def of_host(frames: Frames) -> list[host_messages.HostMessage]:
    """The message between a host and its router that this is; none for others."""
    try:
        return [host_messages.decode(frames, most_bytes=HEADER_BYTES)[0]]
    except ProtocolError:
        return []


def _text(message: NamedTuple) -> str:
    fields = [
        f"{name}={value.hex()[:6] if isinstance(value, bytes) else value!r}"
        for name, value in zip(message._fields, message, strict=True)
        if name not in ("server", "stats")
    ]
    return f"{type(message).__name__}({', '.join(fields)})"


class LinkServer(Protocol):
    """The part of a server that a link needs."""

    links: dict[str, dict[bytes, SimulatedLink]]
    """Of each kind of peer (:attr:`SimulatedLink.kind`), by route."""

    @property
    def alive(self) -> bool:
        """Whether it has not died."""

    def take_in(self, link: SimulatedLink, frames: Frames) -> None:
        """A message has arrived."""


class LinkPeer(Protocol):
    """The part of a client or a worker that a link needs."""

    name: str
    rng: Random

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""

    def cut_off(self) -> None:
        """The connection is gone."""


CLIENT, WORKER, HOST = "client", "worker", "host"
"""The kinds of peers."""


class SimulatedLink(BaseLink):
    """One connection between a peer and a server."""

    def __init__(self, route: bytes, peer: LinkPeer, server: LinkServer, kind: str) -> None:
        super().__init__(peer.name, peer.rng)
        self.route = route
        self.peer = peer
        self.server = server
        self.kind = kind
        self.is_stream = kind == WORKER
        self.cuts: Sequence[int] = (0, 0)
        """Number of faults that let nothing pass from the server, and to it."""


class Carrier(Protocol):
    """Whoever carries messages over a link."""

    def send(self, link: SimulatedLink | None, message: Frames, *, up: bool) -> None:
        """Put a message on its way: ``up`` to the server."""


class TurnMessages:
    """The messages of one turn: grouped as the shells group them, or one by one.  Both
    must come to the same."""

    def __init__(self, carrier: Carrier, *, grouped: bool) -> None:
        self._carrier = carrier
        self._grouped = grouped
        self._waiting: dict[SimulatedLink, list[tuple[tuple[SentBody, ...], ToSay]]] = {}

    def say(
        self, link: SimulatedLink | None, said: ToSay, before: tuple[SentBody, ...], *, up: bool
    ) -> None:
        """A message, with what stands before its header."""
        if link is not None and self._grouped:
            self._waiting.setdefault(link, []).append((before, said))
        else:
            self._alone(link, before, said, up)

    def _alone(
        self, link: SimulatedLink | None, before: tuple[SentBody, ...], said: ToSay, up: bool
    ) -> None:  # fmt: skip
        message, body = said
        header = encode(message)
        frames = (header,) if body is None else (header, body)
        self._carrier.send(link, SentFrames(before, frames, (said,)), up=up)

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
                    is_batch = type(said[0][0]) in BATCHED
                    count = rows_claimed(whole(frames[0])) if is_batch else 1
                    rows, said = said[:count], said[count:]
                    self._carrier.send(link, SentFrames(before, frames, rows), up=up)


def _together(said: Iterable[ToSay]) -> Iterator[tuple[SentBody, ...]]:
    """Requests for keys travel alone.  What is right to tell one of them depends on whether
    another came before it, and the judge sees what is told once all of a message is done.
    (That their batches come to the same is shown of the router alone.)"""
    company: list[ToSay] = []
    for each in said:
        if isinstance(each[0], Request) and each[0].key is not None:
            yield from in_batches(company)
            yield from in_batches((each,))
            company = []
        else:
            company.append(each)
    yield from in_batches(company)


class SimulatedNetwork(BaseNetwork[SimulatedLink, Frames]):
    """The listeners, and the ends of each link."""

    def __init__(self, events: Events[Frames], rates: Rates) -> None:
        super().__init__(events, rates)
        self.server: LinkServer | None = None
        """The server that listens at the address."""
        self._routes = itertools.count(1)

    def connect(self, peer: LinkPeer, route: bytes, kind: str) -> SimulatedLink | None:
        """A connection to whoever listens, or None if nobody does."""
        server = self.server
        if server is None or not server.alive:
            return None
        link = SimulatedLink(route, peer, server, kind)
        links = server.links[kind]
        old = links.get(route)
        if old is not None:
            old.open = False  # the newest connection takes a route over
        links[route] = link
        return link

    def new_route(self) -> bytes:
        """A routing id that was never used."""
        return b"\x00%04d" % next(self._routes)

    def send(self, link: SimulatedLink | None, message: Frames, *, up: bool) -> None:
        """Put a message on its way, unless nothing passes there."""
        if link is None or not link.cuts[up]:
            super().send(link, message, up=up)
        else:
            self.events.note_message(link.name, LOST[up], message)

    def ended(self, link: SimulatedLink, *, cut: bool) -> None:
        """The server finds it no more; who was cut off connects again."""
        links = link.server.links[link.kind]
        if links.get(link.route) is link:
            del links[link.route]
        if cut:
            link.peer.cut_off()

    def deliver(self, link: SimulatedLink, frames: Frames, *, up: bool, stray: bool) -> None:
        """To its server or peer; a stray to whoever is at the address."""
        if up:
            server = self.server if stray else link.server
            if server is not None:
                way = STRAY if stray else ARRIVED
                self.events.note_message(link.name, way[up], frames)
                server.take_in(link, frames)
            return
        self.events.note_message(link.peer.name, ARRIVED[up], frames)
        link.peer.take_in(frames)
