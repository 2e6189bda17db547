"""Conformance of workers: the bench, the cases, and the run of them.

A bench is the worker's process, and the router's side of its link.

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
from ...core.limits import PROTOCOL_VERSION, WireLimits, WorkerLimits
from ...core.messages import (
    Announced,
    Beat,
    Declined,
    Dispatch,
    Fetch,
    Hello,
    Missing,
    Retire,
    Said,
    Stop,
    WorkerHello,
    WorkerOutcome,
)
from ...core.terms import ID_BYTES, Body, Status, Verdict
from ...host.processes import WorkerProcess, start_process
from ...net import Stream, open_stream, unwrap_single
from ...net.framing import FramingError
from ...worker.config import WorkerConfig
from .findings import Case, CaseFailed, Finding, TimedOut, case, check
from .peer import body_of
from .run import Report, judge_case

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


# == The cases about workers: the link between router and worker, from the router's side

STARTED = "How it is started"
SAID = "What is said"
TOO_MANY = 65_537
"""Dispatches in one message: one more than a worker takes."""


async def _ends_as(b: WorkerBench, status: Status) -> Heard:
    """The outcome of dispatch 0, which must have this status."""
    heard = await b.outcome()
    assert isinstance(heard.message, WorkerOutcome)
    seen = error_of(heard) if heard.message.status else heard.message
    check(heard.message.status == status, f"status {status.value}, {status.name.lower()}", seen)
    return heard


async def _fails_as(b: WorkerBench, status: Status, verdict: Verdict, code: str = "") -> None:
    """The outcome of dispatch 0 has this status, and an error with this verdict and code."""
    info = error_of(await _ends_as(b, status))
    right = info.verdict is verdict and code in ("", info.code)
    check(right, f"{code}, {verdict.name}".removeprefix(", "), info)


@case(SAID, "wire")
async def a_hello_is_repeated_until_a_state_comes(b: WorkerBench) -> None:
    """The hello comes again with later beats, until a Statement answers it, and then no more."""
    hello = await b.one(WorkerHello, "a hello")
    check(hello.version == PROTOCOL_VERSION, f"version {PROTOCOL_VERSION}", hello)
    since = len(b.heard)
    await b.one(WorkerHello, "a second hello, as nobody has answered", since)
    b.state(0, 0)
    await b.quiet()
    await b.nothing_of(WorkerHello, "no hello after a Statement", len(b.heard))


@case(SAID, "wire")
async def beats_are_numbered_and_name_what_has_arrived(b: WorkerBench) -> None:
    """Beats are numbered 1, 2, 3, …, and seen are the spans of the dispatches that arrived."""
    b.dispatch(0)
    b.dispatch(3)
    await b.outcome(0)
    await b.outcome(3)
    await b.quiet()
    beats = b.all(Beat)
    check([beat.beat for beat in beats] == list(range(1, len(beats) + 1)), "1, 2, 3, …", beats)
    check(beats[-1].seen == [0, 1, 3, 4], "seen [0, 1, 3, 4]", beats[-1])


@case(STARTED, "G9")
async def signs_of_life_come_by_themselves(b: WorkerBench) -> None:
    """A line of JSON comes on the signs with each heartbeat_s, whether or not there is work."""
    await b.until(lambda: len(b.heartbeats) >= 3, "three signs of life")


@case(SAID, "G3")
async def a_dispatch_gets_one_outcome(b: WorkerBench) -> None:
    """A dispatch is run and gets one outcome, a result, with its ids and its client."""
    b.dispatch()
    await _ends_as(b, Status.RESULT)
    since = len(b.heard)
    await b.nothing_of(WorkerOutcome, "no second outcome", since)


@case(SAID, "G3")
async def dispatches_may_share_a_batch(b: WorkerBench) -> None:
    """The rows of a batch of dispatches are taken as if they had come one by one."""
    body = b.body_of()
    rows: list[Said] = [(Dispatch(b.session, n, n, CLIENT), body) for n in (0, 1, 3)]
    ((header, bodies),) = messages.in_batches([*rows, rows[0]])
    b.send(b.incarnation, header, bodies)
    for number in (0, 1, 3):
        await b.outcome(number)
    await b.quiet()
    check(len(b.all(WorkerOutcome)) == 3, "three outcomes", b.all(WorkerOutcome))
    check(b.all(Beat)[-1].seen == [0, 2, 3, 4], "seen [0, 2, 3, 4]", b.all(Beat)[-1])


@case(SAID, "G1")
async def a_number_seen_before_is_not_run_again(b: WorkerBench) -> None:
    """A dispatch that arrives three times is run once."""
    for _ in range(3):
        b.dispatch()
    await b.outcome()
    b.dispatch()
    await b.quiet()
    found = b.all(WorkerOutcome)
    check(len(found) == 1, "one outcome", found)


@case(SAID, "G5")
async def what_is_for_another_incarnation_is_ignored(b: WorkerBench) -> None:
    """A dispatch for another incarnation is not run, and has not been seen."""
    other = os.urandom(ID_BYTES)
    b.say(Dispatch(b.session, 0, 0, CLIENT), b"", incarnation=other)
    b.say(Retire(), incarnation=other)
    await b.quiet()
    check(b.all(Beat)[-1].seen == [], "nothing seen", b.all(Beat)[-1])
    check(not b.all(WorkerOutcome), "no outcome", b.all(WorkerOutcome))


@case(SAID, "G4")
async def a_lost_outcome_is_sent_again(b: WorkerBench) -> None:
    """An outcome that a Statement of a later beat still wants is sent again, byte for byte."""
    b.dispatch()
    first = await b.outcome()
    for _ in range(2):
        again = await b.missed()
        check(again.frames == first.frames, "the same frames again", again.message)


@case(SAID, "G8")
async def an_outcome_under_way_is_not_sent_again(b: WorkerBench) -> None:
    """A Statement of a beat from before the outcome was sent does not ask for it again."""
    beat = await b.later_beat()
    b.dispatch()
    await b.outcome()
    since = len(b.heard)
    b.state(beat, 1, [0, 1])
    await b.nothing_of(WorkerOutcome, "no outcome again", since)


@case(SAID, "G4")
async def an_outcome_is_dropped_when_the_router_has_it(b: WorkerBench) -> None:
    """An outcome that a Statement no longer names is dropped, and never sent again."""
    b.dispatch()
    await b.outcome()
    since = len(b.heard)
    b.state(await b.later_beat(), 1)
    b.state(await b.later_beat(), 1, [0, 1])
    await b.nothing_of(WorkerOutcome, "no outcome: it was dropped", since)


@case(SAID, "G4")
async def outcomes_are_kept_beside_each_other(b: WorkerBench) -> None:
    """Outcomes that are still wanted are kept, whatever becomes of others beside them."""
    for number in range(3):
        b.dispatch(number)
    first = [await b.outcome(number) for number in range(3)]
    since = len(b.heard)
    b.state(await b.later_beat(), 3, [0, 1, 2, 3])
    again = [await b.outcome(number, since) for number in (0, 2)]
    check([each.frames for each in again] == [first[0].frames, first[2].frames],
          "outcomes 0 and 2 as they were", [each.message for each in again])  # fmt: skip
    numbers = [each.number for each in b.all(WorkerOutcome, since)]
    check(1 not in numbers, "no outcome 1: the router has it", numbers)


@case(SAID, "G9")
async def what_never_arrived_is_asked_for(b: WorkerBench) -> None:
    """Live dispatches that never arrived are named in a Missing, and run when they come."""
    b.dispatch(1)
    await b.outcome(1)
    b.state(await b.later_beat(), 4, [0, 2, 3, 4])
    missing = await b.one(Missing, "a Missing of 0 and 3")
    check(missing.numbers == [0, 1, 3, 4], "a Missing of 0 and 3", missing)
    b.dispatch(0)
    b.dispatch(3)
    await b.outcome(0)
    await b.outcome(3)


@case(SAID, "G7")
async def what_is_cancelled_and_never_arrived_is_declined(b: WorkerBench) -> None:
    """A cancelled dispatch that never arrived is declined, counts as seen, and is not run."""
    b.state(await b.later_beat(), 2, [0, 2], [0, 2])
    declined = await b.one(Declined, "a Declined of 0 and 1")
    check(declined.numbers == [0, 2], "a Declined of 0 and 1", declined)
    b.dispatch(0)
    await b.quiet()
    check(b.all(Beat)[-1].seen == [0, 2], "0 and 1 seen", b.all(Beat)[-1])
    check(not b.all(WorkerOutcome), "no outcome: it was declined", b.all(WorkerOutcome))


@case(SAID, "G7")
async def a_stop_may_overtake_its_dispatch(b: WorkerBench) -> None:
    """A dispatch that was stopped before it arrived is not run: cancelled, DID_NOT_RUN."""
    b.say(Stop([0, 1]))
    b.dispatch()
    await _fails_as(b, Status.CANCELLED, Verdict.DID_NOT_RUN, "cancelled")


@case(SAID, "G7", needs=("long",))
async def a_stop_ends_what_runs(b: WorkerBench) -> None:
    """A Stop reaches the environment's code, and the outcome says MAY_HAVE_RUN."""
    b.dispatch(of="long")
    await b.nothing_of(WorkerOutcome, "an input that goes on until it is cancelled", 0)
    b.say(Stop([0, 1]))
    await _fails_as(b, Status.CANCELLED, Verdict.MAY_HAVE_RUN, "cancelled")


@case(SAID, "G7", needs=("long",))
async def a_lost_stop_is_repaired(b: WorkerBench) -> None:
    """A dispatch that a Statement names as cancelled is cancelled, though no Stop has come."""
    b.dispatch(of="long")
    await b.quiet()
    b.state(await b.later_beat(), 1, [0, 1], [0, 1])
    await _fails_as(b, Status.CANCELLED, Verdict.MAY_HAVE_RUN, "cancelled")


@case(SAID, "G7", needs=("long",))
async def what_nobody_wants_any_more_is_cancelled(b: WorkerBench) -> None:
    """An execution that is below next and not live is cancelled."""
    b.dispatch(of="long")
    await b.quiet()
    b.state(await b.later_beat(), 1)
    await _fails_as(b, Status.CANCELLED, Verdict.MAY_HAVE_RUN, "cancelled")


@case(SAID, "G1", needs=("long",))
async def executions_run_beside_each_other(b: WorkerBench) -> None:
    """A long execution does not keep others from being run."""
    b.dispatch(0, of="long")
    b.dispatch(1)
    await b.outcome(1)


@case(SAID, "G8")
async def malformed_messages_change_nothing(b: WorkerBench) -> None:
    """A message that is not for workers is ignored, and what comes after it is done."""
    token = b.incarnation
    b.send(b"")
    b.send(token)
    b.send(token, b"")
    b.send(token, b"\xff\x00 no header")
    b.send(token, messages.encode(Hello(PROTOCOL_VERSION, bytes(ID_BYTES), 1, "a client", 1000)))
    b.send(token, messages.encode(Dispatch(b.session, 7, 7, CLIENT)))  # it has no body
    b.send(token, cbor2.dumps([80, [0, 0], b.session, [1, 2, 3], [1, 2, 3], CLIENT]), b"")
    b.send(token, cbor2.dumps([80, [1, 1], b.session, [1, 2], [1, 2], CLIENT]), b"\xf6")
    b.send(token, messages.encode(Stop([5, 3])))
    b.send(token, messages.encode(Stop([0, 1])), b"a frame too many")
    b.dispatch()
    await _ends_as(b, Status.RESULT)
    await b.quiet()
    check(b.all(Beat)[-1].seen == [0, 1], "0 seen", b.all(Beat)[-1])


@case(SAID, "G10")
async def a_message_that_names_too_many_is_ignored(b: WorkerBench) -> None:
    """A Stop, or Statement, of more than 65,536 dispatches is malformed, and changes nothing."""
    b.say(Stop([0, TOO_MANY]))
    b.state(await b.later_beat(), 2**40, [0, 2**40], [0, 2**40])
    b.dispatch()
    await _ends_as(b, Status.RESULT)
    check(not b.all(Declined) and not b.all(Missing), "no Declined, no Missing",
          [*b.all(Declined), *b.all(Missing)])  # fmt: skip


@case(SAID, "G9")
async def an_unreadable_body_did_not_run(b: WorkerBench) -> None:
    """A body that cannot be read is an outcome like any other: an error, DID_NOT_RUN."""
    b.dispatch(body=b"\xff\xff")
    await _fails_as(b, Status.ERROR, Verdict.DID_NOT_RUN)


@case(SAID, "G9", needs=("failing",))
async def a_failed_rollout_is_an_error_record(b: WorkerBench) -> None:
    """A rollout that fails ends as status 1 with rollout-failed, RAN_AND_FAILED."""
    b.dispatch(of="failing")
    await _fails_as(b, Status.ERROR, Verdict.RAN_AND_FAILED, "rollout-failed")


@case(SAID, "G8")
async def a_large_outcome_is_announced_first(b: WorkerBench) -> None:
    """A large outcome is announced by its size, and sent when a Fetch asks for it."""
    b.dispatch()
    announced = await b.one(Announced, "an announcement: announce_bytes is 1")
    await b.nothing_of(WorkerOutcome, "no outcome before a Fetch", 0)
    b.say(Fetch([0, 1], []))
    body = (await b.outcome()).frames[-1]
    check(len(body) == announced.size_bytes, f"a body of {announced.size_bytes} bytes", len(body))
    check((announced.session, announced.sequence, announced.number) == (b.session, 0, 0),
          "the dispatch's ids in its announcement", announced)  # fmt: skip


@case(SAID, "G4")
async def a_lost_announcement_is_sent_again(b: WorkerBench) -> None:
    """Statement repairs an announcement as it does an outcome, until it is fetched; then that."""
    b.dispatch()
    await b.one(Announced, "an announcement: announce_bytes is 1")
    again = await b.missed()
    check(isinstance(again.message, Announced), "the announcement again", again.message)
    b.say(Fetch([0, 1], []))
    first = await b.outcome()
    again = await b.missed()
    check(again.frames == first.frames, "the outcome again, as it was", again.message)


@case(SAID, "G8")
async def what_is_to_wait_is_not_announced_again(b: WorkerBench) -> None:
    """After a Fetch that names it in later, an announcement is not repeated, and is kept."""
    b.dispatch()
    await b.one(Announced, "an announcement: announce_bytes is 1")
    b.say(Fetch([], [0, 1]))
    since = len(b.heard)
    b.state(await b.later_beat(), 1, [0, 1])
    await b.nothing_of(Announced, "no announcement again", since)
    b.say(Fetch([0, 1], []))
    await b.outcome()


@case(SAID, "G8")
async def retired_it_exits_with_status_0(b: WorkerBench) -> None:
    """After Retire the worker tears down and exits with status 0."""
    b.dispatch()
    await b.outcome()
    b.say(Retire())
    how = await b.ended("the end of its process")
    check(how == "it exited with status 0", "exit with status 0", how)


@case(STARTED, "G1")
async def it_does_not_outlive_its_server(b: WorkerBench) -> None:
    """When the signs and the link end, the worker exits, whatever it runs."""
    b.dispatch(of="long" if "long" in b.subject.inputs else "input")
    await b.quiet()
    b.hang_up()
    await b.ended("the end of its process")


UNANSWERED = frozenset((a_hello_is_repeated_until_a_state_comes,))
"""In all others the hello of the worker is answered before they begin."""

ANNOUNCING = frozenset(
    (
        a_large_outcome_is_announced_first,
        a_lost_announcement_is_sent_again,
        what_is_to_wait_is_not_announced_again,
    )
)
"""These tell the worker that every outcome is large."""

WORKER_CASES: tuple[Case, ...] = tuple(
    sorted(
        (each for each in list(globals().values()) if type(each) is Case),
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


async def conform_worker(options: WorkerOptions) -> Report:
    """Judge a worker."""
    subject = options.subject
    findings: dict[Case, Finding] = {}
    began_s = trio.current_time()
    left = iter(options.cases)

    async def run(case: Case) -> None:
        announce_bytes = 1 if case in ANNOUNCING else None
        async with open_worker_bench(
            subject, patience_s=options.patience_s, announce_bytes=announce_bytes
        ) as bench:
            if case not in UNANSWERED:
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
    return Report(name, judged, trio.current_time() - began_s)
