"""The reliable link between a host and its router: items arrive once and in order.

Theory of operation
-------------------
Each side has an outbox and an inbox.  It numbers its items, and keeps each in the outbox until the
other side has it.  Each beat of the host and each answer of the router states how many items that
side has sent and how many have arrived there.  A connection keeps its messages in order.  So if the
answer to a beat states fewer arrivals than were sent before that beat, the rest was lost, and is
sent again; likewise after a reconnect.  The receiver drops items that arrive twice or leave a gap.

What a router has of a host may be lost with it.  So each answer also states how many of the host's
items are safe: a later router needs none of these.  The host keeps the others for it, the last
:data:`ARRIVED_BYTES` of them.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from .errors import ProtocolError
from .host_messages import Items, decode, encode
from .terms import Body, Membership

FRAMES_MOST = 60
"""Most frames of all items of one message: the framing refuses messages of many more."""
BATCH_BYTES = 1 << 20
"""Most bytes of all items of one message with more than one: the framing bounds a message."""
ARRIVED_BYTES = 64 << 20
"""Most bytes of items that have arrived and are not safe: older ones are dropped (G8)."""
MARKS_MOST = 64
"""Number of the latest unanswered beats for which the count of items sent before is kept."""


class ItemKind(enum.IntEnum):
    """The kind of an item: first those of hosts, then those of routers."""

    MESSAGE = 0
    """A message of a worker.  Frames: its frames."""
    SPAWNED = 1
    """A worker's process was started.  Frame: the pid."""
    EXITED = 2
    """A worker's process was reaped, or could not be started.  Frame: how it ended.  The last item
    of its worker."""
    HEARTBEAT = 3
    """A heartbeat of a worker's process, sent without a number.  Frame: its line."""

    SPAWN = 16
    """Start a worker.  Frames: the incarnation, and the index of its place on the host."""
    TELL = 17
    """A message to a worker.  Frames: its frames."""
    KILL = 18
    """Kill a worker.  Frame: the reason."""
    ASK = 19
    """Ask a worker's process where an execution stands, sent without a number.  Frames: the number
    of its dispatch, and the id of its request as logs have it."""


class Item(NamedTuple):
    """A report of a host about a worker, or an order of the router for one."""

    kind: ItemKind
    worker: bytes
    frames: tuple[Body, ...]


class Outbox:
    """The items that the other side is not known to have."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.sent = 0
        """Number of the last item that was sent and need not be sent again now."""
        self._ever = 0
        """Number of the last item that was ever sent."""
        self.bytes = 0
        """Bytes of all kept items."""
        self._kept: deque[Item] = deque()
        """Items that the other side is not known to have; the first has number ``_have + 1``."""
        self._unsent: deque[Item] = deque()
        """The last of these, which are to be sent."""
        self._have = 0
        """Number of the last item that the other side is known to have."""
        self._arrived: deque[Item] = deque()
        """Items before that which may not be safe; the last has number ``_have``."""
        self.arrived_bytes = 0
        """Bytes of these."""
        self._sent_at: dict[int, int] = {}
        """Value of ``sent`` at each unanswered beat, or answer."""

    def put(self, item: Item) -> None:
        """Append an item, which is kept until it has arrived."""
        self._kept.append(item)
        self._unsent.append(item)
        self.bytes += _size(item)

    def __len__(self) -> int:
        """Number of items that the other side is not known to have."""
        return len(self._kept)

    @property
    def put_in_all(self) -> int:
        """Number of items that were ever appended, sent or not."""
        return self._have + len(self._kept)

    def stated(self, beat: int) -> int:
        """The number of sent items, to be stated with this beat or its answer."""
        self._sent_at[beat] = self.sent
        if len(self._sent_at) > MARKS_MOST:
            del self._sent_at[next(iter(self._sent_at))]
        return self.sent

    def received(self, have: int, beat: int, safe: int | None = None) -> None:
        """Take in that the other side had ``have`` items when it read what was stated with a beat,
        and that ``safe`` of them are safe; None: all are.  If more had been sent before that beat,
        the rest is sent again.  ProtocolError if ``have`` is more than was ever sent."""
        if have > self._ever:
            raise ProtocolError(f"{have} items are said to have arrived, {self._ever} were sent")
        while self._have < have:
            item = self._kept.popleft()
            self.bytes -= _size(item)
            self.arrived_bytes += _size(item)
            self._arrived.append(item)
            self._have += 1
        unsafe = self._have - (have if safe is None else safe)
        while self._arrived and (
            len(self._arrived) > unsafe or self.arrived_bytes > ARRIVED_BYTES
        ):  # fmt: skip
            self.arrived_bytes -= _size(self._arrived.popleft())
        while self.sent < have:  # these were to be sent again, but have arrived
            self._unsent.popleft()
            self.sent += 1
        before = self._sent_at.get(beat, 0)
        self._sent_at = {n: s for n, s in self._sent_at.items() if n > beat}
        if self._have < before:
            self.again()

    def move(self, membership: Membership) -> Outbox:
        """A new outbox, for another router, with the items that may not be safe."""
        moved = Outbox(membership)
        for item in (*self._arrived, *self._kept):
            moved.put(item)
        return moved

    def ends(self) -> set[bytes]:
        """Names of the workers of whose end a later router may not know."""
        unsafe = chain(self._arrived, self._kept)
        return {item.worker for item in unsafe if item.kind is ItemKind.EXITED}

    def again(self) -> None:
        """Send all items again that may be lost, as after a reconnect."""
        self.sent = self._have
        self._unsent = self._kept.copy()
        self._sent_at.clear()

    def messages(self) -> Iterator[tuple[Body, ...]]:
        """The messages to send now, with all unsent items."""
        waiting, self._unsent = self._unsent, deque()
        for batch in _batches(waiting):
            yield to_frames(self.membership, self.sent + 1, batch)
            self.sent += len(batch)
            self._ever = max(self._ever, self.sent)


class Inbox:
    """The count of the items that have arrived from the other side."""

    def __init__(self) -> None:
        self.have = 0
        """Number of the last item that has arrived."""

    def take(self, message: Items, frames: Sequence[Body]) -> list[Item]:
        """The new items of a message: without those that arrived before, and none if earlier ones
        are missing.  ProtocolError if an item is malformed."""
        items = _items(message, frames)
        if not message.first:
            return items
        seen = self.have + 1 - message.first
        if seen < 0:
            return []  # earlier ones were lost
        fresh = items[seen:]
        self.have += len(fresh)
        return fresh


def to_frames(membership: Membership, first: int, items: Sequence[Item]) -> tuple[Body, ...]:
    """One message with these items, the first of which has number ``first``; 0: none has one."""
    header = Items(
        membership, first, [int(item.kind) for item in items], [item.worker for item in items],
        [len(item.frames) for item in items],
    )  # fmt: skip
    return (encode(header), *(frame for item in items for frame in item.frames))


def items_of(
    frames: Sequence[Body], most_bytes: int, has_host: Callable[[Membership], bool]
) -> list[Item]:
    """The items of a message; none if it is of another kind, malformed, or of a membership that is
    not known."""
    try:
        message, rest = decode(frames, most_bytes=most_bytes)
        if isinstance(message, Items) and has_host(message.membership):
            return _items(message, rest)
    except ProtocolError:
        pass
    return []


def _items(message: Items, frames: Sequence[Body]) -> list[Item]:
    items: list[Item] = []
    at = 0
    columns = zip(message.what, message.workers, message.frames, strict=True)
    for what, worker, count in columns:
        if what not in ItemKind._value2member_map_:
            raise ProtocolError(f"unknown item {what}")
        items.append(Item(ItemKind(what), worker, tuple(frames[at : at + count])))
        at += count
    return items


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    frames = size = 0
    for item in items:
        frames, size = frames + len(item.frames), size + _size(item)
        if batch and (frames > FRAMES_MOST or size > BATCH_BYTES):
            yield batch
            batch, frames, size = [], len(item.frames), _size(item)
        batch.append(item)
    if batch:
        yield batch


def _size(item: Item) -> int:
    return sum(map(len, item.frames))
