"""The bench of a case: peers, counts of runs, and the fault proxy.

Theory of operation
-------------------
Each case has a :class:`Bench` of its own and leaves nothing behind: when it
ends, all its sessions are ended and all its gates opened, by a connection of
the bench's own, which also shows that the server still answers.

Counts are asked for by that connection, as requests of a session of its own.  They are
the environment's word; nothing is believed that the server says of itself.  The bench
waits for a start that *must come*.  It looks once more, a moment later (``settle_s``),
whether there is one that must *not* come, since it may be on its way.  Too short a moment
can only let a wrong server pass.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias, final

import trio

from ...core import messages
from ...net import Network
from ...testing.proxy import FaultProxy, open_fault_proxy
from .findings import CaseFailed, CaseSkipped, TimedOut, Unreachable, check
from .peer import LOOK_S, ConformancePeer, RawSocket, open_peer, open_raw_peer

RESTART_S = 30.0
"""For a server that was restarted to be there, with a worker."""

NAME = "conform-bench"

Restart: TypeAlias = "Callable[[], Awaitable[object]]"


class Counts(NamedTuple):
    """The starts of a key, and the ends of its runs."""

    started: int
    results: int
    errors: int
    cancelled: int

    @property
    def running(self) -> int:
        """Runs that have not ended (a killed worker's never do)."""
        return self.started - self.results - self.errors - self.cancelled


@final
class Bench:
    """The bench of a case.  Made by :func:`open_bench`."""

    def __init__(
        self, network: Network, address: str, control: ConformancePeer, *, patience_s: float,
        settle_s: float, limits: Mapping[str, float], restart: Restart | None,
        restarting: trio.Lock,
    ) -> None:  # fmt: skip
        self.network = network
        self.address = address
        self.patience_s = patience_s
        self.settle_s = settle_s
        self._control = control
        self._limits = limits
        self._restart = restart
        self._restarting = restarting
        self._peers: list[ConformancePeer] = []
        self._sessions: set[bytes] = set()
        self._sequences = itertools.count()
        self._keys = itertools.count()
        self._word = secrets.token_hex(8)
        self._gates: set[str] = set()
        self._most: dict[str, int] = {}
        """By key of an input: how often it may have run."""
        self._asking = 0
        self._asked_s = trio.current_time()

    # -- peers ----------------------------------------------------------------

    @asynccontextmanager
    async def connection(self, *, through: str | None = None) -> AsyncIterator[ConformancePeer]:
        """A connection without a session."""
        async with open_peer(
            self.network, through or self.address, patience_s=self.patience_s
        ) as peer:
            self._peers.append(peer)
            yield peer

    @asynccontextmanager
    async def raw(self, identity: bytes) -> AsyncIterator[tuple[ConformancePeer, RawSocket]]:
        """A connection made by hand that states this identity, without a session."""
        opened = open_raw_peer(self.address, patience_s=self.patience_s, identity=identity)
        async with opened as (peer, socket):
            self._peers.append(peer)
            yield peer, socket

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[ConformancePeer]:
        """A connection with a new session."""
        async with self.connection(**options) as peer:
            await peer.hello()
            yield peer

    def be_patient(self, seconds: float) -> None:
        """Wait longer than usual for what is counted, such as for a new worker."""
        self.patience_s = max(self.patience_s, seconds)
        self._control.patience_s = self.patience_s

    # -- the server -----------------------------------------------------------

    def limit(self, name: str, most: float) -> float:
        """A limit of the server.  Skips the case if it is not known, or above ``most``."""
        value = self._limits.get(name)
        if value is None:
            raise CaseSkipped(f"it needs a server with a small {name}, and to be told which")
        skip_unless(value <= most, f"the server's {name} is {value:g}; {most:g} is the most here")
        return value

    async def restart(self) -> None:
        """Have the server killed and started anew.  Skips the case if nobody can."""
        if self._restart is None:
            raise CaseSkipped("it needs a way to restart the server, and to be told it")
        self.be_patient(RESTART_S)
        async with self._restarting:
            await self._restart()
            await self._control.hello(name=NAME)
            self._sequences = itertools.count()

    def end_later(self, session: bytes) -> None:
        """End this session, too, when the case has ended."""
        self._sessions.add(session)

    def proxy(self, seed: int = 0) -> AbstractAsyncContextManager[FaultProxy]:
        """A fault proxy in front of the server."""
        return open_fault_proxy(self.address, seed=seed)

    # -- inputs ---------------------------------------------------------------

    def key(self) -> str:
        """A key that nobody has used."""
        return f"{self._word}-{next(self._keys)}"

    def nonce(self) -> bytes:
        """A nonce that nobody has used."""
        return secrets.token_bytes(16)

    def input(self, operation: str, **fields: Any) -> dict[str, Any]:
        """An input.  It runs once at most, or as often as the last :meth:`ran` of it says: that
        is looked at when the case is over."""
        asked = {"op": operation, "key": self.key(), **fields}
        self._most[asked["key"]] = 1
        return asked

    def echo(self, value: Any = None) -> dict[str, Any]:
        """An input that is answered with its value."""
        return self.input("echo", value=value)

    def wait(self, *, stubborn: bool = False, **fields: Any) -> dict[str, Any]:
        """An input that runs until :meth:`open`, or for its ``seconds``."""
        asked = self.input("wait", stubborn=stubborn, **fields)
        self._gates.add(asked["key"])
        return asked

    def held(self) -> dict[str, Any]:
        """An input that waits as well, and is to run any number of times."""
        asked = self.wait()
        del self._most[asked["key"]]
        return asked

    # -- the environment's word ------------------------------------------------

    async def open(self, asked: dict[str, Any]) -> None:
        """Let what waits go on."""
        await self.ask({"op": "open", "key": asked["key"]})
        self._gates.discard(asked["key"])

    async def counts(self, asked: dict[str, Any]) -> Counts:
        """How often this input ran so far."""
        found = await self.ask({"op": "count", "key": asked["key"]})
        try:
            return Counts(*(int(found[name]) for name in Counts._fields))
        except (TypeError, KeyError, ValueError):
            expected = f"counts by {', '.join(Counts._fields)} from the environment"
            raise CaseFailed(expected, repr(found)) from None

    async def counted(self, asked: dict[str, Any], what: str, **wanted: int) -> Counts:
        """Wait until these counts (or ``running``) are so; fails the case if
        they never are."""
        counts = None
        with trio.move_on_after(self.patience_s):
            while True:
                counts = await self.counts(asked)
                if all(getattr(counts, name) == number for name, number in wanted.items()):
                    return counts
                if any(
                    getattr(counts, name) > number
                    for name, number in wanted.items()
                    if name != "running"
                ):
                    break  # they only ever grow
                await trio.sleep(LOOK_S)
        numbers = ", ".join(f"{name} {number}" for name, number in wanted.items())
        seen = "no count from the environment" if counts is None else repr(counts)
        raise CaseFailed(f"{what}: {numbers}", seen)

    async def ran(self, asked: dict[str, Any], times: int, what: str) -> None:
        """Fail the case unless it was started so often, now and a moment later."""
        await self.counted(asked, what, started=times)
        await trio.sleep(self.settle_s)
        await self.counted(asked, what, started=times)
        self._most[asked["key"]] = times

    async def check_runs(self) -> None:
        """Fail the case if anything ran more often than it may."""
        await trio.sleep(self.settle_s)
        for key, most in self._most.items():
            counts = await self.counts({"key": key})
            check(counts.started <= most, f"{most} runs of what is asked for at most", counts)

    async def ask(self, asked: dict[str, Any]) -> Any:
        """The result of a request of the bench's own session."""
        control = self._control
        if not self._asking and trio.current_time() - self._asked_s > self._lease_s() / 2:
            # A case may take longer than a small lease without asking anything.
            control.goodbye()
            await control.hello(name="conform-bench")
            self._sequences = itertools.count()
        self._asking += 1
        try:
            sequence = next(self._sequences)
            control.transmit(sequence, asked)
            value = await control.result(sequence, f"the environment's answer to {asked['op']!r}")
        finally:
            self._asking -= 1
        control.finish(sequence)
        self._asked_s = trio.current_time()
        return value

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[tuple[list[ConformancePeer], AsyncExitStack]]:
        """Peers that are to be at work until the end, each with sequence 0 pending, and where to
        open them.  Their leases do not end, and the bench's own session makes no room for them."""
        control, sequence = self._control, next(self._sequences)
        control.transmit(sequence, self.wait())
        await control.barrier()
        peers: list[ConformancePeer] = []

        async def ping() -> None:
            while True:
                await trio.sleep(min(self._lease_s() / 8, 60.0))
                control.sync_nowait(sequence + 1, [sequence, sequence + 1])
                for peer in peers:
                    peer.sync_nowait(1, [0, 1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping)
            async with AsyncExitStack() as stack:
                try:
                    yield peers, stack
                finally:
                    for peer in peers:
                        peer.goodbye()
                    peers.clear()  # they are not pinged any more
            nursery.cancel_scope.cancel()
        await control.cancel(sequence)

    def _lease_s(self) -> float:
        """How long a session lives without a word, as far as it is known."""
        return self._limits.get("lease_s", math.inf)

    # -- the end --------------------------------------------------------------

    async def clear(self) -> None:
        """End all sessions of the case; fails it if the server does not answer."""
        control = self._control
        for session in self._sessions | {peer.session for peer in self._peers}:
            if session:
                control.send(messages.Goodbye(session))
        for key in sorted(self._gates):
            await self.ask({"op": "open", "key": key})
        control.goodbye()
        try:
            await control.barrier()
        except CaseFailed as error:
            raise CaseFailed("a server that answers after all this", error.seen) from None


@asynccontextmanager
async def open_bench(
    network: Network, address: str, *, patience_s: float, settle_s: float,
    limits: Mapping[str, float], restart: Restart | None, restarting: trio.Lock,
) -> AsyncIterator[Bench]:  # fmt: skip
    """A bench, closed at the end of the block.  Raises :class:`Unreachable`."""
    async with AsyncExitStack() as stack:
        try:
            opened = open_peer(network, address, patience_s=patience_s)
            control = await stack.enter_async_context(opened)
            await control.hello(name=NAME)
        except TimedOut as error:
            raise Unreachable("a server that answers", error.seen) from None
        yield Bench(
            network, address, control, patience_s=patience_s, settle_s=settle_s,
            limits=limits, restart=restart, restarting=restarting,
        )  # fmt: skip


def skip_unless(right: bool, why: str) -> None:
    """Skip the case unless it can be judged."""
    if not right:
        raise CaseSkipped(why)
