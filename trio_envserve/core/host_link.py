"""Items between a host and its router: each arrives once, in order, whatever is lost.

Theory of operation
-------------------
Each side numbers its items and keeps them until the other has them.  With each beat and
each answer both say how many they have sent and how many have come.  Between the two ends
of one connection nothing overtakes: so if a beat's answer says that less has come than was
sent before that beat, the rest was lost, and all of it is sent again.  The same after a
reconnect.  What comes twice, or leaves a gap, is dropped by who receives it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .errors import ProtocolError
from .host_messages import Items, encode
from .terms import Body, Membership

FRAMES_MOST = 60
"""Frames of all items in one message: a message of many more is refused by the framing."""
BATCH_BYTES = 1 << 20
"""Bytes of all items in one message, if they are more than one: the framing has a bound for
all that a message has."""
MARKS_MOST = 64
"""Of so many beats that are not answered it is known what was sent before: the newest."""


class ItemKind(enum.IntEnum):
    """The kind of an item: those of hosts, then those of routers."""

    MESSAGE = 0
    """A worker's message: its frames."""
    SPAWNED = 1
    """Its process was started: the pid."""
    EXITED = 2
    """Its process was reaped, or could not be started: how it ended.  Nothing of this worker
    comes later."""
    HEARTBEAT = 3
    """A heartbeat.  It has no number."""

    SPAWN = 16
    """Start a worker: the incarnation, and the number of its place on this host."""
    TELL = 17
    """A message to a worker: its frames."""
    KILL = 18
    """Kill it: why."""


class Item(NamedTuple):
    """One item."""

    kind: ItemKind
    worker: bytes
    frames: tuple[Body, ...]


class Outbox:
    """The items that are to arrive at the other side."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.sent = 0
        """So many were sent, and need not be sent now."""
        self._ever = 0
        """So many were ever sent."""
        self.bytes = 0
        """Of all that is kept."""
        self._kept: deque[Item] = deque()
        """Those that the other side is not known to have; the first has number _have + 1."""
        self._unsent: deque[Item] = deque()
        """The last ones of these, which are to be sent."""
        self._have = 0
        self._sent_at: dict[int, int] = {}
        """How many were sent before each beat, or answer."""

    def put(self, item: Item) -> None:
        """Keep it until it has arrived."""
        self._kept.append(item)
        self._unsent.append(item)
        self.bytes += _size(item)

    def __len__(self) -> int:
        """How many items the other side is not known to have."""
        return len(self._kept)

    @property
    def put_in_all(self) -> int:
        """How many there were ever, sent or not."""
        return self._have + len(self._kept)

    def stated(self, beat: int) -> int:
        """How many were sent: to be said with this beat, or its answer."""
        self._sent_at[beat] = self.sent
        if len(self._sent_at) > MARKS_MOST:
            del self._sent_at[next(iter(self._sent_at))]
        return self.sent

    def received(self, have: int, beat: int) -> None:
        """The other side said, after what was stated with that beat had come, that it has so
        many.  If they are less than were sent before, the rest is sent again."""
        if have > self._ever:
            raise ProtocolError(f"{have} items have come, and {self._ever} were sent")
        while self._have < have:
            self.bytes -= _size(self._kept.popleft())
            self._have += 1
        while self.sent < have:  # they have arrived, and were to be sent again
            self._unsent.popleft()
            self.sent += 1
        before = self._sent_at.get(beat, 0)
        self._sent_at = {n: s for n, s in self._sent_at.items() if n > beat}
        if self._have < before:
            self.again()

    def move(self, membership: Membership) -> Outbox:
        """Take the items that may not have arrived, for another router."""
        moved = Outbox(membership)
        for item in self._kept:
            moved.put(item)
        return moved

    def ends(self) -> set[bytes]:
        """The workers of which the other side may not know that they have ended."""
        return {item.worker for item in self._kept if item.kind is ItemKind.EXITED}

    def again(self) -> None:
        """All that may be lost is to be sent again, as after a reconnect."""
        self.sent = self._have
        self._unsent = self._kept.copy()
        self._sent_at.clear()

    def messages(self) -> Iterator[tuple[Body, ...]]:
        """All that is to be sent now, as messages."""
        waiting, self._unsent = self._unsent, deque()
        for batch in _batches(waiting):
            yield to_frames(self.membership, self.sent + 1, batch)
            self.sent += len(batch)
            self._ever = max(self._ever, self.sent)


class Inbox:
    """The items that have come from the other side."""

    def __init__(self) -> None:
        self.have = 0

    def take(self, message: Items, frames: Sequence[Body]) -> list[Item]:
        """Those of the items that come next.  ProtocolError for items that are none."""
        items = _items(message, frames)
        if not message.first:
            return items
        seen = self.have + 1 - message.first
        if seen < 0:
            return []  # some before them were lost
        fresh = items[seen:]
        self.have += len(fresh)
        return fresh


def to_frames(membership: Membership, first: int, items: Sequence[Item]) -> tuple[Body, ...]:
    """These items as one message."""
    header = Items(
        membership, first, [int(item.kind) for item in items], [item.worker for item in items],
        [len(item.frames) for item in items],
    )  # fmt: skip
    return (encode(header), *(frame for item in items for frame in item.frames))


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
