"""Conformance of workers: the bench, the cases, and the run of them.

A bench is the worker's process, and the router's side of its link.

Theory of operation
-------------------
Each case starts the worker anew, as a server does, and plays the router by hand: it
says what the case needs and nothing else.  All that the worker says is kept in the order
in which it came.

The bench waits for two more beats of the worker before it says that something does *not*
happen: by then the worker has read what was said before.  So a slow machine can make a
wrong worker pass, but never a right one fail.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar, cast, final

import cbor2
import trio

from ...core import error_records, messages
from ...core.errors import ErrorInfo, ProtocolError
from ...core.heartbeat import Heartbeat
from ...core.limits import PROTOCOL_VERSION, ServerLimits, WireLimits
from ...core.messages import (
    Announced,
    Beat,
    Dispatch,
    Fetch,
    Hello,
    MessageRow,
    Retire,
    RouterChanged,
    Stop,
    WorkerHello,
    WorkerOutcome,
)
from ...core.ranges import Ranges
from ...core.terms import ID_BYTES, Body, Status
from ...host.processes import WorkerProcess, start_process
from ...net import Stream, open_stream, unwrap_single
from ...net.framing import FramingError
from ...worker.config import WorkerConfig
from .findings import Case, CaseFailed, Finding, TimedOut, case, check
from .peer import Received, body_of
from .run import ConformanceReport, judge_case
from .script import cases_of

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
        self.received: list[Received] = []
        """Its messages, each with the frames behind its incarnation."""
        self.heartbeats: list[Heartbeat] = []
        self._to = incarnation
        self._epoch = b""
        """That of the router that it plays; empty: the first one."""
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
            self.received.append(Received(message, (*client, *alone)))
        self._tell()

    def _break(self, expected: str, seen: str) -> None:
        self._broken = self._broken or CaseFailed(expected, seen)

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def note(self, heartbeat: Heartbeat) -> None:
        """A sign of life came."""
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
        said = [each.message for each in self.received if not isinstance(each.message, Beat)]
        return f"last it said {said[-1]}" if said else "it said nothing"

    def all(self, cls: type[M]) -> list[M]:
        """Its messages of that kind so far."""
        return [each.message for each in self.received if type(each.message) is cls]

    # -- what must come, and what must not: words of scripts -----------------------------

    async def hellos(self, count: list[int]) -> None:
        """Wait for so many hellos."""
        await self.until(lambda: len(self.all(WorkerHello)) >= count[0], f"{count[0]} hellos")
        hello = self.all(WorkerHello)[0]
        check(hello.version == PROTOCOL_VERSION, f"version {PROTOCOL_VERSION}", hello)

    async def signs(self, count: list[int]) -> None:
        """Wait for so many signs of life."""
        await self.until(lambda: len(self.heartbeats) >= count[0], f"{count[0]} signs of life")

    async def outcome(
        self, n: int, status: str = "any", verdict: str = "any", code: str = "any"
    ) -> None:
        """Wait for the outcome of a dispatch, which must be its own."""

        def came() -> list[Received]:
            outcomes = (e for e in self.received if isinstance(e.message, WorkerOutcome))
            return [each for each in outcomes if each.message.number == n]

        await self.until(lambda: bool(came()), f"the outcome of dispatch {n}")
        message, frames = first = came()[0]
        right = (message.session, message.sequence) == (self.session, n)
        check(right, "the dispatch's session and sequence in the outcome", message)
        check(frames[0] == CLIENT.encode(), "the dispatch's client, as bytes", frames[0])
        check(messages.is_status(message.status), "status 0, 1 or 2", message)
        info = error_of(first) if message.status else None
        if status != "any":
            check(message.status == Status[status], f"status {status}", info or message)
        if verdict != "any":
            right = info is not None and (verdict, code) in (
                (info.verdict.name, info.code), (info.verdict.name, "any")
            )  # fmt: skip
            check(right, f"{code}, {verdict}", info or message)
        for announced in (each for each in self.all(Announced) if each.number == n):
            size = announced.size_bytes
            check(len(frames[-1]) == size, f"a body of {size} bytes", len(frames[-1]))

    async def announced(self, n: int) -> None:
        """Wait for the announcement of an outcome to this router."""
        text = "an announcement: announce_bytes is 1"
        await self.until(lambda: bool(self._since_hello(Announced)), text)
        found = self._since_hello(Announced)[0]
        right = (found.session, found.sequence, found.number) == (self.session, n, n)
        check(right, "the dispatch's ids in its announcement", found)

    def _since_hello(self, cls: type[M]) -> list[M]:
        """Its messages of that kind since its last hello."""
        said = [each.message for each in self.received]
        at = max(n for n, each in enumerate(said) if type(each) is WorkerHello)
        return [each for each in said[at:] if type(each) is cls]

    async def quiet(self) -> None:
        """Wait for two more beats: until then it has read what was said."""
        since = len(self.all(Beat))
        await self.until(lambda: len(self.all(Beat)) >= since + 2, "two more beats")

    async def _beat(self) -> Beat:
        """Its next beat, which counts what it has sent since its hello."""
        await self.quiet()
        said = [each.message for each in self.received]
        at = max(n for n, each in enumerate(said) if type(each) is Beat)
        first = max(n for n, each in enumerate(said[:at]) if type(each) is WorkerHello)
        sent = sum(not isinstance(each, messages.UNCOUNTED) for each in said[first:at])
        beat = cast(Beat, said[at])
        check(beat.sent == sent, f"{sent} messages sent", beat)
        return beat

    async def said(self, kind: str, count: list[int]) -> None:
        """It has said so many messages of this kind, when it has read what was said."""
        await self.quiet()
        found = self.all(getattr(messages, kind))
        check(len(found) == count[0], f"{count[0]} messages {kind}", found)

    async def no_more(self, kind: str) -> None:
        """It says no further message of this kind."""
        await self.quiet()
        await self.said(kind, [len(self.all(getattr(messages, kind)))])

    async def live(self, sequences: list[int] | str) -> None:
        """Its next beat names these dispatches as live (or ``none``), to the router of now."""
        beat, wanted = await self._beat(), [] if sequences == "none" else [*sequences]
        check(beat.live == Ranges(map(int, wanted)).flat(), f"{sequences} live", beat)
        check(beat.epoch == self._epoch, f"epoch {self._epoch.hex() or 'empty'}", beat)

    async def counted(self, count: list[int]) -> None:
        """Its next beat counts so many messages from the router of now."""
        beat = await self._beat()
        check(beat.received == count[0], f"{count[0]} messages received", beat)

    async def ended(self, how: str = "") -> None:
        """Wait for the end of its process: by itself, if ``in-order``."""
        with trio.move_on_after(self._patience_s):
            while self._ended is None:
                await self._news.wait()
        if self._ended is None:
            raise TimedOut("the end of its process", "its process lives")
        right = not how or self._ended == "it exited with status 0"
        check(right, "exit with status 0", self._ended)

    # -- what the router says -------------------------------------------------

    async def ready(self) -> None:
        """Wait for its hello."""
        await self.hellos([1])

    def say(self, message: messages.Message, *body: Body) -> None:
        """A message of the router."""
        self.send(self._to, messages.encode(message), *body)

    def send(self, *frames: Body) -> None:
        """Any frames."""
        if not self._stream.send_nowait(frames):
            raise CaseFailed("a worker that reads its link", "what was said is not read")

    def to_another(self) -> None:
        """From now on what is said is for another incarnation."""
        self._to = secrets.token_bytes(ID_BYTES)

    def body_of(self, of: str = "input") -> bytes:
        """The body of a dispatch of an input; of the ``longest`` there is."""
        inputs = self.subject.inputs
        of = ("long" if "long" in inputs else "input") if of == "longest" else of
        return b"\xff\xff" if of == "unreadable" else body_of(inputs[of])

    def dispatch(self, n: int, of: str = "input") -> None:
        """Dispatch an input; its sequence is its number."""
        self.say(Dispatch(self.session, n, n, CLIENT), self.body_of(of))

    def dispatch_late(self, n: int) -> None:
        """Dispatch an input whose rollout is late when it begins."""
        self.say(Dispatch(self.session, n, n, CLIENT, None, 0.0), self.body_of())

    def dispatch_together(self, sequences: list[int]) -> None:
        """Dispatch inputs as one batch."""
        body = self.body_of()
        rows: list[MessageRow] = [(Dispatch(self.session, n, n, CLIENT), body) for n in sequences]
        ((header, bodies),) = messages.in_batches(rows)
        self.send(self.incarnation, header, bodies)

    async def change(self) -> None:
        """Go on as another router: its hello comes again, and then a beat."""
        self._epoch = secrets.token_bytes(ID_BYTES)
        self.say(RouterChanged(self._epoch))
        await self.hellos([2])
        hello = self.all(WorkerHello)[-1]
        check(hello.epoch == self._epoch, f"epoch {self._epoch.hex()}", hello)
        await self.until(lambda: bool(self._since_hello(Beat)), "a beat behind its hello")
        beat = self._since_hello(Beat)[0]
        right = (beat.epoch, beat.received) == (self._epoch, 0)
        check(right, "a beat of that epoch, with nothing received", beat)

    def stop(self, sequences: list[int]) -> None:
        """Stop dispatches."""
        self.say(Stop(Ranges(sequences).flat()))

    def fetch(self, sequences: list[int]) -> None:
        """Ask for announced outcomes."""
        self.say(Fetch(Ranges(sequences).flat(), []))

    def unwanted(self, sequences: list[int]) -> None:
        """Let announced outcomes be dropped."""
        self.say(Fetch([], Ranges(sequences).flat()))

    def retire(self) -> None:
        """Let it end."""
        self.say(Retire())

    def hang_up(self) -> None:
        """The server ends: both sockets are closed on its side."""
        self.process.hang_up()


def error_of(outcome: Received) -> ErrorInfo:
    """The error record of an outcome."""
    try:
        record = cbor2.loads(outcome.frames[-1])
    except Exception as error:  # whatever cbor2 makes of it
        raise CaseFailed("an error record as the body", type(error).__name__) from None
    info = error_records.decode(outcome.frames[-1])
    check(info.code != "unreadable", "an error record with code, verdict and message", record)
    return info


@asynccontextmanager
async def open_worker_bench(
    subject: Subject, *, patience_s: float, announce_bytes: int | None = None
) -> AsyncIterator[WorkerBench]:
    """Start the worker, and tell it what it is to host."""
    incarnation = secrets.token_bytes(ID_BYTES)
    limits = ServerLimits(beat_s=BEAT_S, heartbeat_s=BEAT_S)
    if announce_bytes is not None:
        limits = ServerLimits(beat_s=BEAT_S, heartbeat_s=BEAT_S, announce_bytes=announce_bytes)
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
                nursery.start_soon(process.listen, bench.note)
                yield bench
                nursery.cancel_scope.cancel()
    finally:
        await process.aclose()


# == The cases about workers: the link between router and worker, from the router's side

STARTED = "How it is started"
SAID = "What is said"
TOO_MANY = 65_537
"""Dispatches in one message: one more than a worker takes."""

SCRIPTS = """
== How it is started

G9 signs-of-life-come-by-themselves
A line of JSON comes on the signs with each heartbeat_s, whether or not there is work.
    signs 3

G1 it-does-not-outlive-its-server
When the signs and the link end, the worker exits, whatever it runs.
    dispatch 0 longest; quiet; hang-up; ended

== What is said

wire a-hello-comes-once
One hello comes before the first beat, and no other.
    hellos 1; no-more WorkerHello

wire beats-name-what-is-live
A beat has the epoch, the count of messages that have arrived, and no dispatch that is over.
    dispatch 0,3; outcome 0,3; live none; counted 2

wire what-runs-is-live needs=long
A dispatch that runs is named as live, until its outcome is sent.
    dispatch 1 long; live 1; stop 1; outcome 1; live none; counted 2

G3 a-dispatch-gets-one-outcome
A dispatch is run and gets one outcome, a result, with its ids and its client.
    dispatch 0; outcome 0 RESULT; said WorkerOutcome 1

G3 dispatches-may-share-a-batch
The rows of a batch of dispatches are taken as if they had come one by one.
    dispatch-together 0,1,3; outcome 0,1,3; said WorkerOutcome 3; live none; counted 3

G3 a-dispatch-that-is-late-is-run-as-any-other
With late_s the rollout is told when it is late, and nothing is stopped.
    dispatch-late 0; outcome 0 RESULT; said WorkerOutcome 1

G5 what-is-for-another-incarnation-is-ignored
A dispatch for another incarnation is not run, and does not count as a message.
    to-another; dispatch 0; retire; live none; counted 0; said WorkerOutcome 0

G4 an-outcome-is-sent-once
An outcome is sent once, and its dispatch is live no more.
    dispatch 0-2; outcome 0-2; said WorkerOutcome 3; live none

G7 a-stop-ends-what-runs needs=long
A Stop reaches the environment's code, and the outcome says MAY_HAVE_RUN.
    dispatch 0 long; said WorkerOutcome 0; stop 0; outcome 0 CANCELLED MAY_HAVE_RUN cancelled

G7 a-stop-of-what-is-over-is-ignored
A Stop of a dispatch whose outcome was sent changes nothing.
    dispatch 0; outcome 0; stop 0; said WorkerOutcome 1; live none; counted 2

G1 executions-run-beside-each-other needs=long
A long execution does not keep others from being run.
    dispatch 0 long; dispatch 1; outcome 1

G9 an-unreadable-body-did-not-run
A body that cannot be read is an outcome like any other: an error, DID_NOT_RUN.
    dispatch 0 unreadable; outcome 0 ERROR DID_NOT_RUN

G9 a-failed-rollout-is-an-error-record needs=failing
A rollout that fails ends as status 1 with rollout-failed, RAN_AND_FAILED.
    dispatch 0 failing; outcome 0 ERROR RAN_AND_FAILED rollout-failed

G8 a-large-outcome-is-announced-first
A large outcome is announced by its size, and sent when a Fetch asks for it.  Until then it is live.
    dispatch 0; announced 0; said WorkerOutcome 0; live 0; fetch 0; outcome 0; live none

G8 an-unwanted-outcome-is-dropped
An announced outcome that a Fetch names as unwanted is dropped, and never sent.
    dispatch 0; announced 0; unwanted 0; live none; fetch 0; said WorkerOutcome 0

G4 another-router-is-told-what-is-held
After RouterChanged the hello comes again, then what is held, then a beat; from then on it counts.
    dispatch 0; announced 0; change; announced 0; live 0; counted 0; fetch 0; outcome 0; live none

G1 another-router-is-told-what-runs needs=long
What runs goes on under another router, which is told of it by the beats.
    dispatch 0 long; quiet; change; live 0; stop 0; outcome 0 CANCELLED; live none; counted 1

G8 retired-it-exits-with-status-0
After Retire the worker tears down and exits with status 0.
    dispatch 0; outcome 0; retire; ended in-order
"""


@case(SAID, "G8")
async def malformed_messages_change_nothing(b: WorkerBench) -> None:
    """A message that is not for workers is ignored, and what comes after it is done."""
    token = b.incarnation
    b.send(b"")
    b.send(token)
    b.send(token, b"")
    b.send(token, b"\xff\x00 no header")
    b.send(token, messages.encode(Hello(PROTOCOL_VERSION, token, 1, "a client", 1000, token)))
    b.send(token, messages.encode(Dispatch(b.session, 7, 7, CLIENT)))  # it has no body
    b.send(token, cbor2.dumps([80, [0, 0], b.session, [1, 2, 3], [1, 2, 3], CLIENT]), b"")
    b.send(token, cbor2.dumps([80, [1, 1], b.session, [1, 2], [1, 2], CLIENT]), b"\xf6")
    b.send(token, messages.encode(Stop([5, 3])))
    b.send(token, messages.encode(Stop([0, 1])), b"a frame too many")
    b.dispatch(0)
    await b.outcome(0, "RESULT")
    await b.live("none")


@case(SAID, "G10")
async def a_message_that_names_too_many_is_ignored(b: WorkerBench) -> None:
    """A Stop, or Fetch, of more than 65,536 dispatches is malformed, and changes nothing."""
    b.say(Stop([0, TOO_MANY]))
    b.say(Fetch([0, 2**40], [0, 2**40]))
    b.dispatch(0)
    await b.outcome(0, "RESULT")


ANNOUNCING = frozenset(
    (
        "a-large-outcome-is-announced-first",
        "an-unwanted-outcome-is-dropped",
        "another-router-is-told-what-is-held",
    )
)
"""These tell the worker that every outcome is large."""

WORKER_CASES: tuple[Case, ...] = tuple(
    sorted(
        (
            *(each for each in list(globals().values()) if type(each) is Case),
            *cases_of(SCRIPTS),
        ),
        key=lambda each: (STARTED, SAID).index(each.section),
    )
)
"""Every case, in the order of the protocol document."""


# == Runs cases about a worker: each starts it anew, and plays the router to it
#
# ::
#
#     from trio_envserve.lab.conformance.workers import Subject
#     from trio_envserve.lab.conformance.workers import WorkerOptions, conform_worker
#
#     subject = Subject(["node", "worker.mjs"], None, {}, {"input": {"text": "one two"}})
#     report = trio.run(conform_worker, WorkerOptions(subject))
#     assert report.ok, report.failed

ABREAST = 2
"""Cases at a time: each has a worker of its own, so none sees another."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The cases to judge, and how patiently."""

    subject: Subject
    cases: Sequence[Case] = WORKER_CASES
    patience_s: float = 10.0
    """How long to wait for anything that a case expects, the first hello too."""
    told: Callable[[Finding], object] = lambda finding: None
    """Called with each finding as it falls."""


async def conform_worker(options: WorkerOptions) -> ConformanceReport:
    """Judge a worker."""
    subject = options.subject
    findings: dict[Case, Finding] = {}
    began_s = trio.current_time()
    left = iter(options.cases)

    async def run(case: Case) -> None:
        announce_bytes = 1 if case.name in ANNOUNCING else None
        async with open_worker_bench(
            subject, patience_s=options.patience_s, announce_bytes=announce_bytes
        ) as bench:
            await bench.ready()
            await case.main(bench)

    async def judge() -> None:
        for one in left:
            lacking = [f"--{each}-input" for each in one.needs if each not in subject.inputs]
            reason = f"no {' and no '.join(lacking)} was given" if lacking else ""
            findings[one] = await judge_case(one, run, reason)
            options.told(findings[one])

    async with trio.open_nursery() as nursery:
        for _ in range(ABREAST):
            nursery.start_soon(judge)
    name = shlex.join(subject.command) or "this package's own worker"
    judged = tuple(findings[one] for one in options.cases)
    return ConformanceReport(name, judged, trio.current_time() - began_s)
