"""A client that keeps to no rule: garbage, conflicts, late duplicates, holes.

It has a session of its own, and may do with it what it likes; the judge only
looks that nobody else suffers and that the guarantees hold for it as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import messages
from ...core.limits import PROTOCOL_VERSION
from ...core.terms import Body
from ...retrylab.world import Process
from .network import Frames, Link
from .plan import Fault

if TYPE_CHECKING:
    from .simulator import World


class HostileClient(Process):
    """Sends a random message, about ten times a second."""

    def __init__(self, world: World) -> None:
        super().__init__(world.events, "hostile", world.luck_of("hostile"))
        self.world = world
        self.link: Link | None = None
        self.session = b""
        self._sent: list[tuple[bytes, bytes]] = []
        self._count = 0
        self._act()

    def cut_off(self) -> None:
        """The connection is gone."""
        self.link = None

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""
        message, _ = messages.read(frames, most_bytes=1 << 20)[0]
        if isinstance(message, messages.Welcome):
            self.session = message.session
            self._sent.clear()
        elif isinstance(message, messages.Unknown) and message.session == self.session:
            self.session = b""

    def _act(self) -> None:
        if self.world.network.calm or not self.alive:
            return
        network = self.world.network
        if self.link is None:
            self.link = network.connect(self, network.new_route(), worker=False)
        for frames in self._thoughts():
            network.send(self.link, frames, up=True)
        self.events.after(self.rng.uniform(0.02, 0.2), self._act)

    def _thoughts(self) -> list[tuple[Body, ...]]:
        rng = self.rng
        if not self.session:
            nonce = self.world.new_id()
            version = PROTOCOL_VERSION + (rng.random() < 0.1)
            hello = messages.Hello(version, nonce, 1, "x" * 100, 1 << 20)
            return [(messages.encode(hello),)]
        self.world.faults[Fault.HOSTILE] += 1
        sequence = rng.randint(0, 60)
        match rng.randint(0, 12):
            case 0 | 1 | 2:
                return self._request(sequence)
            case 3:
                return [rng.choice(self._sent)] if self._sent else []
            case 4:
                finish = messages.Finish(self.session, [sequence, sequence + rng.randint(1, 9)])
                return [(messages.encode(finish),), *self._request(sequence)]
            case 5:
                cancel = messages.encode(messages.Cancel(self.session, sequence))
                return [(cancel,), *self._request(sequence)]
            case 6:
                start = rng.randint(0, 1 << 30)
                cancels = (messages.Cancel(self.session, start + 2 * n) for n in range(30))
                return [(messages.encode(cancel),) for cancel in cancels]
            case 7:
                garbage = bytearray(messages.encode(messages.Cancel(self.session, sequence)))
                garbage[rng.randrange(len(garbage))] ^= 1 << rng.randrange(8)
                return [(bytes(garbage),), (rng.randbytes(rng.randint(0, 20)),), ()]
            case 8:
                holes = [n for n in range(0, 2 * rng.randint(1, 90), 2) for n in (n, n + 1)]
                sync = messages.Sync(
                    self.session, self.world.new_id(), 1, 0, rng.randint(0, 200), holes
                )
                return [(messages.encode(sync),)]
            case 9:
                whose = self.world.new_id()  # it cannot know anybody's
                finish = messages.Finish(whose, [0, 1 << 20])
                return [(messages.encode(finish),), (messages.encode(messages.Goodbye(whose)),)]
            case 10:
                return [self._hello(self.world.new_id()) for _ in range(8)]
            case 11:
                nonce = self.world.new_id()
                goodbye = messages.encode(messages.Goodbye(nonce))
                return [self._hello(nonce), (goodbye,), self._hello(nonce)]
            case _:
                start = rng.randint(0, 1 << 30)
                return [*self._request(start), (messages.encode(
                    messages.Cancel(self.session, start)),)]  # fmt: skip

    def _hello(self, nonce: bytes) -> tuple[Body, ...]:
        hello = messages.Hello(PROTOCOL_VERSION, nonce, 1, "hostile", 1 << 20)
        return (messages.encode(hello),)

    def _request(self, sequence: int) -> list[tuple[Body, ...]]:
        """A request of its own body: a conflict if the sequence was used."""
        self._count += 1
        body = f"h:{self._count}|return|0.05|".encode()
        header = messages.encode(
            messages.Request(self.session, sequence, self.world.new_id(), False, 1, None)
        )
        self._sent.append((header, body))
        return [(header, body)]
