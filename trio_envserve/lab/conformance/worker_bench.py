"""The bench of a case about a worker: the worker's process, and the router's side of its link.

Theory of operation
-------------------
Each case starts the worker anew, as a server does, and plays the router by hand: it
says what the case needs and nothing else, so a worker is told no
:class:`~trio_envserve.core.messages.Statement` unless the case says one.  All that it
says is kept in the order in which it came.

The bench waits for two more beats of the worker before it says that something does *not*
happen: by then the worker has read what was said before.  So a slow machine can make a
wrong worker pass, but never a right one fail.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar, cast, final

import cbor2
import trio

from ...core import error_records, messages
from ...core.errors import ErrorInfo, ProtocolError
from ...core.heartbeat import Heartbeat
from ...core.limits import WireLimits, WorkerLimits
from ...core.terms import ID_BYTES, Body
from ...host.processes import WorkerProcess, start_process
from ...net import Stream, open_stream, unwrap_single
from ...net.framing import FramingError
from ...worker.config import WorkerConfig
from .findings import CaseFailed, TimedOut, check
from .forms import body_of

BEAT_S = 0.1
CLIENT = "a client's route"
M = TypeVar("M", bound=messages.Message)


class Subject(NamedTuple):
    """The worker to be judged, and what its environment can be asked."""

    command: Sequence[str]
    """Empty: this package's own worker."""
    environment: str | None
    args: dict[str, Any]
    inputs: dict[str, Any]
    """By name: ``input`` succeeds within seconds, ``long`` goes on until it is cancelled,
    and ``failing`` fails."""


class Heard(NamedTuple):
    """A message of the worker, and the frames behind its incarnation."""

    message: messages.Message
    frames: list[bytes]


@final
class WorkerBench:
    """One worker, started for one case.  Made by :func:`open_worker_bench`."""

    def __init__(
        self, subject: Subject, process: WorkerProcess, stream: Stream, incarnation: bytes,
        patience_s: float,
    ) -> None:  # fmt: skip
        self.subject = subject
        self.process = process
        self.incarnation = incarnation
        self.session = secrets.token_bytes(ID_BYTES)
        self.heard: list[Heard] = []
        self.heartbeats: list[Heartbeat] = []
        self._patience_s = patience_s
        self._stream = stream
        self._news = trio.Event()
        self._ended: str | None = None
        self._broken: CaseFailed | None = None

    # -- what the worker says -------------------------------------------------

    async def listen(self) -> None:
        """Take all that it says."""
        try:
            while True:
                for frames in await self._stream.receive():
                    self._take([bytes(frame) for frame in frames])
        except trio.EndOfChannel:
            pass
        except FramingError as error:
            self._break("frames as the document has them", str(error))
        except ProtocolError as error:
            self._break("messages as the document has them", str(error))
        self._tell()

    def _take(self, frames: list[bytes]) -> None:
        incarnation, *rest = frames
        if incarnation != self.incarnation:
            self._break("its incarnation before each message", incarnation[:40].hex())
        client = rest[:1] if len(rest) == 3 else []
        said = rest[len(client) :]
        for message, body in messages.read(said, most_bytes=WireLimits().header_bytes):
            alone = [messages.encode(message)] if body is None else [rest[-2], rest[-1]]
            if body is not None and messages.rows_claimed(said[0]) > 1:
                alone = [messages.encode(message), bytes(body)]
            self.heard.append(Heard(message, [*client, *alone]))
        self._tell()

    def _break(self, expected: str, seen: str) -> None:
        self._broken = self._broken or CaseFailed(expected, seen)

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def felt(self, heartbeat: Heartbeat) -> None:
        """A sign of life."""
        self.heartbeats.append(heartbeat)
        self._tell()

    async def reap(self) -> None:
        """Until its process has ended."""
        self._ended = await self.process.wait()
        self._tell()

    async def until(self, condition: Callable[[], bool], expected: str) -> None:
        """Wait for what the worker must do."""
        with trio.move_on_after(self._patience_s):
            while not condition():
                if self._broken is not None:
                    raise self._broken
                if self._ended is not None:
                    raise CaseFailed(expected, f"{self._ended}; {self._last()}")
                await self._news.wait()
            return
        raise TimedOut(expected, self._last())

    def _last(self) -> str:
        said = [each.message for each in self.heard if not isinstance(each.message, messages.Beat)]
        return f"last it said {said[-1]}" if said else "it said nothing"

    def all(self, cls: type[M], since: int = 0) -> list[M]:
        """Its messages of that kind, from that place of ``heard`` on."""
        return [cast(M, each.message) for each in self.heard[since:] if type(each.message) is cls]

    async def one(self, cls: type[M], expected: str, since: int = 0) -> M:
        """Wait for a message of that kind."""
        await self.until(lambda: bool(self.all(cls, since)), expected)
        return self.all(cls, since)[0]

    async def outcome(self, number: int = 0, since: int = 0) -> Heard:
        """Wait for the outcome of a dispatch, and look whether it is of that."""

        def found() -> list[Heard]:
            return [
                each
                for each in self.heard[since:]
                if isinstance(each.message, messages.WorkerOutcome)
                and each.message.number == number
            ]

        await self.until(lambda: bool(found()), f"the outcome of dispatch {number}")
        heard = found()[0]
        message = cast(messages.WorkerOutcome, heard.message)
        check(
            (message.session, message.sequence) == (self.session, number),
            "the dispatch's session and sequence in the outcome", message,
        )  # fmt: skip
        check(heard.frames[0] == CLIENT.encode(), "the dispatch's client, as bytes",
              heard.frames[0])  # fmt: skip
        check(messages.is_status(message.status), "status 0, 1 or 2", message)
        return heard

    async def quiet(self) -> None:
        """Wait for two more beats: until then it has read what was said."""
        since = len(self.heard)
        await self.until(lambda: len(self.all(messages.Beat, since)) >= 2, "two more beats")

    async def nothing_of(self, cls: type[messages.Message], expected: str, since: int) -> None:
        """It says nothing of that kind, from that place of ``heard`` on."""
        await self.quiet()
        found = self.all(cls, since)
        check(not found, expected, found)

    async def ended(self, expected: str) -> str:
        """Wait for the end of its process; how it ended."""
        with trio.move_on_after(self._patience_s):
            while self._ended is None:
                await self._news.wait()
            return self._ended
        raise TimedOut(expected, "its process lives")

    # -- what the router says -------------------------------------------------

    async def ready(self) -> None:
        """Wait for its hello, and answer it."""
        await self.one(messages.WorkerHello, "a hello")
        self.state(0, 0)

    def say(self, message: messages.Message, *body: Body, incarnation: bytes = b"") -> None:
        """A message of the router."""
        self.send(incarnation or self.incarnation, messages.encode(message), *body)

    def send(self, *frames: Body) -> None:
        """Any frames."""
        if not self._stream.send_nowait(frames):
            raise CaseFailed("a worker that reads its link", "what was said is not read")

    def body_of(self, of: str = "input") -> bytes:
        """The body of a dispatch of an input."""
        return body_of(self.subject.inputs[of])

    def dispatch(self, number: int = 0, of: str = "input", *, body: bytes | None = None) -> None:
        """Dispatch an input; its sequence is its number."""
        self.say(
            messages.Dispatch(self.session, number, number, CLIENT),
            self.body_of(of) if body is None else body,
        )

    def state(
        self, beat: int, next: int, live: Sequence[int] = (), cancelled: Sequence[int] = ()
    ) -> None:
        """State what the router holds; ``live`` and ``cancelled`` are spans."""
        self.say(messages.Statement(beat, next, [*live], [*cancelled]))

    async def later_beat(self) -> int:
        """The number of a beat that it says from now on."""
        return (await self.one(messages.Beat, "a beat", len(self.heard))).beat

    async def missed(self, number: int = 0) -> Heard:
        """The message that it sends again when an outcome, or its announcement, was lost."""
        since = len(self.heard)
        self.state(await self.later_beat(), number + 1, [number, number + 1])
        kinds = (messages.WorkerOutcome, messages.Announced)

        def again() -> list[Heard]:
            return [each for each in self.heard[since:] if isinstance(each.message, kinds)]

        await self.until(lambda: bool(again()), "what was lost, sent again")
        return again()[0]

    def hang_up(self) -> None:
        """The server ends: both sockets are closed on its side."""
        self.process.hang_up()


def error_of(heard: Heard) -> ErrorInfo:
    """The error record of an outcome."""
    try:
        record = cbor2.loads(heard.frames[-1])
    except Exception as error:  # whatever cbor2 makes of it
        raise CaseFailed("an error record as the body", type(error).__name__) from None
    info = error_records.decode(heard.frames[-1])
    check(info.code != "unreadable", "an error record with code, verdict and message", record)
    return info


@asynccontextmanager
async def open_worker_bench(
    subject: Subject, *, patience_s: float, announce_bytes: int | None = None
) -> AsyncIterator[WorkerBench]:
    """Start the worker, and tell it what it is to host."""
    incarnation = secrets.token_bytes(ID_BYTES)
    limits = WorkerLimits(beat_s=BEAT_S, heartbeat_s=BEAT_S)
    if announce_bytes is not None:
        limits = WorkerLimits(beat_s=BEAT_S, heartbeat_s=BEAT_S, announce_bytes=announce_bytes)
    first = WorkerConfig(
        worker="w0-1", incarnation=incarnation, environment=subject.environment,
        args=subject.args, server="a bench that judges workers", limits=limits,
        wire=WireLimits(), path=[entry or os.getcwd() for entry in sys.path], logging={},
    ).to_frames()  # fmt: skip
    process = start_process(environ={}, command=subject.command)
    try:
        with unwrap_single():
            async with (
                open_stream(process.link, limits=WireLimits(), first=first) as stream,
                trio.open_nursery() as nursery,
            ):
                bench = WorkerBench(subject, process, stream, incarnation, patience_s)
                nursery.start_soon(bench.listen)
                nursery.start_soon(bench.reap)
                nursery.start_soon(process.listen, bench.felt)
                yield bench
                nursery.cancel_scope.cancel()
    finally:
        await process.aclose()
