"""The engine for trio code as it is: ``async def`` programs on a virtual clock.

Theory of operation
-------------------
A :class:`Program` is an actor with a ``main``, which is a task.  A task may do what trio code
does: sleep, open nurseries, talk over streams.  Time jumps whenever all tasks wait
(``trio.testing.MockClock``), and the seed decides in which order tasks run
(:func:`on_virtual_clock`), so a seed is the same run each time.  What callers ask, faults,
judges, shrinking and drawing are those of any system: :func:`.run`, :func:`.check` and ``fuzz
--protocol`` take a system of programs as one of actors.

One task, the *world's*, does what is due in :class:`.Events`; all others are the programs'.
A program that is killed is cancelled, and can do nothing any more that outlives it.

A stream is bytes in order over the connection of two programs: an end of it breaks with
``trio.BrokenResourceError`` when the connection is cut, or the process at the other end dies.
TCP loses, doubles and reorders nothing while it stands, so these faults are left out, and
so are stops and wrong clocks: a task cannot be stopped, and there is one clock.
"""

from __future__ import annotations

import importlib
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import trio
from trio.testing import MockClock

from .author import raised
from .life import Killed
from .plan import Plan
from .run import ActorProcess, ActorWorld, Run, ran
from .system import Actor, BrokenSystem, Envelope, Fault, Piece, System
from .world import LATEST_S, LOOK_S, MOST_EVENTS, Events

LEFT_OUT = (Fault.LOSE, Fault.DUPLICATE, Fault.REORDER, Fault.STOP, Fault.DRIFT)
"""The faults that do not strike programs."""


class ReceivedAsk(NamedTuple):
    """Ask of a caller, as a program gets it."""

    request: str
    """Name of the request."""
    what: Any
    """Value that the caller asks for."""


@final
class ProgramStream(trio.abc.Stream):
    """One end of a stream between two programs."""

    def __init__(self, program: Program, peer: str, name: str) -> None:
        self.peer = peer
        """Name of the program at the other end."""
        self._program = program
        self._name = name
        self._pieces: deque[bytes | None] = deque()
        self._news = trio.Event()
        self._broken = self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; BrokenResourceError if the connection is gone."""
        await trio.lowlevel.checkpoint()
        self._check()
        if data:
            self._program.send(self.peer, Piece(self._name, bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: a stream has no bound."""
        await trio.lowlevel.checkpoint()
        self._check()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes; b"" if there will be none."""
        await trio.lowlevel.checkpoint()
        while not self._pieces:
            self._check()
            self._news = trio.Event()
            await self._news.wait()
        if self._closed:
            raise trio.ClosedResourceError
        piece = self._pieces[0]
        if piece is None:
            return b""
        if max_bytes is None or len(piece) <= max_bytes:
            self._pieces.popleft()
            return piece
        self._pieces[0] = piece[max_bytes:]
        return piece[:max_bytes]

    async def aclose(self) -> None:
        """Close this end; the other one reads the end of the stream."""
        if not self._closed and not self._broken and self._program._itself.alive:
            self._program.send(self.peer, Piece(self._name, None))
        self._closed = True
        self._news.set()
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._broken:
            raise trio.BrokenResourceError(f"the connection to {self.peer} is gone")

    def _arrived(self, piece: bytes | None) -> None:
        self._pieces.append(piece)
        self._news.set()

    def _break(self) -> None:
        self._broken = True
        self._news.set()


class Program(Actor):
    """A process of the system in trio code: subclass it, and write its :meth:`main`.

    A program lives from a start to a crash, as an actor does, and may do all that an actor does,
    but for timers: it sleeps.  ``trio.current_time()`` is the time since the run began.
    """

    async def main(self) -> None:
        """Run the program; when this returns, the process only waits for its end."""

    async def next_ask(self) -> ReceivedAsk:
        """Wait for the ask of a caller."""
        asked: ReceivedAsk = await self._queue("asks")[1].receive()
        return asked

    async def next_message(self) -> tuple[str, Any]:
        """Wait for a message by :meth:`.Actor.send`: its sender, and the message."""
        message: tuple[str, Any] = await self._queue("messages")[1].receive()
        return message

    async def open_stream(self, to: str) -> ProgramStream:
        """Open a stream to another program; its other end comes from :meth:`next_stream` there.

        Args:
            to: Name of the program.
        """
        await trio.lowlevel.checkpoint()
        self._opened = vars(self).get("_opened", 0) + 1
        name = f"{self.name}/{self._itself.number}/{self._opened}"
        stream = self._streams[name] = ProgramStream(self, to, name)
        self.send(to, Piece(name, b""))
        return stream

    async def next_stream(self) -> ProgramStream:
        """Wait for somebody to open a stream to this program."""
        stream: ProgramStream = await self._queue("streams")[1].receive()
        return stream

    # -- for the engine ---------------------------------------------------------------

    def on_ask(self, request: str, what: Any) -> None:
        """Queue an ask for :meth:`next_ask`."""
        self._queue("asks")[0].send_nowait(ReceivedAsk(request, what))

    def on_message(self, sender: str, message: Any) -> None:
        """Queue a message for :meth:`next_message`, or pass it to its stream."""
        if not isinstance(message, Piece):
            self._queue("messages")[0].send_nowait((sender, message))
        elif message.stream in self._streams:
            self._streams[message.stream]._arrived(message.data)
        elif message.data == b"":
            stream = self._streams[message.stream] = ProgramStream(self, sender, message.stream)
            self._queue("streams")[0].send_nowait(stream)

    def on_cut(self, peer: str) -> None:
        """Break the streams to this peer."""
        for name, stream in list(self._streams.items()):
            if stream.peer == peer:
                del self._streams[name]
                stream._break()

    @property
    def _streams(self) -> dict[str, ProgramStream]:
        streams: dict[str, ProgramStream] = vars(self).setdefault("_its_streams", {})
        return streams

    def _queue(self, name: str) -> Any:
        queues = vars(self).setdefault("_queues", {})
        if name not in queues:
            queues[name] = trio.open_memory_channel[Any](math.inf)
        return queues[name]

    @staticmethod
    def engine(system: System, seed: int, plan: Plan, *, trace: bool) -> Run:
        """Run a seed of a system of programs; :func:`.run` calls this."""
        return _trial(system, seed, plan, trace=trace)


class _Process(ActorProcess):
    """One life of a program: its task."""

    world: _World

    def __init__(self, world: ActorWorld, name: str, life: int) -> None:
        super().__init__(world, name, life)
        self.number = life
        self._scope = trio.CancelScope()

    def start(self) -> None:
        """Make the program, and start its task."""
        super().start()
        if isinstance(self.actor, Program) and self.alive and not self.world.crashes:
            self.world.nursery.start_soon(self._main, self.actor)

    async def _main(self, program: Program) -> None:
        with self._scope:
            try:
                await program.main()
            # An author's code may raise anything; a cancel in it is raised again below.
            except BaseException as error:  # noqa: ASYNC103
                further, own = _split(error, (trio.Cancelled, KeyboardInterrupt))
                _, own = _split(own, (Killed,))
                if own is not None and self.alive and not self.world.over:
                    self.crashed(f"{self.name}.main() raised", raised(own))
                if further is not None:
                    raise further from None  # noqa: ASYNC104

    def die(self, how: str) -> None:
        """End the process, and cancel its task."""
        super().die(how)
        self._scope.cancel()

    def start_timer(self, timer: str, delay_s: float) -> None:
        """Raise RuntimeError: a program sleeps instead."""
        raise RuntimeError("a program has no timers: it sleeps (trio.sleep)")


def _split(
    error: BaseException | None, kinds: tuple[type[BaseException], ...]
) -> tuple[BaseException | None, BaseException | None]:
    """Parts of an error that are of these kinds, and that are not."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)
    return (error, None) if isinstance(error, kinds) else (None, error)


class _Events(Events[Envelope]):
    """Events to come, by trio's clock."""

    def __init__(self, to_bytes: Callable[[Envelope], bytes], *, trace: bool) -> None:
        self.sooner = trio.Event()
        super().__init__(to_bytes, trace=trace)

    @property
    def now_s(self) -> float:
        """Time of trio's clock in seconds; 0 outside of trio."""
        return trio.current_time() if trio.lowlevel.in_trio_run() else 0.0

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        pass

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Schedule an event, which may be the next."""
        super().after(delay_s, act, *args)
        self.sooner.set()


class _World(ActorWorld):
    """World of a run of programs."""

    events: _Events
    nursery: trio.Nursery
    process = _Process
    over = False
    """Whether the run is over, so that nothing counts any more."""

    async def main(self) -> None:
        """Run until everything is at rest, or should be, or a program raises."""
        async with trio.open_nursery() as self.nursery:
            self.begin()
            until_s = self.busy_s + LATEST_S + self.system.patience_s
            look_at_s = self.busy_s + 1.0
            while self.events.count < MOST_EVENTS and not self.crashes:
                next_s = self.events.next_s()
                if next_s <= trio.current_time():
                    self.events.step()
                    continue
                if trio.current_time() >= look_at_s:
                    look_at_s = trio.current_time() + LOOK_S
                    if not self.left():
                        break
                if trio.current_time() >= until_s:
                    break
                self.events.sooner = trio.Event()
                with trio.move_on_at(min(next_s, look_at_s, until_s)):
                    await self.events.sooner.wait()
            self.ask_what_is_there()
            self.over = True
            self.nursery.cancel_scope.cancel()


def _trial(system: System, seed: int, plan: Plan, *, trace: bool) -> Run:
    for fault in LEFT_OUT:
        plan = plan.without(fault)
    world = _World(system, seed, plan, _Events(Envelope.to_bytes, trace=trace))
    on_virtual_clock(seed, world.main)
    return ran(world)


# -- time, and the order of tasks -------------------------------------------------------------


def on_virtual_clock(seed: int, main: Callable[..., Awaitable[object]], *args: Any) -> None:
    """Run trio code from its begin to its end: time jumps whenever all tasks wait, and the seed
    decides in which order they run.  BrokenSystem inside of a trio run, and with a version of
    trio whose order of tasks nobody knows.

    Args:
        seed: The seed.
        main: The code.
        *args: Its arguments.
    """
    if trio.lowlevel.in_trio_run():
        raise BrokenSystem("a run of programs has a loop of its own: call it from a plain function")
    with _seeded(seed):
        trio.run(main, *args, clock=MockClock(autojump_threshold=0))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let the seed decide in which order trio runs tasks, as pytest-trio and
    Hypothesis do, and what the module ``random`` draws."""
    order, names = _scheduler()
    before = order.getstate(), random.getstate(), names[_IN_ORDER]
    order.seed(seed)
    random.seed(seed)
    names[_IN_ORDER] = True
    try:
        yield
    finally:
        order.setstate(before[0])
        random.setstate(before[1])
        names[_IN_ORDER] = before[2]


_IN_ORDER = "_ALLOW_DETERMINISTIC_SCHEDULING"


def _scheduler() -> tuple[random.Random, dict[str, Any]]:
    """The generator by which trio orders tasks, and the names of trio's module.

    There is no public way: trio offers this to Hypothesis only, by a hook that sets
    the same two names for the rest of the process.  BrokenSystem for a version of
    trio without these names: its runs could not be repeated.
    """
    try:
        names = vars(importlib.import_module("trio._core._run"))
        order = names["_r"]
    except (ImportError, KeyError):
        order, names = None, {}
    if not isinstance(order, random.Random) or not isinstance(names.get(_IN_ORDER), bool):
        raise BrokenSystem(
            f"nobody knows how trio {trio.__version__} orders its tasks, so no seed "
            "would give the same run twice: use a trio between 0.29 and 0.35"
        )
    return order, names
